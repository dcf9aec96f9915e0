//! What the pods on a node request, and the state of the node in one word: for `berth nodes` and the
//! page of nodes.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

/// Labels with the pool of a node, at the large clouds and in Berth's clusters.
const POOL_LABELS: [&str; 4] = [
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
];

/// What the pods of a node request.
#[derive(Clone, Debug, Default)]
pub struct Use {
    /// Number of pods.
    pub pods: usize,
    /// Their requests.
    pub requests: BTreeMap<String, Quantity>,
}

/// The pool of a node.
pub fn pool(node: &Node) -> Option<&str> {
    POOL_LABELS.iter().find_map(|label| node.labels().get(*label)).map(String::as_str)
}

/// Requests of pods that have not ended, by node.
pub fn uses(pods: &[impl Borrow<Pod>]) -> BTreeMap<String, Use> {
    let mut uses: BTreeMap<String, Use> = BTreeMap::new();
    pods.iter().for_each(|pod| add(&mut uses, pod.borrow()));
    uses
}

/// Adds the requests of a pod to those of its node, unless it has ended.
pub fn add(uses: &mut BTreeMap<String, Use>, pod: &Pod) {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let Some(node) = node.filter(|_| !has_ended(pod)) else { return };
    let used = uses.entry(node.clone()).or_default();
    used.pods += 1;
    for (name, amount) in requests(pod) {
        used.requests.entry(name).or_insert(Quantity::ZERO).add(amount);
    }
}

/// True if a pod has released its node's resources.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// What a pod requests. Init containers are not counted, except sidecars.
pub fn requests(pod: &Pod) -> BTreeMap<String, Quantity> {
    let mut sums = BTreeMap::new();
    let Some(spec) = &pod.spec else { return sums };
    let sidecars = spec.init_containers.iter().flatten().filter(|it| it.restart_policy.as_deref() == Some("Always"));
    for container in spec.containers.iter().chain(sidecars) {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        for (name, amount) in requests.into_iter().flatten() {
            if let Ok(amount) = Quantity::parse(&amount.0) {
                sums.entry(name.clone()).or_insert(Quantity::ZERO).add(amount);
            }
        }
    }
    sums
}

/// The accelerator resource that a node offers.
pub fn accelerator(node: &Node) -> Option<String> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    allocatable.keys().find(|name| name.contains('/')).cloned()
}

/// `requested/allocatable` of a resource.
pub fn share(node: &Node, used: Option<&Use>, resource: &str) -> String {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get(resource));
    let Some(allocatable) = allocatable else { return "-".to_owned() };
    let text = |amount: &Quantity| if resource == "cpu" { cores(amount) } else { amount.to_string() };
    let requested =
        used.map_or_else(|| "-".to_owned(), |used| used.requests.get(resource).map_or_else(|| "0".to_owned(), text));
    let allocatable = Quantity::parse(&allocatable.0).map_or_else(|_| allocatable.0.clone(), |amount| text(&amount));
    format!("{requested}/{allocatable}")
}

/// An amount of CPU in cores, with at most two decimals: `3.92`.
fn cores(amount: &Quantity) -> String {
    let text = format!("{:.2}", amount.as_approximate_f64());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The state of a node in the words of sinfo, and the reason if pods cannot start there.
pub fn state(node: &Node, used: Option<&Use>) -> (String, String) {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let reason = || ready.and_then(|ready| ready.reason.clone()).unwrap_or_else(|| "NotReady".to_owned());
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let busy = used.is_some_and(|used| used.pods > 0);
    let full = match accelerator(node) {
        Some(name) => is_full(node, used, &name),
        None => is_full(node, used, "cpu"),
    };
    if ready.is_none_or(|ready| ready.status != "True") {
        ("down".to_owned(), reason())
    } else if cordoned {
        let state = if busy { "draining" } else { "drained" };
        (state.to_owned(), "cordoned".to_owned())
    } else if full {
        ("allocated".to_owned(), String::new())
    } else if used.is_none() {
        ("up".to_owned(), String::new())
    } else {
        let state = if busy { "mixed" } else { "idle" };
        (state.to_owned(), String::new())
    }
}

fn is_full(node: &Node, used: Option<&Use>, resource: &str) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get(resource));
    let allocatable = allocatable.and_then(|amount| Quantity::parse(&amount.0).ok());
    let requested = used.and_then(|used| used.requests.get(resource));
    matches!((allocatable, requested), (Some(all), Some(requested)) if requested.nanos() >= all.nanos())
}

/// Requested and allocatable amount of a resource; `None` if the node does not offer it.
pub fn amounts(node: &Node, used: Option<&Use>, resource: &str) -> Option<(f64, f64)> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?.get(resource)?;
    let all = Quantity::parse(&allocatable.0).ok()?.as_approximate_f64();
    let requested = used.and_then(|used| used.requests.get(resource)).map_or(0.0, Quantity::as_approximate_f64);
    Some((requested, all))
}
