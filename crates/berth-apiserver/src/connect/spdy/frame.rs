//! Frames of SPDY/3.1 (SPDY Protocol, draft 3.1, section 2).

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Version in control frames. 3.1 differs from 3 by flow control of the whole connection.
const VERSION: u16 = 3;
/// Maximum size of a control frame in bytes.
const CONTROL_BYTES_MAX: usize = 16 * 1024;
/// Maximum part of a data frame that is read at once, in bytes.
const PART_BYTES: usize = 32 * 1024;

const FLAG_FIN: u8 = 1;
const ID_MASK: u32 = 0x7fff_ffff;

/// Setting of the initial window of streams.
const INITIAL_WINDOW: u32 = 7;

/// The reasons for which a stream is reset.
pub(super) mod reset {
    /// The peer violates the protocol.
    pub(crate) const PROTOCOL_ERROR: u32 = 1;
    /// No stream of this id is open.
    pub(crate) const INVALID_STREAM: u32 = 2;
    /// The stream was not processed.
    pub(crate) const REFUSED: u32 = 3;
}

/// One frame. Header blocks are compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    SynStream {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    SynReply {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    Reset {
        id: u32,
        status: u32,
    },
    /// `SETTINGS`; only the initial window is used.
    Settings {
        initial_window: Option<u32>,
    },
    Ping(u32),
    GoAway {
        last_id: u32,
    },
    Headers {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    WindowUpdate {
        id: u32,
        delta: u32,
    },
    /// A data frame, or a part of a large one.
    Data {
        id: u32,
        fin: bool,
        data: Bytes,
    },
    /// A control frame of a type that the server ignores, such as CREDENTIAL.
    Other,
}

/// Reads frames.
pub(super) struct Reader<R> {
    input: R,
    /// The rest of a data frame: stream, bytes, and whether it ends the stream.
    rest: Option<(u32, usize, bool)>,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed SPDY frame: {what}"))
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(input: R) -> Reader<R> {
        Reader { input, rest: None }
    }

    /// The next frame; `None` at the end of the connection.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        if let Some((id, length, fin)) = self.rest.take() {
            return self.data(id, length, fin).await.map(Some);
        }
        let mut head = [0; 8];
        match self.input.read_exact(&mut head).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut head = &head[..];
        let (first, second) = (head.get_u32(), head.get_u32());
        let (flags, length) = (second.to_be_bytes()[0], (second & 0x00ff_ffff) as usize);
        if first & !ID_MASK == 0 {
            return self.data(first, length, flags & FLAG_FIN != 0).await.map(Some);
        }
        if ((first >> 16) as u16) & 0x7fff != VERSION {
            return Err(malformed("its version is not 3"));
        }
        if length > CONTROL_BYTES_MAX {
            return Err(malformed("its length exceeds the limit"));
        }
        let mut payload = vec![0; length];
        self.input.read_exact(&mut payload).await?;
        control(first as u16, flags, payload.into()).map(Some)
    }

    /// The first part of the remaining `length` bytes of a data frame.
    async fn data(&mut self, id: u32, length: usize, fin: bool) -> io::Result<Frame> {
        let now = length.min(PART_BYTES);
        let mut data = vec![0; now];
        self.input.read_exact(&mut data).await?;
        let is_last = now == length;
        if !is_last {
            self.rest = Some((id, length - now, fin));
        }
        Ok(Frame::Data { id, fin: fin && is_last, data: data.into() })
    }
}

fn control(kind: u16, flags: u8, mut payload: Bytes) -> io::Result<Frame> {
    let fin = flags & FLAG_FIN != 0;
    let mut number = || payload.try_get_u32().map_err(|_| malformed("it is too short"));
    Ok(match kind {
        1 => {
            let (id, _associated) = (number()? & ID_MASK, number()?);
            // Priority and credential slot.
            payload.try_get_u16().map_err(|_| malformed("it is too short"))?;
            Frame::SynStream { id, fin, block: payload }
        }
        2 => Frame::SynReply { id: number()? & ID_MASK, fin, block: payload },
        3 => Frame::Reset { id: number()? & ID_MASK, status: number()? },
        4 => {
            let count = number()?;
            let mut initial_window = None;
            for _ in 0..count {
                let (id, value) = (number()? & 0x00ff_ffff, number()?);
                if id == INITIAL_WINDOW {
                    initial_window = Some(value);
                }
            }
            Frame::Settings { initial_window }
        }
        6 => Frame::Ping(number()?),
        7 => Frame::GoAway { last_id: number()? & ID_MASK },
        8 => Frame::Headers { id: number()? & ID_MASK, fin, block: payload },
        9 => Frame::WindowUpdate { id: number()? & ID_MASK, delta: number()? & ID_MASK },
        _ => Frame::Other,
    })
}

impl Frame {
    /// The frame in bytes.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        let flags = |fin: bool| if fin { FLAG_FIN } else { 0 };
        match self {
            Frame::SynStream { id, fin, block } => {
                head(out, 1, flags(*fin), 10 + block.len());
                out.put_u32(*id);
                out.put_u32(0);
                out.put_u16(0);
                out.put_slice(block);
            }
            Frame::SynReply { id, fin, block } => with_block(out, 2, flags(*fin), *id, block),
            Frame::Headers { id, fin, block } => with_block(out, 8, flags(*fin), *id, block),
            Frame::Reset { id, status } => numbers(out, 3, &[*id, *status]),
            Frame::Settings { initial_window } => match initial_window {
                Some(window) => numbers(out, 4, &[1, INITIAL_WINDOW, *window]),
                None => numbers(out, 4, &[0]),
            },
            Frame::Ping(id) => numbers(out, 6, &[*id]),
            Frame::GoAway { last_id } => numbers(out, 7, &[*last_id, 0]),
            Frame::WindowUpdate { id, delta } => numbers(out, 9, &[*id, *delta]),
            Frame::Data { id, fin, data } => {
                out.put_u32(*id);
                out.put_u8(flags(*fin));
                out.put_uint(data.len() as u64, 3);
                out.put_slice(data);
            }
            Frame::Other => {}
        }
    }
}

fn head(out: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u8(flags);
    out.put_uint(length as u64, 3);
}

fn with_block(out: &mut BytesMut, kind: u16, flags: u8, id: u32, block: &[u8]) {
    head(out, kind, flags, 4 + block.len());
    out.put_u32(id);
    out.put_slice(block);
}

fn numbers(out: &mut BytesMut, kind: u16, numbers: &[u32]) {
    head(out, kind, 0, 4 * numbers.len());
    for number in numbers {
        out.put_u32(*number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(bytes: &[u8]) -> io::Result<Vec<Frame>> {
        let mut reader = Reader::new(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = reader.next().await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[tokio::test]
    async fn encoded_frames_decode_to_themselves() {
        let block = Bytes::from_static(b"block");
        let frames = [
            Frame::SynStream { id: 1, fin: true, block: block.clone() },
            Frame::SynReply { id: 1, fin: false, block: block.clone() },
            Frame::Reset { id: 3, status: reset::REFUSED },
            Frame::Settings { initial_window: Some(1 << 20) },
            Frame::Settings { initial_window: None },
            Frame::Ping(7),
            Frame::GoAway { last_id: 5 },
            Frame::Headers { id: 1, fin: true, block: block.clone() },
            Frame::WindowUpdate { id: 0, delta: 65_536 },
            Frame::Data { id: 1, fin: true, data: block },
            Frame::Data { id: 1, fin: false, data: Bytes::new() },
        ];
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        assert_eq!(read_all(&bytes).await.unwrap(), frames);
    }

    #[tokio::test]
    async fn a_large_data_frame_is_read_in_parts_and_its_end_is_at_the_last() {
        let data = vec![7; PART_BYTES * 2 + 1];
        let mut bytes = BytesMut::new();
        Frame::Data { id: 9, fin: true, data: data.into() }.encode(&mut bytes);
        let frames = read_all(&bytes).await.unwrap();
        let parts: Vec<(usize, bool)> = frames
            .iter()
            .map(|frame| match frame {
                Frame::Data { id: 9, fin, data } => (data.len(), *fin),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(parts, [(PART_BYTES, false), (PART_BYTES, false), (1, true)]);
    }

    #[tokio::test]
    async fn malformed_frames_are_errors() {
        let cases: [&[u8]; 5] = [
            b"\x80\x02\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01", // version 2
            b"\x80\x03\x00\x06\x00\xff\xff\xff",                 // length over the limit
            b"\x80\x03\x00\x06\x00\x00\x00\x02\x00\x00",         // a ping of two bytes
            b"\x80\x03\x00\x04\x00\x00\x00\x04\xff\xff\xff\xff", // settings that are not there
            b"\x80\x03\x00\x06\x00\x00\x00\x04\x00",             // cut off
        ];
        for case in cases {
            assert!(read_all(case).await.is_err(), "{case:?}");
        }
    }
}
