//! Reads a policy from a YAML file of Kueue's manifests.
//!
//! ResourceFlavors, Topologies, Nodes, Cohorts, ClusterQueues, LocalQueues, Namespaces,
//! AdmissionChecks, WorkloadPriorityClasses and Kueue's Configuration are read as the controllers
//! read them: defaulted and checked by the schemas of their definitions and by the rules of the
//! webhooks, and translated by the same functions. A `ReplayPolicy` says how jobs map to
//! LocalQueues, and what capacity costs. Admission checks pass at once in a replay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::json::Json;
use berth_api::kueue::v1beta2 as api;
use berth_apimachinery::decode;
use berth_controllers::configuration::{self, Config};
use berth_controllers::translate;
use berth_controllers::webhooks;
use berth_engine::model::Labels;
use berth_engine::{Event, Name};
use serde::Deserialize;
use serde_json::Value;

use super::{Mapping, Policy, PolicyError, Prices, QueueRef, Rule};
use crate::objects::validate::{self, is_configuration};

/// `apiVersion` of a [`ReplayPolicySpec`].
pub const API_VERSION: &str = "replay.berth.dev/v1alpha1";

/// `spec` of a `ReplayPolicy`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ReplayPolicySpec {
    /// Rules in order; the first that matches a job decides.
    rules: Vec<RuleSpec>,
    /// Prices of capacity.
    prices: Vec<PriceSpec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleSpec {
    #[serde(rename = "match", default)]
    conditions: BTreeMap<String, Vec<String>>,
    local_queue: String,
    #[serde(default)]
    priority_class_name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PriceSpec {
    resource: String,
    #[serde(default)]
    flavor: Option<String>,
    per_hour: f64,
}

/// Reads a policy; `name` is its name in reports and errors.
pub fn parse(name: &str, text: &str) -> Result<Policy, PolicyError> {
    let fail = |object: String, problem: String| PolicyError::Object { file: name.to_owned(), object, problem };
    let documents = decode::documents(text).map_err(|error| fail("YAML".to_owned(), error.to_string()))?;
    read(name, documents, true)
}

/// A policy of manifests that Berth made. They are not checked, because their names may be those of
/// tenants that Kubernetes would reject.
pub(super) fn unchecked(name: &str, documents: Vec<Value>) -> Result<Policy, PolicyError> {
    read(name, documents, false)
}

fn read(name: &str, documents: Vec<Value>, is_checked: bool) -> Result<Policy, PolicyError> {
    let fail = |object: String, problem: String| PolicyError::Object { file: name.to_owned(), object, problem };
    let (configuration, config) = config(&documents).map_err(|it| fail("Configuration".to_owned(), it))?;
    let mut reader = Reader { config, configuration, is_checked, ..Reader::default() };
    for (number, document) in (1..).zip(documents) {
        let kind = document["kind"].as_str().unwrap_or("document").to_owned();
        let object = match document["metadata"]["name"].as_str() {
            Some(name) => format!("{kind} {name}"),
            None => format!("{kind}, document {number}"),
        };
        reader.document(document).map_err(|problem| fail(object, problem))?;
    }
    reader.policy(name).map_err(|problem| fail("the policy".to_owned(), problem))
}

/// The file's Configuration, and its settings or the defaults.
fn config(documents: &[Value]) -> Result<(Option<Value>, Config), String> {
    let mut found = documents.iter().filter(|document| is_configuration(document));
    let Some(first) = found.next() else { return Ok((None, Config::default())) };
    if found.next().is_some() {
        return Err("is twice in the file".to_owned());
    }
    let loaded = configuration::read(first.clone(), "berth-system");
    loaded.map(|loaded| (Some(first.clone()), loaded.config)).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("; ")
    })
}

/// What the documents read so far define. Events of one stage only depend on earlier stages.
#[derive(Default)]
struct Reader {
    config: Config,
    stages: [Vec<Event>; 4],
    namespaces: BTreeMap<Name, Labels>,
    mapping: Mapping,
    priority_classes: BTreeMap<Name, i32>,
    prices: Prices,
    manifests: Vec<Value>,
    configuration: Option<Value>,
    /// True if objects are defaulted and validated.
    is_checked: bool,
    seen: BTreeSet<(String, String)>,
}

impl Reader {
    fn document(&mut self, mut document: Value) -> Result<(), String> {
        let version = document["apiVersion"].as_str().unwrap_or_default().to_owned();
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        if is_configuration(&document) {
            return Ok(());
        }
        let metadata = &document["metadata"];
        let key = format!("{}/{}", metadata["namespace"].as_str().unwrap_or_default(), metadata["name"]);
        if kind != "ReplayPolicy" && !self.seen.insert((kind.clone(), key)) {
            return Err("is twice in the file".to_owned());
        }
        match (group, kind.as_str()) {
            ("kueue.x-k8s.io", _) => {
                if self.is_checked {
                    validate::kueue(&mut document, &self.config).map_err(|problems| problems.join("; "))?;
                }
                self.kueue(&document, &kind)?;
                self.manifests.push(document);
                Ok(())
            }
            ("", "Namespace") => {
                let labels = document["metadata"]["labels"].as_object().into_iter().flatten();
                let labels = labels
                    .map(|(key, value)| (Name::from(key.as_str()), Name::from(value.as_str().unwrap_or_default())));
                let name = document["metadata"]["name"].as_str().ok_or("metadata.name: is required")?;
                self.namespaces.entry(Name::from(name)).or_default().extend(labels);
                self.manifests.push(document);
                Ok(())
            }
            ("", "Node") => {
                self.stages[0].push(Event::NodeUpserted(translate::node(&typed(&document)?)));
                self.manifests.push(document);
                Ok(())
            }
            ("replay.berth.dev", "ReplayPolicy") if version == API_VERSION => self.replay_policy(&document),
            _ => Err(format!(
                "apiVersion {version} is not part of a policy: expected Kueue's ResourceFlavor, Topology, Cohort, \
                 ClusterQueue, LocalQueue, AdmissionCheck, WorkloadPriorityClass and Configuration, or Namespace, Node, \
                 and ReplayPolicy of {API_VERSION}"
            )),
        }
    }

    fn kueue(&mut self, document: &Value, kind: &str) -> Result<(), String> {
        let (stage, event) = match kind {
            "Topology" => (0, Event::TopologyUpserted(translate::topology(&typed(document)?))),
            "AdmissionCheck" => {
                (0, Event::AdmissionCheckUpserted(active(translate::admission_check(&typed(document)?))))
            }
            "ResourceFlavor" => (1, Event::FlavorUpserted(translate::flavor(&typed(document)?))),
            "Cohort" => (2, Event::CohortUpserted(translate::cohort(&typed(document)?))),
            "ClusterQueue" => (2, Event::ClusterQueueUpserted(translate::cluster_queue(&typed(document)?))),
            "LocalQueue" => {
                let queue = translate::local_queue(&typed(document)?);
                if queue.namespace.is_empty() {
                    return Err("metadata.namespace: is required".to_owned());
                }
                self.namespaces.entry(queue.namespace.clone()).or_default();
                let target = QueueRef { namespace: queue.namespace.clone(), name: queue.name.clone() };
                self.mapping.queues.insert(target);
                (3, Event::LocalQueueUpserted(queue))
            }
            "WorkloadPriorityClass" => {
                let class: api::WorkloadPriorityClass = typed(document)?;
                let name = class.metadata.name.unwrap_or_default();
                self.priority_classes.insert(Name::from(name), class.value);
                return Ok(());
            }
            _ => return Err("is not part of a policy".to_owned()),
        };
        self.stages[stage].push(event);
        Ok(())
    }

    fn replay_policy(&mut self, document: &Value) -> Result<(), String> {
        let spec = ReplayPolicySpec::deserialize(&document["spec"]).map_err(|error| format!("spec: {error}"))?;
        for (number, rule) in spec.rules.into_iter().enumerate() {
            let conditions = rule.conditions.into_iter().map(|(key, values)| (key, values.into_iter().collect()));
            let rule = Rule {
                conditions: conditions.collect(),
                queue: rule.local_queue,
                priority_class: rule.priority_class_name.map(Name::from),
            };
            if let Some(problem) = rule.problem() {
                return Err(format!("spec.rules[{number}].{problem}"));
            }
            self.mapping.rules.push(rule);
        }
        for (number, price) in spec.prices.into_iter().enumerate() {
            if !price.per_hour.is_finite() || price.per_hour < 0.0 {
                return Err(format!("spec.prices[{number}].perHour: {} is not a price", price.per_hour));
            }
            self.prices.set(Name::from(price.resource), price.flavor.map(Name::from), price.per_hour);
        }
        Ok(())
    }

    fn policy(self, name: &str) -> Result<Policy, String> {
        let known = |class: &Name| self.priority_classes.contains_key(class);
        let used = self.mapping.rules.iter().filter_map(|rule| rule.priority_class.as_ref());
        if let Some(missing) = used.into_iter().find(|class| !known(class)) {
            return Err(format!("a rule names WorkloadPriorityClass {missing}, which is not in the file"));
        }
        let mut objects = Vec::new();
        for (name, mut labels) in self.namespaces {
            labels.insert(Name::from("kubernetes.io/metadata.name"), name.clone());
            objects.push(Event::NamespaceUpserted { name, labels });
        }
        objects.extend(self.stages.into_iter().flatten());
        let mut config = self.config.engine();
        config.flush_delay = Duration::ZERO;
        Ok(Policy {
            name: name.to_owned(),
            config,
            resources: self.config.resources.clone(),
            objects,
            mapping: self.mapping,
            priority_classes: self.priority_classes,
            prices: self.prices,
            manifests: self.manifests,
            configuration: self.configuration,
        })
    }
}

/// Checks of a replay pass at once, so their controllers count as active.
fn active(check: berth_engine::model::AdmissionCheck) -> berth_engine::model::AdmissionCheck {
    berth_engine::model::AdmissionCheck { active: true, ..check }
}

fn typed<K: Json>(document: &Value) -> Result<K, String> {
    webhooks::typed(document)
}
