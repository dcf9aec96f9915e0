//! Whose request is next: priority levels take turns, within a level its users do, and a user's own come in the order they
//! arrived. Pure; what waits is somebody else's business.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::flow::{Flow, Level};
use super::shares::Shares;

/// Requests of one user that may wait; further ones are asked to come back. Many times what a client with sensible
/// limits has under way.
pub(super) const WAITING_MAX: usize = 4096;
/// Bytes of the bodies of one user's waiting requests: a score of the largest bodies there may be.
pub(super) const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Requests that wait, by level and user.
pub(super) struct Turns<T> {
    shares: Shares,
    levels: [Users<T>; Level::COUNT],
    /// The level whose turn it is, if anybody waits there.
    next: usize,
    /// Of the request that arrives next.
    number: u64,
}

/// The users of a level, in the order of their turns.
struct Users<T> {
    order: VecDeque<Arc<str>>,
    rows: BTreeMap<Arc<str>, Row<T>>,
}

/// One user's requests, the one that arrived first at the front.
struct Row<T> {
    /// Its user has as many under way as may be: it has no turn before one of those ends.
    is_held: bool,
    /// Whether the user shares with others: of long requests no more are under way than there are lanes anyway.
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

/// Where a request waits, to take it out again.
pub(super) struct Place {
    level: Level,
    user: Arc<str>,
    number: u64,
}

impl<T> Turns<T> {
    pub(super) fn new() -> Turns<T> {
        let levels = std::array::from_fn(|_| Users { order: VecDeque::new(), rows: BTreeMap::new() });
        Turns { shares: Shares::default(), levels, next: 0, number: 0 }
    }

    /// A user that shares has called, be it for something else; `capacity` requests may be under way where several share.
    pub(super) fn called(&mut self, flow: &Flow, capacity: usize, now: Instant) {
        self.shares.called(flow.level, &flow.user, capacity, now);
    }

    /// Puts a request of `bytes` behind its user's others; `None` when too many wait already.
    pub(super) fn push(&mut self, flow: &Flow, bytes: usize, turn: T) -> Option<Place> {
        let users = &mut self.levels[flow.level as usize];
        if !users.rows.contains_key(&*flow.user) {
            users.order.push_back(flow.user.clone());
        }
        let row = users.rows.entry(flow.user.clone()).or_insert_with(|| Row {
            is_held: false,
            shares: flow.shares && !flow.is_long,
            requests: VecDeque::new(),
            bytes: 0,
        });
        // One is always let in: who has nothing waiting has not sent too much.
        let is_full = row.requests.len() >= WAITING_MAX || row.bytes + bytes > WAITING_BYTES_MAX;
        if is_full && !row.requests.is_empty() {
            return None;
        }
        let number = self.number;
        self.number += 1;
        row.bytes += bytes;
        row.requests.push_back(Waiting { number, bytes, turn });
        Some(Place { level: flow.level, user: flow.user.clone(), number })
    }

    /// The level whose turn it is among those where somebody waits.
    fn level(&self) -> Option<usize> {
        (0..Level::COUNT).map(|step| (self.next + step) % Level::COUNT).find(|at| !self.levels[*at].order.is_empty())
    }

    /// Takes out the request whose turn it is; its level and its user go to the end of their rows. A user that shares has it
    /// under way until it [ends](Turns::ended).
    pub(super) fn pop(&mut self) -> Option<(T, Option<UnderWay>)> {
        loop {
            let level = self.level()?;
            let users = &mut self.levels[level];
            let user = users.order.pop_front()?;
            let row = users.rows.get_mut(&user)?;
            if row.shares && !self.shares.may_start(Level::ALL[level], &user) {
                row.is_held = true;
                continue;
            }
            self.next = (level + 1) % Level::COUNT;
            let first = row.requests.pop_front()?;
            row.bytes -= first.bytes;
            let under_way =
                row.shares.then(|| UnderWay { level: Level::ALL[level], user: user.clone(), is_long: false });
            if row.shares {
                self.shares.started(Level::ALL[level], &user, false);
            }
            if row.requests.is_empty() {
                users.rows.remove(&user);
            } else {
                users.order.push_back(user);
            }
            return Some((first.turn, under_way));
        }
    }

    /// A request that had its turn, whatever its lane, counts from now on, though there may be no room for it.
    pub(super) fn began(&mut self, flow: &Flow) -> UnderWay {
        self.shares.started(flow.level, &flow.user, flow.is_long);
        UnderWay { level: flow.level, user: flow.user.clone(), is_long: flow.is_long }
    }

    /// A request is no longer under way. Whether its user, who was held, has a turn again.
    pub(super) fn ended(&mut self, under_way: &UnderWay) -> bool {
        let UnderWay { level, user, is_long } = under_way;
        self.shares.ended(*level, user, *is_long);
        let users = &mut self.levels[*level as usize];
        let Some(row) = users.rows.get_mut(user).filter(|row| row.is_held) else { return false };
        row.is_held = false;
        users.order.push_back(user.clone());
        true
    }

    /// Takes out a request that does not want its turn any more.
    pub(super) fn remove(&mut self, place: &Place) {
        let users = &mut self.levels[place.level as usize];
        let Some(row) = users.rows.get_mut(&place.user) else { return };
        let Ok(at) = row.requests.binary_search_by_key(&place.number, |waiting| waiting.number) else { return };
        row.bytes -= row.requests.remove(at).map_or(0, |gone| gone.bytes);
        if row.requests.is_empty() {
            users.rows.remove(&place.user);
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

    /// All that wait, in the order of their turns.
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
    fn who_comes_late_waits_for_one_request_of_each_user_not_for_all() {
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
    fn who_leaves_the_row_is_not_called_and_leaves_nothing_behind() {
        let mut turns = Turns::new();
        let first = turns.push(&low("ann"), 1, "a1").expect("room");
        turns.push(&low("bob"), 1, "b1");
        let second = turns.push(&low("ann"), 1, "a2").expect("room");
        turns.push(&low("ann"), 1, "a3");
        turns.remove(&second);
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("a1"));
        // Called already: nothing to take out.
        turns.remove(&first);
        assert_eq!(drain(&mut turns), "b1 a3");
        let only = turns.push(&low("ann"), 1, "a4").expect("room");
        turns.remove(&only);
        assert!(turns.levels.iter().all(|users| users.order.is_empty() && users.rows.is_empty()));
    }

    #[test]
    fn who_has_its_share_under_way_waits_until_one_of_them_ends() {
        let mut turns = Turns::new();
        let now = Instant::now();
        for name in ["f1", "f2", "f3", "f4", "f5"] {
            turns.called(&low("flood"), 4, now);
            turns.push(&low("flood"), 0, name);
        }
        // Alone it may have all it wants.
        let mut under_way: Vec<_> = (0..3).filter_map(|_| turns.pop()?.1).collect();
        turns.called(&low("ann"), 4, now);
        turns.push(&low("ann"), 0, "a1");
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("a1"));
        assert!(turns.pop().is_none());
        // Two of three have to end before there is room for one, and nobody waits for the user meanwhile.
        assert!(turns.ended(&under_way.remove(0)));
        assert!(turns.pop().is_none());
        turns.push(&flow(Level::WorkloadHigh, "manager"), 0, "high");
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("high"));
        assert!(turns.ended(&under_way.remove(0)));
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("f4"));
        assert!(turns.pop().is_none());
        // One that leaves while its user is held leaves nothing behind.
        assert!(turns.ended(&under_way.remove(0)));
        assert_eq!(turns.pop().map(|(turn, _)| turn), Some("f5"));
        assert!(turns.levels.iter().all(|users| users.order.is_empty() && users.rows.is_empty()));
    }

    #[test]
    fn too_many_requests_or_bytes_of_one_user_are_turned_away_and_nobody_elses() {
        let mut turns = Turns::new();
        for _ in 0..WAITING_MAX {
            assert!(turns.push(&low("many"), 0, "").is_some());
        }
        assert!(turns.push(&low("many"), 0, "").is_none());
        assert!(turns.push(&low("big"), WAITING_BYTES_MAX, "big").is_some());
        assert!(turns.push(&low("big"), 1, "").is_none());
        assert!(turns.push(&low("small"), 1, "").is_some());
        // A turn makes room.
        while turns.pop().is_some_and(|(turn, _)| turn != "big") {}
        assert!(turns.push(&low("big"), 1, "").is_some());
        assert!(turns.push(&low("many"), 0, "").is_some());
    }
}
