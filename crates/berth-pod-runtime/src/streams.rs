//! Byte streams between a client and a container.

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A readable stream.
pub type Input = Box<dyn AsyncRead + Send + Unpin>;
/// A writable stream. Shutting it down signals the end of the output.
pub type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// A stream in both directions, such as a forwarded connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The streams of an `exec` or `attach`. A stream is `None` if the client did not request it.
pub struct StreamIo {
    /// Input. When it ends, the command's standard input is closed.
    pub stdin: Option<Input>,
    /// Standard output. On a terminal, it includes standard error.
    pub stdout: Option<Output>,
    /// Standard error.
    pub stderr: Option<Output>,
    /// True to run the command on a terminal.
    pub tty: bool,
    /// Sizes of the client's terminal. If the client sent one before the command starts, it comes
    /// first.
    pub resize: Option<mpsc::Receiver<TerminalSize>>,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// Exit status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus {
    /// Exit code, or 128 plus the signal's number if a signal ended the command.
    pub code: i32,
}

/// The requested part of a log: the fields of Kubernetes' `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// True to continue until the container ends.
    pub follow: bool,
    /// Only lines at or after this time.
    pub since: Option<Timestamp>,
    /// True to start each line with its time in RFC 3339 with nanoseconds.
    pub timestamps: bool,
    /// Maximum number of lines, counted from the end of the log before the other limits apply.
    pub tail_lines: Option<u64>,
    /// Maximum number of bytes, counted from the start of the selected lines.
    pub limit_bytes: Option<u64>,
    /// Select only one of the two streams, `Stdout` or `Stderr`; `None` for both.
    pub stream: Option<StreamName>,
}

/// Name of an output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Chunks of a log.
pub type LogStream = BoxStream<'static, Result<Bytes, std::io::Error>>;
