//! The scenario file: kind `Scenario` of `berth.dev/v1alpha1`, documented in docs/scenarios.md.
//!
//! Unknown fields are errors, and every error names its line: users write scenarios as regression
//! tests of their own quota configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::expectation::Expectation;
use crate::fault::Fault;
use crate::resource::Reference;

/// The `apiVersion` of scenario files.
pub const API_VERSION: &str = "berth.dev/v1alpha1";
/// The `kind` of scenario files.
pub const KIND: &str = "Scenario";

/// A scenario as read from its file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Scenario {
    /// Must be `berth.dev/v1alpha1`.
    pub api_version: String,
    /// Must be `Scenario`.
    pub kind: String,
    /// Name and optional annotations.
    pub metadata: Metadata,
    /// Cluster, steps and expectations.
    pub spec: Spec,
}

/// Metadata of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Printed in the report.
    pub name: String,
    /// Notes for readers of the file.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// Specification of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Spec {
    /// One or two sentences, printed at the top of the report.
    #[serde(default)]
    pub description: String,
    /// Seed of every random draw (identifiers, run-time distributions). The same seed gives the
    /// same report. Default: 1.
    #[serde(default = "seed_default")]
    pub seed: u64,
    /// Cluster time at the start. Default: 2026-01-05T09:00:00Z.
    #[serde(default = "start_default")]
    pub start: Timestamp,
    /// Folder to which manifest paths are relative. It is itself relative to the scenario file.
    /// Default: the scenario file's folder.
    #[serde(default)]
    pub manifests: Option<PathBuf>,
    /// Values substituted for `$NAME` and `${NAME}` in manifests. With `null` the caller must give
    /// the value (`--set NAME=VALUE`). Names that are not listed, such as `$JOB_COMPLETION_INDEX`,
    /// are not substituted.
    #[serde(default)]
    pub variables: BTreeMap<String, Option<String>>,
    /// The cluster: an inline `ClusterConfiguration` spec, or the path of a file with one.
    pub cluster: Source,
    /// Configuration of Berth's controllers: an inline Kueue `Configuration`, or the path of a
    /// file with one.
    #[serde(default)]
    pub configuration: Option<Source>,
    /// Tables printed after every step that has no `show` of its own.
    #[serde(default)]
    pub show: Vec<Show>,
    /// Steps, in order. A failed expectation does not stop the scenario; a failed action does.
    pub steps: Vec<Step>,
}

/// Source of a description of the cluster or its controllers.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Source {
    /// A file, relative to the scenario file.
    File(PathBuf),
    /// The description itself.
    Inline(Value),
}

/// One step: actions in order, then expectations, then tables.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Step {
    /// Heading of the step in the report.
    pub name: String,
    /// User that performs the actions, sent in impersonation headers so that the API authorizes
    /// this user. Default: the administrator.
    #[serde(default, rename = "as")]
    pub as_user: Option<User>,
    /// Actions, in order.
    #[serde(default, rename = "do")]
    pub actions: Vec<Action>,
    /// Cluster time between the actions and the first check of an expectation. Default: 1s.
    #[serde(default = "settle_default", with = "duration")]
    pub settle: Duration,
    /// Expectations checked after that time.
    #[serde(default)]
    pub expect: Vec<Expectation>,
    /// Tables to print after this step instead of `spec.show`.
    #[serde(default)]
    pub show: Option<Vec<Show>>,
}

/// An impersonated user.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// User name, such as `alice` or `system:serviceaccount:team-a:team-a-ksa`.
    pub user: String,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// One action. Exactly one field is set.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Apply manifests as `kubectl apply` does: create missing objects and update those that
    /// differ.
    Apply(ManifestSet),
    /// Create the objects of manifests. Fails if one of them exists.
    Create(ManifestSet),
    /// Delete the objects of manifests, or one object.
    Delete(DeleteAction),
    /// Merge-patch one object or a subresource of it.
    Patch(PatchAction),
    /// Let cluster time pass.
    #[serde(with = "duration")]
    Wait(Duration),
    /// Wait until an expectation is true, at most for its `within`. If it does not become true, the
    /// scenario fails.
    WaitUntil(Expectation),
    /// Store the value of a field as a variable.
    Remember(RememberAction),
    /// Inject a fault.
    Fault(Fault),
    /// Try to create an object that the API must reject with a message that contains a given
    /// string.
    Refused(RefusedAction),
}

/// Manifests to act on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ManifestSet {
    /// Files or folders (their `*.yaml`, `*.yml`, `*.json`, in name order), relative to
    /// `spec.manifests`. Variables, also those of `forEach`, are substituted in them.
    #[serde(default)]
    pub files: Vec<String>,
    /// Objects in the scenario file itself.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// Repeats the set for every combination of values; the first loop is the outermost. A loop's
    /// variable can be used as `${name}` in `files` and in the manifests.
    #[serde(default)]
    pub for_each: Vec<Loop>,
    /// Cluster time after each combination of loop values.
    #[serde(default, with = "duration")]
    pub pause: Duration,
    /// Namespace of namespaced objects that have none.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A variable that gets the name of the last object, for objects with `generateName`. It may
    /// contain variables of `forEach`, as in `job-${index}`.
    #[serde(default)]
    pub remember: Option<String>,
}

/// A loop variable.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Loop {
    /// Name of the variable, used as `${name}`.
    pub name: String,
    /// Its values, in order.
    pub values: Vec<String>,
    /// Cluster time after each value.
    #[serde(default, with = "duration")]
    pub pause: Duration,
}

/// Objects to delete.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeleteAction {
    /// Manifests whose objects are deleted; absent objects are skipped.
    #[serde(default)]
    pub files: Vec<String>,
    /// An object to delete. It must exist.
    #[serde(default)]
    pub object: Option<Reference>,
}

/// A merge patch of one object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PatchAction {
    /// The object.
    pub object: Reference,
    /// RFC 7386 merge patch.
    pub merge: Value,
    /// `status` or `scale`. Absent: the object itself.
    #[serde(default)]
    pub subresource: Option<String>,
}

/// A value to store as a variable. Later actions and expectations use it as `${name}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RememberAction {
    /// Name of the variable.
    pub name: String,
    /// The object. With a selector, the first object in name order.
    pub of: Reference,
    /// The field, which must exist.
    pub path: crate::path::FieldPath,
}

/// A request that the API must reject.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RefusedAction {
    /// The object to create.
    pub create: Value,
    /// Namespace, if the object has none.
    #[serde(default)]
    pub namespace: Option<String>,
    /// String that the Status message must contain.
    pub message: String,
    /// Expected Status reason, such as `Invalid` or `Forbidden`. Absent: any.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A table to print, or the explanation of one workload. Exactly one of `resource` and `explain`
/// is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Show {
    /// Resource, as in `kubectl get RESOURCE`: `jobs`, `clusterqueues`, `nodes`.
    #[serde(default)]
    pub resource: String,
    /// Job or Workload whose explanation is printed, as `berth explain` prints it.
    #[serde(default)]
    pub explain: String,
    /// Namespace of the objects. Default: all namespaces.
    #[serde(default)]
    pub namespace: Option<String>,
    /// True if the output includes the columns of `-o wide`.
    #[serde(default)]
    pub wide: bool,
    /// Label selector of the objects.
    #[serde(default)]
    pub selector: Option<String>,
    /// Prints the number of objects per value of this field in place of rows.
    #[serde(default)]
    pub group_by: Option<crate::path::FieldPath>,
}

/// Why a scenario file cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("{}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a scenario.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem and its line.
        problem: String,
    },
    /// Variables have no value.
    #[error("scenario {scenario}: no value for {names}; give it with --set NAME=VALUE or in spec.variables")]
    Unset {
        /// The scenario's name.
        scenario: String,
        /// The variables.
        names: String,
    },
}

impl Scenario {
    /// Reads a scenario file.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|problem| ScenarioError::Invalid { path: path.to_owned(), problem })
    }

    /// Parses a scenario from YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if scenario.api_version != API_VERSION || scenario.kind != KIND {
            return Err(format!(
                "expected apiVersion {API_VERSION} and kind {KIND}, found {} and {}",
                scenario.api_version, scenario.kind
            ));
        }
        if scenario.spec.steps.is_empty() {
            return Err("spec.steps: at least one step is required".into());
        }
        let of_steps = scenario.spec.steps.iter().filter_map(|step| Some((step.name.as_str(), step.show.as_ref()?)));
        for (step, shows) in of_steps.chain([("spec", &scenario.spec.show)]) {
            if shows.iter().any(|show| show.resource.is_empty() == show.explain.is_empty()) {
                return Err(format!("{step}: show: expected exactly one of resource and explain"));
            }
        }
        Ok(scenario)
    }

    /// The scenario's variables, overridden by the caller's values.
    pub fn resolve_variables(
        &self,
        given: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, ScenarioError> {
        let mut resolved = BTreeMap::new();
        let mut unset = Vec::new();
        for (name, value) in &self.spec.variables {
            match given.get(name).or(value.as_ref()) {
                Some(value) => {
                    resolved.insert(name.clone(), value.clone());
                }
                None => unset.push(name.as_str()),
            }
        }
        // A value for an unlisted name is most likely a typing error. Substituting it does no harm.
        for (name, value) in given {
            resolved.entry(name.clone()).or_insert_with(|| value.clone());
        }
        if unset.is_empty() {
            Ok(resolved)
        } else {
            Err(ScenarioError::Unset { scenario: self.metadata.name.clone(), names: unset.join(", ") })
        }
    }
}

fn seed_default() -> u64 {
    1
}

fn start_default() -> Timestamp {
    "2026-01-05T09:00:00Z".parse().expect("a literal timestamp parses")
}

fn settle_default() -> Duration {
    Duration::from_secs(1)
}

/// Durations such as `500ms`, `1.5s`, `90s`, `2m30s`, `1h` and `2d`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer};

    /// Parses a duration. The error shows accepted forms.
    pub fn parse(text: &str) -> Result<Duration, String> {
        let fail = || format!("{text:?} is not a duration; expected something like 500ms, 90s, 2m30s or 1h");
        let mut total = 0.0;
        let mut rest = text.trim();
        if rest == "0" {
            return Ok(Duration::ZERO);
        }
        if rest.is_empty() {
            return Err(fail());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fail)?;
            let number: f64 = rest[..digits].parse().map_err(|_| fail())?;
            rest = &rest[digits..];
            let unit_end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let seconds = match &rest[..unit_end] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                _ => return Err(fail()),
            };
            total += number * seconds;
            rest = &rest[unit_end..];
        }
        Duration::try_from_secs_f64(total).map_err(|_| fail())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }

    /// Deserializes optional durations.
    pub mod option {
        use super::{Deserialize, Deserializer, Duration, parse};

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
            Option::<String>::deserialize(d)?.map(|text| parse(&text).map_err(serde::de::Error::custom)).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "apiVersion: berth.dev/v1alpha1\nkind: Scenario\nmetadata: {name: x}\nspec:\n  cluster: {}\n";

    #[test]
    fn durations_are_parsed_with_units() {
        assert_eq!(duration::parse("2m30s"), Ok(Duration::from_secs(150)));
        assert_eq!(duration::parse("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration::parse("5 minutes").unwrap_err().contains("expected something like"));
    }

    #[test]
    fn an_unknown_field_is_rejected_by_name() {
        let error = Scenario::parse(&format!("{MINIMAL}  steps: [{{name: a, exepct: []}}]\n")).unwrap_err();
        assert!(error.contains("exepct"), "{error}");
    }

    #[test]
    fn a_variable_without_a_value_must_be_set_by_the_caller() {
        let text = format!("{MINIMAL}  variables: {{REGION: null, ZONE: c}}\n  steps: [{{name: a}}]\n");
        let scenario = Scenario::parse(&text).unwrap();
        let error = scenario.resolve_variables(&BTreeMap::new()).unwrap_err().to_string();
        assert_eq!(error, "scenario x: no value for REGION; give it with --set NAME=VALUE or in spec.variables");
        let given = BTreeMap::from([("REGION".to_owned(), "r".to_owned())]);
        assert_eq!(scenario.resolve_variables(&given).unwrap()["ZONE"], "c");
    }
}
