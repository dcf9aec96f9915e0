//! Admissions the server refuses for what they are: a policy, a webhook or a quota says no.
//!
//! The engine would give the same quota to the same workload at once, and the server would refuse it again. So after a refusal
//! a workload is not looked at for a second, then for two, up to a minute; others get the quota meanwhile. A change of the
//! workload's spec, or a write that succeeds, starts anew. Kueue tries again at once, as fast as its client lets it.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::model::{Time, WorkloadKey};

const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The workloads whose admission was refused last.
#[derive(Default)]
pub(super) struct Refusals {
    refused: BTreeMap<WorkloadKey, Refusal>,
}

struct Refusal {
    /// Of the workload that was refused.
    generation: Option<i64>,
    pause: Duration,
    /// None when the pause is over.
    until: Option<Time>,
}

impl Refusals {
    /// Notes a refusal; returns for how long the workload is not looked at.
    pub fn note(&mut self, key: WorkloadKey, generation: Option<i64>, now: Time) -> Duration {
        let before = self.refused.get(&key).filter(|refusal| refusal.generation == generation);
        let pause = before.map_or(PAUSE_FIRST, |refusal| (refusal.pause * 2).min(PAUSE_MAX));
        self.refused.insert(key, Refusal { generation, pause, until: Some(now.after(pause)) });
        pause
    }

    /// May this workload, in this generation, be looked at?
    pub fn allow(&self, key: &WorkloadKey, generation: Option<i64>) -> bool {
        let paused = |refusal: &Refusal| refusal.generation == generation && refusal.until.is_some();
        !self.refused.get(key).is_some_and(paused)
    }

    /// The workloads whose pauses have just ended, and when the next one does.
    pub fn ended(&mut self, now: Time) -> (Vec<WorkloadKey>, Option<Time>) {
        if self.refused.is_empty() {
            return (Vec::new(), None);
        }
        let (mut next, mut ended) = (None::<Time>, Vec::new());
        for (key, refusal) in &mut self.refused {
            match refusal.until {
                Some(until) if until <= now => {
                    refusal.until = None;
                    ended.push(key.clone());
                }
                Some(until) => next = Some(next.map_or(until, |next| next.min(until))),
                None => {}
            }
        }
        (ended, next)
    }

    /// Its admission was written, or it is gone.
    pub fn forget(&mut self, key: &WorkloadKey) {
        self.refused.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_start_anew_with_a_new_spec() {
        let key = WorkloadKey { namespace: "team".into(), name: "job".into() };
        let mut refusals = Refusals::default();
        let (mut now, mut pauses) = (Time::from_seconds(0), Vec::new());
        for _ in 0..8 {
            let pause = refusals.note(key.clone(), Some(1), now);
            pauses.push(pause.as_secs());
            assert!(!refusals.allow(&key, Some(1)));
            assert!(refusals.allow(&key, Some(2)), "what was refused is not there any more");
            assert_eq!(refusals.ended(now), (Vec::new(), Some(now.after(pause))));
            now = now.after(pause);
            assert_eq!(refusals.ended(now), (vec![key.clone()], None));
            assert!(refusals.allow(&key, Some(1)));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(refusals.note(key.clone(), Some(2), now).as_secs(), 1);
        refusals.forget(&key);
        assert!(refusals.allow(&key, Some(2)));
    }
}
