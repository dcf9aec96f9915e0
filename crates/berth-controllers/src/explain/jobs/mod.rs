//! The jobs that exist now, filtered, sorted, grouped and in pages, for a reader.
//!
//! A view of the Workloads has a small row per job, so that a request reads no packed object except
//! those of its page: 100,000 jobs take some milliseconds. The view is made by the first request.

mod question;
mod row;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use berth_api::berth::current_jobs::{CurrentJob, CurrentJobs, JobGroup};
use berth_api::berth::explanation::{GROUP, VERSION};
use berth_api::berth::usage::{StayState, WithheldUsage};
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::{ObjectKey, View};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::usage::Unreported;
use super::{Explain, Reader};
use crate::conditions;
use crate::decisions::stay;
use crate::workload::status;

use question::{By, Question, Sort};
use row::{Names, Row};

/// Kind of the list.
const KIND: &str = "CurrentJobs";
/// Maximum number of groups in a response.
const GROUPS_MAX: usize = 500;

/// The rows of all Workloads; empty until the first request.
#[derive(Clone, Default)]
pub(super) struct Jobs(Arc<OnceLock<View<Workload, Row>>>);

/// Rows that match, and what is counted on the way.
#[derive(Default)]
struct Found<'a> {
    rows: Vec<Match<'a>>,
    states: BTreeMap<String, usize>,
    groups: HashMap<&'a str, JobGroup>,
    withheld: u64,
}

/// A row that matches, with its cluster queue.
#[derive(Clone, Copy)]
struct Match<'a> {
    key: &'a Arc<ObjectKey>,
    row: &'a Row,
    queue: &'a str,
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
        // The first request reads every Workload.
        let view = tokio::task::spawn_blocking(move || jobs.view()).await?;
        let namespaces = view.read(|rows| namespaces(rows, namespace));
        let listable = self.readers.listable(reader, &namespaces).await;
        let queues = self.cluster_queues();
        let mut page = CurrentJobs {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            now: Some(Time(self.scheduler.clock_now())),
            ..CurrentJobs::default()
        };
        let keys: Vec<Arc<ObjectKey>> = view.read(|rows| {
            let mut found = search(rows, &question, namespace, &queues, &|namespace| listable.has(namespace));
            page.total = found.rows.len();
            page.states = std::mem::take(&mut found.states);
            page.withheld = (found.withheld > 0).then(|| WithheldUsage { why: listable.why(), stays: found.withheld });
            let mut groups: Vec<JobGroup> =
                found.groups.drain().map(|(value, group)| JobGroup { value: value.to_owned(), ..group }).collect();
            groups.sort_by(|a, b| b.jobs.cmp(&a.jobs).then_with(|| a.value.cmp(&b.value)));
            page.unlisted_groups = groups.len().saturating_sub(GROUPS_MAX);
            groups.truncate(GROUPS_MAX);
            page.groups = groups;
            part(found.rows, &question)
        });
        page.items = keys.iter().filter_map(|key| self.current_job(key)).collect();
        Ok(json!(page))
    }

    /// The number of jobs that exist now.
    pub fn count_current_jobs(&self) -> usize {
        self.view().read(BTreeMap::len)
    }

    fn view(&self) -> View<Workload, Row> {
        let names = Names::default();
        self.jobs.0.get_or_init(|| self.stores.workloads.view(move |workload| Row::of(workload, &names))).clone()
    }

    fn current_job(&self, key: &ObjectKey) -> Option<CurrentJob> {
        let workload = self.stores.workloads.get(key)?;
        let since = self.decisions.last_end(workload.metadata.uid.as_deref().unwrap_or_default());
        let stay = stay::of(&workload, since, &self.stores.cluster_queue_name(&workload));
        let waits = matches!(stay.state, StayState::Waiting | StayState::Held);
        let reserved = status::condition(&workload, conditions::QUOTA_RESERVED).filter(|_| waits);
        let message = reserved.map(|it| it.message.clone()).unwrap_or_default();
        let labels = workload.metadata.labels.clone().unwrap_or_default();
        Some(CurrentJob { stay, labels, message })
    }

    /// Cluster queues by namespace and name of local queues.
    fn cluster_queues(&self) -> HashMap<(String, String), String> {
        let name = |queue: &berth_api::kueue::v1beta2::LocalQueue| {
            let metadata = &queue.metadata;
            (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
        };
        self.stores.local_queues.iter().map(|queue| (name(&queue), queue.spec.cluster_queue.clone())).collect()
    }
}

/// The namespaces of the rows, each once.
fn namespaces(rows: &BTreeMap<Arc<ObjectKey>, Row>, only: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for key in rows.keys() {
        if (only.is_empty() || key.namespace == only) && found.last() != Some(&key.namespace) {
            found.push(key.namespace.clone());
        }
    }
    found
}

fn search<'a>(
    rows: &'a BTreeMap<Arc<ObjectKey>, Row>,
    question: &'a Question,
    only: &str,
    queues: &'a HashMap<(String, String), String>,
    may_read: &dyn Fn(&str) -> bool,
) -> Found<'a> {
    let mut found = Found::default();
    // Rows are ordered by namespace: what depends on the namespace is known from the row before.
    let mut last: Option<(&str, bool)> = None;
    let mut of_local: HashMap<(&str, &str), &str> = HashMap::new();
    for ((namespace, name), queue) in queues {
        of_local.insert((namespace, name), queue);
    }
    for (key, row) in rows {
        let namespace = key.namespace.as_str();
        if !only.is_empty() && namespace != only {
            continue;
        }
        let readable = match last {
            Some((known, readable)) if known == namespace => readable,
            _ => may_read(namespace),
        };
        last = Some((namespace, readable));
        if !readable {
            found.withheld += 1;
            continue;
        }
        let queue = match &row.held_in {
            Some(queue) => queue,
            None => of_local.get(&(namespace, &*row.queue)).copied().unwrap_or_default(),
        };
        add(&mut found, question, Match { key, row, queue });
    }
    found
}

fn add<'a>(found: &mut Found<'a>, question: &'a Question, it: Match<'a>) {
    if !it.matches(question) {
        return;
    }
    match found.states.get_mut(it.row.state.name()) {
        Some(count) => *count += 1,
        None => drop(found.states.insert(it.row.state.name().to_owned(), 1)),
    }
    if !question.states.is_empty() && !question.states.contains(&it.row.state) {
        return;
    }
    if let Some(by) = &question.group {
        let value = it.value(by);
        let group = found.groups.entry(value).or_default();
        group.jobs += 1;
        group.waiting += usize::from(it.row.state == StayState::Waiting);
        group.running += usize::from(it.row.state == StayState::Running);
        group.pods += i64::from(it.row.pods);
        if question.value.as_ref().is_some_and(|wanted| wanted != value) {
            return;
        }
    }
    found.rows.push(it);
}

impl<'a> Match<'a> {
    fn matches(&self, question: &Question) -> bool {
        let row = self.row;
        question.queue.as_ref().is_none_or(|queue| queue == self.queue || **queue == *row.queue)
            && question.user.as_ref().is_none_or(|user| **user == *row.user)
            && question.labels.iter().all(|(key, value)| row.label(key) == Some(value.as_str()))
            && question.words.iter().all(|word| self.has(word))
    }

    fn has(&self, word: &str) -> bool {
        let row = self.row;
        // Names of objects are in lower case; those of users need not be.
        [&*self.key.name, &*row.job, &*self.key.namespace, &*row.queue, self.queue].iter().any(|it| it.contains(word))
            || row.user.to_lowercase().contains(word)
    }

    fn value(&self, by: &By) -> &'a str {
        match by {
            By::Namespace => &self.key.namespace,
            By::User => &self.row.user,
            By::Queue => self.queue,
            By::LocalQueue => &self.row.queue,
            By::State => self.row.state.name(),
            By::Reason => &self.row.reason,
            By::Label(key) => self.row.label(key).unwrap_or_default(),
        }
    }

    fn order(&self, other: &Self, question: &Question) -> std::cmp::Ordering {
        let (a, b) = (self.row, other.row);
        let order = match question.sort {
            Sort::Queued => a.created.cmp(&b.created),
            Sort::Name => std::cmp::Ordering::Equal,
            Sort::Priority => a.priority.cmp(&b.priority),
            Sort::Pods => a.pods.cmp(&b.pods),
            Sort::State => (a.state as u8).cmp(&(b.state as u8)),
            Sort::Queue => self.queue.cmp(other.queue),
            Sort::User => a.user.cmp(&b.user),
        };
        let order = order.then_with(|| self.key.cmp(other.key));
        if question.descending { order.reverse() } else { order }
    }
}

/// The keys of the asked part of the rows, in order.
fn part(mut rows: Vec<Match<'_>>, question: &Question) -> Vec<Arc<ObjectKey>> {
    let end = question.offset.saturating_add(question.limit).min(rows.len());
    if end == 0 || question.offset >= rows.len() {
        return Vec::new();
    }
    let order = |a: &Match<'_>, b: &Match<'_>| a.order(b, question);
    // Only the part before the end is sorted.
    if end < rows.len() {
        rows.select_nth_unstable_by(end, order);
        rows.truncate(end);
    }
    rows.sort_unstable_by(order);
    rows[question.offset..].iter().map(|it| it.key.clone()).collect()
}

#[cfg(test)]
mod tests;
