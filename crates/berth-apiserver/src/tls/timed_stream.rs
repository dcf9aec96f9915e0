//! A connection that is closed when the client stops reading, or never sends the HTTP/2 preface.
//! Otherwise a stalled client could keep the rest of a list in memory forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::connect::Unread;

/// Length in bytes of the preface with which every HTTP/2 connection begins. After the preface,
/// pings detect a stalled client.
const PREFACE: usize = 24;

/// A stream whose writes fail if the client reads nothing for `unread_limit`.
pub(super) struct TimedStream<S> {
    stream: S,
    unread_limit: Duration,
    /// Whether the limit applies.
    unread: Unread,
    /// Deadline of a waiting write.
    waiting: Option<Pin<Box<Sleep>>>,
    preface: Option<Preface>,
}

/// The HTTP/2 preface while it is incomplete.
struct Preface {
    /// Number of bytes not yet received.
    missing: usize,
    /// Deadline for these bytes.
    until: Pin<Box<Sleep>>,
}

impl<S: AsyncWrite + Unpin> TimedStream<S> {
    pub(super) fn new(stream: S, unread_limit: Duration) -> TimedStream<S> {
        TimedStream { stream, unread_limit, unread: Unread::limited(), waiting: None, preface: None }
    }

    /// The limit applies until it is lifted through `unread`.
    pub(super) fn lifted_by(self, unread: Unread) -> TimedStream<S> {
        TimedStream { unread, ..self }
    }

    /// For HTTP/2: reads fail unless the preface arrives within `time`, which the HTTP library
    /// does not check.
    pub(super) fn with_preface_limit(self, time: Duration) -> TimedStream<S> {
        let until = Box::pin(tokio::time::sleep(time));
        TimedStream { preface: Some(Preface { missing: PREFACE, until }), ..self }
    }

    /// Writes, and checks how long the write has been waiting.
    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let answer = write(Pin::new(&mut self.stream), context);
        if answer.is_ready() || !self.unread.is_limited() {
            self.waiting = None;
            return answer;
        }
        let limit = self.unread_limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read sent data")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
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
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client did not send the HTTP/2 preface",
                )));
            }
        }
        answer
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
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
        let mut stream = TimedStream::new(near, Duration::from_secs(60));
        let reader = tokio::spawn(async move {
            let mut some = [0; 64];
            for _ in 0..8 {
                sleep(Duration::from_secs(50)).await;
                far.read_exact(&mut some).await.expect("sent");
            }
            far
        });
        stream.write_all(&[7; 64 * 9]).await.expect("read, if slowly");
        let _far = reader.await.expect("no panic");
        let start = Instant::now();
        let error = stream.write_all(&[7; 64]).await.expect_err("the client does not read");
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_http2_preface_times_out() {
        let limit = Duration::from_secs(60);
        for sent in [0, PREFACE - 1] {
            let (near, mut far) = duplex(64);
            far.write_all(&vec![7; sent]).await.expect("written");
            let mut stream = TimedStream::new(near, limit).with_preface_limit(limit);
            let start = Instant::now();
            let mut bytes = Vec::new();
            let error = stream.read_to_end(&mut bytes).await.expect_err("the preface is incomplete");
            assert_eq!((error.kind(), bytes.len()), (io::ErrorKind::TimedOut, sent));
            assert_eq!(start.elapsed().as_secs(), 60);
        }
        let (near, mut far) = duplex(64);
        far.write_all(&[7; PREFACE]).await.expect("written");
        let mut stream = TimedStream::new(near, limit).with_preface_limit(limit);
        let mut bytes = [0; PREFACE + 1];
        stream.read_exact(&mut bytes[..PREFACE]).await.expect("received");
        let late = tokio::time::timeout(limit * 10, stream.read(&mut bytes)).await;
        assert!(late.is_err(), "a read after the preface has no limit");
    }
}
