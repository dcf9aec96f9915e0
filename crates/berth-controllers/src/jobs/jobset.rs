//! The integration of JobSet.

use berth_api::jobset::constants::JOB_INDEX;
use berth_api::jobset::v1alpha2::{JobSet, ReplicatedJob};
use berth_api::kueue::v1beta2::{PodSet, ReclaimablePod};
use berth_apimachinery::well_known::COMPLETION_INDEX;

use super::topology::{self, Ranks};
use super::{Finished, Job};
use crate::conditions;
use crate::gates::Gates;
use crate::podset::{self, PodSetError, PodSetInfo};

impl Job for JobSet {
    const FRAMEWORK: &'static str = "jobset.x-k8s.io/jobset";

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    fn suspend(&mut self) {
        self.spec.suspend = Some(true);
    }

    fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String> {
        let mut pod_sets = Vec::with_capacity(self.spec.replicated_jobs.len());
        for job in &self.spec.replicated_jobs {
            let template = job.template.spec.clone().unwrap_or_default().template;
            let ranks = Ranks {
                pod_index_label: Some(COMPLETION_INDEX),
                sub_group_index_label: Some(JOB_INDEX),
                sub_group_count: Some(replicas(job)),
            };
            let topology_request = topology::of_template(&template, ranks, gates)
                .map_err(|e| format!("spec.replicatedJobs[{}].template: {e}", job.name))?;
            pod_sets.push(PodSet {
                name: job.name.clone(),
                count: replicas(job).saturating_mul(pods_per_job(job)),
                min_count: None,
                template,
                topology_request,
            });
        }
        Ok(pod_sets)
    }

    fn run_with(&mut self, infos: &[PodSetInfo], gates: &Gates) -> Result<(), PodSetError> {
        self.spec.suspend = Some(false);
        let expected = self.spec.replicated_jobs.len();
        if infos.len() != expected {
            return Err(PodSetError::Count { expected, got: infos.len() });
        }
        // The JobSet controller copies the change to existing child Jobs when it resumes them.
        for (job, info) in self.spec.replicated_jobs.iter_mut().zip(infos) {
            podset::merge(&mut job.template.spec.get_or_insert_default().template, info, gates)?;
        }
        Ok(())
    }

    fn restore(&mut self, infos: &[PodSetInfo]) -> bool {
        if infos.len() != self.spec.replicated_jobs.len() {
            return false;
        }
        let mut changed = false;
        for (job, info) in self.spec.replicated_jobs.iter_mut().zip(infos) {
            changed |= podset::restore(&mut job.template.spec.get_or_insert_default().template, info);
        }
        changed
    }

    fn finished(&self) -> Option<Finished> {
        let conditions = &self.status.as_ref()?.conditions;
        [("Completed", true), ("Failed", false)].into_iter().find_map(|(type_, success)| {
            let condition = conditions::find(conditions, type_).filter(|condition| condition.status == "True")?;
            Some(Finished { success, message: condition.message.clone() })
        })
    }

    fn pods_ready(&self) -> bool {
        let replicas: i32 = self.spec.replicated_jobs.iter().map(replicas).sum();
        let statuses = self.status.iter().flat_map(|status| status.replicated_jobs_status.iter());
        replicas == statuses.map(|status| status.ready.saturating_add(status.succeeded)).sum::<i32>()
    }

    fn is_active(&self) -> bool {
        self.status.iter().flat_map(|status| status.replicated_jobs_status.iter()).any(|status| status.active > 0)
    }

    fn reclaimable_pods(&self) -> Option<Vec<ReclaimablePod>> {
        let statuses = self.status.as_ref().map_or(&[][..], |status| &status.replicated_jobs_status);
        let reclaimable = self.spec.replicated_jobs.iter().filter_map(|job| {
            let status = statuses.iter().find(|status| status.name == job.name)?;
            let done = status.succeeded.min(replicas(job));
            (done > 0).then(|| ReclaimablePod { name: job.name.clone(), count: done.saturating_mul(pods_per_job(job)) })
        });
        Some(reclaimable.collect())
    }

    fn managed_by(&self) -> Option<&str> {
        self.spec.managed_by.as_deref()
    }

    fn set_managed_by(&mut self, controller: &str) {
        self.spec.managed_by = Some(controller.to_owned());
    }
}

fn replicas(job: &ReplicatedJob) -> i32 {
    job.replicas.unwrap_or(1)
}

/// Pods that one child Job runs at once.
fn pods_per_job(job: &ReplicatedJob) -> i32 {
    let Some(spec) = &job.template.spec else { return 1 };
    let parallelism = spec.parallelism.unwrap_or(1);
    spec.completions.map_or(parallelism, |completions| completions.min(parallelism))
}
