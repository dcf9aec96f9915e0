//! Messages with file descriptors over Unix sockets, for asynchronous and blocking code.
//!
//! A message consists of the length of its JSON in four bytes, most significant first, and the
//! JSON. File descriptors are sent with the first bytes of a message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Maximum size of a message in bytes. A container's configuration, environment included, is below
/// the API server's size limit on objects, which is a few MiB.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Maximum number of file descriptors in a message.
const DESCRIPTORS_MAX: usize = 4;

/// Sends a message with at most four file descriptors.
///
/// # Errors
/// The message is too long, or the connection is broken.
pub async fn send<T: Serialize>(stream: &UnixStream, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = encode(message)?;
    let mut sent = 0;
    while sent < bytes.len() {
        let fds = if sent == 0 { fds } else { &[] };
        sent += stream.async_io(Interest::WRITABLE, || send_some(stream.as_fd(), &bytes[sent..], fds)).await?;
    }
    Ok(())
}

/// Receives a message; `None` at the end of the stream.
///
/// # Errors
/// The connection is broken, or the bytes are not a message of this type.
pub async fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut fds = Vec::new();
    let mut header = [0; 4];
    if !fill(stream, &mut header, &mut fds).await? {
        return Ok(None);
    }
    let mut body = vec![0; body_len(header)?];
    if !fill(stream, &mut body, &mut fds).await? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}

/// Fills the buffer. Returns false if the stream ended before the first byte.
async fn fill(stream: &UnixStream, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        let read =
            stream.async_io(Interest::READABLE, || receive_some(stream.as_fd(), &mut buffer[filled..], fds)).await?;
        match (read, filled) {
            (0, 0) => return Ok(false),
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => filled += read,
        }
    }
    Ok(true)
}

/// Sends a message over a blocking socket.
///
/// # Errors
/// As of [`send`].
pub fn send_blocking<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = encode(message)?;
    let mut sent = 0;
    while sent < bytes.len() {
        sent += send_some(socket, &bytes[sent..], if sent == 0 { fds } else { &[] })?;
    }
    Ok(())
}

/// Receives a message from a blocking socket; `None` at the end of the stream.
///
/// # Errors
/// As of [`receive`].
pub fn receive_blocking<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut fds = Vec::new();
    let mut header = [0; 4];
    if !fill_blocking(socket, &mut header, &mut fds)? {
        return Ok(None);
    }
    let mut body = vec![0; body_len(header)?];
    if !fill_blocking(socket, &mut body, &mut fds)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}

fn fill_blocking(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match (receive_some(socket, &mut buffer[filled..], fds)?, filled) {
            (0, 0) => return Ok(false),
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (read, _) => filled += read,
        }
    }
    Ok(true)
}

fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {length} bytes is longer than {MESSAGE_BYTES_MAX}")));
    }
    let header = u32::try_from(length).map_err(io::Error::other)?.to_be_bytes();
    bytes[..4].copy_from_slice(&header);
    Ok(bytes)
}

fn body_len(header: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_be_bytes(header) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {length} bytes is longer than {MESSAGE_BYTES_MAX}")));
    }
    Ok(length)
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other(format!("a message carries at most {DESCRIPTORS_MAX} descriptors")));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

fn receive_some(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    Ok(message.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[tokio::test]
    async fn a_message_larger_than_the_socket_buffer_arrives_with_its_descriptor() {
        let (left, right) = UnixStream::pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let text = "x".repeat(3 << 20);
        let sending = async { send(&left, &text, &[writer.as_fd()]).await.unwrap() };
        let (_, received) = tokio::join!(sending, receive::<String>(&right));
        let (message, mut fds) = received.unwrap().unwrap();
        assert_eq!(message.len(), text.len());
        std::fs::File::from(fds.pop().unwrap()).write_all(b"through").unwrap();
        drop(writer);
        let mut read = String::new();
        std::fs::File::from(reader).read_to_string(&mut read).unwrap();
        assert_eq!(read, "through");
        drop(left);
        assert!(receive::<String>(&right).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn an_oversized_length_is_rejected_before_memory_is_allocated() {
        let (left, right) = UnixStream::pair().unwrap();
        left.try_write(&u32::MAX.to_be_bytes()).unwrap();
        assert!(receive::<String>(&right).await.is_err());
    }
}
