//! Resizes of pods on a node with a runtime.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::kubelet::{Machine, condition, main_status};

/// A pod with a running container `c`, with one CPU and these resize policies.
async fn machine(policies: Value) -> Machine {
    let machine = Machine::new().await;
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    machine
        .pod(json!({"terminationGracePeriodSeconds": 3, "containers": [{"name": "c", "command": ["forever"],
            "resizePolicy": policies, "resources": {"requests": amounts, "limits": amounts}}]}))
        .await;
    machine
}

async fn patch(machine: &Machine, cpu: &str, memory: &str) {
    let amounts = json!({"cpu": cpu, "memory": memory});
    let resources = json!({"requests": amounts, "limits": amounts});
    let patch = Patch::Strategic(json!({"spec": {"containers": [{"name": "c", "resources": resources}]}}));
    machine.api::<Pod>().patch_subresource("resize", "p", &PatchParams::default(), &patch).await.unwrap();
}

/// Granted CPU, and the limits in force, of the container.
fn given(status: &PodStatus) -> [String; 3] {
    let container = main_status(status);
    let of = |list: Option<std::collections::BTreeMap<String, _>>, name: &str| {
        let amount: Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity> =
            list.unwrap_or_default().remove(name);
        amount.unwrap_or_default().0
    };
    let limits = container.resources.and_then(|resources| resources.limits);
    [of(container.allocated_resources, "cpu"), of(limits.clone(), "cpu"), of(limits, "memory")]
}

fn limits(machine: &Machine) -> Vec<String> {
    machine.runtime.calls().into_iter().filter(|call| call.starts_with("limit")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_granted_resize_changes_the_limits_of_the_running_container() {
    let machine = machine(json!([])).await;
    machine
        .run(async {
            let status = machine.until_phase("Running").await;
            assert_eq!(given(&status), ["1", "1", "64Mi"]);
            machine.sleep(2).await;
            assert_eq!(limits(&machine), Vec::<String>::new(), "nothing to resize");
            patch(&machine, "2", "128Mi").await;
            let status = machine.until("the resize", |status| given(status) == ["2", "2", "128Mi"]).await;
            assert_eq!(main_status(&status).restart_count, 0);
            let status = machine.until("its end", |status| condition(status, "PodResizeInProgress").is_empty()).await;
            assert_eq!((condition(&status, "PodResizePending").as_str(), status.observed_generation), ("", Some(2)));
            let events = machine.events().await;
            for reason in ["ResizeStarted", "ResizeCompleted"] {
                assert_eq!(events.iter().filter(|event| event.starts_with(reason)).count(), 1, "{events:?}");
            }
        })
        .await;
    assert_eq!(limits(&machine), ["limit p/c#0 cpu 2000 memory 134217728"]);
}

#[tokio::test(start_paused = true)]
async fn a_resize_beyond_the_node_is_infeasible_and_is_withdrawn_by_another() {
    let machine = machine(json!([])).await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            patch(&machine, "5", "64Mi").await;
            let pending =
                machine.until("a rejection", |status| !condition(status, "PodResizePending").is_empty()).await;
            assert_eq!(condition(&pending, "PodResizePending"), "True Infeasible");
            assert_eq!(given(&pending), ["1", "1", "64Mi"], "the container keeps what it has");
            patch(&machine, "3", "64Mi").await;
            let status = machine.until("the resize", |status| given(status) == ["3", "3", "64Mi"]).await;
            assert_eq!(condition(&status, "PodResizePending"), "");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_the_runtime_refuses_is_reported_and_tried_again() {
    let machine = machine(json!([])).await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            machine.runtime.with(|state| state.limits_refused = Some("it uses more memory".to_owned()));
            patch(&machine, "1", "32Mi").await;
            let failed = machine.until("an error", |status| condition(status, "PodResizeInProgress") == "True Error");
            let failed = failed.await;
            assert_eq!(given(&failed), ["1", "1", "64Mi"]);
            machine.runtime.with(|state| state.limits_refused = None);
            let status = machine.until("the resize", |status| given(status) == ["1", "1", "32Mi"]).await;
            assert_eq!(condition(&status, "PodResizeInProgress"), "");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_restarts_the_container_with_the_new_resources_at_once() {
    let machine = machine(json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}])).await;
    machine
        .run(async {
            machine.until_phase("Running").await;
            for (restarts, memory) in [(0, "64Mi"), (1, "128Mi"), (2, "256Mi")] {
                patch(&machine, "2", memory).await;
                let start = machine.world.clock.now();
                let resized = |status: &PodStatus| given(status) == ["2", "2", memory];
                let status = machine.until("the resize", resized).await;
                assert_eq!(main_status(&status).restart_count, restarts);
                let waited = machine.world.clock.now().duration_since(start).as_secs();
                assert!(waited < 5, "a restart for a resize has no back-off: {waited} s");
                let status = machine.until("its end", |it| condition(it, "PodResizeInProgress").is_empty()).await;
                assert_eq!(condition(&status, "PodResizePending"), "");
            }
            let events = machine.events().await;
            assert!(events.contains(&"Killing: Container c resize requires restart".to_owned()), "{events:?}");
        })
        .await;
    let limits = machine.runtime.with(|state| state.configs["p/c#2"].limits);
    assert_eq!((limits.cpu_milli, limits.memory_bytes), (Some(2000), Some(256 << 20)));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_carries_out_a_resize_of_the_time_between() {
    let machine = machine(json!([])).await;
    machine.run(machine.until_phase("Running")).await;
    patch(&machine, "2", "64Mi").await;
    machine.run(machine.until("the resize", |status| given(status) == ["2", "2", "64Mi"])).await;
    assert_eq!(limits(&machine), ["limit p/c#0 cpu 2000 memory 67108864"]);
}
