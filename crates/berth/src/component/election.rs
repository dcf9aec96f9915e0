//! Leader election on the command line.

use std::time::Duration;

use anyhow::anyhow;
use berth_controllers::configuration::process::Election;
use berth_controllers::duration;
use berth_runtime::LeaderElection;
use clap::Args;

use crate::process;

/// Options of leader election.
#[derive(Args)]
#[command(next_help_heading = "Leader election")]
pub struct ElectionOptions {
    /// Act only while holding a Lease, so that several replicas can run. Use --leader-elect=false
    /// for a single replica.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: Option<bool>,
    /// Time that other replicas wait after the last renewal they have seen before one takes over.
    /// Default: 8s.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    leader_elect_lease_duration: Option<Duration>,
    /// Time for which the leader tries to renew its Lease before it stops acting; shorter than the
    /// lease duration. Default: 7s.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    leader_elect_renew_deadline: Option<Duration>,
    /// Time between two attempts to acquire or renew the Lease. Default: 1s.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    leader_elect_retry_period: Option<Duration>,
    /// Name of the Lease.
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_name: Option<String>,
    /// Namespace of the Lease. Default: the pod's own, else berth-system.
    #[arg(long, value_name = "NAMESPACE")]
    leader_elect_resource_namespace: Option<String>,
}

fn positive(text: &str) -> Result<Duration, String> {
    let parsed = duration::parse(text)?;
    let parsed = Duration::try_from(parsed).map_err(|_| "must not be negative".to_owned())?;
    if parsed.is_zero() { Err("must be longer than 0s".to_owned()) } else { Ok(parsed) }
}

impl ElectionOptions {
    /// The election to take part in, by default on the Lease `name` of this namespace; `None`
    /// without leader election. `file` has the values that no option sets.
    ///
    /// # Errors
    /// The durations contradict each other.
    pub fn election(&self, name: &str, namespace: &str, file: &Election) -> anyhow::Result<Option<LeaderElection>> {
        if !self.leader_elect.or(file.elect).unwrap_or(true) {
            return Ok(None);
        }
        let said = Election {
            elect: None,
            name: self.leader_elect_resource_name.clone().or_else(|| file.name.clone()),
            namespace: self.leader_elect_resource_namespace.clone().or_else(|| file.namespace.clone()),
            lease_duration: self.leader_elect_lease_duration.or(file.lease_duration),
            renew_deadline: self.leader_elect_renew_deadline.or(file.renew_deadline),
            retry_period: self.leader_elect_retry_period.or(file.retry_period),
        };
        let election = said.of_replica(name, namespace, identity()?);
        match election.problem() {
            Some(problem) => Err(anyhow!("leader election: {problem}")),
            None => Ok(Some(election)),
        }
    }
}

/// The namespace of this process's pod; outside of a pod, the installation's.
pub fn own_namespace() -> String {
    let mounted = std::fs::read_to_string("/var/run/secrets/kubernetes.io/serviceaccount/namespace");
    mounted
        .ok()
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| berth_controllers::rights::NAMESPACE.to_owned())
}

/// The host's name (in a pod, the pod's name) and a random suffix that identifies the process.
fn identity() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "berth",
        host => host,
    };
    Ok(format!("{host}_{:016x}", process::entropy()?))
}
