//! Events are one kind in two groups: `v1` and `events.k8s.io/v1`. They are stored in the form of
//! the core group. This module renames the fields that differ. Each form has all fields of the
//! other, so that no field is lost.

use serde_json::Value;

/// Names of a field in core events and in `events.k8s.io/v1`.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts an `events.k8s.io/v1` event to a core event.
pub fn to_core(event: &mut Value) {
    rename(event, "v1", RENAMED.map(|(core, new)| (new, core)));
}

/// Converts a core event to an `events.k8s.io/v1` event.
pub fn from_core(event: &mut Value) {
    rename(event, "events.k8s.io/v1", RENAMED);
}

fn rename(event: &mut Value, api_version: &str, fields: [(&str, &str); 7]) {
    let Some(event) = event.as_object_mut() else { return };
    event.insert("apiVersion".to_owned(), api_version.into());
    for (from, to) in fields {
        if let Some(value) = event.remove(from) {
            event.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_round_trips_between_both_groups() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"}, "count": 3, "message": "m",
            "involvedObject": {"kind": "Pod"}, "reason": "r", "reportingComponent": "c", "reportingInstance": "i"});
        let mut event = core.clone();
        from_core(&mut event);
        assert_eq!(event["note"], "m");
        assert_eq!(event["regarding"]["kind"], "Pod");
        assert_eq!(event.get("message"), None);
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
