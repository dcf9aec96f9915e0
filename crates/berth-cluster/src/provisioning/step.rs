//! The next step of one request, from its conditions, the cluster and the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::autoscaling::v1::{ProvisioningRequest, ProvisioningRequestStatus};
use berth_api::berth::{Provisioning, ProvisioningClassSpec};
use berth_runtime::{later, stamp};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::capacity::{cheapest, fit, next_supply};
use super::estimate::estimate;
use super::obstacles::{Obstacle, obstacle};
use super::{ATOMIC_SCALE_UP, CHECK_CAPACITY, QUEUED, parameters};
use crate::autoscaler::View;
use crate::placement::PodInfo;
use crate::pools::{MAX_RUN_DURATION, announced_end, request_of};
use crate::random::hash;

/// First delay before capacity is checked again; doubles up to [`RETRY_MAX`].
const RETRY_BASE: Duration = Duration::from_secs(60);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// Time that another provider has to write the first condition of a request.
pub const ANSWER_GRACE: Duration = Duration::from_secs(30);

/// Detail: name of the resize request, which the nodes carry as a label.
pub const RESIZE_REQUEST: &str = "ResizeRequestName";
/// Detail: the pool that serves the request.
const NODE_GROUP: &str = "NodeGroupName";
/// Detail: the zone of the machines.
const ZONE: &str = "SelectedZone";
/// Detail: number of ordered machines.
const NODES: &str = "Nodes";

/// The next step of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Place the order, if there is one, write this status, and evaluate the request again.
    Write {
        /// The whole status.
        status: ProvisioningRequestStatus,
        /// Machines to order first.
        order: Option<Order>,
        /// The pool's resize request to withdraw: pool and name.
        withdraw: Option<(String, String)>,
    },
    /// Wait until this time, or until an object changes.
    Until(Option<Timestamp>),
    /// Report that no provider has answered the request.
    Unserved,
}

/// Machines to order for a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The pool.
    pub pool: String,
    /// Number of machines.
    pub nodes: i32,
    /// Zone, for queued pools.
    pub zone: Option<String>,
    /// Name of the resize request; `None` if the pool itself grows.
    pub resize_request: Option<String>,
}

/// The inputs of a step.
pub struct World<'a> {
    /// Pools, nodes and pods, and the pods of other requests for which capacity is reserved.
    pub view: &'a View,
    /// The request's class; `None` if the cluster does not serve it.
    pub class: Option<&'a ProvisioningClassSpec>,
    /// The requested pods, or the template that is missing.
    pub pods: Result<Vec<Arc<PodInfo>>, String>,
    /// True if there are pods that consume this request.
    pub is_consumed: bool,
    /// The time.
    pub now: Timestamp,
}

/// The capacity that a request of this class holds: the name of its resize request, and until when
/// scale-down must not remove it.
pub fn booked(
    request: &ProvisioningRequest,
    class: &ProvisioningClassSpec,
    now: Timestamp,
) -> Option<(String, Timestamp)> {
    let status = request.status.as_ref()?;
    let name = status.provisioning_class_details.get(RESIZE_REQUEST)?.clone();
    if is_true(status, "Failed").is_some() || is_true(status, "CapacityRevoked").is_some() {
        return None;
    }
    match is_true(status, "Provisioned") {
        // Ordered, but not complete yet.
        None => Some((name, Timestamp::MAX)),
        Some(provisioned) => Some((name, later(provisioned, class.booking_time.0))).filter(|(_, until)| *until > now),
    }
}

/// Plans the next step of a request.
pub fn step(request: &ProvisioningRequest, world: &World) -> Step {
    let status = request.status.clone().unwrap_or_default();
    let now = world.now;
    let created = request.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let Some(class) = world.class else { return unserved(&status, created, now) };
    let class_name = request.spec.provisioning_class_name.as_str();
    if is_true(&status, "CapacityRevoked").is_some() {
        return revoked(status, world);
    }
    if is_true(&status, "Failed").is_some() {
        return Step::Until(None);
    }
    let Some(accepted) = is_true(&status, "Accepted") else {
        let due = later(created, class.accept_delay.0);
        if due > now {
            return Step::Until(Some(due));
        }
        if let Some(problem) = parameters::problem(request) {
            return write(with(status, now, "Failed", true, "InvalidParameters", &problem));
        }
        if let Err(template) = &world.pods {
            let message =
                format!("Provisioning Request's pods cannot be created: pod template {template} is missing or empty");
            return write(with(status, now, "Failed", true, "FailedToCreatePods", &message));
        }
        return write(match class_name {
            QUEUED => {
                let message = "Provisioning Request was successfully queued.";
                waiting(with(status, now, "Accepted", true, "SuccessfullyQueued", message), now)
            }
            _ => with(status, now, "Accepted", true, "Accepted", "ProvisioningRequest is accepted"),
        });
    };
    if let Some(provisioned) = is_true(&status, "Provisioned") {
        return after_provisioning(request, status, class, provisioned, world);
    }
    let gives_up = later(created, class.max_wait.0);
    if gives_up <= now {
        let withdraw = held(&status);
        let status = with(status, now, "Failed", true, "Expired", "ProvisioningRequest is expired");
        return Step::Write { status, order: None, withdraw };
    }
    if let Some(group) = status.provisioning_class_details.get(NODE_GROUP).cloned() {
        return on_its_way(status, class_name, &group, world);
    }
    let answers = later(accepted, class.provision_delay.0);
    if answers > now {
        return Step::Until(Some(answers));
    }
    if let Some(failure) =
        class.failure.as_ref().filter(|failure| failure.attempts == 0 || attempt(request) <= failure.attempts)
    {
        let default = "Provisioning Request failed: ZONE_RESOURCE_POOL_EXHAUSTED";
        let message = failure.message.as_deref().unwrap_or(default);
        return write(with(status, now, "Failed", true, "OutOfResources", message));
    }
    let Ok(pods) = &world.pods else {
        let message = "Provisioning Request's pods cannot be created";
        return write(with(status, now, "Failed", true, "FailedToCreatePods", message));
    };
    match class_name {
        QUEUED => queued(request, status, pods, world, answers),
        CHECK_CAPACITY | ATOMIC_SCALE_UP if fit(pods, world) => {
            write(with(status, now, "Provisioned", true, "CapacityIsFound", "Capacity is found in the cluster"))
        }
        ATOMIC_SCALE_UP => atomic(request, status, pods, world, answers),
        CHECK_CAPACITY if request.spec.parameters.get("noRetry").is_some_and(|it| it == "true") => {
            write(with(status, now, "Failed", true, "CapacityIsNotFound", "Capacity is not found in the cluster"))
        }
        CHECK_CAPACITY => not_found(status, pods, world, answers),
        _ => Step::Until(None),
    }
}

/// The step of a request whose class the cluster does not serve: another provider may serve it, and
/// then writes conditions.
fn unserved(status: &ProvisioningRequestStatus, created: Timestamp, now: Timestamp) -> Step {
    let due = later(created, ANSWER_GRACE);
    match status.conditions.is_empty() {
        true if due <= now => Step::Unserved,
        true => Step::Until(Some(due)),
        false => Step::Until(None),
    }
}

/// Orders all machines in the cheapest queued pool and zone that can hold all pods.
fn queued(
    request: &ProvisioningRequest,
    mut status: ProvisioningRequestStatus,
    pods: &[Arc<PodInfo>],
    world: &World,
    answers: Timestamp,
) -> Step {
    let pools: Vec<_> =
        world.view.pools.values().filter(|pool| pool.spec.provisioning == Provisioning::Queued).collect();
    let Some((pool, zone, nodes)) = cheapest(pools.iter().copied(), pods, world, true) else {
        let now = world.now;
        let said = match obstacle(&pools, pods, world, "node pool with queued provisioning") {
            Some(Obstacle { reason, message }) => with(status.clone(), now, "Provisioned", false, reason, &message),
            None => expected(status.clone(), estimate(&pools, pods, world), now),
        };
        return if said == status { retry(answers, world) } else { write(said) };
    };
    let name = resize_name(request);
    let is_here = |node: &Arc<k8s_openapi::api::core::v1::Node>| request_of(node) == Some(name.as_str());
    if world.view.nodes.values().flatten().any(is_here) {
        // The machines of an order that was withdrawn are being removed.
        return Step::Until(Some(later(world.now, Duration::from_secs(1))));
    }
    let details = &mut status.provisioning_class_details;
    details.insert(RESIZE_REQUEST.into(), name.clone());
    details.insert(NODE_GROUP.into(), pool.name_any());
    details.insert(ZONE.into(), zone.clone());
    details.insert(NODES.into(), nodes.to_string());
    let order = Order { pool: pool.name_any(), nodes, zone: Some(zone), resize_request: Some(name) };
    Step::Write { status, order: Some(order), withdraw: None }
}

/// Name of the resize request of a ProvisioningRequest.
pub fn resize_name(request: &ProvisioningRequest) -> String {
    let uid = request.uid().unwrap_or_default();
    let mut name = format!("gke-{}-{}", request.namespace().unwrap_or_default(), request.name_any());
    name.truncate(63 - 9);
    format!("{}-{:08x}", name.trim_end_matches(['-', '.']), hash(&["resize-request", &uid]) as u32)
}

/// The pool and the resize request that a request holds.
fn held(status: &ProvisioningRequestStatus) -> Option<(String, String)> {
    let details = &status.provisioning_class_details;
    Some((details.get(NODE_GROUP)?.clone(), details.get(RESIZE_REQUEST)?.clone()))
}

/// The end of the request's machines of which the cloud gave notice, and the reason.
fn announced(pool: &str, resize: &str, world: &World) -> Option<(Timestamp, String)> {
    let nodes = world.view.nodes.get(pool).into_iter().flatten();
    nodes.filter(|node| request_of(node) == Some(resize)).filter_map(|node| announced_end(node)).min()
}

/// Grows one ordinary pool by all needed nodes.
fn atomic(
    request: &ProvisioningRequest,
    mut status: ProvisioningRequestStatus,
    pods: &[Arc<PodInfo>],
    world: &World,
    answers: Timestamp,
) -> Step {
    let now = world.now;
    let created = request.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    if parameters::valid_until(request).is_some_and(|valid| later(created, valid) <= now) {
        return write(with(status, now, "Failed", true, "Expired", "ProvisioningRequest is expired"));
    }
    let Some((pool, zone, nodes)) = cheapest(world.view.growable(), pods, world, false) else {
        return not_found(status, pods, world, answers);
    };
    let own = pool.spec.nodes_own();
    let details = &mut status.provisioning_class_details;
    details.insert(NODE_GROUP.into(), pool.name_any());
    details.insert(ZONE.into(), zone);
    details.insert(NODES.into(), own.saturating_add(nodes).to_string());
    let order = Order { pool: pool.name_any(), nodes, zone: None, resize_request: None };
    Step::Write { status, order: Some(order), withdraw: None }
}

/// Machines are ordered; the request is provisioned once all of them are complete.
fn on_its_way(status: ProvisioningRequestStatus, class: &str, group: &str, world: &World) -> Step {
    let now = world.now;
    let details = &status.provisioning_class_details;
    let wanted: usize = details.get(NODES).and_then(|text| text.parse().ok()).unwrap_or(0);
    let Some(pool) = world.view.pools.get(group) else {
        return write(with(
            status,
            now,
            "Failed",
            true,
            "NodeGroupNotFound",
            "The node pool of the request no longer exists",
        ));
    };
    let resize = details.get(RESIZE_REQUEST).map(String::as_str);
    let nodes = world.view.nodes.get(group).into_iter().flatten();
    let complete = nodes
        .filter(|node| resize.is_none() || request_of(node) == resize)
        .filter(|node| crate::autoscaler::is_complete(pool, node))
        .count();
    if let Some((pool, resize)) = held(&status)
        && let Some((ends, _)) = announced(&pool, &resize, world)
    {
        // The cloud takes machines back before all are complete, so the request waits again.
        if ends > now {
            return Step::Until(Some(ends));
        }
        let mut status = waiting(status, now);
        status.provisioning_class_details.clear();
        return Step::Write { status, order: None, withdraw: Some((pool, resize)) };
    }
    if complete < wanted {
        let own = usize::try_from(pool.spec.nodes_own()).unwrap_or(0);
        if resize.is_none() && own < wanted {
            // The autoscaler has withdrawn the order, because the cloud could not fulfil it.
            let message = "Capacity is not found, CA will try to find it later.";
            let mut status = with(status, now, "Provisioned", false, "CapacityIsNotFound", message);
            status.provisioning_class_details.clear();
            return write(status);
        }
        return Step::Until(None);
    }
    write(if class == QUEUED {
        with(status, now, "Provisioned", true, "Provisioned", "Provisioning Request was successfully provisioned.")
    } else {
        with(status, now, "Provisioned", true, "CapacityIsProvisioned", "Capacity is provisioned in the cluster")
    })
}

/// After provisioning: the booking expires if no pods consume it, and machines live no longer than
/// the maximum run duration.
fn after_provisioning(
    request: &ProvisioningRequest,
    status: ProvisioningRequestStatus,
    class: &ProvisioningClassSpec,
    provisioned: Timestamp,
    world: &World,
) -> Step {
    let now = world.now;
    let mut due = Vec::new();
    let lives = parameters::max_run_duration(request).unwrap_or(class.max_run_duration.0);
    if let Some((group, resize)) = held(&status) {
        let by_age = (later(provisioned, lives), MAX_RUN_DURATION.to_owned());
        let (ends, why) = announced(&group, &resize, world).into_iter().chain([by_age]).min().expect("one is given");
        if ends <= now {
            let message = match why.as_str() {
                MAX_RUN_DURATION => "The maximum run duration of the machines has elapsed",
                _ => "The cloud has taken the machines back",
            };
            let status = with(status, now, "CapacityRevoked", true, &why, message);
            return Step::Write { status, order: None, withdraw: Some((group, resize)) };
        }
        due.push(ends);
    }
    if is_true(&status, "BookingExpired").is_none() && !world.is_consumed {
        let ends = later(provisioned, class.booking_time.0);
        if ends <= now {
            let message = "Capacity reservation time is expired";
            return write(with(status, now, "BookingExpired", true, "CapacityReservationTimeExpired", message));
        }
        due.push(ends);
    }
    Step::Until(due.into_iter().min())
}

/// The capacity was revoked, either by this controller or by a user to simulate the cloud. The
/// machines are removed.
fn revoked(status: ProvisioningRequestStatus, world: &World) -> Step {
    let Some((group, name)) = held(&status) else { return Step::Until(None) };
    let pool = world.view.pools.get(&group);
    if pool.is_some_and(|pool| pool.spec.resize_requests.iter().any(|known| known.name == name)) {
        return Step::Write { status, order: None, withdraw: Some((group, name)) };
    }
    Step::Until(None)
}

/// The request waits for capacity, and its message says why if no pool could ever have it.
fn not_found(status: ProvisioningRequestStatus, pods: &[Arc<PodInfo>], world: &World, answers: Timestamp) -> Step {
    let mut message = "Capacity is not found, CA will try to find it later.".to_owned();
    let pools: Vec<_> =
        world.view.pools.values().filter(|pool| pool.spec.provisioning != Provisioning::Queued).collect();
    // The size of a real machine is only known from its node.
    let is_simulated = pools.iter().all(|pool| !pool.spec.is_process());
    if let Some(found) = obstacle(&pools, pods, world, "node pool without queued provisioning").filter(|_| is_simulated)
    {
        message.push(' ');
        message.push_str(&found.message);
    }
    let said = with(status.clone(), world.now, "Provisioned", false, "CapacityIsNotFound", &message);
    if said == status { retry(answers, world) } else { write(said) }
}

/// The time of the next check: 1 minute after the first, then 2, 4, … at most 10 minutes apart, and
/// whenever the stock of the cloud changes.
fn retry(first: Timestamp, world: &World) -> Step {
    let mut at = first;
    let mut wait = RETRY_BASE;
    while at <= world.now {
        at = later(at, wait);
        wait = (wait * 2).min(RETRY_MAX);
    }
    Step::Until(next_supply(world).into_iter().chain([at]).min())
}

/// The number at the end of the request's name, by which Kueue counts attempts.
fn attempt(request: &ProvisioningRequest) -> u32 {
    request.name_any().rsplit('-').next().and_then(|tail| tail.parse().ok()).unwrap_or(1)
}

fn write(status: ProvisioningRequestStatus) -> Step {
    Step::Write { status, order: None, withdraw: None }
}

fn waiting(status: ProvisioningRequestStatus, now: Timestamp) -> ProvisioningRequestStatus {
    expected(status, None, now)
}

/// The status of a request that waits for stock, and is expected to be provisioned at this time.
fn expected(
    status: ProvisioningRequestStatus,
    estimate: Option<Timestamp>,
    now: Timestamp,
) -> ProvisioningRequestStatus {
    let mut message =
        "Waiting for resources. Currently there are not enough resources available to fulfill the request.".to_owned();
    if let Some(at) = estimate {
        message.push_str(&format!(" ETA: {at}."));
    }
    with(status, now, "Provisioned", false, "ResourcePoolExhausted", &message)
}

/// The status with this condition; an equal condition keeps its time.
fn with(
    mut status: ProvisioningRequestStatus,
    now: Timestamp,
    type_: &str,
    is_true: bool,
    reason: &str,
    message: &str,
) -> ProvisioningRequestStatus {
    let mut new = Condition {
        type_: type_.into(),
        status: if is_true { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: stamp(now),
        observed_generation: None,
    };
    match status.conditions.iter_mut().find(|known| known.type_ == type_) {
        Some(known) => {
            if known.status == new.status {
                new.last_transition_time = known.last_transition_time.clone();
            }
            *known = new;
        }
        None => status.conditions.push(new),
    }
    status
}

/// Time at which the condition became True.
fn is_true(status: &ProvisioningRequestStatus, type_: &str) -> Option<Timestamp> {
    let condition =
        status.conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True")?;
    Some(condition.last_transition_time.0)
}

/// Kinds of pods by count, for messages.
pub(super) fn summary(pods: &[Arc<PodInfo>]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        for (resource, amount) in pod.requests.extended() {
            *counts.entry(resource.to_owned()).or_insert(0) += usize::try_from(amount).unwrap_or(0);
        }
    }
    counts
}
