//! Usage of pods on nodes with a pod runtime.

use std::sync::Arc;
use std::time::Duration;

use berth_cluster::gpus::Gpus;
use berth_cluster::metrics::{self, ClusterMetrics, SAMPLE_INTERVAL, Usage};
use berth_cluster::{KubeletOptions, ProcessNode};
use berth_pod_runtime::{ContainerId, ContainerState, ContainerStatus, PodState, PodUid};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::fake_runtime::{FakeDevices, FakeRuntime};
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn pods_of_a_process_node_are_measured_and_others_simulated() {
    let world = World::new().await;
    let runtime = FakeRuntime::new(world.clock.clone());
    let (uid, now) = (PodUid("u1".to_owned()), world.clock.now());
    let id = ContainerId { pod: uid.clone(), name: "c".to_owned(), attempt: 0 };
    let state = ContainerState::Running { started_at: now.checked_sub(SignedDuration::from_mins(5)).unwrap() };
    let sandbox = PodState {
        uid: uid.clone(),
        namespace: "default".to_owned(),
        name: "p".to_owned(),
        ips: Vec::new(),
        is_ready: true,
        created_at: now,
        containers: vec![ContainerStatus { id, image_id: String::new(), state }],
    };
    runtime.with(|state| state.pods.insert(uid, sandbox));
    let node = ProcessNode {
        name: "machine".to_owned(),
        runtime: Arc::new(runtime),
        devices: Arc::new(FakeDevices::default()),
        options: KubeletOptions::default(),
    };
    let figures = ClusterMetrics::default();
    let pod = |node: &str, uid: &str| -> Pod {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
        let status = json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}}});
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid},
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Running", "containerStatuses": [status]}}))
        .unwrap()
    };
    let until = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(figures.of_pod(&pod("machine", "u1"), world.clock.now()), None, "one sample gives no rate");
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        let measured = figures.of_pod(&pod("machine", "u1"), world.clock.now()).expect("two samples");
        assert_eq!(measured.figures["c"], Usage { cpu_nano: 250_000_000, memory_bytes: 64 << 20 });
        assert_eq!(measured.window, SAMPLE_INTERVAL);
        let simulated = figures.of_pod(&pod("other", "u2"), world.clock.now()).expect("it runs");
        assert_eq!(simulated.figures["c"].cpu_nano, 500_000_000);
    };
    world.run(|manager| metrics::install(manager, &figures, &Gpus::default(), &[node]), until).await;
}
