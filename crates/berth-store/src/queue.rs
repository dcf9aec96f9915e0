//! The queue of writes that wait for the disk: one FIFO per user, and users take turns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::CommitError;

/// Maximum number of waiting writes. Beyond it commits are rejected, so that they do not fill the
/// memory.
const WAITING_MAX: usize = 65_536;
/// Maximum number of waiting writes of one user, so that one user cannot cause the writes of others
/// to be rejected.
const PER_USER_MAX: usize = 16_384;
/// Maximum memory of the waiting writes, in bytes.
const BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Maximum memory of the waiting writes of one user, in bytes.
const BYTES_PER_USER_MAX: usize = 128 * 1024 * 1024;

/// A queue from the callers of `commit` to the writer thread.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    /// Users with waiting writes, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    users: BTreeMap<Arc<str>, UserQueue<T>>,
    length: usize,
    bytes: usize,
    /// Revision up to which history is to be compacted.
    compact: Option<u64>,
    is_closed: bool,
}

/// The writes of one user, each with its size in bytes.
struct UserQueue<T> {
    writes: VecDeque<(usize, T)>,
    bytes: usize,
}

/// The next task of the writer thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// Commit a write.
    Write(T),
    /// Compact history up to a revision.
    Compact(u64),
    /// The queue is empty and closed.
    Closed,
    /// Nothing arrived before the timeout.
    TimedOut,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Queue<T> {
        let users = BTreeMap::new();
        let state = State { turns: VecDeque::new(), users, length: 0, bytes: 0, compact: None, is_closed: false };
        Queue { state: Mutex::new(state), arrived: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Queues a write of `bytes` behind the user's other writes. It is rejected if too many or too
    /// large writes wait. The process's own writers use an empty user name, and only the limits of
    /// the whole queue apply to their bytes.
    pub(crate) fn push(&self, user: &str, bytes: usize, write: T) -> Result<(), CommitError> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.is_closed {
            return Err(CommitError::Unavailable { reason: "the store's writer has stopped".to_owned() });
        }
        // An empty queue accepts a write of any size, as the write could never be queued otherwise.
        if state.length >= WAITING_MAX || state.length > 0 && state.bytes + bytes > BYTES_MAX {
            return Err(CommitError::Busy { reason: "too many writes are waiting for the disk" });
        }
        match state.users.get_mut(user) {
            Some(user_queue) => {
                if user_queue.writes.len() >= PER_USER_MAX
                    || user_queue.bytes + bytes > BYTES_PER_USER_MAX && !user.is_empty()
                {
                    return Err(CommitError::Busy { reason: "too many writes of this user are waiting for the disk" });
                }
                user_queue.bytes += bytes;
                user_queue.writes.push_back((bytes, write));
            }
            None => {
                let user: Arc<str> = user.into();
                state.turns.push_back(user.clone());
                state.users.insert(user, UserQueue { writes: VecDeque::from([(bytes, write)]), bytes });
            }
        }
        state.length += 1;
        state.bytes += bytes;
        let is_first = state.length == 1;
        drop(guard);
        if is_first {
            // Otherwise the thread is awake, and takes this write after the others.
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Requests the compaction of history.
    pub(crate) fn compact(&self, revision: u64) {
        let mut state = self.state();
        state.compact = state.compact.max(Some(revision));
        self.arrived.notify_one();
    }

    /// Rejects further writes. The writer thread still gets the queued ones.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.arrived.notify_one();
    }

    /// Rejects further writes and drops the queued ones, when the writer thread has ended.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.turns.clear();
        (state.length, state.bytes) = (0, 0);
        // Drop the writes after the lock: a notified caller may call the queue again.
        let users = std::mem::take(&mut state.users);
        drop(state);
        drop(users);
    }

    /// Returns the next task. Waits for it, at most for `wait`.
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
                return Next::TimedOut;
            }
        }
    }

    /// Returns the next write, if one is queued.
    pub(crate) fn try_next(&self) -> Option<T> {
        self.state().pop()
    }
}

impl<T> State<T> {
    /// Returns the first write of the user whose turn it is, and moves that user to the end.
    fn pop(&mut self) -> Option<T> {
        let user = self.turns.pop_front()?;
        let user_queue = self.users.get_mut(&user)?;
        let (bytes, write) = user_queue.writes.pop_front()?;
        user_queue.bytes -= bytes;
        if user_queue.writes.is_empty() {
            self.users.remove(&user);
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
            queue.push("flood", 1, write).expect("has space");
        }
        queue.push("ann", 1, 5001).expect("has space");
        queue.push("ann", 1, 5002).expect("has space");
        queue.push("bob", 1, 6001).expect("has space");
        let all: Vec<i32> = std::iter::from_fn(|| queue.try_next()).collect();
        assert_eq!(all[..6], [1, 5001, 6001, 2, 5002, 3]);
        assert_eq!(all[6..], (4..=1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_writes_of_one_user_do_not_fill_the_queue_for_others() {
        let queue = Queue::new();
        let filled = (0..WAITING_MAX).take_while(|write| queue.push("flood", 1, *write).is_ok()).count();
        assert_eq!(filled, PER_USER_MAX);
        queue.push("ann", 1, 0).expect("other users have space");
    }

    #[test]
    fn large_writes_of_one_user_are_rejected_at_its_byte_limit() {
        const LARGE: usize = 3 * 1024 * 1024;
        let queue = Queue::new();
        let fill = |user: &str| (0..).take_while(|write| queue.push(user, LARGE, *write).is_ok()).count();
        assert_eq!(fill("flood"), BYTES_PER_USER_MAX / LARGE);
        assert!(matches!(queue.push("flood", LARGE, 0), Err(CommitError::Busy { .. })));
        queue.push("ann", LARGE, 0).expect("other users have space");
        // A committed write frees its bytes. A small write still fits.
        queue.try_next();
        queue.push("flood", LARGE, 0).expect("has space");
        while queue.try_next().is_some() {}
        queue.push("flood", 2 * BYTES_MAX, 0).expect("an empty queue accepts any size");
        assert!(queue.push("ann", 1, 0).is_err());
        queue.try_next();
        assert_eq!(fill(""), BYTES_MAX / LARGE);
    }

    #[test]
    fn a_closed_queue_returns_its_writes_before_it_ends() {
        let queue = Queue::new();
        queue.push("ann", 1, 1).expect("has space");
        queue.compact(7);
        queue.compact(5);
        queue.close();
        assert!(queue.push("ann", 1, 2).is_err());
        let next = || queue.next(None);
        assert_eq!([next(), next(), next()], [Next::Compact(7), Next::Write(1), Next::Closed]);
    }
}
