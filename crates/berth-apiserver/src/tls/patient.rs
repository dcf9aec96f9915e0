//! A connection that is closed when the client stops reading or does not begin. Otherwise the rest
//! of a list, and the state it comes from, would stay in memory as long as the client likes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Length in bytes of the preface that begins every HTTP/2 connection. Pings check the connection
/// after it.
const PREFACE: usize = 24;

/// Fails a write if the client has read none of it for `patience`.
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Deadline of a waiting write.
    waiting: Option<Pin<Box<Sleep>>>,
    preface: Option<Preface>,
}

/// The HTTP/2 preface while it is incomplete.
struct Preface {
    /// Bytes of it not yet received.
    missing: usize,
    /// Deadline for them.
    until: Pin<Box<Sleep>>,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Patient<S> {
        Patient { stream, patience, waiting: None, preface: None }
    }

    /// For HTTP/2: reads fail unless the preface arrives within `time`, which the HTTP library
    /// does not check.
    pub(super) fn begins_within(self, time: Duration) -> Patient<S> {
        let until = Box::pin(tokio::time::sleep(time));
        Patient { preface: Some(Preface { missing: PREFACE, until }), ..self }
    }

    /// Writes, and checks how long the write has been waiting.
    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let answer = write(Pin::new(&mut self.stream), context);
        if answer.is_ready() {
            self.waiting = None;
            return answer;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing of what was sent has been taken")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let answer = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(preface) = &mut self.preface {
            preface.missing = preface.missing.saturating_sub(buffer.filled().len() - before);
            if preface.missing == 0 {
                self.preface = None;
            } else if answer.is_pending() {
                ready!(preface.until.as_mut().poll(context));
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the connection does not begin")));
            }
        }
        answer
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, |stream, context| stream.poll_shutdown(context))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stalled_reader_is_disconnected_and_a_slow_reader_is_not() {
        let (near, mut far) = duplex(64);
        let mut patient = Patient::new(near, Duration::from_secs(60));
        let reader = tokio::spawn(async move {
            let mut some = [0; 64];
            for _ in 0..8 {
                sleep(Duration::from_secs(50)).await;
                far.read_exact(&mut some).await.expect("it is sent");
            }
            far
        });
        patient.write_all(&[7; 64 * 9]).await.expect("taken, if slowly");
        let _far = reader.await.expect("no panic");
        let start = Instant::now();
        let error = patient.write_all(&[7; 64]).await.expect_err("nobody takes it");
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_beginning_is_not_waited_for_for_ever() {
        let patience = Duration::from_secs(60);
        for sent in [0, PREFACE - 1] {
            let (near, mut far) = duplex(64);
            far.write_all(&vec![7; sent]).await.expect("room");
            let mut patient = Patient::new(near, patience).begins_within(patience);
            let start = Instant::now();
            let mut bytes = Vec::new();
            let error = patient.read_to_end(&mut bytes).await.expect_err("it does not begin");
            assert_eq!((error.kind(), bytes.len()), (io::ErrorKind::TimedOut, sent));
            assert_eq!(start.elapsed().as_secs(), 60);
        }
        let (near, mut far) = duplex(64);
        far.write_all(&[7; PREFACE]).await.expect("room");
        let mut patient = Patient::new(near, patience).begins_within(patience);
        let mut bytes = [0; PREFACE + 1];
        patient.read_exact(&mut bytes[..PREFACE]).await.expect("it is there");
        let late = tokio::time::timeout(patience * 10, patient.read(&mut bytes)).await;
        assert!(late.is_err(), "what has begun may be silent");
    }
}
