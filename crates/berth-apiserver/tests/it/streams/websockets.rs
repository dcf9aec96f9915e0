//! WebSocket clients of every protocol version.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::Request;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::{Fixture, PODS};

type Socket = WebSocketStream<TlsStream<TcpStream>>;

const STATUS_CHANNEL: u8 = 3;
const V5: &str = "v5.channel.k8s.io";

impl Fixture {
    async fn open_as(&self, token: &str, path: &str, protocol: &str) -> Result<Socket, Error> {
        let request = Request::builder()
            .uri(format!("wss://127.0.0.1{PODS}/{path}"))
            .header("host", "127.0.0.1")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("authorization", format!("Bearer {token}"))
            .header("sec-websocket-protocol", protocol)
            .body(())
            .expect("a request");
        let (socket, response) = client_async(request, self.connect().await).await?;
        assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
        Ok(socket)
    }

    async fn open(&self, path: &str, protocol: &str) -> Socket {
        self.open_as("secret", path, protocol).await.expect("upgraded")
    }

    /// The status code and body of a rejected upgrade.
    async fn rejected(&self, token: &str, path: &str, protocol: &str) -> (u16, String) {
        match self.open_as(token, path, protocol).await {
            Err(Error::Http(response)) => {
                let (parts, body) = response.into_parts();
                (parts.status.as_u16(), String::from_utf8_lossy(&body.unwrap_or_default()).into_owned())
            }
            other => panic!("{:?}", other.map(|_| "upgraded")),
        }
    }
}

/// The data that a server sends until it closes the connection: output, errors and the outcome.
async fn outputs(socket: &mut Socket) -> [Vec<u8>; 4] {
    let mut outputs = [const { Vec::new() }; 4];
    while let Some(message) = socket.next().await {
        match message.expect("a message") {
            Message::Binary(data) => outputs[usize::from(data[0])].extend_from_slice(&data[1..]),
            Message::Close(_) => break,
            _ => {}
        }
    }
    outputs
}

fn status(outcome: &[u8]) -> Value {
    serde_json::from_slice(outcome).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(outcome)))
}

fn on(channel: u8, data: &[u8]) -> Message {
    Message::Binary([&[channel][..], data].concat().into())
}

#[tokio::test]
async fn a_command_has_separate_outputs_and_its_exit_code_in_a_status() {
    let fixture = Fixture::start().await;
    let script = "command=sh&command=-c&command=echo%20out;%20echo%20err%20%3E%262;%20exit%203";
    let path = format!("p/exec?container=main&stdout=true&stderr=true&{script}");
    for protocol in [V5, "v4.channel.k8s.io"] {
        let mut socket = fixture.open(&path, protocol).await;
        let first = socket.next().await.expect("a message").expect("sound");
        assert_eq!(first, on(1, b""), "the first message confirms that the command was accepted");
        let [_, stdout, stderr, outcome] = outputs(&mut socket).await;
        assert_eq!((stdout, stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
        let outcome = status(&outcome);
        assert_eq!((&outcome["status"], &outcome["reason"]), (&"Failure".into(), &"NonZeroExitCode".into()));
        let exit_code = serde_json::json!({"reason": "ExitCode", "message": "3"});
        assert_eq!(outcome["details"]["causes"][0], exit_code);
    }
    let mut socket = fixture.open(&path, "channel.k8s.io").await;
    let [_, _, _, outcome] = outputs(&mut socket).await;
    assert_eq!(outcome, b"command terminated with non-zero exit code: exit status 3");
}

#[tokio::test]
async fn base64_clients_get_texts() {
    let fixture = Fixture::start().await;
    let path = "p/exec?container=main&stdout=true&command=echo&command=hi";
    let mut socket = fixture.open(path, "v4.base64.channel.k8s.io").await;
    let mut texts = Vec::new();
    while let Some(Ok(Message::Text(text))) = socket.next().await {
        texts.push(text.to_string());
    }
    let status = "3eyJtZXRhZGF0YSI6e30sInN0YXR1cyI6IlN1Y2Nlc3MifQ==";
    assert_eq!(texts, ["1", "1aGkK", status]);
}

#[tokio::test]
async fn a_log_is_read_over_a_websocket() {
    let fixture = Fixture::start().await;
    let path = "p/log?container=main&tailLines=2";
    let mut socket = fixture.open(path, "binary.k8s.io").await;
    let mut log = Vec::new();
    while let Some(message) = socket.next().await {
        match message.expect("a message") {
            Message::Binary(data) => log.extend_from_slice(&data),
            Message::Close(_) => break,
            other => panic!("{other:?}"),
        }
    }
    let log = String::from_utf8(log).expect("text");
    assert!(log.starts_with("main 0\nmain 1\nLogQuery"), "{log}");
    let mut socket = fixture.open(path, "base64.binary.k8s.io").await;
    let texts = [socket.next().await, socket.next().await].map(|it| it.expect("a message").expect("sound"));
    assert_eq!(texts, [Message::Text("".into()), Message::Text("bWFpbiAwCg==".into())]);
    let (code, message) = fixture.rejected("secret", "p/log?container=none", "binary.k8s.io").await;
    assert!(code == 400 && message.contains("none"), "{code} {message}");
}

#[tokio::test]
async fn large_data_passes_through_a_command_and_its_input_ends_separately() {
    const BYTES: usize = 64 * 1024 * 1024;
    const MESSAGE: usize = 64 * 1024;
    let fixture = Fixture::start().await;
    let path = "p/exec?container=main&stdin=true&stdout=true&command=cat";
    let (mut sink, mut source) = fixture.open(path, V5).await.split();
    let sending = async {
        for number in 0..BYTES / MESSAGE {
            sink.feed(on(0, &[number as u8; MESSAGE])).await.expect("sent");
        }
        sink.send(on(255, &[0])).await.expect("sent");
    };
    let receiving = async {
        let (mut count, mut sum, mut outcome) = (0, 0_u64, Vec::new());
        while let Some(message) = source.next().await {
            match message.expect("a message") {
                Message::Binary(data) if data[0] == STATUS_CHANNEL => outcome.extend_from_slice(&data[1..]),
                Message::Binary(data) => {
                    count += data.len() - 1;
                    sum += data[1..].iter().map(|byte| u64::from(*byte)).sum::<u64>();
                }
                _ => {}
            }
        }
        (count, sum, outcome)
    };
    let ((), (count, sum, outcome)) = tokio::join!(sending, receiving);
    let expected = (0..BYTES / MESSAGE).map(|number| u64::from(number as u8) * MESSAGE as u64).sum::<u64>();
    assert_eq!((count, sum), (BYTES, expected));
    assert_eq!(status(&outcome)["status"], "Success");
}

#[tokio::test]
async fn the_input_of_a_command_ends_when_its_client_disconnects() {
    let fixture = Fixture::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ended");
    let script = format!("cat; echo ended > {}", file.display());
    let script = berth_apimachinery::percent::component(&script);
    let path = format!("p/exec?container=main&stdin=true&stdout=true&command=sh&command=-c&command={script}");
    let mut socket = fixture.open(&path, V5).await;
    socket.send(on(0, b"hello")).await.expect("sent");
    while socket.next().await.expect("a response").expect("sound") != on(1, b"hello") {}
    drop(socket);
    let deadline = std::time::Duration::from_secs(30);
    let seen = tokio::time::timeout(deadline, async {
        while !std::fs::read_to_string(&file).is_ok_and(|text| text == "ended\n") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    seen.await.expect("the command continues after its input has ended");
}

#[tokio::test]
async fn a_command_that_reads_no_input_ends_although_the_client_sends_data() {
    let fixture = Fixture::start().await;
    let path = "p/exec?container=main&stdin=true&stdout=true&command=echo&command=done";
    let (mut sink, mut source) = fixture.open(path, V5).await.split();
    let sending = async {
        // More than fits into the pipes.
        for _ in 0..64 {
            if sink.send(on(0, &[7; 64 * 1024])).await.is_err() {
                return;
            }
        }
    };
    let receiving = async {
        let mut all = Vec::new();
        while let Some(Ok(Message::Binary(data))) = source.next().await {
            all.push(data);
        }
        all
    };
    let ((), all) = tokio::join!(sending, receiving);
    assert_eq!(all[..2], [Bytes::from_static(b"\x01"), Bytes::from_static(b"\x01done\n")]);
    assert_eq!(status(&all.last().expect("an outcome")[1..])["status"], "Success");
}

#[tokio::test]
async fn a_terminal_has_the_clients_size() {
    let fixture = Fixture::start().await;
    let path = "p/exec?container=main&stdin=true&stdout=true&stderr=true&tty=true&command=print-size";
    let mut socket = fixture.open(path, V5).await;
    socket.send(on(4, b"{\"Width\":132,\"Height\":43}")).await.expect("sent");
    let [_, stdout, stderr, _] = outputs(&mut socket).await;
    assert_eq!((stdout, stderr), (b"132x43\n".to_vec(), Vec::new()));
}

#[tokio::test]
async fn attach_connects_to_the_program_and_pings_get_a_pong() {
    let fixture = Fixture::start().await;
    let mut socket = fixture.open("p/attach?container=main&stdin=true&stdout=true", V5).await;
    socket.send(Message::Ping("are you there".into())).await.expect("sent");
    socket.send(on(0, b"hello")).await.expect("sent");
    socket.send(on(255, &[0])).await.expect("sent");
    let mut is_answered = false;
    let mut text = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Pong(data) => is_answered |= data == "are you there",
            Message::Binary(data) if data[0] == 1 => text.extend_from_slice(&data[1..]),
            _ => {}
        }
    }
    assert!(is_answered);
    assert_eq!(text, b"hello");
}

#[tokio::test]
async fn invalid_requests_are_rejected_before_the_upgrade() {
    let fixture = Fixture::start().await;
    let exec = |rest: &str| format!("p/exec?command=true&stdout=true{rest}");
    let check = async |path: String, protocol: &str, code: u16, text: &str| {
        let (seen, body) = fixture.rejected("secret", &path, protocol).await;
        assert!(seen == code && body.contains(text), "{path}: {seen} {body}");
    };
    check("missing/exec".to_owned(), V5, 404, "pods \\\"missing\\\" not found").await;
    check(exec(""), V5, 400, "a container name must be specified for pod p, choose one of: [main side]").await;
    check(exec("&container=x"), V5, 400, "container x is not valid for pod p").await;
    check("pending/exec?command=true&stdout=1".to_owned(), V5, 400, "pod pending does not have a host assigned").await;
    check("p/exec?container=main&command=true".to_owned(), V5, 400, "at least 1 of stdin, stdout, stderr").await;
    check("p/exec?container=main&stdout=true".to_owned(), V5, 400, "you must specify a command").await;
    check(exec("&container=main"), "v9.channel.k8s.io", 400, "v5.channel.k8s.io").await;
    let (code, body) = fixture.rejected("secret", &exec("&container=side"), V5).await;
    assert_eq!((code, body.as_str()), (500, "container not found (\"side\")"));
}

#[tokio::test]
async fn a_websocket_needs_the_right_to_create_besides_the_right_to_get() {
    let fixture = Fixture::start().await;
    let role = |name: &str, verbs: &[&str]| {
        serde_json::json!({"metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}]})
    };
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    fixture.server.post(roles, role("exec", &["get"])).await.expect(201);
    let binding = serde_json::json!({"metadata": {"name": "exec"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "exec"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    fixture.server.post(bindings, binding).await.expect(201);
    let path = "p/exec?container=main&stdout=true&command=true";
    let (code, body) = fixture.rejected("reader", path, V5).await;
    assert!(code == 403 && body.contains("cannot create resource \\\"pods/exec\\\""), "{code} {body}");
    fixture.server.put(&format!("{roles}/exec"), role("exec", &["get", "create"])).await.expect(200);
    let mut socket = fixture.open_as("reader", path, V5).await.expect("allowed");
    let [_, _, _, outcome] = outputs(&mut socket).await;
    assert_eq!(status(&outcome)["status"], "Success");
}

#[tokio::test]
async fn ports_are_forwarded_by_numbered_channels() {
    let fixture = Fixture::start().await;
    let mut socket = fixture.open("p/portforward?ports=7,9", "v4.channel.k8s.io").await;
    socket.send(on(0, b"hello")).await.expect("sent");
    let mut channels = [const { Vec::new() }; 4];
    while channels[0].len() < 7 || channels[3].len() < 3 {
        match socket.next().await.expect("a message").expect("sound") {
            Message::Binary(data) => channels[usize::from(data[0])].extend_from_slice(&data[1..]),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(channels[0], b"\x07\x00hello");
    assert_eq!(channels[1], b"\x07\x00");
    assert_eq!((&channels[2][..], &channels[3][..2]), (&b"\x09\x00"[..], &b"\x09\x00"[..]));
    let error = String::from_utf8_lossy(&channels[3][2..]).into_owned();
    assert!(error.starts_with("error forwarding port 9 to pod p, uid "), "{error}");
}

#[tokio::test]
async fn a_request_without_an_upgrade_is_rejected_and_a_shutdown_ends_sessions() {
    let fixture = Fixture::start().await;
    let path = "/p/exec?container=main&stdout=true&command=true";
    let answer = fixture.server.post(&format!("{PODS}{path}"), Value::Null).await.expect(400);
    assert_eq!(answer["message"], "Upgrade request required");
    let url = "x".repeat(8192);
    let mut socket =
        fixture.open(&format!("p/exec?container=main&stdin=true&stdout=true&command=cat&x={url}"), V5).await;
    socket.send(on(0, b"hello")).await.expect("sent");
    while socket.next().await.expect("a response").expect("sound") != on(1, b"hello") {}
    drop(fixture);
    let end = async { while socket.next().await.is_some_and(|message| message.is_ok()) {} };
    tokio::time::timeout(std::time::Duration::from_secs(30), end).await.expect("the session ends with the server");
}

#[tokio::test]
async fn a_malformed_spdy_client_is_disconnected() {
    let fixture = Fixture::start().await;
    let mut stream = fixture.connect().await;
    let request = format!(
        "POST {PODS}/p/exec?container=main&stdout=true&command=true HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \
         secret\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v5.channel.k8s.io\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = vec![0; 12];
    stream.read_exact(&mut head).await.expect("a response");
    assert_eq!(head, b"HTTP/1.1 101");
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    let rest = String::from_utf8_lossy(&rest).to_lowercase();
    assert!(rest.contains("x-stream-protocol-version: v4.channel.k8s.io"), "{rest}");
}
