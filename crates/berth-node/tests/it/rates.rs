//! Start rates of pods. The results are printed. Only extreme slowness fails the test, because
//! other programs may use the machine.

use std::time::Duration;

use futures::stream::{self, StreamExt};

use crate::harness::{LEVELS, Node};
use berth_pod_runtime::PodRuntime;

/// Number of pods in a measurement.
const PODS: usize = 100;

/// Number of pods that start at the same time.
const CONCURRENCY: usize = 8;

/// Maximum median time until a pod's first instruction. It allows for a machine that does other
/// work.
const MEDIAN_MAX: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_hundred_pods_start_one_after_the_other_and_together() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let started = tokio::time::Instant::now();
        let times: Vec<(Duration, Duration)> = stream::iter(0..PODS)
            .map(|_| async {
                let begin = tokio::time::Instant::now();
                let pod = node.sandbox().await;
                let sandbox = begin.elapsed();
                node.start_with(&pod, "", |config| config.command = vec!["/bin/true".to_owned()]).await.unwrap();
                (sandbox, begin.elapsed())
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let all = started.elapsed();
        let mut alone = Vec::new();
        for _ in 0..20 {
            let begin = tokio::time::Instant::now();
            let pod = node.sandbox().await;
            node.start_with(&pod, "", |config| config.command = vec!["/bin/true".to_owned()]).await.unwrap();
            alone.push(begin.elapsed());
        }
        let median = |mut times: Vec<Duration>| {
            times.sort();
            times[times.len() / 2]
        };
        let together = median(times.iter().map(|(_, start)| *start).collect());
        let sandbox = median(times.iter().map(|(sandbox, _)| *sandbox).collect());
        let removal = tokio::time::Instant::now();
        for pod in node.runtime.pods() {
            node.runtime.remove_sandbox(&pod.uid).await.unwrap();
        }
        let alone = median(alone);
        println!(
            "{level}: {PODS} pods in {all:?}, {:.0} a second; median until the program runs {together:?} (sandbox \
             {sandbox:?}), alone {alone:?}; removal {:?} a pod",
            PODS as f64 / all.as_secs_f64(),
            removal.elapsed() / u32::try_from(PODS + 20).unwrap(),
        );
        assert!(alone < MEDIAN_MAX, "{level}: {alone:?}");
    }
}
