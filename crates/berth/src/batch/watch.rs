//! `berth queue --watch` and `berth jobs --watch`: the list, and then a row for each job that
//! changes.
//!
//! The objects say when to ask again; the controllers give the rows, as they do for the list.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use berth_api::berth::current_jobs::CurrentJob;
use berth_api::berth::usage::{Stay, StayState};
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::{Followed, Following, Sight};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::lists::{Filter, Found};
use crate::listing::{Format, Listing};
use crate::process;

/// Time between a change and the request for the rows: changes come in groups.
const SETTLE: Duration = Duration::from_millis(300);
/// Time after the last change for one more request: the controllers may learn of a change later.
const AGAIN: Duration = Duration::from_secs(2);

/// Identifies a row: UID of the Workload, and start of the stay in lists with a row per stay.
pub type Key = (String, Option<Timestamp>);

/// A list of jobs that can be watched.
pub trait Watched {
    /// Its options.
    fn filter(&self) -> &Filter;

    /// The jobs of the list now.
    async fn find(&mut self, client: &Client, namespace: &str) -> anyhow::Result<Found>;

    /// The present state of a job that left the list; `None` if it does not exist any more.
    async fn last_state(&self, client: &Client, job: &CurrentJob) -> anyhow::Result<Option<CurrentJob>>;

    /// Identifies the row of a stay.
    fn key(&self, stay: &Stay) -> Key;

    /// The rows of jobs.
    fn rows(&self, jobs: &[CurrentJob], now: Timestamp) -> Listing;

    /// The message in place of an empty list.
    fn none(&self, namespace: &str) -> String;
}

/// Prints the list, and then the jobs that change, until a request fails or the process is stopped.
pub async fn watch(list: &mut impl Watched, client: &Client, namespace: &str) -> anyhow::Result<()> {
    if list.filter().output == Format::Parquet {
        bail!("-o parquet writes a whole list, so it cannot be used with --watch");
    }
    let changed = Arc::new(Notify::new());
    let following = Following { projection: without_content, changed: changed.clone() };
    let followed: Followed<Workload> = match list.filter().scope(namespace) {
        Some(namespace) => Followed::namespaced(client, namespace, following),
        None => Followed::within_rights(client, namespace, following),
    };
    let (mut known, mut printed) = (Known::default(), Printed::default());
    let mut is_settled = false;
    loop {
        let found = list.find(client, namespace).await?;
        if !printed.any {
            found.report();
            if found.jobs.is_empty() {
                eprintln!("{}", list.none(namespace));
            }
        }
        // Some jobs of a selection that is too long are not listed, and have not left it.
        let is_whole = found.unlisted == 0;
        let (mut rows, left) = known.update(found.jobs, &|stay| list.key(stay));
        for job in left.into_iter().filter(|_| is_whole) {
            let present = list.last_state(client, &job).await?;
            rows.push(present.unwrap_or_else(|| deleted(job, found.now)));
        }
        let text = printed.text(&list.filter().output, &rows, &known, &|jobs| list.rows(jobs, found.now))?;
        process::print(&text)?;
        match is_settled {
            true => changed.notified().await,
            false => is_settled = timeout(AGAIN, changed.notified()).await.is_err(),
        }
        if let Sight::Forbidden(message) = followed.sight() {
            bail!("{message}; --watch needs the right to watch workloads");
        }
        if !is_settled {
            sleep(SETTLE).await;
        }
    }
}

/// Only the change of an object matters.
fn without_content(workload: &mut Workload) {
    let metadata = std::mem::take(&mut workload.metadata);
    *workload = Workload { metadata, ..Workload::default() };
}

/// The jobs of the last list. Stays that started within the same second have numbers.
#[derive(Default)]
struct Known(BTreeMap<(Key, usize), CurrentJob>);

impl Known {
    /// Replaces the jobs by those that are listed now. Returns those that are new or whose stay
    /// changed, and those that are not listed any more although they could change.
    fn update(&mut self, listed: Vec<CurrentJob>, key: &dyn Fn(&Stay) -> Key) -> (Vec<CurrentJob>, Vec<CurrentJob>) {
        let (mut now, mut numbers) = (BTreeMap::new(), HashMap::new());
        let mut changed = Vec::new();
        for job in listed {
            let key = key(&job.stay);
            let number: &mut usize = numbers.entry(key.clone()).or_default();
            let key = (key, *number);
            *number += 1;
            let before = self.0.remove(&key);
            if before.is_none_or(|before| before.stay != job.stay) {
                changed.push(job.clone());
            }
            now.insert(key, job);
        }
        let left = std::mem::replace(&mut self.0, now);
        // A stay that has ended has left no list of stays: it is too old for the period.
        let left = left.into_iter().filter(|(((_, stay), _), job)| stay.is_none() || job.stay.ended.is_none());
        (changed, left.map(|(_, job)| job).collect())
    }
}

/// A job that does not exist any more.
fn deleted(job: CurrentJob, now: Timestamp) -> CurrentJob {
    let (state, ended) = (StayState::Deleted, job.stay.ended.clone().or(Some(Time(now))));
    CurrentJob { stay: Stay { state, ended, reason: String::new(), ..job.stay }, message: String::new() }
}

/// What was printed so far.
#[derive(Default)]
struct Printed {
    /// True after the first list, which may be empty.
    any: bool,
    /// True after the header.
    header: bool,
}

impl Printed {
    /// The rows: a table without its header after the first time, and one object after the other in
    /// formats of objects.
    fn text(
        &mut self,
        format: &Format,
        rows: &[CurrentJob],
        known: &Known,
        list: &dyn Fn(&[CurrentJob]) -> Listing,
    ) -> anyhow::Result<String> {
        self.any = true;
        if rows.is_empty() {
            return Ok(String::new());
        }
        if format.is_of_objects() {
            let separator = if *format == Format::Yaml { "---\n" } else { "" };
            let each = list(rows).items.into_iter().map(|item| {
                let text = Listing { items: vec![item], ..Listing::default() }.render_one(format)?;
                Ok(format!("{separator}{text}"))
            });
            return each.collect();
        }
        // The columns are as wide as for all known jobs, so that rows stay aligned.
        let others = if *format == Format::Name { None } else { Some(known.0.values()) };
        let all: Vec<CurrentJob> = rows.iter().chain(others.into_iter().flatten()).cloned().collect();
        let text = list(&all).render(format)?;
        let has_header = *format != Format::Name;
        let skipped = usize::from(has_header && self.header);
        let lines = rows.len() + usize::from(has_header) - skipped;
        self.header = true;
        Ok(text.lines().skip(skipped).take(lines).map(|line| format!("{line}\n")).collect())
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::explanation::ObjectName;

    use super::*;
    use crate::batch::lists::current_list;

    fn job(name: &str, state: StayState) -> CurrentJob {
        let workload = ObjectName { namespace: "team".to_owned(), name: name.to_owned() };
        let stay = Stay { workload, uid: format!("uid-{name}"), state, reason: "Reason".to_owned(), ..Stay::default() };
        CurrentJob { stay, ..CurrentJob::default() }
    }

    /// The key of `berth queue`.
    fn by_uid(stay: &Stay) -> Key {
        (stay.uid.clone(), None)
    }

    fn names(jobs: &[CurrentJob]) -> Vec<&str> {
        jobs.iter().map(|job| job.stay.workload.name.as_str()).collect()
    }

    #[test]
    fn only_jobs_that_changed_or_left_are_printed_again() {
        let mut known = Known::default();
        let (a, b) = (job("a", StayState::Waiting), job("b", StayState::Waiting));
        let (changed, left) = known.update(vec![a.clone(), b.clone()], &by_uid);
        assert_eq!((names(&changed), left.len()), (vec!["a", "b"], 0));
        // Messages change with each attempt.
        let tried = CurrentJob { message: "1 more needed".to_owned(), ..a };
        let (changed, left) = known.update(vec![tried, b], &by_uid);
        assert_eq!((changed.len(), left.len()), (0, 0));
        let (changed, left) = known.update(vec![job("b", StayState::Running)], &by_uid);
        assert_eq!((names(&changed), names(&left)), (vec!["b"], vec!["a"]));
        let gone = deleted(left[0].clone(), Timestamp::UNIX_EPOCH);
        assert_eq!((gone.stay.state, gone.stay.ended), (StayState::Deleted, Some(Time(Timestamp::UNIX_EPOCH))));
        assert_eq!(known.update(vec![job("b", StayState::Running)], &by_uid).1.len(), 0, "it left once");
    }

    #[test]
    fn a_list_with_a_row_per_stay_keeps_ended_stays_that_are_too_old() {
        let at = |second: i64| Timestamp::from_second(second).expect("in range");
        let key = |stay: &Stay| (stay.uid.clone(), stay.queued.as_ref().map(|at| at.0));
        let stay = |state: StayState, queued: i64, ended: Option<i64>| {
            let mut job = job("a", state);
            job.stay.queued = Some(Time(at(queued)));
            job.stay.ended = ended.map(|second| Time(at(second)));
            job
        };
        let states = |jobs: &[CurrentJob]| jobs.iter().map(|job| job.stay.state.name()).collect::<Vec<_>>();
        let mut known = Known::default();
        // Preempted within the second of its creation.
        let (first, second) = (stay(StayState::Preempted, 1, Some(1)), stay(StayState::Running, 1, None));
        assert_eq!(known.update(vec![first.clone(), second.clone()], &key).0.len(), 2);
        assert_eq!(known.update(vec![first.clone(), second], &key).0.len(), 0);
        let evicted = stay(StayState::Evicted, 1, Some(9));
        let waits = stay(StayState::Waiting, 9, None);
        let (changed, left) = known.update(vec![first, evicted.clone(), waits.clone()], &key);
        assert_eq!((states(&changed), left.len()), (vec!["Evicted", "Waiting"], 0));
        let (changed, left) = known.update(vec![waits], &key);
        assert_eq!((changed.len(), left.len()), (0, 0), "stays that have ended stay as they were");
        let (_, left) = known.update(Vec::new(), &key);
        assert_eq!(states(&left), ["Waiting"], "its state is to be asked for");
    }

    #[test]
    fn the_header_is_printed_once_and_rows_stay_aligned() {
        let mut known = Known::default();
        let mut printed = Printed::default();
        let mut next = |printed: &mut Printed, jobs: Vec<CurrentJob>, format: Format| {
            let (rows, _) = known.update(jobs, &by_uid);
            printed.text(&format, &rows, &known, &|jobs| current_list(jobs, Timestamp::UNIX_EPOCH, None)).expect("text")
        };
        let (long, short) = (job("a-long-name", StayState::Running), job("b", StayState::Waiting));
        let first = next(&mut printed, vec![long.clone(), short.clone()], Format::Table);
        assert!(first.starts_with("NAMESPACE ") && first.lines().count() == 3, "{first}");
        assert_eq!(next(&mut printed, vec![long.clone(), short], Format::Table), "");
        let second = next(&mut printed, vec![long.clone(), job("b", StayState::Reserved)], Format::Table);
        assert_eq!(second.lines().count(), 1, "{second}");
        assert_eq!(second.find("Reserved"), first.lines().nth(1).expect("a row").find("Running"), "{first}{second}");
        let yaml = next(&mut printed, vec![long.clone(), job("b", StayState::Running)], Format::Yaml);
        assert!(yaml.starts_with("---\n") && yaml.contains("state: Running"), "{yaml}");
        let name = next(&mut printed, vec![long, job("b", StayState::Held)], Format::Name);
        assert_eq!(name, "workload.kueue.x-k8s.io/b\n");
    }
}
