//! Fair sharing of the server among users. Requests wait in one queue per user, and the users take
//! turns.
//!
//! A turn is a permission to compute. Computing (decoding, admission, validation) delays other
//! requests; waiting for the disk does not. Each of a few *lanes* runs one request until its first
//! wait, then the next user's request. A user that sends a thousand requests at once waits behind
//! its own requests. Another user's request waits behind one of them per lane, not behind all. The
//! store orders the writes that wait for the disk in the same way
//! ([`berth_store::Store::commit_for`]).
//!
//! While several users call, each may have only its share of requests in progress. A request counts
//! against the share until its write is durable ([`shares`]). A lone user is limited only by the
//! lanes. When no other request waits, a request pays one wake-up: some microseconds.
//!
//! Requests that may scan all objects have their own lanes. While such a request computes, the
//! runtime's other tasks move to another thread, so that no short request waits for it.

mod figures;
mod flow;
mod shares;
mod turns;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use berth_apimachinery::status::Status;
use berth_store::Store;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::completion::{self, Completing, Disconnection};
pub(crate) use figures::Figures;
pub(crate) use flow::{Flow, of as flow_of};
use turns::{Place, Turns, UnderWay};

/// Minimum of requests in progress per processor while several users share, for instant commits.
/// Measured on two processors with an optimised build, while another user floods the server: with
/// 2, the p99 of a user is 2.2 to 2.5 times its p99 alone; with 4, it is 3.6 to 4.7 times. The
/// flood gets 2,100 calls a second with 2, and 3,300 with 4.
const CAPACITY_MIN: usize = 2;
/// Approximate processor time of a request whose client runs on the same machine. While users
/// share, enough requests are in progress to keep the processors half busy: each request waits for
/// about two commits, the one in progress and its own.
const REQUEST_TIME: Duration = Duration::from_micros(160);
/// `Retry-After`, in seconds, for rejected requests.
pub(crate) const RETRY_AFTER: u32 = 1;
/// Pause before a follow-up write is retried when the store's queue is full. Follow-up writes have
/// no client that would retry them.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// The users' queues and their lanes. Dropping this value ends the lanes.
pub(crate) struct Fairness {
    short: Arc<LaneGroup>,
    long: Arc<LaneGroup>,
    figures: Arc<Figures>,
    processors: usize,
    /// Source of the current commit time; `None` counts commits as instant.
    store: Option<Arc<dyn Store>>,
    /// True if the runtime can replace a thread that is busy with a long request.
    has_threads: bool,
    _lanes: JoinSet<()>,
}

/// A group of lanes, and the requests that wait for them.
struct LaneGroup {
    turns: Mutex<Turns<oneshot::Sender<Turn>>>,
    arrived: Notify,
}

/// The permission to compute.
struct Turn {
    lane: Lane,
    slot: Slot,
}

/// A lane in use. Dropping this value frees the lane for the next request.
struct Lane(#[allow(dead_code, reason = "dropping it frees the lane")] oneshot::Sender<()>);

/// One place in the user's share, until dropped; `None` for users that do not share.
struct Slot(Option<(Arc<LaneGroup>, UnderWay)>);

impl Slot {
    fn is_part(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((group, under_way)) = self.0.take()
            && group.turns().ended(&under_way)
        {
            group.arrived.notify_one();
        }
    }
}

impl LaneGroup {
    fn new() -> Arc<LaneGroup> {
        Arc::new(LaneGroup { turns: Mutex::new(Turns::new()), arrived: Notify::new() })
    }

    fn turns(&self) -> MutexGuard<'_, Turns<oneshot::Sender<Turn>>> {
        self.turns.lock()
    }

    /// Gives out turns forever, one at a time.
    async fn lane(self: Arc<Self>) {
        loop {
            // Pick the next request only after all other ready tasks have run. These are requests
            // whose writes are durable, which are almost done, and new arrivals. Otherwise turns
            // would follow the order of arrival.
            let popped = self.turns().pop();
            let Some((next, under_way)) = popped else {
                self.arrived.notified().await;
                tokio::task::yield_now().await;
                continue;
            };
            let (lane, over) = oneshot::channel();
            let slot = Slot(under_way.map(|under_way| (self.clone(), under_way)));
            if next.send(Turn { lane: Lane(lane), slot }).is_ok() {
                // The lane is free when the sender is dropped, which `over` reports as an error.
                let _ = over.await;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// A request in its user's queue. Dropping this value removes the request from the queue if it
/// still waits.
struct Queued<'a> {
    group: &'a LaneGroup,
    place: Place,
    figures: &'a Figures,
    flow: &'a Flow,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.group.turns().remove(&self.place);
        self.figures.stopped_waiting(self.flow.level);
    }
}

/// A request that has had its turn, for the metrics.
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
    /// Starts as many lanes as the runtime has threads, and half as many for long requests. Must
    /// be called inside a runtime.
    pub(crate) fn start(figures: Arc<Figures>, store: Arc<dyn Store>) -> Fairness {
        let runtime = Handle::current();
        let workers = runtime.metrics().num_workers().max(1);
        let has_threads = runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
        Fairness { has_threads, store: Some(store), ..Fairness::with_lanes(workers, workers.div_ceil(2), figures) }
    }

    fn with_lanes(short: usize, long: usize, figures: Arc<Figures>) -> Fairness {
        let mut lanes = JoinSet::new();
        let mut open = |count: usize| {
            let group = LaneGroup::new();
            (0..count).for_each(|_| drop(lanes.spawn(group.clone().lane())));
            group
        };
        let processors = short;
        let (short, long) = (open(short), open(long));
        Fairness { short, long, figures, processors, store: None, has_threads: false, _lanes: lanes }
    }

    /// Number of requests that may be in progress while users share.
    fn capacity(&self) -> usize {
        let commit = self.store.as_ref().map_or(Duration::ZERO, |store| store.commit_time());
        let meanwhile = usize::try_from(commit.as_nanos() / REQUEST_TIME.as_nanos()).unwrap_or(usize::MAX);
        self.processors.saturating_mul(meanwhile.max(CAPACITY_MIN))
    }

    /// Executes a request when its user has a turn; `bytes` is the size of its body. Rejects the
    /// request with 429 when too many of the user's requests wait. `request` should be small (a
    /// box), because it is held here while it waits.
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

    /// As [`Fairness::run`], but a request that has written is completed even if its client
    /// disconnects. It still counts against its user's share, and its writes are in its user's
    /// queue of the store.
    pub(crate) fn complete<F>(
        self: &Arc<Self>,
        flow: Flow,
        bytes: usize,
        client: Disconnection,
        request: F,
    ) -> Completing<Result<F::Output, Status>>
    where
        F: Future + Send + 'static,
    {
        let fairness = self.clone();
        Completing::new(client, async move { fairness.run(&flow, bytes, Box::pin(request)).await })
    }

    async fn turn(&self, flow: &Flow, bytes: usize, now: Instant) -> Result<Option<Turn>, Status> {
        if flow.shares {
            // Long requests run in lanes of their own, but count as calls of their user.
            self.short.turns().called(flow, self.capacity(), now);
        }
        let group = if flow.is_long { &self.long } else { &self.short };
        let (sender, turn) = oneshot::channel();
        let Some(place) = group.turns().push(flow, bytes, sender) else {
            self.figures.rejected(flow.level);
            return Err(Status::too_many_requests("too many requests of this user are waiting", RETRY_AFTER));
        };
        self.figures.began_waiting(flow.level);
        let _queued = Queued { group, place, figures: &self.figures, flow };
        group.arrived.notify_one();
        // The lanes end with the listener. Requests in progress at that time still get a response.
        Ok(turn.await.ok())
    }
}

tokio::task_local! {
    /// The user whose request is being executed.
    static USER: Arc<str>;
}

/// Name of the store's queue for writes of the request being executed: its user. Requests that did
/// not come through the listener share the empty name.
pub(crate) fn current_user() -> Arc<str> {
    USER.try_with(Arc::clone).unwrap_or_default()
}

/// A request that has its turn. At its first wait it releases its lane. If it waits for anything
/// but the disk, it also releases its slot in the user's share. At its next wait for the disk it
/// takes a slot again, even beyond the share: the user's next requests then wait for it.
struct UntilWaiting<'a, F> {
    request: F,
    flow: &'a Flow,
    /// The lane group that counts the user's share; `None` if the user does not share.
    shares: Option<&'a Arc<LaneGroup>>,
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
        // Only the first poll computes for long: little work remains after the first wait.
        let leaves = *leaves_thread && *is_first;
        completion::take_external_call();
        let (polled, wrote) = completion::noting(|| if leaves { tokio::task::block_in_place(poll) } else { poll() });
        // The external server (a webhook) may call as the same user, and those calls must not wait
        // for this request.
        *has_written = (*has_written || wrote) && !completion::take_external_call();
        if polled.is_ready() || !*has_written {
            *slot = None;
        } else if let (None, Some(group)) = (&slot, shares) {
            let under_way = group.turns().began(flow);
            *slot = Some(Slot(Some(((*group).clone(), under_way))));
        }
        (*lane, *is_first) = (None, false);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::flow::Level;
    use berth_apimachinery::exposition::Exposition;

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

    /// Runs all tasks until they wait.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_user_does_not_delay_another_user() {
        let fairness = fairness(2);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for user in [vec!["flood"; 500], vec!["ann"; 2]].concat() {
            let (fairness, order) = (fairness.clone(), order.clone());
            tasks.spawn(async move {
                let request = Box::pin(async { order.lock().push(user) });
                fairness.run(&flow(user), 0, request).await.expect("not rejected");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        let order = order.lock();
        assert_eq!(order.len(), 502);
        let places: Vec<usize> = (0..order.len()).filter(|place| order[*place] == "ann").collect();
        assert!(places[1] <= 6, "served at {places:?} although only the flood was waiting");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_request_frees_its_lane_even_for_the_same_user() {
        let fairness = fairness(1);
        let running = Arc::new(AtomicUsize::new(0));
        let (release, released) = tokio::sync::watch::channel(false);
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let (running, mut released) = (running.clone(), released.clone());
            let request = Box::pin(async move {
                running.fetch_add(1, Ordering::Relaxed);
                released.wait_for(|it| *it).await.expect("the sender is alive");
            });
            tasks.push(start(&fairness, flow("a"), request));
        }
        while running.load(Ordering::Relaxed) < 100 {
            tokio::task::yield_now().await;
        }
        release.send(true).expect("the requests wait");
        for task in tasks {
            task.await.expect("no panic").expect("not rejected");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_the_disk_counts_against_the_share_and_a_wait_for_a_webhook_does_not() {
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
                        // A webhook is called, which may itself send requests as the same user.
                        completion::note_external_call();
                    }
                    released.wait_for(|upto| number < *upto).await.expect("the sender is alive");
                })
            };
            assert_eq!(fairness.run(&flow("ann"), 0, ready(1)).await.ok(), Some(1));
            let flood: Vec<_> = (0..50).map(|_| start(&fairness, flow("flood"), request())).collect();
            settle().await;
            let share = fairness.capacity() / 2;
            let is_held = writes && !asks;
            assert_eq!(under_way.load(Ordering::Relaxed), if is_held { share } else { 50 });
            // The other user has free slots, and users that do not share need none.
            assert_eq!(fairness.run(&flow("ann"), 0, ready(2)).await.ok(), Some(2));
            let own = Flow { level: Level::WorkloadHigh, shares: false, ..flow("flood") };
            assert_eq!(fairness.run(&own, 0, ready(3)).await.ok(), Some(3));
            // Each request that ends lets the next one start.
            release.send(1).expect("the requests wait");
            settle().await;
            assert_eq!(under_way.load(Ordering::Relaxed), if is_held { share + 1 } else { 50 });
            // Once no other user calls, all requests may start.
            tokio::time::advance(Duration::from_secs(10)).await;
            let last = start(&fairness, flow("flood"), ready(()));
            settle().await;
            release.send(2).expect("the requests wait");
            settle().await;
            assert_eq!(under_way.load(Ordering::Relaxed), 50);
            release.send(50).expect("the requests wait");
            for task in flood.into_iter().chain([last]) {
                task.await.expect("no panic").expect("not rejected");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_after_another_wait_delays_the_users_next_requests_but_long_requests_leave_one_slot() {
        for flood in [flow("flood"), long("flood")] {
            let fairness = fairness(1);
            let (called, hook) = tokio::sync::watch::channel(false);
            let (written, disk) = tokio::sync::watch::channel(false);
            assert_eq!(fairness.run(&flow("ann"), 0, ready(1)).await.ok(), Some(1));
            let writes: Vec<_> = (0..20)
                .map(|_| {
                    let (mut hook, mut disk) = (hook.clone(), disk.clone());
                    let request = Box::pin(async move {
                        hook.wait_for(|called| *called).await.expect("the sender is alive");
                        completion::note_write();
                        disk.wait_for(|written| *written).await.expect("the sender is alive");
                    });
                    start(&fairness, flood.clone(), request)
                })
                .collect();
            settle().await;
            // While the requests wait for the webhook, the user may start more requests.
            assert_eq!(fairness.run(&flow("flood"), 0, ready(2)).await.ok(), Some(2));
            called.send(true).expect("the requests wait");
            settle().await;
            let next = start(&fairness, flow("flood"), ready(()));
            settle().await;
            // One short request may start even if the user's long requests use its whole share.
            assert_eq!(next.is_finished(), flood.is_long);
            assert_eq!(fairness.run(&flow("ann"), 0, ready(3)).await.ok(), Some(3));
            written.send(true).expect("the requests wait");
            for task in writes.into_iter().chain([next]) {
                task.await.expect("no panic").expect("not rejected");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_dropped_or_panics_frees_its_lane_and_share() {
        let fairness = fairness(1);
        let own = flow("z");
        let turn = fairness.turn(&own, 0, Instant::now()).await.expect("not rejected");
        let gone = start(&fairness, flow("a"), pending::<()>());
        let panics = start(&fairness, flow("a"), Box::pin(async { panic!("a bug in a handler") }));
        let next = start(&fairness, flow("a"), ready(1));
        settle().await;
        gone.abort();
        settle().await;
        assert!(!next.is_finished(), "the only lane is in use");
        drop(turn);
        assert_eq!(next.await.expect("no panic").ok(), Some(1));
        assert!(panics.await.expect_err("it panicked").is_panic());
        assert!(gone.await.expect_err("aborted").is_cancelled());
        // A request dropped between its turn and its next poll frees its lane too.
        let turn = fairness.turn(&own, 0, Instant::now()).await.expect("not rejected");
        let mut called = Box::pin(fairness.run(&own, 0, ready(())));
        assert!(futures::poll!(called.as_mut()).is_pending());
        drop(turn);
        settle().await;
        drop(called);
        assert_eq!(fairness.run(&own, 0, ready(2)).await.ok(), Some(2));
        let text = Exposition::text(|exposition| fairness.figures.write(exposition));
        assert!(text.contains("current_inqueue_requests{priority_level=\"workload-low\"} 0\n"), "{text}");
        assert!(text.contains("current_executing_requests{priority_level=\"workload-low\"} 0\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_completed_after_a_disconnect_counts_for_its_user_until_it_ends() {
        let fairness = fairness(1);
        assert_eq!(fairness.run(&flow("ann"), 0, ready(1)).await.ok(), Some(1));
        let (written, disk) = tokio::sync::watch::channel(false);
        let ended = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..CAPACITY_MIN {
            let (ended, mut disk) = (ended.clone(), disk.clone());
            let mut request = fairness.complete(flow("flood"), 0, Disconnection::default(), async move {
                completion::note_write();
                disk.wait_for(|written| *written).await.expect("the sender is alive");
                ended.lock().push(current_user());
            });
            assert!(futures::poll!(&mut request).is_pending(), "the request has no turn yet");
            settle().await;
            assert!(futures::poll!(&mut request).is_pending(), "the request waits for the disk");
        }
        let next = start(&fairness, flow("flood"), ready(()));
        settle().await;
        assert!(!next.is_finished(), "disconnected requests still use the user's whole share");
        assert_eq!(fairness.run(&flow("ann"), 0, ready(2)).await.ok(), Some(2));
        written.send(true).expect("the requests wait");
        next.await.expect("no panic").expect("not rejected");
        assert!(ended.lock().iter().all(|user| &**user == "flood"));
        assert_eq!(ended.lock().len(), CAPACITY_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn long_requests_wait_for_each_other_but_do_not_delay_short_requests() {
        let fairness = fairness(1);
        let turn = fairness.turn(&long("a"), 0, Instant::now()).await.expect("not rejected");
        let second = start(&fairness, long("a"), ready(2));
        settle().await;
        assert!(!second.is_finished());
        assert_eq!(fairness.run(&flow("a"), 0, ready(1)).await.ok(), Some(1));
        drop(turn);
        assert_eq!(second.await.expect("no panic").ok(), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_waiting_requests_of_one_user_are_rejected_with_429() {
        let fairness = fairness(0);
        let mut waiting = Vec::new();
        for _ in 0..turns::WAITING_MAX {
            let fairness = fairness.clone();
            let mut request = Box::pin(async move { fairness.run(&flow("a"), 0, ready(())).await });
            assert!(futures::poll!(request.as_mut()).is_pending());
            waiting.push(request);
        }
        let rejected = fairness.run(&flow("a"), 0, ready(())).await.expect_err("too many wait");
        assert_eq!(rejected.code, 429);
        assert_eq!(rejected.details.map(|details| details.retry_after_seconds), Some(RETRY_AFTER));
        // After a waiting request is dropped, the next one is accepted.
        waiting.pop();
        let own = flow("a");
        assert!(futures::poll!(Box::pin(fairness.run(&own, 0, ready(()))).as_mut()).is_pending());
    }
}
