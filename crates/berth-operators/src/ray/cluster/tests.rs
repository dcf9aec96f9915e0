//! Tests of the plans for pods, of the pods themselves, of Services, and of the status.

use std::sync::Arc;

use berth_api::frameworks::RayCluster;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Service};
use serde_json::{Value, json};

use super::facts::Facts;
use super::plan::{Failure, Plan, plan};
use super::pod::{self, Place};
use super::status::{self, Observed};
use super::{redis, services};
use crate::ray::constants::{HOST_INDEX, REPLICA_INDEX, REPLICA_NAME};
use crate::ray::types::{RayClusterSpec, RayClusterStatus, condition};

const UID: &str = "u";

fn template() -> Value {
    json!({"spec": {"containers": [{"name": "ray", "image": "rayproject/ray:2.46.0", "resources": {
        "requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}}]}})
}

/// A cluster `demo` with one group `small` of two workers.
fn cluster(change: impl FnOnce(&mut Value)) -> RayCluster {
    let mut cluster = json!({
        "metadata": {"name": "demo", "namespace": "team", "uid": UID, "generation": 1},
        "spec": {
            "headGroupSpec": {"template": template()},
            "workerGroupSpecs": [{"groupName": "small", "replicas": 2, "maxReplicas": 5, "template": template()}]}});
    change(&mut cluster);
    serde_json::from_value(cluster).unwrap()
}

/// The pods that the cluster's plan creates, with names, in this phase.
fn made(cluster: &RayCluster, phase: &str) -> Vec<Arc<Pod>> {
    let plan = planned(cluster, &json!({}), &[]);
    let mut pods = Vec::new();
    for (number, creation) in plan.create.into_iter().enumerate() {
        let mut pod = creation.pod;
        pod.metadata.name = Some(format!("{}{number}", pod.metadata.generate_name.take().unwrap()));
        pods.push(Arc::new(in_phase(&pod, phase)));
    }
    pods
}

fn in_phase(pod: &Pod, phase: &str) -> Pod {
    let is_ready = if phase == "Running" { "True" } else { "False" };
    let status = json!({"phase": phase, "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": is_ready}]});
    Pod { status: serde_json::from_value(status).unwrap(), ..pod.clone() }
}

fn terminating(pod: &Pod) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    Arc::new(pod)
}

fn planned(cluster: &RayCluster, status: &Value, pods: &[Arc<Pod>]) -> Plan {
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    plan(&Facts::new(cluster, &spec), cluster, &RayClusterStatus::read(Some(status)), pods, "now")
}

fn deleted(plan: &Plan) -> Vec<&str> {
    plan.delete.iter().map(|removal| super::plan::name(&removal.pod)).collect()
}

fn created(plan: &Plan) -> Vec<&str> {
    plan.create.iter().map(|creation| creation.pod.metadata.generate_name.as_deref().unwrap()).collect()
}

/// Values of a label of the pods to create.
fn labels<'a>(plan: &'a Plan, key: &str) -> Vec<&'a str> {
    plan.create.iter().map(|creation| super::plan::label(&creation.pod, key)).collect()
}

fn variable<'a>(container: &'a Container, name: &str) -> &'a str {
    let variable = container.env.iter().flatten().find(|variable| variable.name == name);
    variable.and_then(|variable| variable.value.as_deref()).unwrap_or("unset")
}

#[test]
fn a_new_cluster_gets_a_head_and_its_workers() {
    let plan = planned(&cluster(|_| {}), &json!({}), &[]);
    assert_eq!(created(&plan), ["demo-head-", "demo-small-worker-", "demo-small-worker-"]);
    assert_eq!(labels(&plan, REPLICA_INDEX), ["", "0", "1"]);
    assert!(plan.delete.is_empty() && !plan.is_interim);
}

#[test]
fn nothing_is_left_to_do_for_a_complete_cluster() {
    let cluster = cluster(|_| {});
    assert_eq!(planned(&cluster, &json!({}), &made(&cluster, "Running")), Plan::default());
}

#[test]
fn the_head_pod_has_the_labels_command_ports_and_probes_of_a_ray_head() {
    let cluster = cluster(|_| {});
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    let pod = pod::head(&Facts::new(&cluster, &spec));
    let expected = json!({
        "app.kubernetes.io/created-by": "kuberay-operator", "app.kubernetes.io/name": "kuberay",
        "ray.io/cluster": "demo", "ray.io/group": "headgroup", "ray.io/identifier": "demo-head",
        "ray.io/is-ray-node": "yes", "ray.io/node-type": "head"});
    assert_eq!(json!(pod.metadata.labels), expected);
    let spec = pod.spec.unwrap();
    let ray = &spec.containers[0];
    assert_eq!(json!(ray.command), json!(["/bin/bash", "-c", "--"]));
    assert_eq!(
        ray.args.as_ref().unwrap()[0],
        "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; ray start --head  --block  \
         --dashboard-agent-listen-port=52365  --dashboard-host=0.0.0.0  --memory=2147483648  \
         --metrics-export-port=8080  --num-cpus=1 "
    );
    assert_eq!(variable(ray, "RAY_ADDRESS"), "127.0.0.1:6379");
    assert!(variable(ray, "KUBERAY_GEN_RAY_START_CMD").starts_with("ray start --head "));
    assert_eq!(json!(ray.ports), json!([{"name": "metrics", "containerPort": 8080}]));
    let readiness = ray.readiness_probe.as_ref().unwrap();
    assert_eq!((readiness.initial_delay_seconds, readiness.failure_threshold), (Some(10), Some(10)));
    assert!(json!(readiness.exec).to_string().contains("api/gcs_healthz"));
    let memory = json!([{"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]);
    assert_eq!(json!(spec.volumes), memory);
    assert_eq!(spec.init_containers, None);
}

#[test]
fn a_worker_waits_for_the_head_and_joins_it_by_name() {
    let cluster = cluster(|_| {});
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    let pod = pod::worker(&Facts::new(&cluster, &spec), &spec.worker_group_specs[0], &Place::default());
    let spec = pod.spec.unwrap();
    let wait = &spec.init_containers.as_ref().unwrap()[0];
    assert_eq!(wait.name, "wait-gcs-ready");
    assert!(wait.args.as_ref().unwrap()[0].contains("--address demo-head-svc.team.svc.cluster.local:6379"));
    let ray = &spec.containers[0];
    assert!(ray.args.as_ref().unwrap()[0].contains(" --address=demo-head-svc.team.svc.cluster.local:6379 "));
    assert_eq!(variable(ray, "RAY_ADDRESS"), "demo-head-svc.team.svc.cluster.local:6379");
    assert_eq!(variable(ray, "RAY_IP"), "demo-head-svc");
    assert_eq!(variable(ray, "FQ_RAY_IP"), "demo-head-svc.team.svc.cluster.local");
}

#[test]
fn a_recent_version_of_ray_is_probed_at_one_address() {
    let cluster = cluster(|cluster| cluster["spec"]["rayVersion"] = json!("2.53.0"));
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    let pod = pod::head(&Facts::new(&cluster, &spec));
    let probe = pod.spec.unwrap().containers[0].liveness_probe.clone().unwrap();
    assert_eq!(json!(probe.http_get), json!({"path": "/api/healthz", "port": 52365}));
}

#[test]
fn a_command_of_the_template_runs_before_ray_starts() {
    let with = |args: Value, annotations: Value| {
        let cluster = cluster(|cluster| {
            cluster["metadata"]["annotations"] = annotations;
            cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["args"] = args;
        });
        let spec = RayClusterSpec::read(&cluster.spec).unwrap();
        pod::head(&Facts::new(&cluster, &spec)).spec.unwrap().containers[0].args.clone().unwrap()
    };
    assert!(with(json!(["echo", "hi"]), json!({}))[0].starts_with("echo hi && ulimit -n "));
    assert_eq!(with(json!(["ray start --head"]), json!({})), ["ray start --head"]);
    let overwrite = json!({"ray.io/overwrite-container-cmd": "true"});
    assert_eq!(with(json!(["echo", "hi"]), overwrite), ["echo", "hi"]);
}

#[test]
fn an_autoscaled_head_has_the_autoscaler_and_its_rights() {
    let cluster = cluster(|cluster| {
        cluster["spec"]["enableInTreeAutoscaling"] = json!(true);
        cluster["spec"]["autoscalerOptions"] = json!({"version": "v2", "env": [{"name": "A", "value": "b"}]});
    });
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    let facts = Facts::new(&cluster, &spec);
    let pod = pod::head(&facts);
    let pod_spec = pod.spec.unwrap();
    assert_eq!(pod_spec.service_account_name.as_deref(), Some("demo"));
    assert_eq!(pod_spec.restart_policy.as_deref(), Some("Never"));
    let [ray, autoscaler] = pod_spec.containers.as_slice() else { panic!("two containers") };
    assert_eq!(autoscaler.name, "autoscaler");
    assert_eq!(autoscaler.image, ray.image);
    assert_eq!(variable(autoscaler, "A"), "b");
    assert_eq!(variable(ray, "RAY_enable_autoscaler_v2"), "true");
    assert!(variable(ray, "KUBERAY_GEN_RAY_START_CMD").contains(" --no-monitor "));
    assert!(ray.volume_mounts.iter().flatten().any(|mount| mount.mount_path == "/tmp/ray"));
    assert_eq!(autoscaler.volume_mounts.as_ref().unwrap()[0].mount_path, "/tmp/ray");
    // A simulated pod that does not restart would end by itself.
    assert_eq!(pod.metadata.annotations.unwrap()["berth.dev/run-duration"], "forever");
    assert_eq!(super::access::binding(&facts).subjects.unwrap()[0].name, "demo");
}

#[test]
fn a_dead_worker_is_deleted_before_its_replacement_is_made() {
    let cluster = cluster(|_| {});
    let mut pods = made(&cluster, "Running");
    pods[1] = Arc::new(in_phase(&pods[1], "Failed"));
    let plan = planned(&cluster, &json!({}), &pods);
    assert_eq!(deleted(&plan), ["demo-small-worker-1"]);
    assert!(plan.create.is_empty() && plan.is_interim);
    let message = &plan.delete[0].event.as_ref().unwrap().message;
    assert_eq!(
        message,
        "Deleted worker Pod team/demo-small-worker-1; Pod status: Failed; Pod restart policy: Always; Ray container \
         terminated status: none"
    );
    pods.remove(1);
    let plan = planned(&cluster, &json!({}), &pods);
    assert_eq!((created(&plan), labels(&plan, REPLICA_INDEX)), (vec!["demo-small-worker-"], vec!["0"]));
}

#[test]
fn the_workers_chosen_by_the_autoscaler_are_deleted() {
    let cluster = cluster(|cluster| {
        cluster["spec"]["enableInTreeAutoscaling"] = json!(true);
        cluster["spec"]["workerGroupSpecs"][0]["replicas"] = json!(3);
    });
    let pods = made(&cluster, "Running");
    let smaller = RayCluster {
        spec: {
            let mut spec = cluster.spec.clone();
            spec["workerGroupSpecs"][0]["replicas"] = json!(2);
            spec["workerGroupSpecs"][0]["scaleStrategy"] = json!({"workersToDelete": ["demo-small-worker-1"]});
            spec
        },
        ..cluster
    };
    let plan = planned(&smaller, &json!({}), &pods);
    assert_eq!((deleted(&plan), created(&plan)), (vec!["demo-small-worker-1"], vec![]));
    // The name stays in the list. A listed pod that is being deleted causes neither another
    // deletion nor a replacement.
    let going = [pods[0].clone(), terminating(&pods[1]), pods[2].clone(), pods[3].clone()];
    assert_eq!(planned(&smaller, &json!({}), &going), Plan::default());
}

#[test]
fn a_smaller_group_loses_workers_unless_the_autoscaler_chooses_them() {
    let cluster = cluster(|_| {});
    let mut pods = made(&cluster, "Running");
    pods[1] = Arc::new(in_phase(&pods[1], "Pending"));
    let smaller = |is_autoscaled: bool| {
        let mut spec = cluster.spec.clone();
        spec["enableInTreeAutoscaling"] = json!(is_autoscaled);
        spec["workerGroupSpecs"][0]["replicas"] = json!(1);
        RayCluster { spec, ..cluster.clone() }
    };
    assert_eq!(deleted(&planned(&smaller(false), &json!({}), &pods)), ["demo-small-worker-1"]);
    assert_eq!(planned(&smaller(true), &json!({}), &pods), Plan::default());
}

#[test]
fn replicas_stay_within_their_bounds() {
    let with = |replicas: Value, min: i32, max: i32| {
        let cluster = cluster(|cluster| {
            let group = &mut cluster["spec"]["workerGroupSpecs"][0];
            group["replicas"] = replicas;
            group["minReplicas"] = json!(min);
            group["maxReplicas"] = json!(max);
        });
        planned(&cluster, &json!({}), &[]).create.len() - 1
    };
    assert_eq!(with(json!(0), 1, 5), 1);
    assert_eq!(with(json!(9), 0, 3), 3);
    assert_eq!(with(json!(null), 2, 3), 2);
}

#[test]
fn a_suspended_group_has_no_pods() {
    let cluster = cluster(|_| {});
    let pods = made(&cluster, "Running");
    let mut spec = cluster.spec.clone();
    spec["workerGroupSpecs"][0]["suspend"] = json!(true);
    let plan = planned(&RayCluster { spec, ..cluster }, &json!({}), &pods);
    assert_eq!(deleted(&plan), ["demo-small-worker-1", "demo-small-worker-2"]);
    assert_eq!(plan.events[0].message, "Deleted all pods for suspended worker group small in RayCluster team/demo");
}

/// A cluster with a group of TPU slices of two hosts.
fn slices(replicas: i32) -> RayCluster {
    cluster(|cluster| {
        let group = &mut cluster["spec"]["workerGroupSpecs"][0];
        group["replicas"] = json!(replicas);
        group["numOfHosts"] = json!(2);
        group["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] = json!("4");
    })
}

#[test]
fn the_hosts_of_a_slice_know_each_other() {
    let plan = planned(&slices(2), &json!({}), &[]);
    assert_eq!(labels(&plan, REPLICA_INDEX)[1..], ["0", "0", "1", "1"]);
    assert_eq!(labels(&plan, HOST_INDEX)[1..], ["0", "1", "0", "1"]);
    let names = labels(&plan, REPLICA_NAME);
    assert!(names[1] == names[2] && names[3] == names[4] && names[1] != names[3]);
    assert!(names[1].starts_with("small-") && names[1].len() == "small-12345".len());
    let spec = plan.create[4].pod.spec.as_ref().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("small-1-1"), Some("demo-headless")));
    let ray = &spec.containers[0];
    assert_eq!(variable(ray, "TPU_WORKER_ID"), "1");
    assert_eq!(variable(ray, "TPU_WORKER_HOSTNAMES"), "small-1-0.demo-headless,small-1-1.demo-headless");
    assert_eq!(variable(ray, "TPU_NAME"), "small-1");
    assert!(variable(ray, "KUBERAY_GEN_RAY_START_CMD").contains("--resources='{\"TPU\":4}'"));
    assert_eq!(variable(&spec.init_containers.as_ref().unwrap()[0], "TPU_WORKER_ID"), "unset");
}

#[test]
fn a_slice_with_a_dead_host_is_replaced_as_a_whole() {
    let cluster = slices(2);
    let mut pods = made(&cluster, "Running");
    pods[2] = Arc::new(in_phase(&pods[2], "Failed"));
    let plan = planned(&cluster, &json!({}), &pods);
    assert_eq!(deleted(&plan), ["demo-small-worker-1", "demo-small-worker-2"]);
    assert!(plan.create.is_empty() && plan.is_interim);
    // One host is gone before the other. The slice is not created anew while one host is left.
    let going = [pods[0].clone(), terminating(&pods[1]), pods[3].clone(), pods[4].clone()];
    let plan = planned(&cluster, &json!({}), &going);
    assert!(plan.delete.is_empty() && plan.create.is_empty() && plan.is_interim);
    let rest = [pods[0].clone(), pods[3].clone(), pods[4].clone()];
    let plan = planned(&cluster, &json!({}), &rest);
    assert_eq!(labels(&plan, REPLICA_INDEX), ["0", "0"]);
}

#[test]
fn a_slice_is_deleted_as_a_whole() {
    let cluster = slices(2);
    let pods = made(&cluster, "Running");
    let mut spec = cluster.spec.clone();
    spec["workerGroupSpecs"][0]["replicas"] = json!(1);
    let smaller = RayCluster { spec, ..cluster.clone() };
    assert_eq!(deleted(&planned(&smaller, &json!({}), &pods)), ["demo-small-worker-3", "demo-small-worker-4"]);
    let mut spec = smaller.spec.clone();
    spec["enableInTreeAutoscaling"] = json!(true);
    spec["workerGroupSpecs"][0]["scaleStrategy"] = json!({"workersToDelete": ["demo-small-worker-2"]});
    let chosen = RayCluster { spec, ..cluster };
    assert_eq!(deleted(&planned(&chosen, &json!({}), &pods)), ["demo-small-worker-1", "demo-small-worker-2"]);
}

#[test]
fn a_dead_head_is_replaced_unless_the_cluster_forbids_it() {
    let with = |annotations: Value| cluster(|cluster| cluster["metadata"]["annotations"] = annotations);
    let plain = with(json!({}));
    let mut pods = made(&plain, "Running");
    pods[0] = Arc::new(in_phase(&pods[0], "Succeeded"));
    let plan = planned(&plain, &json!({}), &pods);
    assert_eq!((deleted(&plan), plan.is_interim), (vec!["demo-head-0"], true));
    assert_eq!(created(&planned(&plain, &json!({}), &pods[1..])), ["demo-head-"]);
    let provisioned = json!({"conditions": [{"type": "RayClusterProvisioned", "status": "True", "reason": "r",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let fixed = with(json!({"ray.io/disable-provisioned-head-restart": "true"}));
    assert_eq!(planned(&fixed, &provisioned, &pods[1..]), Plan::default());
    assert_eq!(created(&planned(&fixed, &json!({}), &pods[1..])), ["demo-head-"]);
}

#[test]
fn a_second_head_stops_the_plan_with_a_warning() {
    let cluster = cluster(|_| {});
    let mut pods = made(&cluster, "Running");
    pods.push(pods[0].clone());
    let plan = planned(&cluster, &json!({}), &pods);
    assert!(plan.is_interim && plan.events[0].message.starts_with("2 head pods found ["));
}

#[test]
fn a_changed_spec_recreates_all_pods_if_the_user_wants_that() {
    let cluster = cluster(|cluster| cluster["spec"]["upgradeStrategy"] = json!({"type": "Recreate"}));
    let pods = made(&cluster, "Running");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut spec = cluster.spec.clone();
        change(&mut spec);
        planned(&RayCluster { spec, ..cluster.clone() }, &json!({}), &pods)
    };
    let scaled = with(&|spec| {
        spec["workerGroupSpecs"][0]["scaleStrategy"] = json!({"workersToDelete": []});
        spec["headGroupSpec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    });
    assert_eq!(scaled, Plan::default(), "a change of the scale strategy or of tolerations does not recreate pods");
    let changed = with(&|spec| spec["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] = json!("other"));
    assert_eq!(changed.delete.len(), 3);
    let kept = with(&|spec| {
        spec["upgradeStrategy"] = json!({"type": "None"});
        spec["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
    });
    assert_eq!(kept, Plan::default());
}

/// The status after `old` for these pods.
fn next(cluster: &RayCluster, old: &RayClusterStatus, pods: &[Arc<Pod>]) -> RayClusterStatus {
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    let facts = Facts::new(cluster, &spec);
    let service: Service = Service { status: None, ..services::head(&facts) };
    let observed = Observed {
        facts: &facts,
        generation: Some(1),
        pods,
        head_service: Some(&service),
        failure: None,
        is_settled: true,
        now: "2026-01-01T00:00:10.5Z".parse::<Timestamp>().unwrap(),
    };
    status::next(&observed, old)
}

fn conditions(status: &RayClusterStatus) -> Vec<String> {
    let text = |it: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        format!("{}={} {}", it.type_, it.status, it.reason)
    };
    status.conditions.iter().map(text).collect()
}

#[test]
fn a_cluster_is_ready_when_all_its_pods_are() {
    let cluster = cluster(|_| {});
    let pods = made(&cluster, "Running");
    let waiting = next(&cluster, &RayClusterStatus::default(), &pods[..2]);
    assert_eq!((waiting.state.as_str(), waiting.desired_worker_replicas, waiting.ready_worker_replicas), ("", 2, 1));
    let ready = next(&cluster, &waiting, &pods);
    assert_eq!((ready.state.as_str(), ready.available_worker_replicas), ("ready", 2));
    assert_eq!(ready.desired_cpu.0, "3");
    assert_eq!((ready.head.pod_ip.as_str(), ready.head.service_ip.as_str()), ("10.0.0.1", "10.0.0.1"));
    assert_eq!(ready.head.service_name, "demo-head-svc");
    assert_eq!(ready.state_transition_times["ready"].0.to_string(), "2026-01-01T00:00:10Z");
    let expected = [
        "HeadPodReady=True HeadPodRunningAndReady",
        "RayClusterProvisioned=True AllPodRunningAndReadyFirstTime",
        "RayClusterSuspended=False RayClusterSuspended",
        "RayClusterSuspending=False RayClusterSuspending",
    ];
    assert_eq!(conditions(&ready), expected);
    // If a worker is lost later, only the counts change.
    let later = next(&cluster, &ready, &pods[..2]);
    assert_eq!((later.state.as_str(), later.ready_worker_replicas), ("ready", 1));
    assert_eq!(conditions(&later), expected);
}

#[test]
fn the_status_stays_equal_if_nothing_changes() {
    let cluster = cluster(|_| {});
    let pods = made(&cluster, "Running");
    let first = next(&cluster, &RayClusterStatus::default(), &pods);
    let stored = RayClusterStatus::read(Some(&serde_json::to_value(&first).unwrap()));
    assert_eq!(next(&cluster, &stored, &pods), stored);
}

#[test]
fn a_suspension_deletes_the_pods_before_it_is_complete() {
    let plain = cluster(|_| {});
    let suspended = cluster(|cluster| cluster["spec"]["suspend"] = json!(true));
    let pods = made(&plain, "Running");
    let ready = next(&plain, &RayClusterStatus::default(), &pods);
    let asked = next(&suspended, &ready, &pods);
    assert!(asked.is_true(condition::SUSPENDING) && asked.state == "ready");
    let plan = planned(&suspended, &serde_json::to_value(&ready).unwrap(), &pods);
    assert_eq!(plan, Plan::default(), "the condition is written before the pods are deleted");
    let plan = planned(&plain, &serde_json::to_value(&asked).unwrap(), &pods);
    assert_eq!(plan.delete.len(), 3, "a suspension that has begun is completed");
    assert_eq!(plan.delete[0].failure, Failure::DeleteAllPods);
    let done = next(&suspended, &asked, &[]);
    assert_eq!(done.state, "suspended");
    assert!(done.is_true(condition::SUSPENDED) && !done.is_true(condition::SUSPENDING));
    assert!(!done.is_true(condition::PROVISIONED));
    assert_eq!(planned(&suspended, &serde_json::to_value(&done).unwrap(), &[]), Plan::default());
    let resumed = next(&plain, &done, &[]);
    assert!(!resumed.is_true(condition::SUSPENDED));
    assert_eq!(planned(&plain, &serde_json::to_value(&resumed).unwrap(), &[]).create.len(), 3);
}

#[test]
fn the_head_condition_names_the_container_that_is_not_ready() {
    let cluster = cluster(|_| {});
    let mut pods = made(&cluster, "Pending");
    let mut head = pods[0].as_ref().clone();
    head.status = serde_json::from_value(json!({"phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "unready"}],
        "containerStatuses": [{"name": "ray", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}))
    .unwrap();
    pods[0] = Arc::new(head);
    let status = next(&cluster, &RayClusterStatus::default(), &pods);
    let condition = &status.conditions[0];
    assert_eq!(
        (condition.reason.as_str(), condition.message.as_str()),
        ("ErrImagePull", "unready; ray: no such image")
    );
}

#[test]
fn the_head_service_is_headless_and_has_the_ports_of_the_head() {
    let ports = |service: &Service| -> Vec<(String, i32)> {
        let ports = service.spec.as_ref().unwrap().ports.as_ref().unwrap();
        ports.iter().map(|port| (port.name.clone().unwrap(), port.port)).collect()
    };
    let check = |change: fn(&mut Value), expected: &[(&str, i32)], cluster_ip: Option<&str>| {
        let cluster = cluster(change);
        let spec = RayClusterSpec::read(&cluster.spec).unwrap();
        let service = services::head(&Facts::new(&cluster, &spec));
        let found = ports(&service);
        assert_eq!(found.iter().map(|(name, port)| (name.as_str(), *port)).collect::<Vec<_>>(), expected);
        assert_eq!(service.spec.unwrap().cluster_ip.as_deref(), cluster_ip);
    };
    let default = [("client", 10001), ("dashboard", 8265), ("gcs-server", 6379), ("metrics", 8080), ("serve", 8000)];
    check(|_| {}, &default, Some("None"));
    let given = |cluster: &mut Value| {
        cluster["spec"]["headGroupSpec"]["serviceType"] = json!("LoadBalancer");
        cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"] =
            json!([{"name": "gcs", "containerPort": 6379}, {"containerPort": 99}]);
    };
    check(given, &[("99-port", 99), ("gcs", 6379), ("metrics", 8080)], None);
}

#[test]
fn a_service_of_the_user_keeps_its_name_and_gets_the_ports() {
    let cluster = cluster(|cluster| {
        cluster["spec"]["headGroupSpec"]["headService"] = json!({
            "metadata": {"name": "mine", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"type": "NodePort", "selector": {"x": "y"}, "ports": [{"name": "extra", "port": 1}]}});
    });
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    let facts = Facts::new(&cluster, &spec);
    let service = services::head(&facts);
    assert_eq!(service.metadata.name.as_deref(), Some("mine"));
    assert_eq!(service.metadata.labels.as_ref().unwrap()["a"], "b");
    let spec = service.spec.unwrap();
    assert_eq!(spec.selector.as_ref().unwrap().get("x"), None);
    assert_eq!(spec.ports.unwrap().len(), 6);
    assert_eq!(facts.head_address(), "mine.team.svc.cluster.local");
}

#[test]
fn a_store_in_redis_is_known_to_the_head_and_to_the_clean_up() {
    let cluster = cluster(|cluster| {
        cluster["spec"]["gcsFaultToleranceOptions"] = json!({
            "redisAddress": "redis:6379",
            "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}}});
    });
    let spec = RayClusterSpec::read(&cluster.spec).unwrap();
    let facts = Facts::new(&cluster, &spec);
    let head = pod::head(&facts);
    assert_eq!(head.metadata.annotations.as_ref().unwrap()["ray.io/ft-enabled"], "true");
    assert_eq!(head.metadata.annotations.as_ref().unwrap()["ray.io/external-storage-namespace"], UID);
    let ray = &head.spec.as_ref().unwrap().containers[0];
    assert_eq!(variable(ray, "RAY_REDIS_ADDRESS"), "redis:6379");
    assert_eq!(variable(ray, "RAY_external_storage_namespace"), UID);
    assert!(variable(ray, "KUBERAY_GEN_RAY_START_CMD").contains(" --redis-password=$REDIS_PASSWORD "));
    let worker = pod::worker(&facts, &spec.worker_group_specs[0], &Place::default());
    let ray = &worker.spec.as_ref().unwrap().containers[0];
    assert_eq!(variable(ray, "RAY_gcs_rpc_server_reconnect_timeout_s"), "600");
    let job = redis::job(&facts);
    assert_eq!(job.metadata.name.as_deref(), Some("demo-redis-cleanup"));
    let template = job.spec.unwrap().template;
    assert_eq!(template.metadata.unwrap().labels.unwrap()["ray.io/node-type"], "redis-cleanup");
    let container = &template.spec.unwrap().containers[0];
    assert_eq!((container.readiness_probe.as_ref(), variable(container, "RAY_REDIS_ADDRESS")), (None, "redis:6379"));
}

#[test]
fn a_rejected_pod_gives_the_same_message_at_each_attempt() {
    let rejected = |name: &str| format!("pods \"{name}\" is forbidden: quota");
    let message = "pods \"demo-head-\" is forbidden: quota";
    assert_eq!(super::without_drawn_name(&rejected("demo-head-ab2cd")), message);
    assert_eq!(super::without_drawn_name(&rejected("demo-head-x9z7w")), message);
    assert_eq!(super::without_drawn_name("no such host"), "no such host");
}
