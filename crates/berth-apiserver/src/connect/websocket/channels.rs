//! The streams of a command as channels of a WebSocket: `v5.channel.k8s.io` and its predecessors.
//!
//! The first byte of each message is its channel. In v5 a client ends a stream, such as the input,
//! with a message on channel 255. Before v5, the input ends only with the connection.

use berth_apimachinery::status::Status;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;

use super::super::session::{self, Outcome, Resize, Wanted};
use super::super::streams::Command;
use super::super::upgrade::{self, Io};
use super::{Sender, Socket, carry, close, next, on_channel, open, parse, pump, queue};
use futures::stream::SplitStream;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Ends the stream of the channel in the message's second byte (v5).
const CLOSE: u8 = 255;

/// Differences between the protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    is_base64: bool,
    /// The outcome is a Status, with the exit code. Before v4 it is a message, and only for
    /// failures.
    has_status: bool,
    /// True if a client can end its input (v5).
    has_close: bool,
}

/// The protocols of commands by name. Clients that do not name one use the first version.
const PROTOCOLS: [(&str, Format); 8] = {
    const FIRST: Format = Format { is_base64: false, has_status: false, has_close: false };
    const FOURTH: Format = Format { has_status: true, ..FIRST };
    [
        ("v5.channel.k8s.io", Format { has_close: true, ..FOURTH }),
        ("v4.channel.k8s.io", FOURTH),
        ("v4.base64.channel.k8s.io", Format { is_base64: true, ..FOURTH }),
        ("v3.channel.k8s.io", FIRST),
        ("v2.channel.k8s.io", FIRST),
        ("channel.k8s.io", FIRST),
        ("base64.channel.k8s.io", Format { is_base64: true, ..FIRST }),
        ("", FIRST),
    ]
};

/// The protocol of a session with a client that speaks `wanted`.
pub(crate) fn choose(wanted: &[String]) -> Result<(&'static str, Format), Status> {
    if wanted.is_empty() {
        return upgrade::choose(&[String::new()], &PROTOCOLS).copied();
    }
    upgrade::choose(wanted, &PROTOCOLS).copied()
}

/// Runs a command with the streams of a client.
pub(crate) async fn serve(io: Io, format: Format, wanted: Wanted, action: &'static str, command: Command) {
    let (sink, source) = open(io).await;
    let (program, ends) = session::pipes(wanted);
    let (sender, messages) = queue();
    let input = Input { format, stdin: ends.stdin, resize: ends.resize };
    // Aborted when the session ends.
    let mut connection = JoinSet::new();
    connection.spawn(carry(sink, messages, input.read(source)));
    let mut outputs = JoinSet::new();
    for (output, channel) in [(ends.stdout, STDOUT), (ends.stderr, STDERR)] {
        if let Some(output) = output {
            outputs.spawn(pump(output, channel, format.is_base64, sender.clone()));
        }
    }
    // An empty message shows the client that its command was accepted.
    let first = [(wanted.stdout, STDOUT), (wanted.stderr, STDERR), (true, ERROR)];
    let first = first.into_iter().find_map(|(is_there, channel)| is_there.then_some(channel)).unwrap_or(ERROR);
    let _ = sender.send(on_channel(first, b"", format.is_base64)).await;
    if let Some(result) = session::until_ended(command(program), sender.closed()).await {
        while outputs.join_next().await.is_some() {}
        finish(&sender, &Outcome::new(action, result), format).await;
    }
    drop((sender, outputs));
    while connection.join_next().await.is_some() {}
}

/// Sends the outcome and closes the connection. A client that has disconnected does not get the
/// outcome.
async fn finish(sender: &Sender, outcome: &Outcome, format: Format) {
    let text = if format.has_status { Some(outcome.status().to_string()) } else { outcome.text() };
    if let Some(text) = text {
        let _ = sender.send(on_channel(ERROR, text.as_bytes(), format.is_base64)).await;
    }
    let _ = sender.send(close()).await;
}

/// The direction from the client to the command.
struct Input {
    format: Format,
    stdin: Option<DuplexStream>,
    resize: Option<Resize>,
}

impl Input {
    /// Reads until the client has closed the connection. Then the command's input has ended.
    async fn read(mut self, mut source: SplitStream<Socket>) -> SplitStream<Socket> {
        while let Some(message) = next(&mut source).await {
            let Some((channel, data)) = parse(message, self.format.is_base64) else { continue };
            match channel {
                STDIN => {
                    if let Some(stdin) = &mut self.stdin
                        && stdin.write_all(&data).await.is_err()
                    {
                        // The command does not read any more.
                        self.stdin = None;
                    }
                }
                RESIZE => {
                    if let Some(resize) = &self.resize {
                        resize.set(&data);
                    }
                }
                CLOSE if self.format.has_close && data.first() == Some(&STDIN) => self.stdin = None,
                _ => {}
            }
        }
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_protocol_that_the_client_prefers_is_chosen() {
        let choose = |names: &[&str]| choose(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let (name, format) = choose(&["v5.channel.k8s.io", "v4.channel.k8s.io"]).unwrap();
        assert_eq!((name, format.has_close, format.has_status), ("v5.channel.k8s.io", true, true));
        let (name, format) = choose(&[]).unwrap();
        assert_eq!((name, format.has_close, format.has_status), ("", false, false));
        assert_eq!(choose(&["v9.channel.k8s.io"]).unwrap_err().code, 400);
    }
}
