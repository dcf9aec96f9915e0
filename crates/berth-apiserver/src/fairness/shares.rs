//! How many requests of a user may be under way at once: all it has, while it is alone; its share of what the processors can
//! do, while others call too. Pure, but for the times it is handed.
//!
//! Turns alone are not enough: each of a flood's requests is woken again when the disk has its write, and a request of
//! somebody else waits behind all that are awake, several times over. With few of them under way nobody stands in a long line,
//! wherever it is (the runtime's, the store's, the kernel's), and the others wait where they are in nobody's way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::flow::Level;

/// Who has called within this time is to be reckoned with: longer than the pause between two renewals of a lease.
const MOMENT: Duration = Duration::from_secs(3);
/// How often those are counted who have not called for that long.
const SWEEP: Duration = Duration::from_millis(100);
/// Requests under way that everybody may have, however many share.
const SHARE_MIN: usize = 2;

/// What users have under way, and who has called lately.
#[derive(Default)]
pub(super) struct Shares {
    /// Requests under way that the processors do well with.
    capacity: usize,
    users: [BTreeMap<Arc<str>, User>; Level::COUNT],
    /// Users that have called lately.
    active: usize,
    swept: Option<Instant>,
}

#[derive(Default)]
struct User {
    under_way: usize,
    called: Option<Instant>,
    is_active: bool,
}

impl Shares {
    /// A user has called; from now on `capacity` is what is shared.
    pub(super) fn called(&mut self, level: Level, user: &Arc<str>, capacity: usize, now: Instant) {
        self.capacity = capacity;
        let users = &mut self.users[level as usize];
        match users.get_mut(&**user) {
            Some(known) => {
                known.called = Some(now);
                self.active += usize::from(!known.is_active);
                known.is_active = true;
            }
            None => {
                users.insert(user.clone(), User { under_way: 0, called: Some(now), is_active: true });
                self.active += 1;
            }
        }
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
            self.sweep(now);
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.swept = Some(now);
        self.active = 0;
        for users in &mut self.users {
            users.retain(|_, user| {
                user.is_active = user.called.is_some_and(|called| now.saturating_duration_since(called) < MOMENT);
                self.active += usize::from(user.is_active);
                user.is_active || user.under_way > 0
            });
        }
    }

    /// Whether one more of a user's requests may be under way.
    pub(super) fn may_start(&self, level: Level, user: &str) -> bool {
        let Some(user) = self.users[level as usize].get(user) else { return true };
        let others = self.active - usize::from(user.is_active);
        others == 0 || user.under_way < (self.capacity / (others + 1)).max(SHARE_MIN)
    }

    /// One of its requests is under way from now on.
    pub(super) fn started(&mut self, level: Level, user: &Arc<str>) {
        match self.users[level as usize].get_mut(&**user) {
            Some(user) => user.under_way += 1,
            // It has waited for longer than it was remembered.
            None => {
                self.users[level as usize].insert(user.clone(), User { under_way: 1, ..User::default() });
            }
        }
    }

    /// One is no more.
    pub(super) fn ended(&mut self, level: Level, user: &str) {
        if let Some(user) = self.users[level as usize].get_mut(user) {
            user.under_way = user.under_way.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Level = Level::WorkloadLow;

    /// Starts as many of a user's requests as may be.
    fn fill(shares: &mut Shares, user: &Arc<str>, at: Instant) -> usize {
        shares.called(LOW, user, 12, at);
        let mut started = 0;
        while started < 1000 && shares.may_start(LOW, user) {
            shares.started(LOW, user);
            started += 1;
        }
        started
    }

    #[test]
    fn who_is_alone_has_everything_and_others_share() {
        let (flood, ann, bob): (Arc<str>, Arc<str>, Arc<str>) = ("flood".into(), "ann".into(), "bob".into());
        let start = Instant::now();
        let mut shares = Shares::default();
        assert_eq!(fill(&mut shares, &flood, start), 1000);
        // What is under way goes on, but nothing more begins.
        assert_eq!(fill(&mut shares, &ann, start), 6);
        assert!(!shares.may_start(LOW, &flood));
        (0..994).for_each(|_| shares.ended(LOW, &flood));
        assert!(!shares.may_start(LOW, &flood));
        shares.ended(LOW, &flood);
        assert!(shares.may_start(LOW, &flood));
        shares.started(LOW, &flood);
        assert_eq!(fill(&mut shares, &bob, start), 4);
        // Alone again a moment after the others' last call.
        let later = start + MOMENT;
        shares.called(LOW, &flood, 12, later);
        assert!(shares.may_start(LOW, &flood));
        // What they have under way is remembered.
        shares.called(LOW, &ann, 12, later);
        assert!(!shares.may_start(LOW, &ann));
    }

    #[test]
    fn everybody_has_a_few_however_many_there_are_and_nothing_is_left_behind() {
        let start = Instant::now();
        let mut shares = Shares::default();
        let users: Vec<Arc<str>> = (0..100).map(|number| format!("user-{number}").into()).collect();
        users.iter().for_each(|user| shares.called(LOW, user, 12, start));
        assert!(users.iter().all(|user| fill(&mut shares, user, start) == SHARE_MIN));
        users.iter().for_each(|user| (0..SHARE_MIN).for_each(|_| shares.ended(LOW, user)));
        let late: Arc<str> = "late".into();
        shares.called(LOW, &late, 12, start + MOMENT);
        assert_eq!((shares.users[LOW as usize].len(), shares.active), (1, 1));
    }
}
