//! `proxy` of pods, services and nodes, and streamed logs.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Fixture, PODS};

/// Status, headers and body of a response.
type Answer = (u16, http::HeaderMap, Bytes);

impl Fixture {
    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Answer {
        let stream = TokioIo::new(self.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.expect("connected");
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:6443");
        request = request.header("authorization", "Bearer secret");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        let (parts, body) = sender.send_request(request).await.expect("a response").into_parts();
        (parts.status.as_u16(), parts.headers, body.collect().await.expect("a body").to_bytes())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (code, _, body) = self.ask("GET", path, &[], Bytes::new()).await;
        let text = String::from_utf8_lossy(&body).into_owned();
        (code, serde_json::from_slice(&body).unwrap_or(Value::String(text)))
    }
}

#[tokio::test]
async fn a_request_reaches_the_program_unchanged() {
    let fixture = Fixture::start().await;
    // Larger than a body of an object may be, and of a media type that objects do not have.
    let body = Bytes::from(vec![1; 5 * 1024 * 1024]);
    let headers = [("accept", "text/html"), ("content-type", "video/x-test"), ("x-mine", "1")];
    let path = format!("{PODS}/http:p:80/proxy/a%2Fb//c?limit=many&watch=1");
    let (code, _, answer) = fixture.ask("PUT", &path, &headers, body).await;
    let seen: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(code, 200, "{seen}");
    assert_eq!((&seen["method"], &seen["path"]), (&json!("PUT"), &json!("/a%2Fb//c?limit=many&watch=1")));
    assert_eq!((&seen["length"], &seen["sum"]), (&json!(5 * 1024 * 1024), &json!(5 * 1024 * 1024)));
    let headers: Vec<&str> = seen["headers"].as_array().expect("headers").iter().filter_map(Value::as_str).collect();
    for header in ["accept: text/html", "content-type: video/x-test", "x-mine: 1", "host: 127.0.0.1:6443"] {
        assert!(headers.contains(&header), "{headers:?}");
    }
    assert!(!headers.iter().any(|header| header.contains("secret")), "{headers:?}");
    for method in ["DELETE", "PATCH", "POST", "OPTIONS"] {
        let (code, _, answer) = fixture.ask(method, &format!("{PODS}/p:web/proxy/x"), &[], Bytes::new()).await;
        let seen: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!((code, &seen["method"]), (200, &json!(method)));
    }
}

#[tokio::test]
async fn the_body_of_a_request_of_the_same_process_reaches_the_program() {
    let fixture = Fixture::start().await;
    let body = json!({"deploy": "all of it"});
    let seen = fixture.server.post(&format!("{PODS}/p:web/proxy/x"), body.clone()).await.expect(200);
    assert_eq!((&seen["method"], &seen["length"]), (&json!("POST"), &json!(body.to_string().len())));
}

#[tokio::test]
async fn redirects_lead_back_through_the_proxy_and_missing_slashes_are_added() {
    let fixture = Fixture::start().await;
    let location = async |path: &str| {
        let (code, headers, _) = fixture.ask("GET", path, &[], Bytes::new()).await;
        (code, headers["location"].to_str().expect("text").to_owned())
    };
    let proxy = format!("{PODS}/p/proxy");
    assert_eq!(location(&proxy).await, (301, format!("{proxy}/")));
    assert_eq!(location(&format!("{proxy}/redirect")).await, (302, format!("{proxy}/elsewhere")));
}

#[tokio::test]
async fn a_protocol_upgrade_of_the_program_is_forwarded() {
    let fixture = Fixture::start().await;
    let mut stream = fixture.connect().await;
    let request = format!(
        "GET {PODS}/p/proxy/upgrade HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\nConnection: Upgrade\r\n\
         Upgrade: shout\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: shout"), "{head}");
    stream.write_all(b"ping").await.expect("sent");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.expect("a response");
    assert_eq!(&answer, b"PING");
}

#[tokio::test]
async fn requests_for_a_service_reach_its_endpoints() {
    let fixture = Fixture::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "web", "port": 8080}]}});
    fixture.server.post(services, service).await.expect(201);
    let (code, answer) = fixture.get(&format!("{services}/s/proxy/")).await;
    assert_eq!((code, &answer["message"]), (503, &json!("no endpoints available for service \"s\"")));
    let slice = |address: &str, target: Value| {
        json!({"metadata": {"name": "s-1", "labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4",
            "ports": [{"name": "web", "port": 80}],
            "endpoints": [{"addresses": [address], "targetRef": target}]})
    };
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    fixture.server.post(slices, slice("10.0.0.1", json!({"kind": "Pod", "name": "p"}))).await.expect(201);
    for name in ["s", "s:web", "http:s:8080"] {
        let (code, answer) = fixture.get(&format!("{services}/{name}/proxy/hello")).await;
        assert_eq!((code, &answer["path"]), (200, &json!("/hello")), "{name}");
    }
    fixture.server.delete(&format!("{slices}/s-1"), Value::Null).await.expect(200);
    fixture.server.post(slices, slice("192.0.2.1", Value::Null)).await.expect(201);
    let local = json!({"endpoints": [{"addresses": ["169.254.169.254"]}]});
    let patched = fixture.server.patch(&format!("{slices}/s-1"), "merge-patch", local).await;
    if patched.code == 200 {
        let (code, answer) = fixture.get(&format!("{services}/s/proxy/")).await;
        assert_eq!((code, &answer["message"]), (400, &json!("address not allowed")));
    }
}

#[tokio::test]
async fn invalid_proxy_requests_are_rejected_with_a_reason() {
    let fixture = Fixture::start().await;
    let check = async |path: &str, code: u16, text: &str| {
        let (seen, answer) = fixture.get(path).await;
        assert!(
            seen == code && answer["message"].as_str().unwrap_or_default().contains(text),
            "{path}: {seen} {answer}"
        );
    };
    check(&format!("{PODS}/ftp:p:21/proxy/"), 400, "invalid pod request \"ftp:p:21\"").await;
    check(&format!("{PODS}/missing/proxy/"), 404, "pods \"missing\" not found").await;
    check(&format!("{PODS}/p:other/proxy/"), 400, "has no port \"other\"").await;
    check(&format!("{PODS}/p:81/proxy/"), 503, "error trying to reach service").await;
}

#[tokio::test]
async fn a_node_serves_the_paths_of_its_kubelet() {
    let fixture = Fixture::start().await;
    fixture.server.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.expect(201);
    let nodes = "/api/v1/nodes";
    assert_eq!(fixture.get(&format!("{nodes}/n1/proxy/healthz")).await, (200, json!("ok")));
    let (code, pods) = fixture.get(&format!("{nodes}/n1:10250/proxy/pods")).await;
    assert_eq!(
        (code, pods["items"].as_array().map(Vec::len), &pods["items"][0]["metadata"]["name"]),
        (200, Some(1), &json!("p"))
    );
    let (code, summary) = fixture.get(&format!("{nodes}/n1/proxy/stats/summary")).await;
    assert_eq!((code, &summary["node"]["nodeName"]), (200, &json!("n1")));
    let (code, metrics) = fixture.get(&format!("{nodes}/n1/proxy/metrics/resource")).await;
    let metrics = metrics.as_str().expect("a text");
    assert!(code == 200 && metrics.contains("# TYPE pod_memory_working_set_bytes gauge"), "{metrics}");
    let (code, log) = fixture.get(&format!("{nodes}/n1/proxy/containerLogs/default/p/side?tailLines=1")).await;
    assert!(code == 200 && log.as_str().is_some_and(|log| log.starts_with("side 0\n")), "{code} {log}");
    let (code, answer) = fixture.get(&format!("{nodes}/n1/proxy/configz")).await;
    assert!(code == 503 && answer["message"].as_str().is_some_and(|text| text.contains("/stats/summary")), "{answer}");
    assert_eq!(fixture.get(&format!("{nodes}/n2/proxy/healthz")).await.0, 404);
    assert_eq!(fixture.get(&format!("{nodes}/n1:22/proxy/")).await.0, 400);
}

#[tokio::test]
async fn the_options_of_a_log_reach_the_node() {
    let fixture = Fixture::start().await;
    let query = "container=main&tailLines=2&follow=true&timestamps=true&limitBytes=99&sinceTime=2026-01-01T00:00:00Z";
    let (code, log) = fixture.get(&format!("{PODS}/p/log?{query}")).await;
    let expected = "main 0\nmain 1\nLogQuery { follow: true, since: Some(2026-01-01T00:00:00Z), timestamps: true, \
                    tail_lines: Some(2), limit_bytes: Some(99), stream: None }\n";
    assert_eq!((code, log.as_str()), (200, Some(expected)));
    let (code, log) = fixture.get(&format!("{PODS}/p/log?container=main&stream=Stderr")).await;
    assert!(code == 200 && log.as_str().is_some_and(|log| log.contains("stream: Some(Stderr)")), "{log}");
    let check = async |query: &str, code: u16, text: &str| {
        let (seen, answer) = fixture.get(&format!("{PODS}/p/log?{query}")).await;
        assert!(seen == code && answer["message"].as_str().unwrap_or_default().contains(text), "{seen} {answer}");
    };
    check("container=main&previous=true", 400, "previous terminated container \"main\" in pod \"p\" not found").await;
    check("", 400, "choose one of: [main side]").await;
    check("container=main&stream=Stdout&tailLines=1", 400, "mutually exclusive").await;
    check("container=main&stream=stdin", 422, "supported values: \"All\", \"Stderr\", \"Stdout\"").await;
}
