//! Events in both groups. Events of `events.k8s.io`, and core events with `eventTime`, must name
//! their reporter and are immutable. Events without `eventTime` need few fields.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::names;
use serde_json::Value;

use super::rules::{number, text};
use super::{Strategy, same, set_default};

/// Maximum lengths of the reporter's name, of action and reason, and of the note.
const REPORTER_MAX: usize = 128;
const WORD_MAX: usize = 128;
const NOTE_MAX: usize = 1024;
/// Minimum number of events of a series.
const SERIES_MIN: i64 = 2;
/// Namespace of events about cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "default";

/// Names of fields, which differ between the core group and `events.k8s.io`. Error messages have
/// the names of the core group, except for the reporter.
#[derive(Clone, Copy)]
struct Names {
    regarding: &'static str,
    note: &'static str,
    reporter: &'static str,
}

const CORE: Names = Names { regarding: "involvedObject", note: "message", reporter: "reportingComponent" };
const NEW: Names = Names { regarding: "regarding", note: "note", reporter: "reportingController" };

fn is_new(event: &Value) -> bool {
    meta::api_version(event) == "events.k8s.io/v1"
}

fn names_of(event: &Value) -> Names {
    if is_new(event) { NEW } else { CORE }
}

pub(crate) struct Events;

impl Strategy for Events {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn name_check(&self) -> berth_apimachinery::validation::NameCheck {
        |_| Vec::new()
    }

    /// Sets the fields that stored events always have.
    fn default(&self, event: &mut Value) {
        let reporter = names_of(event).reporter;
        let map = map_mut(event);
        for field in [reporter, "reportingInstance"] {
            set_default(map, field, "");
        }
        map.entry("eventTime").or_insert(Value::Null);
    }

    fn validate(&self, event: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let names = names_of(event);
        check_namespace(event, names, &mut errors);
        if event["eventTime"].is_null() {
            if is_new(event) {
                errors.push(Error::required(&Path::new("eventTime"), ""));
                check_type(event, &mut errors);
            }
            return errors;
        }
        check_report(event, names, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let names = names_of(new);
        if old["eventTime"].is_null() {
            // An event without `eventTime` may get it and the other fields in an update.
            check_namespace(new, names, &mut errors);
            return errors;
        }
        check_namespace(new, names, &mut errors);
        check_report(new, names, &mut errors);
        for (field, shown) in [
            (names.regarding, "involvedObject"),
            ("reason", "reason"),
            (names.note, "message"),
            ("type", "type"),
            ("eventTime", "eventTime"),
            ("action", "action"),
            ("related", "related"),
            (names.reporter, "reportingController"),
            ("reportingInstance", "reportingInstance"),
        ] {
            if !same(&new[field], &old[field]) {
                errors.push(Error::invalid(&Path::new(shown), new[field].clone(), "field is immutable"));
            }
        }
        errors
    }
}

/// Validates that an event is in the namespace of the object that it concerns.
fn check_namespace(event: &Value, names: Names, errors: &mut Vec<Error>) {
    let about = text(&event[names.regarding], "namespace");
    let own = meta::namespace(event);
    let fits = if about.is_empty() { own == CLUSTER_NAMESPACE || own == "kube-system" } else { own == about };
    if !fits {
        let path = Path::new("involvedObject");
        errors.push(Error::invalid(&path.child("namespace"), about, "does not match event.namespace"));
    }
}

fn check_type(event: &Value, errors: &mut Vec<Error>) {
    let kind = text(event, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(Error::invalid(&Path::new("type"), "", format!("has invalid value: {kind}")));
    }
}

/// Validates the reporter, action and reason of an event.
fn check_report(event: &Value, names: Names, errors: &mut Vec<Error>) {
    let reporter = text(event, names.reporter);
    let at = Path::new(names.reporter);
    if reporter.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    errors.extend(names::is_qualified_name(reporter).into_iter().map(|why| Error::invalid(&at, reporter, why)));
    for (field, max) in [("reportingInstance", REPORTER_MAX), ("action", WORD_MAX), ("reason", WORD_MAX)] {
        let (given, at) = (text(event, field), Path::new(field));
        if given.is_empty() {
            errors.push(Error::required(&at, ""));
        }
        if given.len() > max {
            errors.push(Error::invalid(&at, "", format!("can have at most {max} characters")));
        }
    }
    let series = &event["series"];
    if !series.is_null() {
        let path = Path::new("series");
        if number(series, "count") < SERIES_MIN {
            errors.push(Error::invalid(&path.child("count"), "", format!("should be at least {SERIES_MIN}")));
        }
        if series["lastObservedTime"].is_null() {
            errors.push(Error::required(&path.child("lastObservedTime"), ""));
        }
    }
    if text(event, names.note).len() > NOTE_MAX {
        errors.push(Error::invalid(&Path::new("message"), "", format!("can have at most {NOTE_MAX} characters")));
    }
    if !is_new(event) {
        return;
    }
    check_type(event, errors);
    for (field, shown) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
    ] {
        let given = &event[field];
        let is_unset = given.is_null() || *given == 0 || given.as_object().is_some_and(serde_json::Map::is_empty);
        if !is_unset {
            errors.push(Error::invalid(&Path::new(shown), "", "needs to be unset"));
        }
    }
}
