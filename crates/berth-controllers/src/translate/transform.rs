//! Converts requests of pods into the requests that count against quota: excluded prefixes and
//! transformations (semantics §2.3, §2.4).

use std::collections::BTreeMap;

use berth_apimachinery::quantity::{Format, Quantity};

use super::amounts::Quantities;
use crate::configuration::{ResourceTransformation, Resources, TransformationStrategy};

const NANOS: i128 = 1_000_000_000;

/// The effective request of one pod.
pub fn effective(requests: &Quantities, config: &Resources) -> Quantities {
    let mut requests = requests.clone();
    requests.retain(|name, _| !config.exclude_resource_prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())));
    transform(&requests, &config.transformations)
}

fn transform(requests: &Quantities, transformations: &[ResourceTransformation]) -> Quantities {
    let by_input: BTreeMap<&str, &ResourceTransformation> =
        transformations.iter().map(|rule| (rule.input.as_str(), rule)).collect();
    let mut kept = Quantities::new();
    let mut generated: BTreeMap<&str, i128> = BTreeMap::new();
    for (name, quantity) in requests {
        let Some(rule) = by_input.get(name.as_str()) else {
            kept.insert(name.clone(), *quantity);
            continue;
        };
        let mut base = nanos(quantity);
        if let Some(multiplier) = rule.multiply_by.as_ref().and_then(|name| requests.get(name)) {
            base = times(base, nanos(multiplier));
        }
        for (output, factor) in &rule.outputs {
            let factor = Quantity::parse(factor).map_or(0, |factor| nanos(&factor));
            let sum = generated.entry(output.as_str()).or_default();
            *sum = sum.saturating_add(times(base, factor));
        }
        if rule.strategy == TransformationStrategy::Retain {
            kept.insert(name.clone(), *quantity);
        }
    }
    for (name, amount) in generated {
        let Some(amount) = Quantity::from_scaled(amount.max(0), -9, Format::DecimalSi) else { continue };
        match kept.get_mut(name) {
            Some(known) => known.add(amount),
            None => {
                kept.insert(name.to_owned(), amount);
            }
        }
    }
    kept
}

/// A product of two amounts given in billionths.
fn times(a: i128, b: i128) -> i128 {
    match a.checked_mul(b) {
        Some(product) => product / NANOS,
        // Beyond 128 bits the lowest digits do not matter.
        None => (a / NANOS).saturating_mul(b),
    }
}

fn nanos(quantity: &Quantity) -> i128 {
    let text = quantity.decimal();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.as_str()),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i128 = whole.parse().unwrap_or(0);
    let fraction: i128 = format!("{fraction:0<9}").get(..9).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    let value = whole.saturating_mul(NANOS).saturating_add(fraction);
    if negative { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> Quantities {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), Quantity::parse(text).unwrap())).collect()
    }

    fn rule(
        input: &str,
        strategy: TransformationStrategy,
        by: Option<&str>,
        outputs: &[(&str, &str)],
    ) -> ResourceTransformation {
        ResourceTransformation {
            input: input.to_owned(),
            strategy,
            multiply_by: by.map(str::to_owned),
            outputs: outputs.iter().map(|(name, factor)| ((*name).to_owned(), (*factor).to_owned())).collect(),
        }
    }

    #[test]
    fn outputs_of_all_inputs_are_summed_and_added_to_direct_requests() {
        let config = Resources {
            transformations: vec![
                rule("mig-1g", TransformationStrategy::Replace, None, &[("memory-units", "5"), ("credits", "0.5")]),
                rule("mig-2g", TransformationStrategy::Retain, None, &[("memory-units", "10")]),
            ],
            ..Resources::default()
        };
        let got = effective(&list(&[("mig-1g", "2"), ("mig-2g", "1"), ("credits", "3")]), &config);
        assert_eq!(got, list(&[("memory-units", "20"), ("credits", "4"), ("mig-2g", "1")]));
    }

    #[test]
    fn a_multiplier_applies_if_the_pod_requests_it() {
        let config = Resources {
            transformations: vec![rule(
                "vgpu-cores",
                TransformationStrategy::Replace,
                Some("gpu"),
                &[("total-cores", "1")],
            )],
            ..Resources::default()
        };
        let got = effective(&list(&[("vgpu-cores", "30"), ("gpu", "4")]), &config);
        assert_eq!(got, list(&[("total-cores", "120"), ("gpu", "4")]));
    }

    #[test]
    fn resources_with_excluded_prefixes_are_ignored() {
        let config =
            Resources { exclude_resource_prefixes: vec!["networking.example.com/".to_owned()], ..Resources::default() };
        assert_eq!(
            effective(&list(&[("networking.example.com/vpc", "1"), ("cpu", "1")]), &config),
            list(&[("cpu", "1")])
        );
    }
}
