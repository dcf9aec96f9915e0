//! The verdict for each stored object of Kueue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::kueue::constants::MULTIKUEUE_CONTROLLER;
use berth_apimachinery::field::Path;
use berth_apimachinery::schema::{Root, Schema};
use berth_controllers::configuration::{self, frameworks};
use berth_controllers::gates::{Gate, Support};
use berth_controllers::webhooks::{Request, Webhooks};
use berth_controllers::{Config, stores::group_of};
use serde_json::Value;

use super::{Judged, Note, Verdict};
use crate::objects::{Document, ObjectRef};

const KUEUE: &str = "kueue.x-k8s.io";
const NO_DISPATCH: &str = "Berth does not dispatch workloads to other clusters";

/// Reads Kueue's configuration, and names its differences. `None` if Berth rejects it.
pub fn configuration(value: &Value) -> (Option<Config>, Vec<Note>) {
    match configuration::read(value.clone(), "berth-system") {
        Ok(loaded) => (Some(loaded.config), defaults(value)),
        Err(errors) => {
            let note = |error: &berth_apimachinery::field::Error| {
                Note::new(Verdict::Unsupported, error.field.clone(), format!("is rejected: {}", error.body()))
            };
            (None, errors.iter().map(note).collect())
        }
    }
}

/// Fields that are absent and have another default in Berth.
fn defaults(value: &Value) -> Vec<Note> {
    let different = |field: &str, message: &str| Note::new(Verdict::Different, field, message);
    let mut notes = Vec::new();
    if value["clientConnection"].is_null() {
        notes.push(different("clientConnection", "absent: Berth has no limit of requests; Kueue has one"));
    }
    let election = &value["leaderElection"];
    if election["leaseDuration"].is_null() && election["leaderElect"] != false {
        notes.push(different(
            "leaderElection",
            "absent durations: a lost leader is replaced after 8s; Kueue's default is 15s",
        ));
    }
    let certificates = &value["internalCertManagement"];
    if certificates["webhookServiceName"].is_null() && certificates["enable"] != false {
        notes.push(different(
            "internalCertManagement.webhookServiceName",
            "absent: the Service of the webhooks is berth-webhook, and the Secret berth-webhook-certificate",
        ));
    }
    if !value["metrics"]["bindAddress"].is_null() {
        notes.push(different(
            "metrics.bindAddress",
            "metrics are served over HTTP there, unless `berth install --metrics-secure` is used",
        ));
    }
    notes
}

/// A definition of Berth, ready to judge objects.
struct Definition {
    plural: String,
    schema: Arc<Schema>,
}

/// Judges the objects of a set.
pub struct Judge<'a> {
    config: &'a Config,
    webhooks: Webhooks,
    /// Admission checks that dispatch to other clusters.
    dispatching: BTreeSet<&'a str>,
    /// By kind and version; `None` for those that Berth does not serve.
    definitions: BTreeMap<(String, String), Option<Definition>>,
}

impl<'a> Judge<'a> {
    /// A judge for these objects under a configuration.
    pub fn new(documents: &'a [Document], config: &'a Config) -> Judge<'a> {
        let checks = documents.iter().map(|document| &document.value).filter(|value| {
            value["kind"] == "AdmissionCheck" && value["spec"]["controllerName"] == MULTIKUEUE_CONTROLLER
        });
        let dispatching = checks.filter_map(|check| check["metadata"]["name"].as_str()).collect();
        Judge { config, webhooks: Webhooks::new(config.clone()), dispatching, definitions: BTreeMap::new() }
    }

    /// The verdict for an object of Kueue; `None` for other objects.
    pub fn judge(&mut self, document: &Document) -> Option<Judged> {
        let value = &document.value;
        let group = group_of(value["apiVersion"].as_str().unwrap_or_default());
        let notes = match (group, value["kind"].as_str().unwrap_or_default()) {
            (KUEUE, kind) => self.kueue(kind, value),
            ("apiextensions.k8s.io", "CustomResourceDefinition") if value["spec"]["group"] == KUEUE => stored(value),
            ("apps", "Deployment") if value["metadata"]["labels"]["app.kubernetes.io/name"] == "kueue" => {
                release(value)?
            }
            _ => return None,
        };
        Some(Judged { object: ObjectRef::of(value), source: document.source.clone(), notes })
    }

    fn kueue(&mut self, kind: &str, value: &Value) -> Vec<Note> {
        if matches!(kind, "MultiKueueCluster" | "MultiKueueConfig") {
            return vec![Note::new(Verdict::Unsupported, "", NO_DISPATCH)];
        }
        let mut notes = self.schema(kind, value);
        match kind {
            "AdmissionCheck" => notes.extend(admission_check(value, self.config)),
            "ClusterQueue" => notes.extend(self.cluster_queue(value)),
            "Workload" => notes.extend(self.workload(value)),
            _ => {}
        }
        notes
    }

    /// Fields that Berth's definition lacks, and values that Berth would reject if they were
    /// written again.
    fn schema(&mut self, kind: &str, value: &Value) -> Vec<Note> {
        let version = value["apiVersion"].as_str().and_then(|it| it.split_once('/')).map_or("", |(_, version)| version);
        let key = (kind.to_owned(), version.to_owned());
        let definition = self.definitions.entry(key).or_insert_with(|| definition(kind, version));
        let Some(Definition { plural, schema }) = definition else {
            return vec![Note::new(
                Verdict::Unsupported,
                "apiVersion",
                format!("Berth does not serve {kind} in {version}"),
            )];
        };
        let dropped = "Berth's definition has no such field; it is lost with the next write of the object";
        let mut notes: Vec<Note> = schema
            .unknown_fields(value, Root::Resource)
            .iter()
            .map(|field| Note::new(Verdict::Unsupported, field.to_string(), dropped))
            .collect();
        let mut defaulted = value.clone();
        schema.apply_defaults(&mut defaulted);
        let mut errors = schema.validate(&defaulted, &Path::root());
        if errors.is_empty() && kind != "Workload" {
            let namespace = value["metadata"]["namespace"].as_str().unwrap_or_default();
            let request = Request { group: KUEUE, resource: plural, namespace, old_object: None };
            errors = self.webhooks.validate(request, &defaulted, &|_, _, _, _| None);
        }
        let invalid = |error: &berth_apimachinery::field::Error| {
            let message = format!("stays as it is, but a changed object with this value is rejected: {}", error.body());
            Note::new(Verdict::Different, error.field.clone(), message)
        };
        notes.extend(errors.iter().map(invalid));
        notes
    }

    fn cluster_queue(&self, value: &Value) -> Vec<Note> {
        let rules = value["spec"]["admissionChecksStrategy"]["admissionChecks"].as_array().into_iter().flatten();
        let named = rules.enumerate().map(|(index, rule)| {
            (format!("spec.admissionChecksStrategy.admissionChecks[{index}].name"), rule["name"].as_str())
        });
        let plain = value["spec"]["admissionChecks"].as_array().into_iter().flatten();
        let plain = plain.enumerate().map(|(index, name)| (format!("spec.admissionChecks[{index}]"), name.as_str()));
        let dispatching =
            named.chain(plain).filter(|(_, name)| name.is_some_and(|name| self.dispatching.contains(name)));
        let note = |field: String| {
            Note::new(
                Verdict::Unsupported,
                field,
                format!("{NO_DISPATCH}, so the workloads of this queue wait forever"),
            )
        };
        dispatching.map(|(field, _)| note(field)).collect()
    }

    fn workload(&self, value: &Value) -> Vec<Note> {
        let mut notes = Vec::new();
        for field in ["clusterName", "nominatedClusterNames"] {
            let set = &value["status"][field];
            if set.as_str().is_some_and(|name| !name.is_empty()) || set.as_array().is_some_and(|list| !list.is_empty())
            {
                notes.push(Note::new(Verdict::Unsupported, format!("status.{field}"), NO_DISPATCH));
            }
        }
        if Gate::KueueDRAIntegration.support() == Support::Missing {
            for (index, set) in value["spec"]["podSets"].as_array().into_iter().flatten().enumerate() {
                if set["template"]["spec"]["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty()) {
                    let field = format!("spec.podSets[{index}].template.spec.resourceClaims");
                    notes.push(Note::new(
                        Verdict::Unsupported,
                        field,
                        "Berth does not count devices of resource claims",
                    ));
                }
            }
        }
        let owners = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let owner = owners.into_iter().find(|owner| owner["controller"] == true);
        if let Some(owner) = owner {
            let kind = owner["kind"].as_str().unwrap_or_default();
            let group = group_of(owner["apiVersion"].as_str().unwrap_or_default());
            let framework = frameworks::find_kind(group, kind);
            if let Some(name) = framework.map(|it| it.name).filter(|name| !self.config.integrations.enabled(name)) {
                let message = format!(
                    "no integration {name} is enabled: the workload keeps its quota or place, and {kind} {} is neither started \
                     nor stopped",
                    owner["name"].as_str().unwrap_or_default()
                );
                notes.push(Note::new(Verdict::Different, "metadata.ownerReferences", message));
            }
        }
        notes
    }
}

fn admission_check(value: &Value, config: &Config) -> Option<Note> {
    let note = |message: &str| Some(Note::new(Verdict::Unsupported, "spec.controllerName", message));
    match value["spec"]["controllerName"].as_str().unwrap_or_default() {
        MULTIKUEUE_CONTROLLER => note(NO_DISPATCH),
        "kueue.x-k8s.io/provisioning-request" if !config.provisioning_requests => {
            note("the configuration switches ProvisioningRequests off (provisioningRequests)")
        }
        // Other controllers serve their checks as before.
        _ => None,
    }
}

/// Versions in which objects may still be stored.
fn stored(definition: &Value) -> Vec<Note> {
    let versions = definition["status"]["storedVersions"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let old = versions.enumerate().filter(|(_, version)| !matches!(*version, "v1beta1" | "v1beta2"));
    let message = |version: &str| {
        format!(
            "objects may be stored in {version}, which Berth does not convert: run `berth migrate --storage` while Kueue runs"
        )
    };
    old.map(|(index, version)| {
        Note::new(Verdict::Unsupported, format!("status.storedVersions[{index}]"), message(version))
    })
    .collect()
}

/// The Helm release of Kueue's Deployment; `None` if Helm did not install it.
fn release(deployment: &Value) -> Option<Vec<Note>> {
    const NAME: &str = "meta.helm.sh/release-name";
    let annotations = &deployment["metadata"]["annotations"];
    let name = annotations[NAME].as_str()?;
    let namespace = annotations["meta.helm.sh/release-namespace"].as_str().unwrap_or_default();
    let message = format!(
        "installed by Helm release {name} of namespace {namespace}: `helm uninstall {name}` would delete the definitions, and \
         with them all queues and workloads; docs/install.md has the steps for a release"
    );
    Some(vec![Note::new(Verdict::Different, format!("metadata.annotations[{NAME}]"), message)])
}

/// Berth's definition of a kind in a version.
fn definition(kind: &str, version: &str) -> Option<Definition> {
    let named = |it: &&Value| it["spec"]["group"] == KUEUE && it["spec"]["names"]["kind"] == kind;
    let definition = berth_api::crds().iter().find(named)?;
    let versions = definition["spec"]["versions"].as_array()?;
    let served = versions.iter().find(|it| it["name"] == version && it["served"] == true)?;
    let schema = Schema::parse_crd(&served["schema"]["openAPIV3Schema"]).ok()?;
    Some(Definition { plural: definition["spec"]["names"]["plural"].as_str()?.to_owned(), schema })
}
