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
    /// Those of them that are long: a collection that is deleted takes a commit for each object.
    long: usize,
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
                users.insert(user.clone(), User { called: Some(now), is_active: true, ..User::default() });
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
        // A lease is renewed while collections are deleted.
        let only_long = user.under_way == user.long;
        others == 0 || only_long || user.under_way < (self.capacity / (others + 1)).max(SHARE_MIN)
    }

    /// One of its requests is under way from now on.
    pub(super) fn started(&mut self, level: Level, user: &Arc<str>, is_long: bool) {
        let users = &mut self.users[level as usize];
        if !users.contains_key(user) {
            // It has waited for longer than it was remembered.
            users.insert(user.clone(), User::default());
        }
        if let Some(user) = users.get_mut(user) {
            user.under_way += 1;
            user.long += usize::from(is_long);
        }
    }

    /// One is no more.
    pub(super) fn ended(&mut self, level: Level, user: &str, is_long: bool) {
        if let Some(user) = self.users[level as usize].get_mut(user) {
            user.under_way = user.under_way.saturating_sub(1);
            user.long = user.long.saturating_sub(usize::from(is_long));
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
            shares.started(LOW, user, false);
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
        (0..994).for_each(|_| shares.ended(LOW, &flood, false));
        assert!(!shares.may_start(LOW, &flood));
        shares.ended(LOW, &flood, false);
        assert!(shares.may_start(LOW, &flood));
        shares.started(LOW, &flood, false);
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
    fn who_deletes_collections_may_still_renew_a_lease() {
        let (operator, ann): (Arc<str>, Arc<str>) = ("operator".into(), "ann".into());
        let mut shares = Shares::default();
        shares.called(LOW, &operator, 4, Instant::now());
        shares.called(LOW, &ann, 4, Instant::now());
        (0..5).for_each(|_| shares.started(LOW, &operator, true));
        assert!(shares.may_start(LOW, &operator));
        shares.started(LOW, &operator, false);
        assert!(!shares.may_start(LOW, &operator));
        shares.ended(LOW, &operator, false);
        assert!(shares.may_start(LOW, &operator));
    }

    #[test]
    fn everybody_has_a_few_however_many_there_are_and_nothing_is_left_behind() {
        let start = Instant::now();
        let mut shares = Shares::default();
        let users: Vec<Arc<str>> = (0..100).map(|number| format!("user-{number}").into()).collect();
        users.iter().for_each(|user| shares.called(LOW, user, 12, start));
        assert!(users.iter().all(|user| fill(&mut shares, user, start) == SHARE_MIN));
        users.iter().for_each(|user| (0..SHARE_MIN).for_each(|_| shares.ended(LOW, user, false)));
        let late: Arc<str> = "late".into();
        shares.called(LOW, &late, 12, start + MOMENT);
        assert_eq!((shares.users[LOW as usize].len(), shares.active), (1, 1));
    }
}
