//! What programs on TPU slices need to find each other, as GKE's webhook for Ray sets it: the index
//! of the host in its slice, the DNS names of all hosts, and the name of the slice.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::{Place, env};
use crate::ray::cluster::facts::Facts;
use crate::ray::cluster::resources::TPU;
use crate::ray::names;
use crate::ray::types::WorkerGroupSpec;

/// Sets the environment variables of containers with TPU chips. If a slice has several hosts, also
/// sets the DNS name of the host.
pub fn add(facts: &Facts<'_>, group: &WorkerGroupSpec, place: &Place, spec: &mut PodSpec) {
    if !spec.containers.iter().any(has_chips) {
        return;
    }
    let slice = format!("{}-{}", group.group_name.to_lowercase(), place.replica);
    let service = names::headless_service(facts.name);
    let hosts = if group.hosts() > 1 {
        // The host names follow from group, replica and host, so that each pod knows the names of
        // the others before they exist.
        spec.hostname = Some(format!("{slice}-{}", place.host));
        spec.subdomain = Some(service.clone());
        let hosts: Vec<_> = (0..group.hosts()).map(|host| format!("{slice}-{host}.{service}")).collect();
        hosts.join(",")
    } else {
        "localhost".to_owned()
    };
    for container in spec.containers.iter_mut().filter(|container| has_chips(container)) {
        env::push_default(container, env::value("TPU_WORKER_ID", place.host.to_string()));
        env::push_default(container, env::value("TPU_WORKER_HOSTNAMES", hosts.clone()));
        env::push_default(container, env::value("TPU_NAME", slice.clone()));
    }
}

fn has_chips(container: &Container) -> bool {
    let resources = container.resources.as_ref();
    let lists = resources.into_iter().flat_map(|resources| [&resources.limits, &resources.requests]);
    lists.flatten().any(|list| list.contains_key(TPU))
}
