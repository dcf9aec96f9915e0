//! Scaling a Deployment in the middle of a rollout: the change is distributed over its ReplicaSets
//! in proportion to their sizes. If the rollout is stuck because the new template is broken, not
//! all additional pods then get the broken template.
//!
//! Source: Kubernetes' documentation of Deployments, "Proportional scaling".

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::ResourceExt;

/// The size of a ReplicaSet, and the maximum number of pods of its Deployment when the ReplicaSet
/// was last scaled.
pub struct Size<'a> {
    /// The ReplicaSet.
    pub set: &'a Arc<ReplicaSet>,
    /// Its replicas, at least one.
    pub replicas: i32,
    /// The sum of the Deployment's replicas and surge when the ReplicaSet was last scaled.
    pub of_max: i32,
}

/// The new number of replicas of each ReplicaSet by name. `replicas_max` is the sum of the
/// Deployment's new number of replicas and its surge.
pub fn sizes(mut sizes: Vec<Size<'_>>, replicas_max: i32) -> BTreeMap<String, i32> {
    let total: i32 = sizes.iter().map(|size| size.replicas).sum();
    let to_add = replicas_max - total;
    let created = |size: &Size<'_>| size.set.metadata.creation_timestamp.as_ref().map(|time| time.0);
    // The largest ReplicaSet is first. Among equal ones, the oldest is first when they shrink, and
    // the newest when they grow.
    sizes.sort_by_key(|size| (Reverse(size.replicas), created(size), size.set.name_any()));
    if to_add > 0 {
        sizes.sort_by_key(|size| (Reverse(size.replicas), Reverse(created(size)), size.set.name_any()));
    }
    let mut added = 0;
    let mut new: Vec<i32> = Vec::with_capacity(sizes.len());
    for size in &sizes {
        let share = fraction(size, replicas_max) - size.replicas;
        let left = to_add - added;
        let share = if to_add > 0 { share.min(left).max(0) } else { share.max(left).min(0) };
        added += share;
        new.push(size.replicas + share);
    }
    // The remainder of the rounding goes to the largest ReplicaSet.
    if let Some(first) = new.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    sizes.iter().map(|size| size.set.name_any()).zip(new).collect()
}

/// The ReplicaSet's share of the Deployment's new size, rounded.
fn fraction(size: &Size<'_>, replicas_max: i32) -> i32 {
    let (replicas, max, before) = (i64::from(size.replicas), i64::from(replicas_max), i64::from(size.of_max.max(1)));
    i32::try_from((2 * replicas * max + before) / (2 * before)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The new sizes of ReplicaSets that have the replicas `sets`. The oldest ReplicaSet is first.
    fn check(sets: &[i32], of_max: i32, replicas_max: i32) -> Vec<i32> {
        let made: Vec<Arc<ReplicaSet>> = (0..sets.len())
            .map(|number| {
                let created = format!("2026-01-01T00:00:0{number}Z");
                let set = json!({"metadata": {"name": format!("s{number}"), "creationTimestamp": created}});
                Arc::new(serde_json::from_value(set).unwrap())
            })
            .collect();
        let list = made.iter().zip(sets).map(|(set, replicas)| Size { set, replicas: *replicas, of_max }).collect();
        sizes(list, replicas_max).into_values().collect()
    }

    #[test]
    fn pods_are_added_and_removed_in_proportion() {
        assert_eq!(check(&[8, 5], 13, 33), [20, 13], "10 pods and a surge of 3 become 30 pods");
        assert_eq!(check(&[20, 13], 33, 13), [8, 5]);
        assert_eq!(check(&[1, 1], 2, 5), [2, 3], "the remainder goes to the newest of equal ReplicaSets");
        assert_eq!(check(&[4, 3], 7, 0), [0, 0]);
        assert_eq!(check(&[4, 3], 7, 7), [4, 3]);
    }
}
