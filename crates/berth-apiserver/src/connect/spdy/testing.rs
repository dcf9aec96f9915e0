//! The client's side of a SPDY connection, for tests.

use bytes::BytesMut;
use tokio::io::{AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

use super::frame::{Frame, Reader};
use super::headers::{Deflater, Headers};

pub(super) struct Client {
    reader: Reader<ReadHalf<DuplexStream>>,
    output: WriteHalf<DuplexStream>,
    deflater: Deflater,
}

impl Client {
    /// A client, and the connection for the server.
    pub(super) fn connect() -> (Client, DuplexStream) {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (input, output) = tokio::io::split(near);
        (Client { reader: Reader::new(input), output, deflater: Deflater::new() }, far)
    }

    pub(super) async fn send(&mut self, frame: Frame) {
        let mut bytes = BytesMut::new();
        frame.encode(&mut bytes);
        self.output.write_all(&bytes).await.expect("the server reads");
    }

    /// Opens a stream with these headers.
    pub(super) async fn open(&mut self, id: u32, headers: &[(&str, &str)]) {
        let headers: Headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let block = self.deflater.block(&headers).expect("compressed");
        self.send(Frame::SynStream { id, fin: false, block }).await;
    }

    /// Sends data on a stream, and ends the stream if `fin`.
    pub(super) async fn data(&mut self, id: u32, data: &str, fin: bool) {
        self.send(Frame::Data { id, fin, data: data.as_bytes().to_vec().into() }).await;
    }

    pub(super) async fn next(&mut self) -> Frame {
        self.reader.next().await.expect("a sound frame").expect("a frame")
    }

    /// The data of each stream until the server closes the connection, and whether the stream
    /// ended.
    pub(super) async fn outputs<const N: usize>(&mut self, ids: [u32; N]) -> [(String, bool); N] {
        let mut outputs = ids.map(|_| (String::new(), false));
        loop {
            match self.next().await {
                Frame::GoAway { .. } => return outputs,
                Frame::Data { id, fin, data } => {
                    let Some(at) = ids.iter().position(|it| *it == id) else { continue };
                    outputs[at].0.push_str(std::str::from_utf8(&data).expect("text"));
                    outputs[at].1 |= fin;
                }
                _ => {}
            }
        }
    }
}
