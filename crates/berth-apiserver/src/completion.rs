//! Completes requests that have begun to write, even after their client has disconnected.
//!
//! The future of a request is dropped when its client disconnects. That ends a request that has
//! not written. A request that has written must complete: its quota charges and address claims
//! belong to the object that it stores next, and a stored object may have to take effect (a new
//! kind is served, a policy is enforced). So the rest of such a request becomes a task of its own.
//! The task can read from its [`Disconnection`] that the client has disconnected.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Whether the client of one request has disconnected. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disconnection(Arc<AtomicBool>);

impl Disconnection {
    /// True once the client has disconnected. Work that consists of independent steps should then
    /// stop after a step.
    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// Whether the request being polled on this thread has queued a write.
    static WROTE: Cell<bool> = const { Cell::new(false) };
    /// Whether that request has called an external server (such as a webhook) since its last
    /// write.
    static CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Records that the request being polled on this thread has queued a write.
pub(crate) fn note_write() {
    WROTE.set(true);
    CALLED.set(false);
}

/// Records that the request being polled on this thread waits for an external server, which may
/// itself call this API server before it responds.
pub(crate) fn note_external_call() {
    CALLED.set(true);
}

/// Returns and clears whether an external call was recorded since the last call of this function,
/// with no write queued after it.
pub(crate) fn take_external_call() -> bool {
    CALLED.take()
}

/// Runs `poll`. Returns its result, and whether it queued a write.
pub(crate) fn noting<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    let before = WROTE.replace(false);
    let polled = poll();
    let wrote = WROTE.get();
    // The write counts for an enclosing `noting` as well.
    WROTE.set(before || wrote);
    (polled, wrote)
}

/// A request that runs to its end once it has begun to write.
pub(crate) struct Completing<T: 'static> {
    /// `None` once the response is complete.
    request: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    client: Disconnection,
    has_written: bool,
}

impl<T: 'static> Completing<T> {
    /// A future that completes `request`. `client` is marked as disconnected if this future is
    /// dropped after a write and before the response is complete.
    pub(crate) fn new(client: Disconnection, request: impl Future<Output = T> + Send + 'static) -> Completing<T> {
        Completing { request: Some(Box::pin(request)), client, has_written: false }
    }
}

impl<T: 'static> Future for Completing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out, so that a request that panics is not polled again.
        let mut request = self.request.take().expect("not polled after completion");
        let (polled, wrote) = noting(|| request.as_mut().poll(context));
        self.has_written |= wrote;
        if polled.is_pending() {
            self.request = Some(request);
        }
        polled
    }
}

impl<T: 'static> Drop for Completing<T> {
    fn drop(&mut self) {
        // Without a runtime the process is ending. The next start repairs incomplete writes.
        if let (Some(rest), true, Ok(runtime)) = (self.request.take(), self.has_written, Handle::try_current()) {
            self.client.0.store(true, Ordering::Relaxed);
            runtime.spawn(async move { drop(rest.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Drops a waiting request, which has written before if `writes` is set. Returns whether the
    /// request completed after its wait ended.
    async fn completes_after_drop(writes: bool) -> bool {
        let (release, released) = oneshot::channel::<()>();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let client = Disconnection::default();
        let known = client.clone();
        let mut request = Completing::new(client, async move {
            if writes {
                note_write();
            }
            assert!(!known.is_known());
            let _ = released.await;
            assert!(known.is_known());
            seen.store(true, Ordering::Relaxed);
        });
        assert!(futures::poll!(&mut request).is_pending());
        drop(request);
        let _ = release.send(());
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        ended.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_dropped_request_runs_to_its_end_only_after_a_write() {
        assert!(completes_after_drop(true).await);
        assert!(!completes_after_drop(false).await);
    }

    #[tokio::test]
    async fn a_request_ends_when_it_completes_or_panics() {
        assert_eq!(Completing::new(Disconnection::default(), async { 7 }).await, 7);
        let panics = tokio::spawn(Completing::new(Disconnection::default(), async {
            note_write();
            tokio::task::yield_now().await;
            panic!("a bug in a handler")
        }));
        assert!(panics.await.map(|(): ()| ()).expect_err("it panicked").is_panic());
    }

    #[test]
    fn a_write_of_a_nested_request_counts_for_the_outer_one_too() {
        let (((), inner), outer) = noting(|| noting(note_write));
        assert!(inner && outer);
        let (((), inner), outer) = noting(|| {
            note_write();
            noting(|| ())
        });
        assert!(!inner && outer);
        assert!(!noting(|| ()).1);
    }
}
