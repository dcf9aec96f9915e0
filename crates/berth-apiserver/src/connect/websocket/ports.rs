//! Forwarded connections as channels of a WebSocket: `v4.channel.k8s.io` as clients other than
//! kubectl use it. The query names the ports. The port at position `n` has channel `2n` for data
//! and `2n + 1` for an error. The first message on each channel is the port's number.

use berth_apimachinery::status::Status;
use bytes::Bytes;
use futures::stream::SplitStream;
use tokio::io::{AsyncWriteExt, DuplexStream, WriteHalf};
use tokio::task::JoinSet;

use super::super::port_forward::Target;
use super::super::session::PIPE_BYTES;
use super::super::upgrade::{self, Io};
use super::{Sender, Socket, carry, close, next, on_channel, open, parse, pump, queue};

/// The protocols by name, and whether messages are base64.
const PROTOCOLS: [(&str, bool); 5] = [
    ("v4.channel.k8s.io", false),
    ("v4.base64.channel.k8s.io", true),
    ("channel.k8s.io", false),
    ("base64.channel.k8s.io", true),
    ("", false),
];
/// Maximum number of ports of a connection. Each port has two channels. A channel's number is one
/// byte, or one digit in the base64 protocols.
const PORTS_MAX: [usize; 2] = [127, 5];

/// The protocol of a session with a client that speaks `wanted`, and whether it is base64.
pub(crate) fn choose(wanted: &[String]) -> Result<(&'static str, bool), Status> {
    if wanted.is_empty() {
        return upgrade::choose(&[String::new()], &PROTOCOLS).copied();
    }
    upgrade::choose(wanted, &PROTOCOLS).copied()
}

/// The ports of a query, unless there are none or too many.
pub(crate) fn check(ports: Vec<u16>, is_base64: bool) -> Result<Vec<u16>, Status> {
    let max = PORTS_MAX[usize::from(is_base64)];
    match ports.len() {
        0 => Err(Status::bad_request("query parameter ports is required: the ports to forward")),
        count if count > max => Err(Status::bad_request(format!(
            "query parameter ports: {count} ports are given, but at most {max} are allowed"
        ))),
        _ => Ok(ports),
    }
}

/// Forwards until all connections have ended or the client has disconnected.
pub(crate) async fn serve(io: Io, is_base64: bool, ports: Vec<u16>, target: Target) {
    let (sink, source) = open(io).await;
    let (sender, messages) = queue();
    let mut connections = JoinSet::new();
    let mut inputs = Vec::new();
    for (channel, port) in (0u8..).step_by(2).zip(ports) {
        let (pod_side, client_side) = tokio::io::duplex(PIPE_BYTES);
        let (output, input) = tokio::io::split(client_side);
        inputs.push(Some(input));
        let (target, sender) = (target.clone(), sender.clone());
        connections.spawn(async move {
            let number = port.to_le_bytes();
            for channel in [channel, channel + 1] {
                let _ = sender.send(on_channel(channel, &number, is_base64)).await;
            }
            let connected = target.connect(port, Box::new(pod_side));
            let (connected, ()) = tokio::join!(connected, pump(output, channel, is_base64, sender.clone()));
            if let Err(error) = connected {
                let _ = sender.send(on_channel(channel + 1, error.as_bytes(), is_base64)).await;
            }
        });
    }
    let mut carrying = JoinSet::new();
    carrying.spawn(carry(sink, messages, read(source, is_base64, inputs)));
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => end(&sender).await,
        () = sender.closed() => {}
    }
    drop((sender, connections));
    while carrying.join_next().await.is_some() {}
}

async fn end(sender: &Sender) {
    let _ = sender.send(close()).await;
}

/// Forwards data to the pod until the client has closed the connection.
async fn read(
    mut source: SplitStream<Socket>,
    is_base64: bool,
    mut inputs: Vec<Option<WriteHalf<DuplexStream>>>,
) -> SplitStream<Socket> {
    while let Some((channel, data)) = next_message(&mut source, is_base64).await {
        let input = inputs.get_mut(usize::from(channel / 2)).filter(|_| channel % 2 == 0);
        if let Some(slot) = input
            && let Some(input) = slot
            && input.write_all(&data).await.is_err()
        {
            // The pod does not read any more.
            *slot = None;
        }
    }
    for input in inputs.iter_mut().flatten() {
        let _ = input.shutdown().await;
    }
    source
}

/// The next well-formed message.
async fn next_message(source: &mut SplitStream<Socket>, is_base64: bool) -> Option<(u8, Bytes)> {
    loop {
        if let Some(message) = parse(next(source).await?, is_base64) {
            return Some(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_ports_of_a_connection_is_limited_by_its_channels() {
        assert!(check(Vec::new(), false).unwrap_err().message.contains("ports is required"));
        assert_eq!(check(vec![1; 127], false).map(|ports| ports.len()), Ok(127));
        assert!(check(vec![1; 128], false).is_err() && check(vec![1; 6], true).is_err());
    }
}
