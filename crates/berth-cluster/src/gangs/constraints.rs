//! Constraints of a group on the units of each level.
//!
//! Source: Sakkara's KEP, "Group constraints". Semantics that the KEP leaves open: constraints are
//! soft, that is, given up from the lowest level upwards if they cannot be met. With `hard: true`
//! those of a level are never given up.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Maximum of `partitions`: the search for a distribution takes time in proportion.
pub const PARTITIONS_MAX: usize = 256;

/// How pods are distributed over the units of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Over as few units as possible.
    #[default]
    Pack,
    /// Evenly over as many units as possible.
    Spread,
}

/// The constraint on one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constraint {
    /// How pods are distributed over units.
    #[serde(rename = "type")]
    pub shape: Shape,
    /// Number of units that get pods, in about equal parts.
    pub partitions: Option<usize>,
    /// Minimum number of pods of a unit that gets any.
    pub min: Option<usize>,
    /// Maximum number of pods of a unit.
    pub max: Option<usize>,
    /// The number of pods of a unit is a multiple of this.
    pub factor: Option<usize>,
    /// True if a group must wait rather than violate the constraint.
    pub hard: bool,
}

impl Constraint {
    /// True if a unit of the level may have `count` pods, except for 0, which is always allowed.
    pub fn allows(&self, count: usize) -> bool {
        self.min.is_none_or(|min| count >= min)
            && self.max.is_none_or(|max| count <= max)
            && self.factor.is_none_or(|factor| count.is_multiple_of(factor))
    }
}

/// Constraints by the name of the level.
pub type Constraints = BTreeMap<String, Constraint>;

/// Reads the JSON text of a group's constraints. Numbers may be strings.
///
/// # Errors
/// The text of an error names the level, the field, and the accepted values.
pub fn read(text: &str) -> Result<Constraints, String> {
    if text.trim().is_empty() {
        return Ok(Constraints::new());
    }
    let mut levels: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(text)
        .map_err(|error| format!("expected a JSON object of constraints by level: {error}"))?;
    for fields in levels.values_mut() {
        for field in ["partitions", "min", "max", "factor"] {
            if let Some(value) = fields.get_mut(field)
                && let Some(number) = value.as_str().and_then(|text| text.trim().parse::<u64>().ok())
            {
                *value = number.into();
            }
        }
    }
    let mut constraints = Constraints::new();
    for (level, fields) in levels {
        let constraint: Constraint =
            serde_json::from_value(fields.into_iter().collect()).map_err(|error| format!("{level}: {error}"))?;
        for (field, value) in [("partitions", constraint.partitions), ("factor", constraint.factor)] {
            if value == Some(0) {
                return Err(format!("{level}.{field}: 0 is less than 1"));
            }
        }
        if let Some(partitions) = constraint.partitions.filter(|it| *it > PARTITIONS_MAX) {
            return Err(format!("{level}.partitions: {partitions} is more than {PARTITIONS_MAX}"));
        }
        if let (Some(min), Some(max)) = (constraint.min, constraint.max)
            && min > max
        {
            return Err(format!("{level}.min: {min} is more than max ({max})"));
        }
        constraints.insert(level, constraint);
    }
    Ok(constraints)
}
