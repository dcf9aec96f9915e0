//! Printers of Deployments, ReplicaSets, StatefulSets, DaemonSets, autoscalers and disruption
//! budgets.

use berth_apimachinery::meta;
use jiff::Timestamp;
use serde_json::Value;

use super::cells::{NONE, UNKNOWN, age, containers, either_or, items, labels, number, selector, text};
use super::{AGE, Header, Printer, printer};

const CONTAINERS: Header = ("Containers", "string", 1);
const IMAGES: Header = ("Images", "string", 1);
const SELECTOR: Header = ("Selector", "string", 1);

const REPLICAS: &[Header] =
    &[("Desired", "integer", 0), ("Current", "integer", 0), ("Ready", "integer", 0), AGE, CONTAINERS, IMAGES, SELECTOR];

pub(super) const PRINTERS: &[Printer] = &[
    printer("", "ReplicationController", REPLICAS, replication_controller),
    printer("apps", "ReplicaSet", REPLICAS, replica_set),
    printer(
        "apps",
        "Deployment",
        &[
            ("Ready", "string", 0),
            ("Up-to-date", "string", 0),
            ("Available", "string", 0),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        deployment,
    ),
    printer("apps", "StatefulSet", &[("Ready", "string", 0), AGE, CONTAINERS, IMAGES], stateful_set),
    printer(
        "apps",
        "DaemonSet",
        &[
            ("Desired", "integer", 0),
            ("Current", "integer", 0),
            ("Ready", "integer", 0),
            ("Up-to-date", "integer", 0),
            ("Available", "integer", 0),
            ("Node Selector", "string", 0),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        daemon_set,
    ),
    printer("apps", "ControllerRevision", &[("Controller", "string", 0), ("Revision", "string", 0), AGE], revision),
    printer(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[
            ("Reference", "string", 0),
            ("Targets", "string", 0),
            ("MinPods", "string", 0),
            ("MaxPods", "string", 0),
            ("Replicas", "string", 0),
            AGE,
        ],
        autoscaler,
    ),
    printer(
        "policy",
        "PodDisruptionBudget",
        &[("Min Available", "string", 0), ("Max Unavailable", "string", 0), ("Allowed Disruptions", "integer", 0), AGE],
        disruption_budget,
    ),
];

fn replicas(object: &Value, now: Timestamp, selector: String) -> Vec<Value> {
    let (names, images) = containers(object, "/spec/template/spec");
    vec![
        number(object, "/spec/replicas").into(),
        number(object, "/status/replicas").into(),
        number(object, "/status/readyReplicas").into(),
        age(object, now),
        names.into(),
        images.into(),
        selector.into(),
    ]
}

fn replication_controller(object: &Value, now: Timestamp) -> Vec<Value> {
    replicas(object, now, labels(object.pointer("/spec/selector")))
}

fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    replicas(object, now, selector(object.pointer("/spec/selector")))
}

fn ready(object: &Value) -> String {
    format!("{}/{}", number(object, "/status/readyReplicas"), number(object, "/spec/replicas"))
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "/spec/template/spec");
    vec![
        ready(object).into(),
        number(object, "/status/updatedReplicas").into(),
        number(object, "/status/availableReplicas").into(),
        age(object, now),
        names.into(),
        images.into(),
        selector(object.pointer("/spec/selector")).into(),
    ]
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "/spec/template/spec");
    vec![ready(object).into(), age(object, now), names.into(), images.into()]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "/spec/template/spec");
    vec![
        number(object, "/status/desiredNumberScheduled").into(),
        number(object, "/status/currentNumberScheduled").into(),
        number(object, "/status/numberReady").into(),
        number(object, "/status/updatedNumberScheduled").into(),
        number(object, "/status/numberAvailable").into(),
        labels(object.pointer("/spec/template/spec/nodeSelector")).into(),
        age(object, now),
        names.into(),
        images.into(),
        selector(object.pointer("/spec/selector")).into(),
    ]
}

fn revision(object: &Value, now: Timestamp) -> Vec<Value> {
    let controller = meta::controller_of(object).map_or_else(
        || NONE.to_owned(),
        |owner| {
            let group = owner.api_version.split_once('/').map(|(group, _)| group).unwrap_or_default();
            let kind = owner.kind.to_lowercase();
            if group.is_empty() { format!("{kind}/{}", owner.name) } else { format!("{kind}.{group}/{}", owner.name) }
        },
    );
    vec![controller.into(), number(object, "/revision").into(), age(object, now)]
}

fn autoscaler(object: &Value, now: Timestamp) -> Vec<Value> {
    let reference =
        format!("{}/{}", text(object, "/spec/scaleTargetRef/kind"), text(object, "/spec/scaleTargetRef/name"));
    let current: Vec<&Value> = items(object, "/status/currentMetrics").collect();
    let mut targets: Vec<String> = items(object, "/spec/metrics")
        .enumerate()
        .map(|(index, metric)| target(metric, current.get(index).copied().unwrap_or(&Value::Null)))
        .collect();
    let more = targets.len().saturating_sub(2);
    targets.truncate(2);
    let mut shown = if targets.is_empty() { NONE.to_owned() } else { targets.join(", ") };
    if more > 0 {
        shown = format!("{shown} + {more} more...");
    }
    vec![
        reference.into(),
        shown.into(),
        either_or(object, "/spec/minReplicas", "<unset>").into(),
        number(object, "/spec/maxReplicas").to_string().into(),
        number(object, "/status/currentReplicas").into(),
        age(object, now),
    ]
}

/// A metric with its current value and target: `cpu: 12%/80%`, or amounts if the target is an
/// amount.
fn target(metric: &Value, current: &Value) -> String {
    let kind = text(metric, "/type");
    let source = match kind {
        "ContainerResource" => "containerResource".to_owned(),
        _ => {
            let mut characters = kind.chars();
            characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
        }
    };
    let name = match kind {
        "Resource" | "ContainerResource" => format!("{}: ", text(metric, &format!("/{source}/name"))),
        _ => String::new(),
    };
    let at = |value: &Value, part: &str, field: &str| match value.pointer(&format!("/{source}/{part}/{field}")) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    if let Some(wanted) = at(metric, "target", "averageUtilization") {
        let now = at(current, "current", "averageUtilization").map_or(UNKNOWN.to_owned(), |it| format!("{it}%"));
        return format!("{name}{now}/{wanted}%");
    }
    for (field, suffix) in [("averageValue", " (avg)"), ("value", "")] {
        if let Some(wanted) = at(metric, "target", field) {
            let now = at(current, "current", field).unwrap_or_else(|| UNKNOWN.to_owned());
            return format!("{name}{now}/{wanted}{suffix}");
        }
    }
    "<unknown type>".to_owned()
}

fn disruption_budget(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        either_or(object, "/spec/minAvailable", "N/A").into(),
        either_or(object, "/spec/maxUnavailable", "N/A").into(),
        number(object, "/status/disruptionsAllowed").into(),
        age(object, now),
    ]
}
