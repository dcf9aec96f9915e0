//! The parameters of a request that the cloud reads.

use std::time::Duration;

use berth_api::autoscaling::v1::ProvisioningRequest;

use super::{ATOMIC_SCALE_UP, QUEUED};

/// Lifetime of the machines of a queued request, in seconds.
const MAX_RUN_DURATION: &str = "maxRunDurationSeconds";
/// Time after which an atomic scale-up is not tried again, in seconds since creation.
const VALID_UNTIL: &str = "ValidUntilSeconds";
/// Maximum of both: 7 days.
const SECONDS_MAX: u64 = 604_800;

/// The requested lifetime of the machines.
pub fn max_run_duration(request: &ProvisioningRequest) -> Option<Duration> {
    seconds(request, MAX_RUN_DURATION)
}

/// The time since creation after which an atomic scale-up is not tried again.
pub fn valid_until(request: &ProvisioningRequest) -> Option<Duration> {
    seconds(request, VALID_UNTIL)
}

fn seconds(request: &ProvisioningRequest, name: &str) -> Option<Duration> {
    let text = request.spec.parameters.get(name)?;
    let seconds: u64 = text.parse().ok()?;
    (1..=SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs(seconds))
}

/// The error in a parameter that the request's class reads, if there is one.
pub fn problem(request: &ProvisioningRequest) -> Option<String> {
    let name = match request.spec.provisioning_class_name.as_str() {
        QUEUED => MAX_RUN_DURATION,
        ATOMIC_SCALE_UP => VALID_UNTIL,
        _ => return None,
    };
    let text = request.spec.parameters.get(name)?;
    seconds(request, name).is_none().then(|| {
        format!("spec.parameters[{name}]: {text:?} is not a number of seconds: expected 1 to {SECONDS_MAX} (7 days)")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(class: &str, parameters: serde_json::Value) -> ProvisioningRequest {
        serde_json::from_value(json!({
            "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": { "name": "r" },
            "spec": { "provisioningClassName": class, "parameters": parameters, "podSets": [] },
        }))
        .unwrap()
    }

    #[test]
    fn a_parameter_of_the_class_is_a_number_of_seconds_of_at_most_seven_days() {
        let good = request(QUEUED, json!({ "maxRunDurationSeconds": "3600" }));
        assert_eq!((problem(&good), max_run_duration(&good)), (None, Some(Duration::from_secs(3600))));
        for bad in ["1h", "0", "-1", "604801", ""] {
            let bad = request(QUEUED, json!({ "maxRunDurationSeconds": bad }));
            assert!(problem(&bad).unwrap().starts_with("spec.parameters[maxRunDurationSeconds]: "));
            assert_eq!(max_run_duration(&bad), None);
        }
        assert_eq!(problem(&request(QUEUED, json!({ "ValidUntilSeconds": "soon" }))), None, "the class ignores it");
        assert_eq!(
            problem(&request(ATOMIC_SCALE_UP, json!({ "ValidUntilSeconds": "soon" }))).unwrap(),
            "spec.parameters[ValidUntilSeconds]: \"soon\" is not a number of seconds: expected 1 to 604800 (7 days)"
        );
    }
}
