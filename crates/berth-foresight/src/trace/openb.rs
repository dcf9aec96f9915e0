//! Alibaba's openb trace: a list of nodes (`sn,cpu_milli,memory_mib,gpu,model`) and lists of pods.
//!
//! Pods may share a GPU: `gpu_milli` is the part of one GPU that a pod with `num_gpu` 1 uses. The
//! resource of GPUs is therefore [`GPU_MILLI`], thousandths of a GPU. The tenant is the pod's
//! quality of service, because the trace has no users. A pod is submitted at its creation and runs
//! from its scheduling (or its creation) to its deletion; pods without these times are left out of
//! a replay, but take part in packing ([`pods`]).

use berth_engine::Name;
use berth_engine::model::ResourceList;

use super::builder::Builder;
use super::table::{Row, Table};
use super::{Format, Job, ONLY_TENANT, Owner, Problem, Trace};

/// The resource of GPUs, in thousandths of one GPU.
pub const GPU_MILLI: &str = "alibabacloud.com/gpu-milli";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Number of GPUs.
    pub gpus: u32,
    /// Model of the GPUs; empty without GPUs.
    pub model: String,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Name.
    pub name: String,
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Number of GPUs.
    pub gpus: u32,
    /// Thousandths of a GPU; below 1000 only for pods with one GPU.
    pub gpu_milli: i64,
    /// Models that the pod accepts; empty: any.
    pub models: Vec<String>,
}

impl Pod {
    /// Thousandths of a GPU of all its GPUs.
    pub fn gpu_demand(&self) -> i64 {
        if self.gpus == 1 { self.gpu_milli } else { i64::from(self.gpus) * 1000 }
    }
}

/// Parses a list of nodes.
pub fn nodes(text: &str) -> Result<Vec<Node>, Problem> {
    let table = Table::read(text, &["sn", "cpu_milli", "memory_mib", "gpu", "model"])?;
    let node = |row: Row<'_>| {
        Ok(Node {
            name: row.required("sn", "the name of a node")?,
            cpu_milli: amount(row, "cpu_milli")?,
            memory_mib: amount(row, "memory_mib")?,
            gpus: row.required("gpu", "a number of GPUs")?,
            model: row.text("model").unwrap_or_default().to_owned(),
        })
    };
    table.rows().map(node).collect()
}

/// The size of a cluster of these nodes.
pub fn machine(nodes: &[Node]) -> ResourceList {
    let sum = |amount: fn(&Node) -> i64| nodes.iter().map(amount).sum();
    ResourceList::from([
        (Name::from("cpu"), sum(|node| node.cpu_milli)),
        (Name::from("memory"), sum(|node| node.memory_mib << 20)),
        (Name::from(GPU_MILLI), sum(|node| i64::from(node.gpus) * 1000)),
    ])
}

/// Parses a list of pods, with or without times.
pub fn pods(text: &str) -> Result<Vec<Pod>, Problem> {
    Table::read(text, &COLUMNS)?.rows().map(pod).collect()
}

const COLUMNS: [&str; 5] = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];

fn amount(row: Row<'_>, column: &str) -> Result<i64, Problem> {
    let value: i64 = row.required(column, "an integer")?;
    // Far above any machine; sums of such amounts stay within 64 bits.
    const MAX: i64 = 1 << 40;
    if (0..=MAX).contains(&value) {
        Ok(value)
    } else {
        Err(row.problem(format!("{column} is {value}: expected 0 to {MAX}")))
    }
}

fn pod(row: Row<'_>) -> Result<Pod, Problem> {
    let pod = Pod {
        name: row.required("name", "the name of a pod")?,
        cpu_milli: amount(row, "cpu_milli")?,
        memory_mib: amount(row, "memory_mib")?,
        gpus: row.required("num_gpu", "a number of GPUs")?,
        gpu_milli: amount(row, "gpu_milli")?,
        models: row
            .text("gpu_spec")
            .unwrap_or_default()
            .split('|')
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
            .collect(),
    };
    if pod.gpus == 1 && !(1..=1000).contains(&pod.gpu_milli) {
        let text = format!("gpu_milli is {}: expected 1 to 1000 for a pod with one GPU", pod.gpu_milli);
        return Err(row.problem(text));
    }
    Ok(pod)
}

/// Parses a list of pods as a trace.
pub fn parse_pods(text: &str) -> Result<Trace, Problem> {
    let table = Table::read(text, &COLUMNS)?;
    if !table.header.iter().any(|column| column == "creation_time") {
        return Err(Problem::at(1, "column creation_time is missing: pods without times cannot be replayed"));
    }
    let mut builder = Builder::default();
    for row in table.rows() {
        let pod = pod(row)?;
        let created = row.seconds("creation_time")?;
        let scheduled = row.seconds("scheduled_time")?;
        let deleted = row.seconds("deletion_time")?;
        let Some((created, deleted)) = created.zip(deleted) else {
            builder.leave_out("times unknown");
            continue;
        };
        let started = scheduled.unwrap_or(created).max(created);
        let Some(run_time) = deleted.checked_sub(started).filter(|time| !time.is_zero()) else {
            builder.leave_out("deleted before it was scheduled");
            continue;
        };
        let mut requests = ResourceList::from([
            (Name::from("cpu"), pod.cpu_milli),
            (Name::from("memory"), pod.memory_mib << 20),
            (Name::from(GPU_MILLI), pod.gpu_demand()),
        ]);
        requests.retain(|_, amount| *amount > 0);
        let class = builder.name(row.text("qos").unwrap_or(ONLY_TENANT));
        let job = Job {
            name: Name::from(pod.name.as_str()),
            submitted: created,
            run_time,
            waited: scheduled.map(|_| started - created),
            limit: None,
            pods: 1,
            requests: builder.requests(requests),
            priority: 0,
            priority_class: None,
            owner: builder.owner(Owner { tenant: class, user: None, group: None, queue: None, partition: None }),
        };
        builder.add(row.line(), job)?;
    }
    builder.finish(Format::Openb, None, None)
}
