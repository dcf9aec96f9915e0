//! The streams of a command over SPDY: `v4.channel.k8s.io` and its predecessors.

use std::time::Duration;

use berth_apimachinery::status::Status;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream};
use tokio::time::timeout;

use super::super::session::{self, Outcome, Resize, Wanted};
use super::super::streams::Command;
use super::super::upgrade;
use super::connection::{Connection, Stream};

/// Time for a client to open its streams.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a message with a terminal's size, in bytes.
const SIZE_BYTES_MAX: u64 = 1024;

/// Differences between the protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// The outcome is a Status, with the exit code (v4). Before, it is a message, and only for
    /// failures.
    has_status: bool,
    /// True if there is a stream for sizes of the terminal (since v3).
    has_resize: bool,
}

/// The protocols by name. Clients that do not name one use the first version.
pub(crate) const PROTOCOLS: [(&str, Format); 5] = [
    ("v4.channel.k8s.io", Format { has_status: true, has_resize: true }),
    ("v3.channel.k8s.io", Format { has_status: false, has_resize: true }),
    ("v2.channel.k8s.io", Format { has_status: false, has_resize: false }),
    ("channel.k8s.io", Format { has_status: false, has_resize: false }),
    ("", Format { has_status: false, has_resize: false }),
];

/// The protocol of a session with a client that speaks `wanted`.
pub(crate) fn choose(wanted: &[String]) -> Result<(&'static str, Format), Status> {
    if wanted.is_empty() {
        return upgrade::choose(&[String::new()], &PROTOCOLS).copied();
    }
    upgrade::choose(wanted, &PROTOCOLS).copied()
}

/// The streams of a client.
#[derive(Default)]
struct Streams {
    error: Option<DuplexStream>,
    stdin: Option<DuplexStream>,
    stdout: Option<DuplexStream>,
    stderr: Option<DuplexStream>,
    resize: Option<DuplexStream>,
}

impl Streams {
    fn slot(&mut self, kind: &str, wanted: Wanted) -> Option<&mut Option<DuplexStream>> {
        match kind {
            "error" => Some(&mut self.error),
            "stdin" if wanted.stdin => Some(&mut self.stdin),
            "stdout" if wanted.stdout => Some(&mut self.stdout),
            "stderr" if wanted.stderr => Some(&mut self.stderr),
            "resize" if wanted.resize => Some(&mut self.resize),
            _ => None,
        }
    }

    async fn add(&mut self, stream: Stream, wanted: Wanted) {
        let kind = stream.header("streamtype").to_owned();
        match self.slot(&kind, wanted) {
            Some(slot) if slot.is_none() => *slot = Some(stream.io),
            _ => stream.refuse().await,
        }
    }

    fn are_complete(&self, wanted: Wanted) -> bool {
        self.error.is_some()
            && self.stdin.is_some() == wanted.stdin
            && self.stdout.is_some() == wanted.stdout
            && self.stderr.is_some() == wanted.stderr
            && self.resize.is_some() == wanted.resize
    }

    /// Waits for all streams; `None` if the client disconnects before.
    async fn collect(connection: &mut Connection, wanted: Wanted) -> Option<Streams> {
        let mut streams = Streams::default();
        while !streams.are_complete(wanted) {
            streams.add(connection.next().await?, wanted).await;
        }
        Some(streams)
    }
}

/// Runs a command with the streams of a client.
pub(crate) async fn serve(
    io: impl AsyncRead + AsyncWrite + Send + 'static,
    format: Format,
    mut wanted: Wanted,
    action: &'static str,
    command: Command,
) {
    let mut connection = Connection::open(io);
    wanted.resize &= format.has_resize;
    let Ok(Some(streams)) = timeout(STREAMS_TIMEOUT, Streams::collect(&mut connection, wanted)).await else {
        tracing::debug!("the client did not open the streams of its command in time");
        return;
    };
    // Only sizes need a pipe: the program uses the other streams directly.
    let sizes_only = Wanted { stdin: false, stdout: false, stderr: false, ..wanted };
    let (mut program, ends) = session::pipes(sizes_only);
    program.stdin = streams.stdin.map(|it| Box::new(it) as _);
    program.stdout = streams.stdout.map(|it| Box::new(it) as _);
    program.stderr = streams.stderr.map(|it| Box::new(it) as _);
    let sizes = async {
        if let (Some(stream), Some(resize)) = (streams.resize, ends.resize) {
            follow_sizes(stream, resize).await;
        }
        std::future::pending().await
    };
    let client_gone = async {
        tokio::select! {
            () = connection.closed() => {}
            () = sizes => {}
        }
    };
    if let Some(result) = session::until_ended(command(program), client_gone).await {
        let outcome = Outcome::new(action, result);
        let text = if format.has_status { Some(outcome.status().to_string()) } else { outcome.text() };
        if let (Some(mut error), Some(text)) = (streams.error, text) {
            let _ = error.write_all(text.as_bytes()).await;
        }
        connection.finish().await;
    }
}

/// Reads sizes, which are JSON objects one after the other, until the stream ends.
async fn follow_sizes(stream: DuplexStream, resize: Resize) {
    let mut stream = BufReader::new(stream);
    let mut size = Vec::new();
    while let Ok(1..) = (&mut stream).take(SIZE_BYTES_MAX).read_until(b'}', &mut size).await {
        resize.set(&size);
        size.clear();
    }
}

#[cfg(test)]
mod tests {
    use berth_pod_runtime::{ExitStatus, RuntimeError};

    use super::super::testing::Client;
    use super::*;

    #[test]
    fn clients_that_name_no_protocol_speak_the_first_version() {
        assert_eq!(choose(&[]).unwrap(), ("", Format { has_status: false, has_resize: false }));
        let wanted = ["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io"].map(str::to_owned);
        assert_eq!(choose(&wanted).unwrap().0, "v4.channel.k8s.io");
    }

    fn wanted(tty: bool) -> Wanted {
        Wanted { stdin: true, stdout: true, stderr: !tty, resize: tty, terminal: tty }
    }

    #[tokio::test]
    async fn a_command_gets_its_input_and_the_client_its_outputs_and_exit_code() {
        let (mut client, io) = Client::connect();
        let format = choose(&["v4.channel.k8s.io".to_owned()]).unwrap().1;
        let command: Command = Box::new(|io| {
            Box::pin(async move {
                let (mut stdin, mut stdout, mut stderr) = (io.stdin.unwrap(), io.stdout.unwrap(), io.stderr.unwrap());
                let mut text = String::new();
                stdin.read_to_string(&mut text).await.unwrap();
                stdout.write_all(text.to_uppercase().as_bytes()).await.unwrap();
                stderr.write_all(b"done").await.unwrap();
                Ok(ExitStatus { code: 3 })
            })
        });
        let served = tokio::spawn(serve(io, format, wanted(false), "executing command in", command));
        for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr"), (9, "other")] {
            client.open(id, &[("streamtype", kind)]).await;
        }
        client.data(3, "shout", true).await;
        let [error, stdout, stderr] = client.outputs([1, 5, 7]).await;
        assert_eq!((stdout, stderr), (("SHOUT".to_owned(), true), ("done".to_owned(), true)));
        let status: serde_json::Value = serde_json::from_str(&error.0).unwrap();
        assert_eq!((&status["reason"], error.1), (&"NonZeroExitCode".into(), true));
        drop(client);
        served.await.unwrap();
    }

    #[tokio::test]
    async fn sizes_of_the_terminal_reach_the_command_and_old_clients_get_errors_as_text() {
        let (mut client, io) = Client::connect();
        let format = choose(&["v3.channel.k8s.io".to_owned()]).unwrap().1;
        let command: Command = Box::new(|io| {
            Box::pin(async move {
                let size = io.resize.unwrap().recv().await.unwrap();
                Err(RuntimeError::Internal(format!("{} columns", size.width)))
            })
        });
        tokio::spawn(serve(io, format, wanted(true), "executing command in", command));
        for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")] {
            client.open(id, &[("streamtype", kind)]).await;
        }
        client.data(7, "{\"Width\":132,\"Height\":43}\n", false).await;
        let [error, _, _] = client.outputs([1, 3, 5]).await;
        assert_eq!(error.0, "error executing command in container: 132 columns");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_opens_no_streams_is_disconnected() {
        let (mut client, io) = Client::connect();
        let command: Command = Box::new(|_| panic!("no command runs"));
        let served = tokio::spawn(serve(io, PROTOCOLS[0].1, wanted(false), "executing command in", command));
        client.open(1, &[("streamtype", "error")]).await;
        served.await.unwrap();
    }
}
