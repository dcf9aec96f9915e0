//! Tests of importers, policies, replays, packing and reports.

mod checks;
mod commands;
mod comparisons;
mod devices;
mod forecasts;
mod futures;
mod gke;
mod importers;
mod live;
mod packing;
mod policies;
mod real;
mod replays;
mod snapshots;
mod tolerations;

use berth_api::berth::NodePool;
use berth_cluster::{Site, pools};
use berth_foresight::trace::{Trace, read};
use k8s_openapi::api::core::v1::Node;

/// A small trace in Berth's own format: two teams on CPUs.
pub const SMALL: &str = "\
job,submit,run,limit,tenant,user,pods,request:cpu,priority
a1,0,100,200,a,ann,2,1,0
a2,10,100,,a,ann,2,1,0
b1,20,50,60,b,bob,1,2,0
b2,20,50,60,b,bob,1,500m,5
a3,30,10,,a,amy,1,1,0
";

/// A trace of this text.
pub fn trace(text: &str) -> Trace {
    read("small.csv", text.as_bytes(), None).unwrap_or_else(|error| panic!("{error}"))
}

/// The place of the nodes of pools.
pub fn site() -> Site {
    Site {
        cluster: "test".to_owned(),
        region: "us-central1".to_owned(),
        version: String::new(),
        seed: 0,
        taints_simulated: false,
    }
}

/// The node of a new machine of a pool in each of its zones.
pub fn template(pool: &NodePool) -> Vec<Node> {
    let site = site();
    pools::zones(pool, &site).iter().map(|zone| pools::template(pool, &site, zone, "node")).collect()
}
