//! Failure and success policies of Jobs: validation.
//!
//! Source of the rules: Kubernetes' API reference of `batch/v1` JobSpec, and the responses of
//! kube-apiserver 1.36.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use serde_json::Value;

use super::rules::{items, text};

const RULES_MAX: usize = 20;
const PATTERNS_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const INDEXES_LENGTH_MAX: usize = 64 * 1024;
/// Maximum of `maxFailedIndexes`.
const FAILED_INDEXES_MAX: i64 = 100_000;
/// Maximum of `maxFailedIndexes` and of the parallelism for a Job with more completions than
/// [`MANY_COMPLETIONS`].
const FAILED_INDEXES_OF_MANY_MAX: i64 = 10_000;
const PARALLELISM_OF_MANY_MAX: i64 = 10_000;
const MANY_COMPLETIONS: i64 = 100_000;

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];

/// Validates `backoffLimitPerIndex` and `maxFailedIndexes`.
pub(super) fn failed_indexes(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let per_index = spec["backoffLimitPerIndex"].as_i64();
    let at = path.child("maxFailedIndexes");
    let failed = spec["maxFailedIndexes"].as_i64();
    if failed.is_some() && per_index.is_none() {
        errors.push(Error::required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    match (text(spec, "completionMode"), failed) {
        ("Indexed", _) => {}
        ("" | "NonIndexed", Some(failed)) => {
            errors.push(Error::invalid(&at, failed, "requires indexed completion mode"));
            return;
        }
        _ => return,
    }
    let completions = spec["completions"].as_i64();
    if let Some(failed) = failed {
        if completions.is_some_and(|completions| failed > completions) {
            errors.push(Error::invalid(&at, failed, "must be less than or equal to completions"));
        }
        if failed > FAILED_INDEXES_MAX {
            errors.push(Error::invalid(&at, failed, format!("must be less than or equal to {FAILED_INDEXES_MAX}")));
        }
    }
    if per_index.is_none() || completions.is_none_or(|completions| completions <= MANY_COMPLETIONS) {
        return;
    }
    let with_many = |max: i64| {
        format!(
            "must be less than or equal to {max} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
        )
    };
    if failed.is_none() {
        let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.push(Error::required(&at, detail));
    }
    if let Some(parallelism) = spec["parallelism"].as_i64().filter(|number| *number > PARALLELISM_OF_MANY_MAX) {
        errors.push(Error::invalid(&path.child("parallelism"), parallelism, with_many(PARALLELISM_OF_MANY_MAX)));
    }
    if let Some(failed) = failed.filter(|number| *number > FAILED_INDEXES_OF_MANY_MAX) {
        errors.push(Error::invalid(&at, failed, with_many(FAILED_INDEXES_OF_MANY_MAX)));
    }
}

/// Validates a required string with a fixed set of values.
fn one_of(value: &str, known: &[&str], path: &Path<'_>, errors: &mut Vec<Error>) {
    if value.is_empty() {
        let quoted: Vec<String> = known.iter().map(|it| format!("{it:?}")).collect();
        errors.push(Error::required(path, format!("valid values: [{}]", quoted.join(" "))));
    } else if !known.contains(&value) {
        errors.push(Error::not_supported(path, value, known));
    }
}

/// Validates `podFailurePolicy`.
pub(super) fn pod_failure_policy(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let pod = &spec["template"]["spec"];
    let containers: Vec<&str> =
        items(&pod["containers"]).iter().chain(items(&pod["initContainers"])).map(|it| text(it, "name")).collect();
    let list = path.child("rules");
    let rules = items(&spec["podFailurePolicy"]["rules"]);
    if rules.len() > RULES_MAX {
        errors.push(Error::too_many(&list, rules.len() as i64, RULES_MAX as i64));
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = list.index(i);
        let action = text(rule, "action");
        if action == "FailIndex" && spec["backoffLimitPerIndex"].is_null() {
            let detail = "requires the backoffLimitPerIndex to be set";
            errors.push(Error::invalid(&at.child("action"), action, detail));
        }
        one_of(action, &ACTIONS, &at.child("action"), errors);
        let (codes, patterns) = (&rule["onExitCodes"], items(&rule["onPodConditions"]));
        if !codes.is_null() {
            exit_codes(codes, &containers, &at.child("onExitCodes"), errors);
        }
        conditions(patterns, &at.child("onPodConditions"), errors);
        match (codes.is_null(), patterns.is_empty()) {
            (false, false) => {
                let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
                errors.push(Error::invalid_without_value(&at, detail));
            }
            (true, true) => {
                let detail = "specifying one of OnExitCodes and OnPodConditions is required";
                errors.push(Error::invalid_without_value(&at, detail));
            }
            _ => {}
        }
    }
}

fn conditions(patterns: &[Value], path: &Path<'_>, errors: &mut Vec<Error>) {
    if patterns.len() > PATTERNS_MAX {
        errors.push(Error::too_many(path, patterns.len() as i64, PATTERNS_MAX as i64));
    }
    for (i, pattern) in patterns.iter().enumerate() {
        let at = path.index(i);
        let kind = text(pattern, "type");
        errors
            .extend(names::is_qualified_name(kind).into_iter().map(|why| Error::invalid(&at.child("type"), kind, why)));
        one_of(text(pattern, "status"), &STATUSES, &at.child("status"), errors);
    }
}

fn exit_codes(codes: &Value, containers: &[&str], path: &Path<'_>, errors: &mut Vec<Error>) {
    let operator = text(codes, "operator");
    one_of(operator, &OPERATORS, &path.child("operator"), errors);
    if let Some(name) = codes["containerName"].as_str().filter(|name| !containers.contains(name)) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(Error::invalid(&path.child("containerName"), name, detail));
    }
    let at = path.child("values");
    let values: Vec<i64> = items(&codes["values"]).iter().filter_map(Value::as_i64).collect();
    match values.len() {
        0 => errors.push(Error::invalid(&at, codes["values"].clone(), "at least one value is required")),
        count if count > EXIT_CODES_MAX => errors.push(Error::too_many(&at, count as i64, EXIT_CODES_MAX as i64)),
        _ => {}
    }
    let mut seen = std::collections::BTreeSet::new();
    for (i, value) in values.iter().enumerate() {
        if *value == 0 && operator == "In" {
            errors.push(Error::invalid(&at.index(i), 0, "must not be 0 for the In operator"));
        }
        if !seen.insert(*value) {
            errors.push(Error::duplicate(&at.index(i), *value));
        }
    }
    if !values.is_sorted() {
        errors.push(Error::invalid(&at, codes["values"].clone(), "must be ordered"));
    }
}

/// Validates `successPolicy`.
pub(super) fn success_policy(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if text(spec, "completionMode") != "Indexed" {
        let detail = "requires indexed completion mode";
        errors.push(Error::invalid(path, spec["successPolicy"].clone(), detail));
        return;
    }
    // `validate_spec` reports missing completions.
    let Some(completions) = spec["completions"].as_i64() else { return };
    let list = path.child("rules");
    let rules = items(&spec["successPolicy"]["rules"]);
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(Error::required(&list, detail));
    }
    if rules.len() > RULES_MAX {
        errors.push(Error::too_many(&list, rules.len() as i64, RULES_MAX as i64));
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = list.index(i);
        let (count, indexes) = (rule["succeededCount"].as_i64(), rule["succeededIndexes"].as_str());
        if count.is_none() && indexes.is_none() {
            errors.push(Error::required(&at, "at least one of succeededCount or succeededIndexes must be specified"));
        }
        let mut named = 0;
        if let Some(indexes) = indexes {
            let at = at.child("succeededIndexes");
            if indexes.len() > INDEXES_LENGTH_MAX {
                errors.push(Error::too_long(&at, INDEXES_LENGTH_MAX as i64));
            }
            match count_indexes(indexes, completions) {
                Ok(count) => named = count,
                Err(why) => {
                    errors.push(Error::invalid(&at, indexes, format!("error parsing succeededIndexes: {why}")));
                }
            }
        }
        let Some(count) = count else { continue };
        let at = at.child("succeededCount");
        super::non_negative(&rule["succeededCount"], &at, errors);
        if count > completions {
            let detail = format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.push(Error::invalid(&at, count, detail));
        }
        if indexes.is_some() && count > named {
            let detail = format!(
                "must be less than or equal to {named} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.push(Error::invalid(&at, count, detail));
        }
    }
}

/// Number of indexes in a list such as `0,2-5`. They must be in ascending order and below
/// `completions`.
fn count_indexes(indexes: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0, None);
    for part in indexes.split(',').filter(|_| !indexes.is_empty()) {
        let number = |text: &str| match text.parse::<i64>() {
            Err(_) => Err(format!("cannot convert string to integer for index: {text:?}")),
            Ok(number) if number >= completions => Err(format!("too large index: {text:?}")),
            Ok(number) => Ok(number),
        };
        let order =
            |previous: i64, current: i64| format!("non-increasing order, previous: {previous}, current: {current}");
        let mut bounds = part.split('-');
        let first = number(bounds.next().unwrap_or_default());
        let (first, end) = match (bounds.next(), bounds.next()) {
            (None, _) => (first.clone()?, first?),
            (Some(end), None) => {
                let (first, end) = (first?, number(end)?);
                if first >= end {
                    return Err(order(first, end));
                }
                (first, end)
            }
            (Some(_), Some(_)) => {
                return Err(format!(
                    "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
                ));
            }
        };
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(order(last, first));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_ascending_indexes_below_completions_are_counted() {
        assert_eq!(count_indexes("0,2-4", 5), Ok(4));
        assert_eq!(count_indexes("", 5), Ok(0));
        assert_eq!(count_indexes("5", 5), Err("too large index: \"5\"".to_owned()));
        assert_eq!(count_indexes("2-2", 5), Err("non-increasing order, previous: 2, current: 2".to_owned()));
        assert_eq!(count_indexes("1,0", 5), Err("non-increasing order, previous: 1, current: 0".to_owned()));
        assert!(count_indexes("1-2-3", 5).is_err_and(|why| why.contains("at most two parts")));
        assert!(count_indexes("a", 5).is_err_and(|why| why.contains("cannot convert")));
    }

    #[test]
    fn each_rule_of_a_pod_failure_policy_needs_one_requirement() {
        let mut errors = Vec::new();
        let spec = json!({"template": {"spec": {"containers": [{"name": "c"}]}}, "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [1, 2]}},
            {"action": "FailIndex", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "Later", "onExitCodes": {"containerName": "d", "operator": "In", "values": [3, 3, 0]}}, {}]}});
        pod_failure_policy(&spec, &Path::new("p"), &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "p.rules[1].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
                "p.rules[2].action: Unsupported value: \"Later\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
                "p.rules[2].onExitCodes.containerName: Invalid value: \"d\": must be one of the container or initContainer names in the pod template",
                "p.rules[2].onExitCodes.values[1]: Duplicate value: 3",
                "p.rules[2].onExitCodes.values[2]: Invalid value: 0: must not be 0 for the In operator",
                "p.rules[2].onExitCodes.values: Invalid value: [3,3,0]: must be ordered",
                "p.rules[3].action: Required value: valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
                "p.rules[3]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            ]
        );
    }
}
