//! Reads documents into a set of objects.

use std::collections::BTreeMap;

use berth_api::berth::ClusterConfiguration;
use berth_api::json::Json;
use berth_apimachinery::decode;
use berth_controllers::configuration;
use berth_controllers::jobs::preview;
use berth_controllers::webhooks;
use serde_json::{Value, json};

use super::{Document, Invalid, Namespaced, ObjectRef, Objects, Source, Sourced, pool, validate};

/// Splits a file of manifests into its documents; an error has the line of the document and the
/// problem.
pub fn documents(file: &str, text: &str) -> Result<Vec<Document>, (usize, String)> {
    let mut documents = Vec::new();
    for (line, part) in parts(text) {
        let values = decode::documents(part).map_err(|error| (line, error.to_string()))?;
        for value in values {
            let source = Some(Source { file: file.into(), line });
            // A List holds objects of several kinds.
            if value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && value["items"].is_array() {
                let items = value["items"].as_array().into_iter().flatten();
                documents.extend(items.map(|item| Document { value: item.clone(), source: source.clone() }));
            } else {
                documents.push(Document { value, source });
            }
        }
    }
    Ok(documents)
}

/// The parts of a file between lines `---`, and their first lines.
fn parts(text: &str) -> Vec<(usize, &str)> {
    if text.trim_start().starts_with(['{', '[']) {
        return vec![(1, text)];
    }
    let (mut parts, mut start, mut start_line, mut at) = (Vec::new(), 0, 1, 0);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        at += line.len();
        if line.trim_end() == "---" || line.starts_with("--- ") {
            parts.push((start_line, &text[start..at - line.len()]));
            (start, start_line) = (at, number + 1);
        }
    }
    parts.push((start_line, &text[start..]));
    let is_empty = |part: &str| part.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    parts.retain(|(_, part)| !is_empty(part));
    // The line of a document is that of its first field.
    for (line, part) in &mut parts {
        let skipped = part.lines().take_while(|line| line.trim().is_empty() || line.starts_with('#')).count();
        *line += skipped;
    }
    parts
}

impl Objects {
    /// Reads documents. Those of a live cluster were validated by its API server, so only those
    /// with a source are validated. Of two objects with one name, the first counts.
    pub fn read(documents: Vec<Document>) -> Objects {
        let mut objects = Objects::default();
        let (configurations, documents): (Vec<_>, Vec<_>) =
            documents.into_iter().partition(|document| validate::is_configuration(&document.value));
        for document in configurations {
            objects.configure(document);
        }
        for document in documents {
            let (object, source) = (ObjectRef::of(&document.value), document.source.clone());
            if let Err(problems) = objects.add(document) {
                objects.invalid.push(Invalid { object, problems, source });
            }
        }
        objects
    }

    fn configure(&mut self, document: Document) {
        let object = ObjectRef { kind: "Configuration".to_owned(), ..ObjectRef::of(&document.value) };
        let mut problems = Vec::new();
        if self.has_configuration {
            problems.push("is there twice".to_owned());
        } else {
            self.has_configuration = true;
            match configuration::read(document.value, "berth-system") {
                Ok(loaded) => self.config = loaded.config,
                Err(errors) => problems.extend(errors.iter().map(ToString::to_string)),
            }
        }
        if !problems.is_empty() {
            self.invalid.push(Invalid { object, problems, source: document.source });
        }
    }

    fn add(&mut self, document: Document) -> Result<(), Vec<String>> {
        let Document { mut value, source } = document;
        let version = value["apiVersion"].as_str().unwrap_or_default().to_owned();
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        if kind.is_empty() || version.is_empty() {
            // Values files and the like: no manifests.
            *self.ignored.entry("no manifest".to_owned()).or_default() += 1;
            return Ok(());
        }
        let group = version.split_once('/').map_or("", |(group, _)| group);
        if matches!((group, kind.as_str()), ("berth.dev", "ClusterConfiguration")) {
            return self.cluster_configuration(value, source);
        }
        if preview::is_job(&value) {
            self.jobs.push(Sourced { object: value, source });
            return Ok(());
        }
        let names = &value["metadata"]["name"];
        if names.as_str().is_none_or(str::is_empty) && (group == "kueue.x-k8s.io" || kind == "NodePool") {
            return Err(vec!["metadata.name: is required".to_owned()]);
        }
        if is_surrounding(group, &kind) {
            self.surroundings.push(value.clone());
        }
        if group == "kueue.x-k8s.io" && source.is_some() && kind != "Workload" {
            validate::kueue(&mut value, &self.config)?;
        }
        let known = match (group, kind.as_str()) {
            ("kueue.x-k8s.io", _) => return self.add_kueue(&kind, value, source),
            ("", "Namespace") => put(&mut self.namespaces, &value, source),
            ("", "Node") => put(&mut self.nodes, &value, source),
            ("berth.dev", "NodePool") => put(&mut self.node_pools, &value, source),
            ("scheduling.k8s.io", "PriorityClass") => put(&mut self.priority_classes, &value, source),
            ("", "Pod") => {
                self.pods.insert(key(&value), webhooks::typed(&value).map_err(|error| vec![error])?);
                Ok(())
            }
            ("", "LimitRange") => {
                self.limit_ranges.insert(key(&value), webhooks::typed(&value).map_err(|error| vec![error])?);
                Ok(())
            }
            ("resource.k8s.io", "ResourceClaimTemplate") if has_devices(&version) => {
                let template = webhooks::typed(&value).map_err(|error| vec![error])?;
                self.claim_templates.insert(in_namespace(key(&value)), template);
                Ok(())
            }
            ("resource.k8s.io", "DeviceClass") if has_devices(&version) => {
                self.device_classes.insert(key(&value).1, webhooks::typed(&value).map_err(|error| vec![error])?);
                Ok(())
            }
            ("resource.k8s.io", "ResourceSlice") if has_devices(&version) => {
                self.device_slices.insert(key(&value).1, webhooks::typed(&value).map_err(|error| vec![error])?);
                Ok(())
            }
            ("node.k8s.io", "RuntimeClass") => {
                self.runtime_classes.insert(key(&value).1, webhooks::typed(&value).map_err(|error| vec![error])?);
                Ok(())
            }
            _ => {
                *self.ignored.entry(kind).or_default() += 1;
                Ok(())
            }
        };
        known.map_err(|problem| vec![problem])
    }

    fn add_kueue(&mut self, kind: &str, mut value: Value, source: Option<Source>) -> Result<(), Vec<String>> {
        let known = match kind {
            "ResourceFlavor" => put(&mut self.flavors, &value, source),
            "Topology" => put(&mut self.topologies, &value, source),
            "Cohort" => put(&mut self.cohorts, &value, source),
            "ClusterQueue" => put(&mut self.cluster_queues, &value, source),
            "AdmissionCheck" => put(&mut self.admission_checks, &value, source),
            "ProvisioningRequestConfig" => put(&mut self.provisioning_configs, &value, source),
            "WorkloadPriorityClass" => put(&mut self.workload_classes, &value, source),
            "LocalQueue" | "Workload" => {
                if key(&value).0.is_empty() {
                    value["metadata"]["namespace"] = json!("default");
                }
                match kind {
                    "LocalQueue" => put_namespaced(&mut self.local_queues, &value, source),
                    _ => put_namespaced(&mut self.workloads, &value, source),
                }
            }
            _ => {
                *self.ignored.entry(kind.to_owned()).or_default() += 1;
                Ok(())
            }
        };
        known.map_err(|problem| vec![problem])
    }

    fn cluster_configuration(&mut self, value: Value, source: Option<Source>) -> Result<(), Vec<String>> {
        let configuration = ClusterConfiguration::from_value(value).map_err(|error| vec![error.to_string()])?;
        self.has_auto_provisioning |= configuration.node_auto_provisioning.enabled;
        for named in configuration.node_pools {
            let object = pool(&named.name, named.spec);
            self.node_pools.entry(named.name).or_insert(Sourced { object, source: source.clone() });
        }
        Ok(())
    }
}

/// True for the version in which devices are counted, as the controllers do.
fn has_devices(version: &str) -> bool {
    version == "resource.k8s.io/v1"
}

fn in_namespace((namespace, name): Namespaced) -> Namespaced {
    (if namespace.is_empty() { "default".to_owned() } else { namespace }, name)
}

/// Files may leave out the namespace of a job, LocalQueue or other object of a namespace. It is
/// then created in the namespace of the command that creates it.
pub fn complete_namespace(value: &mut Value, namespace: &str) {
    const NAMESPACED: [&str; 5] = ["LocalQueue", "Workload", "Pod", "LimitRange", "ResourceClaimTemplate"];
    let is_namespaced = value["kind"].as_str().is_some_and(|kind| NAMESPACED.contains(&kind)) || preview::is_job(value);
    if is_namespaced
        && value["metadata"]["namespace"].as_str().is_none_or(str::is_empty)
        && value["metadata"].is_object()
    {
        value["metadata"]["namespace"] = json!(namespace);
    }
}

fn is_surrounding(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("", "Namespace")
            | ("scheduling.k8s.io", "PriorityClass")
            | ("kueue.x-k8s.io", "WorkloadPriorityClass")
            | ("trainer.kubeflow.org", "TrainingRuntime" | "ClusterTrainingRuntime")
    )
}

fn key(value: &Value) -> Namespaced {
    let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn put<T: Json>(map: &mut BTreeMap<String, Sourced<T>>, value: &Value, source: Option<Source>) -> Result<(), String> {
    let object = webhooks::typed(value)?;
    insert(map, key(value).1, object, source)
}

fn put_namespaced<T: Json>(
    map: &mut BTreeMap<Namespaced, Sourced<T>>,
    value: &Value,
    source: Option<Source>,
) -> Result<(), String> {
    let object = webhooks::typed(value)?;
    insert(map, key(value), object, source)
}

fn insert<K: Ord, T>(
    map: &mut BTreeMap<K, Sourced<T>>,
    key: K,
    object: T,
    source: Option<Source>,
) -> Result<(), String> {
    if let Some(known) = map.get(&key) {
        let place = known.source.as_ref().map(|it| format!(": first in {}, line {}", it.file, it.line));
        return Err(format!("is there twice{}", place.unwrap_or_default()));
    }
    map.insert(key, Sourced { object, source });
    Ok(())
}
