//! Metrics of one object each.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn read<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|it| it == *line), "{line}\n{text}");
    }
}

#[test]
fn a_node_has_its_taints_conditions_and_resources() {
    let node: Node = read(json!({
        "metadata": {"name": "n", "labels": {"a.b/c": "1", "a.b-c": "2", "autopilot.ibm.com/gpuhealth": "ERR"}},
        "spec": {"unschedulable": true, "taints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "1Ki", "nvidia.com/gpu": "2"},
            "conditions": [{"type": "Ready", "status": "Unknown"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                "systemUUID": ""},
        },
    }));
    let text = Exposition::text(|exposition| node::Families::new(exposition).write(exposition, &node));
    assert_has(
        &text,
        &[
            r#"kube_node_labels{node="n",label_a_b_c_conflict1="2",label_a_b_c_conflict2="1",label_autopilot_ibm_com_gpuhealth="ERR"} 1"#,
            r#"kube_node_spec_unschedulable{node="n"} 1"#,
            r#"kube_node_spec_taint{node="n",key="spot",value="true",effect="NoSchedule"} 1"#,
            r#"kube_node_status_allocatable{node="n",resource="cpu",unit="core"} 3.92"#,
            r#"kube_node_status_allocatable{node="n",resource="memory",unit="byte"} 1024"#,
            r#"kube_node_status_allocatable{node="n",resource="nvidia_com_gpu",unit="integer"} 2"#,
            r#"kube_node_status_condition{node="n",condition="Ready",status="unknown"} 1"#,
            r#"kube_node_status_condition{node="n",condition="Ready",status="true"} 0"#,
        ],
    );
    assert!(text.contains(r#"kubelet_version="v1.36.0""#), "{text}");
}

#[test]
fn a_pod_has_its_phase_owner_and_containers() {
    let pod: Pod = read(json!({
        "metadata": {"name": "p", "namespace": "team", "uid": "u",
            "labels": {"app": "x", "kueue.x-k8s.io/queue-name": "lq"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "", "controller": true}]},
        "spec": {"nodeName": "n", "containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m", "nvidia.com/gpu": "2"}}}]},
        "status": {"phase": "Failed", "reason": "Evicted",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "1970-01-01T00:01:00Z"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
    }));
    let text = Exposition::text(|exposition| pod::Families::new(exposition).write(exposition, &pod));
    let of = r#"namespace="team",pod="p",uid="u""#;
    let lines = [
        format!(r#"kube_pod_owner{{{of},owner_kind="Job",owner_name="j",owner_is_controller="true"}} 1"#),
        format!(r#"kube_pod_labels{{{of},label_kueue_x_k8s_io_queue_name="lq"}} 1"#),
        format!(r#"kube_pod_status_phase{{{of},phase="Failed"}} 1"#),
        format!(r#"kube_pod_status_phase{{{of},phase="Running"}} 0"#),
        format!(r#"kube_pod_status_reason{{{of},reason="Evicted"}} 1"#),
        format!(r#"kube_pod_status_scheduled{{{of},condition="false"}} 1"#),
        format!("kube_pod_status_unschedulable{{{of}}} 1"),
        format!("kube_pod_completion_time{{{of}}} 60"),
        format!(
            r#"kube_pod_container_resource_requests{{{of},container="c",node="n",resource="cpu",unit="core"}} 0.5"#
        ),
        format!(r#"kube_pod_container_status_terminated_reason{{{of},container="c",reason="Error"}} 1"#),
        format!(r#"kube_pod_container_status_last_terminated_reason{{{of},container="c",reason="OOMKilled"}} 1"#),
        format!(r#"kube_pod_container_status_restarts_total{{{of},container="c"}} 3"#),
    ];
    assert_has(&text, &lines.each_ref().map(String::as_str));
}

#[test]
fn a_job_has_its_pods_and_its_end() {
    let job: Job = read(json!({
        "metadata": {"name": "j", "namespace": "team"},
        "spec": {"parallelism": 2, "completions": 4, "template": {}},
        "status": {"active": 1, "failed": 3, "conditions": [
            {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]},
    }));
    let text = Exposition::text(|exposition| job::Families::new(exposition).write(exposition, &job));
    assert_has(
        &text,
        &[
            r#"kube_job_spec_completions{namespace="team",job_name="j"} 4"#,
            r#"kube_job_status_active{namespace="team",job_name="j"} 1"#,
            r#"kube_job_status_failed{namespace="team",job_name="j",reason="BackoffLimitExceeded"} 3"#,
            r#"kube_job_failed{namespace="team",job_name="j",condition="true"} 1"#,
            r#"kube_job_status_suspended{namespace="team",job_name="j"} 0"#,
        ],
    );
    assert!(!text.contains("kube_job_complete{"), "{text}");
}

/// A running pod of a Job with one container that uses GPUs.
fn running(number: usize) -> Pod {
    let amounts = json!({"cpu": "2", "memory": "10Gi", "nvidia.com/gpu": "2"});
    read(json!({
        "metadata": {"name": format!("team-a-low-priority-job-{number}-0-abcde"), "namespace": "team-a",
            "uid": "11111111-2222-3333-4444-555555555555", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kueue.x-k8s.io/queue-name": "lq-team-a-lp", "batch.kubernetes.io/job-name": "job"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "", "controller": true}]},
        "spec": {"nodeName": "spot-np-1", "containers": [
            {"name": "main", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{"name": "main", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                "state": {"running": {}}}]},
    }))
}

#[test]
fn a_pod_has_a_limited_number_of_series() {
    let pods: Vec<Pod> = (0..1000).map(running).collect();
    let text = Exposition::text(|exposition| {
        let families = pod::Families::new(exposition);
        for pod in &pods {
            families.write(exposition, pod);
        }
    });
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(series, 28 * pods.len());
    assert!(text.len() < 5_000 * pods.len(), "{} bytes", text.len());
}

#[test]
fn of_too_many_objects_those_that_ended_first_have_no_series() {
    let pod = |name: &str, phase: &str, minute: u32| -> Pod {
        let finished = format!("2026-01-01T00:{minute:02}:00Z");
        read(json!({"metadata": {"name": name, "namespace": "team", "resourceVersion": "1"},
            "status": {"phase": phase, "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"terminated": {"exitCode": 0, "finishedAt": finished}}}]}}))
    };
    let pods = Cache::for_tests([
        pod("old", "Succeeded", 1),
        pod("last", "Failed", 9),
        pod("running", "Running", 0),
        pod("middle", "Succeeded", 5),
    ]);
    let written = |max: usize| {
        let mut names = Vec::new();
        let left_out = bounded(&pods, max, &pod::ended, &mut |pod| names.extend(pod.metadata.name.clone()));
        (names.join(" "), left_out)
    };
    assert_eq!(written(3), ("running last middle".to_owned(), 1));
    assert_eq!(written(0), (String::new(), 4));
    assert_eq!(written(4).1, 0);
    let clock = Clock::scaled("2026-01-01T01:00:00Z".parse().expect("a time"), 1.0);
    let state = KubeState::of(Cache::for_tests([]), pods.clone(), Cache::for_tests([]), clock);
    let text = Exposition::text(|exposition| state.write(exposition));
    assert_has(&text, &[r#"berth_kube_state_objects_left_out{kind="pods"} 0"#]);
}
