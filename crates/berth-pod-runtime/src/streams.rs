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

/// The streams of an `exec` or `attach`. Absent streams were not requested.
pub struct StreamIo {
    /// Input; its end closes the command's standard input.
    pub stdin: Option<Input>,
    /// Standard output. With a terminal, it also has standard error.
    pub stdout: Option<Output>,
    /// Standard error.
    pub stderr: Option<Output>,
    /// Run the command on a terminal.
    pub tty: bool,
    /// Sizes of the client's terminal. If the client sent one before the command starts, it is the
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
    /// Exit code; 128 plus the signal's number if a signal ended it.
    pub code: i32,
}

/// The requested part of a log: the fields of Kubernetes' `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Continue until the container ends.
    pub follow: bool,
    /// Only lines at or after this time.
    pub since: Option<Timestamp>,
    /// Start each line with its time in RFC 3339 with nanoseconds.
    pub timestamps: bool,
    /// Only this many last lines, counted before other limits.
    pub tail_lines: Option<u64>,
    /// Only this many first bytes of the selected lines.
    pub limit_bytes: Option<u64>,
    /// Only one of the two streams: `Stdout` or `Stderr`; `None` for both.
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
