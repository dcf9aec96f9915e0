//! PodGroups (`scheduling.x-k8s.io/v1alpha1`), by which a gang scheduler starts all pods of a job
//! together, or none.

use std::collections::BTreeMap;

use berth_api::scheduling::{POD_GROUP_LABEL, PodGroupSpec};
use berth_apimachinery::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::types::SchedulingPolicy;

/// Equal pods of a group, with the value of their priority class.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    /// Number of pods.
    pub count: i32,
    /// The pod.
    pub template: &'a PodTemplateSpec,
    /// Value of its priority class; 0 without one.
    pub priority: i32,
}

/// The PodGroup of these pods.
pub fn group(members: &[Members<'_>], policy: Option<&SchedulingPolicy>) -> PodGroupSpec {
    let total = members.iter().fold(0_i32, |total, it| total.saturating_add(it.count));
    let min_member = policy.and_then(|policy| policy.min_available).unwrap_or(total);
    let given = policy.and_then(|policy| policy.min_resources.clone());
    PodGroupSpec {
        min_member,
        min_resources: given.unwrap_or_else(|| first_resources(members, min_member)),
        schedule_timeout_seconds: policy.and_then(|policy| policy.schedule_timeout_seconds),
    }
}

/// Resources of the `count` pods with the highest priority.
fn first_resources(members: &[Members<'_>], count: i32) -> BTreeMap<String, Quantity> {
    let mut members = members.to_vec();
    members.sort_by_key(|it| std::cmp::Reverse(it.priority));
    let mut left = count.max(0);
    let mut sums: BTreeMap<String, Amount> = BTreeMap::new();
    for of_type in members {
        let taken = left.min(of_type.count.max(0));
        left -= taken;
        let containers = of_type.template.spec.iter().flat_map(|spec| &spec.containers);
        for (name, quantity) in containers.flat_map(requests) {
            // A quantity that cannot be read makes the pod invalid, which the API reports.
            let Ok(mut amount) = Amount::parse(&quantity.0) else { continue };
            amount.mul(i64::from(taken));
            match sums.get_mut(name) {
                Some(sum) => sum.add(amount),
                None if taken > 0 => {
                    sums.insert(name.clone(), amount);
                }
                None => {}
            }
        }
    }
    sums.into_iter().map(|(name, sum)| (name, Quantity(sum.to_string()))).collect()
}

/// Requests of a container, or its limits if it has no requests.
fn requests(container: &Container) -> impl Iterator<Item = (&String, &Quantity)> {
    let resources = container.resources.as_ref();
    let amounts = resources.and_then(|resources| resources.requests.as_ref().or(resources.limits.as_ref()));
    amounts.into_iter().flatten()
}

/// Makes a pod a member of the PodGroup of this name. A scheduler that the template names is kept.
pub fn join(group: &str, scheduler: &str, labels: &mut BTreeMap<String, String>, pod: &mut PodSpec) {
    if pod.scheduler_name.as_deref().is_none_or(str::is_empty) {
        pod.scheduler_name = Some(scheduler.to_owned());
    }
    labels.insert(POD_GROUP_LABEL.to_owned(), group.to_owned());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(resources: serde_json::Value) -> PodTemplateSpec {
        let containers = json!([{"name": "train", "resources": resources}]);
        serde_json::from_value(json!({"spec": {"containers": containers}})).expect("a template")
    }

    #[test]
    fn a_group_has_all_pods_and_their_requests() {
        let master = template(json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}));
        let worker = template(json!({"limits": {"cpu": "2", "nvidia.com/gpu": "1"}}));
        let members = [
            Members { count: 1, template: &master, priority: 0 },
            Members { count: 3, template: &worker, priority: 0 },
        ];
        let group = group(&members, None);
        assert_eq!(
            serde_json::to_value(group).expect("JSON"),
            json!({"minMember": 4, "minResources": {"cpu": "6500m", "nvidia.com/gpu": "3"}})
        );
    }

    #[test]
    fn a_smaller_group_counts_the_pods_with_the_highest_priority() {
        let master = template(json!({"requests": {"cpu": "1"}}));
        let worker = template(json!({"requests": {"cpu": "4"}}));
        let members = [
            Members { count: 1, template: &master, priority: 1 },
            Members { count: 3, template: &worker, priority: 9 },
        ];
        let policy = SchedulingPolicy {
            min_available: Some(2),
            schedule_timeout_seconds: Some(30),
            ..SchedulingPolicy::default()
        };
        let spec = group(&members, Some(&policy));
        assert_eq!((spec.min_member, spec.schedule_timeout_seconds), (2, Some(30)));
        assert_eq!(spec.min_resources["cpu"].0, "8");
        let given = BTreeMap::from([("cpu".to_owned(), Quantity("3".to_owned()))]);
        let policy = SchedulingPolicy { min_resources: Some(given.clone()), ..policy };
        assert_eq!(group(&members, Some(&policy)).min_resources, given);
    }
}
