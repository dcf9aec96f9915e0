//! Printers of pods and pod templates.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{
    NONE, age, condition, containers, count, flag, has_condition, is_being_deleted, items, labels, moment, number,
    span, text, text_or,
};
use super::{AGE, Printer, printer};

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "",
        "Pod",
        &[
            ("Ready", "string", 0),
            ("Status", "string", 0),
            ("Restarts", "string", 0),
            AGE,
            ("IP", "string", 1),
            ("Node", "string", 1),
            ("Nominated Node", "string", 1),
            ("Readiness Gates", "string", 1),
        ],
        pod,
    ),
    printer(
        "",
        "PodTemplate",
        &[("Containers", "string", 0), ("Images", "string", 0), ("Pod Labels", "string", 0)],
        pod_template,
    ),
];

fn pod_template(object: &Value, _now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "/template/spec");
    vec![names.into(), images.into(), labels(object.pointer("/template/metadata/labels")).into()]
}

fn pod(object: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(object);
    let restarts = match summary.last_restart {
        Some(then) if summary.restarts > 0 => format!("{} ({} ago)", summary.restarts, span(then, now)),
        _ => summary.restarts.to_string(),
    };
    let ip = items(object, "/status/podIPs").map(|it| text(it, "/ip")).next().unwrap_or(text(object, "/status/podIP"));
    vec![
        format!("{}/{}", summary.ready, summary.containers).into(),
        summary.status.into(),
        restarts.into(),
        age(object, now),
        json!(if ip.is_empty() { NONE } else { ip }),
        text_or(object, "/spec/nodeName", NONE).into(),
        text_or(object, "/status/nominatedNodeName", NONE).into(),
        readiness_gates(object).into(),
    ]
}

fn readiness_gates(object: &Value) -> String {
    let total = count(object, "/spec/readinessGates");
    if total == 0 {
        return NONE.to_owned();
    }
    let gates = items(object, "/spec/readinessGates");
    let open = gates.filter(|gate| has_condition(object, text(gate, "/conditionType"))).count();
    format!("{open}/{total}")
}

/// Summary of the containers of a pod.
struct Summary {
    status: String,
    ready: usize,
    containers: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(pod: &Value) -> Summary {
        let mut summary = Summary {
            status: text_or(pod, "/status/reason", text(pod, "/status/phase")).to_owned(),
            ready: 0,
            containers: count(pod, "/spec/containers") as usize,
            restarts: 0,
            last_restart: None,
        };
        if condition(pod, "PodScheduled").is_some_and(|it| text(it, "/reason") == "SchedulingGated") {
            summary.status = "SchedulingGated".to_owned();
        }
        // Init containers with the restart policy Always are sidecars: they count like regular
        // containers.
        let sidecars: Vec<&str> = items(pod, "/spec/initContainers")
            .filter(|container| text(container, "/restartPolicy") == "Always")
            .map(|container| text(container, "/name"))
            .collect();
        summary.containers += sidecars.len();
        let sidecar_restarts = summary.add_init_containers(pod, &sidecars);
        if sidecar_restarts.is_none() || has_condition(pod, "Initialized") {
            let (restarts, last) = sidecar_restarts.unwrap_or_else(|| sum_restarts(pod, &sidecars));
            (summary.restarts, summary.last_restart) = (restarts, last);
            summary.add_containers(pod);
        }
        if is_being_deleted(pod) {
            if text(pod, "/status/reason") == "NodeLost" {
                summary.status = "Unknown".to_owned();
            } else if !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
                summary.status = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Adds init containers up to the first incomplete one. Returns the restarts of sidecars if
    /// there is an incomplete one, else `None`.
    fn add_init_containers(&mut self, pod: &Value, sidecars: &[&str]) -> Option<(i64, Option<Timestamp>)> {
        for (index, container) in items(pod, "/status/initContainerStatuses").enumerate() {
            self.count_restarts(container);
            let is_sidecar = sidecars.contains(&text(container, "/name"));
            let (terminated, waiting) = (container.pointer("/state/terminated"), container.pointer("/state/waiting"));
            if terminated.is_some_and(|state| number(state, "/exitCode") == 0) {
                continue;
            }
            if is_sidecar && flag(container, "/started") {
                self.ready += usize::from(flag(container, "/ready"));
                continue;
            }
            let waiting =
                waiting.map(|state| text(state, "/reason")).filter(|it| !it.is_empty() && *it != "PodInitializing");
            self.status = match (terminated, waiting) {
                (Some(state), _) => format!("Init:{}", termination_reason(state)),
                (None, Some(reason)) => format!("Init:{reason}"),
                (None, None) => format!("Init:{index}/{}", count(pod, "/spec/initContainers")),
            };
            return Some(sum_restarts(pod, sidecars));
        }
        None
    }

    fn add_containers(&mut self, pod: &Value) {
        let mut any_running = false;
        for container in items(pod, "/status/containerStatuses").rev() {
            self.count_restarts(container);
            let state = |name: &str| container.pointer(&format!("/state/{name}"));
            let waiting = state("waiting").map(|it| text(it, "/reason")).filter(|it| !it.is_empty());
            if let Some(reason) = waiting {
                self.status = reason.to_owned();
            } else if let Some(terminated) = state("terminated") {
                self.status = termination_reason(terminated);
            } else if flag(container, "/ready") && state("running").is_some() {
                any_running = true;
                self.ready += 1;
            }
        }
        // A pod with a completed and a running container is not complete.
        if self.status == "Completed" && any_running {
            self.status = if has_condition(pod, "Ready") { "Running" } else { "NotReady" }.to_owned();
        }
    }

    fn count_restarts(&mut self, container: &Value) {
        self.restarts += number(container, "/restartCount");
        self.last_restart = self.last_restart.max(moment(container, "/lastState/terminated/finishedAt"));
    }
}

fn sum_restarts(pod: &Value, sidecars: &[&str]) -> (i64, Option<Timestamp>) {
    items(pod, "/status/initContainerStatuses").filter(|it| sidecars.contains(&text(it, "/name"))).fold(
        (0, None),
        |(restarts, last), container| {
            let then = moment(container, "/lastState/terminated/finishedAt");
            (restarts + number(container, "/restartCount"), last.max(then))
        },
    )
}

fn termination_reason(state: &Value) -> String {
    match (text(state, "/reason"), number(state, "/signal")) {
        ("", 0) => format!("ExitCode:{}", number(state, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}
