//! A fair share of the server per client: requests wait in a row per user, and the users take turns.
//!
//! What a request costs is computing (decoding, admission, validation); it waits for the disk beside others without holding
//! anybody up. So turns are for computing: a few *lanes* each let one request at a time run until it first has to wait for
//! something, and then the next user's. A tenant that sends a thousand requests at once waits for itself; somebody else's
//! request is behind one of them per lane, not behind all. Among writes that wait for the disk the store does the same
//! ([`berth_store::Store::commit_for`]).
//!
//! While several users call, each may have only its share under way, which lasts until the disk has what the request wrote
//! ([`shares`]). Nothing is held back from a lone user while there is a lane. Where nobody waits a request pays a wake-up, some
//! microseconds.
//!
//! Requests that may go through all objects there are have lanes of their own, and leave the runtime's other tasks to
//! another thread while they compute: nobody's small request waits for them.

mod figures;
mod flow;
mod shares;
mod turns;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_apimachinery::status::Status;
use berth_store::Store;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::completion::{self, Completing};
pub(crate) use figures::Figures;
pub(crate) use flow::{Flow, of as flow_of};
use turns::{Place, Turns, UnderWay};

/// Requests under way for each processor while users share, where commits take next to no time. Measured on two processors, with
/// an optimised build: beside a flood a tenant's p99 is 2.2 to 2.5 times that alone with two, 3.6 to 4.7 times with four, which
/// let the flood have 3,300 calls a second instead of 2,100.
const CAPACITY_MIN: usize = 2;
/// About what a request costs a processor, where its sender is on the same machine. While users share, as many are under way
/// as keep the processors half busy: each waits for about two commits, the one under way and its own.
const REQUEST_TIME: Duration = Duration::from_micros(160);
/// Seconds after which who was turned away should come back.
pub(crate) const RETRY_AFTER: u32 = 1;
/// How long what has to be written after the fact waits where too much waits for the disk already: nobody else comes back.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// The rows and their lanes. Dropping it ends the lanes.
pub(crate) struct Fairness {
    short: Arc<Hall>,
    long: Arc<Hall>,
    figures: Arc<Figures>,
    processors: usize,
    /// Says how long commits take.
    store: Option<Arc<dyn Store>>,
    /// Whether a thread that computes for long can be replaced by another.
    has_threads: bool,
    _lanes: JoinSet<()>,
}

/// Those who wait for the same lanes.
struct Hall {
    turns: Mutex<Turns<oneshot::Sender<Turn>>>,
    arrived: Notify,
}

/// The right to compute.
struct Turn {
    lane: Lane,
    slot: Slot,
}

/// Goes on when this is dropped, however that comes about.
struct Lane(#[allow(dead_code, reason = "dropping it is what tells the lane")] oneshot::Sender<()>);

/// Part of its user's share, until it is dropped; nothing where nobody shares.
struct Slot(Option<(Arc<Hall>, UnderWay)>);

impl Slot {
    fn is_part(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((hall, under_way)) = self.0.take()
            && hall.turns().ended(&under_way)
        {
            hall.arrived.notify_one();
        }
    }
}

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
            let popped = self.turns().pop();
            let Some((next, under_way)) = popped else {
                self.arrived.notified().await;
                tokio::task::yield_now().await;
                continue;
            };
            let (lane, over) = oneshot::channel();
            let slot = Slot(under_way.map(|under_way| (self.clone(), under_way)));
            if next.send(Turn { lane: Lane(lane), slot }).is_ok() {
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
    pub(crate) fn start(figures: Arc<Figures>, store: Arc<dyn Store>) -> Fairness {
        let runtime = Handle::current();
        let workers = runtime.metrics().num_workers().max(1);
        let has_threads = runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
        Fairness { has_threads, store: Some(store), ..Fairness::with_lanes(workers, workers.div_ceil(2), figures) }
    }

    fn with_lanes(short: usize, long: usize, figures: Arc<Figures>) -> Fairness {
        let mut lanes = JoinSet::new();
        let mut open = |count: usize| {
            let hall = Hall::new();
            (0..count).for_each(|_| drop(lanes.spawn(hall.clone().lane())));
            hall
        };
        let processors = short;
        let (short, long) = (open(short), open(long));
        Fairness { short, long, figures, processors, store: None, has_threads: false, _lanes: lanes }
    }

    /// Requests that may be under way while users share.
    fn capacity(&self) -> usize {
        let commit = self.store.as_ref().map_or(Duration::ZERO, |store| store.commit_time());
        let meanwhile = usize::try_from(commit.as_nanos() / REQUEST_TIME.as_nanos()).unwrap_or(usize::MAX);
        self.processors.saturating_mul(meanwhile.max(CAPACITY_MIN))
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
        let turn = self.turn(flow, bytes, arrival).await?;
        self.figures.dispatched(flow.level, arrival.elapsed());
        let _executing = Executing { figures: &self.figures, flow, since: Instant::now() };
        let leaves_thread = flow.is_long && self.has_threads;
        let (lane, slot) =
            turn.map_or((None, None), |turn| (Some(turn.lane), turn.slot.is_part().then_some(turn.slot)));
        let shares = flow.shares.then_some(&self.short);
        Ok(UntilWaiting { request, flow, shares, lane, slot, is_first: true, has_written: false, leaves_thread }.await)
    }

    /// The same of a request that is completed once it has begun to write, though its client hangs up: it goes on counting for
    /// its user, and writing in that user's row.
    pub(crate) fn complete<F>(
        self: &Arc<Self>,
        flow: Flow,
        bytes: usize,
        request: F,
    ) -> Completing<Result<F::Output, Status>>
    where
        F: Future + Send + 'static,
    {
        let fairness = self.clone();
        Completing::new(async move { fairness.run(&flow, bytes, Box::pin(request)).await })
    }

    async fn turn(&self, flow: &Flow, bytes: usize, now: Instant) -> Result<Option<Turn>, Status> {
        if flow.shares {
            // Whatever it calls for: long requests leave room beside them, but they are its.
            self.short.turns().called(flow, self.capacity(), now);
        }
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

/// A request that gives up its lane when it has to wait, and its part of the user's share when that is not for the disk. It has
/// one again from when it next waits for the disk, whether or not there is any left: the user's next ones wait for it then.
struct UntilWaiting<'a, F> {
    request: F,
    flow: &'a Flow,
    /// Where the shares are kept, if the user shares.
    shares: Option<&'a Arc<Hall>>,
    lane: Option<Lane>,
    slot: Option<Slot>,
    is_first: bool,
    has_written: bool,
    leaves_thread: bool,
}

impl<F: Future + Unpin> Future for UntilWaiting<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let UntilWaiting { request, flow, shares, lane, slot, is_first, has_written, leaves_thread } = &mut *self;
        let poll = || USER.sync_scope(flow.user.clone(), || Pin::new(request).poll(context));
        // After a wait there is little left to do.
        let leaves = *leaves_thread && *is_first;
        completion::take_question();
        let (polled, wrote) = completion::noting(|| if leaves { tokio::task::block_in_place(poll) } else { poll() });
        // Whom it asks may call as the same user, and must not wait for it.
        *has_written = (*has_written || wrote) && !completion::take_question();
        if polled.is_ready() || !*has_written {
            *slot = None;
        } else if let (None, Some(hall)) = (&slot, shares) {
            let under_way = hall.turns().began(flow);
            *slot = Some(Slot(Some(((*hall).clone(), under_way))));
        }
        (*lane, *is_first) = (None, false);
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
        Flow { level: Level::WorkloadLow, user: user.into(), is_long: false, shares: true }
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
    async fn who_waits_for_the_disk_takes_part_of_its_users_share_and_who_waits_for_somebody_else_does_not() {
        for (writes, asks) in [(true, false), (false, false), (true, true)] {
            let fairness = fairness(3);
            let under_way = Arc::new(AtomicUsize::new(0));
            let (release, released) = tokio::sync::watch::channel(0);
            let request = || {
                let (under_way, mut released) = (under_way.clone(), released.clone());
                Box::pin(async move {
                    let number = under_way.fetch_add(1, Ordering::Relaxed);
                    if writes {
                        completion::note_write();
                    }
                    if asks {
                        // As a webhook is, which may call as the same user.
                        completion::note_question();
                    }
                    released.wait_for(|upto| number < *upto).await.expect("the test releases them");
                })
            };
            assert_eq!(fairness.run(&flow("ann"), 0, ready(1)).await.ok(), Some(1));
            let flood: Vec<_> = (0..50).map(|_| start(&fairness, flow("flood"), request())).collect();
            settle().await;
            let share = fairness.capacity() / 2;
            let is_held = writes && !asks;
            assert_eq!(under_way.load(Ordering::Relaxed), if is_held { share } else { 50 });
            // The other user has a place; so have those who need not share.
            assert_eq!(fairness.run(&flow("ann"), 0, ready(2)).await.ok(), Some(2));
            let own = Flow { level: Level::WorkloadHigh, shares: false, ..flow("flood") };
            assert_eq!(fairness.run(&own, 0, ready(3)).await.ok(), Some(3));
            // Each that ends lets the next one begin.
            release.send(1).expect("they wait");
            settle().await;
            assert_eq!(under_way.load(Ordering::Relaxed), if is_held { share + 1 } else { 50 });
            // And all of them, when nobody else calls any more.
            tokio::time::advance(Duration::from_secs(10)).await;
            let last = start(&fairness, flow("flood"), ready(()));
            settle().await;
            release.send(2).expect("they wait");
            settle().await;
            assert_eq!(under_way.load(Ordering::Relaxed), 50);
            release.send(50).expect("they wait");
            for task in flood.into_iter().chain([last]) {
                task.await.expect("no panic").expect("there is room");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_after_another_wait_holds_back_the_users_next_ones_and_one_of_a_long_request_all_but_one() {
        for flood in [flow("flood"), long("flood")] {
            let fairness = fairness(1);
            let (called, hook) = tokio::sync::watch::channel(false);
            let (written, disk) = tokio::sync::watch::channel(false);
            assert_eq!(fairness.run(&flow("ann"), 0, ready(1)).await.ok(), Some(1));
            let writes: Vec<_> = (0..20)
                .map(|_| {
                    let (mut hook, mut disk) = (hook.clone(), disk.clone());
                    let request = Box::pin(async move {
                        hook.wait_for(|called| *called).await.expect("the test calls");
                        completion::note_write();
                        disk.wait_for(|written| *written).await.expect("the test writes");
                    });
                    start(&fairness, flood.clone(), request)
                })
                .collect();
            settle().await;
            // While they wait for somebody else the user may begin more.
            assert_eq!(fairness.run(&flow("flood"), 0, ready(2)).await.ok(), Some(2));
            called.send(true).expect("they wait");
            settle().await;
            let next = start(&fairness, flow("flood"), ready(()));
            settle().await;
            // Beside long requests one has a place.
            assert_eq!(next.is_finished(), flood.is_long);
            assert_eq!(fairness.run(&flow("ann"), 0, ready(3)).await.ok(), Some(3));
            written.send(true).expect("they wait");
            for task in writes.into_iter().chain([next]) {
                task.await.expect("no panic").expect("there is room");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_hangs_up_or_panics_gives_everything_back() {
        let fairness = fairness(1);
        let own = flow("z");
        let turn = fairness.turn(&own, 0, Instant::now()).await.expect("there is room");
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
        let turn = fairness.turn(&own, 0, Instant::now()).await.expect("there is room");
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
    async fn what_goes_on_after_a_hang_up_counts_for_its_user_until_it_ends() {
        let fairness = fairness(1);
        assert_eq!(fairness.run(&flow("ann"), 0, ready(1)).await.ok(), Some(1));
        let (written, disk) = tokio::sync::watch::channel(false);
        let ended = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..CAPACITY_MIN {
            let (ended, mut disk) = (ended.clone(), disk.clone());
            let mut request = fairness.complete(flow("flood"), 0, async move {
                completion::note_write();
                disk.wait_for(|written| *written).await.expect("the test writes");
                ended.lock().expect("not poisoned").push(current_user());
            });
            assert!(futures::poll!(&mut request).is_pending(), "it has no turn yet");
            settle().await;
            assert!(futures::poll!(&mut request).is_pending(), "it waits for the disk");
        }
        let next = start(&fairness, flow("flood"), ready(()));
        settle().await;
        assert!(!next.is_finished(), "its share is under way, though nobody waits for the answers");
        assert_eq!(fairness.run(&flow("ann"), 0, ready(2)).await.ok(), Some(2));
        written.send(true).expect("they wait");
        next.await.expect("no panic").expect("there is room");
        assert!(ended.lock().expect("not poisoned").iter().all(|user| &**user == "flood"));
        assert_eq!(ended.lock().expect("not poisoned").len(), CAPACITY_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn long_requests_wait_for_each_other_and_short_ones_do_not_wait_for_them() {
        let fairness = fairness(1);
        let turn = fairness.turn(&long("a"), 0, Instant::now()).await.expect("there is room");
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
