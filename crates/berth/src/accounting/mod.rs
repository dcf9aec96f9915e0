//! `berth usage`, `berth history` and `berth why-preempted`: what was used, and what happened to a
//! workload, from the controllers or from the files of a decision journal.

pub mod history;
pub mod prices;
pub mod report;

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use berth_api::berth::usage::Stay;
use berth_apimachinery::percent::component;
use berth_apimachinery::times;
use berth_controllers::decisions::journal;
use berth_controllers::explain::ask;
use berth_controllers::usage::Period;
use berth_foresight::command::duration;
use clap::Args;
use jiff::{SignedDuration, Timestamp};

/// Options that select a period.
#[derive(Args)]
pub struct PeriodOptions {
    /// Start of the period: a time, or how long ago, such as 30d, 12h or 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = moment)]
    since: Moment,
    /// End of the period. Default: now.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Moment>,
}

/// A point in time: a time, or a span before now.
#[derive(Clone, Copy, Debug)]
enum Moment {
    At(Timestamp),
    Ago(SignedDuration),
}

fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(at) = times::parse_time(text) {
        return Ok(Moment::At(at));
    }
    // A date is its first second in UTC.
    if let Ok(at) = times::parse_time(&format!("{text}T00:00:00Z")) {
        return Ok(Moment::At(at));
    }
    let ago = duration(text).ok().and_then(|ago| SignedDuration::try_from(ago).ok());
    ago.map(Moment::Ago)
        .ok_or_else(|| "expected a time such as 30d, 12h, 2026-01-31 or 2026-01-31T12:00:00Z".to_owned())
}

impl Moment {
    fn before(self, now: Timestamp) -> anyhow::Result<Timestamp> {
        match self {
            Self::At(at) => Ok(at),
            Self::Ago(ago) => now.checked_sub(ago).with_context(|| format!("{ago} before now is out of range")),
        }
    }
}

impl PeriodOptions {
    /// The parameters of a request at `now`, the time on the cluster's clock.
    pub fn query(&self, now: Timestamp) -> anyhow::Result<String> {
        let mut query = format!("since={}", component(&times::time(self.since.before(now)?)));
        if let Some(until) = self.until {
            query.push_str(&format!("&until={}", component(&times::time(until.before(now)?))));
        }
        Ok(query)
    }

    /// True if the period has an end before now.
    pub fn has_end(&self) -> bool {
        self.until.is_some()
    }

    /// The period at `now`.
    pub fn period(&self, now: Timestamp) -> anyhow::Result<Period> {
        Period::parse(&self.query(now)?, now).map_err(|problem| anyhow!("--{problem}"))
    }
}

/// The stays of journals that ended, of Workloads or jobs with a name (all if it is empty), each
/// once: replicas of the controllers that led one after the other may have recorded the same end.
pub fn each_stay(folders: &[PathBuf], name: &str, each: &mut dyn FnMut(&Stay)) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    for folder in folders {
        let read = journal::each_stay_named(folder, name, &mut |stay| {
            let ended = stay.ended.as_ref().map(|at| at.0);
            if seen.insert((stay.uid.clone(), ended, stay.state.name())) {
                each(&stay);
            }
        });
        read.with_context(|| format!("--journal {}", folder.display()))?;
    }
    Ok(())
}

/// An error of a request to `explain.berth.dev`, with what to do.
pub fn request_error(error: kube::Error, what: &str) -> anyhow::Error {
    let is_elsewhere = ask::is_elsewhere(&error);
    match error {
        kube::Error::Api(status) if is_elsewhere => anyhow!(status.message.clone()).context(
            "the controllers do not respond through the API server (kubectl get apiservice v1alpha1.explain.berth.dev \
             shows the reason); to read a decision journal instead, use --journal DIR",
        ),
        kube::Error::Api(status) if status.code == 403 => anyhow!(
            "{}; ask for the ClusterRole berth-explanation-viewer-role in a namespace, and use -n NAMESPACE",
            status.message
        ),
        kube::Error::Api(status) => anyhow!(status.message.clone()),
        error => anyhow::Error::new(error).context(format!("cannot request {what} from the API server")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_begins_at_a_time_or_a_span_ago() {
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().expect("a time");
        let start = |text: &str| times::time(moment(text).expect("a moment").before(now).expect("in range"));
        assert_eq!(start("30d"), "2026-01-02T00:00:00Z");
        assert_eq!(start("90m"), "2026-01-31T22:30:00Z");
        assert_eq!(start("2026-01-31"), "2026-01-31T00:00:00Z");
        assert_eq!(start("2026-01-31T12:00:00+01:00"), "2026-01-31T11:00:00Z");
        assert!(moment("yesterday").expect_err("no moment").contains("30d"));
    }
}
