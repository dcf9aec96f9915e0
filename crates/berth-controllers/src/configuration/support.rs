//! Rejects valid settings that Berth does not support. Values that equal the actual behaviour are
//! accepted.

use berth_apimachinery::field::{Error, Path};
use serde_json::json;

use super::file::File;
use super::frameworks;
use crate::gates::{Gate, Gates, Support};
use crate::jobs;

/// Kinds with a controller in Kueue, besides those of integrations, and Berth's controller of the
/// kind, if it has one.
const CONTROLLERS: &[(&str, Option<&str>)] = &[
    ("AdmissionCheck.kueue.x-k8s.io", Some("admission-check")),
    ("ClusterQueue.kueue.x-k8s.io", Some("cluster-queue")),
    ("Cohort.kueue.x-k8s.io", Some("cohort")),
    ("LocalQueue.kueue.x-k8s.io", Some("local-queue")),
    ("MultiKueueCluster.kueue.x-k8s.io", None),
    ("Node", Some("node-failures")),
    ("ResourceFlavor.kueue.x-k8s.io", Some("resource-flavor")),
    ("Topology.kueue.x-k8s.io", Some("topology")),
    ("Workload.kueue.x-k8s.io", Some("workload")),
    ("WorkloadPriorityClass.kueue.x-k8s.io", Some("workload-priority-class")),
];

/// Name of the controller that reconciles this `Kind.group`, as `controller.groupKindConcurrency`
/// names kinds. `None` if neither Berth nor Kueue has one; `Some(None)` if only Kueue does.
pub(super) fn controller_of(group_kind: &str) -> Option<Option<String>> {
    if let Some((_, name)) = CONTROLLERS.iter().find(|(known, _)| *known == group_kind) {
        return Some(name.map(str::to_owned));
    }
    let (kind, group) = group_kind.split_once('.').unwrap_or((group_kind, ""));
    let framework = frameworks::find_kind(group, kind)?;
    // Kinds that are queued through their pods have no controller of their own.
    Some(match framework.name {
        "pod" => Some("job-pod".to_owned()),
        name if framework.made_of_pods || !jobs::is_integrated(name) => None,
        name => Some(format!("job-{name}")),
    })
}

/// An error for each valid field that Berth does not support. `gates`: the gates of the file.
pub(super) fn refusals(file: &File, gates: &Gates) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("integrations");
    let path = path.child("frameworks");
    for (index, name) in file.integrations.iter().flat_map(|it| &it.frameworks).enumerate() {
        if !jobs::is_integrated(name) {
            errors.push(Error::forbidden(&path.index(index), format!("Berth has no integration named {name}")));
        }
    }
    if file.multi_kueue.is_some() {
        errors.push(Error::forbidden(&Path::new("multiKueue"), "Berth does not dispatch to other clusters"));
    }
    let path = Path::new("metrics");
    if !file.metrics.custom_labels.is_empty() && !gates.on(Gate::CustomMetricLabels) {
        let detail = "needs feature gate CustomMetricLabels, which is off by default";
        errors.push(Error::forbidden(&path.child("customLabels"), detail));
    }
    if file.pprof_bind_address.as_ref().is_some_and(|address| !["", "0"].contains(&address.as_str())) {
        errors.push(Error::forbidden(&Path::new("pprofBindAddress"), "Berth has no profiler to serve"));
    }
    if let Some(server) = &file.visibility_server {
        let path = Path::new("visibilityServer");
        let detail = "pending workloads are served on the webhooks' address and port";
        if server.bind_address.is_some() {
            errors.push(Error::forbidden(&path.child("bindAddress"), detail));
        }
        // The default value is accepted.
        if server.bind_port.is_some_and(|port| port != 8082) {
            errors.push(Error::forbidden(&path.child("bindPort"), detail));
        }
    }
    errors.extend(concurrency(file));
    let path = Path::new("featureGates");
    for (gate, on) in gates.all_set() {
        let detail = match (gate.support(), on) {
            (Support::Missing, true) => "Berth does not have this feature; remove the gate, or set it to false",
            (Support::Always, false) => "Berth cannot switch this feature off; remove the gate, or set it to true",
            _ => continue,
        };
        errors.push(Error::forbidden(&path.key(gate.name()), detail));
    }
    errors
}

/// Validates that each entry names a controller of Berth or Kueue.
fn concurrency(file: &File) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("controller");
    let path = path.child("groupKindConcurrency");
    for (kind, at_once) in file.controller.iter().flat_map(|controller| &controller.group_kind_concurrency) {
        let at = path.key(kind);
        if *at_once < 1 {
            errors.push(Error::invalid(&at, *at_once, "must be greater than or equal to 1"));
        } else if controller_of(kind).is_none() {
            let known: Vec<&str> = CONTROLLERS.iter().map(|(kind, _)| *kind).collect();
            let detail = format!(
                "no controller reconciles this kind; write a kind as Kind.group, for example Job.batch or one of {}",
                known.join(", ")
            );
            errors.push(Error::invalid(&at, json!(kind), detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_is_used_or_listed_as_unsupported() {
        let mut source = String::new();
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders = vec![crates.join("berth-controllers/src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if !["support.rs", "fields.rs", "gates.rs", "tests.rs", "configuration/mod.rs"]
                    .iter()
                    .any(|name| path.ends_with(name))
                {
                    source += &std::fs::read_to_string(path).expect("a source file");
                }
            }
        }
        for gate in Gate::ALL {
            let name = gate.name();
            let at_word_end = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
            let used = source.split(&format!("Gate::{name}")).skip(1).any(at_word_end);
            // Berth does not dispatch workloads, but MultiKueue's gates affect defaults and
            // conditions that recorded cases cover.
            let listed = gate.support() != Support::Full;
            let partly = name.starts_with("MultiKueue");
            let locked = *gate == Gate::ManagedJobsNamespaceSelectorAlwaysRespected;
            assert!(used != listed || partly || locked, "{name}: used {used}, listed {listed}");
        }
        // Kueue locks this gate.
        assert!(Gates::default().on(Gate::TLSOptions));
    }

    #[test]
    fn kinds_are_named_with_their_group() {
        assert_eq!(controller_of("Job.batch"), Some(Some("job-batch/job".to_owned())));
        assert_eq!(controller_of("Pod"), Some(Some("job-pod".to_owned())));
        assert_eq!(controller_of("RayJob.ray.io"), Some(Some("job-ray.io/rayjob".to_owned())));
        assert_eq!(controller_of("StatefulSet.apps"), Some(None));
        assert_eq!(controller_of("Job"), None);
    }
}
