//! Metrics of training jobs and MPIJobs, with the names of Kubeflow's operators. The training
//! operator counts by namespace and framework, the MPI operator counts all jobs together and lists
//! the launchers.
//!
//! Source: `pkg/common/metrics.go` of the training operator 1.9, and the page "Monitoring" of the
//! MPI operator 0.8.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_apimachinery::exposition::{Exposition, Family};
use parking_lot::Mutex;

use super::conditions::JobStatus;
use super::conditions::types::{CREATED, FAILED, RESTARTING, SUCCEEDED};

/// What happens to jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Created,
    Deleted,
    Successful,
    Failed,
    Restarted,
}

impl Step {
    const ALL: [Self; 5] = [Self::Created, Self::Deleted, Self::Successful, Self::Failed, Self::Restarted];

    /// The counters of the training operator and of the MPI operator.
    fn families(self) -> [Family; 2] {
        macro_rules! families {
            ($word:literal, $help:literal) => {
                [
                    Family::counter(
                        concat!("training_operator_jobs_", $word, "_total"),
                        concat!("Number of training jobs ", $help),
                    ),
                    Family::counter(
                        concat!("mpi_operator_jobs_", $word, "_total"),
                        concat!("Number of MPIJobs ", $help),
                    ),
                ]
            };
        }
        match self {
            Self::Created => families!("created", "created"),
            Self::Deleted => families!("deleted", "deleted by the operator after their time to live"),
            Self::Successful => families!("successful", "that succeeded"),
            Self::Failed => families!("failed", "that failed"),
            Self::Restarted => families!("restarted", "whose pods were replaced"),
        }
    }

    /// The step that a condition reports when it becomes true.
    const CONDITIONS: [(&'static str, Self); 4] = [
        (CREATED, Self::Created),
        (SUCCEEDED, Self::Successful),
        (FAILED, Self::Failed),
        (RESTARTING, Self::Restarted),
    ];
}

#[derive(Debug, Default)]
struct Counts {
    /// By step, namespace and framework.
    training: BTreeMap<(Step, String, &'static str), u64>,
    mpi: BTreeMap<Step, u64>,
    /// Namespace and name of the launchers of MPIJobs.
    launchers: BTreeSet<(String, String)>,
}

/// Counts of jobs since the operators started. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct JobMetrics(Arc<Mutex<Counts>>);

/// The steps by which a status changed.
fn steps<'a>(old: &'a JobStatus, new: &'a JobStatus) -> impl Iterator<Item = Step> + 'a {
    let changed = |(type_, _): &(&str, Step)| new.is_true(type_) && !old.is_true(type_);
    Step::CONDITIONS.into_iter().filter(changed).map(|(_, step)| step)
}

impl JobMetrics {
    /// Counts what a change of a training job's status reports.
    pub fn changed(&self, namespace: &str, framework: &'static str, old: &JobStatus, new: &JobStatus) {
        let counts = &mut self.0.lock().training;
        for step in steps(old, new) {
            *counts.entry((step, namespace.to_owned(), framework)).or_default() += 1;
        }
    }

    /// Counts a training job that the operator deleted.
    pub fn deleted(&self, namespace: &str, framework: &'static str) {
        *self.0.lock().training.entry((Step::Deleted, namespace.to_owned(), framework)).or_default() += 1;
    }

    /// Counts what a change of an MPIJob's status reports.
    pub fn mpi_changed(&self, old: &JobStatus, new: &JobStatus) {
        let counts = &mut self.0.lock().mpi;
        for step in steps(old, new).filter(|step| *step != Step::Restarted) {
            *counts.entry(step).or_default() += 1;
        }
    }

    /// Lists a launcher, or removes it from the list.
    pub fn launcher(&self, namespace: &str, name: &str, exists: bool) {
        let launchers = &mut self.0.lock().launchers;
        let launcher = (namespace.to_owned(), name.to_owned());
        if exists {
            launchers.insert(launcher);
        } else {
            launchers.remove(&launcher);
        }
    }

    /// Writes the metrics.
    pub fn write(&self, exposition: &mut Exposition) {
        const INFO: Family =
            Family::gauge("mpi_operator_job_info", "Always 1; the labels name the launcher of an MPIJob");
        let counts = self.0.lock();
        for step in Step::ALL {
            let [training, mpi] = step.families();
            for ((_, namespace, framework), count) in counts.training.iter().filter(|((of, ..), _)| *of == step) {
                let labels = [("framework", *framework), ("job_namespace", namespace)];
                exposition.add(&training, &labels, *count as f64);
            }
            if let Some(count) = counts.mpi.get(&step) {
                exposition.add(&mpi, &[], *count as f64);
            }
        }
        for (namespace, launcher) in &counts.launchers {
            exposition.add(&INFO, &[("launcher", launcher), ("namespace", namespace)], 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(metrics: &JobMetrics) -> String {
        Exposition::text(|exposition| metrics.write(exposition))
    }

    fn status(conditions: &[&str]) -> JobStatus {
        let conditions: Vec<_> = conditions.iter().map(|type_| json!({"type": type_, "status": "True"})).collect();
        JobStatus::read(Some(&json!({ "conditions": conditions })))
    }

    #[test]
    fn training_jobs_are_counted_by_namespace_and_framework() {
        let metrics = JobMetrics::default();
        assert_eq!(text(&metrics), "");
        let (new, created) = (status(&[]), status(&[CREATED]));
        metrics.changed("blue", "pytorch", &new, &created);
        metrics.changed("blue", "pytorch", &created, &created);
        metrics.changed("blue", "pytorch", &created, &status(&[CREATED, RESTARTING]));
        metrics.changed("red", "jax", &new, &status(&[CREATED, FAILED]));
        metrics.deleted("blue", "pytorch");
        assert_eq!(
            text(&metrics.clone()),
            "# HELP training_operator_jobs_created_total Number of training jobs created\n\
             # TYPE training_operator_jobs_created_total counter\n\
             training_operator_jobs_created_total{framework=\"pytorch\",job_namespace=\"blue\"} 1\n\
             training_operator_jobs_created_total{framework=\"jax\",job_namespace=\"red\"} 1\n\
             # HELP training_operator_jobs_deleted_total Number of training jobs deleted by the operator after their \
             time to live\n\
             # TYPE training_operator_jobs_deleted_total counter\n\
             training_operator_jobs_deleted_total{framework=\"pytorch\",job_namespace=\"blue\"} 1\n\
             # HELP training_operator_jobs_failed_total Number of training jobs that failed\n\
             # TYPE training_operator_jobs_failed_total counter\n\
             training_operator_jobs_failed_total{framework=\"jax\",job_namespace=\"red\"} 1\n\
             # HELP training_operator_jobs_restarted_total Number of training jobs whose pods were replaced\n\
             # TYPE training_operator_jobs_restarted_total counter\n\
             training_operator_jobs_restarted_total{framework=\"pytorch\",job_namespace=\"blue\"} 1\n"
        );
    }

    #[test]
    fn mpi_jobs_are_counted_together_and_their_launchers_listed() {
        let metrics = JobMetrics::default();
        for namespace in ["a", "b"] {
            metrics.mpi_changed(&status(&[]), &status(&[CREATED]));
            metrics.launcher(namespace, "pi-launcher", true);
        }
        metrics.mpi_changed(&status(&[CREATED]), &status(&[CREATED, SUCCEEDED]));
        metrics.launcher("a", "pi-launcher", false);
        assert_eq!(
            text(&metrics),
            "# HELP mpi_operator_jobs_created_total Number of MPIJobs created\n\
             # TYPE mpi_operator_jobs_created_total counter\n\
             mpi_operator_jobs_created_total 2\n\
             # HELP mpi_operator_jobs_successful_total Number of MPIJobs that succeeded\n\
             # TYPE mpi_operator_jobs_successful_total counter\n\
             mpi_operator_jobs_successful_total 1\n\
             # HELP mpi_operator_job_info Always 1; the labels name the launcher of an MPIJob\n\
             # TYPE mpi_operator_job_info gauge\n\
             mpi_operator_job_info{launcher=\"pi-launcher\",namespace=\"b\"} 1\n"
        );
    }
}
