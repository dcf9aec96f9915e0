//! WebSocket sessions. [`channels`] carries the streams of a command, [`ports`] forwarded
//! connections, [`tunnel`] the bytes of another protocol, and [`body`] a response.

pub(super) mod body;
pub(super) mod channels;
pub(super) mod ports;
pub(super) mod tunnel;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::session::{CHUNK_BYTES, CLOSE_GRACE};
use super::upgrade::Io;

/// Maximum size of a client's message in bytes. Some clients send a whole file at once.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of bytes read from a connection at once.
const READ_BYTES: usize = 32 * 1024;
/// Maximum number of messages that wait to be sent. Further senders wait for the client.
const MESSAGES_MAX: usize = 4;
/// Interval of pongs on a connection without other messages to send. They show the client that the
/// server is alive, even while a program does not read its input and the client's pings behind that
/// input are unread. They also detect clients that are no longer connected.
const PONG_INTERVAL: Duration = Duration::from_secs(15);

type Socket = WebSocketStream<Io>;
/// Messages to a client. Closed when the connection has ended.
type Sender = mpsc::Sender<Message>;

/// The two directions of a WebSocket.
async fn open(io: Io) -> (SplitSink<Socket, Message>, SplitStream<Socket>) {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split()
}

fn queue() -> (Sender, mpsc::Receiver<Message>) {
    mpsc::channel(MESSAGES_MAX)
}

/// Sends messages until all senders are dropped. Runs `reading` at the same time, and afterwards
/// until the client has closed the connection and `reading` returns. Ends early if the client is no
/// longer connected.
async fn carry(
    mut sink: SplitSink<Socket, Message>,
    mut messages: mpsc::Receiver<Message>,
    reading: impl Future<Output = SplitStream<Socket>>,
) {
    tokio::pin!(reading);
    let sending = async {
        loop {
            match timeout(PONG_INTERVAL, messages.recv()).await {
                Ok(Some(message)) => sink.send(message).await?,
                Ok(None) => return Ok::<_, Error>(()),
                Err(_) => sink.send(Message::Pong(Bytes::new())).await?,
            }
        }
    };
    let source = tokio::select! {
        sent = sending => match sent {
            Ok(()) => {
                drop(messages);
                timeout(CLOSE_GRACE, reading).await.ok()
            }
            Err(_) => None,
        },
        source = &mut reading => Some(source),
    };
    // The end of the TLS session shows the client that the data is complete.
    if let Some(Ok(mut socket)) = source.map(|source| sink.reunite(source)) {
        let _ = timeout(CLOSE_GRACE, socket.get_mut().shutdown()).await;
    }
}

/// The next data of a client; `None` when it has closed the connection.
async fn next(source: &mut SplitStream<Socket>) -> Option<Bytes> {
    loop {
        match source.next().await? {
            Ok(Message::Binary(data)) => return Some(data),
            Ok(Message::Text(text)) => return Some(Bytes::from(text)),
            // The library responds to a close frame and then ends the stream.
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "WebSocket session");
                return None;
            }
        }
    }
}

/// The message that ends a connection.
fn close() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

/// A message on a numbered channel. In base64 protocols it is text, and begins with a digit.
fn on_channel(channel: u8, data: &[u8], is_base64: bool) -> Message {
    if is_base64 {
        let mut text = String::with_capacity(1 + data.len() * 4 / 3 + 4);
        text.push(char::from(b'0' + channel));
        STANDARD.encode_string(data, &mut text);
        return Message::Text(text.into());
    }
    let mut message = BytesMut::with_capacity(1 + data.len());
    message.put_u8(channel);
    message.put_slice(data);
    Message::Binary(message.freeze())
}

/// Channel and content of a client's message; `None` for a malformed one.
fn parse(mut message: Bytes, is_base64: bool) -> Option<(u8, Bytes)> {
    if message.is_empty() {
        return None;
    }
    let channel = message.split_to(1)[0];
    if !is_base64 {
        return Some((channel, message));
    }
    let channel = channel.checked_sub(b'0').filter(|channel| *channel < 10)?;
    Some((channel, STANDARD.decode(&message).ok()?.into()))
}

/// Sends an output on a channel until it ends or the client has disconnected.
async fn pump(mut output: impl AsyncRead + Unpin, channel: u8, is_base64: bool, sender: Sender) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        if sender.send(on_channel(channel, &buffer[..count], is_base64)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_channel_first() {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(on_channel(1, b"hi", false), Message::Binary(bytes("\u{1}hi")));
        assert_eq!(on_channel(1, b"hi", true), Message::Text("1aGk=".into()));
        assert_eq!(parse(bytes("\u{0}ls"), false), Some((0, bytes("ls"))));
        assert_eq!(parse(bytes("4aGk="), true), Some((4, bytes("hi"))));
        assert_eq!((parse(Bytes::new(), false), parse(bytes("x"), true), parse(bytes("0%"), true)), (None, None, None));
    }
}
