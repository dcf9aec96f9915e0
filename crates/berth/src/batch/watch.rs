//! `berth queue --watch`: the list, and then a row for each job that changes.
//!
//! The objects say when to ask again; the controllers give the rows, as they do for the list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use berth_api::berth::current_jobs::{CurrentJob, CurrentJobs};
use berth_api::berth::usage::{Stay, StayState};
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::percent::component;
use berth_controllers::explain::ask;
use berth_runtime::{Followed, Following, Sight};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::lists::{QueueOptions, current_list};
use crate::accounting::request_error;
use crate::listing::{Format, Listing};
use crate::process;

/// Time between a change and the request for the rows: changes come in groups.
const SETTLE: Duration = Duration::from_millis(300);
/// Time after the last change for one more request: the controllers may learn of a change later.
const AGAIN: Duration = Duration::from_secs(2);

/// The jobs that were printed, by UID of the Workload.
type Known = BTreeMap<String, CurrentJob>;

/// Prints the list, and then the jobs that change, until a request fails or the process is stopped.
pub async fn watch(options: &QueueOptions, client: &Client, namespace: &str) -> anyhow::Result<()> {
    let changed = Arc::new(Notify::new());
    let following = Following { projection: without_content, changed: changed.clone() };
    let followed: Followed<Workload> = match options.scope(namespace) {
        Some(namespace) => Followed::namespaced(client, namespace, following),
        None => Followed::within_rights(client, namespace, following),
    };
    let (mut known, mut printed) = (Known::new(), Printed::default());
    let mut is_settled = false;
    loop {
        let found = options.current(client, namespace).await?;
        if !printed.any {
            found.report(options, namespace);
        }
        let (mut rows, left) = changes(&mut known, found.jobs);
        for job in left {
            rows.push(last_state(client, job, found.now).await?);
        }
        printed.print(&options.filter.output, &rows, &known, found.now)?;
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

/// The jobs that are new or whose stay changed, and those that are not listed any more, which are no
/// longer known.
fn changes(known: &mut Known, listed: Vec<CurrentJob>) -> (Vec<CurrentJob>, Vec<CurrentJob>) {
    let mut now = Known::new();
    let mut changed = Vec::new();
    for job in listed {
        let before = known.remove(&job.stay.uid);
        if before.is_none_or(|before| before.stay != job.stay) {
            changed.push(job.clone());
        }
        now.insert(job.stay.uid.clone(), job);
    }
    let left = std::mem::replace(known, now).into_values().collect();
    (changed, left)
}

/// A job that left the list in its present state. One that does not exist any more is deleted.
async fn last_state(client: &Client, job: CurrentJob, now: Timestamp) -> anyhow::Result<CurrentJob> {
    let name = &job.stay.workload;
    let query = format!("q={}&sort=-queued&limit=1000", component(&name.name));
    let answer = ask::current_jobs(client, Some(&name.namespace), &query).await;
    let found: CurrentJobs = serde_json::from_value(answer.map_err(|error| request_error(error, "the jobs"))?)?;
    let present = found.items.into_iter().find(|it| it.stay.uid == job.stay.uid);
    Ok(present.unwrap_or_else(|| deleted(job, now)))
}

fn deleted(job: CurrentJob, now: Timestamp) -> CurrentJob {
    let (state, ended) = (StayState::Deleted, job.stay.ended.clone().or(Some(Time(now))));
    CurrentJob { stay: Stay { state, ended, reason: String::new(), ..job.stay }, message: String::new(), ..job }
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
    fn print(&mut self, format: &Format, rows: &[CurrentJob], known: &Known, now: Timestamp) -> anyhow::Result<()> {
        process::print(&self.text(format, rows, known, now)?)
    }

    /// The rows: a table without its header after the first time, and one object after the other in
    /// formats of objects.
    fn text(&mut self, format: &Format, rows: &[CurrentJob], known: &Known, now: Timestamp) -> anyhow::Result<String> {
        self.any = true;
        if rows.is_empty() {
            return Ok(String::new());
        }
        if let Format::Json | Format::Yaml | Format::JsonPath(_) | Format::JsonPathAsJson(_) = format {
            let list = current_list(rows, now, None);
            let separator = if *format == Format::Yaml { "---\n" } else { "" };
            let each = list.items.into_iter().map(|item| {
                let text = Listing { items: vec![item], ..Listing::default() }.render_one(format)?;
                Ok(format!("{separator}{text}"))
            });
            return each.collect();
        }
        // The columns are as wide as for all known jobs, so that rows stay aligned.
        let others = if *format == Format::Name { None } else { Some(known.values()) };
        let all: Vec<CurrentJob> = rows.iter().chain(others.into_iter().flatten()).cloned().collect();
        let text = current_list(&all, now, None).render(format)?;
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

    fn job(name: &str, state: StayState) -> CurrentJob {
        let workload = ObjectName { namespace: "team".to_owned(), name: name.to_owned() };
        let stay = Stay { workload, uid: format!("uid-{name}"), state, reason: "Reason".to_owned(), ..Stay::default() };
        CurrentJob { stay, ..CurrentJob::default() }
    }

    fn names(jobs: &[CurrentJob]) -> Vec<&str> {
        jobs.iter().map(|job| job.stay.workload.name.as_str()).collect()
    }

    #[test]
    fn only_jobs_that_changed_or_left_are_printed_again() {
        let mut known = Known::new();
        let (a, b) = (job("a", StayState::Waiting), job("b", StayState::Waiting));
        let (changed, left) = changes(&mut known, vec![a.clone(), b.clone()]);
        assert_eq!((names(&changed), left.len()), (vec!["a", "b"], 0));
        // Messages change with each attempt.
        let tried = CurrentJob { message: "1 more needed".to_owned(), ..a };
        let (changed, left) = changes(&mut known, vec![tried, b]);
        assert_eq!((changed.len(), left.len()), (0, 0));
        let (changed, left) = changes(&mut known, vec![job("b", StayState::Running)]);
        assert_eq!((names(&changed), names(&left)), (vec!["b"], vec!["a"]));
        let gone = deleted(left[0].clone(), Timestamp::UNIX_EPOCH);
        assert_eq!((gone.stay.state, gone.stay.ended), (StayState::Deleted, Some(Time(Timestamp::UNIX_EPOCH))));
        assert_eq!(changes(&mut known, vec![job("b", StayState::Running)]).1.len(), 0, "it left once");
    }

    #[test]
    fn the_header_is_printed_once_and_rows_stay_aligned() {
        let mut known = Known::new();
        let mut printed = Printed::default();
        let mut next = |printed: &mut Printed, jobs: Vec<CurrentJob>, format: Format| {
            let (rows, _) = changes(&mut known, jobs);
            printed.text(&format, &rows, &known, Timestamp::UNIX_EPOCH).expect("text")
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
