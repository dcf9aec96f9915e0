//! The rules of the coscheduling plugin.
//!
//! Source: kubernetes-sigs/scheduler-plugins, `pkg/coscheduling`. The messages are the plugin's.

use crate::placement::Resources;

/// The fields of a PodGroup that scheduling needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Number of pods that must have a node before any is bound.
    pub min_member: usize,
    /// Amounts that the free capacity of all nodes must cover; `None` if not declared.
    pub min_resources: Option<Resources>,
}

/// The pods of a group, regardless of their phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Siblings {
    /// All pods.
    pub all: usize,
    /// Pods with scheduling gates.
    pub gated: usize,
}

/// Checks if a pod of the group may be tried.
///
/// # Errors
/// The reason why the pod has to wait.
pub fn check_siblings(pod: &str, rules: &Rules, siblings: Siblings) -> Result<(), String> {
    if siblings.all < rules.min_member {
        return Err(format!(
            "pre-filter pod {pod} cannot find enough sibling pods, current pods number: {}, minMember of group: {}",
            siblings.all, rules.min_member
        ));
    }
    if siblings.all - siblings.gated.min(siblings.all) < rules.min_member {
        return Err(format!("pre-filter pod {pod} cannot proceed due to gated pods in the same PodGroup"));
    }
    Ok(())
}

/// Checks if the free amounts of all nodes together cover the group. `free` does not count the pods
/// of the group.
///
/// # Errors
/// The missing amounts.
pub fn check_resources(group: &str, rules: &Rules, free: &Resources) -> Result<(), String> {
    let Some(least) = &rules.min_resources else { return Ok(()) };
    let mut wanted = least.clone();
    wanted.set("pods", i64::try_from(rules.min_member).unwrap_or(i64::MAX));
    let missing: Vec<String> = wanted
        .iter()
        .map(|(resource, amount)| (resource, amount - free.get(resource)))
        .filter(|(_, gap)| *gap > 0)
        .map(|(resource, gap)| {
            if resource != "cpu" {
                format!("{gap} of {resource}")
            } else if gap % 1000 == 0 {
                format!("{} of cpu", gap / 1000)
            } else {
                format!("{gap}m of cpu")
            }
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("podGroup {group}: minResources exceed the free capacity of all nodes by {}", missing.join(", ")))
}

/// True if the placed pods of a group are rejected because a pod found no node. `assigned` counts
/// placed and bound pods; the missing share of `min_member` may be up to `percentage`.
pub fn is_rejected(min_member: usize, assigned: usize, percentage: i64) -> bool {
    if assigned >= min_member {
        return false;
    }
    let missing = u128::try_from(min_member - assigned).unwrap_or(u128::MAX);
    let allowed = u128::from(u64::try_from(percentage).unwrap_or(0));
    missing * 100 > allowed * u128::try_from(min_member).unwrap_or(u128::MAX)
}
