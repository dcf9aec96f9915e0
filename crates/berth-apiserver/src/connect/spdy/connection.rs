//! The streams of a SPDY connection, as byte streams.
//!
//! When a program does not read its data, the connection waits: clients of Kubernetes send without
//! regard to windows. The server grants windows as data is read, for clients that respect them. It
//! respects the client's windows only after the client has sent a window or a setting of one,
//! because clients of Kubernetes never grant any.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::super::session::{CHUNK_BYTES, CLOSE_GRACE, PIPE_BYTES};
use super::frame::{Frame, Reader, reset};
use super::headers::{Deflater, Headers, Inflater};

/// Maximum number of frames that wait to be sent.
const FRAMES_MAX: usize = 8;
/// Maximum number of streams that wait to be accepted.
const ACCEPT_MAX: usize = 64;
/// Maximum number of streams that a client may have open at once.
const STREAMS_MAX: usize = 1000;
/// Initial window of a stream and of the connection, in bytes.
const WINDOW_BYTES: i64 = 64 * 1024;
/// Number of bytes read after which a new window is granted.
const GRANT_BYTES: u32 = 32 * 1024;
/// Time without frames to send after which the server sends a ping. It detects clients that are no
/// longer connected.
const PING_INTERVAL: Duration = Duration::from_secs(30);

type Sender = mpsc::Sender<Frame>;

/// A stream that a client opened.
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) headers: Headers,
    /// The data. Dropping it ends the stream.
    pub(super) io: DuplexStream,
    sender: Sender,
}

impl Stream {
    /// A header, empty if it is absent. `name` is in lower case.
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Resets a stream that the session does not use.
    pub(super) async fn refuse(self) {
        let _ = self.sender.send(Frame::Reset { id: self.id, status: reset::PROTOCOL_ERROR }).await;
    }
}

/// A connection, whose client opens streams. Dropping it closes it at once.
pub(super) struct Connection {
    streams: mpsc::Receiver<Stream>,
    sender: Sender,
    /// Aborted when the connection is dropped.
    tasks: JoinSet<()>,
}

impl Connection {
    pub(super) fn open(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Connection {
        let (input, output) = tokio::io::split(io);
        let (sender, frames) = mpsc::channel(FRAMES_MAX);
        let (accepted, streams) = mpsc::channel(ACCEPT_MAX);
        let mut tasks = JoinSet::new();
        let incoming = Incoming {
            sender: sender.downgrade(),
            accepted,
            inflater: Inflater::new(),
            inputs: BTreeMap::new(),
            pumps: JoinSet::new(),
            windows: Arc::default(),
            taken: 0,
            last_id: 0,
        };
        tasks.spawn(carry(BufReader::new(input), output, frames, incoming));
        Connection { streams, sender, tasks }
    }

    /// The next stream that the client opens; `None` when the connection has ended.
    pub(super) async fn next(&mut self) -> Option<Stream> {
        self.streams.recv().await
    }

    /// Returns when the client has disconnected.
    pub(super) async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Sends the remaining data of dropped streams, and closes the connection.
    pub(super) async fn finish(self) {
        let Connection { streams, sender, mut tasks } = self;
        drop((streams, sender));
        while tasks.join_next().await.is_some() {}
    }
}

/// Serves a connection until all streams have ended after [`Connection::finish`], or the client has
/// disconnected.
async fn carry(
    input: impl AsyncRead + Unpin + Send,
    output: impl AsyncWrite + Unpin + Send,
    frames: mpsc::Receiver<Frame>,
    incoming: Incoming,
) {
    let reading = incoming.read(Reader::new(input));
    tokio::pin!(reading);
    tokio::select! {
        sent = write(output, frames) => match sent {
            Ok(mut output) => {
                let _ = timeout(CLOSE_GRACE, reading).await;
                let _ = timeout(CLOSE_GRACE, output.shutdown()).await;
            }
            Err(error) => tracing::debug!(%error, "SPDY session"),
        },
        ended = &mut reading => if let Err(error) = ended {
            tracing::debug!(%error, "SPDY session");
        },
    }
}

/// Sends frames until all senders are dropped, then a GOAWAY frame. Returns the output, still open.
async fn write<W: AsyncWrite + Unpin>(mut output: W, mut frames: mpsc::Receiver<Frame>) -> io::Result<W> {
    let mut deflater = Deflater::new();
    let mut buffer = BytesMut::with_capacity(CHUNK_BYTES + 16);
    // Ids of the server's pings are even.
    let mut ping = 0;
    loop {
        let mut is_last = false;
        let mut frame = match timeout(PING_INTERVAL, frames.recv()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                is_last = true;
                Frame::GoAway { last_id: 0 }
            }
            Err(_) => {
                ping += 2;
                Frame::Ping(ping)
            }
        };
        if let Frame::SynReply { block, .. } = &mut frame {
            *block = deflater.block(&Headers::new())?;
        }
        buffer.clear();
        frame.encode(&mut buffer);
        output.write_all(&buffer).await?;
        output.flush().await?;
        if is_last {
            return Ok(output);
        }
    }
}

/// The direction from the client.
struct Incoming {
    /// Weak, so that the connection can be finished while the client is still sending.
    sender: mpsc::WeakSender<Frame>,
    accepted: mpsc::Sender<Stream>,
    inflater: Inflater,
    inputs: BTreeMap<u32, Inbound>,
    /// The other direction of each stream.
    pumps: JoinSet<()>,
    windows: Arc<Windows>,
    /// Number of bytes read since the connection's window was last granted.
    taken: u32,
    last_id: u32,
}

/// A stream whose client may send data.
struct Inbound {
    /// `None` once the program does not read any more.
    input: Option<WriteHalf<DuplexStream>>,
    /// Number of bytes read since the stream's window was last granted.
    taken: u32,
    pump: AbortHandle,
}

impl Incoming {
    async fn read(mut self, mut reader: Reader<impl AsyncRead + Unpin>) -> io::Result<()> {
        while let Some(frame) = reader.next().await? {
            while self.pumps.try_join_next().is_some() {}
            match frame {
                Frame::SynStream { id, fin, block } => {
                    let headers = self.inflater.headers(&block)?;
                    self.accept(id, fin, headers).await;
                }
                // The headers are not needed, but decompressing them updates the compression state.
                Frame::SynReply { block, .. } => drop(self.inflater.headers(&block)?),
                Frame::Headers { id, fin, block } => {
                    self.inflater.headers(&block)?;
                    if fin {
                        self.end(id).await;
                    }
                }
                Frame::Data { id, fin, data } => {
                    self.data(id, &data).await;
                    if fin {
                        self.end(id).await;
                    }
                }
                Frame::Reset { id, .. } => {
                    self.windows.remove(id);
                    if let Some(inbound) = self.inputs.remove(&id) {
                        inbound.pump.abort();
                    }
                }
                // Even ids are replies to the server's pings.
                Frame::Ping(id) if id % 2 == 1 => self.send(Frame::Ping(id)).await,
                Frame::Settings { initial_window: Some(window) } => self.windows.set_initial(window),
                Frame::WindowUpdate { id, delta } => self.windows.grant(id, delta),
                Frame::GoAway { .. } | Frame::Ping(_) | Frame::Settings { .. } | Frame::Other => {}
            }
        }
        Ok(())
    }

    async fn send(&self, frame: Frame) {
        if let Some(sender) = self.sender.upgrade() {
            let _ = sender.send(frame).await;
        }
    }

    async fn accept(&mut self, id: u32, fin: bool, headers: Headers) {
        // A client's ids are odd and increase.
        if id.is_multiple_of(2) || id <= self.last_id {
            return self.send(Frame::Reset { id, status: reset::PROTOCOL_ERROR }).await;
        }
        self.last_id = id;
        let (Some(sender), true) = (self.sender.upgrade(), self.inputs.len() < STREAMS_MAX) else {
            return self.send(Frame::Reset { id, status: reset::REFUSED }).await;
        };
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let stream = Stream { id, headers, io: near, sender: sender.clone() };
        if self.accepted.try_send(stream).is_err() {
            return self.send(Frame::Reset { id, status: reset::REFUSED }).await;
        }
        let _ = sender.send(Frame::SynReply { id, fin: false, block: Default::default() }).await;
        let (output, input) = tokio::io::split(far);
        self.windows.add(id);
        let pump = self.pumps.spawn(pump(id, output, sender, self.windows.clone()));
        self.inputs.insert(id, Inbound { input: Some(input), taken: 0, pump });
        if fin {
            self.end(id).await;
        }
    }

    /// Forwards data to the program, and grants windows for it.
    async fn data(&mut self, id: u32, data: &[u8]) {
        let Some(inbound) = self.inputs.get_mut(&id) else {
            return self.send(Frame::Reset { id, status: reset::INVALID_STREAM }).await;
        };
        if let Some(input) = &mut inbound.input
            && input.write_all(data).await.is_err()
        {
            inbound.input = None;
        }
        let length = data.len() as u32;
        self.taken += length;
        inbound.taken += length;
        let grants = [(id, &mut inbound.taken), (0, &mut self.taken)];
        let due: Vec<Frame> = grants
            .into_iter()
            .filter(|(_, taken)| **taken >= GRANT_BYTES)
            .map(|(id, taken)| Frame::WindowUpdate { id, delta: std::mem::take(taken) })
            .collect();
        for frame in due {
            self.send(frame).await;
        }
    }

    /// Ends the input of a stream.
    async fn end(&mut self, id: u32) {
        if let Some(Inbound { input: Some(mut input), .. }) = self.inputs.remove(&id) {
            let _ = input.shutdown().await;
        }
    }
}

/// Sends the output of a stream until it ends.
async fn pump(id: u32, mut output: ReadHalf<DuplexStream>, sender: Sender, windows: Arc<Windows>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = output.read(&mut buffer).await.unwrap_or(0);
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(windows.take(id, rest.len()).await);
            let data = Frame::Data { id, fin: false, data: now.to_vec().into() };
            if sender.send(data).await.is_err() {
                return;
            }
            rest = later;
        }
        if count == 0 {
            windows.remove(id);
            let _ = sender.send(Frame::Data { id, fin: true, data: Default::default() }).await;
            return;
        }
    }
}

/// The bytes that the client allows the server to send.
#[derive(Default)]
struct Windows {
    state: Mutex<WindowState>,
    changed: Notify,
}

struct WindowState {
    /// True if the client uses windows.
    is_used: bool,
    initial: i64,
    connection: i64,
    streams: BTreeMap<u32, i64>,
}

impl Default for WindowState {
    fn default() -> WindowState {
        WindowState { is_used: false, initial: WINDOW_BYTES, connection: WINDOW_BYTES, streams: BTreeMap::new() }
    }
}

impl Windows {
    fn add(&self, id: u32) {
        let mut state = self.state.lock();
        let initial = state.initial;
        state.streams.insert(id, initial);
    }

    fn remove(&self, id: u32) {
        self.state.lock().streams.remove(&id);
    }

    /// Changes the window of every stream, also of open ones.
    fn set_initial(&self, window: u32) {
        let mut state = self.state.lock();
        let difference = i64::from(window) - state.initial;
        state.is_used = true;
        state.initial = i64::from(window);
        state.streams.values_mut().for_each(|window| *window += difference);
        drop(state);
        self.changed.notify_waiters();
    }

    fn grant(&self, id: u32, delta: u32) {
        let mut state = self.state.lock();
        state.is_used = true;
        if id == 0 {
            state.connection += i64::from(delta);
        } else if let Some(window) = state.streams.get_mut(&id) {
            *window += i64::from(delta);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the stream may send. Returns how many of the `wanted` bytes may be sent, and
    /// counts them as sent.
    async fn take(&self, id: u32, wanted: usize) -> usize {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the state is read, so that no change is missed.
            changed.as_mut().enable();
            if let Some(count) = self.state.lock().take(id, wanted) {
                return count;
            }
            changed.await;
        }
    }
}

impl WindowState {
    fn take(&mut self, id: u32, wanted: usize) -> Option<usize> {
        // A stream that was reset has no window. The client discards the rest of its data.
        let Some(stream) = self.streams.get_mut(&id) else { return Some(wanted) };
        let allowed = if self.is_used { self.connection.min(*stream) } else { i64::MAX };
        let count = usize::try_from(allowed).unwrap_or(0).min(wanted);
        if count == 0 {
            return None;
        }
        self.connection -= count as i64;
        *stream -= count as i64;
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Client;
    use super::*;

    #[test]
    fn windows_limit_only_clients_that_use_them() {
        let mut state = WindowState::default();
        state.streams.insert(1, WINDOW_BYTES);
        assert_eq!(state.take(1, 100_000), Some(100_000), "a client without windows gets everything");
        state.is_used = true;
        assert_eq!(state.take(1, 1), None);
        state.connection = 10;
        state.streams.insert(1, 20);
        assert_eq!((state.take(1, 15), state.take(1, 5)), (Some(10), None));
    }

    #[tokio::test]
    async fn a_waiting_stream_continues_when_its_window_is_granted() {
        let windows = Arc::new(Windows::default());
        windows.add(1);
        windows.set_initial(4);
        assert_eq!(windows.take(1, 100).await, 4);
        let waiting = tokio::spawn({
            let windows = windows.clone();
            async move { windows.take(1, 100).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        windows.grant(1, 7);
        assert_eq!(waiting.await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_stream_carries_data_in_both_directions_and_each_ends_separately() {
        let (mut client, io) = Client::connect();
        let mut connection = Connection::open(io);
        client.open(1, &[("streamtype", "data")]).await;
        let mut stream = connection.next().await.expect("a stream");
        assert_eq!((stream.id, stream.header("streamtype")), (1, "data"));
        assert!(matches!(client.next().await, Frame::SynReply { id: 1, fin: false, .. }));
        client.send(Frame::Data { id: 1, fin: true, data: "question".into() }).await;
        let mut text = String::new();
        stream.io.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "question");
        stream.io.write_all(b"answer").await.unwrap();
        assert_eq!(client.next().await, Frame::Data { id: 1, fin: false, data: "answer".into() });
        drop(stream);
        assert_eq!(client.next().await, Frame::Data { id: 1, fin: true, data: Default::default() });
        client.send(Frame::Ping(1)).await;
        assert_eq!(client.next().await, Frame::Ping(1));
        let finished = tokio::spawn(connection.finish());
        assert!(matches!(client.next().await, Frame::GoAway { .. }));
        drop(client);
        finished.await.unwrap();
    }

    #[tokio::test]
    async fn windows_are_granted_for_data_that_was_read_and_unknown_streams_are_reset() {
        let (mut client, io) = Client::connect();
        let mut connection = Connection::open(io);
        client.open(1, &[("streamtype", "data")]).await;
        let mut stream = connection.next().await.expect("a stream");
        assert!(matches!(client.next().await, Frame::SynReply { .. }));
        let taking = tokio::spawn(async move {
            let mut bytes = vec![0; GRANT_BYTES as usize];
            stream.io.read_exact(&mut bytes).await.unwrap();
            stream
        });
        client.send(Frame::Data { id: 1, fin: false, data: vec![0; GRANT_BYTES as usize].into() }).await;
        assert_eq!(client.next().await, Frame::WindowUpdate { id: 1, delta: GRANT_BYTES });
        assert_eq!(client.next().await, Frame::WindowUpdate { id: 0, delta: GRANT_BYTES });
        let _stream = taking.await.unwrap();
        client.open(1, &[("streamtype", "data")]).await;
        assert_eq!(client.next().await, Frame::Reset { id: 1, status: reset::PROTOCOL_ERROR });
        client.send(Frame::Data { id: 9, fin: false, data: "x".into() }).await;
        assert_eq!(client.next().await, Frame::Reset { id: 9, status: reset::INVALID_STREAM });
    }

    #[tokio::test]
    async fn the_streams_end_when_the_client_disconnects() {
        let (mut client, io) = Client::connect();
        let mut connection = Connection::open(io);
        client.open(1, &[("streamtype", "data")]).await;
        let mut stream = connection.next().await.expect("a stream");
        drop(client);
        let mut bytes = Vec::new();
        stream.io.read_to_end(&mut bytes).await.unwrap();
        connection.closed().await;
        assert!(stream.io.write_all(b"late").await.is_err());
        assert!(connection.next().await.is_none());
    }
}
