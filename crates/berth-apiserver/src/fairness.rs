//! A fair share of the server per client: requests wait in a row per user, and the users take turns.
//!
//! What a request costs is computing (decoding, admission, validation); it waits for the disk beside others without holding
//! anybody up. So turns are for computing: a few *lanes* each let one request at a time run until it first has to wait for
//! something, and then the next user's. A tenant that sends a thousand requests at once waits for itself; somebody else's
//! request is behind one of them per lane, not behind all. Among writes that wait for the disk the store does the same
//! ([`berth_store::Store::commit_for`]).
//!
//! Nothing is held back while there is a lane: a lone user has all of them. Where nobody waits a request pays a wake-up, some
//! microseconds.
//!
//! Requests that may go through all objects there are have lanes of their own, and leave the runtime's other tasks to
//! another thread while they compute: nobody's small request waits for them.

mod figures;
mod flow;
mod turns;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use berth_apimachinery::status::Status;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) use figures::Figures;
pub(crate) use flow::{Flow, of as flow_of};
use turns::{Place, Turns};

/// Seconds after which who was turned away should come back.
pub(crate) const RETRY_AFTER: u32 = 1;

/// The rows and their lanes. Dropping it ends the lanes.
pub(crate) struct Fairness {
    short: Arc<Hall>,
    long: Arc<Hall>,
    figures: Arc<Figures>,
    /// Whether a thread that computes for long can be replaced by another.
    has_threads: bool,
    _lanes: JoinSet<()>,
}

/// Those who wait for the same lanes.
struct Hall {
    turns: Mutex<Turns<oneshot::Sender<Turn>>>,
    arrived: Notify,
}

/// The right to compute. The lane goes on when it is dropped, however that comes about.
struct Turn(#[allow(dead_code, reason = "dropping it is what tells the lane")] oneshot::Sender<()>);

impl Hall {
    fn new() -> Arc<Hall> {
        Arc::new(Hall { turns: Mutex::new(Turns::new()), arrived: Notify::new() })
    }

    fn turns(&self) -> MutexGuard<'_, Turns<oneshot::Sender<Turn>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands out turns, one at a time, for ever.
    async fn lane(self: Arc<Self>) {
        loop {
            // Who is next is asked after everything else that is ready has gone on: answers of the store, which are almost
            // done, and arrivals, as else the order of turns would be that of arrival whoever arrives.
            let Some(next) = self.turns().pop() else {
                self.arrived.notified().await;
                tokio::task::yield_now().await;
                continue;
            };
            let (turn, over) = oneshot::channel();
            if next.send(Turn(turn)).is_ok() {
                // An error says that the turn was dropped: that is what is waited for.
                let _ = over.await;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// A request in its row. It leaves the row when it is dropped, if it still is in it.
struct InRow<'a> {
    hall: &'a Hall,
    place: Place,
    figures: &'a Figures,
    flow: &'a Flow,
}

impl Drop for InRow<'_> {
    fn drop(&mut self) {
        self.hall.turns().remove(&self.place);
        self.figures.waits_no_more(self.flow.level);
    }
}

/// A request that has had its turn, for the figures.
struct Executing<'a> {
    figures: &'a Figures,
    flow: &'a Flow,
    since: Instant,
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        self.figures.done(self.flow.level, self.since.elapsed());
    }
}

impl Fairness {
    /// Rows with as many lanes as the runtime has threads, and half as many for long requests; call it inside one.
    pub(crate) fn start(figures: Arc<Figures>) -> Fairness {
        let runtime = Handle::current();
        let workers = runtime.metrics().num_workers().max(1);
        let has_threads = runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
        Fairness { has_threads, ..Fairness::with_lanes(workers, workers.div_ceil(2), figures) }
    }

    fn with_lanes(short: usize, long: usize, figures: Arc<Figures>) -> Fairness {
        let mut lanes = JoinSet::new();
        let mut open = |count: usize| {
            let hall = Hall::new();
            (0..count).for_each(|_| drop(lanes.spawn(hall.clone().lane())));
            hall
        };
        let (short, long) = (open(short), open(long));
        Fairness { short, long, figures, has_threads: false, _lanes: lanes }
    }

    /// Executes a request when it is its user's turn; `bytes` is the size of its body. Too many of one user are refused with
    /// 429. The request is something small (a box): it waits here as it comes.
    pub(crate) async fn run<F: Future + Unpin>(
        &self,
        flow: &Flow,
        bytes: usize,
        request: F,
    ) -> Result<F::Output, Status> {
        let arrival = Instant::now();
        let turn = self.turn(flow, bytes).await?;
        self.figures.dispatched(flow.level, arrival.elapsed());
        let _executing = Executing { figures: &self.figures, flow, since: Instant::now() };
        let leaves_thread = flow.is_long && self.has_threads;
        Ok(UntilWaiting { request, user: &flow.user, turn, is_first: true, leaves_thread }.await)
    }

    async fn turn(&self, flow: &Flow, bytes: usize) -> Result<Option<Turn>, Status> {
        let hall = if flow.is_long { &self.long } else { &self.short };
        let (sender, turn) = oneshot::channel();
        let Some(place) = hall.turns().push(flow, bytes, sender) else {
            self.figures.rejected(flow.level);
            return Err(Status::too_many_requests("too many requests of this user are waiting", RETRY_AFTER));
        };
        self.figures.waits(flow.level);
        let _row = InRow { hall, place, figures: &self.figures, flow };
        hall.arrived.notify_one();
        // The lanes end with the listener; what is under way then still gets its answer.
        Ok(turn.await.ok())
    }
}

tokio::task_local! {
    /// Whose request is being executed.
    static USER: Arc<str>;
}

/// In whose row the writes of the request wait that is being executed; those that came over no listener have one of their own.
pub(crate) fn current_user() -> Arc<str> {
    USER.try_with(Arc::clone).unwrap_or_default()
}

/// Lets a request's writes wait in the row of `user`.
pub(crate) fn on_behalf_of<F: Future>(user: Arc<str>, request: F) -> impl Future<Output = F::Output> {
    USER.scope(user, request)
}

/// A request that gives up its turn when it has to wait.
struct UntilWaiting<'a, F> {
    request: F,
    user: &'a Arc<str>,
    turn: Option<Turn>,
    is_first: bool,
    leaves_thread: bool,
}

impl<F: Future + Unpin> Future for UntilWaiting<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let UntilWaiting { request, user, turn, is_first, leaves_thread } = &mut *self;
        let poll = || USER.sync_scope(user.clone(), || Pin::new(request).poll(context));
        // After a wait there is little left to do.
        let polled = if *leaves_thread && *is_first { tokio::task::block_in_place(poll) } else { poll() };
        (*turn, *is_first) = (None, false);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::flow::Level;
    use super::*;
    use futures::future::{pending, ready};

    fn fairness(lanes: usize) -> Arc<Fairness> {
        Arc::new(Fairness::with_lanes(lanes, 1, Arc::new(Figures::default())))
    }

    fn flow(user: &str) -> Flow {
        Flow { level: Level::WorkloadLow, user: user.into(), is_long: false }
    }

    fn long(user: &str) -> Flow {
        Flow { is_long: true, ..flow(user) }
    }

    fn start<F>(fairness: &Arc<Fairness>, flow: Flow, request: F) -> tokio::task::JoinHandle<Result<F::Output, Status>>
    where
        F: Future<Output: Send> + Unpin + Send + 'static,
    {
        let fairness = fairness.clone();
        tokio::spawn(async move { fairness.run(&flow, 0, request).await })
    }

    /// Lets all tasks do what they can.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_user_does_not_stand_before_another() {
        let fairness = fairness(2);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for user in [vec!["flood"; 500], vec!["ann"; 2]].concat() {
            let (fairness, order) = (fairness.clone(), order.clone());
            tasks.spawn(async move {
                let request = Box::pin(async { order.lock().expect("not poisoned").push(user) });
                fairness.run(&flow(user), 0, request).await.expect("there is room");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        let order = order.lock().expect("not poisoned");
        assert_eq!(order.len(), 502);
        let places: Vec<usize> = (0..order.len()).filter(|place| order[*place] == "ann").collect();
        assert!(places[1] <= 6, "served at {places:?} although nobody else but the flood was waiting");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_leaves_the_lane_to_the_next_who_may_be_of_the_same_user() {
        let fairness = fairness(1);
        let running = Arc::new(AtomicUsize::new(0));
        let (release, released) = tokio::sync::watch::channel(false);
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let (running, mut released) = (running.clone(), released.clone());
            let request = Box::pin(async move {
                running.fetch_add(1, Ordering::Relaxed);
                released.wait_for(|it| *it).await.expect("the test releases them");
            });
            tasks.push(start(&fairness, flow("a"), request));
        }
        while running.load(Ordering::Relaxed) < 100 {
            tokio::task::yield_now().await;
        }
        release.send(true).expect("they wait");
        for task in tasks {
            task.await.expect("no panic").expect("there is room");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_hangs_up_or_panics_gives_everything_back() {
        let fairness = fairness(1);
        let own = flow("z");
        let turn = fairness.turn(&own, 0).await.expect("there is room");
        let gone = start(&fairness, flow("a"), pending::<()>());
        let panics = start(&fairness, flow("a"), Box::pin(async { panic!("a bug in a handler") }));
        let next = start(&fairness, flow("a"), ready(1));
        settle().await;
        gone.abort();
        settle().await;
        assert!(!next.is_finished(), "there is one lane, and it is taken");
        drop(turn);
        assert_eq!(next.await.expect("no panic").ok(), Some(1));
        assert!(panics.await.expect_err("it panicked").is_panic());
        assert!(gone.await.expect_err("it was stopped").is_cancelled());
        // Whoever has been called and goes before looking takes nothing along.
        let turn = fairness.turn(&own, 0).await.expect("there is room");
        let mut called = Box::pin(fairness.run(&own, 0, ready(())));
        assert!(futures::poll!(called.as_mut()).is_pending());
        drop(turn);
        settle().await;
        drop(called);
        assert_eq!(fairness.run(&own, 0, ready(2)).await.ok(), Some(2));
        let text = fairness.figures.text();
        assert!(text.contains("current_inqueue_requests{priority_level=\"workload-low\"} 0\n"), "{text}");
        assert!(text.contains("current_executing_requests{priority_level=\"workload-low\"} 0\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn long_requests_wait_for_each_other_and_short_ones_do_not_wait_for_them() {
        let fairness = fairness(1);
        let turn = fairness.turn(&long("a"), 0).await.expect("there is room");
        let second = start(&fairness, long("a"), ready(2));
        settle().await;
        assert!(!second.is_finished());
        assert_eq!(fairness.run(&flow("a"), 0, ready(1)).await.ok(), Some(1));
        drop(turn);
        assert_eq!(second.await.expect("no panic").ok(), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_of_one_user_are_asked_to_come_back() {
        let fairness = fairness(0);
        let mut waiting = Vec::new();
        for _ in 0..turns::WAITING_MAX {
            let fairness = fairness.clone();
            let mut request = Box::pin(async move { fairness.run(&flow("a"), 0, ready(())).await });
            assert!(futures::poll!(request.as_mut()).is_pending());
            waiting.push(request);
        }
        let refused = fairness.run(&flow("a"), 0, ready(())).await.expect_err("too many wait");
        assert_eq!(refused.code, 429);
        assert_eq!(refused.details.map(|details| details.retry_after_seconds), Some(RETRY_AFTER));
        // Those who go make room.
        waiting.pop();
        let own = flow("a");
        assert!(futures::poll!(Box::pin(fairness.run(&own, 0, ready(()))).as_mut()).is_pending());
    }
}
