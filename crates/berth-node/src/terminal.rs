//! The master of a pseudo-terminal, for asynchronous code.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The master of a terminal.
pub(crate) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    /// Registers the master of a terminal with tokio.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe; the descriptor of an `OwnedFd` stays open and does not change"
    )]
    pub fn new(master: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
        AsyncFd::new(master).map(Self)
    }

    /// Reads output of the terminal. Returns 0 once no process has the terminal open.
    pub async fn read(&self, buffer: &mut [u8]) -> usize {
        let read = self.0.async_io(Interest::READABLE, |master| Ok(rustix::io::read(master, &mut *buffer)?));
        read.await.unwrap_or(0)
    }

    /// Reads the available output without waiting. Returns 0 if there is none.
    pub fn read_now(&self, buffer: &mut [u8]) -> usize {
        rustix::io::read(self.0.get_ref(), buffer).unwrap_or(0)
    }

    /// Writes all bytes as input, as fast as the terminal accepts them.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.0.async_io(Interest::WRITABLE, |master| Ok(rustix::io::write(master, bytes)?)).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
