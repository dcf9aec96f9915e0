//! Measures the pods of a node with a pod runtime: CPU usage is the growth of CPU time between two
//! samples.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{PodRuntime, PodStats};
use berth_runtime::Clock;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use super::machine::{self, Machine};
use super::{Measured, MetricsSource, PodUsage, Usage};

/// Time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Age up to which a container is new: its usage counts from its start.
const NEW: SignedDuration = SignedDuration::from_secs(30);
/// Minimum time between two samples from which a rate is computed.
const WINDOW_MIN: Duration = Duration::from_millis(500);

/// Measures the pods of one pod runtime, and the machine.
pub struct Sampler {
    runtime: Arc<dyn PodRuntime>,
    clock: Clock,
    proc: PathBuf,
    samples: Mutex<Samples>,
}

/// The last samples, and the usage computed from them.
#[derive(Default)]
struct Samples {
    pods: BTreeMap<String, (PodStats, Option<PodUsage>)>,
    machine: Option<(Timestamp, Machine)>,
    node: Option<Measured<Usage>>,
}

impl Sampler {
    /// Creates a sampler of the pods of a runtime. It measures nothing until [`Sampler::run`].
    pub fn new(runtime: Arc<dyn PodRuntime>, clock: Clock) -> Arc<Self> {
        Arc::new(Self { runtime, clock, proc: PathBuf::from("/proc"), samples: Mutex::default() })
    }

    /// Takes samples forever.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.sample().await;
            self.clock.sleep(SAMPLE_INTERVAL).await;
        }
    }

    /// Takes one sample of each pod and of the machine.
    pub async fn sample(&self) {
        let known = self.runtime.pods();
        let stats = join_all(known.iter().map(|pod| self.runtime.stats(&pod.uid))).await;
        let machine = machine::read(&self.proc).map(|machine| (self.clock.now(), machine));
        self.samples.lock().record(stats.into_iter().flatten().collect(), machine);
    }
}

impl Samples {
    /// Replaces the samples. Pods that are not in `stats` have ended.
    fn record(&mut self, stats: Vec<PodStats>, machine: Option<(Timestamp, Machine)>) {
        let mut before = std::mem::take(&mut self.pods);
        for stats in stats {
            let (usage, stats) = match before.remove(&stats.uid.0) {
                Some((old, usage)) if window(old.at, stats.at).is_none() => (usage, old),
                Some((old, _)) => (pod_usage(Some(&old), &stats), stats),
                None => (pod_usage(None, &stats), stats),
            };
            self.pods.insert(stats.uid.0.clone(), (stats, usage));
        }
        if let (Some((then, old)), Some((now, new))) = (self.machine, machine) {
            let Some(window) = window(then, now) else { return };
            let cpu_nano = rate(old.cpu_nanos, new.cpu_nanos, window).unwrap_or(0);
            let figures = Usage { cpu_nano, memory_bytes: new.memory_bytes };
            self.node = Some(Measured { at: now, window, figures });
        }
        self.machine = machine;
    }
}

/// The time between two samples; `None` if it is too short for a rate.
fn window(then: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(then)).ok().filter(|window| *window >= WINDOW_MIN)
}

/// CPU in billionths of a core; `None` if the counter was reset.
fn rate(before: u64, after: u64, window: Duration) -> Option<u64> {
    let used = u128::from(after.checked_sub(before)?);
    u64::try_from(used * 1_000_000_000 / window.as_nanos().max(1)).ok()
}

/// Usage between two samples. Usage of a container that was started between them counts from its
/// start, so that the usage of a new pod does not need a second sample.
///
/// Source: metrics-server, which does the same for containers that have just started.
fn pod_usage(old: Option<&PodStats>, new: &PodStats) -> Option<PodUsage> {
    let mut longest = Duration::ZERO;
    let mut figures = BTreeMap::new();
    for container in &new.containers {
        let known = old.and_then(|old| Some((old.at, old.containers.iter().find(|it| it.name == container.name)?)));
        let since = match known {
            Some((at, known)) if known.started_at == container.started_at => Some((at, known.cpu_nanos)),
            _ => Some((container.started_at, 0)).filter(|(at, _)| new.at.duration_since(*at) <= NEW),
        };
        let Some((at, before)) = since else { continue };
        let Some(window) = window(at, new.at) else { continue };
        if let Some(cpu_nano) = rate(before, container.cpu_nanos, window) {
            longest = longest.max(window);
            figures.insert(container.name.clone(), Usage { cpu_nano, memory_bytes: container.memory_bytes });
        }
    }
    (!figures.is_empty()).then_some(Measured { at: new.at, window: longest, figures })
}

impl MetricsSource for Sampler {
    fn pod(&self, pod: &Pod) -> Option<PodUsage> {
        let uid = pod.metadata.uid.as_deref()?;
        self.samples.lock().pods.get(uid).and_then(|(_, usage)| usage.clone())
    }

    fn node(&self) -> Option<Measured<Usage>> {
        self.samples.lock().node.clone()
    }
}

#[cfg(test)]
mod tests {
    use berth_pod_runtime::{ContainerStats, PodUid};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The stats of a pod. `containers` has the name, the start and the CPU time of each container.
    fn stats(uid: &str, second: i64, containers: &[(&str, i64, u64)]) -> PodStats {
        let container = |(name, started, cpu_nanos): &(&str, i64, u64)| ContainerStats {
            name: (*name).to_owned(),
            started_at: at(*started),
            cpu_nanos: *cpu_nanos,
            memory_bytes: 1 << 20,
        };
        let containers = containers.iter().map(container).collect();
        PodStats { uid: PodUid(uid.to_owned()), at: at(second), containers }
    }

    fn cpu(samples: &Samples, uid: &str) -> Option<Vec<u64>> {
        let usage = samples.pods.get(uid)?.1.as_ref()?;
        Some(usage.figures.values().map(|usage| usage.cpu_nano).collect())
    }

    #[test]
    fn usage_is_the_growth_of_cpu_time_between_two_samples() {
        let mut samples = Samples::default();
        let machine = |second: i64, cpu_nanos: u64| Some((at(second), Machine { cpu_nanos, memory_bytes: 7 }));
        samples.record(vec![stats("a", 100, &[("c", 10, 5_000_000_000)])], machine(100, 1_000_000_000));
        assert_eq!((cpu(&samples, "a"), samples.node.clone()), (None, None), "one sample of an old pod gives no rate");
        samples.record(vec![stats("a", 110, &[("c", 10, 7_500_000_000)])], machine(110, 16_000_000_000));
        assert_eq!(cpu(&samples, "a"), Some(vec![250_000_000]), "250m");
        assert_eq!(samples.node.as_ref().unwrap().figures, Usage { cpu_nano: 1_500_000_000, memory_bytes: 7 });
        samples.record(vec![], None);
        assert_eq!(cpu(&samples, "a"), None);
    }

    #[test]
    fn usage_of_a_container_that_has_just_started_counts_from_its_start() {
        let mut samples = Samples::default();
        samples.record(vec![stats("a", 100, &[("c", 96, 2_000_000_000)])], None);
        assert_eq!(cpu(&samples, "a"), Some(vec![500_000_000]));
        // The container was restarted in the meantime, so its CPU counter started again at zero.
        samples.record(vec![stats("a", 110, &[("c", 108, 200_000_000)])], None);
        assert_eq!(cpu(&samples, "a"), Some(vec![100_000_000]));
    }
}
