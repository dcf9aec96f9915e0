//! The query parameters of resource requests, parsed once.

use std::collections::HashSet;

use berth_apimachinery::field::{self, Path};
use berth_apimachinery::meta::GroupKind;
use berth_apimachinery::percent::decode_component;
use berth_apimachinery::selector::{FieldSelector, LabelSelector};
use berth_apimachinery::status::Status;
use berth_apimachinery::table::IncludeObject;
use berth_pod_runtime::StreamName;
use serde_json::{Value, json};

use crate::logs::LogPart;
use crate::negotiation;

/// How fields that are not in the schema are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    Exact,
    NotOlderThan,
}

/// Query parameters; absent ones have their documented defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    /// `None` if absent or empty: the request reads the newest state.
    pub(crate) resource_version: Option<u64>,
    pub(crate) resource_version_match: Option<VersionMatch>,
    pub(crate) allow_watch_bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) label_selector: Option<LabelSelector>,
    pub(crate) field_selector: Option<FieldSelector>,
    pub(crate) dry_run: bool,
    pub(crate) field_manager: String,
    pub(crate) field_validation: FieldValidation,
    /// True if the request has the parameter `fieldValidation`.
    says_field_validation: bool,
    pub(crate) force: Option<bool>,
    pub(crate) pretty: Option<bool>,
    pub(crate) include_object: IncludeObject,
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) propagation_policy: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
    /// Preconditions of a deletion, from its body.
    pub(crate) preconditions: Option<Value>,
    pub(crate) container: String,
    pub(crate) tail_lines: Option<usize>,
    pub(crate) follow: bool,
    pub(crate) limit_bytes: Option<usize>,
    pub(crate) log: LogPart,
    /// The requested output stream of a log; `None` for both.
    pub(crate) stream: Option<StreamName>,
}

impl Options {
    /// Parses the raw query string. As in Kubernetes, unknown parameters are ignored, and the first
    /// value of a repeated parameter is used. Malformed known parameters are rejected.
    pub(crate) fn parse(query: &str) -> Result<Options, Status> {
        let mut options = Options::default();
        let mut known = HashSet::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = decode_component(key);
            if !known.contains(&key) {
                options.set(&key, &decode_component(value))?;
                known.insert(key);
            }
        }
        Ok(options)
    }

    /// The options as admission reviews contain them; null for operations without options. A patch
    /// is reviewed as an `UPDATE`.
    pub(crate) fn in_review(&self, operation: &str, dry_run: bool) -> Value {
        let kind = match operation {
            "CREATE" => "CreateOptions",
            "UPDATE" => "UpdateOptions",
            "DELETE" => "DeleteOptions",
            _ => return Value::Null,
        };
        let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        if dry_run {
            options["dryRun"] = json!(["All"]);
        }
        if operation == "DELETE" {
            if let Some(seconds) = self.grace_period_seconds {
                options["gracePeriodSeconds"] = seconds.into();
            }
            if let Some(policy) = &self.propagation_policy {
                options["propagationPolicy"] = policy.as_str().into();
            }
            if let Some(orphan) = self.orphan_dependents {
                options["orphanDependents"] = orphan.into();
            }
            if let Some(preconditions) = &self.preconditions {
                options["preconditions"] = preconditions.clone();
            }
            return options;
        }
        if !self.field_manager.is_empty() {
            options["fieldManager"] = self.field_manager.as_str().into();
        }
        if self.says_field_validation {
            options["fieldValidation"] = match self.field_validation {
                FieldValidation::Ignore => "Ignore",
                FieldValidation::Warn => "Warn",
                FieldValidation::Strict => "Strict",
            }
            .into();
        }
        options
    }

    /// Sets the option of one query parameter. Unknown parameters are ignored.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Status> {
        match key {
            // Parameters of reads.
            "limit" => self.limit = number::<i64>(key, value)?.unwrap_or(0).max(0) as usize,
            "continue" => self.continue_token = value.to_owned(),
            "resourceVersion" => self.resource_version = parse_version(key, value)?,
            "resourceVersionMatch" => {
                self.resource_version_match = match value {
                    "" => None,
                    "Exact" => Some(VersionMatch::Exact),
                    "NotOlderThan" => Some(VersionMatch::NotOlderThan),
                    _ => {
                        return Err(not_supported(
                            ("meta.k8s.io", "ListOptions"),
                            key,
                            value,
                            &["Exact", "NotOlderThan", ""],
                        ));
                    }
                }
            }
            "allowWatchBookmarks" => self.allow_watch_bookmarks = boolean(value),
            "sendInitialEvents" => self.send_initial_events = Some(boolean(value)),
            "timeoutSeconds" => self.timeout_seconds = number(key, value)?,
            "labelSelector" => {
                let selector = LabelSelector::parse(value)
                    .map_err(|error| Status::bad_request(format!("unable to parse requirement: {error}")))?;
                self.label_selector = (!selector.is_empty()).then_some(selector);
            }
            "fieldSelector" => {
                let selector = FieldSelector::parse(value).map_err(|error| Status::bad_request(error.to_string()))?;
                self.field_selector = (!selector.is_empty()).then_some(selector);
            }
            // Parameters of writes.
            "dryRun" => match value {
                "" => {}
                "All" => self.dry_run = true,
                _ => return Err(not_supported(("meta.k8s.io", "WriteOptions"), key, value, &["All"])),
            },
            "fieldManager" => {
                if value.len() > 128 {
                    let error = field::Error::too_long(&Path::new("fieldManager"), 128);
                    return Err(Status::invalid(&GroupKind::new("meta.k8s.io", "WriteOptions"), "", &[error]));
                }
                self.field_manager = value.to_owned();
            }
            "fieldValidation" => {
                self.says_field_validation = !value.is_empty();
                self.field_validation = match value {
                    "" | "Warn" => FieldValidation::Warn,
                    "Ignore" => FieldValidation::Ignore,
                    "Strict" => FieldValidation::Strict,
                    _ => {
                        let accepted = ["", "Ignore", "Strict", "Warn"];
                        return Err(not_supported(("meta.k8s.io", "WriteOptions"), key, value, &accepted));
                    }
                }
            }
            "force" => self.force = Some(boolean(value)),
            "pretty" if !value.is_empty() => self.pretty = Some(negotiation::is_pretty(Some(value), "")),
            "includeObject" => {
                self.include_object = match value {
                    "" | "Metadata" => IncludeObject::Metadata,
                    "None" => IncludeObject::None,
                    "Object" => IncludeObject::Object,
                    _ => return Err(Status::bad_request(format!("unrecognized includeObject value: {value:?}"))),
                }
            }
            "gracePeriodSeconds" => self.grace_period_seconds = number(key, value)?,
            "propagationPolicy" => self.propagation_policy = (!value.is_empty()).then(|| value.to_owned()),
            "orphanDependents" => self.orphan_dependents = Some(boolean(value)),
            _ => return self.set_of_containers(key, value),
        }
        Ok(())
    }

    /// Sets the option of one query parameter for the logs and streams of containers.
    fn set_of_containers(&mut self, key: &str, value: &str) -> Result<(), Status> {
        match key {
            "container" => self.container = value.to_owned(),
            "follow" => self.follow = boolean(value),
            "tailLines" => self.tail_lines = number(key, value)?,
            "limitBytes" => self.limit_bytes = number(key, value)?,
            "stream" => {
                self.stream = match value {
                    "" | "All" => None,
                    "Stdout" => Some(StreamName::Stdout),
                    "Stderr" => Some(StreamName::Stderr),
                    _ => return Err(not_supported(("", "PodLogOptions"), key, value, &["All", "Stderr", "Stdout"])),
                }
            }
            "previous" => self.log.previous = boolean(value),
            "timestamps" => self.log.timestamps = boolean(value),
            "sinceSeconds" => {
                self.log.since_seconds = number(key, value)?;
                if self.log.since_seconds.is_some_and(|seconds| seconds < 1) {
                    let error = field::Error::invalid(&Path::new(key), value, "must be greater than 0");
                    return Err(Status::invalid(&GroupKind::new("", "PodLogOptions"), "", &[error]));
                }
            }
            "sinceTime" if !value.is_empty() => {
                let time = value.parse().map_err(|_| {
                    Status::bad_request(format!("query parameter {key}: {value:?} is not an RFC 3339 time"))
                })?;
                self.log.since_time = Some(time);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The error for a parameter whose value is not in the list of accepted values.
fn not_supported((group, kind): (&str, &str), key: &str, value: &str, accepted: &[&str]) -> Status {
    let error = field::Error::not_supported(&Path::new(key), value, accepted);
    Status::invalid(&GroupKind::new(group, kind), "", &[error])
}

/// Parses a resourceVersion from a request; `None` if it is empty. `what` is the name of the
/// parameter in errors.
pub(crate) fn parse_version(what: &str, value: &str) -> Result<Option<u64>, Status> {
    if value.is_empty() {
        return Ok(None);
    }
    value.parse().map(Some).map_err(|_| {
        let error = field::Error::invalid(&Path::new(what), value, "must be a decimal number");
        Status::invalid(&GroupKind::new("meta.k8s.io", "ListOptions"), "", &[error])
    })
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<Option<T>, Status> {
    if value.is_empty() {
        return Ok(None);
    }
    value
        .parse()
        .map(Some)
        .map_err(|_| Status::bad_request(format!("query parameter {key}: {value:?} is not a number in range")))
}

/// Parses a boolean parameter as Kubernetes does: `0`, and `false` in any case, are false. Every
/// other value is true, also the empty string.
fn boolean(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zero_and_the_word_false_are_false() {
        for (value, expected) in
            [("0", false), ("false", false), ("fAlSe", false), ("f", true), ("no", true), ("1", true), ("", true)]
        {
            let options = Options::parse(&format!("allowWatchBookmarks={value}")).unwrap();
            assert_eq!(options.allow_watch_bookmarks, expected, "{value:?}");
        }
    }

    #[test]
    fn the_first_value_of_a_repeated_parameter_is_used() {
        let options = Options::parse("limit=5&limit=x&container=a&container=b").unwrap();
        assert_eq!((options.limit, options.container.as_str()), (5, "a"));
        assert!(Options::parse("limit=x&limit=5").is_err());
    }
}
