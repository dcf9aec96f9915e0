//! Validation of a changed set: nearly all fields of its jobs are immutable. While it is suspended,
//! and when it is suspended or resumed, a queueing system may change the placement of its pods.

use berth_api::jobset::constants::{COMPLETED, FAILED};
use berth_api::jobset::v1alpha2::{JobSet, ReplicatedJob};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meaning::{same, same_as};
use k8s_openapi::api::batch::v1::JobSpec;
use serde_json::Value;

use crate::jobset::conditions::true_condition;
use crate::jobset::construct::is_suspended;
use crate::jobset::gates::Gates;

/// All errors of a change to a set.
pub fn validate_update(old: &JobSet, new: &JobSet, gates: Gates) -> Vec<Error> {
    let spec = Path::new("spec");
    let entries_path = spec.child("replicatedJobs");
    let mut errors = Vec::new();
    let mut entries = new.spec.replicated_jobs.clone();
    if is_suspended(old) || is_suspended(new) {
        for (entry, old) in pairs(&mut entries, old) {
            overlook_placement(entry, old);
        }
    }
    if gates.elastic_jobset {
        let is_terminal = [COMPLETED, FAILED].iter().any(|type_| true_condition(old.status.as_ref(), type_).is_some());
        for (position, (entry, old)) in pairs(&mut entries, old).enumerate() {
            let entry_path = entries_path.index(position);
            let template_path = entry_path.child("template");
            resize(entry, old, is_terminal, &template_path.child("spec"), &mut errors);
        }
    }
    if !same_entries(&entries, &old.spec.replicated_jobs) {
        errors.push(Error::invalid(&entries_path, Value::Null, "field is immutable"));
    }
    let manager = |set: &JobSet| set.spec.managed_by.clone();
    if manager(new) != manager(old) {
        let value = manager(new).map_or(Value::Null, Value::from);
        errors.push(Error::invalid(&spec.child("managedBy"), value, "field is immutable"));
    }
    errors
}

fn pairs<'a>(
    entries: &'a mut [ReplicatedJob],
    old: &'a JobSet,
) -> impl Iterator<Item = (&'a mut ReplicatedJob, &'a ReplicatedJob)> {
    entries.iter_mut().zip(&old.spec.replicated_jobs)
}

/// Resets the fields that determine placement to their old values, so that a comparison ignores
/// them.
fn overlook_placement(entry: &mut ReplicatedJob, old: &ReplicatedJob) {
    let old = old.template.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let Some(template) = entry.template.spec.as_mut().map(|spec| &mut spec.template) else { return };
    let old_meta = old.metadata.unwrap_or_default();
    let meta = template.metadata.get_or_insert_default();
    meta.labels = old_meta.labels;
    meta.annotations = old_meta.annotations;
    let old_pod = old.spec.unwrap_or_default();
    let pod = template.spec.get_or_insert_default();
    pod.node_selector = old_pod.node_selector;
    pod.tolerations = old_pod.tolerations;
    pod.scheduling_gates = old_pod.scheduling_gates;
}

/// Validates a change of parallelism and completions, and resets both.
fn resize(entry: &mut ReplicatedJob, old: &ReplicatedJob, is_terminal: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    let empty = JobSpec::default();
    let old = old.template.spec.as_ref().unwrap_or(&empty);
    let Some(new) = entry.template.spec.as_mut() else { return };
    let is_indexed = [new.completion_mode.as_deref(), old.completion_mode.as_deref()] == [Some("Indexed"); 2];
    if !is_indexed || (new.parallelism, new.completions) == (old.parallelism, old.completions) {
        return;
    }
    if is_terminal {
        let why = "Cannot mutate parallelism or completions when JobSet is in a terminal state (Completed or Failed)";
        errors.push(Error::forbidden(path, why));
    }
    for (field, value) in [("parallelism", new.parallelism), ("completions", new.completions)] {
        if let Some(value) = value.filter(|value| *value < 1) {
            errors.push(Error::invalid(&path.child(field), value, format!("{field} must be >= 1")));
        }
    }
    new.parallelism = old.parallelism;
    new.completions = old.completions;
}

/// True if both lists have the same meaning. A client may have written an empty struct for a
/// missing one.
fn same_entries(new: &[ReplicatedJob], old: &[ReplicatedJob]) -> bool {
    let apart = |entry: &ReplicatedJob| {
        // Types that were read from JSON can be written as JSON.
        let mut rest = serde_json::to_value(entry).unwrap_or_default();
        let template = rest["template"].take();
        (rest, template)
    };
    new.len() == old.len()
        && new.iter().zip(old).all(|(new, old)| {
            let ((new, template), (old, old_template)) = (apart(new), apart(old));
            same(&new, &old) && same_as("io.k8s.api.batch.v1.JobTemplateSpec", &template, &old_template)
        })
}
