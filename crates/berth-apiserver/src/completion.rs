//! Requests that go on when nobody waits for their answer any more: those that have begun to write.
//!
//! A client that hangs up drops the future of its request. Before the first write that is the end of it. After it there is
//! work that must not be left half done: charges of quotas and addresses belong to the object that is stored next, and what
//! was stored may have to be made known (a kind that is served now, a policy that is in force). So what is left of such a
//! request becomes a task of its own. Who waits for his answer pays a flag for that.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

tokio::task_local! {
    /// Whether nobody waits for the answer of what is being executed.
    static ABANDONED: bool;
}

/// Whether who asked has gone: of what can be done in parts as well, no further part need be begun.
pub(crate) fn is_abandoned() -> bool {
    ABANDONED.try_with(|abandoned| *abandoned).unwrap_or(false)
}

/// Executes what has to be done to its end whoever has gone.
pub(crate) async fn to_the_end<F: Future>(request: F) -> F::Output {
    ABANDONED.scope(false, request).await
}

thread_local! {
    /// Whether what is being polled on this thread has queued a write.
    static WROTE: Cell<bool> = const { Cell::new(false) };
    /// Whether it has asked somebody outside since.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Says that the request that is being polled on this thread has queued a write.
pub(crate) fn note_write() {
    WROTE.set(true);
    ASKED.set(false);
}

/// Says that the request that is being polled on this thread goes on when somebody outside has answered, who may call here
/// himself before.
pub(crate) fn note_question() {
    ASKED.set(true);
}

/// Whether that was said since this was last asked, and no write queued after it.
pub(crate) fn take_question() -> bool {
    ASKED.take()
}

/// Polls, and tells whether a write was queued meanwhile.
pub(crate) fn noting<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    let before = WROTE.replace(false);
    let polled = poll();
    let wrote = WROTE.get();
    // Whoever polls this one has written too.
    WROTE.set(before || wrote);
    (polled, wrote)
}

/// A request that is completed once it has begun to write.
pub(crate) struct Completing<T: 'static> {
    /// Absent once it has been answered.
    request: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    has_written: bool,
}

impl<T: 'static> Completing<T> {
    pub(crate) fn new(request: impl Future<Output = T> + Send + 'static) -> Completing<T> {
        Completing { request: Some(Box::pin(request)), has_written: false }
    }
}

impl<T: 'static> Future for Completing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out, so that one that panics is not gone on with.
        let mut request = self.request.take().expect("it is not polled after its answer");
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
        // Where no runtime is left nobody looks at what is left undone before the next start, which mends it.
        if let (Some(rest), true, Ok(runtime)) = (self.request.take(), self.has_written, Handle::try_current()) {
            let rest = ABANDONED.scope(true, rest);
            runtime.spawn(async move { drop(rest.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    /// Drops a request that waits, with or without having written; whether it went on when what it waited for came.
    async fn goes_on(writes: bool) -> bool {
        let (release, released) = oneshot::channel::<()>();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let mut request = Completing::new(async move {
            if writes {
                note_write();
            }
            let _ = released.await;
            assert!(is_abandoned());
            assert!(!to_the_end(async { is_abandoned() }).await);
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
    async fn who_has_begun_to_write_goes_on_and_others_do_not() {
        assert!(goes_on(true).await);
        assert!(!goes_on(false).await);
    }

    #[tokio::test]
    async fn one_that_is_answered_or_panics_is_over() {
        assert_eq!(Completing::new(async { 7 }).await, 7);
        let panics = tokio::spawn(Completing::new(async {
            note_write();
            tokio::task::yield_now().await;
            panic!("a bug in a handler")
        }));
        assert!(panics.await.map(|(): ()| ()).expect_err("it panicked").is_panic());
    }

    #[test]
    fn a_request_inside_another_has_written_for_both() {
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
