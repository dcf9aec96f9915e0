//! A fair share of the server per client: requests wait in a queue per user, and the users take turns.
//!
//! What a request costs is computing (decoding, admission, validation); it waits for the disk beside others without
//! holding anybody up. So turns are for computing: a few *lanes* each let one request at a time run until it first has to
//! wait for something, and then the next user's. A tenant that sends a thousand requests at once waits for itself; somebody
//! else's request is behind one of them per lane, not behind all.
//!
//! Order among equals is that of arrival. Where nobody waits a request pays a wake-up, some microseconds.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use berth_apimachinery::status::Status;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

/// Requests of one user that may wait; further ones are asked to come back. Many times what a client with sensible
/// limits has under way.
const WAITING_MAX: usize = 4096;
/// Bytes of the bodies of one user's waiting requests: a score of the largest bodies there may be.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Seconds after which who was turned away should come back.
const RETRY_AFTER: u32 = 1;

/// The queues and their lanes. Dropping the last clone of it ends the lanes.
pub(crate) struct Fairness {
    queue: Arc<Queue>,
    _lanes: JoinSet<()>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

/// Users with requests that wait, in the order of their turns.
#[derive(Default)]
struct Waiting {
    turns: VecDeque<String>,
    requests: BTreeMap<String, Row>,
}

/// One user's requests.
#[derive(Default)]
struct Row {
    requests: VecDeque<Request>,
    bytes: usize,
}

struct Request {
    bytes: usize,
    turn: oneshot::Sender<Turn>,
}

/// The right to compute. The lane goes on when it is dropped.
struct Turn(#[allow(dead_code, reason = "dropping it is what tells the lane")] oneshot::Sender<()>);

impl Waiting {
    /// Puts a request behind its user's others; false when too many wait already.
    fn push(&mut self, user: &str, request: Request) -> bool {
        if !self.requests.contains_key(user) {
            self.turns.push_back(user.to_owned());
        }
        let row = self.requests.entry(user.to_owned()).or_default();
        if row.requests.len() >= WAITING_MAX || row.bytes + request.bytes > WAITING_BYTES_MAX {
            return false;
        }
        row.bytes += request.bytes;
        row.requests.push_back(request);
        true
    }

    /// The first request of the user whose turn it is; the user goes to the end of the row.
    fn pop(&mut self) -> Option<Request> {
        let user = self.turns.pop_front()?;
        let row = self.requests.get_mut(&user)?;
        let next = row.requests.pop_front();
        row.bytes -= next.as_ref().map_or(0, |request| request.bytes);
        if row.requests.is_empty() {
            self.requests.remove(&user);
        } else {
            self.turns.push_back(user);
        }
        next
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands out turns, one at a time, for ever.
    async fn lane(&self) {
        loop {
            let Some(request) = self.waiting().pop() else {
                self.arrived.notified().await;
                // Whoever has arrived at the same moment is let into the queue first: else the order of turns would be that
                // of arrival whoever arrives.
                tokio::task::yield_now().await;
                continue;
            };
            let (turn, over) = oneshot::channel();
            if request.turn.send(Turn(turn)).is_ok() {
                // An error says that the turn was dropped: that is what is waited for.
                let _ = over.await;
            }
            tokio::task::yield_now().await;
        }
    }
}

impl Fairness {
    /// A queue with as many lanes as the runtime has threads; call it inside one.
    pub(crate) fn start() -> Fairness {
        Fairness::with_lanes(tokio::runtime::Handle::current().metrics().num_workers().max(1))
    }

    fn with_lanes(count: usize) -> Fairness {
        let queue = Arc::new(Queue::default());
        let mut lanes = JoinSet::new();
        for _ in 0..count {
            let queue = queue.clone();
            lanes.spawn(async move { queue.lane().await });
        }
        Fairness { queue, _lanes: lanes }
    }

    /// Runs a request when it is its user's turn; `bytes` is the size of its body. Too many of one user are refused with
    /// 429. The request is something small (a box): it waits here as it comes.
    pub(crate) async fn run<F: Future + Unpin>(
        &self,
        user: &str,
        bytes: usize,
        request: F,
    ) -> Result<F::Output, Status> {
        let (sender, turn) = oneshot::channel();
        if !self.queue.waiting().push(user, Request { bytes, turn: sender }) {
            return Err(Status::too_many_requests("too many requests of this user are waiting", RETRY_AFTER));
        }
        self.queue.arrived.notify_one();
        // The lanes end with the listener; what is under way then still gets its answer.
        let turn = turn.await.ok();
        Ok(UntilWaiting { request, turn }.await)
    }
}

/// A request that gives up its turn when it has to wait.
struct UntilWaiting<F> {
    request: F,
    turn: Option<Turn>,
}

impl<F: Future + Unpin> Future for UntilWaiting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = Pin::new(&mut self.request).poll(context);
        self.turn = None;
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who was served, in order, when `arrivals` come at once and every request computes for one poll.
    async fn served(arrivals: &[&'static str], lanes: usize) -> Vec<&'static str> {
        let fairness = Arc::new(Fairness::with_lanes(lanes));
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for user in arrivals {
            let (fairness, order, user) = (fairness.clone(), order.clone(), *user);
            tasks.spawn(async move {
                let request = Box::pin(async { order.lock().expect("not poisoned").push(user) });
                fairness.run(user, 0, request).await.expect("there is room");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        Arc::try_unwrap(order).expect("all are done").into_inner().expect("not poisoned")
    }

    #[tokio::test]
    async fn a_flood_of_one_user_does_not_stand_before_another() {
        let mut arrivals = vec!["flood"; 500];
        arrivals.push("ann");
        arrivals.push("ann");
        let order = served(&arrivals, 2).await;
        assert_eq!(order.len(), 502);
        let places: Vec<usize> = (0..order.len()).filter(|place| order[*place] == "ann").collect();
        assert!(places[1] <= 6, "served at {places:?} although nobody else but the flood was waiting");
    }

    #[tokio::test]
    async fn a_request_that_waits_holds_nobody_up() {
        let fairness = Arc::new(Fairness::with_lanes(1));
        let (release, released) = oneshot::channel::<()>();
        let waiting = {
            let fairness = fairness.clone();
            tokio::spawn(async move { fairness.run("a", 0, Box::pin(async { released.await.is_ok() })).await })
        };
        tokio::task::yield_now().await;
        assert_eq!(fairness.run("b", 0, Box::pin(async { 7 })).await.ok(), Some(7));
        release.send(()).expect("it waits");
        assert!(waiting.await.expect("no panic").expect("there is room"));
    }

    #[tokio::test]
    async fn who_hung_up_takes_no_turn_and_too_many_are_turned_away() {
        let fairness = Fairness { queue: Arc::default(), _lanes: JoinSet::new() };
        let refused = |status: Result<(), Status>| status.err().map(|status| status.code);
        for _ in 0..WAITING_MAX {
            let mut request = Box::pin(fairness.run("a", 0, Box::pin(async {})));
            assert!(futures::poll!(request.as_mut()).is_pending());
        }
        assert_eq!(refused(fairness.run("a", 0, Box::pin(async {})).await), Some(429));
        assert_eq!(refused(fairness.run("big", WAITING_BYTES_MAX + 1, Box::pin(async {})).await), Some(429));
        let lane = fairness.queue.clone();
        let lane = tokio::spawn(async move { lane.lane().await });
        assert_eq!(fairness.run("b", 0, Box::pin(async { 1 })).await.ok(), Some(1));
        assert_eq!(refused(fairness.run("a", 0, Box::pin(async {})).await), None);
        lane.abort();
    }
}
