//! ResourceQuota: nothing is created in a namespace beyond what its quotas allow.
//!
//! What is used stands in each quota's status. A create charges it there first, guarded by the quota's revision, so that
//! of two creates at once only those that fit together get through; what goes away or ends gives back. A quota that is new
//! or changed is counted afresh, as are all of them when the server starts.
//!
//! What is charged for a write that fails afterwards is given back at once. Where even that cannot be written the next count
//! does it; until then the quota says that more is used than is.
//!
//! It never says less. A count would see neither what is charged and not stored yet, nor what is gone and not given back yet:
//! so whoever changes what is used has the namespace's [`Turn`] from before the charge until nothing is left to do, and a count
//! waits until nobody has it. Writes where there is no quota yet take it too, as the first one may come before they are done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use berth_apimachinery::meta;
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::quota::{self, Amounts};
use berth_apimachinery::status::Status;
use berth_store::{CommitError, Record, Write};
use serde_json::{Value, json};
use tokio::sync::{OwnedRwLockReadGuard, RwLock as AsyncRwLock};

use super::{AdmissionRequest, Operation, forbidden};
use crate::fairness::{BUSY_PAUSE, current_user};
use crate::registry::ResourceInfo;
use crate::rest::unwritten;
use crate::{ApiServer, objects, service_addresses};

/// The store's row of counts, and of what is given back where the user's own takes no more.
const ROW: &str = "system:quotas";
/// Plural name of quotas.
pub(crate) const PLURAL: &str = "resourcequotas";
/// How often a charge is tried again when others charge the same quota.
const ATTEMPTS: usize = 16;

/// Which namespaces have quotas: asked on every write.
#[derive(Default)]
pub(crate) struct Namespaces {
    any: AtomicBool,
    names: RwLock<BTreeSet<String>>,
    turns: Mutex<Turns>,
}

/// The turns of namespaces, as long as somebody has or wants them.
#[derive(Default)]
struct Turns {
    of: BTreeMap<String, Arc<AsyncRwLock<()>>>,
    /// How many there may be before those nobody has are dropped.
    swept: usize,
}

/// How many turns nobody has may be kept.
const TURNS_KEPT: usize = 64;

/// The turn of a write that may change what is used in a namespace. Many have it at once, but none while a quota is counted.
pub(crate) struct Turn(#[expect(dead_code, reason = "dropping it is what ends the turn")] OwnedRwLockReadGuard<()>);

/// What was charged for a write, and its turn: to be kept until the write is stored and followed, or given back.
pub(crate) struct Charge {
    /// Whether it is to be [released] when the write fails.
    pub(crate) is_charged: bool,
    turn: Option<Turn>,
}

impl Charge {
    /// A quota was written, which may have to be counted, and that waits for all turns. It uses what it used before.
    pub(crate) fn end_for_count(&mut self, row: &ResourceInfo) {
        if is_about(row) {
            self.turn = None;
        }
    }
}

/// Whether a row is that of quotas.
pub(crate) fn is_about(row: &ResourceInfo) -> bool {
    row.group.is_empty() && row.plural == PLURAL
}

impl Namespaces {
    fn has(&self, namespace: &str) -> bool {
        self.any.load(Ordering::Relaxed)
            && self.names.read().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }

    fn lock_of(&self, namespace: &str) -> Arc<AsyncRwLock<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = turns.of.get(namespace) {
            return lock.clone();
        }
        if turns.of.len() >= turns.swept.max(TURNS_KEPT) {
            turns.of.retain(|_, lock| Arc::strong_count(lock) > 1);
            turns.swept = turns.of.len() * 2;
        }
        turns.of.entry(namespace.to_owned()).or_default().clone()
    }

    /// Waits until no quota of the namespace is being counted; objects without a namespace are in no quota.
    pub(crate) async fn turn(&self, namespace: &str) -> Option<Turn> {
        if namespace.is_empty() {
            return None;
        }
        Some(Turn(self.lock_of(namespace).read_owned().await))
    }

    /// Looks anew at which namespaces have quotas.
    pub(crate) fn refresh(&self, objects: &crate::Objects) {
        let quotas = objects.list("", PLURAL, None);
        let names: BTreeSet<String> = quotas.iter().map(|quota| meta::namespace(quota).to_owned()).collect();
        let mut slot = self.names.write().unwrap_or_else(PoisonError::into_inner);
        self.any.store(!names.is_empty(), Ordering::Relaxed);
        *slot = names;
    }
}

fn quotas(server: &ApiServer, namespace: &str) -> Vec<Arc<Record>> {
    let prefix = objects::prefix("", PLURAL, Some(namespace));
    let query = berth_store::ListQuery::all(&prefix);
    server.store().list(&query).map(|listing| listing.records).unwrap_or_default()
}

/// Charges the namespace's quotas for the request's object, or refuses it. A dry run is judged, and neither charged nor in turn.
pub(crate) async fn charge(server: &ApiServer, request: &AdmissionRequest<'_>) -> Result<Charge, Status> {
    let turn = async || if request.dry_run { None } else { server.inner.quotas.turn(request.namespace).await };
    let mut charge = Charge { is_charged: false, turn: turn().await };
    let writes = matches!(request.operation, Operation::Create | Operation::Update);
    if !writes || !is_charged(server, request.namespace, request.subresource) {
        return Ok(charge);
    }
    let Some(object) = &request.object else { return Ok(charge) };
    for _ in 0..ATTEMPTS {
        match try_charge(server, request, object).await? {
            Charged::Done => {
                charge.is_charged = !request.dry_run;
                return Ok(charge);
            }
            Charged::Raced => {}
            Charged::Uncounted(name) => {
                charge.turn = None;
                recount(server, request.namespace, &name).await;
                charge.turn = turn().await;
            }
        }
    }
    Err(forbidden(request, "the namespace's quotas are written too often to be charged; try again"))
}

/// What a write is charged that uses no more than before.
pub(crate) async fn nothing(server: &ApiServer, namespace: &str) -> Charge {
    Charge { is_charged: false, turn: server.inner.quotas.turn(namespace).await }
}

/// Whether a write in a namespace, of this subresource, is charged to quotas.
fn is_charged(server: &ApiServer, namespace: &str, subresource: &str) -> bool {
    matches!(subresource, "" | "resize") && server.inner.quotas.has(namespace)
}

/// What came of trying to charge.
enum Charged {
    Done,
    /// Somebody else wrote a quota meanwhile.
    Raced,
    /// The quota of this name does not say what is used.
    Uncounted(String),
}

async fn try_charge(server: &ApiServer, request: &AdmissionRequest<'_>, object: &Value) -> Result<Charged, Status> {
    let mut charges = Vec::new();
    for record in quotas(server, request.namespace) {
        let stored = record.value();
        if !quota::in_scope(&stored, request.group, request.resource, object) {
            continue;
        }
        let limited = quota::limited(&stored);
        let mut wanted = quota::usage(request.group, request.resource, object);
        if let Some(old) = &request.old_object {
            let before = quota::usage(request.group, request.resource, old);
            subtract(&mut wanted, &before);
        }
        wanted.retain(|name, amount| limited.contains_key(name) && amount.sign() > 0);
        let name = meta::name(&stored);
        if request.operation == Operation::Create && request.group.is_empty() && request.resource == "pods" {
            let missing = quota::unspecified(object, limited.keys());
            if !missing.is_empty() {
                let missing: Vec<String> =
                    missing.iter().map(|(resource, names)| format!("{resource} for: {}", names.join(","))).collect();
                return Err(forbidden(request, &format!("failed quota: {name}: must specify {}", missing.join("; "))));
            }
        }
        if wanted.is_empty() {
            continue;
        }
        let mut used = match said(&stored, &limited) {
            Some(used) => used,
            None if request.dry_run => count(server, &stored, &limited),
            None => return Ok(Charged::Uncounted(name.to_owned())),
        };
        let exceeded: Vec<&String> = wanted
            .iter()
            .filter(|(name, amount)| sum(used.get(*name), amount) > limited[*name])
            .map(|(n, _)| n)
            .collect();
        if !exceeded.is_empty() {
            let show = |amounts: &Amounts| {
                let shown = exceeded.iter().map(|name| {
                    let amount = amounts.get(*name).copied().unwrap_or(Quantity::ZERO);
                    format!("{name}={amount}")
                });
                shown.collect::<Vec<_>>().join(",")
            };
            let why = format!(
                "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
                show(&wanted),
                show(&used),
                show(&limited)
            );
            return Err(forbidden(request, &why));
        }
        for (name, amount) in &wanted {
            let total = sum(used.get(name), amount);
            used.insert(name.clone(), total);
        }
        charges.push((record, with_status(&stored, &limited, &used), wanted));
    }
    if request.dry_run {
        return Ok(Charged::Done);
    }
    let mut charged = Vec::new();
    for (record, value, wanted) in charges {
        let key = record.key.to_string();
        let refused = match server.commit(Write::Update { key: key.clone(), expected: record.revision, value }).await {
            Ok(_) => {
                charged.push((key, wanted));
                continue;
            }
            Err(refused) => refused,
        };
        // All of them or none.
        for (key, wanted) in &charged {
            if let Some(record) = server.store().get(key) {
                rewrite(server, record, None, |stored, limited| without(stored, limited, wanted)).await;
            }
        }
        return match refused {
            CommitError::Conflict { .. } | CommitError::NotFound { .. } => Ok(Charged::Raced),
            error => Err(unwritten(error)),
        };
    }
    Ok(Charged::Done)
}

fn sum(a: Option<&Quantity>, b: &Quantity) -> Quantity {
    let mut total = a.copied().unwrap_or(Quantity::ZERO);
    total.add(*b);
    total
}

fn subtract(from: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        from.entry(name.clone()).or_insert(Quantity::ZERO).sub(*amount);
    }
}

fn with_status(stored: &Value, limited: &Amounts, used: &Amounts) -> Value {
    let mut value = stored.clone();
    meta::map_mut(&mut value)
        .insert("status".to_owned(), json!({"hard": quota::to_value(limited), "used": quota::to_value(used)}));
    value
}

/// What the status says is used, if it says so of everything that is limited.
fn said(stored: &Value, limited: &Amounts) -> Option<Amounts> {
    let said: Amounts = stored["status"]["used"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), Quantity::from_json(amount).ok()?)))
        .filter(|(name, _)| limited.contains_key(name))
        .collect();
    (said.len() == limited.len()).then_some(said)
}

/// What is used when an amount of it is given back; nothing where the status does not say what is used: the count that will
/// say it comes after what goes.
fn without(stored: &Value, limited: &Amounts, freed: &Amounts) -> Option<Amounts> {
    let mut used = said(stored, limited)?;
    for (name, amount) in freed.iter().filter(|(name, _)| limited.contains_key(*name)) {
        let own = used.entry(name.clone()).or_insert(Quantity::ZERO);
        own.sub(*amount);
        if own.sign() < 0 {
            *own = Quantity::ZERO;
        }
    }
    Some(used)
}

/// Counts what is used of each limited resource.
fn count(server: &ApiServer, stored: &Value, limited: &Amounts) -> Amounts {
    let mut used: Amounts = limited.keys().map(|name| (name.clone(), Quantity::ZERO)).collect();
    for (group, resource) in counted(limited) {
        for object in server.inner.objects.list(&group, &resource, Some(meta::namespace(stored))) {
            if !quota::in_scope(stored, &group, &resource, &object) {
                continue;
            }
            for (name, amount) in quota::usage(&group, &resource, &object) {
                if let Some(own) = used.get_mut(&name) {
                    own.add(amount);
                }
            }
        }
    }
    used
}

/// The kinds whose objects count against the limited resources.
fn counted(limited: &Amounts) -> BTreeSet<(String, String)> {
    let core = |resource: &str| (String::new(), resource.to_owned());
    let kind = |name: &String| match name.strip_prefix("count/") {
        Some(counted) => {
            let (resource, group) = counted.split_once('.').unwrap_or((counted, ""));
            (group.to_owned(), resource.to_owned())
        }
        None => match name.as_str() {
            "configmaps" | "persistentvolumeclaims" | "replicationcontrollers" | "resourcequotas" | "secrets" => {
                core(name)
            }
            name if name.starts_with("services") => core("services"),
            name if name.contains("storageclass.storage.k8s.io/") || name == "requests.storage" => {
                core("persistentvolumeclaims")
            }
            _ => core("pods"),
        },
    };
    limited.keys().map(kind).collect()
}

/// What a write of another object means for quotas: what went away or ended gives back what it used. `new` is absent
/// when the object is gone. Whoever says so has the namespace's [`Turn`] since before that write.
pub(crate) async fn released(server: &ApiServer, row: &ResourceInfo, old: &Value, new: Option<&Value>) {
    let namespace = meta::namespace(old);
    if namespace.is_empty() || !server.inner.quotas.has(namespace) {
        return;
    }
    let (group, resource) = row.storage();
    let mut freed = quota::usage(group, resource, old);
    if let Some(new) = new {
        subtract(&mut freed, &quota::usage(group, resource, new));
    }
    freed.retain(|_, amount| amount.sign() > 0);
    if freed.is_empty() {
        return;
    }
    // Who writes a Service with addresses holds up others.
    let holds_up = service_addresses::is_about(row) && service_addresses::concerns(old, new);
    let own_row = holds_up.then_some(service_addresses::ROW);
    for record in quotas(server, namespace) {
        rewrite(server, record, own_row, |stored, limited| {
            if quota::in_scope(stored, group, resource, old) { without(stored, limited, &freed) } else { None }
        })
        .await;
    }
}

/// Counts one quota afresh: it is new, or its limits changed. Waits for all who have the namespace's [`Turn`], and they for it.
pub(crate) async fn recount(server: &ApiServer, namespace: &str, name: &str) {
    let lock = server.inner.quotas.lock_of(namespace);
    let _alone = lock.write().await;
    let key = objects::key("", PLURAL, namespace, name);
    if let Some(record) = server.store().get(&key) {
        // Nobody is to wait for the backlog of who changed the quota.
        rewrite(server, record, Some(ROW), |stored, limited| Some(count(server, stored, limited))).await;
    }
}

/// Writes what `use_of` says is used, unless that is what the status says already; tries again as often as somebody else wrote
/// first, each time somebody being done with it, and some times when too much waits for the disk, then in a row of its own.
/// Waits in `row`, or in that of the user.
async fn rewrite(
    server: &ApiServer,
    mut record: Arc<Record>,
    row: Option<&'static str>,
    use_of: impl Fn(&Value, &Amounts) -> Option<Amounts>,
) {
    let user = current_user();
    let mut row = row.unwrap_or(&user);
    let mut refused = 0;
    while refused < ATTEMPTS {
        let stored = record.value();
        let limited = quota::limited(&stored);
        let Some(used) = use_of(&stored, &limited) else { return };
        let value = with_status(&stored, &limited, &used);
        if value == *stored {
            return;
        }
        let key = record.key.to_string();
        match server.commit_in(row, Write::Update { key: key.clone(), expected: record.revision, value }).await {
            Err(CommitError::Conflict { .. }) => {}
            Err(CommitError::Busy { .. }) => {
                refused += 1;
                row = ROW;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            _ => return,
        }
        match server.store().get(&key) {
            Some(newer) => record = newer,
            None => return,
        }
    }
    tracing::warn!(key = %record.key, "too much waits for the disk for a quota to be kept up to date");
}
