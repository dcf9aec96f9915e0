//! The use of quota and the history of workloads, for a reader: stays of namespaces in which the
//! reader may not list workloads are left out and counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use berth_api::berth::explanation::{GROUP, VERSION, Withheld};
use berth_api::berth::usage::{Stay, StayState, Stays, WithheldUsage};
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::jobs::Chosen;
use super::readers::Listable;
use super::{Explain, Reader, Unexplained};
use crate::concurrent_admission::is_variant;
use crate::decisions::{Parts, WantedStays, stay};
use crate::usage::entry::Entry;
use crate::usage::history::{self, Search};
use crate::usage::quotas::Quotas;
use crate::usage::sums::Sums;
use crate::usage::{By, Period, parameter};
use crate::workload::status;

/// Kind of a list of stays.
const STAYS: &str = "Stays";
/// Default and maximum number of stays in a response.
const LIMIT_DEFAULT: usize = 1_000;
const LIMIT_MAX: usize = 10_000;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum Unreported {
    /// A parameter is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The journal cannot be read.
    #[error("the decision journal cannot be read: {0}")]
    Journal(#[from] io::Error),
    /// There is no such workload.
    #[error(transparent)]
    Unexplained(#[from] Unexplained),
}

impl From<tokio::task::JoinError> for Unreported {
    fn from(error: tokio::task::JoinError) -> Self {
        Unreported::Journal(io::Error::other(error))
    }
}

/// States of stays that go on.
const GOING_ON: [StayState; 4] = [StayState::Waiting, StayState::Held, StayState::Reserved, StayState::Running];

/// The newest stays of one namespace.
#[derive(Default)]
struct Newest {
    stays: VecDeque<Stay>,
    count: usize,
}

impl Newest {
    fn add(&mut self, stay: &Stay, limit: usize) {
        self.count += 1;
        self.stays.push_back(stay.clone());
        if self.stays.len() > limit {
            self.stays.pop_front();
        }
    }
}

/// The sums of each namespace, and the number of its stays in the period.
struct ByNamespace {
    by: By,
    period: Period,
    sums: BTreeMap<Arc<str>, (Sums, u64)>,
}

impl ByNamespace {
    fn new(by: By, period: Period) -> Self {
        Self { by, period, sums: BTreeMap::new() }
    }

    fn of(&mut self, namespace: &Arc<str>) -> &mut (Sums, u64) {
        self.sums.entry(namespace.clone()).or_insert_with(|| (Sums::new(self.by, self.period), 0))
    }

    fn add(&mut self, entry: &Entry) {
        let touches = self.period.touches_entry(entry);
        let (sums, count) = self.of(&entry.names.namespace);
        sums.add_entry(entry);
        *count += u64::from(touches);
    }
}

/// The sums of the entries of a namespace, or of all if it is empty.
async fn sums_of(parts: Parts, namespace: String, by: By, period: Period) -> Result<ByNamespace, Unreported> {
    let summed = tokio::task::spawn_blocking(move || {
        let mut sums = ByNamespace::new(by, period);
        let entries = parts.iter().flat_map(|part| part.iter());
        let wanted = entries.filter(|entry| namespace.is_empty() || *entry.names.namespace == *namespace);
        wanted.for_each(|entry| sums.add(entry));
        sums
    });
    Ok(summed.await?)
}

impl Explain {
    /// The use of quota in a period, grouped as the query asks for: parameters `by`, `since` and
    /// `until`. `namespace` is empty for all namespaces.
    ///
    /// # Errors
    /// A parameter is invalid, or the journal cannot be read.
    pub async fn usage(&self, reader: &Reader, namespace: &str, query: &str) -> Result<Value, Unreported> {
        let invalid = Unreported::Invalid;
        let period = Period::parse(query, self.scheduler.clock_now()).map_err(invalid)?;
        let by: By = parameter(query, "by").map_or(Ok(By::Team), |text| text.parse()).map_err(Unreported::Invalid)?;
        let mut sums = match self.decisions.entries(period.since) {
            Some(parts) => sums_of(parts, namespace.to_owned(), by, period).await?,
            None => {
                let add = move |sums: &mut ByNamespace, stay: &Stay| sums.add(&Entry::of(stay));
                let wanted = WantedStays { since: period.since, states: Vec::new(), name: String::new() };
                self.over_ended(namespace, wanted, ByNamespace::new(by, period), add).await?.0
            }
        };
        // Stays without admission use nothing: they are counted.
        let (running, others) = self.going_on(namespace, period).await?;
        running.iter().for_each(|stay| sums.add(&Entry::of(stay)));
        for (namespace, more) in others {
            sums.of(&namespace.into()).1 += more;
        }
        let sums: BTreeMap<String, (Sums, u64)> =
            sums.sums.into_iter().map(|(namespace, sums)| (namespace.to_string(), sums)).collect();
        let listable = self.listable(reader, sums.keys()).await;
        let (mut whole, mut withheld) = (Sums::new(by, period), 0);
        for (namespace, (sums, count)) in sums {
            if listable.has(&namespace) { whole.merge(sums) } else { withheld += count }
        }
        let (cluster, local) = (self.stores.cluster_queues.iter(), self.stores.local_queues.iter());
        let (cluster, local): (Vec<_>, Vec<_>) = (cluster.collect(), local.collect());
        let quotas = Quotas::of(cluster.iter().map(AsRef::as_ref), local.iter().map(AsRef::as_ref));
        let mut report = whole.report(Some(&quotas));
        report.withheld = left_out(withheld, &listable);
        Ok(json!(report))
    }

    /// The stays of a period, ended and going on: parameters `since`, `until`, `state`, `queue`,
    /// `user`, `labels` and `limit`. Of the jobs of a namespace that wait, those that were created
    /// last are listed.
    ///
    /// # Errors
    /// A parameter is invalid, or the journal cannot be read.
    pub async fn stays(&self, reader: &Reader, namespace: &str, query: &str) -> Result<Value, Unreported> {
        let now = self.scheduler.clock_now();
        let period = Period::parse(query, now).map_err(Unreported::Invalid)?;
        let limit = match parameter(query, "limit") {
            None => LIMIT_DEFAULT,
            Some(text) => text.parse().map(|limit: usize| limit.min(LIMIT_MAX)).map_err(|_| {
                Unreported::Invalid(format!("limit: invalid value {text:?}, expected an integer of at least 0"))
            })?,
        };
        let mut chosen = Chosen::parse(query).map_err(Unreported::Invalid)?;
        let asked = chosen.clone();
        let wanted = WantedStays { since: period.since, states: chosen.states.clone(), name: String::new() };
        let (mut found, add) = self
            .over_ended(namespace, wanted, BTreeMap::<String, Newest>::new(), move |found, stay| {
                if period.touches(stay) && asked.has(stay) {
                    found.entry(stay.workload.namespace.clone()).or_default().add(stay, limit);
                }
            })
            .await?;
        chosen.states = GOING_ON.into_iter().filter(|it| chosen.has_state(*it)).collect();
        if !chosen.states.is_empty() {
            let (stays, counts) = self.newest(namespace, chosen, limit, period).await?;
            stays.iter().for_each(|stay| add(&mut found, stay));
            for (namespace, more) in counts {
                found.entry(namespace).or_default().count += more;
            }
        }
        let listable = self.listable(reader, found.keys()).await;
        let (mut items, mut count, mut withheld) = (Vec::new(), 0, 0_u64);
        for (namespace, newest) in found {
            if listable.has(&namespace) {
                count += newest.count;
                items.extend(newest.stays);
            } else {
                withheld += newest.count as u64;
            }
        }
        let order = |stay: &Stay| {
            let started = stay.admitted.as_ref().or(stay.queued.as_ref()).map(|at| at.0);
            (stay.ended.is_none(), stay.ended.as_ref().map(|at| at.0), started, stay.workload.name.clone())
        };
        items.sort_by_cached_key(order);
        let items = items.split_off(items.len().saturating_sub(limit));
        Ok(json!(Stays {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: STAYS.to_owned(),
            now: Some(Time(now)),
            unlisted: count - items.len(),
            items,
            withheld: left_out(withheld, &listable),
            ..Stays::default()
        }))
    }

    /// The history of a Workload or of the Workload of a job of this name, which may be deleted.
    ///
    /// # Errors
    /// No workload of the name is known, or the journal cannot be read.
    pub async fn history(&self, reader: &Reader, namespace: &str, name: &str) -> Result<Value, Unreported> {
        let mut search = Search::new(namespace, name);
        let live = self.find(namespace, name).ok();
        if let Some(live) = &live {
            search = Search::new(namespace, &live.name_any());
        }
        let named = live.as_ref().map_or_else(|| name.to_owned(), |live| live.name_any());
        // The stays of a workload that exists ended after its creation.
        let since = live.as_ref().and_then(|live| live.metadata.creation_timestamp.as_ref()).map(|at| at.0);
        let since = since.unwrap_or(Timestamp::MIN);
        let wanted = WantedStays { since, states: Vec::new(), name: named };
        let mut search = self.over_ended(namespace, wanted, search, Search::add).await?.0;
        if let Some(stay) = live.and_then(|live| self.stay_of(&live)) {
            search.add(&stay);
        }
        let stays = search.newest().ok_or_else(|| Unexplained::NotFound(name.to_owned()))?;
        let (uid, key) = (stays[0].uid.clone(), ObjectKey::namespaced(namespace, stays[0].workload.name.as_str()));
        let decisions = self.decisions.clone();
        let mut records = tokio::task::spawn_blocking(move || decisions.all_of(&key, &uid)).await??;
        let mut namespaces = BTreeSet::from([namespace.to_owned()]);
        for record in &mut records {
            record.withhold(&mut |namespace| {
                namespaces.insert(namespace.to_owned());
                true
            });
        }
        let listable = self.listable(reader, namespaces.iter()).await;
        let mut is_whole = true;
        for record in &mut records {
            record.withhold(&mut |namespace| {
                is_whole &= listable.has(namespace);
                listable.has(namespace)
            });
        }
        let withheld: Option<Withheld> = (!is_whole).then(|| listable.why());
        Ok(json!(history::history(stays, records, withheld)))
    }

    /// The stays of running jobs of a namespace, and the number of other stays per namespace that
    /// go on and began before the end of the period.
    async fn going_on(
        &self,
        namespace: &str,
        period: Period,
    ) -> Result<(Vec<Stay>, BTreeMap<String, u64>), Unreported> {
        const OTHERS: [StayState; 3] = [StayState::Waiting, StayState::Held, StayState::Reserved];
        let (jobs, only) = (self.clone(), namespace.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let (mut running, others) = jobs.read_jobs(|index| {
                let running: Vec<Stay> = index.running(&only).cloned().collect();
                (running, index.count(&only, &OTHERS, period.until.as_second()))
            });
            for stay in &mut running {
                // The index does not know the evictions before.
                let since = jobs.decisions.last_end(&stay.uid).map(Time);
                stay.queued = since.into_iter().chain(stay.queued.take()).max();
            }
            (running, others)
        });
        Ok(read.await?)
    }

    /// The chosen stays of a namespace that go on, the newest ones, at most `limit` per namespace,
    /// and the number of further ones per namespace.
    async fn newest(
        &self,
        namespace: &str,
        chosen: Chosen,
        limit: usize,
        period: Period,
    ) -> Result<(Vec<Stay>, BTreeMap<String, usize>), Unreported> {
        let (jobs, only) = (self.clone(), namespace.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let (keys, counts) = jobs.newest_jobs(&chosen, &only, limit, period.until.as_second());
            let mut counts: BTreeMap<String, usize> =
                counts.into_iter().map(|(namespace, count)| (namespace, usize::try_from(count).unwrap_or(0))).collect();
            let mut stays = Vec::new();
            for key in keys.iter().rev() {
                let Some(stay) = jobs.stores.workloads.get(key).and_then(|workload| jobs.stay_of(&workload)) else {
                    continue;
                };
                if period.touches(&stay) {
                    let count = counts.entry(stay.workload.namespace.clone()).or_default();
                    *count = count.saturating_sub(1);
                    stays.push(stay);
                }
            }
            (stays, counts)
        });
        Ok(read.await?)
    }

    /// Passes ended stays of a namespace to `each`, at least the wanted ones.
    async fn over_ended<T: Send + 'static, F: Fn(&mut T, &Stay) + Send + 'static>(
        &self,
        namespace: &str,
        wanted: WantedStays,
        mut into: T,
        each: F,
    ) -> Result<(T, F), Unreported> {
        let is_asked = {
            let namespace = namespace.to_owned();
            move |stay: &Stay| namespace.is_empty() || stay.workload.namespace == namespace
        };
        // One request after another reads the journal.
        let turn = self.scans.clone().acquire_owned().await.map_err(io::Error::other)?;
        let decisions = self.decisions.clone();
        let done = tokio::task::spawn_blocking(move || {
            decisions.each_stay(&wanted, &mut |stay| {
                if is_asked(stay) {
                    each(&mut into, stay);
                }
            })?;
            drop(turn);
            io::Result::Ok((into, each))
        });
        Ok(done.await??)
    }

    /// The stay of a workload that goes on; `None` if the workload is finished, or is the variant
    /// of another one.
    fn stay_of(&self, workload: &Workload) -> Option<Stay> {
        if status::is_finished(workload) || is_variant(workload) {
            return None;
        }
        let since = self.decisions.last_end(workload.metadata.uid.as_deref().unwrap_or_default());
        let stay = stay::of(workload, since, &self.stores.cluster_queue_name(workload));
        // The stay that an eviction ended is among the ended ones.
        Some(stay).filter(|stay| !stay.state.is_end())
    }

    async fn listable(&self, reader: &Reader, namespaces: impl Iterator<Item = &String>) -> Listable {
        let namespaces: Vec<String> = namespaces.cloned().collect();
        self.readers.listable(reader, &namespaces).await
    }
}

fn left_out(stays: u64, listable: &Listable) -> Option<WithheldUsage> {
    (stays > 0).then(|| WithheldUsage { why: listable.why(), stays })
}
