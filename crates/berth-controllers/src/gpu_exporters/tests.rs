use std::sync::atomic::{AtomicUsize, Ordering};

use berth_api::berth::gpus::KIND;
use http::Response;
use serde_json::{Value, json};

use super::*;

/// An exporter's pod on a node.
fn pod(name: &str, node: &str, label: (&str, &str), ports: Value, phase: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "gpu-operator", "labels": {label.0: label.1}},
        "spec": {"nodeName": node, "containers": [{"name": "exporter", "ports": ports}]}, "status": {"phase": phase}})
}

/// An API server with these pods, whose exporters respond by path. Counts the proxied requests.
fn cluster(pods: Vec<Value>, respond: fn(&str) -> (u16, String)) -> (Client, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let (code, text) = match path.ends_with("/pods") {
            true => {
                // The label of a pod is in one of the selectors only.
                let is_wanted = |pod: &&Value| {
                    let labels = pod["metadata"]["labels"].as_object().expect("labels");
                    labels.iter().any(|(key, value)| {
                        let key = key.replace('/', "%2F");
                        query.contains(&format!("={key}+in+")) && query.contains(value.as_str().expect("text"))
                    })
                };
                let items: Vec<&Value> = pods.iter().filter(is_wanted).collect();
                (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
            }
            false => {
                counted.fetch_add(1, Ordering::SeqCst);
                respond(&path)
            }
        };
        let response = Response::builder().status(code).body(Body::from(text.into_bytes()));
        async move { response }
    });
    (Client::new(service, "default"), count)
}

const PROXY: &str = "/api/v1/namespaces/gpu-operator/pods/";

#[tokio::test(start_paused = true)]
async fn exporters_of_the_chart_and_of_the_gpu_operator_are_read_through_the_api_server() {
    let pods = vec![
        pod(
            "b",
            "gpu-2",
            ("app", "nvidia-dcgm-exporter"),
            json!([{"name": "metrics", "containerPort": 9500}]),
            "Running",
        ),
        pod("a", "gpu-1", ("app.kubernetes.io/name", "dcgm-exporter"), json!([]), "Running"),
        pod("c", "gpu-3", ("app", "nvidia-dcgm-exporter"), json!([]), "Pending"),
        pod("d", "gpu-4", ("app", "web"), json!([]), "Running"),
    ];
    let (client, count) = cluster(pods, |path| match path.strip_prefix(PROXY) {
        Some("a:9400/proxy/metrics") => (200, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 35\n".to_owned()),
        Some("b:9500/proxy/metrics") => (200, "DCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 90\n".to_owned()),
        _ => panic!("{path}"),
    });
    let exporters = GpuExporters::new(client, "gpu-operator");
    let read = exporters.gpus().await;
    let shown: Vec<(&str, u32, f64)> =
        read.items.iter().map(|it| (it.node.as_str(), it.gpus[0].gpu, it.gpus[0].utilization)).collect();
    assert_eq!(shown, [("gpu-1", 0, 35.0), ("gpu-2", 1, 90.0)]);
    assert_eq!((read.notes.as_slice(), read.kind.as_str()), (&[][..], KIND));

    // Many readers cause one reading per ten seconds; a stale one is shown while the next is read.
    for _ in 0..5 {
        assert_eq!(exporters.gpus().await, read);
    }
    assert_eq!(count.load(Ordering::SeqCst), 2);
    tokio::time::sleep(FRESH + Duration::from_secs(1)).await;
    assert_eq!(exporters.gpus().await, read);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn a_note_says_why_figures_are_missing_and_what_to_do() {
    let (client, _) = cluster(Vec::new(), |path| panic!("{path}"));
    let notes = GpuExporters::new(client.clone(), "").gpus().await.notes;
    assert!(notes[0].contains("berth install --gpu-exporters NAMESPACE"), "{notes:?}");
    let notes = GpuExporters::new(client, "gpu-operator").gpus().await.notes;
    assert!(notes[0].starts_with("No running pod of dcgm-exporter is in namespace gpu-operator."), "{notes:?}");

    let label = ("app", "nvidia-dcgm-exporter");
    let pods = ["a", "b", "c"].map(|name| pod(name, &format!("gpu-{name}"), label, json!([]), "Running")).to_vec();
    let (client, _) = cluster(pods, |path| match path.strip_prefix(PROXY) {
        Some("a:9400/proxy/metrics") => (200, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 35\n".to_owned()),
        Some("b:9400/proxy/metrics") => (
            403,
            json!({"kind": "Status", "status": "Failure", "code": 403,
            "message": "pods \"b\" is forbidden", "reason": "Forbidden"})
            .to_string(),
        ),
        _ => (502, "bad gateway".to_owned()),
    });
    let read = GpuExporters::new(client, "gpu-operator").gpus().await;
    assert_eq!(read.items.len(), 1);
    let expected = "2 of 3 GPU exporters cannot be read (gpu-operator/b: pods \"b\" is forbidden; gpu-operator/c: 502 \
                    Bad Gateway).";
    assert_eq!(read.notes, [expected]);
}

#[tokio::test(start_paused = true)]
async fn an_exporter_that_does_not_respond_delays_no_other() {
    let label = ("app", "nvidia-dcgm-exporter");
    let pods = ["a", "b"].map(|name| pod(name, name, label, json!([]), "Running")).to_vec();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let of_operator = request.uri().query().unwrap_or_default().contains("=app+in+");
        let items = if of_operator { pods.clone() } else { Vec::new() };
        async move {
            let text = match path.strip_prefix(PROXY) {
                Some("a:9400/proxy/metrics") => std::future::pending().await,
                Some(_) => "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 35\n".to_owned(),
                None => json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}).to_string(),
            };
            Response::builder().body(Body::from(text.into_bytes()))
        }
    });
    let begin = Instant::now();
    let read = GpuExporters::new(Client::new(service, "default"), "gpu-operator").gpus().await;
    assert_eq!((begin.elapsed(), read.items.len()), (PATIENCE, 1));
    assert!(read.notes[0].contains("gpu-operator/a: no response within 5 seconds"), "{:?}", read.notes);
}
