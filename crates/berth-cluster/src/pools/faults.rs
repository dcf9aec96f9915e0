//! Faults of simulated nodes: draws random faults, and plans what the machine's node shows of them.
//!
//! All values follow from the pool's spec, the seed and the time, so that a restart changes none.
//! Every fault happens once in each interval of its `every`, at a time that is drawn for the node
//! and the interval.

use std::collections::BTreeMap;

use berth_api::berth::{
    FAULTS_ANNOTATION, GPU_HEALTH_LABEL, NodeFaults, NodePool, RANDOM_FAULTS_ANNOTATION, RandomFault, RandomFaults,
};
use berth_apimachinery::well_known::UNREACHABLE;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::plan::{has_taint, is_ready};
use crate::Site;
use crate::random::draw;

/// Reason of the conditions of a node that does not report.
pub const SILENT: &str = "NodeStatusUnknown";
/// Lowest and highest bandwidth of a GPU with a fault, in tenths of GB/s.
const SLOW: std::ops::Range<u64> = 5..40;
/// Tests of DCGM that a random fault fails. The first four evict by default.
const TESTS: [&str; 6] = ["PCIe", "NVLink", "ECC", "GPU Memory", "Memory Bandwidth", "Inforom"];

/// The changes that faults cause at one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Merge patch of the node's metadata: the annotation of random faults, and the label of the
    /// administrator's monitor. `None` if nothing changes.
    pub metadata: Option<Value>,
    /// True if the node stops reporting, false if it reports again. `None` if neither.
    pub silent: Option<bool>,
    /// An annotation that cannot be read. Its faults do not apply.
    pub problem: Option<String>,
    /// The next time at which a random fault starts or ends.
    pub due: Option<Timestamp>,
}

/// The random faults that were drawn for each node. They hold until the next one starts or ends,
/// and a pool is planned much more often.
#[derive(Debug, Default)]
pub struct Draws(Mutex<BTreeMap<String, Drawn>>);

/// The random faults of a node in a period.
#[derive(Debug)]
struct Drawn {
    spec: RandomFaults,
    from: Timestamp,
    due: Timestamp,
    faults: NodeFaults,
}

impl Draws {
    /// As [`random`].
    fn random(&self, pool: &NodePool, node: &Node, site: &Site, now: Timestamp) -> (NodeFaults, Option<Timestamp>) {
        let Some(spec) = &pool.spec.faults else { return (NodeFaults::default(), None) };
        let name = node.name_any();
        let mut draws = self.0.lock();
        if let Some(known) = draws.get(&name).filter(|it| it.spec == *spec && (it.from..it.due).contains(&now)) {
            return (known.faults.clone(), Some(known.due));
        }
        let (faults, due) = random(pool, node, site, now);
        match due {
            Some(due) => drop(draws.insert(name, Drawn { spec: spec.clone(), from: now, due, faults: faults.clone() })),
            None => drop(draws.remove(&name)),
        }
        (faults, due)
    }

    /// Forgets a node that was deleted.
    pub fn forget(&self, node: &str) {
        self.0.lock().remove(node);
    }
}

/// Plans the faults of a node of the pool.
pub fn plan(pool: &NodePool, node: &Node, site: &Site, draws: &Draws, now: Timestamp) -> FaultPlan {
    if pool.spec.faults.is_none() && !is_annotated(node) && !went_silent(node) {
        return FaultPlan::default();
    }
    let (random, due) = draws.random(pool, node, site, now);
    let mut plan = FaultPlan { due, ..FaultPlan::default() };
    let known = node.annotations().get(RANDOM_FAULTS_ANNOTATION);
    let text = serde_json::to_string(&random).unwrap_or_default();
    let wanted = Some(text).filter(|_| random != NodeFaults::default());
    let mut annotations = node.annotations().clone();
    if known != wanted.as_ref() {
        let before: NodeFaults = known.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let mut patch = json!({ "annotations": { RANDOM_FAULTS_ANNOTATION: wanted } });
        // The label changes with the fault only, so that other writers may change it meanwhile.
        if before.gpuhealth != random.gpuhealth {
            let label = node.labels().get(GPU_HEALTH_LABEL);
            if random.gpuhealth.is_some() || label == before.gpuhealth.as_ref() {
                patch["labels"] = json!({ GPU_HEALTH_LABEL: random.gpuhealth });
            }
        }
        plan.metadata = Some(patch);
        match wanted {
            Some(text) => annotations.insert(RANDOM_FAULTS_ANNOTATION.to_owned(), text),
            None => annotations.remove(RANDOM_FAULTS_ANNOTATION),
        };
    }
    let faults = match NodeFaults::of_annotations(&annotations) {
        Ok(faults) => faults,
        Err(problem) => {
            plan.problem = Some(problem);
            NodeFaults::default()
        }
    };
    // The conditions are written before the taints.
    if faults.not_ready && (is_ready(node) || went_silent(node) && !has_taint(node, UNREACHABLE)) {
        plan.silent = Some(true);
    } else if !faults.not_ready && went_silent(node) {
        plan.silent = Some(false);
    }
    plan
}

/// True if the pods of a node make no progress because of a fault.
pub fn are_pods_stuck(node: &Node) -> bool {
    is_annotated(node) && NodeFaults::of_annotations(node.annotations()).is_ok_and(|faults| faults.stuck_pods)
}

/// True if the node has an annotation with faults.
fn is_annotated(node: &Node) -> bool {
    let annotations = node.annotations();
    [FAULTS_ANNOTATION, RANDOM_FAULTS_ANNOTATION].iter().any(|key| annotations.contains_key(*key))
}

/// True if the node became NotReady by a fault.
fn went_silent(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.reason.as_deref() == Some(SILENT))
}

/// The random faults of a node at a time, and the next time at which they change.
fn random(pool: &NodePool, node: &Node, site: &Site, now: Timestamp) -> (NodeFaults, Option<Timestamp>) {
    let mut faults = NodeFaults::default();
    let Some(spec) = &pool.spec.faults else { return (faults, None) };
    let seed = spec.seed.unwrap_or(site.seed);
    let name = node.name_any();
    let of = |kind: &str, fault: &Option<RandomFault>| {
        let fault = fault.as_ref()?;
        Some(Phase::at(fault, seed, &[kind, &name], now))
    };
    let mut due = Vec::new();
    let mut is_on = |phase: Option<Phase>| -> Option<i64> {
        let phase = phase?;
        due.extend(phase.due);
        phase.active
    };
    if let Some(slot) = is_on(of("gpu", &spec.gpu)) {
        let gpus = u32::try_from(pool.spec.accelerator().map_or(0, |accelerator| accelerator.count)).unwrap_or(0);
        break_gpu(&mut faults, seed, &["gpu-kind", &name, &slot.to_string()], gpus.max(1));
    }
    if is_on(of("evict", &spec.evict)).is_some() {
        faults.gpuhealth = Some("EVICT".to_owned());
    }
    faults.not_ready = is_on(of("not-ready", &spec.not_ready)).is_some();
    faults.stuck_pods = is_on(of("stuck-pods", &spec.stuck_pods)).is_some();
    (faults, due.into_iter().min())
}

/// Breaks one GPU in one of the ways that checks find.
fn break_gpu(faults: &mut NodeFaults, seed: u64, words: &[&str], gpus: u32) {
    let number = draw(seed, words);
    let gpu = u32::try_from(number % u64::from(gpus)).unwrap_or(0);
    let rest = number / u64::from(gpus);
    let (kind, rest) = (rest % 5, rest / 5);
    match kind {
        0 => {
            let tenths = SLOW.start + rest % (SLOW.end - SLOW.start);
            faults.pciebw.insert(gpu, tenths as f64 / 10.0);
        }
        1 => {
            faults.remapped.insert(gpu);
        }
        2 => {
            faults.gpupower.insert(gpu);
        }
        3 => {
            faults.gpumem.insert(gpu);
        }
        _ => {
            let test = TESTS[usize::try_from(rest % TESTS.len() as u64).unwrap_or(0)];
            faults.dcgm.entry(test.to_owned()).or_default().insert(gpu);
        }
    }
}

/// A random fault at a time.
struct Phase {
    /// Number of the interval whose fault is active.
    active: Option<i64>,
    /// Next start or end.
    due: Option<Timestamp>,
}

impl Phase {
    fn at(fault: &RandomFault, seed: u64, words: &[&str], now: Timestamp) -> Self {
        let every = i64::try_from(fault.every.0.as_millis()).unwrap_or(i64::MAX).max(1);
        let mean = i64::try_from(fault.duration.0.as_millis()).unwrap_or(i64::MAX);
        let slot = now.as_millisecond().div_euclid(every);
        // Start and end of the fault of an interval. A fault may last into the next interval.
        let times = |slot: i64| -> Option<(Timestamp, Timestamp)> {
            let word = slot.to_string();
            let all = |what: &str| -> u64 {
                let mut all = vec!["fault", what, word.as_str()];
                all.extend(words);
                draw(seed, &all)
            };
            let within = |number: u64, range: i64| i64::try_from(number % u64::try_from(range).unwrap_or(1).max(1));
            let start = slot.checked_mul(every)?.checked_add(within(all("start"), every).ok()?)?;
            let lasts = within(all("duration"), mean.saturating_mul(2)).ok()?.max(1000);
            let start = Timestamp::from_millisecond(start).ok()?;
            Some((start, start.checked_add(SignedDuration::from_millis(lasts)).ok()?))
        };
        let all: Vec<(i64, (Timestamp, Timestamp))> =
            [slot - 1, slot, slot + 1].into_iter().filter_map(|slot| Some((slot, times(slot)?))).collect();
        let active = all.iter().find(|(_, (start, end))| *start <= now && now < *end).map(|(slot, _)| *slot);
        let edges = all.iter().flat_map(|(_, (start, end))| [*start, *end]);
        Self { active, due: edges.filter(|at| *at > now).min() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pool: &NodePool, node: &Node, site: &Site, now: Timestamp) -> FaultPlan {
        super::plan(pool, node, site, &Draws::default(), now)
    }

    fn pool(faults: Value) -> NodePool {
        let spec = json!({ "machineType": "a3-highgpu-8g", "maxNodes": 10, "faults": faults });
        let pool = NodePool::new("p", serde_json::from_value(spec).expect("a spec"));
        assert_eq!(pool.spec.problems("spec"), []);
        pool
    }

    fn node(pool: &NodePool, name: &str) -> Node {
        crate::pools::template(pool, &Site::default(), "z", name)
    }

    fn at(minutes: i64) -> Timestamp {
        "2026-01-05T00:00:00Z".parse::<Timestamp>().expect("a time") + SignedDuration::from_mins(minutes)
    }

    #[test]
    fn faults_come_about_once_per_interval_and_last_about_their_mean() {
        let pool = pool(json!({ "notReady": { "every": "100h", "duration": "5h" }, "seed": 3 }));
        let (mut hours, mut starts) = (0, 0);
        for name in 0..20 {
            let node = node(&pool, &format!("n{name}"));
            let mut before = false;
            for hour in 0..1000 {
                let on = random(&pool, &node, &Site::default(), at(hour * 60)).0.not_ready;
                hours += i64::from(on);
                starts += i64::from(on && !before);
                before = on;
            }
        }
        // Twenty nodes for a thousand hours: 200 faults of five hours. Some are too short to be
        // seen.
        assert!((160..=210).contains(&starts), "{starts}");
        assert!((800..=1200).contains(&hours), "{hours} hours");
    }

    #[test]
    fn the_next_change_is_announced_and_the_seed_decides() {
        let spec = |seed: u64| pool(json!({ "gpu": { "every": "10h", "duration": "2h" }, "seed": seed }));
        let history = |pool: &NodePool| -> Vec<String> {
            let node = node(pool, "n");
            let (mut now, mut all) = (at(0), Vec::new());
            for _ in 0..40 {
                let (faults, due) = random(pool, &node, &Site::default(), now);
                let due = due.expect("faults come back");
                let just_before = due - SignedDuration::from_millis(1);
                assert_eq!(random(pool, &node, &Site::default(), just_before).0, faults, "no change before {due}");
                all.push(serde_json::to_string(&faults).expect("JSON"));
                now = due;
            }
            all
        };
        let first = history(&spec(1));
        assert_eq!(first, history(&spec(1)));
        assert_ne!(first, history(&spec(2)));
        let kinds: BTreeMap<&str, usize> = ["pciebw", "remapped", "gpupower", "gpumem", "dcgm"]
            .into_iter()
            .map(|kind| (kind, first.iter().filter(|text| text.contains(kind)).count()))
            .collect();
        assert!(kinds.values().filter(|count| **count > 0).count() >= 3, "{kinds:?}");
    }

    #[test]
    fn remembered_draws_equal_new_ones() {
        let spec = |seed: u64| pool(json!({ "gpu": { "every": "10h", "duration": "2h" }, "seed": seed }));
        let (draws, site) = (Draws::default(), Site::default());
        for pool in [spec(1), spec(2)] {
            for minute in (0..3000).chain(0..10) {
                for name in ["a", "b"] {
                    let node = node(&pool, name);
                    let expected = random(&pool, &node, &site, at(minute));
                    assert_eq!(draws.random(&pool, &node, &site, at(minute)), expected, "{name} at minute {minute}");
                }
            }
        }
        assert_eq!(draws.random(&pool(json!(null)), &node(&spec(1), "a"), &site, at(0)), (NodeFaults::default(), None));
    }

    #[test]
    fn a_node_shows_its_faults_and_loses_them() {
        let pool = pool(json!({ "evict": { "every": "10h", "duration": "5h" } }));
        let mut node = node(&pool, "n");
        let site = Site::default();
        let on = (0..600).find(|minute| random(&pool, &node, &site, at(*minute)).0.gpuhealth.is_some());
        let on = on.expect("a fault within ten hours");
        let off = (on..1200).find(|minute| random(&pool, &node, &site, at(*minute)).0.gpuhealth.is_none());
        let off = off.expect("the fault ends");
        let patch = plan(&pool, &node, &site, at(on)).metadata.expect("a change");
        assert_eq!(patch["labels"][GPU_HEALTH_LABEL], "EVICT");
        assert_eq!(patch["annotations"][RANDOM_FAULTS_ANNOTATION], r#"{"gpuhealth":"EVICT"}"#);
        node.labels_mut().insert(GPU_HEALTH_LABEL.into(), "EVICT".into());
        node.annotations_mut().insert(RANDOM_FAULTS_ANNOTATION.into(), r#"{"gpuhealth":"EVICT"}"#.into());
        assert_eq!(plan(&pool, &node, &site, at(on)).metadata, None);
        let patch = plan(&pool, &node, &site, at(off)).metadata.expect("a change");
        assert_eq!(patch["labels"][GPU_HEALTH_LABEL], Value::Null);
        // A label that another writer changed meanwhile stays.
        node.labels_mut().insert(GPU_HEALTH_LABEL.into(), "PASS".into());
        assert_eq!(plan(&pool, &node, &site, at(off)).metadata.expect("a change").get("labels"), None);
    }

    #[test]
    fn a_silent_node_becomes_unreachable_and_returns() {
        let pool = pool(json!({}));
        let mut node = node(&pool, "n");
        let faults = |node: &mut Node, text: &str| {
            node.annotations_mut().insert(FAULTS_ANNOTATION.into(), text.into());
        };
        let silent = |node: &Node| plan(&pool, node, &Site::default(), at(0)).silent;
        assert_eq!(silent(&node), None);
        faults(&mut node, r#"{"notReady": true}"#);
        assert_eq!(silent(&node), Some(true));
        let status = node.status.as_mut().and_then(|status| status.conditions.as_mut()).expect("conditions");
        for condition in status.iter_mut() {
            (condition.status, condition.reason) = ("Unknown".into(), Some(SILENT.into()));
        }
        let unreachable = k8s_openapi::api::core::v1::Taint {
            key: UNREACHABLE.into(),
            effect: "NoExecute".into(),
            ..Default::default()
        };
        node.spec.get_or_insert_default().taints.get_or_insert_default().push(unreachable);
        assert_eq!(silent(&node), None);
        faults(&mut node, "");
        assert_eq!(silent(&node), Some(false));
        faults(&mut node, "no JSON");
        assert_eq!(silent(&node), Some(false));
        let problem = plan(&pool, &node, &Site::default(), at(0)).problem.expect("a problem");
        assert!(problem.starts_with("annotation berth.dev/faults: "), "{problem}");
    }
}
