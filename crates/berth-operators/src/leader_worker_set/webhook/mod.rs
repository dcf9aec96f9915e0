//! The rules of LeaderWorkerSet's admission webhooks, as pure functions for an API server:
//! [`default_set`], [`validate()`] and [`default_pod`]. The rules of the definition's schema are
//! not repeated here.

mod pods;
pub mod tpu;
mod validate;

pub use pods::default_pod;
pub use validate::validate;

use serde_json::{Value, json};

/// Sets the defaults of a LeaderWorkerSet that its schema does not have.
pub fn default_set(set: &mut Value) {
    let Some(spec) = set.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    let template = &mut spec["leaderWorkerTemplate"];
    if template.is_object() {
        match template["restartPolicy"].as_str().unwrap_or_default() {
            "" => template["restartPolicy"] = json!("RecreateGroupOnPodRestart"),
            // An old name of the policy.
            "Default" => template["restartPolicy"] = json!("None"),
            _ => {}
        }
    }
    let rollout = &mut spec["rolloutStrategy"];
    if rollout["type"].as_str().is_none_or(str::is_empty) {
        rollout["type"] = json!("RollingUpdate");
    }
    if rollout["type"] == "RollingUpdate" && rollout["rollingUpdateConfiguration"].is_null() {
        rollout["rollingUpdateConfiguration"] = json!({"maxUnavailable": 1, "maxSurge": 0, "partition": 0});
    }
    if spec["networkConfig"]["subdomainPolicy"].is_null() {
        spec["networkConfig"]["subdomainPolicy"] = json!("Shared");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_set_gets_the_defaults() {
        let mut set = json!({"spec": {"leaderWorkerTemplate": {"restartPolicy": "Default"}}});
        default_set(&mut set);
        assert_eq!(
            set["spec"],
            json!({
                "leaderWorkerTemplate": {"restartPolicy": "None"},
                "rolloutStrategy": {"type": "RollingUpdate",
                    "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0, "partition": 0}},
                "networkConfig": {"subdomainPolicy": "Shared"},
            })
        );
        let before = set.clone();
        default_set(&mut set);
        assert_eq!(set, before);
    }
}
