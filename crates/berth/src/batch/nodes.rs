//! `berth nodes`: the nodes, their state, and what the pods on them request.

use std::borrow::Borrow;
use std::process::ExitCode;

use berth_apimachinery::table;
use berth_dashboard::node_health;
use berth_dashboard::node_use::{Use, accelerator, pool, share, state, uses};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::component::connect::{self, ConnectOptions};
use crate::flat::Kind;
use crate::listing::{Column, Format, Listing, or_none};
use crate::team::in_words;
use crate::{foresee, process};

/// Options of `berth nodes`.
#[derive(Args)]
pub struct Options {
    /// Only nodes with these labels, as for kubectl.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Output format: table, wide, json, yaml, name, csv, parquet, jsonpath=TEMPLATE or
    /// go-template=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints the nodes.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(async {
        let client = connect::asking(options.connect.config().await?)?;
        let params = ListParams { label_selector: options.selector.clone(), ..ListParams::default() };
        let nodes = Api::<Node>::all(client.clone()).list(&params).await;
        let nodes = nodes.map_err(|error| in_words("nodes", error))?;
        let pods = match Api::<Pod>::all(client.clone()).list(&ListParams::default()).await {
            Ok(pods) => Some(pods.items),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                eprintln!("berth: the use of nodes is not shown, because you may not list the pods of all namespaces");
                None
            }
            Err(error) => return Err(in_words("pods", error)),
        };
        let now = foresee::now(&client).await?;
        listing(&nodes.items, pods.as_deref(), now).print(&options.output, "The cluster has no node.")?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The list of `berth nodes`. Without pods, the use of the nodes is not known.
pub fn listing(nodes: &[impl Borrow<Node>], pods: Option<&[impl Borrow<Pod>]>, now: Timestamp) -> Listing {
    let nodes: Vec<&Node> = nodes.iter().map(Borrow::borrow).collect();
    let columns = vec![
        Column::Usual("NODE"),
        Column::Usual("STATE"),
        Column::Usual("POOL"),
        Column::Usual("CPU"),
        Column::Usual("GPU"),
        Column::Usual("HEALTH"),
        Column::Usual("PODS"),
        Column::Usual("REASON"),
        Column::Usual("AGE"),
        Column::Wide("MEMORY"),
        Column::Wide("ACCELERATOR"),
        Column::Wide("HEALTH DETAIL"),
        Column::Wide("TAINTS"),
    ];
    let uses = pods.map(|pods| uses(pods));
    let row = |node: &Node| {
        let none = Use::default();
        let used = uses.as_ref().map(|uses| uses.get(&node.name_any()).unwrap_or(&none));
        let accelerator = accelerator(node);
        let (state, reason) = state(node, used);
        let health = node_health::of(node);
        let pool = pool(node);
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let taints: Vec<String> = taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
        let created = node.creation_timestamp().map(|at| table::age(at.0, now));
        vec![
            node.name_any(),
            state,
            or_none(pool.unwrap_or_default()),
            share(node, used, "cpu"),
            accelerator.as_deref().map_or_else(|| "-".to_owned(), |name| share(node, used, name)),
            or_none(&health.verdict),
            used.map_or_else(|| "-".to_owned(), |used| used.pods.to_string()),
            reason,
            created.unwrap_or_default(),
            share(node, used, "memory"),
            or_none(accelerator.as_deref().unwrap_or_default()),
            or_none(&health.detail),
            or_none(&taints.join(",")),
        ]
    };
    Listing {
        columns,
        rows: nodes.iter().map(|node| row(node)).collect(),
        names: nodes.iter().map(|node| format!("node/{}", node.name_any())).collect(),
        items: nodes.iter().map(|node| json!(node)).collect(),
        kinds: &[("PODS", Kind::Integer)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str, unschedulable: bool) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"cloud.google.com/gke-nodepool": "l4"}},
            "spec": {"unschedulable": unschedulable},
            "status": {"allocatable": {"cpu": "4", "nvidia.com/gpu": "2"},
                "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletStopped"}]}}))
        .expect("a node")
    }

    fn pod(node: &str, gpus: u32, phase: &str) -> Pod {
        let requests = json!({"cpu": "500m", "nvidia.com/gpu": gpus.to_string()});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {"phase": phase}, "spec": {"nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": requests}}]}}))
        .expect("a pod")
    }

    #[test]
    fn a_node_has_a_state_and_the_requests_of_its_pods() {
        let mut nodes =
            [node("a", "True", false), node("b", "True", true), node("c", "False", false), node("d", "True", false)];
        nodes[0].labels_mut().insert("autopilot.ibm.com/gpuhealth".to_owned(), "WARN".to_owned());
        let pods = [pod("a", 1, "Running"), pod("a", 1, "Pending"), pod("a", 2, "Succeeded"), pod("d", 1, "Running")];
        let rows = listing(&nodes, Some(&pods[..]), Timestamp::UNIX_EPOCH).rows;
        let cells = |at: usize| rows[at][1..8].join(" ");
        assert_eq!(cells(0), "allocated l4 1/4 2/2 WARN 2 ");
        assert_eq!(cells(1), "drained l4 0/4 0/2 <none> 0 cordoned");
        assert_eq!(cells(2), "down l4 0/4 0/2 <none> 0 KubeletStopped");
        assert_eq!(cells(3), "mixed l4 0.5/4 1/2 <none> 1 ");
        let unknown = listing(&nodes, None::<&[Pod]>, Timestamp::UNIX_EPOCH).rows;
        assert_eq!(unknown[3][1..7].join(" "), "up l4 -/4 -/2 <none> -");
    }
}
