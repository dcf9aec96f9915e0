//! Validation of LeaderWorkerSets, in upstream's words.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::int_or_string::{self, Amount};
use berth_apimachinery::names::{is_dns1035_label, is_percent};
use serde_json::{Value, json};

use crate::leader_worker_set::constants::SUBGROUP_EXCLUSIVE_TOPOLOGY;

/// Maximum number of groups.
const REPLICAS_MAX: i64 = 1_000_000;

/// Validates a new or changed LeaderWorkerSet with its defaults.
pub fn validate(new: &Value, old: Option<&Value>) -> Vec<Error> {
    // The name of the set is also that of its Service.
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    let mut errors: Vec<Error> =
        is_dns1035_label(name).into_iter().map(|it| Error::invalid(&Path::new("metadata.name"), name, it)).collect();
    let spec = Path::new("spec");
    errors.extend(sizes(&new["spec"], &spec));
    errors.extend(rollout(&new["spec"], &spec));
    let template = spec.child("leaderWorkerTemplate");
    let policy = template.child("SubGroupPolicy");
    let at = policy.child("subGroupSize");
    if of_template(new)["subGroupPolicy"].is_object() {
        errors.extend(subgroups(of_template(new), &at));
    } else if let Some(key) = new["metadata"]["annotations"][SUBGROUP_EXCLUSIVE_TOPOLOGY].as_str() {
        let metadata = Path::new("metadata");
        let annotations = metadata.child("annotations");
        let annotation = annotations.child(SUBGROUP_EXCLUSIVE_TOPOLOGY);
        let detail = "cannot have subgroup-exclusive-topology without subGroupSize set";
        errors.push(Error::invalid(&annotation, key, detail));
    }
    if let Some(old) = old {
        errors.extend(subgroup_change(of_template(new), of_template(old), &at));
    }
    errors
}

fn of_template(set: &Value) -> &Value {
    &set["spec"]["leaderWorkerTemplate"]
}

fn number(value: &Value, default: i64) -> i64 {
    value.as_i64().unwrap_or(default)
}

fn sizes(spec: &Value, path: &Path<'_>) -> Vec<Error> {
    let (replicas, size) = (number(&spec["replicas"], 1), number(&spec["leaderWorkerTemplate"]["size"], 1));
    let mut errors = Vec::new();
    let at = path.child("replicas");
    if replicas < 0 {
        errors.push(Error::invalid(&at, replicas, "replicas must be equal or greater than 0"));
    }
    if replicas > REPLICAS_MAX {
        errors.push(Error::invalid(&at, replicas, "replicas must be equal or less than 1000000"));
    }
    if size < 1 {
        let template = path.child("leaderWorkerTemplate");
        errors.push(Error::invalid(&template.child("size"), size, "size must be equal or greater than 1"));
    }
    if replicas.saturating_mul(size) > i64::from(i32::MAX) {
        let detail = format!("the product of replicas and worker replicas must not exceed {}", i32::MAX);
        errors.push(Error::invalid(&at, replicas, detail));
    }
    errors
}

fn rollout(spec: &Value, path: &Path<'_>) -> Vec<Error> {
    let rolling = &spec["rolloutStrategy"]["rollingUpdateConfiguration"];
    let strategy = path.child("rolloutStrategy");
    let path = strategy.child("rollingUpdateConfiguration");
    let replicas = number(&spec["replicas"], 1);
    let mut errors = Vec::new();
    let mut resolved = |field: &str, default: i64, round_up: bool| {
        let value = if rolling[field].is_null() { json!(default) } else { rolling[field].clone() };
        let at = path.child(field);
        errors.extend(amount(&value, &at));
        let scaled = int_or_string::scaled(&value, replicas, round_up);
        if scaled.is_err() {
            errors.push(Error::invalid(&at, value.clone(), "invalid value"));
        }
        (value, scaled.unwrap_or(0))
    };
    let (unavailable, unavailable_groups) = resolved("maxUnavailable", 1, false);
    let (_, surge_groups) = resolved("maxSurge", 0, true);
    let partition = number(&rolling["partition"], 0);
    if partition < 0 {
        errors.push(Error::invalid(&path.child("partition"), partition, "must be greater than or equal to 0"));
    }
    if unavailable_groups == 0 && surge_groups == 0 && replicas != 0 {
        let detail = "must not be 0 when `maxSurge` is 0";
        errors.push(Error::invalid(&path.child("maxUnavailable"), unavailable, detail));
    }
    errors
}

/// Validates a number of at least 0, or a percentage of at most 100%.
fn amount(value: &Value, path: &Path<'_>) -> Vec<Error> {
    let malformed = value.as_str().map(is_percent).unwrap_or_default();
    let mut errors: Vec<_> =
        malformed.into_iter().map(|message| Error::invalid(path, value.clone(), message)).collect();
    match int_or_string::amount(value) {
        Ok(Amount::Number(number)) if number < 0 => {
            errors.push(Error::invalid(path, number, "must be greater than or equal to 0"));
        }
        Ok(Amount::Percent(percent)) if percent > 100 => {
            errors.push(Error::invalid(path, value.clone(), "must not be greater than 100%"));
        }
        _ => {}
    }
    errors
}

fn subgroups(template: &Value, at: &Path<'_>) -> Vec<Error> {
    let policy = &template["subGroupPolicy"];
    let size = number(&template["size"], 1);
    let subgroup = number(&policy["subGroupSize"], 0);
    let error = |detail: &str| Error::invalid(at, subgroup, detail);
    if subgroup < 1 {
        return vec![error("subGroupSize must be equal or greater than 1")];
    }
    let mut errors = Vec::new();
    if size % subgroup != 0 && (size - 1) % subgroup != 0 {
        errors.push(error("size or size - 1 must be divisible by subGroupSize"));
    }
    if size < subgroup {
        errors.push(error("subGroupSize cannot be larger than size"));
    }
    if policy["subGroupPolicyType"] == "LeaderExcluded" && (size - 1) % subgroup != 0 {
        errors.push(error("size-1 must be divisible by subGroupSize when using LeaderExcluded"));
    }
    errors
}

/// The size of subgroups is immutable, and so is their existence.
fn subgroup_change(new: &Value, old: &Value, at: &Path<'_>) -> Option<Error> {
    let (after, before) = (&new["subGroupPolicy"], &old["subGroupPolicy"]);
    match (after.is_object(), before.is_object()) {
        (true, true) if after["subGroupSize"] != before["subGroupSize"] => {
            Some(Error::invalid(at, after["subGroupSize"].clone(), "field is immutable"))
        }
        (true, false) => {
            let detail = "cannot enable subGroupSize after the lws is already created";
            Some(Error::invalid(at, after["subGroupSize"].clone(), detail))
        }
        (false, true) => {
            Some(Error::invalid(at, before["subGroupSize"].clone(), "cannot remove subGroupSize after enabled"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader_worker_set::webhook::default_set;

    fn set(change: impl FnOnce(&mut Value)) -> Value {
        let mut set = json!({"metadata": {"name": "web", "namespace": "ns"},
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": {}}}});
        change(&mut set);
        default_set(&mut set);
        set
    }

    fn check(change: impl FnOnce(&mut Value)) -> Vec<String> {
        validate(&set(change), None).iter().map(ToString::to_string).collect()
    }

    fn rolling(configuration: Value) -> Vec<String> {
        check(|set| set["spec"]["rolloutStrategy"] = json!({"rollingUpdateConfiguration": configuration}))
    }

    #[test]
    fn sizes_have_bounds() {
        assert_eq!(check(|_| {}), Vec::<String>::new());
        assert_eq!(
            check(|set| set["spec"]["replicas"] = json!(-1)),
            ["spec.replicas: Invalid value: -1: replicas must be equal or greater than 0"]
        );
        assert_eq!(
            check(|set| set["spec"]["leaderWorkerTemplate"]["size"] = json!(0)),
            ["spec.leaderWorkerTemplate.size: Invalid value: 0: size must be equal or greater than 1"]
        );
        let product = check(|set| set["spec"]["leaderWorkerTemplate"]["size"] = json!(i32::MAX));
        assert!(product[0].contains("the product of replicas and worker replicas must not exceed 2147483647"));
        assert!(check(|set| set["metadata"]["name"] = json!("1web"))[0].contains("a DNS-1035 label"));
    }

    #[test]
    fn an_update_must_be_able_to_proceed() {
        let path = "spec.rolloutStrategy.rollingUpdateConfiguration";
        assert_eq!(
            rolling(json!({"maxUnavailable": 0, "maxSurge": 0})),
            [format!("{path}.maxUnavailable: Invalid value: 0: must not be 0 when `maxSurge` is 0")]
        );
        assert_eq!(rolling(json!({"maxUnavailable": 0, "maxSurge": "10%"})), Vec::<String>::new());
        assert_eq!(
            rolling(json!({"maxUnavailable": "101%"})),
            [format!("{path}.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%")]
        );
        assert_eq!(
            rolling(json!({"maxSurge": -1})),
            [format!("{path}.maxSurge: Invalid value: -1: must be greater than or equal to 0")]
        );
        assert!(!rolling(json!({"maxSurge": "x"})).is_empty());
        assert_eq!(
            rolling(json!({"partition": -1})),
            [format!("{path}.partition: Invalid value: -1: must be greater than or equal to 0")]
        );
    }

    #[test]
    fn subgroups_divide_the_group() {
        let sized = |size: i64, subgroup: i64, kind: &str| {
            check(|set| {
                set["spec"]["leaderWorkerTemplate"]["size"] = json!(size);
                set["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] =
                    json!({"subGroupSize": subgroup, "subGroupPolicyType": kind});
            })
        };
        assert_eq!(sized(4, 2, "LeaderWorker"), Vec::<String>::new());
        assert_eq!(sized(5, 2, "LeaderExcluded"), Vec::<String>::new());
        assert_eq!(
            sized(6, 4, "LeaderWorker"),
            ["spec.leaderWorkerTemplate.SubGroupPolicy.subGroupSize: Invalid value: 4: size or size - 1 must be \
              divisible by subGroupSize"]
        );
        assert!(sized(2, 4, "LeaderWorker")[1].ends_with("subGroupSize cannot be larger than size"));
        assert!(sized(4, 2, "LeaderExcluded")[0].ends_with("when using LeaderExcluded"));
        assert!(sized(4, 0, "LeaderWorker")[0].ends_with("subGroupSize must be equal or greater than 1"));
        let alone = check(|set| set["metadata"]["annotations"] = json!({SUBGROUP_EXCLUSIVE_TOPOLOGY: "rack"}));
        assert!(alone[0].ends_with("cannot have subgroup-exclusive-topology without subGroupSize set"));
    }

    #[test]
    fn the_size_of_subgroups_is_immutable() {
        let with = |size: i64| {
            set(|set| set["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] = json!({"subGroupSize": size}))
        };
        let without = set(|_| {});
        let change = |new: &Value, old: &Value| {
            let errors = validate(new, Some(old));
            errors.first().map(|error| error.detail.clone())
        };
        assert_eq!(change(&with(2), &with(2)), None);
        assert_eq!(change(&with(4), &with(2)).as_deref(), Some("field is immutable"));
        assert!(change(&with(2), &without).is_some_and(|detail| detail.starts_with("cannot enable")));
        assert!(change(&without, &with(2)).is_some_and(|detail| detail.starts_with("cannot remove")));
    }
}
