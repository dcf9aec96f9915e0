//! Writes that wait for the disk, in a row per user; the users take turns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::CommitError;

/// Writes waiting for the disk at most; beyond, commits are refused rather than memory filled.
const WAITING_MAX: usize = 65_536;
/// Of one user at most, so that others are not refused because of it.
const OF_ONE_MAX: usize = 16_384;
/// Bytes that the waiting writes take in memory at most.
const BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Those of one user.
const BYTES_OF_ONE_MAX: usize = 128 * 1024 * 1024;

/// A queue between those who write and the one who commits.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    /// Users with something in their row.
    turns: VecDeque<Arc<str>>,
    rows: BTreeMap<Arc<str>, Row<T>>,
    length: usize,
    bytes: usize,
    /// History is to be forgotten up to here.
    compact: Option<u64>,
    is_closed: bool,
}

/// One user's writes, each with the bytes it takes.
struct Row<T> {
    writes: VecDeque<(usize, T)>,
    bytes: usize,
}

/// What the one who commits has to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// A write.
    Write(T),
    /// Forgetting history up to a revision.
    Compact(u64),
    /// Everything is done, and no more will come.
    Closed,
    /// Nothing came as long as was waited.
    Nothing,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Queue<T> {
        let rows = BTreeMap::new();
        let state = State { turns: VecDeque::new(), rows, length: 0, bytes: 0, compact: None, is_closed: false };
        Queue { state: Mutex::new(state), arrived: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Puts a write that takes `bytes` behind the user's others; refused when there are too many, or too large ones. The
    /// process's own writers, who are nobody in particular (an empty name), may have as many bytes as there is room for.
    pub(crate) fn push(&self, user: &str, bytes: usize, write: T) -> Result<(), CommitError> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.is_closed {
            return Err(CommitError::Unavailable { reason: "the store's writer has stopped".to_owned() });
        }
        // One is let in whatever its size, as it would never be else.
        if state.length >= WAITING_MAX || state.length > 0 && state.bytes + bytes > BYTES_MAX {
            return Err(CommitError::Busy { reason: "too many writes are waiting for the disk" });
        }
        match state.rows.get_mut(user) {
            Some(row) => {
                if row.writes.len() >= OF_ONE_MAX || row.bytes + bytes > BYTES_OF_ONE_MAX && !user.is_empty() {
                    return Err(CommitError::Busy { reason: "too many writes of this user are waiting for the disk" });
                }
                row.bytes += bytes;
                row.writes.push_back((bytes, write));
            }
            None => {
                let user: Arc<str> = user.into();
                state.turns.push_back(user.clone());
                state.rows.insert(user, Row { writes: VecDeque::from([(bytes, write)]), bytes });
            }
        }
        state.length += 1;
        state.bytes += bytes;
        let is_first = state.length == 1;
        drop(guard);
        if is_first {
            // Else it is awake, and comes back for the others.
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Asks for history to be forgotten.
    pub(crate) fn compact(&self, revision: u64) {
        let mut state = self.state();
        state.compact = state.compact.max(Some(revision));
        self.arrived.notify_one();
    }

    /// Takes no more writes; those in it are still handed out.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.arrived.notify_one();
    }

    /// Drops what is in it and takes no more: nobody is left to commit it.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.turns.clear();
        (state.length, state.bytes) = (0, 0);
        // Whoever waits for one of these is told, and may ask for something here.
        let rows = std::mem::take(&mut state.rows);
        drop(state);
        drop(rows);
    }

    /// What is to be done next; waits for it, for so long at most.
    pub(crate) fn next(&self, wait: Option<Duration>) -> Next<T> {
        let mut state = self.state();
        loop {
            if let Some(revision) = state.compact.take() {
                return Next::Compact(revision);
            }
            if let Some(write) = state.pop() {
                return Next::Write(write);
            }
            if state.is_closed {
                return Next::Closed;
            }
            let Some(wait) = wait else {
                self.arrived.wait(&mut state);
                continue;
            };
            let timeout = self.arrived.wait_for(&mut state, wait);
            if timeout.timed_out() && state.length == 0 && state.compact.is_none() && !state.is_closed {
                return Next::Nothing;
            }
        }
    }

    /// The next write, if there already is one.
    pub(crate) fn try_next(&self) -> Option<T> {
        self.state().pop()
    }
}

impl<T> State<T> {
    /// The first write of the user whose turn it is; the user goes to the end.
    fn pop(&mut self) -> Option<T> {
        let user = self.turns.pop_front()?;
        let row = self.rows.get_mut(&user)?;
        let (bytes, write) = row.writes.pop_front()?;
        row.bytes -= bytes;
        if row.writes.is_empty() {
            self.rows.remove(&user);
        } else {
            self.turns.push_back(user);
        }
        self.length -= 1;
        self.bytes -= bytes;
        Some(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_and_each_users_writes_keep_their_order() {
        let queue = Queue::new();
        for write in 1..=1000 {
            queue.push("flood", 1, write).expect("room");
        }
        queue.push("ann", 1, 5001).expect("room");
        queue.push("ann", 1, 5002).expect("room");
        queue.push("bob", 1, 6001).expect("room");
        let all: Vec<i32> = std::iter::from_fn(|| queue.try_next()).collect();
        assert_eq!(all[..6], [1, 5001, 6001, 2, 5002, 3]);
        assert_eq!(all[6..], (4..=1000).collect::<Vec<_>>());
    }

    #[test]
    fn one_users_writes_do_not_fill_the_queue_for_others() {
        let queue = Queue::new();
        let filled = (0..WAITING_MAX).take_while(|write| queue.push("flood", 1, *write).is_ok()).count();
        assert_eq!(filled, OF_ONE_MAX);
        queue.push("ann", 1, 0).expect("there is room for others");
    }

    #[test]
    fn large_writes_of_one_user_are_refused_before_memory_is_full() {
        const LARGE: usize = 3 * 1024 * 1024;
        let queue = Queue::new();
        let fill = |user: &str| (0..).take_while(|write| queue.push(user, LARGE, *write).is_ok()).count();
        assert_eq!(fill("flood"), BYTES_OF_ONE_MAX / LARGE);
        assert!(matches!(queue.push("flood", LARGE, 0), Err(CommitError::Busy { .. })));
        queue.push("ann", LARGE, 0).expect("there is room for others");
        // What has gone to the disk makes room; what is small has its place beside it.
        queue.try_next();
        queue.push("flood", LARGE, 0).expect("room");
        while queue.try_next().is_some() {}
        queue.push("flood", 2 * BYTES_MAX, 0).expect("one is let in");
        assert!(queue.push("ann", 1, 0).is_err());
        queue.try_next();
        assert_eq!(fill(""), BYTES_MAX / LARGE);
    }

    #[test]
    fn what_is_in_it_is_handed_out_before_it_ends() {
        let queue = Queue::new();
        queue.push("ann", 1, 1).expect("room");
        queue.compact(7);
        queue.compact(5);
        queue.close();
        assert!(queue.push("ann", 1, 2).is_err());
        let next = || queue.next(None);
        assert_eq!([next(), next(), next()], [Next::Compact(7), Next::Write(1), Next::Closed]);
    }
}
