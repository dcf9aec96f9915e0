//! Helpers of the random weeks: random numbers, and fields of objects as JSON.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use serde_json::Value;

/// Random numbers (splitmix64).
pub struct Draw(pub u64);

impl Draw {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// A number from `min` to `max`.
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }
}

/// The number of seeds to run: `BERTH_TEST_SEEDS`, or `usual`.
pub fn seeds(usual: u64) -> u64 {
    std::env::var("BERTH_TEST_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Runs a future in virtual time.
pub fn in_virtual_time(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future);
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}

pub fn is_true(object: &Value, type_: &str) -> bool {
    condition(object, type_).is_some_and(|condition| condition["status"] == "True")
}

/// Quota in use by flavor and resource, in whole units. Pods that have ended use no quota.
pub fn usage<'a>(workloads: impl IntoIterator<Item = &'a Value>) -> BTreeMap<(String, String), i64> {
    let mut usage = BTreeMap::new();
    for workload in workloads.into_iter().filter(|w| is_true(w, "QuotaReserved") && !is_true(w, "Finished")) {
        let ended = |set: &Value| {
            let known = workload["status"]["reclaimablePods"].as_array().into_iter().flatten();
            known.filter(|known| known["name"] == set["name"]).filter_map(|known| known["count"].as_i64()).sum::<i64>()
        };
        for set in workload["status"]["admission"]["podSetAssignments"].as_array().into_iter().flatten() {
            let count = set["count"].as_i64().unwrap_or(1).max(1);
            let left = count - ended(set);
            for (resource, flavor) in set["flavors"].as_object().into_iter().flatten() {
                let amount = set["resourceUsage"][resource].as_str().and_then(|text| Quantity::parse(text).ok());
                let key = (flavor.as_str().unwrap_or_default().to_owned(), resource.clone());
                *usage.entry(key).or_insert(0) += amount.map_or(0, |amount| amount.milli_value() / 1000 / count * left);
            }
        }
    }
    usage
}
