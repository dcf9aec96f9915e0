//! Printers of nodes, namespaces, events, leases, classes, certificate signing requests, admission
//! configuration, devices and storage drivers.

use berth_apimachinery::meta;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{NONE, UNKNOWN, UNSET, age, condition, count, flag, items, number, since, text, text_or};
use super::{AGE, Header, Printer, printer};

const S: &str = "string";
const WEBHOOKS: &[Header] = &[("Webhooks", "integer", 0), AGE];
const BINDING: &[Header] = &[("PolicyName", S, 0), ("ParamRef", S, 0), AGE];

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        &[
            ("PriorityLevel", S, 0),
            ("MatchingPrecedence", S, 0),
            ("DistinguisherMethod", S, 0),
            AGE,
            ("MissingPL", S, 0),
        ],
        flow_schema,
    ),
    printer(
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        &[
            ("Type", S, 0),
            ("NominalConcurrencyShares", S, 0),
            ("Queues", S, 0),
            ("HandSize", S, 0),
            ("QueueLengthLimit", S, 0),
            AGE,
        ],
        priority_level,
    ),
    printer(
        "",
        "Node",
        &[
            ("Status", S, 0),
            ("Roles", S, 0),
            AGE,
            ("Version", S, 0),
            ("Internal-IP", S, 1),
            ("External-IP", S, 1),
            ("OS-Image", S, 1),
            ("Kernel-Version", S, 1),
            ("Container-Runtime", S, 1),
        ],
        node,
    ),
    printer("", "Namespace", &[("Status", S, 0), AGE], |object, now| {
        vec![text(object, "/status/phase").into(), age(object, now)]
    }),
    Printer { group: "", kind: "Event", headers: EVENT, named: false, cells: event },
    Printer { group: "events.k8s.io", kind: "Event", headers: EVENT, named: false, cells: new_event },
    printer("coordination.k8s.io", "Lease", &[("Holder", S, 0), AGE], |object, now| {
        vec![text(object, "/spec/holderIdentity").into(), age(object, now)]
    }),
    printer(
        "scheduling.k8s.io",
        "PriorityClass",
        &[("Value", "integer", 0), ("Global-Default", "boolean", 0), AGE, ("PreemptionPolicy", S, 0)],
        |object, now| {
            vec![
                number(object, "/value").into(),
                flag(object, "/globalDefault").into(),
                age(object, now),
                text_or(object, "/preemptionPolicy", "PreemptLowerPriority").into(),
            ]
        },
    ),
    printer("node.k8s.io", "RuntimeClass", &[("Handler", S, 0), AGE], |object, now| {
        vec![text(object, "/handler").into(), age(object, now)]
    }),
    printer(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &[AGE, ("SignerName", S, 0), ("Requestor", S, 0), ("RequestedDuration", S, 0), ("Condition", S, 0)],
        signing_request,
    ),
    printer("admissionregistration.k8s.io", "MutatingWebhookConfiguration", WEBHOOKS, webhooks),
    printer("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", WEBHOOKS, webhooks),
    printer(
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        &[("Validations", "integer", 0), ("ParamKind", S, 0), AGE],
        |object, now| vec![count(object, "/spec/validations").into(), param_kind(object), age(object, now)],
    ),
    printer(
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        &[("Mutations", "integer", 0), ("ParamKind", S, 0), AGE],
        |object, now| vec![count(object, "/spec/mutations").into(), param_kind(object), age(object, now)],
    ),
    printer("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", BINDING, policy_binding),
    printer("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding", BINDING, policy_binding),
    printer("apiregistration.k8s.io", "APIService", &[("Service", S, 0), ("Available", S, 0), AGE], api_service),
    printer(
        "storage.k8s.io",
        "StorageClass",
        &[
            ("Provisioner", S, 0),
            ("ReclaimPolicy", S, 0),
            ("VolumeBindingMode", S, 0),
            ("AllowVolumeExpansion", S, 0),
            AGE,
        ],
        |object, now| {
            vec![
                text(object, "/provisioner").into(),
                text_or(object, "/reclaimPolicy", "Delete").into(),
                text_or(object, "/volumeBindingMode", "Immediate").into(),
                flag(object, "/allowVolumeExpansion").into(),
                age(object, now),
            ]
        },
    ),
    printer(
        "storage.k8s.io",
        "VolumeAttachment",
        &[("Attacher", S, 0), ("PV", S, 0), ("Node", S, 0), ("Attached", "boolean", 0), AGE],
        |object, now| {
            vec![
                text(object, "/spec/attacher").into(),
                text(object, "/spec/source/persistentVolumeName").into(),
                text(object, "/spec/nodeName").into(),
                flag(object, "/status/attached").into(),
                age(object, now),
            ]
        },
    ),
    printer("storage.k8s.io", "VolumeAttributesClass", &[("DriverName", S, 0), AGE], |object, now| {
        vec![text(object, "/driverName").into(), age(object, now)]
    }),
    printer("storage.k8s.io", "CSINode", &[("Drivers", "integer", 0), AGE], |object, now| {
        vec![count(object, "/spec/drivers").into(), age(object, now)]
    }),
    printer(
        "storage.k8s.io",
        "CSIDriver",
        &[
            ("AttachRequired", "boolean", 0),
            ("PodInfoOnMount", "boolean", 0),
            ("StorageCapacity", "boolean", 0),
            ("TokenRequests", S, 0),
            ("RequiresRepublish", "boolean", 0),
            ("Modes", S, 0),
            AGE,
        ],
        csi_driver,
    ),
    printer("resource.k8s.io", "DeviceClass", &[AGE], |object, now| vec![age(object, now)]),
    printer("resource.k8s.io", "ResourceClaimTemplate", &[AGE], |object, now| vec![age(object, now)]),
    printer("resource.k8s.io", "ResourceClaim", &[("State", S, 0), AGE], resource_claim),
    printer(
        "resource.k8s.io",
        "ResourceSlice",
        &[("Node", S, 0), ("Driver", S, 0), ("Pool", S, 0), AGE],
        |object, now| {
            vec![
                text_or(object, "/spec/nodeName", if flag(object, "/spec/allNodes") { "<all>" } else { NONE }).into(),
                text(object, "/spec/driver").into(),
                text(object, "/spec/pool/name").into(),
                age(object, now),
            ]
        },
    ),
];

fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut status = match condition(object, "Ready") {
        Some(ready) if text(ready, "/status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if flag(object, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let labels = meta::labels(object).into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    let address = |kind: &str| {
        let found = items(object, "/status/addresses").find(|address| text(address, "/type") == kind);
        found.map_or(NONE, |address| text_or(address, "/address", NONE)).into()
    };
    let info = |field: &str| -> Value { text_or(object, &format!("/status/nodeInfo/{field}"), UNKNOWN).into() };
    vec![
        status.into(),
        json!(if roles.is_empty() { NONE.to_owned() } else { roles.join(",") }),
        age(object, now),
        text(object, "/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ]
}

const EVENT: &[Header] = &[
    ("Last Seen", S, 0),
    ("Type", S, 0),
    ("Reason", S, 0),
    ("Object", S, 0),
    ("Subobject", S, 1),
    ("Source", S, 1),
    ("Message", S, 0),
    ("First Seen", S, 1),
    ("Count", S, 1),
    ("Name", S, 1),
];

fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let or = |path: &str, otherwise: String| {
        if text(object, path).is_empty() { otherwise } else { since(object, path, now) }
    };
    let first = or("/firstTimestamp", or("/eventTime", UNKNOWN.to_owned()));
    let (last, times) = if object.get("series").is_some_and(Value::is_object) {
        (or("/series/lastObservedTime", UNKNOWN.to_owned()), number(object, "/series/count"))
    } else {
        (or("/lastTimestamp", first.clone()), number(object, "/count").max(1))
    };
    let kind = text(object, "/involvedObject/kind").to_lowercase();
    let target = match text(object, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let (component, host) = match text(object, "/source/component") {
        "" => (text(object, "/reportingComponent"), text(object, "/reportingInstance")),
        component => (component, text(object, "/source/host")),
    };
    let source = if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") };
    vec![
        last.into(),
        text(object, "/type").into(),
        text(object, "/reason").into(),
        target.into(),
        text(object, "/involvedObject/fieldPath").into(),
        source.into(),
        text(object, "/message").trim().into(),
        first.into(),
        times.into(),
        meta::name(object).into(),
    ]
}

fn new_event(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut object = object.clone();
    crate::registry::events::to_core(&mut object);
    event(&object, now)
}

fn signing_request(object: &Value, now: Timestamp) -> Vec<Value> {
    let duration = match number(object, "/spec/expirationSeconds") {
        0 => NONE.to_owned(),
        seconds => berth_apimachinery::table::human_duration(seconds),
    };
    let mut states: Vec<&str> = Vec::new();
    for (kind, shown) in [("Approved", "Approved"), ("Denied", "Denied"), ("Failed", "Failed")] {
        if condition(object, kind).is_some() {
            states.push(shown);
        }
    }
    if states.is_empty() {
        states.push("Pending");
    }
    if !text(object, "/status/certificate").is_empty() {
        states.push("Issued");
    }
    vec![
        age(object, now),
        text_or(object, "/spec/signerName", NONE).into(),
        text(object, "/spec/username").into(),
        duration.into(),
        states.join(",").into(),
    ]
}

fn webhooks(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![count(object, "/webhooks").into(), age(object, now)]
}

fn param_kind(object: &Value) -> Value {
    match text(object, "/spec/paramKind/kind") {
        "" => UNSET.into(),
        kind => format!("{}/{kind}", text(object, "/spec/paramKind/apiVersion")).into(),
    }
}

fn policy_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let reference = match (object.pointer("/spec/paramRef"), text(object, "/spec/paramRef/name")) {
        (None | Some(Value::Null), _) => UNSET.to_owned(),
        (_, "") => "*".to_owned(),
        (_, name) => match text(object, "/spec/paramRef/namespace") {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        },
    };
    vec![text(object, "/spec/policyName").into(), reference.into(), age(object, now)]
}

fn api_service(object: &Value, now: Timestamp) -> Vec<Value> {
    let service = match text(object, "/spec/service/name") {
        "" => "Local".to_owned(),
        name => format!("{}/{name}", text(object, "/spec/service/namespace")),
    };
    let available = match condition(object, "Available") {
        Some(it) if text(it, "/status") == "True" || text(it, "/reason").is_empty() => text(it, "/status").to_owned(),
        Some(it) => format!("{} ({})", text(it, "/status"), text(it, "/reason")),
        None => "Unknown".to_owned(),
    };
    vec![service.into(), available.into(), age(object, now)]
}

fn csi_driver(object: &Value, now: Timestamp) -> Vec<Value> {
    let yes = |path: &str, default: bool| object.pointer(path).and_then(Value::as_bool).unwrap_or(default).into();
    let audiences: Vec<&str> = items(object, "/spec/tokenRequests").map(|it| text(it, "/audience")).collect();
    let modes: Vec<&str> = items(object, "/spec/volumeLifecycleModes").filter_map(Value::as_str).collect();
    vec![
        yes("/spec/attachRequired", true),
        yes("/spec/podInfoOnMount", false),
        yes("/spec/storageCapacity", false),
        json!(if audiences.is_empty() { UNSET.to_owned() } else { audiences.join(",") }),
        yes("/spec/requiresRepublish", false),
        json!(if modes.is_empty() { "Persistent".to_owned() } else { modes.join(",") }),
        age(object, now),
    ]
}

fn resource_claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut states: Vec<&str> = Vec::new();
    if meta::deletion_timestamp(object).is_some() {
        states.push("deleted");
    }
    match object.pointer("/status/allocation") {
        None | Some(Value::Null) => {
            if states.is_empty() {
                states.push("pending");
            }
        }
        Some(_) => {
            states.push("allocated");
            if count(object, "/status/reservedFor") > 0 {
                states.push("reserved");
            }
        }
    }
    vec![states.join(",").into(), age(object, now)]
}

fn flow_schema(object: &Value, now: Timestamp) -> Vec<Value> {
    let missing = condition(object, "Dangling").map_or("?", |condition| text(condition, "/status"));
    vec![
        text_or(object, "/spec/priorityLevelConfiguration/name", NONE).into(),
        number(object, "/spec/matchingPrecedence").into(),
        text_or(object, "/spec/distinguisherMethod/type", NONE).into(),
        age(object, now),
        missing.into(),
    ]
}

fn priority_level(object: &Value, now: Timestamp) -> Vec<Value> {
    let limited = |field: &str| object.pointer(&format!("/spec/limited/{field}")).cloned().unwrap_or(NONE.into());
    vec![
        text(object, "/spec/type").into(),
        limited("nominalConcurrencyShares"),
        limited("limitResponse/queuing/queues"),
        limited("limitResponse/queuing/handSize"),
        limited("limitResponse/queuing/queueLengthLimit"),
        age(object, now),
    ]
}
