//! The integration of batch/v1 Job.

use std::collections::BTreeMap;

use berth_api::kueue::annotations;
use berth_api::kueue::v1beta2::{PodSet, ReclaimablePod};
use berth_apimachinery::well_known::COMPLETION_INDEX;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use kube::ResourceExt;

use super::topology::{self, Ranks};
use super::{Finished, Job};
use crate::gates::Gates;
use crate::podset::{self, PodSetError, PodSetInfo};

/// Name of a Job's only pod set.
pub const POD_SET: &str = "main";

impl Job for BatchJob {
    const FRAMEWORK: &'static str = "batch/job";
    /// Kubernetes accepts changed templates only for a Job that is already suspended.
    const STOPS_IN_TWO_STEPS: bool = true;
    const CAN_BE_ELASTIC: bool = true;

    fn templates(&self) -> Vec<String> {
        vec!["/spec/template".to_owned()]
    }

    fn is_suspended(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true))
    }

    fn suspend(&mut self) {
        self.spec.get_or_insert_default().suspend = Some(true);
    }

    fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String> {
        let spec = self.spec.clone().unwrap_or_default();
        let mut template = spec.template;
        if let Some(labels) = template.metadata.as_mut().and_then(|metadata| metadata.labels.as_mut()) {
            Self::clean_labels(labels);
        }
        if let Some(metadata) = template.metadata.as_mut()
            && metadata.labels.as_ref().is_some_and(BTreeMap::is_empty)
        {
            metadata.labels = None;
        }
        let ranks = Ranks { pod_index_label: Some(COMPLETION_INDEX), ..Ranks::default() };
        let topology_request = topology::of_template(&template, ranks, gates)?;
        let count = pods(self);
        Ok(vec![PodSet {
            name: POD_SET.to_owned(),
            count,
            min_count: min_parallelism(self),
            template,
            topology_request,
        }])
    }

    fn run_with(&mut self, infos: &[PodSetInfo], gates: &Gates) -> Result<(), PodSetError> {
        let min = min_parallelism(self);
        let follows = completions_follow(self);
        let spec = self.spec.get_or_insert_default();
        spec.suspend = Some(false);
        let [info] = infos else { return Err(PodSetError::Count { expected: 1, got: infos.len() }) };
        if min.is_some() {
            spec.parallelism = Some(info.count);
            if follows {
                spec.completions = Some(info.count);
            }
        }
        podset::merge(&mut spec.template, info, gates)
    }

    fn restore(&mut self, infos: &[PodSetInfo]) -> bool {
        let [info] = infos else { return false };
        let mut changed = false;
        let partial = min_parallelism(self).is_some();
        let follows = completions_follow(self);
        let spec = self.spec.get_or_insert_default();
        if partial && spec.parallelism.unwrap_or(1) != info.count {
            changed = true;
            spec.parallelism = Some(info.count);
            if follows {
                spec.completions = Some(info.count);
            }
        }
        // Labels that the API server added to the template stay.
        let mut info = info.clone();
        let labels = spec.template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
        for (key, value) in labels.into_iter().flatten() {
            if is_generated_label(key) {
                info.labels.insert(key.clone(), value.clone());
            }
        }
        podset::restore(&mut spec.template, &info) || changed
    }

    /// Kubernetes rejects template changes while the Job has active pods.
    fn can_be_restored(&self) -> bool {
        !self.is_active()
    }

    fn finished(&self) -> Option<Finished> {
        let conditions = self.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|c| (c.type_ == "Complete" || c.type_ == "Failed") && c.status == "True")
            .map(|c| Finished { success: c.type_ == "Complete", message: c.message.clone().unwrap_or_default() })
    }

    fn pods_ready(&self) -> bool {
        let status = self.status.clone().unwrap_or_default();
        // Until the Job controller has counted a succeeded pod, only `uncountedTerminatedPods`
        // contains it.
        let uncounted = status.uncounted_terminated_pods.and_then(|pods| pods.succeeded).map_or(0, |list| list.len());
        let done = status.succeeded.unwrap_or(0).saturating_add(i32::try_from(uncounted).unwrap_or(i32::MAX));
        done.saturating_add(status.ready.unwrap_or(0)) >= pods(self)
    }

    fn is_active(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.active.unwrap_or(0) > 0)
    }

    fn reclaimable_pods(&self) -> Option<Vec<ReclaimablePod>> {
        let (Some(spec), Some(status)) = (&self.spec, &self.status) else { return Some(Vec::new()) };
        let parallelism = spec.parallelism.unwrap_or(1);
        // Without completions, the Job completes once one pod has succeeded and all others have
        // ended.
        let completions = spec.completions.unwrap_or(parallelism);
        let done = match spec.completion_mode.as_deref() {
            Some("Indexed") => {
                let failed = status.failed_indexes.as_deref().unwrap_or("");
                terminal_indexes(status.completed_indexes.as_deref().unwrap_or(""), failed, completions)
            }
            _ => status.succeeded.unwrap_or(0),
        };
        if parallelism == 1 || done == 0 {
            return Some(Vec::new());
        }
        let remaining = completions.saturating_sub(done);
        if remaining >= parallelism {
            return Some(Vec::new());
        }
        Some(vec![ReclaimablePod { name: POD_SET.to_owned(), count: parallelism - remaining.max(0) }])
    }

    fn reset_status(&mut self) -> bool {
        self.status.as_mut().is_some_and(|status| status.start_time.take().is_some())
    }

    fn is_in_step(&self, _recorded: &[PodSet]) -> bool {
        // Such a Job must keep completions equal to parallelism; otherwise it is no longer the Job
        // that was queued.
        if !completions_follow(self) {
            return true;
        }
        let Some(spec) = &self.spec else { return true };
        spec.completions == spec.parallelism
    }

    fn managed_by(&self) -> Option<&str> {
        self.spec.as_ref().and_then(|spec| spec.managed_by.as_deref())
    }

    fn set_managed_by(&mut self, controller: &str) {
        self.spec.get_or_insert_default().managed_by = Some(controller.to_owned());
    }

    fn clean_labels(labels: &mut BTreeMap<String, String>) {
        labels.retain(|key, _| key == JOB_NAME || !is_generated_label(key));
    }
}

/// Pods that the Job runs at once.
fn pods(job: &BatchJob) -> i32 {
    let Some(spec) = &job.spec else { return 1 };
    let parallelism = spec.parallelism.unwrap_or(1);
    spec.completions.map_or(parallelism, |completions| completions.min(parallelism))
}

/// Minimum number of pods to start with, from the annotation; `None` unless it is a positive
/// number.
pub fn min_parallelism(job: &BatchJob) -> Option<i32> {
    let min: i32 = job.annotations().get(annotations::JOB_MIN_PARALLELISM)?.parse().ok()?;
    (min > 0).then_some(min)
}

/// True if completions must equal parallelism (set by annotation), so that both are scaled
/// together.
pub fn completions_follow(job: &BatchJob) -> bool {
    job.annotations().get(annotations::JOB_COMPLETIONS_EQUAL_PARALLELISM).is_some_and(|value| value == "true")
}

/// The template label that names the pods' Job. The Workload records it too, so that pods can be
/// selected by it.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// True for labels that the API server adds to a Job's template to select its pods.
fn is_generated_label(key: &str) -> bool {
    matches!(key, "controller-uid" | "batch.kubernetes.io/controller-uid" | "job-name" | JOB_NAME)
}

/// Number of indexes below `completions` that completed or failed for good. Each list looks like
/// `1,3-5,7`; parts that do not parse are ignored.
pub fn terminal_indexes(completed: &str, failed: &str, completions: i32) -> i32 {
    let ranges = |text: &str| -> Vec<(i32, i32)> {
        text.split(',')
            .filter_map(|part| {
                let part = part.trim();
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let (first, last) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
                let last = last.min(completions - 1);
                (first >= 0 && first <= last).then_some((first, last))
            })
            .collect()
    };
    let mut all = ranges(completed);
    all.extend(ranges(failed));
    all.sort_unstable();
    let (mut count, mut next) = (0, 0);
    for (first, last) in all {
        let first = first.max(next);
        if last >= first {
            count += last - first + 1;
            next = last + 1;
        }
    }
    count
}
