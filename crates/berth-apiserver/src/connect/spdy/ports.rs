//! Forwarded connections over SPDY: `portforward.k8s.io`. Each consists of a stream for data and
//! one for an error, which have the same header `requestID`.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_apimachinery::status::Status;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::port_forward::Target;
use super::super::upgrade;
use super::connection::{Connection, Stream};

/// The protocol by name. Clients that do not name a protocol use it as well.
pub(crate) const PROTOCOLS: [(&str, ()); 2] = [("portforward.k8s.io", ()), ("", ())];
/// Time for a client to open the second stream of a pair.
const PAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// The protocol of a session with a client that speaks `wanted`.
pub(crate) fn choose(wanted: &[String]) -> Result<&'static str, Status> {
    if wanted.is_empty() {
        return Ok("");
    }
    upgrade::choose(wanted, &PROTOCOLS).map(|(name, ())| *name)
}

/// One stream of a pair whose other stream is not open yet.
struct Half {
    stream: Stream,
    is_data: bool,
    since: Instant,
}

/// Forwards connections until the client disconnects.
pub(crate) async fn serve(io: impl AsyncRead + AsyncWrite + Send + 'static, target: Target) {
    let mut connection = Connection::open(io);
    let mut halves: BTreeMap<String, Half> = BTreeMap::new();
    let mut forwarding = JoinSet::new();
    while let Some(stream) = connection.next().await {
        while forwarding.try_join_next().is_some() {}
        let now = Instant::now();
        halves.retain(|_, half| now.duration_since(half.since) < PAIR_TIMEOUT);
        let Some((is_data, id)) = place(stream.header("streamtype"), stream.header("requestid"), stream.id) else {
            stream.refuse().await;
            continue;
        };
        match halves.remove(&id) {
            None => drop(halves.insert(id, Half { stream, is_data, since: now })),
            Some(half) if half.is_data == is_data => {
                half.stream.refuse().await;
                stream.refuse().await;
            }
            Some(half) => {
                let (data, error) = if is_data { (stream, half.stream) } else { (half.stream, stream) };
                let port = data.header("port").parse::<u16>().ok().filter(|port| *port > 0);
                forwarding.spawn(forward(target.clone(), port, data.io, error.io));
            }
        }
    }
}

/// Whether a stream is for data, and the id of its pair; `None` for a stream of another kind. A
/// client without ids opens the stream for errors first, then the stream for data.
fn place(kind: &str, request: &str, stream: u32) -> Option<(bool, String)> {
    let is_data = match kind {
        "data" => true,
        "error" => false,
        _ => return None,
    };
    let id = match request {
        "" if is_data => stream.saturating_sub(2).to_string(),
        "" => stream.to_string(),
        given => given.to_owned(),
    };
    Some((is_data, id))
}

async fn forward(target: Target, port: Option<u16>, data: DuplexStream, mut error: DuplexStream) {
    let result = match port {
        Some(port) => target.connect(port, Box::new(data)).await,
        None => Err("the header port is not a port (1 to 65535)".to_owned()),
    };
    if let Err(why) = result {
        let _ = error.write_all(why.as_bytes()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_pod_runtime::RuntimeError;
    use tokio::io::AsyncReadExt;

    use super::super::frame::Frame;
    use super::super::testing::Client;
    use super::*;

    #[test]
    fn streams_without_an_id_are_paired_by_their_order() {
        assert_eq!(place("error", "", 1), Some((false, "1".to_owned())));
        assert_eq!(place("data", "", 3), Some((true, "1".to_owned())));
        assert_eq!(place("data", "7", 3), Some((true, "7".to_owned())));
        assert_eq!(place("stdin", "7", 3), None);
    }

    /// Port 7 returns all data; no other port has a program.
    fn target() -> Target {
        Target::of_test(Arc::new(|port, mut stream| {
            Box::pin(async move {
                if port != 7 {
                    return Err(RuntimeError::Internal("connection refused".to_owned()));
                }
                let mut text = String::new();
                let _ = stream.read_to_string(&mut text).await;
                let _ = stream.write_all(text.as_bytes()).await;
                Ok(())
            })
        }))
    }

    /// The content of two streams when both have ended.
    async fn texts(client: &mut Client, ids: [u32; 2]) -> [String; 2] {
        let (mut texts, mut ended) = ([String::new(), String::new()], 0);
        while ended < 2 {
            if let Frame::Data { id, fin, data } = client.next().await {
                let at = ids.iter().position(|it| *it == id).expect("a stream of the pair");
                texts[at].push_str(std::str::from_utf8(&data).unwrap());
                ended += usize::from(fin);
            }
        }
        texts
    }

    #[tokio::test]
    async fn connections_are_forwarded_one_after_the_other_and_errors_are_texts() {
        let (mut client, io) = Client::connect();
        let served = tokio::spawn(serve(io, target()));
        for (first, port, request) in [(1, "7", "0"), (5, "7", "1"), (9, "9", "2"), (13, "x", "3")] {
            let (error, data) = (first, first + 2);
            client.open(error, &[("streamtype", "error"), ("port", port), ("requestid", request)]).await;
            client.data(error, "", true).await;
            client.open(data, &[("streamtype", "data"), ("port", port), ("requestid", request)]).await;
            client.data(data, "ping", true).await;
            let [error, data] = texts(&mut client, [error, data]).await;
            match port {
                "7" => assert_eq!((error.as_str(), data.as_str()), ("", "ping")),
                "9" => assert_eq!(error, "error forwarding port 9 to pod p, uid u: connection refused"),
                _ => assert_eq!(error, "the header port is not a port (1 to 65535)"),
            }
        }
        drop(client);
        served.await.unwrap();
    }
}
