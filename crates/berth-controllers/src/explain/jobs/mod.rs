//! The jobs that exist now, filtered, sorted, grouped and in pages, for a reader.
//!
//! An index of the Workloads ([`index`]) is kept up to date with each change, so that a request
//! reads no object except those of its page. The first request makes the index.

mod find;
mod index;
mod question;
mod queues;
mod row;
mod shared;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_api::berth::current_jobs::{CurrentJob, CurrentJobs};
use berth_api::berth::explanation::{GROUP, VERSION};
use berth_api::berth::usage::{StayState, WithheldUsage};
use berth_api::kueue::v1beta2::{LocalQueue, Workload};
use berth_runtime::{ObjectKey, View};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::readers::Listable;
use super::usage::Unreported;
use super::{Explain, Reader};
use crate::decisions::stay;

use find::{Answer, find};
use index::Index;
pub(super) use question::Chosen;
use question::Question;
use queues::Queues;
use row::{Names, Row, Shape};
use shared::{Asked, Shared};

/// Kind of the list.
const KIND: &str = "CurrentJobs";
/// Maximum number of groups in a response.
const GROUPS_MAX: usize = 500;

/// The index of all Workloads; empty until the first request. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Jobs(Arc<Inner>);

#[derive(Default)]
struct Inner {
    views: OnceLock<Views>,
    shared: Shared,
}

struct Views {
    jobs: View<Workload, Row, Index>,
    queues: View<LocalQueue, String, Queues>,
}

impl Explain {
    /// A page of the jobs that exist now, with the parameters `q`, `state`, `queue`, `user`,
    /// `labels`, `sort`, `group`, `value`, `limit` and `offset`. `namespace` is empty for all
    /// namespaces.
    ///
    /// # Errors
    /// A parameter is invalid.
    pub async fn current_jobs(&self, reader: &Reader, namespace: &str, query: &str) -> Result<Value, Unreported> {
        let question = Question::parse(query).map_err(Unreported::Invalid)?;
        let jobs = self.clone();
        let only = namespace.to_owned();
        // The first request reads every Workload.
        let namespaces = tokio::task::spawn_blocking(move || jobs.read_jobs(|index| index.namespaces(&only))).await?;
        let listable = self.readers.listable(reader, &namespaces).await;
        let (jobs, only) = (self.clone(), namespace.to_owned());
        let answered = tokio::task::spawn_blocking(move || {
            let answer = jobs.answer(question, only, &namespaces, &listable);
            let items: Vec<CurrentJob> = answer.page.iter().filter_map(|key| jobs.current_job(key)).collect();
            (answer, items, listable)
        });
        let (answer, items, listable) = answered.await?;
        let withheld = (answer.withheld > 0).then(|| WithheldUsage { why: listable.why(), stays: answer.withheld });
        Ok(json!(CurrentJobs {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            now: Some(Time(self.scheduler.clock_now())),
            total: answer.total,
            states: answer.states.clone(),
            items,
            groups: answer.groups.iter().take(GROUPS_MAX).cloned().collect(),
            unlisted_groups: answer.groups.len().saturating_sub(GROUPS_MAX),
            withheld,
            ..CurrentJobs::default()
        }))
    }

    /// The number of jobs that exist now.
    pub fn count_current_jobs(&self) -> usize {
        self.read_jobs(Index::len)
    }

    /// Passes the index of the jobs to `read`. The cache waits for it, so it must not use the
    /// cache.
    pub(super) fn read_jobs<A>(&self, read: impl FnOnce(&Index) -> A) -> A {
        self.views().jobs.read(read)
    }

    /// The keys of the newest jobs of a namespace (of all if it is empty) that are asked for, at
    /// most `limit` per namespace, and how many there are per namespace that were created before a
    /// second.
    pub(super) fn newest_jobs(
        &self,
        chosen: &Chosen,
        only: &str,
        limit: usize,
        before: i64,
    ) -> (Vec<Arc<ObjectKey>>, BTreeMap<String, u64>) {
        let views = self.views();
        views.jobs.read(|index| {
            views.queues.read(|queues| {
                let is_wanted = |shape: &Shape| chosen.has_shape(shape, queues);
                let labels = &chosen.labels;
                (index.newest(only, &is_wanted, labels, limit), index.count_of(only, &is_wanted, labels, before))
            })
        })
    }

    /// The answer to a question, which readers of the same namespaces share.
    fn answer(&self, question: Question, only: String, namespaces: &[String], listable: &Listable) -> Arc<Answer> {
        let readable = || namespaces.iter().filter(|it| listable.has(it)).cloned().collect();
        let readable = (!listable.is_everywhere()).then(readable);
        let (views, shared) = (self.views(), &self.jobs.0.shared);
        views.jobs.read(|index| {
            views.queues.read(|queues| {
                let versions = (index.version(), queues.version());
                let asked = Asked { versions, question, only, readable };
                if let Some(answer) = shared.get(&asked) {
                    return answer;
                }
                let may_read = |namespace: &str| listable.has(namespace);
                let answer = Arc::new(find(index, &asked.question, &asked.only, queues, &may_read));
                shared.keep(asked, answer.clone());
                answer
            })
        })
    }

    fn views(&self) -> &Views {
        self.jobs.0.views.get_or_init(|| {
            let names = Names::default();
            Views {
                jobs: self.stores.workloads.view_in(move |workload| Row::of(workload, &names)),
                queues: self.stores.local_queues.view_in(|queue: &LocalQueue| Some(queue.spec.cluster_queue.clone())),
            }
        })
    }

    fn current_job(&self, key: &ObjectKey) -> Option<CurrentJob> {
        let workload = self.stores.workloads.get(key)?;
        let since = self.decisions.last_end(workload.metadata.uid.as_deref().unwrap_or_default());
        let stay = stay::of(&workload, since, &self.stores.cluster_queue_name(&workload));
        let waits = matches!(stay.state, StayState::Waiting | StayState::Held);
        let why = stay::wait_of(&workload).filter(|_| waits);
        let message = why.map(|it| it.message.clone()).unwrap_or_default();
        Some(CurrentJob { stay, message })
    }
}

#[cfg(test)]
mod tests;
