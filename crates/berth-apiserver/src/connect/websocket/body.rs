//! Sends the body of a response as messages of a WebSocket, for clients that read a log over a
//! WebSocket.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apimachinery::status::Status;
use bytes::Bytes;
use futures::stream::SplitStream;
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

use super::super::upgrade::{self, Io};
use super::{Sender, Socket, carry, close, next, open, queue};
use crate::Body;

/// How a message carries a part of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Binary,
    Base64,
}

/// The protocols by name. A client that names no protocol gets binary messages.
const PROTOCOLS: [(&str, Format); 3] =
    [("binary.k8s.io", Format::Binary), ("base64.binary.k8s.io", Format::Base64), ("", Format::Binary)];

/// The protocol for a client that offers the protocols `wanted`.
pub(crate) fn choose(wanted: &[String]) -> Result<(&'static str, Format), Status> {
    if wanted.is_empty() {
        return upgrade::choose(&[String::new()], &PROTOCOLS).copied();
    }
    upgrade::choose(wanted, &PROTOCOLS).copied()
}

/// Sends a body, and closes the connection at its end.
pub(crate) async fn serve(io: Io, format: Format, body: Body) {
    let (sink, source) = open(io).await;
    let (sender, messages) = queue();
    // The task is aborted when this set is dropped, after the client has disconnected.
    let mut sending = JoinSet::new();
    sending.spawn(send(body, format, sender));
    carry(sink, messages, read(source)).await;
}

async fn send(mut body: Body, format: Format, sender: Sender) {
    // An empty message shows the client that its request was accepted.
    if sender.send(message(&Bytes::new(), format)).await.is_err() {
        return;
    }
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = sender.closed() => return,
        };
        let Some(Ok(frame)) = frame else { break };
        if let Ok(data) = frame.into_data()
            && sender.send(message(&data, format)).await.is_err()
        {
            return;
        }
    }
    let _ = sender.send(close()).await;
}

/// Reads until the client has closed the connection. What it sends is ignored.
async fn read(mut source: SplitStream<Socket>) -> SplitStream<Socket> {
    while next(&mut source).await.is_some() {}
    source
}

fn message(data: &Bytes, format: Format) -> Message {
    match format {
        Format::Binary => Message::Binary(data.clone()),
        Format::Base64 => Message::Text(STANDARD.encode(data).into()),
    }
}
