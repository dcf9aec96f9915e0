//! Admissions the server refuses for what they are: a policy, a webhook or a quota says no.
//!
//! The engine would give the same quota to the same workload at once, and the server would refuse it again. So after a refusal
//! a workload is not looked at for a second, then for two, up to a minute; others get the quota meanwhile. A change of the
//! workload's spec, or a write that succeeds, starts anew. Kueue tries again at once, as fast as its client lets it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::kueue::v1beta2::Workload;
use berth_engine::model::{Time, WorkloadKey};

const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The workloads whose admission was refused last.
#[derive(Default)]
pub(super) struct Refusals {
    refused: BTreeMap<WorkloadKey, Refusal>,
    /// Those of them that are not to be looked at, by the end of that.
    paused: BTreeSet<(Time, WorkloadKey)>,
}

pub(super) struct Refusal {
    what: What,
    pause: Duration,
    /// None when the pause is over.
    until: Option<Time>,
}

/// What was refused: an object, and its spec.
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
    /// Notes a refusal; returns for how long the workload is not looked at.
    pub fn note(&mut self, key: WorkloadKey, what: What, now: Time) -> Duration {
        let before = self.forget(&key).filter(|refusal| refusal.what == what);
        let pause = before.map_or(PAUSE_FIRST, |refusal| (refusal.pause * 2).min(PAUSE_MAX));
        let until = now.after(pause);
        self.paused.insert((until, key.clone()));
        self.refused.insert(key, Refusal { what, pause, until: Some(until) });
        pause
    }

    /// May this workload be looked at?
    pub fn allow(&self, key: &WorkloadKey, what: impl FnOnce() -> What) -> bool {
        match self.refused.get(key) {
            Some(refusal) if refusal.until.is_some() => refusal.what != what(),
            _ => true,
        }
    }

    /// The workloads whose pauses have just ended, and when the next one does.
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

    /// Forgets what was refused of a workload: its admission was written, or it is gone.
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
    fn pauses_double_up_to_a_minute_and_start_anew_with_a_new_spec() {
        let key = WorkloadKey { namespace: "team".into(), name: "job".into() };
        let mut refusals = Refusals::default();
        let (mut now, mut pauses) = (Time::from_seconds(0), Vec::new());
        for _ in 0..8 {
            let pause = refusals.note(key.clone(), what("a", 1), now);
            pauses.push(pause.as_secs());
            assert!(!refusals.allow(&key, || what("a", 1)));
            assert!(refusals.allow(&key, || what("a", 2)), "what was refused is not there any more");
            assert!(refusals.allow(&key, || what("b", 1)), "it is another one of this name");
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
