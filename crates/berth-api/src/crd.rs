//! The CustomResourceDefinitions of all kinds of this crate, for Berth's own API server and for
//! installation in another cluster.
//!
//! The definitions are files, one per kind. The module `schema`, which the product is built
//! without, generates them from the types, and a test compares the two. In the files, the keyword
//! `x-embed` stands for a type of Kubernetes (a pod template alone is 8,000 lines). Its schema is
//! filled in when a program first needs the definitions.

use std::sync::OnceLock;

use serde_json::Value;

use crate::monitoring;
use crate::published::Published;

/// Keyword of a schema node. Its value names the published type whose schema the node gets.
pub(crate) const EMBED: &str = "x-embed";

macro_rules! files {
    ($($name:literal)*) => {
        &[$(include_str!(concat!("../definitions/", $name, ".json"))),*]
    };
}

/// The files in the order in which the definitions are installed.
const FILES: &[&str] = files! {
    "admissionchecks.kueue.x-k8s.io"
    "clusterqueues.kueue.x-k8s.io"
    "cohorts.kueue.x-k8s.io"
    "localqueues.kueue.x-k8s.io"
    "multikueueclusters.kueue.x-k8s.io"
    "multikueueconfigs.kueue.x-k8s.io"
    "provisioningrequestconfigs.kueue.x-k8s.io"
    "resourceflavors.kueue.x-k8s.io"
    "topologies.kueue.x-k8s.io"
    "workloadpriorityclasses.kueue.x-k8s.io"
    "workloads.kueue.x-k8s.io"
    "jobsets.jobset.x-k8s.io"
    "provisioningrequests.autoscaling.x-k8s.io"
    "podgroups.scheduling.x-k8s.io"
    "nodepools.berth.dev"
    "provisioningclasses.berth.dev"
};

/// All definitions, built once, as `CustomResourceDefinition`s of `apiextensions.k8s.io/v1`: those
/// of Kueue, JobSet, ProvisioningRequest, PodGroup, NodePool and ProvisioningClass, and those of
/// [`monitoring`], which accept any spec.
///
/// The definitions declare no conversion: [`kueue::conversion`](crate::kueue::conversion)
/// implements it, and an installation in another cluster adds its conversion webhook.
pub fn crds() -> &'static [Value] {
    static CRDS: OnceLock<Vec<Value>> = OnceLock::new();
    CRDS.get_or_init(|| {
        let mut published = Published::default();
        let definitions = FILES.iter().map(|text| {
            let mut definition = serde_json::from_str(text).expect("a test compares the file with the types");
            embed(&mut published, &mut definition);
            definition
        });
        definitions.chain(monitoring::crds()).collect()
    })
}

/// Replaces each keyword [`EMBED`] with the published schema that it names. The node's own keywords
/// override those of the schema.
fn embed(published: &mut Published, node: &mut Value) {
    match node {
        Value::Object(fields) => {
            let Some(Value::String(name)) = fields.remove(EMBED) else {
                return fields.values_mut().for_each(|value| embed(published, value));
            };
            if let Value::Object(schema) = published.schema(&name) {
                for (key, value) in schema {
                    fields.entry(key).or_insert(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|value| embed(published, value)),
        _ => {}
    }
}
