//! The kubelet of a node with a runtime, on paused time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::SimulatedPods;
use berth_apiserver::UserInfo;
use berth_cluster::kubelet::{process, simulated};
use berth_cluster::{KubeletOptions, ProcessNode};
use berth_pod_runtime::{ContainerId, ImageRoot, PodUid};
use berth_runtime::Manager;
use k8s_openapi::api::core::v1::{
    ConfigMap, ContainerStatus, Event, Namespace, Node, Pod, PodStatus, Secret, ServiceAccount,
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::fake_runtime::{FakeDevices, FakeRuntime};
use crate::world::World;

pub const NODE: &str = "machine";

/// An API server with a node, and the node's runtime.
pub struct Machine {
    pub world: World,
    pub runtime: FakeRuntime,
    pub devices: FakeDevices,
}

impl Machine {
    pub async fn new() -> Self {
        let world = World::new().await;
        let runtime = FakeRuntime::new(world.clock.clone());
        let machine = Self { world, runtime, devices: FakeDevices::default() };
        let namespaces: Api<Namespace> = Api::all(machine.client());
        namespaces.create(&PostParams::default(), &object(json!({"metadata": {"name": "ns"}}))).await.unwrap();
        machine.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await;
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let node = json!({"metadata": {"name": NODE}, "status": {"conditions": ready,
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
        let nodes: Api<Node> = Api::all(machine.client());
        nodes.create(&PostParams::default(), &object(node)).await.unwrap();
        machine
    }

    pub fn client(&self) -> Client {
        Client::new(self.world.server.in_process(UserInfo::master("test")), "default")
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client(), "ns")
    }

    async fn create<K>(&self, value: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + serde::de::DeserializeOwned
            + serde::Serialize
            + Clone
            + std::fmt::Debug,
    {
        self.api().create(&PostParams::default(), &object(value)).await.unwrap()
    }

    /// Creates pod `p` on the node.
    pub async fn pod(&self, mut spec: Value) -> Pod {
        spec["nodeName"] = NODE.into();
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                container["image"] = container["image"].as_str().unwrap_or("busybox").into();
            }
        }
        self.create(json!({"metadata": {"name": "p"}, "spec": spec})).await
    }

    /// The node with its runtime.
    pub fn process_node(&self) -> ProcessNode {
        ProcessNode {
            name: NODE.into(),
            runtime: Arc::new(self.runtime.clone()),
            devices: Arc::new(self.devices.clone()),
            options: KubeletOptions { host_ip: "192.0.2.1".into(), ..KubeletOptions::default() },
        }
    }

    /// Runs the kubelet of the node until `until` resolves, as one process would.
    pub async fn run<T>(&self, until: impl Future<Output = T>) -> T {
        let node = self.process_node();
        self.run_kubelet(|manager| process::install(manager, vec![node]), until).await
    }

    /// Runs a simulated kubelet instead.
    async fn simulate<T>(&self, pods: SimulatedPods, until: impl Future<Output = T>) -> T {
        self.run_kubelet(|manager| simulated::install(manager, pods, 1, BTreeSet::new()), until).await
    }

    /// Runs the controllers that `install` adds until `until` resolves.
    pub async fn run_kubelet<T>(&self, install: impl FnOnce(&mut Manager), until: impl Future<Output = T>) -> T {
        let client = Client::new(self.world.server.in_process(UserInfo::master("kubelet")), "default");
        let mut manager = Manager::new(client, self.world.clock.clone());
        install(&mut manager);
        tokio::select! {
            biased;
            result = until => result,
            ended = manager.run(std::future::pending()) => panic!("the manager ended: {ended:?}"),
        }
    }

    async fn status(&self) -> Option<PodStatus> {
        self.api::<Pod>().get_opt("p").await.unwrap().map(|pod| pod.status.unwrap_or_default())
    }

    /// Waits until the status of pod `p` is as expected.
    pub async fn until(&self, what: &str, mut done: impl FnMut(&PodStatus) -> bool) -> PodStatus {
        let mut last = None;
        for _ in 0..36_000 {
            last = self.status().await;
            if let Some(status) = last.take_if(|status| done(status)) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never: {what}; {last:#?}\n{:#?}", self.runtime.calls());
    }

    pub async fn until_phase(&self, phase: &str) -> PodStatus {
        self.until(phase, |status| status.phase.as_deref() == Some(phase)).await
    }

    async fn until_gone(&self) {
        for _ in 0..3600 {
            if self.status().await.is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the pod is not removed: {:#?}", self.status().await);
    }

    pub async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// `Reason: message` of the events about the pod, in order.
    pub async fn events(&self) -> Vec<String> {
        // Events are written with a delay.
        self.sleep(5).await;
        let events = self.api::<Event>().list(&ListParams::default()).await.unwrap();
        let mut events: Vec<_> = events.into_iter().map(|it| (it.metadata.name.clone(), it)).collect();
        events.sort_by(|a, b| a.0.cmp(&b.0));
        let shown =
            |event: Event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
        events.into_iter().map(|(_, event)| shown(event)).collect()
    }

    fn id(&self, pod: &Pod, name: &str, attempt: u32) -> ContainerId {
        ContainerId { pod: PodUid(pod.uid().unwrap()), name: name.into(), attempt }
    }
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub fn main_status(status: &PodStatus) -> ContainerStatus {
    status.container_statuses.as_ref().and_then(|list| list.first()).cloned().unwrap_or_default()
}

/// State of the first container: `running`, a waiting reason, or the terminated reason and code.
fn state(status: &PodStatus) -> String {
    let state = main_status(status).state.unwrap_or_default();
    match (state.running, state.waiting, state.terminated) {
        (Some(_), _, _) => "running".into(),
        (_, Some(waiting), _) => waiting.reason.unwrap_or_default(),
        (_, _, Some(ended)) => format!("{} {}", ended.reason.unwrap_or_default(), ended.exit_code),
        _ => String::new(),
    }
}

pub fn condition(status: &PodStatus, type_: &str) -> String {
    let found = status.conditions.iter().flatten().find(|it| it.type_ == type_);
    found.map_or_else(String::new, |it| format!("{} {}", it.status, it.reason.clone().unwrap_or_default()))
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_to_its_end_with_its_environment() {
    let machine = Machine::new().await;
    machine.create::<ConfigMap>(json!({"metadata": {"name": "settings"}, "data": {"RATE": "0.1"}})).await;
    machine.create::<Secret>(json!({"metadata": {"name": "keys"}, "stringData": {"token": "xyz"}})).await;
    let pod = machine
        .pod(json!({"restartPolicy": "Never", "containers": [{
            "name": "c", "command": ["run", "$(SECONDS_TO_RUN)", "0"],
            "envFrom": [{"configMapRef": {"name": "settings"}}],
            "env": [{"name": "SECONDS_TO_RUN", "value": "5"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]}))
        .await;
    machine
        .run(async {
            let running = machine.until_phase("Running").await;
            assert_eq!((running.pod_ip.as_deref(), running.host_ip.as_deref()), (Some("10.1.0.2"), Some("192.0.2.1")));
            assert_eq!(condition(&running, "Ready"), "True ");
            assert_eq!(running.qos_class.as_deref(), Some("BestEffort"));
            let container = main_status(&running);
            let id = format!("berth://{}_c_0", pod.uid().unwrap());
            assert_eq!((container.container_id, container.started), (Some(id), Some(true)));
            let ended = machine.until_phase("Succeeded").await;
            assert_eq!(state(&ended), "Completed 0");
            assert_eq!(condition(&ended, "Ready"), "False PodCompleted");
            let events = machine.events().await;
            for reason in ["ImageNotice", "Pulled", "Created", "Started"] {
                assert!(events.iter().any(|event| event.starts_with(reason)), "{reason}: {events:?}");
            }
        })
        .await;
    let env = machine.runtime.with(|state| state.configs["p/c#0"].env.clone());
    let value = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!(["RATE", "TOKEN", "IP", "CPUS"].map(value), [Some("0.1"), Some("xyz"), Some("10.1.0.2"), Some("4")]);
    assert_eq!(machine.runtime.calls(), ["sandbox p", "image busybox", "start p/c#0", "stop sandbox p"]);
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_in_order_and_sidecars_stop_last() {
    let machine = Machine::new().await;
    let spec = json!({"restartPolicy": "Never",
        "initContainers": [{"name": "first", "command": ["run", "3", "0"]},
            {"name": "proxy", "restartPolicy": "Always", "command": ["forever"],
             "startupProbe": {"exec": {"command": ["up"]}, "periodSeconds": 1, "failureThreshold": 100}},
            {"name": "second", "command": ["run", "1", "0"]}],
        "containers": [{"name": "c", "command": ["run", "4", "0"]}]});
    machine.runtime.with(|state| state.commands.insert("up".into(), (1, "not yet".into())));
    machine.pod(spec).await;
    machine
        .run(async {
            let waiting = machine.until("the sidecar runs", |status| {
                let init = status.init_container_statuses.as_ref();
                init.is_some_and(|list| list[1].state.as_ref().is_some_and(|state| state.running.is_some()))
            });
            let waiting = waiting.await;
            assert_eq!((waiting.phase.as_deref(), state(&waiting).as_str()), (Some("Pending"), "PodInitializing"));
            assert_eq!(condition(&waiting, "Initialized"), "False ContainersNotInitialized");
            machine.sleep(10).await;
            assert!(!machine.runtime.calls().contains(&"start p/second#0".to_owned()), "the sidecar has not started");
            machine.runtime.with(|state| state.commands.clear());
            let ended = machine.until_phase("Succeeded").await;
            assert_eq!(state(&ended), "Completed 0");
        })
        .await;
    let calls = machine.runtime.calls();
    let calls: Vec<&str> =
        calls.iter().map(String::as_str).filter(|call| call.contains('#') && !call.starts_with("exec")).collect();
    assert_eq!(calls, ["start p/first#0", "start p/proxy#0", "start p/second#0", "start p/c#0", "stop p/proxy#0 30s"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_init_container_is_named_by_the_failed_pod() {
    let machine = Machine::new().await;
    let init = json!([{"name": "one", "command": ["run", "1", "0"]}, {"name": "two", "command": ["run", "1", "1"]}]);
    machine
        .pod(json!({"restartPolicy": "Never", "initContainers": init,
            "containers": [{"name": "c", "command": ["forever"]}]}))
        .await;
    machine
        .run(async {
            let running = machine
                .until("the second init container", |status| {
                    let init = status.init_container_statuses.as_ref();
                    init.is_some_and(|it| it[1].state.as_ref().is_some_and(|state| state.running.is_some()))
                })
                .await;
            let ready: Vec<bool> =
                running.init_container_statuses.expect("init containers").iter().map(|it| it.ready).collect();
            assert_eq!(ready, [true, false], "an init container is ready once it has succeeded");
            let failed = machine.until_phase("Failed").await;
            let initialized = failed.conditions.iter().flatten().find(|it| it.type_ == "Initialized").expect("set");
            assert_eq!(initialized.message.as_deref(), Some("containers with incomplete status: [two]"));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_container_restarts_with_growing_delays() {
    let machine = Machine::new().await;
    machine
        .pod(json!({"restartPolicy": "OnFailure", "containers": [{"name": "c", "command": ["run", "1", "3"]}]}))
        .await;
    machine
        .run(async {
            let status = machine.until("back-off", |status| state(status) == "CrashLoopBackOff").await;
            let container = main_status(&status);
            let last = container.last_state.unwrap().terminated.unwrap();
            assert_eq!(
                (last.exit_code, last.message.as_deref(), last.reason.as_deref()),
                (3, Some("it failed"), Some("Error"))
            );
            assert_eq!((container.restart_count, status.phase.as_deref()), (1, Some("Running")));
            let start = machine.world.clock.now();
            machine.until("the third restart", |status| main_status(status).restart_count == 3).await;
            let waited = machine.world.clock.now().duration_since(start).as_secs();
            assert!((30..34).contains(&waited), "10 s and 20 s, but {waited} s");
            let events = machine.events().await;
            assert!(events.iter().any(|event| event.starts_with("BackOff: Back-off restarting failed container c")));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_gets_its_grace_period_and_then_disappears() {
    let machine = Machine::new().await;
    machine
        .pod(json!({"terminationGracePeriodSeconds": 7, "containers": [{"name": "c", "command": ["stubborn"],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
            "lifecycle": {"preStop": {"exec": {"command": ["drain"]}}}}]}))
        .await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            assert_eq!(machine.devices.0.lock().len(), 1);
            let env = machine.runtime.with(|state| state.configs["p/c#0"].env.clone());
            assert!(env.contains(&("CUDA_VISIBLE_DEVICES".to_owned(), "0".to_owned())), "{env:?}");
            let start = machine.world.clock.now();
            machine.api::<Pod>().delete("p", &DeleteParams::default()).await.unwrap();
            machine.until_gone().await;
            let waited = machine.world.clock.now().duration_since(start).as_secs();
            assert!((6..9).contains(&waited), "{waited}");
        })
        .await;
    let calls = machine.runtime.calls();
    assert_eq!(
        calls[3..],
        ["exec p/c#0 drain", "stop p/c#0 6s", "stop sandbox p", "remove p"].map(String::from),
        "{calls:?}"
    );
    assert!(machine.devices.0.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_that_a_finalizer_keeps_is_removed_from_the_runtime_once() {
    let machine = Machine::new().await;
    machine.pod(json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["run", "1", "0"]}]})).await;
    let finalizers = |list: Value| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    let pods = machine.api::<Pod>();
    pods.patch("p", &PatchParams::default(), &finalizers(json!(["example.com/kept"]))).await.unwrap();
    machine
        .run(async {
            machine.until_phase("Succeeded").await;
            pods.delete("p", &DeleteParams::default()).await.unwrap();
            machine.sleep(5).await;
            assert_eq!(machine.runtime.with(|state| state.removals), 1, "{:?}", machine.runtime.calls());
            pods.patch("p", &PatchParams::default(), &finalizers(Value::Null)).await.unwrap();
            machine.until_gone().await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_force_deleted_pod_is_stopped_and_removed_from_the_runtime() {
    let machine = Machine::new().await;
    machine.pod(json!({"containers": [{"name": "c", "command": ["stubborn"]}]})).await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            machine.api::<Pod>().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
            machine.sleep(5).await;
            assert!(machine.runtime.with(|state| state.pods.is_empty()), "{:?}", machine.runtime.calls());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_adopts_running_containers() {
    let machine = Machine::new().await;
    machine.pod(json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["run", "100", "0"]}]})).await;
    machine.run(async { machine.until_phase("Running").await }).await;
    machine.sleep(10).await;
    machine.run(async { machine.until_phase("Succeeded").await }).await;
    let starts = machine.runtime.calls().iter().filter(|call| call.starts_with("start")).count();
    assert_eq!(starts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ended_while_no_kubelet_ran_keeps_its_exit_code() {
    let machine = Machine::new().await;
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["run", "10", "42"]}]});
    machine.pod(spec).await;
    machine.run(async { machine.until_phase("Running").await }).await;
    machine.sleep(60).await;
    let ended = machine.run(async { machine.until_phase("Failed").await }).await;
    assert_eq!(state(&ended), "Error 42");
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_while_no_kubelet_ran_is_removed_at_the_next_start() {
    let machine = Machine::new().await;
    machine.pod(json!({"containers": [{"name": "c", "command": ["forever"]}]})).await;
    machine.run(async { machine.until_phase("Running").await }).await;
    machine.api::<Pod>().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    machine.run(machine.sleep(15)).await;
    assert!(machine.runtime.with(|state| state.pods.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_fails_a_pod_that_never_restarts() {
    let machine = Machine::new().await;
    let pod =
        machine.pod(json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["forever"]}]})).await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            machine.runtime.lose(&pod.uid().unwrap());
            let failed = machine.until_phase("Failed").await;
            assert_eq!(state(&failed), "ContainerStatusUnknown 137");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_replaced_and_init_containers_run_again() {
    let machine = Machine::new().await;
    machine
        .pod(json!({"initContainers": [{"name": "prepare", "command": ["run", "1", "0"]}],
            "containers": [{"name": "c", "command": ["forever"]}]}))
        .await;
    machine.run(async { machine.until_phase("Running").await }).await;
    machine.sleep(10).await;
    // The machine was restarted: nothing of the pod is left.
    machine.runtime.with(|state| {
        state.pods.clear();
        state.calls.clear();
    });
    let again = machine
        .run(
            machine
                .until("it runs again", |status| state(status) == "running" && main_status(status).restart_count == 1),
        )
        .await;
    let last = main_status(&again).last_state.unwrap().terminated.unwrap();
    assert_eq!(last.reason.as_deref(), Some("ContainerStatusUnknown"));
    let calls: Vec<String> = machine.runtime.calls().into_iter().filter(|call| !call.starts_with("image")).collect();
    assert_eq!(calls, ["sandbox p", "start p/prepare#1", "start p/c#1"]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_secret_delays_the_container_until_it_exists() {
    for is_simulated in [false, true] {
        let machine = Machine::new().await;
        machine
            .pod(json!({"containers": [{"name": "c", "command": ["forever"], "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "x", "optional": true}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}]}]}))
            .await;
        let test = async {
            let waiting = machine.until("an error", |status| state(status) == "CreateContainerConfigError").await;
            let message = main_status(&waiting).state.unwrap().waiting.unwrap().message;
            assert_eq!(message.as_deref(), Some("secret \"keys\" not found"));
            assert_eq!(waiting.phase.as_deref(), Some("Pending"));
            assert!(machine.events().await.contains(&"Failed: Error: secret \"keys\" not found".to_owned()));
            let keys = json!({"metadata": {"name": "keys"}, "stringData": {"token": "xyz"}});
            machine.create::<Secret>(keys).await;
            machine.until_phase("Running").await;
        };
        match is_simulated {
            true => machine.simulate(SimulatedPods::default(), test).await,
            false => machine.run(test).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_a_missing_config_map_holds_the_pod() {
    for is_simulated in [false, true] {
        let machine = Machine::new().await;
        machine
            .pod(json!({"volumes": [{"name": "v", "configMap": {"name": "files"}}],
                "containers": [{"name": "c", "command": ["forever"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}))
            .await;
        let test = async {
            machine.sleep(10).await;
            let waiting = machine.status().await.unwrap();
            assert_eq!((waiting.phase.as_deref(), state(&waiting).as_str()), (Some("Pending"), "ContainerCreating"));
            let expected = "FailedMount: MountVolume.SetUp failed for volume \"v\" : configmap \"files\" not found";
            let events = machine.events().await;
            assert!(events.contains(&expected.to_owned()), "{events:?}");
            machine.create::<ConfigMap>(json!({"metadata": {"name": "files"}, "data": {"a": "1"}})).await;
            machine.until_phase("Running").await;
        };
        match is_simulated {
            true => machine.simulate(SimulatedPods::default(), test).await,
            false => machine.run(test).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn files_follow_their_config_map() {
    let machine = Machine::new().await;
    machine.create::<ConfigMap>(json!({"metadata": {"name": "files"}, "data": {"a": "1"}})).await;
    machine
        .pod(json!({"volumes": [{"name": "v", "configMap": {"name": "files"}}],
            "containers": [{"name": "c", "command": ["forever"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}))
        .await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            let patch = Patch::Merge(json!({"data": {"a": "2"}}));
            machine.api::<ConfigMap>().patch("files", &PatchParams::default(), &patch).await.unwrap();
            machine.sleep(5).await;
        })
        .await;
    let updates = machine.runtime.with(|state| state.updates.clone());
    assert_eq!(updates.len(), 1, "{updates:?}");
    let berth_pod_runtime::Volume::Files { files } = &updates[0].1 else { panic!("{updates:?}") };
    assert_eq!(files["a"].data, b"2");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_is_tried_again() {
    let machine = Machine::new().await;
    machine.runtime.with(|state| {
        state.broken_images.insert("busybox".into(), ("ErrImagePull", "connection refused".into()));
    });
    machine.pod(json!({"containers": [{"name": "c", "command": ["forever"]}]})).await;
    machine
        .run(async {
            machine.until("an error", |status| state(status) == "ErrImagePull").await;
            machine.until("back-off", |status| state(status) == "ImagePullBackOff").await;
            machine.sleep(30).await;
            let pulls = machine.runtime.calls().iter().filter(|call| call.starts_with("image")).count();
            assert_eq!(pulls, 3, "at once, after 10 s and after 20 s more");
            machine.runtime.with(|state| state.broken_images.clear());
            machine.until_phase("Running").await;
            let events = machine.events().await;
            for expected in [
                "Failed: Failed to pull image \"busybox\": connection refused",
                "Failed: Error: ErrImagePull",
                "Failed: Error: ImagePullBackOff",
                "BackOff: Back-off pulling image \"busybox\"",
            ] {
                assert!(events.contains(&expected.to_owned()), "{expected}: {events:?}");
            }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_an_image_waits_for_its_image_and_needs_files_of_its_own() {
    let machine = Machine::new().await;
    let root = ImageRoot::Folder { path: "/images/data".into() };
    machine.runtime.with(|state| {
        state.broken_images.insert("data:1".into(), ("ErrImagePull", "connection refused".into()));
        state.image_roots.insert("data:1".into(), root.clone());
    });
    let volumes = json!([{"name": "v", "image": {"reference": "data:1", "pullPolicy": "Always"}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let container = json!({"name": "c", "command": ["forever"], "volumeMounts": mounts});
    machine.pod(json!({"volumes": volumes, "containers": [container]})).await;
    machine
        .run(async {
            machine.until("an error", |status| state(status) == "ErrImagePull").await;
            assert!(machine.runtime.with(|state| state.sandboxes.is_empty()), "no sandbox without its volumes");
            machine.runtime.with(|state| state.broken_images.clear());
            machine.until_phase("Running").await;
        })
        .await;
    let volume = machine.runtime.with(|state| state.sandboxes.values().next().expect("a sandbox").volumes["v"].clone());
    assert_eq!(volume, berth_pod_runtime::Volume::Image { root });

    let machine = Machine::new().await;
    let volumes = json!([{"name": "v", "image": {"reference": "data:1"}}]);
    machine.pod(json!({"volumes": volumes, "containers": [{"name": "c", "command": ["forever"]}]})).await;
    machine
        .run(async {
            machine.sleep(5).await;
            let events = machine.events().await;
            let refused = "image \"data:1\" is mapped to this machine's own files";
            assert!(events.iter().any(|it| it.starts_with("FailedMount") && it.contains(refused)), "{events:?}");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn simulated_images_can_be_unreachable() {
    let machine = Machine::new().await;
    machine.pod(json!({"containers": [{"name": "c", "image": "registry.example.com/train:1"}]})).await;
    let pods = SimulatedPods { unreachable_images: vec!["registry.example.com/*".into()], ..SimulatedPods::default() };
    machine
        .simulate(pods, async {
            machine.until("an error", |status| state(status) == "ErrImagePull").await;
            machine.until("back-off", |status| state(status) == "ImagePullBackOff").await;
            machine.sleep(600).await;
            assert_eq!(machine.status().await.unwrap().phase.as_deref(), Some("Pending"));
            let events = machine.events().await;
            assert!(events.contains(&"Failed: Error: ImagePullBackOff".to_owned()), "{events:?}");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_not_exist_fails_the_container() {
    let machine = Machine::new().await;
    machine.pod(json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["missing"]}]})).await;
    let failed = machine.run(async { machine.until_phase("Failed").await }).await;
    assert_eq!(state(&failed), "StartError 127");
}

#[tokio::test(start_paused = true)]
async fn a_failed_liveness_probe_restarts_the_container() {
    let machine = Machine::new().await;
    machine
        .pod(json!({"containers": [{"name": "c", "command": ["forever"], "livenessProbe":
            {"exec": {"command": ["check"]}, "periodSeconds": 5, "terminationGracePeriodSeconds": 3}}]}))
        .await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            machine.sleep(60).await;
            assert_eq!(main_status(&machine.status().await.unwrap()).restart_count, 0);
            machine.runtime.with(|state| state.commands.insert("check".into(), (1, "stuck".into())));
            machine.until("a restart", |status| main_status(status).restart_count == 1).await;
            machine.runtime.with(|state| state.commands.clear());
            let events = machine.events().await;
            assert!(events.contains(&"Unhealthy: Liveness probe failed: stuck".to_owned()), "{events:?}");
            assert!(events.contains(&"Killing: Container c failed liveness probe, will be restarted".to_owned()));
            assert!(machine.runtime.calls().contains(&"stop p/c#0 3s".to_owned()));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_the_probe_and_the_gates() {
    let machine = Machine::new().await;
    machine.runtime.with(|state| state.commands.insert("check".into(), (1, "busy".into())));
    machine
        .pod(json!({"readinessGates": [{"conditionType": "example.com/served"}],
            "containers": [{"name": "c", "command": ["forever"], "readinessProbe":
                {"exec": {"command": ["check"]}, "periodSeconds": 5}}]}))
        .await;
    machine
        .run(async {
            let running = machine.until_phase("Running").await;
            assert_eq!(condition(&running, "ContainersReady"), "False ContainersNotReady");
            machine.runtime.with(|state| state.commands.clear());
            let ready = machine.until("ready", |status| condition(status, "ContainersReady") == "True ").await;
            assert_eq!(condition(&ready, "Ready"), "False ReadinessGatesNotReady");
            let gate = json!({"type": "example.com/served", "status": "True"});
            let patch = Patch::Strategic(json!({"status": {"conditions": [gate]}}));
            machine.api::<Pod>().patch_status("p", &PatchParams::default(), &patch).await.unwrap();
            machine.until("ready", |status| condition(status, "Ready") == "True ").await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_restarts_the_container() {
    let machine = Machine::new().await;
    machine.runtime.with(|state| state.commands.insert("register".into(), (1, "no".into())));
    machine
        .pod(json!({"containers": [{"name": "c", "command": ["forever"], "lifecycle":
            {"postStart": {"exec": {"command": ["register"]}}}}]}))
        .await;
    machine
        .run(async {
            machine.until("a restart", |status| main_status(status).restart_count == 1).await;
            machine.runtime.with(|state| state.commands.clear());
            machine.until("ready", |status| condition(status, "Ready") == "True ").await;
            let events = machine.events().await;
            assert!(events.contains(&"FailedPostStartHook: PostStartHook failed: no".to_owned()), "{events:?}");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_at_its_active_deadline() {
    for is_simulated in [false, true] {
        let machine = Machine::new().await;
        machine.pod(json!({"activeDeadlineSeconds": 30, "containers": [{"name": "c", "command": ["forever"]}]})).await;
        let test = async {
            let start = machine.world.clock.now();
            let failed = machine.until_phase("Failed").await;
            assert_eq!(failed.reason.as_deref(), Some("DeadlineExceeded"));
            let waited = machine.world.clock.now().duration_since(start).as_secs();
            assert!((29..32).contains(&waited), "{waited}");
        };
        match is_simulated {
            true => machine.simulate(SimulatedPods::default(), test).await,
            false => machine.run(test).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_memory_kill_is_reported_and_a_full_volume_evicts() {
    let machine = Machine::new().await;
    let pod = machine
        .pod(json!({"restartPolicy": "Always", "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            "containers": [{"name": "c", "command": ["forever"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}))
        .await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            machine.runtime.end(&machine.id(&pod, "c", 0), 137, true);
            let again = machine.until("a restart", |status| main_status(status).restart_count == 1).await;
            let last = main_status(&again).last_state.unwrap().terminated.unwrap();
            assert_eq!((last.reason.as_deref(), last.exit_code), (Some("OOMKilled"), 137));
            machine.runtime.with(|state| state.volume_bytes.insert("v".into(), 2 << 20));
            let failed = machine.until_phase("Failed").await;
            assert_eq!(failed.reason.as_deref(), Some("Evicted"));
            assert!(failed.message.unwrap().contains("EmptyDir volume \"v\" exceeds the limit"));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_kubelet_of_simulated_nodes_leaves_the_pods_of_other_nodes_alone() {
    let machine = Machine::new().await;
    machine.pod(json!({"containers": [{"name": "c"}]})).await;
    let install = |manager: &mut Manager| {
        simulated::install(manager, SimulatedPods::default(), 1, BTreeSet::from([NODE.to_owned()]));
    };
    let until = async {
        machine.sleep(60).await;
        // The node becomes not ready, and ready again.
        let nodes: Api<Node> = Api::all(machine.client());
        for status in ["False", "True"] {
            let patch = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}));
            nodes.patch_status(NODE, &PatchParams::default(), &patch).await.unwrap();
            machine.sleep(60).await;
        }
        let status = machine.status().await.unwrap();
        assert_eq!((status.phase.as_deref(), status.container_statuses), (Some("Pending"), None));
    };
    machine.run_kubelet(install, until).await;
}

/// What both kinds of nodes must agree on: phase and reason; state, restarts and readiness of the
/// containers; value and reason of the conditions.
fn outcome(status: &PodStatus) -> Value {
    let containers: Vec<Value> = status
        .container_statuses
        .iter()
        .flatten()
        .map(|it| {
            let state = it.state.clone().unwrap_or_default();
            let ended = state.terminated.map(|ended| (ended.exit_code, ended.reason));
            let waiting = state.waiting.map(|waiting| (waiting.reason, waiting.message));
            let last = it.last_state.clone().and_then(|state| state.terminated).map(|ended| ended.exit_code);
            json!([it.name, it.restart_count, it.ready, it.started, waiting, ended, last])
        })
        .collect();
    let conditions: Vec<Value> =
        status.conditions.iter().flatten().map(|it| json!([it.type_, it.status, it.reason, it.message])).collect();
    json!({"phase": status.phase, "reason": status.reason, "containers": containers, "conditions": conditions})
}

/// Runs a pod on a simulated node and on a node with a runtime until `done`, and compares.
async fn check_both(what: &str, spec: Value, done: impl Fn(&PodStatus) -> bool) {
    let mut outcomes = Vec::new();
    for is_simulated in [true, false] {
        let machine = Machine::new().await;
        machine.pod(spec.clone()).await;
        let until = machine.until(what, &done);
        let status = match is_simulated {
            true => machine.simulate(SimulatedPods::default(), until).await,
            false => machine.run(until).await,
        };
        outcomes.push(outcome(&status));
    }
    // Only the IDs of pods differ in messages.
    let shown = |outcome: &Value| {
        let text = outcome.to_string();
        text.split("p_ns(")
            .map(|part| part.split_once(')').map_or(part, |(_, rest)| rest).to_owned())
            .collect::<Vec<_>>()
            .join("")
    };
    if shown(&outcomes[0]) != shown(&outcomes[1]) {
        assert_eq!(outcomes[0], outcomes[1], "{what}");
    }
}

fn has_phase(phase: &str) -> impl Fn(&PodStatus) -> bool {
    move |status| status.phase.as_deref() == Some(phase)
}

#[tokio::test(start_paused = true)]
async fn simulated_and_real_nodes_report_the_same_history() {
    let one = |policy: &str, script: &str| json!({"restartPolicy": policy, "containers": [{"name": "c", "command": ["sh", "-c", script]}]});
    check_both("a success", one("Never", "sleep 3"), has_phase("Succeeded")).await;
    check_both("a failure", one("Never", "sleep 3; exit 4"), has_phase("Failed")).await;
    check_both("running", one("Always", "sleep 300"), has_phase("Running")).await;
    let in_back_off =
        |status: &PodStatus| state(status) == "CrashLoopBackOff" && main_status(status).restart_count == 2;
    check_both("back-off", one("OnFailure", "sleep 3; exit 4"), in_back_off).await;
    check_both("back-off after a success", one("Always", "sleep 3"), in_back_off).await;
    let two = json!({"restartPolicy": "Never", "containers": [
        {"name": "a", "command": ["sleep", "3"]}, {"name": "b", "command": ["sh", "-c", "sleep 9; exit 2"]}]});
    check_both("one has ended", two.clone(), |status| state(status) == "Completed 0").await;
    check_both("one of two fails", two, has_phase("Failed")).await;
    let sidecar = json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["sleep", "3"]}],
        "initContainers": [{"name": "i", "command": ["true"]},
            {"name": "s", "restartPolicy": "Always", "command": ["sleep", "infinity"]}]});
    check_both("a sidecar", sidecar.clone(), has_phase("Running")).await;
    check_both("the end of a pod with a sidecar", sidecar, has_phase("Succeeded")).await;
    // A simulated pod ends at its deadline like a program that ignores its stop signal.
    let late = json!({"activeDeadlineSeconds": 20, "containers": [{"name": "c", "command": ["stubborn"]}]});
    check_both("a deadline", late, |status| status.reason.as_deref() == Some("DeadlineExceeded")).await;
    let gated = json!({"readinessGates": [{"conditionType": "example.com/x"}],
        "containers": [{"name": "c", "command": ["sleep", "300"]}]});
    check_both("a readiness gate", gated, has_phase("Running")).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_held_by_a_finalizer_keeps_its_end() {
    for is_simulated in [true, false] {
        let machine = Machine::new().await;
        machine.pod(json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": "c", "command": ["sleep", "infinity"]}]})).await;
        let patch = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
        machine.api::<Pod>().patch("p", &PatchParams::default(), &patch).await.unwrap();
        let test = async {
            machine.until_phase("Running").await;
            machine.api::<Pod>().delete("p", &DeleteParams::default()).await.unwrap();
            let failed = machine.until_phase("Failed").await;
            assert_eq!(state(&failed), "Error 143");
            let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            machine.sleep(5).await;
            machine.api::<Pod>().patch("p", &PatchParams::default(), &release).await.unwrap();
            machine.until_gone().await;
        };
        match is_simulated {
            true => machine.simulate(SimulatedPods::default(), test).await,
            false => machine.run(test).await,
        }
        assert!(machine.runtime.with(|state| state.pods.is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_start_hook_delays_the_next_container_and_readiness() {
    let machine = Machine::new().await;
    let hook = json!({"postStart": {"sleep": {"seconds": 20}}});
    machine
        .pod(json!({"containers": [{"name": "a", "command": ["forever"], "lifecycle": hook}, {"name": "b", "command": ["forever"]}]}))
        .await;
    machine
        .run(async {
            machine.until("the first container", |status| state(status) == "running").await;
            machine.sleep(10).await;
            let waiting = machine.status().await.unwrap();
            assert_eq!(
                (main_status(&waiting).started, condition(&waiting, "Ready").as_str()),
                (Some(false), "False ContainersNotReady")
            );
            assert!(!machine.runtime.calls().contains(&"start p/b#0".to_owned()));
            machine.until("ready", |status| condition(status, "Ready") == "True ").await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_debug_container_starts_in_a_running_pod() {
    let machine = Machine::new().await;
    let pod = machine.pod(json!({"containers": [{"name": "c", "command": ["forever"]}]})).await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            let debug =
                json!({"name": "debug", "image": "busybox", "command": ["forever"], "targetContainerName": "c"});
            let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [debug]}}));
            machine.api::<Pod>().patch_ephemeral_containers("p", &PatchParams::default(), &patch).await.unwrap();
            machine
                .until("the debug container", |status| {
                    let known = status.ephemeral_container_statuses.iter().flatten().next();
                    known.is_some_and(|it| it.state.as_ref().is_some_and(|state| state.running.is_some()))
                })
                .await;
            let target = machine.runtime.with(|state| state.configs["p/debug#0"].target.clone());
            assert_eq!(target.as_deref(), Some("c"));
            machine.runtime.end(&machine.id(&pod, "debug", 0), 1, false);
            machine.sleep(60).await;
            assert_eq!(machine.status().await.unwrap().phase.as_deref(), Some("Running"));
            assert!(!machine.runtime.calls().contains(&"start p/debug#1".to_owned()));
        })
        .await;
}
