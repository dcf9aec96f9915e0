//! Workloads whose admission the API server rejected permanently, because of a policy, a webhook or
//! a ResourceQuota.
//!
//! The engine would admit the same workload again at once, and the API server would reject it
//! again. Therefore such a workload is not considered for one second, then for two, and so on up to
//! a minute, so that other workloads get the quota. A change to its spec or an accepted write ends
//! the delays. Kueue retries at once, as fast as its client allows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::kueue::v1beta2::Workload;
use berth_engine::model::{Time, WorkloadKey};

const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The workloads whose last admission was rejected.
#[derive(Default)]
pub(super) struct Refusals {
    refused: BTreeMap<WorkloadKey, Refusal>,
    /// The workloads that are not considered now, by the end of their delay.
    paused: BTreeSet<(Time, WorkloadKey)>,
}

pub(super) struct Refusal {
    what: What,
    pause: Duration,
    /// End of the delay; `None` if it has elapsed.
    until: Option<Time>,
}

/// The version of a workload's spec whose admission was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct What {
    uid: Option<String>,
    generation: Option<i64>,
}

impl What {
    pub fn of(workload: &Workload) -> What {
        What { uid: workload.metadata.uid.clone(), generation: workload.metadata.generation }
    }
}

impl Refusals {
    /// Records a rejection; returns for how long the workload is not considered.
    pub fn note(&mut self, key: WorkloadKey, what: What, now: Time) -> Duration {
        let before = self.forget(&key).filter(|refusal| refusal.what == what);
        let pause = before.map_or(PAUSE_FIRST, |refusal| (refusal.pause * 2).min(PAUSE_MAX));
        let until = now.after(pause);
        self.paused.insert((until, key.clone()));
        self.refused.insert(key, Refusal { what, pause, until: Some(until) });
        pause
    }

    /// True if this workload may be considered.
    pub fn allow(&self, key: &WorkloadKey, what: impl FnOnce() -> What) -> bool {
        match self.refused.get(key) {
            Some(refusal) if refusal.until.is_some() => refusal.what != what(),
            _ => true,
        }
    }

    /// The workloads whose delays have ended, and the end of the next one.
    pub fn ended(&mut self, now: Time) -> (Vec<WorkloadKey>, Option<Time>) {
        let mut ended = Vec::new();
        while let Some((until, key)) = self.paused.pop_first() {
            if until > now {
                self.paused.insert((until, key));
                return (ended, Some(until));
            }
            if let Some(refusal) = self.refused.get_mut(&key) {
                refusal.until = None;
            }
            ended.push(key);
        }
        (ended, None)
    }

    /// Forgets a workload: its admission was written, or it was deleted.
    pub fn forget(&mut self, key: &WorkloadKey) -> Option<Refusal> {
        let refusal = self.refused.remove(key)?;
        if let Some(until) = refusal.until {
            self.paused.remove(&(until, key.clone()));
        }
        Some(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(uid: &str, generation: i64) -> What {
        What { uid: Some(uid.to_owned()), generation: Some(generation) }
    }

    #[test]
    fn delays_double_up_to_a_minute_and_start_over_with_a_new_spec() {
        let key = WorkloadKey { namespace: "team".into(), name: "job".into() };
        let mut refusals = Refusals::default();
        let (mut now, mut pauses) = (Time::from_seconds(0), Vec::new());
        for _ in 0..8 {
            let pause = refusals.note(key.clone(), what("a", 1), now);
            pauses.push(pause.as_secs());
            assert!(!refusals.allow(&key, || what("a", 1)));
            assert!(refusals.allow(&key, || what("a", 2)), "the spec has changed");
            assert!(refusals.allow(&key, || what("b", 1)), "another workload has this name");
            assert_eq!(refusals.ended(now), (Vec::new(), Some(now.after(pause))));
            now = now.after(pause);
            assert_eq!(refusals.ended(now), (vec![key.clone()], None));
            assert!(refusals.allow(&key, || what("a", 1)));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(refusals.note(key.clone(), what("a", 2), now).as_secs(), 1);
        assert_eq!(refusals.note(key.clone(), what("a", 2), now).as_secs(), 2);
        assert_eq!(refusals.ended(now.after(Duration::from_secs(1))).1, Some(now.after(Duration::from_secs(2))));
        refusals.forget(&key);
        assert!(refusals.allow(&key, || what("a", 2)));
        assert_eq!(refusals.ended(now), (Vec::new(), None));
    }
}
