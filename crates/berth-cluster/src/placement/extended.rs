//! Extended resources that device classes back: a pod that requests one gets devices through a
//! claim that the scheduler makes.
//!
//! A device class backs the resource of its `spec.extendedResourceName`, and always the resource
//! `deviceclass.resource.kubernetes.io/NAME`. A node that has the resource itself, from a device
//! plugin, gives it as before. On every other node the pod gets devices of the class, so each node
//! may need another claim.
//!
//! Source: KEP-5004.

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use berth_cel::device::Selector;
use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, PodSpec};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use kube::ResourceExt;

use super::Resources;
use super::allocator::Requests;

/// Annotation of the claim that the scheduler makes for the extended resources of a pod.
pub const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// True if the scheduler made the claim for the extended resources of a pod.
pub fn is_extended_claim(claim: &ResourceClaim) -> bool {
    claim.annotations().get(EXTENDED_CLAIM).is_some_and(|value| value == "true")
}

/// A claim for the extended resources of a pod on one node.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtendedClaim {
    /// The requests for devices.
    pub spec: ResourceClaimSpec,
    /// The requests of each container.
    pub mappings: Vec<ContainerExtendedResourceRequest>,
    /// The devices that were chosen.
    pub allocation: AllocationResult,
}

/// The extended resources of a pod that device classes back.
#[derive(Clone, Debug)]
pub(super) struct ExtendedNeeds {
    /// The class of each resource.
    classes: BTreeMap<String, String>,
    containers: Vec<Wanted>,
    /// Selectors of the classes, or why a class cannot be used.
    selectors: BTreeMap<String, Result<Vec<Selector>, String>>,
    /// The claim for nodes that have none of the resources: most nodes.
    all: Asked,
}

/// What one container requests.
#[derive(Clone, Debug)]
struct Wanted {
    /// Position among init containers and containers.
    index: usize,
    name: String,
    /// True for an init container that ends before the next container starts.
    ends_early: bool,
    /// Amount and position among all requests of the container, by resource.
    amounts: BTreeMap<String, (i64, usize)>,
}

/// The requests of a claim.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) spec: ResourceClaimSpec,
    pub(super) mappings: Vec<ContainerExtendedResourceRequest>,
    pub(super) requests: Result<Requests, String>,
}

impl ExtendedNeeds {
    /// The requirements of a pod. `class`: the device class that backs a resource; `selectors`:
    /// those of a class.
    pub(super) fn of(
        pod: &PodSpec,
        class: impl Fn(&str) -> Option<String>,
        selectors: impl Fn(&str) -> Result<Vec<Selector>, String>,
    ) -> Option<Self> {
        let requests = Resources::of_pod(pod);
        let backed = requests.extended().filter_map(|(resource, _)| Some((resource.to_owned(), class(resource)?)));
        let classes: BTreeMap<String, String> = backed.collect();
        if classes.is_empty() {
            return None;
        }
        let selectors: BTreeMap<_, _> = classes.values().map(|class| (class.clone(), selectors(class))).collect();
        let containers = wanted(pod, &classes);
        let all = asked(&containers, &classes, &selectors);
        Some(Self { classes, containers, selectors, all })
    }

    /// True if a device class backs the resource.
    pub(super) fn covers(&self, resource: &str) -> bool {
        self.classes.contains_key(resource)
    }

    /// The claim for a node that has none of the resources.
    pub(super) fn spec(&self) -> &ResourceClaimSpec {
        &self.all.spec
    }

    /// The claim for a node with these amounts; `None` if the node has all of the resources itself.
    pub(super) fn on(&self, allocatable: &Resources) -> Option<Cow<'_, Asked>> {
        let lacking = self.classes.iter().filter(|(resource, _)| allocatable.get(resource) == 0);
        let lacking: BTreeMap<String, String> = lacking.map(|(key, value)| (key.clone(), value.clone())).collect();
        if lacking.is_empty() {
            None
        } else if lacking.len() == self.classes.len() {
            Some(Cow::Borrowed(&self.all))
        } else {
            Some(Cow::Owned(asked(&self.containers, &lacking, &self.selectors)))
        }
    }
}

/// The containers that request any of the resources.
fn wanted(pod: &PodSpec, classes: &BTreeMap<String, String>) -> Vec<Wanted> {
    let first = pod.init_containers.iter().flatten();
    let first = first.map(|container| (container, container.restart_policy.as_deref() != Some("Always")));
    let all = first.chain(pod.containers.iter().map(|container| (container, false)));
    let wanted = all.enumerate().map(|(index, (container, ends_early))| Wanted {
        index,
        name: container.name.clone(),
        ends_early,
        amounts: amounts(container, classes),
    });
    wanted.filter(|wanted| !wanted.amounts.is_empty()).collect()
}

fn amounts(container: &Container, classes: &BTreeMap<String, String>) -> BTreeMap<String, (i64, usize)> {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    // The names are in order, as Kubernetes counts them.
    let requests = requests.into_iter().flatten().enumerate();
    let backed = requests.filter(|(_, (name, _))| classes.contains_key(*name));
    let amounts = backed.filter_map(|(position, (name, quantity))| {
        let amount = Quantity::parse(&quantity.0).ok()?.value();
        (amount > 0).then(|| (name.clone(), (amount, position)))
    });
    amounts.collect()
}

/// The claim for these resources.
fn asked(
    containers: &[Wanted],
    classes: &BTreeMap<String, String>,
    selectors: &BTreeMap<String, Result<Vec<Selector>, String>>,
) -> Asked {
    let (mut requests, mut mappings) = (Vec::new(), Vec::new());
    for (resource, class) in classes {
        ask(containers, resource, class, &mut requests, &mut mappings);
    }
    requests.sort_by(|a, b| a.name.cmp(&b.name));
    let devices = DeviceClaim { requests: Some(requests), ..DeviceClaim::default() };
    let spec = ResourceClaimSpec { devices: Some(devices) };
    let of_class = |class: &str| selectors.get(class).cloned().unwrap_or_else(|| Ok(Vec::new()));
    let requests = Requests::compile(&spec, of_class);
    Asked { spec, mappings, requests }
}

/// Adds the requests for one resource, and which of them each container uses.
///
/// Containers that run at the same time have a request each. An init container ends before the
/// containers after it start, so it uses their devices first. Init containers that need more share
/// one request, for the largest excess.
fn ask(
    containers: &[Wanted],
    resource: &str,
    class: &str,
    requests: &mut Vec<DeviceRequest>,
    mappings: &mut Vec<ContainerExtendedResourceRequest>,
) {
    let using = |container: &Wanted, request: &str| ContainerExtendedResourceRequest {
        container_name: container.name.clone(),
        resource_name: resource.to_owned(),
        request_name: request.to_owned(),
    };
    let of = |wanted: &Wanted| wanted.amounts.get(resource).copied();
    let mut lasting: Vec<(usize, String, i64)> = Vec::new();
    for container in containers.iter().filter(|container| !container.ends_early) {
        let Some((amount, position)) = of(container) else { continue };
        let name = request_name(container, position);
        mappings.push(using(container, &name));
        lasting.push((container.index, name, amount));
    }
    let mut largest: Option<(String, i64)> = None;
    let mut exceeding = Vec::new();
    for container in containers.iter().filter(|container| container.ends_early) {
        let Some((mut missing, position)) = of(container) else { continue };
        for (_, name, amount) in lasting.iter().filter(|(index, ..)| *index > container.index) {
            if missing > 0 {
                mappings.push(using(container, name));
                missing -= amount;
            }
        }
        if missing > 0 {
            exceeding.push(container);
            if largest.as_ref().is_none_or(|(_, known)| *known < missing) {
                largest = Some((request_name(container, position), missing));
            }
        }
    }
    if let Some((name, _)) = &largest {
        mappings.extend(exceeding.into_iter().map(|container| using(container, name)));
    }
    let all = lasting.into_iter().map(|(_, name, amount)| (name, amount)).chain(largest);
    requests.extend(all.map(|(name, count)| DeviceRequest {
        name,
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(count),
            ..ExactDeviceRequest::default()
        }),
        first_available: None,
    }));
}

/// The name that Kubernetes gives to the request of a container.
fn request_name(container: &Wanted, position: usize) -> String {
    format!("container-{}-request-{position}", container.index)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(name: &str, gpus: i64) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": "1", "example.com/gpu": gpus.to_string()}}})
    }

    /// The requests and the mappings for nodes that have none of the resources, as text.
    fn claim(init: Value, containers: Value) -> (String, String) {
        let spec: PodSpec =
            serde_json::from_value(json!({"initContainers": init, "containers": containers})).expect("a pod's spec");
        let class = |resource: &str| (resource == "example.com/gpu").then(|| "gpu".to_owned());
        let needs = ExtendedNeeds::of(&spec, class, |_| Ok(Vec::new())).expect("needs");
        let asked = needs.on(&Resources::default()).expect("a claim");
        let requests = asked.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
        let count = |it: &DeviceRequest| it.exactly.as_ref().and_then(|it| it.count).unwrap_or_default();
        let requests: Vec<String> = requests.map(|it| format!("{}:{}", it.name, count(it))).collect();
        let mappings = asked.mappings.iter().map(|it| format!("{}={}", it.container_name, it.request_name));
        (requests.join(" "), mappings.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn containers_that_run_at_once_have_a_request_each() {
        let (requests, mappings) = claim(json!([]), json!([container("a", 2), container("b", 0), container("c", 1)]));
        assert_eq!(requests, "container-0-request-1:2 container-2-request-1:1");
        assert_eq!(mappings, "a=container-0-request-1 c=container-2-request-1");
    }

    #[test]
    fn an_init_container_uses_the_devices_of_later_containers() {
        let (requests, mappings) = claim(json!([container("init", 1)]), json!([container("a", 1), container("b", 1)]));
        assert_eq!(requests, "container-1-request-1:1 container-2-request-1:1");
        assert_eq!(mappings, "a=container-1-request-1 b=container-2-request-1 init=container-1-request-1");
    }

    #[test]
    fn init_containers_share_the_devices_that_they_need_in_addition() {
        let init = json!([container("first", 2), container("second", 4)]);
        let (requests, mappings) = claim(init, json!([container("main", 1)]));
        assert_eq!(requests, "container-1-request-1:3 container-2-request-1:1");
        assert_eq!(
            mappings,
            "main=container-2-request-1 first=container-2-request-1 second=container-2-request-1 \
             first=container-1-request-1 second=container-1-request-1"
        );
    }

    #[test]
    fn an_init_container_does_not_use_the_devices_of_an_earlier_sidecar() {
        let mut sidecar = container("sidecar", 1);
        sidecar["restartPolicy"] = json!("Always");
        let (requests, _) = claim(json!([sidecar, container("init", 1)]), json!([container("main", 0)]));
        assert_eq!(requests, "container-0-request-1:1 container-1-request-1:1");
    }

    #[test]
    fn a_node_that_has_the_resource_itself_needs_no_claim() {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [{"name": "c", "resources": {"requests":
            {"example.com/gpu": "1", "deviceclass.resource.kubernetes.io/nic": "1", "example.com/other": "1"}}}]}))
        .expect("a pod's spec");
        let class = |resource: &str| match resource {
            "example.com/gpu" => Some("gpu".to_owned()),
            "deviceclass.resource.kubernetes.io/nic" => Some("nic".to_owned()),
            _ => None,
        };
        let needs = ExtendedNeeds::of(&spec, class, |_| Ok(Vec::new())).expect("needs");
        assert!(needs.covers("example.com/gpu") && !needs.covers("example.com/other"));
        let mut node = Resources::default();
        let count = |node: &Resources| needs.on(node).map(|asked| asked.mappings.len());
        assert_eq!(count(&node), Some(2));
        node.set("example.com/gpu", 4);
        assert_eq!(count(&node), Some(1));
        node.set("deviceclass.resource.kubernetes.io/nic", 1);
        assert_eq!(count(&node), None);
    }
}
