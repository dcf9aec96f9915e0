//! Places the pods of openb's lists on its nodes, until the cluster is full: how much of the GPUs
//! can be allocated?
//!
//! Pods arrive in the order of the list and never leave. A pod that fits nowhere is rejected, and
//! later pods are still tried. When the whole list has arrived and the cluster may hold more, the
//! list is repeated until the pods have requested [`DEMAND_PERCENT`] percent of the GPUs.
//!
//! The engine's topology-aware placement counts amounts per domain. It cannot express parts of a
//! GPU: three pods with 0.6 GPU do not fit on two GPUs, but their sum does. GPUs as the lowest
//! level of a topology would have the right amounts, but CPUs and memory belong to nodes, not to
//! GPUs. Therefore this module has its own nodes, with the free part of each GPU.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::trace::openb::{Node, Pod};

/// Pods arrive until they have requested this share of the GPUs of the cluster.
pub const DEMAND_PERCENT: i64 = 130;
/// Thousandths of a GPU.
const GPU: i64 = 1000;

/// Rule that chooses the node of a pod among the nodes on which it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The node with the least free GPU, then CPU: as topology-aware scheduling prefers the
    /// fullest domain.
    BestFit,
    /// The node whose free GPUs lose the least use for the pods of the list: fragmentation
    /// gradient descent, after Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
    LeastFragmentation,
}

impl Placement {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Placement::BestFit => "best-fit",
            Placement::LeastFragmentation => "least-fragmentation",
        }
    }
}

/// The result of a packing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Packing {
    /// The rule.
    pub placement: Placement,
    /// GPUs of the cluster.
    pub gpus: f64,
    /// GPUs that pods requested.
    pub requested: f64,
    /// GPUs that are allocated.
    pub allocated: f64,
    /// Pods that were placed.
    pub placed: usize,
    /// Pods that fit on no node.
    pub rejected: usize,
}

impl Packing {
    /// Share of the GPUs that is allocated.
    pub fn share(&self) -> f64 {
        if self.gpus > 0.0 { self.allocated / self.gpus } else { 0.0 }
    }
}

/// A node and what is free on it.
#[derive(Debug, Clone)]
struct Free<'a> {
    node: &'a Node,
    cpu: i64,
    memory: i64,
    /// Free thousandths of each GPU.
    gpus: Vec<i64>,
}

impl Free<'_> {
    fn whole_gpus(&self) -> u32 {
        self.gpus.iter().filter(|free| **free == GPU).count() as u32
    }

    fn gpu_sum(&self) -> i64 {
        self.gpus.iter().sum()
    }

    /// Order of the fitting nodes: the fullest first, and nodes without GPUs before all others.
    fn rank(&self) -> (i64, i64, i64) {
        (self.gpu_sum(), self.cpu, self.memory)
    }

    fn accepts_model(&self, pod: &Pod) -> bool {
        pod.models.is_empty() || pod.models.contains(&self.node.model)
    }

    /// The GPU for a pod that shares one: the fullest on which it fits.
    fn shared_gpu(&self, amount: i64) -> Option<usize> {
        let fitting = self.gpus.iter().enumerate().filter(|(_, free)| **free >= amount);
        fitting.min_by_key(|(_, free)| **free).map(|(number, _)| number)
    }

    fn fits(&self, pod: &Pod) -> bool {
        if self.cpu < pod.cpu_milli || self.memory < pod.memory_mib {
            return false;
        }
        match pod.gpus {
            0 => true,
            _ if !self.accepts_model(pod) => false,
            1 => self.shared_gpu(pod.gpu_milli).is_some(),
            count => self.whole_gpus() >= count,
        }
    }

    /// Takes what a fitting pod uses.
    fn place(&mut self, pod: &Pod) {
        self.cpu -= pod.cpu_milli;
        self.memory -= pod.memory_mib;
        if pod.gpus == 1 {
            if let Some(gpu) = self.shared_gpu(pod.gpu_milli) {
                self.gpus[gpu] -= pod.gpu_milli;
            }
        } else {
            for free in self.gpus.iter_mut().filter(|free| **free == GPU).take(pod.gpus as usize) {
                *free = 0;
            }
        }
    }

    /// Free thousandths of GPUs that pods of the typical classes cannot use, as the mean over the
    /// classes.
    fn fragmentation(&self, classes: &[Class<'_>]) -> f64 {
        classes.iter().map(|class| class.share * self.unusable(class.pod) as f64).sum()
    }

    fn unusable(&self, pod: &Pod) -> i64 {
        // A pod without GPUs uses none of the free ones.
        if pod.gpus == 0 || !self.fits(pod) {
            return self.gpu_sum();
        }
        match pod.gpus {
            1 => self.gpus.iter().filter(|free| **free < pod.gpu_milli).sum(),
            _ => self.gpus.iter().filter(|free| **free < GPU).sum(),
        }
    }
}

/// Equal pods of the list.
struct Class<'a> {
    pod: &'a Pod,
    /// Share of the pods of the list.
    share: f64,
}

/// Packs pods on nodes.
pub fn pack(nodes: &[Node], pods: &[Pod], placement: Placement) -> Packing {
    let gpus: i64 = nodes.iter().map(|node| i64::from(node.gpus) * GPU).sum();
    let wanted = gpus.saturating_mul(DEMAND_PERCENT) / 100;
    let (kinds, kind_of) = kinds(pods);
    let mut cluster = Cluster {
        free: nodes.iter().map(Free::of).collect(),
        classes: classes(&kinds),
        increases: vec![vec![None; nodes.len()]; kinds.len()],
    };
    let (mut requested, mut allocated, mut placed, mut rejected) = (0, 0, 0, 0);
    let arrivals = pods.iter().zip(&kind_of);
    // Without a request for a GPU, repeating the list would never end.
    let repeated = if pods.iter().any(|pod| pod.gpu_demand() > 0) { usize::MAX } else { 1 };
    for (pod, kind) in std::iter::repeat_n(arrivals, repeated).flatten() {
        if requested >= wanted {
            break;
        }
        requested += pod.gpu_demand();
        if cluster.place(pod, *kind, placement) {
            allocated += pod.gpu_demand();
            placed += 1;
        } else {
            rejected += 1;
        }
    }
    let in_gpus = |milli: i64| milli as f64 / GPU as f64;
    Packing {
        placement,
        gpus: in_gpus(gpus),
        requested: in_gpus(requested),
        allocated: in_gpus(allocated),
        placed,
        rejected,
    }
}

/// The nodes, and what is known about placements on them.
struct Cluster<'a> {
    free: Vec<Free<'a>>,
    classes: Vec<Class<'a>>,
    /// Per kind of pods and node: the increase of the node's fragmentation by such a pod, until the
    /// node changes.
    increases: Vec<Vec<Option<f64>>>,
}

impl Cluster<'_> {
    /// Places a pod on the node that the rule chooses. False if it fits on no node.
    fn place(&mut self, pod: &Pod, kind: usize, placement: Placement) -> bool {
        let chosen = match placement {
            Placement::BestFit => {
                let fitting = self.free.iter().enumerate().filter(|(_, node)| node.fits(pod));
                fitting.min_by_key(|(_, node)| node.rank()).map(|(number, _)| number)
            }
            Placement::LeastFragmentation => self.least_fragmentation(pod, kind),
        };
        let Some(number) = chosen else { return false };
        self.free[number].place(pod);
        for increases in &mut self.increases {
            increases[number] = None;
        }
        true
    }

    fn least_fragmentation(&mut self, pod: &Pod, kind: usize) -> Option<usize> {
        let classes = &self.classes;
        let known = &mut self.increases[kind];
        let nodes = self.free.iter().zip(known).enumerate().filter(|(_, (node, _))| node.fits(pod));
        let costs = nodes.map(|(number, (node, known))| {
            let increase = *known.get_or_insert_with(|| {
                let mut after = node.clone();
                after.place(pod);
                after.fragmentation(classes) - node.fragmentation(classes)
            });
            (increase, (node.rank(), number))
        });
        let least = costs.min_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        least.map(|(_, (_, number))| number)
    }
}

impl<'a> Free<'a> {
    fn of(node: &'a Node) -> Free<'a> {
        Free { node, cpu: node.cpu_milli, memory: node.memory_mib, gpus: vec![GPU; node.gpus as usize] }
    }
}

/// The distinct pods of a list with their numbers, and the kind of each pod.
fn kinds(pods: &[Pod]) -> (Vec<(usize, &Pod)>, Vec<usize>) {
    let mut numbers: BTreeMap<(i64, i64, u32, i64, &[String]), usize> = BTreeMap::new();
    let mut kinds: Vec<(usize, &Pod)> = Vec::new();
    let mut kind_of = Vec::with_capacity(pods.len());
    for pod in pods {
        let key = (pod.cpu_milli, pod.memory_mib, pod.gpus, pod.gpu_milli, pod.models.as_slice());
        let kind = *numbers.entry(key).or_insert(kinds.len());
        if kind == kinds.len() {
            kinds.push((0, pod));
        }
        kinds[kind].0 += 1;
        kind_of.push(kind);
    }
    (kinds, kind_of)
}

/// The kinds of pods that make up most of a list.
fn classes<'a>(kinds: &[(usize, &'a Pod)]) -> Vec<Class<'a>> {
    /// The rare remaining kinds change the mean by little, and cost most of the time.
    const CLASSES_MAX: usize = 40;
    let mut kinds = kinds.to_vec();
    kinds.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    kinds.truncate(CLASSES_MAX);
    let whole: usize = kinds.iter().map(|(count, _)| count).sum();
    kinds.into_iter().map(|(count, pod)| Class { pod, share: count as f64 / whole as f64 }).collect()
}
