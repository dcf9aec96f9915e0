//! The scenario file: our own documented kind, `berth.dev/v1alpha1` `Scenario`.
//!
//! Unknown fields are errors and every error names the line it was found at, because people use scenarios to
//! regression-test their own quota configuration.

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
    /// Name and, if wanted, annotations for people.
    pub metadata: Metadata,
    /// What to do and what to expect.
    pub spec: Spec,
}

/// The metadata scenario files carry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Printed in the report.
    pub name: String,
    /// Free text for people.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// What a scenario does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Spec {
    /// One or two sentences, printed at the top of the report.
    #[serde(default)]
    pub description: String,
    /// Seeds every random draw (identifiers, run-time distributions). Same seed, same report.
    #[serde(default = "seed_default")]
    pub seed: u64,
    /// Cluster time at the start.
    #[serde(default = "start_default")]
    pub start: Timestamp,
    /// Folder that manifest paths are relative to; itself relative to the scenario file. Default: the file's folder.
    #[serde(default)]
    pub manifests: Option<PathBuf>,
    /// Values substituted for `$NAME` and `${NAME}` in manifests. `null` means that the caller must give one
    /// (`--set NAME=VALUE`). Only names listed here are touched, so `$JOB_COMPLETION_INDEX` survives.
    #[serde(default)]
    pub variables: BTreeMap<String, Option<String>>,
    /// The cluster: an inline `ClusterConfiguration` spec, or the path of a file holding one.
    pub cluster: ClusterSource,
    /// Configuration of Berth's controllers: an inline Kueue `Configuration`, or the path of a file holding one.
    #[serde(default)]
    pub configuration: Option<Value>,
    /// Tables printed after every step that does not name its own.
    #[serde(default)]
    pub show: Vec<Show>,
    /// Steps, in order. A failed expectation does not stop the scenario; a failed action does.
    pub steps: Vec<Step>,
}

/// Where a cluster's description comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum ClusterSource {
    /// A file, relative to the scenario file.
    File(PathBuf),
    /// The description itself.
    Inline(Value),
}

/// One step: actions in order, then expectations, then tables.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Step {
    /// Printed as the step's heading.
    pub name: String,
    /// Who acts: sent as impersonation headers, so that the API's authorization sees this user.
    #[serde(default, rename = "as")]
    pub as_user: Option<User>,
    /// What to do, in order.
    #[serde(default, rename = "do")]
    pub actions: Vec<Action>,
    /// Cluster time to let pass after the actions, before the first look.
    #[serde(default = "settle_default", with = "duration")]
    pub settle: Duration,
    /// What must be true then.
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
    /// Apply manifests as `kubectl apply` would: create what is missing, change what differs.
    Apply(ManifestSet),
    /// Create manifests; fails when one exists.
    Create(ManifestSet),
    /// Delete the objects of manifests, or one object.
    Delete(DeleteAction),
    /// Merge-patch one object (or a subresource of it).
    Patch(PatchAction),
    /// Let cluster time pass.
    #[serde(with = "duration")]
    Wait(Duration),
    /// Wait until something is true, at most `within`; fails the scenario when it never is.
    WaitUntil(Expectation),
    /// Break something.
    Fault(Fault),
    /// Try to create an object that the API must refuse, with a message containing a text.
    Refused(RefusedAction),
}

/// Manifests to act on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ManifestSet {
    /// Files or folders (their `*.yaml`, `*.yml`, `*.json`, in name order), relative to `spec.manifests`. With
    /// `forEach`, `${variable}` is replaced in them.
    #[serde(default)]
    pub files: Vec<String>,
    /// Objects written in the scenario itself.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// Repeats the set for every combination of values, the first loop outermost. Each loop's variable can be used
    /// as `${name}` in `files`, and in the manifests themselves.
    #[serde(default)]
    pub for_each: Vec<Loop>,
    /// Cluster time between two files.
    #[serde(default, with = "duration")]
    pub pause: Duration,
    /// Namespace for namespaced objects that name none.
    #[serde(default)]
    pub namespace: Option<String>,
}

/// A loop variable.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Loop {
    /// Name to use as `${name}`.
    pub name: String,
    /// Its values, in order.
    pub values: Vec<String>,
    /// Cluster time to let pass after each value.
    #[serde(default, with = "duration")]
    pub pause: Duration,
}

/// What to delete.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeleteAction {
    /// Delete what these manifests describe; absent objects are fine.
    #[serde(default)]
    pub files: Vec<String>,
    /// Delete this object; it must exist.
    #[serde(default)]
    pub object: Option<Reference>,
}

/// A merge patch of one object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PatchAction {
    /// What to patch.
    pub object: Reference,
    /// RFC 7386 merge patch.
    pub merge: Value,
    /// `status` or `scale`, if it is not the object itself.
    #[serde(default)]
    pub subresource: Option<String>,
}

/// An action that must be refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RefusedAction {
    /// What is tried: an object to create.
    pub create: Value,
    /// Namespace when the object names none.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Text that the refusal's message must contain.
    pub message: String,
    /// Status reason the refusal must have, such as `Invalid` or `Forbidden`.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A table to print, or the explanation of one workload. Exactly one of `resource` and `explain` is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Show {
    /// Resource as kubectl takes it: `jobs`, `clusterqueues`, `nodes`.
    #[serde(default)]
    pub resource: String,
    /// Job or Workload whose explanation is printed, as `berth explain` prints it.
    #[serde(default)]
    pub explain: String,
    /// Only this namespace; all when absent.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Also print columns that kubectl shows with `-o wide`.
    #[serde(default)]
    pub wide: bool,
    /// Only objects with these labels (a label selector).
    #[serde(default)]
    pub selector: Option<String>,
    /// Instead of rows, print how many objects there are per value of this field.
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
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a scenario.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        problem: String,
    },
    /// Variables without a value.
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

    /// Parses a scenario from YAML (or JSON) text.
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

    /// The variables with the caller's values filled in.
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
        // A value for a name the scenario does not list is most likely a typing error, but harmless: it is used.
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

/// Durations as people write them: `500ms`, `1.5s`, `90s`, `2m30s`, `1h`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer};

    /// Reads a duration, or says what would have been accepted.
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

    /// The same for optional fields.
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
    fn durations_read_as_people_write_them() {
        assert_eq!(duration::parse("2m30s"), Ok(Duration::from_secs(150)));
        assert_eq!(duration::parse("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration::parse("5 minutes").unwrap_err().contains("expected something like"));
    }

    #[test]
    fn an_unknown_field_is_an_error_that_names_it() {
        let error = Scenario::parse(&format!("{MINIMAL}  steps: [{{name: a, exepct: []}}]\n")).unwrap_err();
        assert!(error.contains("exepct"), "{error}");
    }

    #[test]
    fn a_variable_without_value_must_be_given() {
        let text = format!("{MINIMAL}  variables: {{REGION: null, ZONE: c}}\n  steps: [{{name: a}}]\n");
        let scenario = Scenario::parse(&text).unwrap();
        let error = scenario.resolve_variables(&BTreeMap::new()).unwrap_err().to_string();
        assert_eq!(error, "scenario x: no value for REGION; give it with --set NAME=VALUE or in spec.variables");
        let given = BTreeMap::from([("REGION".to_owned(), "r".to_owned())]);
        assert_eq!(scenario.resolve_variables(&given).unwrap()["ZONE"], "c");
    }
}
