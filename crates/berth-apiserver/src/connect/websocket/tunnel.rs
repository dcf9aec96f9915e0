//! A byte stream as binary messages of a WebSocket. kubectl since 1.31 forwards ports by SPDY in
//! such a stream.

use futures::StreamExt;
use futures::stream::SplitStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio_tungstenite::tungstenite::Message;

use super::super::session::{CHUNK_BYTES, PIPE_BYTES};
use super::super::upgrade::Io;
use super::{Sender, Socket, carry, close, next, open, queue};

/// The protocol of the messages.
pub(crate) const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";

/// The stream in a WebSocket. It ends with the connection, and dropping it closes the connection.
pub(crate) async fn open_stream(io: Io) -> DuplexStream {
    let (sink, source) = open(io).await;
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let (output, input) = tokio::io::split(far);
    let (sender, messages) = queue();
    // Both end when the stream is dropped or the connection ends.
    tokio::spawn(carry(sink, messages, write(source, input)));
    tokio::spawn(read(output, sender));
    near
}

async fn write(mut source: SplitStream<Socket>, mut input: WriteHalf<DuplexStream>) -> SplitStream<Socket> {
    while let Some(data) = next(&mut source).await {
        if input.write_all(&data).await.is_err() {
            break;
        }
    }
    let _ = input.shutdown().await;
    // After the stream was dropped, further data of the client is discarded until it closes.
    while source.next().await.is_some_and(|message| message.is_ok()) {}
    source
}

async fn read(mut output: ReadHalf<DuplexStream>, sender: Sender) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = tokio::select! {
            count = output.read(&mut buffer) => count,
            () = sender.closed() => return,
        };
        let Ok(count @ 1..) = count else { break };
        if sender.send(Message::Binary(buffer[..count].to_vec().into())).await.is_err() {
            return;
        }
    }
    let _ = sender.send(close()).await;
}
