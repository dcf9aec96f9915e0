//! Response bodies: empty, complete bytes, or a stream of chunks (watches, large lists, logs).

use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::Stream;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

/// Body of a response. Reading it never fails: errors are detected before the first byte is sent, a
/// watch that ends early reports the reason in its last event, and a body from another server ends
/// at an error.
pub struct Body(Inner);

enum Inner {
    Full(Option<Bytes>),
    Stream(Chunks),
}

impl Body {
    /// A body without content.
    pub fn empty() -> Body {
        Body(Inner::Full(None))
    }

    /// The complete content; empty if it was read already, `None` for a stream.
    pub fn bytes(&self) -> Option<&Bytes> {
        static NOTHING: Bytes = Bytes::new();
        match &self.0 {
            Inner::Full(content) => Some(content.as_ref().unwrap_or(&NOTHING)),
            Inner::Stream(_) => None,
        }
    }

    /// The same content with gzip compression. A stream is compressed chunk by chunk.
    pub(crate) fn gzip(self) -> Body {
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        match self.0 {
            Inner::Full(content) => {
                let mut encoder = encoder;
                // Writing to memory does not fail.
                let _ = encoder.write_all(content.as_deref().unwrap_or_default());
                Body::from(encoder.finish().unwrap_or_default())
            }
            Inner::Stream(chunks) => Body::stream(futures::stream::unfold((chunks, Some(encoder)), compress_next)),
        }
    }

    /// The body of another server's response, streamed. Its headers are already sent when it fails,
    /// so an error ends the body; `what` names the response in the log.
    pub(crate) fn incoming(body: hyper::body::Incoming, what: &'static str) -> Body {
        Body::stream(futures::stream::unfold(body, move |mut body| async move {
            loop {
                match body.frame().await? {
                    Ok(frame) => {
                        if let Ok(chunk) = frame.into_data() {
                            return Some((chunk, body));
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "{what}");
                        return None;
                    }
                }
            }
        }))
    }

    /// A body that is sent chunk by chunk, as `chunks` yields.
    pub fn stream(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Body {
        Body(Inner::Stream(Box::pin(chunks)))
    }
}

type Chunks = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// The next compressed chunk. The encoder is `None` after the last chunk.
async fn compress_next(
    (mut chunks, encoder): (Chunks, Option<GzEncoder<Vec<u8>>>),
) -> Option<(Bytes, (Chunks, Option<GzEncoder<Vec<u8>>>))> {
    let mut encoder = encoder?;
    while let Some(chunk) = futures::StreamExt::next(&mut chunks).await {
        let _ = encoder.write_all(&chunk);
        let done = std::mem::take(encoder.get_mut());
        if !done.is_empty() {
            return Some((done.into(), (chunks, Some(encoder))));
        }
    }
    let rest = encoder.finish().unwrap_or_default();
    Some((rest.into(), (chunks, None)))
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(content: T) -> Body {
        let bytes = content.into();
        Body(Inner::Full((!bytes.is_empty()).then_some(bytes)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.get_mut().0 {
            Inner::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Stream(stream) => {
                stream.as_mut().poll_next(context).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}
