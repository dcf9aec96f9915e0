//! Sessions: the data that an upgraded connection shares with its listener, and the pipes between a
//! client and a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_apimachinery::status::Status;
use berth_pod_runtime::{ExitStatus, RuntimeError, StreamIo, TerminalSize};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;

/// Maximum number of bytes of a stream that are buffered between a client and a program. A fast
/// side waits for the slow one.
pub(super) const PIPE_BYTES: usize = 64 * 1024;
/// Maximum size of a message to a client in bytes.
pub(super) const CHUNK_BYTES: usize = 32 * 1024;
/// Time for a program to end after its client has disconnected and its input has ended.
const END_GRACE: Duration = Duration::from_secs(5);
/// Time for a client to close its connection after the session's result was sent. Data that it
/// sends in this time is discarded. Closing earlier could reset the connection before the client
/// has read the result.
pub(super) const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// The sessions of one listener. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<JoinSet<()>>>);

impl Sessions {
    pub(super) fn spawn(&self, session: impl Future<Output = ()> + Send + 'static) {
        let mut sessions = self.0.lock();
        // Remove the results of ended sessions, so that the set does not grow.
        while sessions.try_join_next().is_some() {}
        sessions.spawn(session);
    }

    /// Ends all sessions.
    pub(crate) async fn shutdown(&self) {
        let mut sessions = std::mem::take(&mut *self.0.lock());
        sessions.shutdown().await;
    }
}

/// Data of a connection that its requests share with the listener, so that a session can keep the
/// connection.
#[derive(Clone)]
pub(crate) struct Carrier {
    pub(crate) sessions: Sessions,
    /// The connection's share of the listener's connections.
    pub(crate) slot: Arc<OwnedSemaphorePermit>,
    pub(crate) unread: Unread,
}

/// Whether a client's connection is closed when the client leaves data unread for too long. Clones
/// share the value. A session removes the limit, because a person may stop reading a terminal for
/// hours.
#[derive(Clone, Debug)]
pub(crate) struct Unread(Arc<AtomicBool>);

impl Unread {
    pub(crate) fn limited() -> Unread {
        Unread(Arc::new(AtomicBool::new(true)))
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn lift(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The streams that a client requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    /// True if the client sends sizes of its terminal.
    pub(super) resize: bool,
    /// True if the program runs on a terminal.
    pub(super) terminal: bool,
}

/// The client's ends of the streams of a program.
pub(super) struct ClientEnds {
    /// Dropping it ends the program's input.
    pub(super) stdin: Option<DuplexStream>,
    pub(super) stdout: Option<DuplexStream>,
    pub(super) stderr: Option<DuplexStream>,
    pub(super) resize: Option<Resize>,
}

/// Pipes between a client and a program.
pub(super) fn pipes(wanted: Wanted) -> (StreamIo, ClientEnds) {
    let pipe = |is_wanted: bool| is_wanted.then(|| tokio::io::duplex(PIPE_BYTES)).unzip();
    let (stdin, client_stdin) = pipe(wanted.stdin);
    let (stdout, client_stdout) = pipe(wanted.stdout);
    let (stderr, client_stderr) = pipe(wanted.stderr);
    let (resize, sizes) = (wanted.terminal && wanted.resize).then(Resize::new).unzip();
    let io = StreamIo {
        stdin: stdin.map(|it| Box::new(it) as _),
        stdout: stdout.map(|it| Box::new(it) as _),
        stderr: stderr.map(|it| Box::new(it) as _),
        tty: wanted.terminal,
        resize: sizes,
    };
    (io, ClientEnds { stdin: client_stdin, stdout: client_stdout, stderr: client_stderr, resize })
}

/// The size of a client's terminal. A program that is slow to read sizes gets the last one.
pub(super) struct Resize(watch::Sender<Option<TerminalSize>>);

impl Resize {
    fn new() -> (Resize, mpsc::Receiver<TerminalSize>) {
        let (sender, mut newest) = watch::channel(None);
        let (sizes, receiver) = mpsc::channel(1);
        // Ends when either side is dropped.
        tokio::spawn(async move {
            while newest.changed().await.is_ok() {
                let size: Option<TerminalSize> = *newest.borrow_and_update();
                if let Some(size) = size
                    && sizes.send(size).await.is_err()
                {
                    return;
                }
            }
        });
        (Resize(sender), receiver)
    }

    /// Takes a size as clients send it: `{"Width":80,"Height":24}`. Other messages are ignored.
    pub(super) fn set(&self, message: &[u8]) {
        let Ok(size) = serde_json::from_slice::<Value>(message) else { return };
        let number = |field: &str| size[field].as_u64().and_then(|number| u16::try_from(number).ok());
        if let (Some(width), Some(height)) = (number("Width"), number("Height")) {
            self.0.send_replace(Some(TerminalSize { width, height }));
        }
    }
}

/// The outcome of a session's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Exited(i32),
    Failed(String),
}

impl Outcome {
    /// The outcome of a command; `action` is `executing command in` or `attaching to`.
    pub(super) fn new(action: &str, result: Result<ExitStatus, RuntimeError>) -> Outcome {
        match result {
            Ok(exit) => Outcome::Exited(exit.code),
            Err(error) => Outcome::Failed(format!("error {action} container: {error}")),
        }
    }

    /// The Status on the error channel since protocol v4.
    pub(super) fn status(&self) -> Value {
        match self {
            Outcome::Exited(0) => json!({"metadata": {}, "status": "Success"}),
            Outcome::Exited(code) => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Outcome::Failed(why) => Status::internal(why).to_value(),
        }
    }

    /// The message on the error channel before protocol v4; `None` for success.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Outcome::Exited(0) => None,
            Outcome::Exited(code) => Some(format!("command terminated with non-zero exit code: exit status {code}")),
            Outcome::Failed(why) => Some(why.clone()),
        }
    }
}

/// Waits for a program until it ends or its client disconnects. After a disconnect, the program's
/// input has ended and it has [`END_GRACE`] to end by itself. Returns `None` if the client
/// disconnected.
pub(super) async fn until_ended<T>(
    mut program: BoxFuture<'static, T>,
    client_gone: impl Future<Output = ()>,
) -> Option<T> {
    tokio::select! {
        biased;
        result = &mut program => return Some(result),
        () = client_gone => {}
    }
    let _ = tokio::time::timeout(END_GRACE, program).await;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_statuses_with_the_exit_code_as_a_cause() {
        assert_eq!(Outcome::Exited(0).status(), json!({"metadata": {}, "status": "Success"}));
        let status = Outcome::Exited(3).status();
        assert_eq!(
            (&status["reason"], &status["details"]["causes"][0]["message"]),
            (&json!("NonZeroExitCode"), &json!("3"))
        );
        let failed = Outcome::new("executing command in", Err(RuntimeError::Internal("no such file".to_owned())));
        let message = "Internal error occurred: error executing command in container: no such file";
        assert_eq!((&failed.status()["message"], &failed.status()["code"]), (&json!(message), &json!(500)));
        assert_eq!((Outcome::Exited(0).text(), failed.text().is_some()), (None, true));
    }

    #[tokio::test]
    async fn a_slow_reader_of_sizes_gets_the_last_one() {
        let (resize, mut sizes) = Resize::new();
        for width in 1..=50 {
            resize.set(format!("{{\"Width\":{width},\"Height\":24}}").as_bytes());
            tokio::task::yield_now().await;
        }
        resize.set(b"{\"Width\":\"wide\"}");
        drop(resize);
        let mut last = None;
        while let Some(size) = sizes.recv().await {
            last = Some(size);
        }
        assert_eq!(last, Some(TerminalSize { width: 50, height: 24 }));
    }
}
