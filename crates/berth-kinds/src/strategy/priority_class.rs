//! PriorityClasses: defaults and validation. The value of a class is immutable.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta;
use serde_json::Value;

use super::{Strategy, set_default, set_default_text};

/// Maximum value of a user-defined class. System classes are above.
const USER_VALUE_MAX: i64 = 1_000_000_000;

/// Names, values and descriptions of the system classes.
pub const SYSTEM: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

pub(crate) struct PriorityClasses;

impl Strategy for PriorityClasses {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, class: &mut Value) {
        let map = meta::map_mut(class);
        set_default(map, "value", 0);
        set_default_text(map, "preemptionPolicy", "PreemptLowerPriority");
        // Go omits false.
        if map.get("globalDefault") == Some(&Value::Bool(false)) {
            map.remove("globalDefault");
        }
    }

    fn validate(&self, class: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let name = meta::name(class);
        let value = class["value"].as_i64().unwrap_or(0);
        if let Some((_, own, _)) = SYSTEM.iter().find(|(system, ..)| *system == name) {
            if value != *own {
                let detail = format!("value of {name} PriorityClass must be {own}");
                errors.push(Error::forbidden(&Path::new("value"), detail));
            }
        } else if name.starts_with("system-") {
            let path = Path::new("metadata.name");
            let detail = "priority class names with 'system-' prefix are reserved for system use only";
            errors.push(Error::forbidden(&path, detail));
        } else if value > USER_VALUE_MAX {
            let detail = format!("maximum allowed value of a user defined priority is {USER_VALUE_MAX}");
            errors.push(Error::forbidden(&Path::new("value"), detail));
        }
        let policy = class["preemptionPolicy"].as_str().unwrap_or_default();
        if !matches!(policy, "Never" | "PreemptLowerPriority") {
            let path = Path::new("preemptionPolicy");
            errors.push(Error::not_supported(&path, policy, &["Never", "PreemptLowerPriority"]));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        if new["value"] != old["value"] {
            errors.push(Error::forbidden(&Path::new("value"), "may not be changed in an update."));
        }
        if new["preemptionPolicy"] != old["preemptionPolicy"] {
            let path = Path::new("preemptionPolicy");
            errors.push(Error::invalid(&path, new["preemptionPolicy"].clone(), "field is immutable"));
        }
        errors
    }
}
