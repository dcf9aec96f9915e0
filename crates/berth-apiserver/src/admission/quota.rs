//! ResourceQuota: rejects objects that exceed the quotas of their namespace.
//!
//! The used amounts are stored in each quota's status. A create first adds the object's amounts
//! there. The quota's revision guards this write, so that of two concurrent creates only those that
//! fit together succeed. Deletion and completion release what the object used. A new or changed
//! quota is recounted, as are all quotas when the server starts.
//!
//! A charge for a write that fails afterwards is released at once. If that release cannot be
//! written, the next recount repairs it; until then the quota reports more usage than there is.
//!
//! A quota never reports less usage than there is. A recount would miss objects that are charged
//! but not stored yet, and those that are deleted but not released yet. So every write that changes
//! usage holds the namespace's [`Turn`] from before its charge until its last follow-up, and a
//! recount waits until no write holds it. Writes in namespaces without a quota hold the turn too,
//! because the first quota may be created before they end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_apimachinery::meta;
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::quota::{self, Amounts};
use berth_apimachinery::status::Status;
use berth_store::{CommitError, Record, Write};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::sync::{OwnedRwLockReadGuard, RwLock as AsyncRwLock};

use super::{AdmissionRequest, Operation, forbidden};
use crate::fairness::{BUSY_PAUSE, current_user};
use crate::objects;
use crate::registry::ResourceInfo;
use crate::state::{State, unwritten};

/// The store's write queue for recounts, and for releases that the user's own queue does not
/// accept.
const QUEUE: &str = "system:quotas";
/// Plural name of quotas.
const PLURAL: &str = "resourcequotas";
/// Maximum number of attempts to charge a quota that concurrent writes change, and to update a
/// quota while the store's queue is full.
const ATTEMPTS: usize = 16;

/// The quotas of all namespaces. The names of namespaces with quotas are cached, because every
/// write needs them.
pub(crate) struct Quotas {
    state: Arc<State>,
    any: AtomicBool,
    names: RwLock<BTreeSet<String>>,
    turns: Mutex<Turns>,
}

/// The locks of namespaces that are held or waited for.
#[derive(Default)]
struct Turns {
    of: BTreeMap<String, Arc<AsyncRwLock<()>>>,
    /// Number of locks at which unused locks are dropped next.
    swept: usize,
}

/// Unused locks are not dropped below this number.
const TURNS_KEPT: usize = 64;

/// Shared lock of a write that may change a namespace's usage. Many writes hold it at once, but
/// none while a quota is recounted.
pub(crate) struct Turn(#[expect(dead_code, reason = "dropping it is what ends the turn")] OwnedRwLockReadGuard<()>);

/// The charge of a write, and its turn. Held until the write is stored and its follow-ups are
/// done, or until the charge is released.
pub(crate) struct Charge {
    /// True if the charge must be [released](Quotas::released) when the write fails.
    pub(crate) is_charged: bool,
    turn: Option<Turn>,
}

impl Charge {
    /// Ends the turn if the written object is a quota: its recount waits for all turns, and the
    /// write itself changes no usage.
    pub(crate) fn end_for_count(&mut self, row: &ResourceInfo) {
        if is_about(row) {
            self.turn = None;
        }
    }
}

/// True if `row` is ResourceQuotas.
pub(super) fn is_about(row: &ResourceInfo) -> bool {
    row.group.is_empty() && row.plural == PLURAL
}

impl Quotas {
    /// The quotas of stored objects.
    pub(crate) fn new(state: Arc<State>) -> Quotas {
        let quotas = Quotas { state, any: AtomicBool::new(false), names: RwLock::default(), turns: Mutex::default() };
        quotas.refresh();
        quotas
    }

    fn has(&self, namespace: &str) -> bool {
        self.any.load(Ordering::Relaxed) && self.names.read().contains(namespace)
    }

    fn lock_of(&self, namespace: &str) -> Arc<AsyncRwLock<()>> {
        let mut turns = self.turns.lock();
        if let Some(lock) = turns.of.get(namespace) {
            return lock.clone();
        }
        if turns.of.len() >= turns.swept.max(TURNS_KEPT) {
            turns.of.retain(|_, lock| Arc::strong_count(lock) > 1);
            turns.swept = turns.of.len() * 2;
        }
        turns.of.entry(namespace.to_owned()).or_default().clone()
    }

    /// Waits until no quota of the namespace is being recounted, and takes a turn. `None` for
    /// cluster-scoped objects, which no quota covers.
    pub(crate) async fn turn(&self, namespace: &str) -> Option<Turn> {
        if namespace.is_empty() {
            return None;
        }
        Some(Turn(self.lock_of(namespace).read_owned().await))
    }

    /// Reloads the set of namespaces that have quotas.
    pub(super) fn refresh(&self) {
        let quotas = self.state.objects.list("", PLURAL, None);
        let names: BTreeSet<String> = quotas.iter().map(|quota| meta::namespace(quota).to_owned()).collect();
        let mut slot = self.names.write();
        self.any.store(!names.is_empty(), Ordering::Relaxed);
        *slot = names;
    }

    /// Recounts all quotas.
    pub(super) async fn recount_all(&self) {
        for quota in self.state.objects.list("", PLURAL, None) {
            self.recount(meta::namespace(&quota), meta::name(&quota)).await;
        }
    }

    /// True if a write in a namespace, of this subresource, is charged to quotas.
    fn covers(&self, namespace: &str, subresource: &str) -> bool {
        matches!(subresource, "" | "resize") && self.has(namespace)
    }

    /// Charges the namespace's quotas for the request's object, or rejects the request. A dry run
    /// is checked, but neither charged nor given a turn.
    pub(crate) async fn charge(&self, request: &AdmissionRequest<'_>) -> Result<Charge, Status> {
        let turn = async || if request.dry_run { None } else { self.turn(request.namespace).await };
        let mut charge = Charge { is_charged: false, turn: turn().await };
        let writes = matches!(request.operation, Operation::Create | Operation::Update);
        if !writes || !self.covers(request.namespace, request.subresource) {
            return Ok(charge);
        }
        let Some(object) = &request.object else { return Ok(charge) };
        for _ in 0..ATTEMPTS {
            match try_charge(self, request, object).await? {
                Charged::Done => {
                    charge.is_charged = !request.dry_run;
                    return Ok(charge);
                }
                Charged::Raced => {}
                Charged::Uncounted(name) => {
                    charge.turn = None;
                    self.recount(request.namespace, &name).await;
                    charge.turn = turn().await;
                }
            }
        }
        Err(forbidden(request, "the namespace's quotas are changing too often to count this request; try again"))
    }

    /// An empty charge, with its turn, for a write that does not increase usage.
    pub(crate) async fn nothing(&self, namespace: &str) -> Charge {
        Charge { is_charged: false, turn: self.turn(namespace).await }
    }

    /// Releases the amounts that a deleted, completed or reduced object used. `new` is `None` if
    /// the object is deleted. The caller must hold the namespace's [`Turn`] since before the write.
    /// `queue` is the store's write queue for releases; `None` for that of the user.
    pub(crate) async fn released(
        &self,
        queue: Option<&'static str>,
        row: &ResourceInfo,
        old: &Value,
        new: Option<&Value>,
    ) {
        let namespace = meta::namespace(old);
        if namespace.is_empty() || !self.has(namespace) {
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
        for record in stored_in(&self.state, namespace) {
            rewrite(&self.state, record, queue, |stored, limited| {
                if quota::in_scope(stored, group, resource, old) { without(stored, limited, &freed) } else { None }
            })
            .await;
        }
    }

    /// Recounts one quota. Waits for all writes that hold the namespace's [`Turn`]; later writes
    /// wait for the recount.
    pub(crate) async fn recount(&self, namespace: &str, name: &str) {
        let lock = self.lock_of(namespace);
        let _alone = lock.write().await;
        let key = objects::key("", PLURAL, namespace, name);
        if let Some(record) = self.state.store().get(&key) {
            // Uses a separate queue: the namespace's other writes must not wait for the queue of
            // the user that changed the quota.
            rewrite(&self.state, record, Some(QUEUE), |stored, limited| Some(count(&self.state, stored, limited)))
                .await;
        }
    }
}

fn stored_in(state: &State, namespace: &str) -> Vec<Arc<Record>> {
    let prefix = objects::prefix("", PLURAL, Some(namespace));
    let query = berth_store::ListQuery::all(&prefix);
    state.store().list(&query).map(|listing| listing.records).unwrap_or_default()
}

/// Outcome of an attempt to charge.
enum Charged {
    Done,
    /// A conflicting write changed a quota.
    Raced,
    /// The status of the quota of this name lacks used amounts.
    Uncounted(String),
}

async fn try_charge(quotas: &Quotas, request: &AdmissionRequest<'_>, object: &Value) -> Result<Charged, Status> {
    let mut charges = Vec::new();
    for record in stored_in(&quotas.state, request.namespace) {
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
        // The amounts must fit beside those in use.
        let mut used = match recorded(&stored, &limited) {
            Some(used) => used,
            None if request.dry_run => count(&quotas.state, &stored, &limited),
            None => return Ok(Charged::Uncounted(name.to_owned())),
        };
        let exceeded: Vec<&String> = wanted
            .iter()
            .filter(|(name, amount)| sum(used.get(*name), amount) > limited[*name])
            .map(|(n, _)| n)
            .collect();
        if !exceeded.is_empty() {
            return Err(forbidden(request, &excess(name, &exceeded, &wanted, &used, &limited)));
        }
        // The charge is written below, after all quotas have been checked.
        for (name, amount) in &wanted {
            let total = sum(used.get(name), amount);
            used.insert(name.clone(), total);
        }
        charges.push((record, with_status(&stored, &limited, &used), wanted));
    }
    if request.dry_run {
        return Ok(Charged::Done);
    }
    write_charges(quotas, charges).await
}

/// Why these amounts exceed a quota.
fn excess(quota: &str, exceeded: &[&String], wanted: &Amounts, used: &Amounts, limited: &Amounts) -> String {
    let show = |amounts: &Amounts| {
        let shown = exceeded.iter().map(|name| {
            let amount = amounts.get(*name).copied().unwrap_or(Quantity::ZERO);
            format!("{name}={amount}")
        });
        shown.collect::<Vec<_>>().join(",")
    };
    format!("exceeded quota: {quota}, requested: {}, used: {}, limited: {}", show(wanted), show(used), show(limited))
}

/// Writes the charges, one quota after another: each with its record, new state and amounts.
async fn write_charges(quotas: &Quotas, charges: Vec<(Arc<Record>, Value, Amounts)>) -> Result<Charged, Status> {
    let mut charged = Vec::new();
    for (record, value, wanted) in charges {
        let key = record.key.to_string();
        let rejected =
            match quotas.state.commit(Write::Update { key: key.clone(), expected: record.revision, value }).await {
                Ok(_) => {
                    charged.push((key, wanted));
                    continue;
                }
                Err(rejected) => rejected,
            };
        // A write is charged to all quotas or to none.
        for (key, wanted) in &charged {
            if let Some(record) = quotas.state.store().get(key) {
                rewrite(&quotas.state, record, None, |stored, limited| without(stored, limited, wanted)).await;
            }
        }
        return match rejected {
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

/// The used amounts in the status; `None` unless every limited resource has one.
fn recorded(stored: &Value, limited: &Amounts) -> Option<Amounts> {
    let said: Amounts = stored["status"]["used"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), Quantity::from_json(amount).ok()?)))
        .filter(|(name, _)| limited.contains_key(name))
        .collect();
    (said.len() == limited.len()).then_some(said)
}

/// The used amounts after a release. `None` if the status has no used amounts yet: their recount
/// runs after the deletion.
fn without(stored: &Value, limited: &Amounts, freed: &Amounts) -> Option<Amounts> {
    let mut used = recorded(stored, limited)?;
    for (name, amount) in freed.iter().filter(|(name, _)| limited.contains_key(*name)) {
        let own = used.entry(name.clone()).or_insert(Quantity::ZERO);
        own.sub(*amount);
        if own.sign() < 0 {
            *own = Quantity::ZERO;
        }
    }
    Some(used)
}

/// Recounts the used amount of each limited resource.
fn count(state: &State, stored: &Value, limited: &Amounts) -> Amounts {
    let mut used: Amounts = limited.keys().map(|name| (name.clone(), Quantity::ZERO)).collect();
    for (group, resource) in counted(limited) {
        for object in state.objects.list(&group, &resource, Some(meta::namespace(stored))) {
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

/// Writes the used amounts that `use_of` returns, unless the status has them already. Retries after
/// every conflicting write, as each conflict means that another write succeeded. The first write is
/// in the store's queue `queue`, or in that of the user. If this queue is full, the next writes are
/// in [`QUEUE`], until [`ATTEMPTS`] of them were rejected.
async fn rewrite(
    state: &State,
    mut record: Arc<Record>,
    queue: Option<&'static str>,
    use_of: impl Fn(&Value, &Amounts) -> Option<Amounts>,
) {
    let user = current_user();
    let mut queue = queue.unwrap_or(&user);
    let mut rejected = 0;
    while rejected < ATTEMPTS {
        let stored = record.value();
        let limited = quota::limited(&stored);
        let Some(used) = use_of(&stored, &limited) else { return };
        let value = with_status(&stored, &limited, &used);
        if value == *stored {
            return;
        }
        let key = record.key.to_string();
        match state.commit_in(queue, Write::Update { key: key.clone(), expected: record.revision, value }).await {
            Err(CommitError::Conflict { .. }) => {}
            Err(CommitError::Busy { .. }) => {
                rejected += 1;
                queue = QUEUE;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            _ => return,
        }
        match state.store().get(&key) {
            Some(newer) => record = newer,
            None => return,
        }
    }
    tracing::warn!(key = %record.key, "gave up updating the used amounts of a quota: the store's write queue stayed full");
}
