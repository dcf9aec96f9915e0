//! Picks the next request: priority levels take turns, users take turns within a level, and a
//! user's own requests keep their order of arrival. The type of a waiting entry is a parameter.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::flow::{Flow, Level};
use super::shares::Shares;

/// Maximum number of waiting requests of one user; further ones are rejected with `Retry-After`. A
/// client with reasonable limits has far fewer requests in progress.
pub(super) const WAITING_MAX: usize = 4096;
/// Maximum total body size of one user's waiting requests, in bytes: about twenty bodies of the
/// largest allowed size.
pub(super) const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Waiting requests, by level and user.
pub(super) struct Turns<T> {
    shares: Shares,
    levels: [Users<T>; Level::COUNT],
    /// The level whose turn is next, if it has waiting requests.
    next: usize,
    /// Number of the request that arrives next.
    number: u64,
}

/// The users of a level, in the order of their turns.
struct Users<T> {
    order: VecDeque<Arc<str>>,
    queues: BTreeMap<Arc<str>, UserQueue<T>>,
}

/// One user's requests, in the order of their arrival.
struct UserQueue<T> {
    /// True if the user's requests in progress reach its full share. It then gets no turn until one
    /// of them ends.
    is_held: bool,
    /// True if the user's share applies. It does not apply to long requests, which the number of
    /// lanes limits already.
    shares: bool,
    requests: VecDeque<Waiting<T>>,
    bytes: usize,
}

struct Waiting<T> {
    number: u64,
    bytes: usize,
    turn: T,
}

/// A request that has had its turn and counts against its user's share.
#[derive(Debug, PartialEq)]
pub(super) struct UnderWay {
    level: Level,
    user: Arc<str>,
    is_long: bool,
}

/// Identifies a waiting request, for [`Turns::remove`].
pub(super) struct Place {
    level: Level,
    user: Arc<str>,
    number: u64,
}

impl<T> Turns<T> {
    pub(super) fn new() -> Turns<T> {
        let levels = std::array::from_fn(|_| Users { order: VecDeque::new(), queues: BTreeMap::new() });
        Turns { shares: Shares::default(), levels, next: 0, number: 0 }
    }

    /// Records a call of a user that shares, for any group of lanes. `capacity` requests may be in
    /// progress while several users share.
    pub(super) fn called(&mut self, flow: &Flow, capacity: usize, now: Instant) {
        self.shares.called(flow.level, &flow.user, capacity, now);
    }

    /// Queues a request of `bytes` after the user's other requests. `None` if too many already
    /// wait.
    pub(super) fn push(&mut self, flow: &Flow, bytes: usize, turn: T) -> Option<Place> {
        let users = &mut self.levels[flow.level as usize];
        if !users.queues.contains_key(&*flow.user) {
            users.order.push_back(flow.user.clone());
        }
        let queue = users.queues.entry(flow.user.clone()).or_insert_with(|| UserQueue {
            is_held: false,
            shares: flow.shares && !flow.is_long,
            requests: VecDeque::new(),
            bytes: 0,
        });
        // The first waiting request is always accepted, however large.
        let is_full = queue.requests.len() >= WAITING_MAX || queue.bytes + bytes > WAITING_BYTES_MAX;
        if is_full && !queue.requests.is_empty() {
            return None;
        }
        let number = self.number;
        self.number += 1;
        queue.bytes += bytes;
        queue.requests.push_back(Waiting { number, bytes, turn });
        Some(Place { level: flow.level, user: flow.user.clone(), number })
    }

    /// The level with the next turn among those with waiting requests.
    fn level(&self) -> Option<usize> {
        (0..Level::COUNT).map(|step| (self.next + step) % Level::COUNT).find(|at| !self.levels[*at].order.is_empty())
    }

    /// Removes and returns the request with the next turn; its level and its user move to the end
    /// of their queues. The request of a user that shares is in progress until it
    /// [ends](Turns::ended).
    pub(super) fn pop(&mut self) -> Option<(T, Option<UnderWay>)> {
        loop {
            let level = self.level()?;
            let users = &mut self.levels[level];
            let user = users.order.pop_front()?;
            let queue = users.queues.get_mut(&user)?;
            if queue.shares && !self.shares.may_start(Level::ALL[level], &user) {
                queue.is_held = true;
                continue;
            }
            self.next = (level + 1) % Level::COUNT;
            let first = queue.requests.pop_front()?;
            queue.bytes -= first.bytes;
            let under_way =
                queue.shares.then(|| UnderWay { level: Level::ALL[level], user: user.clone(), is_long: false });
            if queue.shares {
                self.shares.started(Level::ALL[level], &user, false);
            }
            if queue.requests.is_empty() {
                users.queues.remove(&user);
            } else {
                users.order.push_back(user);
            }
            return Some((first.turn, under_way));
        }
    }

    /// Counts a request as in progress after its turn, for any group of lanes and even beyond the
    /// user's share.
    pub(super) fn began(&mut self, flow: &Flow) -> UnderWay {
        self.shares.started(flow.level, &flow.user, flow.is_long);
        UnderWay { level: flow.level, user: flow.user.clone(), is_long: flow.is_long }
    }

    /// Ends a request that was in progress. Returns whether its user was held and has a turn again.
    pub(super) fn ended(&mut self, under_way: &UnderWay) -> bool {
        let UnderWay { level, user, is_long } = under_way;
        self.shares.ended(*level, user, *is_long);
        let users = &mut self.levels[*level as usize];
        let Some(queue) = users.queues.get_mut(user).filter(|queue| queue.is_held) else { return false };
        queue.is_held = false;
        users.order.push_back(user.clone());
        true
    }

    /// Removes a waiting request that was cancelled.
    pub(super) fn remove(&mut self, place: &Place) {
        let users = &mut self.levels[place.level as usize];
        let Some(queue) = users.queues.get_mut(&place.user) else { return };
        let Ok(at) = queue.requests.binary_search_by_key(&place.number, |waiting| waiting.number) else { return };
        queue.bytes -= queue.requests.remove(at).map_or(0, |gone| gone.bytes);
        if queue.requests.is_empty() {
            users.queues.remove(&place.user);
            users.order.retain(|user| *user != place.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(level: Level, user: &str) -> Flow {
        Flow { level, user: user.into(), is_long: false, shares: true }
    }

    fn low(user: &str) -> Flow {
        flow(Level::WorkloadLow, user)
    }

    /// All waiting requests, in the order of their turns.
    fn drain(turns: &mut Turns<&'static str>) -> String {
        std::iter::from_fn(|| turns.pop()).map(|(turn, _)| turn).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn users_take_turns_and_each_users_requests_keep_their_order() {
        let mut turns = Turns::new();
        for (user, name) in
            [("ann", "a1"), ("ann", "a2"), ("ann", "a3"), ("ann", "a4"), ("bob", "b1"), ("bob", "b2"), ("cid", "c1")]
        {
            assert!(turns.push(&low(user), 0, name).is_some());
        }
        assert_eq!(drain(&mut turns), "a1 b1 c1 a2 b2 a3 a4");
        assert!(turns.pop().is_none());
    }

    #[test]
    fn a_late_user_waits_for_one_request_of_each_other_user() {
        let mut turns = Turns::new();
        for _ in 0..100 {
            turns.push(&low("flood"), 0, "flood");
            turns.push(&low("other"), 0, "other");
        }
        turns.pop();
        turns.push(&low("late"), 0, "late");
        let place = std::iter::from_fn(|| turns.pop()).position(|(turn, _)| turn == "late");
        assert_eq!(place, Some(2));
    }

    #[test]
    fn levels_take_turns_however_many_users_one_of_them_has() {
        let mut turns = Turns::new();
        for user in ["ann", "bob", "cid", "dan"] {
            turns.push(&low(user), 0, "low");
            turns.push(&low(user), 0, "low");
        }
        turns.push(&flow(Level::LeaderElection, "manager"), 0, "lease");
        turns.push(&flow(Level::WorkloadHigh, "manager"), 0, "high");
        turns.push(&flow(Level::WorkloadHigh, "manager"), 0, "high");
        assert_eq!(drain(&mut turns), "lease high low high low low low low low low low");
    }

    #[test]
    fn a_removed_request_gets_no_turn_and_leaves_no_state() {
        let mut turns = Turns::new();
        let first = turns.push(&low("ann"), 1, "a1").expect("accepted");
        turns.push(&low("bob"), 1, "b1");
        let second = turns.push(&low("ann"), 1, "a2").expect("accepted");
        turns.push(&low("ann"), 1, "a3");
        turns.remove(&second);
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("a1"));
        // It had its turn already: nothing to remove.
        turns.remove(&first);
        assert_eq!(drain(&mut turns), "b1 a3");
        let only = turns.push(&low("ann"), 1, "a4").expect("accepted");
        turns.remove(&only);
        assert!(turns.levels.iter().all(|users| users.order.is_empty() && users.queues.is_empty()));
    }

    #[test]
    fn a_user_with_its_full_share_under_way_waits_until_a_request_ends() {
        let mut turns = Turns::new();
        let now = Instant::now();
        for name in ["f1", "f2", "f3", "f4", "f5"] {
            turns.called(&low("flood"), 4, now);
            turns.push(&low("flood"), 0, name);
        }
        // A lone user is not limited.
        let mut under_way: Vec<_> = (0..3).filter_map(|_| turns.pop()?.1).collect();
        turns.called(&low("ann"), 4, now);
        turns.push(&low("ann"), 0, "a1");
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("a1"));
        assert!(turns.pop().is_none());
        // The share is two, and three requests are in progress: two have to end before the next one
        // starts. Other users' requests still get their turns.
        assert!(turns.ended(&under_way.remove(0)));
        assert!(turns.pop().is_none());
        turns.push(&flow(Level::WorkloadHigh, "manager"), 0, "high");
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("high"));
        assert!(turns.ended(&under_way.remove(0)));
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("f4"));
        assert!(turns.pop().is_none());
        // A request removed while its user is held leaves no state.
        assert!(turns.ended(&under_way.remove(0)));
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("f5"));
        assert!(turns.levels.iter().all(|users| users.order.is_empty() && users.queues.is_empty()));
    }

    #[test]
    fn too_many_requests_or_bytes_of_one_user_are_rejected_and_other_users_are_not_affected() {
        let mut turns = Turns::new();
        for _ in 0..WAITING_MAX {
            assert!(turns.push(&low("many"), 0, "").is_some());
        }
        assert!(turns.push(&low("many"), 0, "").is_none());
        assert!(turns.push(&low("big"), WAITING_BYTES_MAX, "big").is_some());
        assert!(turns.push(&low("big"), 1, "").is_none());
        assert!(turns.push(&low("small"), 1, "").is_some());
        // After a turn, the user's next request is accepted.
        while turns.pop().is_some_and(|(turn, _)| turn != "big") {}
        assert!(turns.push(&low("big"), 1, "").is_some());
        assert!(turns.push(&low("many"), 0, "").is_some());
    }
}
