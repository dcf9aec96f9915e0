//! Quotas on the command line: `FLAVOR:RESOURCE=AMOUNT;RESOURCE=AMOUNT`.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use berth_api::kueue::v1beta2::ResourceGroup;
use berth_apimachinery::quantity::Quantity;
use serde_json::{Value, json};

/// Amounts of one flavor by resource, in the order of the option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amounts {
    flavor: String,
    amounts: Vec<(String, String)>,
}

impl std::str::FromStr for Amounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?}: expected FLAVOR:RESOURCE=AMOUNT, such as \"default:cpu=9;memory=36Gi\"");
        let (flavor, amounts) = text.split_once(':').ok_or_else(expected)?;
        let parse = |part: &str| {
            let (resource, amount) = part.split_once('=').ok_or_else(expected)?;
            Quantity::parse(amount.trim())
                .map_err(|_| format!("{part:?}: expected a quantity such as 9, 500m or 36Gi"))?;
            Ok::<_, String>((resource.trim().to_owned(), amount.trim().to_owned()))
        };
        let amounts = amounts.trim_end_matches(';').split(';').map(parse).collect::<Result<Vec<_>, _>>()?;
        let is_named = |name: &str| !name.trim().is_empty();
        if !is_named(flavor) || !amounts.iter().all(|(resource, _)| is_named(resource)) {
            return Err(expected());
        }
        Ok(Self { flavor: flavor.trim().to_owned(), amounts })
    }
}

/// The options of one kind of amount, and the field that it sets.
struct Given<'a> {
    field: &'static str,
    amounts: &'a [Amounts],
}

/// The resource groups of the three options. Flavors with the same resources are in one group.
pub fn groups(nominal: &[Amounts], borrowing: &[Amounts], lending: &[Amounts]) -> anyhow::Result<Vec<ResourceGroup>> {
    let given = [
        Given { field: "nominalQuota", amounts: nominal },
        Given { field: "borrowingLimit", amounts: borrowing },
        Given { field: "lendingLimit", amounts: lending },
    ];
    // Flavors and their resources in the order of the options.
    let mut flavors: Vec<(String, Vec<String>)> = Vec::new();
    let mut fields: BTreeMap<(String, String), BTreeMap<&str, String>> = BTreeMap::new();
    for Given { field, amounts } in &given {
        for Amounts { flavor, amounts } in *amounts {
            let resources: Vec<String> = amounts.iter().map(|(resource, _)| resource.clone()).collect();
            match flavors.iter().find(|(name, _)| name == flavor) {
                None => flavors.push((flavor.clone(), resources)),
                Some((_, known)) if is_same(known, &resources) => {}
                Some((_, known)) => bail!(
                    "flavor {flavor}: every option must have the same resources: {} and {}",
                    known.join(", "),
                    resources.join(", ")
                ),
            }
            for (resource, amount) in amounts {
                let of = fields.entry((flavor.clone(), resource.clone())).or_default();
                if of.insert(field, amount.clone()).is_some() {
                    bail!("flavor {flavor}: the {field} of {resource} is given twice");
                }
            }
        }
    }
    let mut groups: Vec<(Vec<String>, Vec<Value>)> = Vec::new();
    for (flavor, resources) in flavors {
        let quotas = resources.iter().map(|resource| {
            let mut quota = json!({"name": resource, "nominalQuota": "0"});
            for (field, amount) in fields.remove(&(flavor.clone(), resource.clone())).unwrap_or_default() {
                quota[field] = json!(amount);
            }
            quota
        });
        let quota = json!({"name": flavor, "resources": quotas.collect::<Vec<_>>()});
        match groups.iter_mut().find(|(covered, _)| is_same(covered, &resources)) {
            Some((_, flavors)) => flavors.push(quota),
            None => match groups.iter().find_map(|(covered, _)| resources.iter().find(|it| covered.contains(it))) {
                Some(shared) => bail!(
                    "flavor {flavor}: {shared} is a resource of other flavors with different resources; flavors that \
                     share a resource must have the same resources"
                ),
                None => groups.push((resources, vec![quota])),
            },
        }
    }
    let groups = groups.into_iter().map(|(covered, flavors)| json!({"coveredResources": covered, "flavors": flavors}));
    serde_json::from_value(Value::Array(groups.collect())).map_err(|error| anyhow!("the quotas: {error}"))
}

fn is_same(a: &[String], b: &[String]) -> bool {
    a.len() == b.len() && a.iter().all(|it| b.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(texts: &[&str]) -> Vec<Amounts> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    #[test]
    fn flavors_with_the_same_resources_are_in_one_group() {
        let nominal = amounts(&["alpha:cpu=9;memory=36Gi", "beta:memory=72Gi;cpu=18;", "gpus:nvidia.com/gpu=10"]);
        let (borrowing, lending) = (amounts(&["alpha:cpu=1;memory=1Gi"]), amounts(&["beta:cpu=2;memory=2Gi"]));
        let expected = json!([
            {"coveredResources": ["cpu", "memory"], "flavors": [
                {"name": "alpha", "resources": [
                    {"name": "cpu", "nominalQuota": "9", "borrowingLimit": "1"},
                    {"name": "memory", "nominalQuota": "36Gi", "borrowingLimit": "1Gi"}]},
                {"name": "beta", "resources": [
                    {"name": "memory", "nominalQuota": "72Gi", "lendingLimit": "2Gi"},
                    {"name": "cpu", "nominalQuota": "18", "lendingLimit": "2"}]}]},
            {"coveredResources": ["nvidia.com/gpu"], "flavors": [
                {"name": "gpus", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "10"}]}]},
        ]);
        assert_eq!(json!(groups(&nominal, &borrowing, &lending).expect("groups")), expected);
    }

    #[test]
    fn errors_name_the_flavor_and_the_resource() {
        let error = |nominal: &[&str], borrowing: &[&str]| {
            groups(&amounts(nominal), &amounts(borrowing), &[]).expect_err("an error").to_string()
        };
        assert!(error(&["a:cpu=1"], &["a:memory=1"]).starts_with("flavor a: every option must have the same"));
        assert!(error(&["a:cpu=1", "a:cpu=2"], &[]).contains("the nominalQuota of cpu is given twice"));
        assert!(error(&["a:cpu=1", "b:cpu=1;memory=1"], &[]).starts_with("flavor b: cpu is a resource of other"));
        for wrong in ["cpu=1", "a:cpu", ":cpu=1", "a:", "a:=1", "a:cpu=1;;memory=2"] {
            assert!(wrong.parse::<Amounts>().expect_err(wrong).contains("expected"), "{wrong}");
        }
        assert!("a:cpu=much".parse::<Amounts>().expect_err("no amount").contains("expected a quantity"));
    }
}
