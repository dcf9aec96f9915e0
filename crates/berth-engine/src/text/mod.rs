//! Text for users: amounts and findings in the wording of Kueue's messages, and whole explanations.

mod explanation;
mod message;

use std::fmt;

use crate::decision::{Exclusion, Finding, TopologyProblem, TopologyShortage};

#[cfg(feature = "lab")]
pub(crate) use message::{path, preemption_text as preemption};

pub use explanation::{considered, exclusion, explanation, fate, not_queued, outcome, protection, rule};

/// An amount of a resource as a canonical Kubernetes quantity. The amount of `cpu` is in
/// thousandths. Memory and similar resources get binary units if they divide evenly, all others
/// decimal units.
pub fn quantity(resource: &str, amount: i64) -> String {
    let (amount, suffix) = canonical(resource, amount);
    format!("{amount}{suffix}")
}

fn canonical(resource: &str, amount: i64) -> (i64, &'static str) {
    if resource == "cpu" {
        return decimal(amount, -1);
    }
    if matches!(resource, "memory" | "ephemeral-storage") || resource.starts_with("hugepages-") {
        return binary(amount);
    }
    decimal(amount, 0)
}

/// Canonical decimal form of `amount * 1000^exponent`.
fn decimal(amount: i64, exponent: i32) -> (i64, &'static str) {
    const SUFFIXES: [&str; 8] = ["m", "", "k", "M", "G", "T", "P", "E"];
    if amount == 0 {
        return (0, "");
    }
    let (mut amount, mut exponent) = (amount, exponent);
    while amount % 1000 == 0 && exponent < 6 {
        amount /= 1000;
        exponent += 1;
    }
    let suffix = usize::try_from(exponent + 1).ok().and_then(|at| SUFFIXES.get(at)).copied().unwrap_or("");
    (amount, suffix)
}

fn binary(amount: i64) -> (i64, &'static str) {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if amount.unsigned_abs() < 1024 {
        // Below the first binary unit the canonical form is the decimal one.
        return decimal(amount, 0);
    }
    let (mut amount, mut at) = (amount, 0);
    while amount % 1024 == 0 && at + 1 < SUFFIXES.len() {
        amount /= 1024;
        at += 1;
    }
    (amount, SUFFIXES[at])
}

/// Appends the digits of a number without the formatting machinery, for messages that are written a
/// thousand times per cycle.
fn push_number(text: &mut String, number: i64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        text.push('-');
    }
    text.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}

impl Finding {
    /// Appends its `Display` form to a string.
    pub(crate) fn write_to(&self, text: &mut String) {
        use std::fmt::Write as _;
        match self {
            Finding::InsufficientQuota { resource, flavor, missing, .. } => {
                let (amount, suffix) = canonical(resource, *missing);
                for part in ["insufficient unused quota for ", resource, " in flavor ", flavor, ", "] {
                    text.push_str(part);
                }
                push_number(text, amount);
                text.push_str(suffix);
                text.push_str(" more needed");
            }
            // Writing to a string cannot fail.
            other => drop(write!(text, "{other}")),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::ResourceUnavailable { resource } => write!(f, "resource {resource} unavailable in ClusterQueue"),
            Finding::FlavorNotFound { flavor } => write!(f, "flavor {flavor} not found"),
            Finding::CoolingDown { flavor, text } => write!(f, "flavor {flavor} is cooling down {text}"),
            Finding::UntoleratedTaint { taint, flavor } => {
                write!(f, "untolerated taint {} in flavor {flavor}", message::taint_struct(taint))
            }
            Finding::AffinityMismatch { flavor } => write!(f, "flavor {flavor} doesn't match node affinity"),
            Finding::ExceedsMaximum { resource, flavor, assumed, requested, maximum, .. } => write!(
                f,
                "insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests ({}) + \
                 current podset request ({}) > maximum capacity ({})",
                quantity(resource, *assumed),
                quantity(resource, *requested),
                quantity(resource, maximum.saturated()),
            ),
            Finding::InsufficientQuota { .. } => {
                let mut text = String::new();
                self.write_to(&mut text);
                f.write_str(&text)
            }
            Finding::NotNominated { flavor, resource } => write!(
                f,
                "skipping flavor {flavor} as it is not found in the nomination mapping for resource {resource}"
            ),
            Finding::NotOfVariant { flavor } => {
                write!(f, "skipping flavor {flavor} due to WorkloadAllowedResourceFlavorAnnotation annotation")
            }
            Finding::HeldOnOtherFlavor { flavor, held } => {
                write!(f, "could not assign {flavor} flavor since the original workload is assigned: {held}")
            }
            Finding::Topology(shortage) => shortage.fmt(f),
            Finding::TopologyRequest(problem) => problem.fmt(f),
        }
    }
}

impl fmt::Display for TopologyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologyProblem::FlavorWithout { flavor } => {
                write!(f, "Flavor {flavor:?} does not support TopologyAwareScheduling")
            }
            TopologyProblem::FlavorOnlyWith { flavor } => {
                write!(f, "Flavor {flavor:?} supports only TopologyAwareScheduling")
            }
            TopologyProblem::FlavorUnknown { flavor } => {
                write!(f, "Flavor {flavor:?} information missing in TAS cache")
            }
            TopologyProblem::FlavorWithoutLevel { flavor, .. } => {
                write!(f, "Flavor {flavor:?} does not contain the requested level")
            }
            TopologyProblem::NoFlavor => f.write_str("no TAS flavor assigned"),
            TopologyProblem::SeveralFlavors { flavors } => {
                let names: Vec<&str> = flavors.iter().map(|name| &**name).collect();
                write!(f, "more than one TAS flavor assigned: {}", names.join(", "))
            }
            TopologyProblem::NothingKnown => {
                f.write_str("workload requires Topology, but there is no TAS cache information")
            }
            TopologyProblem::NotForElasticJobs { mode } => {
                write!(f, "{mode} topology is not supported with ElasticJobsViaWorkloadSlices")
            }
            TopologyProblem::NoSuchLevel { level, of_slices: true } => {
                write!(f, "no requested topology level for slices: {level}")
            }
            TopologyProblem::NoSuchLevel { level, of_slices: false } => {
                write!(f, "no requested topology level: {level}")
            }
            TopologyProblem::NoSliceSize => f.write_str("slice topology requested, but slice size not provided"),
            TopologyProblem::LayersDoNotNest { inner, outer, outer_size } => {
                write!(f, "podset slice topology {inner} must be below {outer} and its size must divide {outer_size}")
            }
            TopologyProblem::SliceAboveRequest { slice, level } => {
                write!(f, "podset slice topology {slice} is above the podset topology {level}")
            }
            TopologyProblem::NoDomains { level } => write!(f, "no topology domains at level: {level}"),
            TopologyProblem::StaleDomain { values } => {
                let values: Vec<&str> = values.iter().map(|value| &**value).collect();
                write!(
                    f,
                    "Cannot replace the node, because the existing topologyAssignment is invalid, as it contains the \
                     stale domain {}",
                    values.join(",")
                )
            }
            TopologyProblem::Gone => f.write_str("the flavor's topology is gone"),
        }
    }
}

impl fmt::Display for TopologyShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topology, needed) = (&*self.topology, self.needed);
        let what = if self.slice_size > 1 { "slice(s)" } else { "pod(s)" };
        if !self.layers.is_empty() {
            write!(f, "topology {topology:?} doesn't allow to fit")?;
            for layer in &self.layers {
                write!(f, "; {}/{} slice(s) fit on level {}", layer.fits, layer.needed, layer.level)?;
            }
        } else if self.fits <= 0 {
            write!(f, "topology {topology:?} doesn't allow to fit any of {needed} {what}")?;
        } else {
            write!(f, "topology {topology:?} allows to fit only {} out of {needed} {what}", self.fits)?;
        }
        if !self.excluded.is_empty() {
            let mut parts: Vec<String> =
                self.excluded.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
            parts.sort_unstable();
            write!(f, ". Total nodes: {}; excluded: {}", self.nodes, parts.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exclusion::OtherDomain => f.write_str("topologyDomain"),
            Exclusion::Taint(taint) => write!(f, "taint {:?}", message::taint(taint)),
            Exclusion::NodeSelector => f.write_str("nodeSelector"),
            Exclusion::Affinity => f.write_str("affinity"),
            Exclusion::Resource(resource) => write!(f, "resource {:?}", &**resource),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_canonical_quantities() {
        assert_eq!(quantity("cpu", 500), "500m");
        assert_eq!(quantity("cpu", 2000), "2");
        assert_eq!(quantity("cpu", 2_000_000), "2k");
        assert_eq!(quantity("cpu", i64::MAX), "9223372036854775807m");
        assert_eq!(quantity("memory", 10 << 20), "10Mi");
        assert_eq!(quantity("memory", 1000), "1k");
        assert_eq!(quantity("memory", 0), "0");
        assert_eq!(quantity("pods", 1500), "1500");
        assert_eq!(quantity("nvidia.com/gpu", 8000), "8k");
    }
}
