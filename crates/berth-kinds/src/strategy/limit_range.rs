//! LimitRanges and ResourceQuotas: defaults. In a LimitRange, the default limit of containers is
//! the maximum unless it is set, and the default request is the default limit or else the minimum.
//! Both kinds store amounts in canonical form.

use berth_apimachinery::field::Error;
use berth_apimachinery::meta;
use serde_json::{Map, Value, json};

use super::limits_validation;
use super::pod_defaults::canonical;
use super::{Context, Strategy};

pub(crate) struct LimitRanges;

impl Strategy for LimitRanges {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, range: &mut Value) {
        let items = range.pointer_mut("/spec/limits").and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            for bound in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
                item.get_mut(bound)
                    .and_then(Value::as_object_mut)
                    .into_iter()
                    .flat_map(Map::values_mut)
                    .for_each(canonical);
            }
            if item["type"] != "Container" {
                continue;
            }
            take_over(item, "max", "default");
            take_over(item, "default", "defaultRequest");
            take_over(item, "min", "defaultRequest");
        }
    }

    fn validate(&self, range: &Value) -> Vec<Error> {
        limits_validation::limit_range(range)
    }
}

pub(crate) struct Quotas;

impl Strategy for Quotas {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn prepare_create(&self, quota: &mut Value, _context: &Context<'_>) {
        meta::map_mut(quota).insert("status".to_owned(), json!({}));
    }

    fn default(&self, quota: &mut Value) {
        let hard = quota.pointer_mut("/spec/hard").and_then(Value::as_object_mut);
        hard.into_iter().flat_map(Map::values_mut).for_each(canonical);
    }

    fn validate(&self, quota: &Value) -> Vec<Error> {
        limits_validation::quota(quota)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        limits_validation::quota_update(new, old)
    }
}

fn take_over(item: &mut Value, from: &str, to: &str) {
    let amounts: Map<String, Value> = item[from].as_object().cloned().unwrap_or_default();
    if amounts.is_empty() {
        return;
    }
    let target = meta::map_mut(meta::map_mut(item).entry(to).or_insert_with(|| json!({})));
    for (name, amount) in amounts {
        target.entry(name).or_insert(amount);
    }
}
