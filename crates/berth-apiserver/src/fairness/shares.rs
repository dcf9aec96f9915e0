//! Limits how many requests of a user may be in progress at once. A lone user is unlimited. While
//! several users call, each gets an equal share of the processors' capacity. Time is an argument.
//!
//! Turns alone are not enough. Each request of a flood is woken again when its write is durable,
//! and a request of another user waits behind all woken requests, several times over. With few
//! requests of the flood in progress, the queues of the runtime, the store and the kernel stay
//! short. The other requests of the flood wait in their queue, where they delay no other user.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::flow::Level;

/// A user counts as active for this long after a call: longer than the pause between two renewals
/// of a lease.
const ACTIVE_TIME: Duration = Duration::from_secs(3);
/// Interval between searches for users that are no longer active.
const SWEEP: Duration = Duration::from_millis(100);
/// Minimum share: requests in progress that each user may have, however many users share.
const SHARE_MIN: usize = 2;

/// Requests in progress per user, and which users are active.
#[derive(Default)]
pub(super) struct Shares {
    /// Requests in progress that keep the processors well used.
    capacity: usize,
    users: [BTreeMap<Arc<str>, User>; Level::COUNT],
    /// Number of active users: those with a call within `ACTIVE_TIME`.
    active: usize,
    swept: Option<Instant>,
}

#[derive(Default)]
struct User {
    under_way: usize,
    /// Number of long requests among those in progress. An example is the deletion of a collection,
    /// which takes one commit per object.
    long: usize,
    called: Option<Instant>,
    is_active: bool,
}

impl Shares {
    /// Records a call of `user`; from now on users share `capacity`.
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
                user.is_active = user.called.is_some_and(|called| now.saturating_duration_since(called) < ACTIVE_TIME);
                self.active += usize::from(user.is_active);
                user.is_active || user.under_way > 0
            });
        }
    }

    /// True if another request of the user may start.
    pub(super) fn may_start(&self, level: Level, user: &str) -> bool {
        let Some(user) = self.users[level as usize].get(user) else { return true };
        let others = self.active - usize::from(user.is_active);
        // A user whose requests in progress are all long gets one more, so that it can renew a
        // lease while it deletes collections.
        let only_long = user.under_way == user.long;
        others == 0 || only_long || user.under_way < (self.capacity / (others + 1)).max(SHARE_MIN)
    }

    /// Counts a request of the user as in progress.
    pub(super) fn started(&mut self, level: Level, user: &Arc<str>, is_long: bool) {
        let users = &mut self.users[level as usize];
        if !users.contains_key(user) {
            // The request waited longer than the record of its user was kept.
            users.insert(user.clone(), User::default());
        }
        if let Some(user) = users.get_mut(user) {
            user.under_way += 1;
            user.long += usize::from(is_long);
        }
    }

    /// Ends a request that was in progress.
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

    /// Starts as many requests of `user` as may start, and returns their number.
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
    fn a_lone_user_is_unlimited_and_several_users_share() {
        let (flood, ann, bob): (Arc<str>, Arc<str>, Arc<str>) = ("flood".into(), "ann".into(), "bob".into());
        let start = Instant::now();
        let mut shares = Shares::default();
        assert_eq!(fill(&mut shares, &flood, start), 1000);
        // Requests in progress continue, but no new one starts.
        assert_eq!(fill(&mut shares, &ann, start), 6);
        assert!(!shares.may_start(LOW, &flood));
        (0..994).for_each(|_| shares.ended(LOW, &flood, false));
        assert!(!shares.may_start(LOW, &flood));
        shares.ended(LOW, &flood, false);
        assert!(shares.may_start(LOW, &flood));
        shares.started(LOW, &flood, false);
        assert_eq!(fill(&mut shares, &bob, start), 4);
        // The user is alone again `ACTIVE_TIME` after the last call of another user.
        let later = start + ACTIVE_TIME;
        shares.called(LOW, &flood, 12, later);
        assert!(shares.may_start(LOW, &flood));
        // The others' requests in progress are still counted.
        shares.called(LOW, &ann, 12, later);
        assert!(!shares.may_start(LOW, &ann));
    }

    #[test]
    fn a_user_that_deletes_collections_can_still_renew_a_lease() {
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
    fn every_user_has_the_minimum_share_and_inactive_users_are_forgotten() {
        let start = Instant::now();
        let mut shares = Shares::default();
        let users: Vec<Arc<str>> = (0..100).map(|number| format!("user-{number}").into()).collect();
        users.iter().for_each(|user| shares.called(LOW, user, 12, start));
        assert!(users.iter().all(|user| fill(&mut shares, user, start) == SHARE_MIN));
        users.iter().for_each(|user| (0..SHARE_MIN).for_each(|_| shares.ended(LOW, user, false)));
        let late: Arc<str> = "late".into();
        shares.called(LOW, &late, 12, start + ACTIVE_TIME);
        assert_eq!((shares.users[LOW as usize].len(), shares.active), (1, 1));
    }
}
