//! Changes to the objects of a snapshot: manifests, and edits of single fields.

use berth_apimachinery::quantity::Quantity;
use serde_json::{Value, json};
use thiserror::Error;

use super::Snapshot;

/// Why a change cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{change}: {problem}")]
pub struct ChangeError {
    /// The change.
    pub change: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Changes, in the order in which they are made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Objects to add, or to put in the place of those of the same kind and name.
    pub manifests: Vec<Value>,
    /// `CLUSTERQUEUE/FLAVOR/RESOURCE=[+|-]QUANTITY`: nominal quota.
    pub quotas: Vec<String>,
    /// `NAMESPACE/WORKLOAD=PRIORITY`; the workload may be named by its job.
    pub priorities: Vec<String>,
    /// `NODEPOOL=NODES`: maximum number of nodes.
    pub pools: Vec<String>,
    /// `KIND/[NAMESPACE/]NAME` of objects to leave out, or `KIND/LABEL=VALUE` of all with this
    /// label.
    pub without: Vec<String>,
}

impl Changes {
    /// True if nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    /// The snapshot with the changes.
    ///
    /// # Errors
    /// A change names an object that the snapshot lacks, or an invalid value.
    pub fn apply(&self, snapshot: &Snapshot) -> Result<Snapshot, ChangeError> {
        let mut changed = snapshot.clone();
        for manifest in &self.manifests {
            put(&mut changed.objects, manifest);
        }
        let edits: [(&[String], Edit); 4] = [
            (&self.quotas, |objects, text| quota(objects, text)),
            (&self.priorities, |objects, text| priority(objects, text)),
            (&self.pools, |objects, text| pool(objects, text)),
            (&self.without, without),
        ];
        for (texts, edit) in edits {
            for text in texts {
                edit(&mut changed.objects, text).map_err(|problem| ChangeError { change: text.clone(), problem })?;
            }
        }
        Ok(changed)
    }
}

type Edit = fn(&mut Vec<Value>, &str) -> Result<(), String>;

/// Kind, namespace and name.
fn key(object: &Value) -> (&str, &str, &str) {
    let metadata = &object["metadata"];
    (
        object["kind"].as_str().unwrap_or_default(),
        metadata["namespace"].as_str().unwrap_or_default(),
        metadata["name"].as_str().unwrap_or_default(),
    )
}

/// Adds an object, or replaces the one with its name. Identity and status of the old one are kept,
/// as when a manifest is applied.
fn put(objects: &mut Vec<Value>, manifest: &Value) {
    let mut new = manifest.clone();
    match objects.iter_mut().find(|object| key(object) == key(&new)) {
        Some(old) => {
            for field in ["uid", "creationTimestamp", "generation"] {
                if !old["metadata"][field].is_null() {
                    new["metadata"][field] = old["metadata"][field].clone();
                }
            }
            if new["status"].is_null() && !old["status"].is_null() {
                new["status"] = old["status"].clone();
            }
            *old = new;
        }
        None => objects.push(new),
    }
}

fn find<'a>(objects: &'a mut [Value], kind: &str, name: &str) -> Result<&'a mut Value, String> {
    let mut found = objects.iter_mut().filter(|object| object["kind"] == kind);
    found.find(|object| object["metadata"]["name"] == name).ok_or_else(|| format!("there is no {kind} {name}"))
}

fn quota(objects: &mut [Value], text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected CLUSTERQUEUE/FLAVOR/RESOURCE=[+|-]QUANTITY, such as blue/spot/nvidia.com/gpu=+8";
    let (path, amount) = text.split_once('=').ok_or(EXPECTED)?;
    let mut parts = path.splitn(3, '/');
    let (Some(queue), Some(flavor), Some(resource)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(EXPECTED.to_owned());
    };
    let (sign, digits) = match amount.as_bytes().first() {
        Some(b'+') => (Some(1), &amount[1..]),
        Some(b'-') => (Some(-1), &amount[1..]),
        _ => (None, amount),
    };
    let quantity = Quantity::parse(digits).map_err(|_| EXPECTED.to_owned())?;
    let queue_object = find(objects, "ClusterQueue", queue)?;
    let groups = queue_object["spec"]["resourceGroups"].as_array_mut().into_iter().flatten();
    let flavors = groups.filter_map(|group| group["flavors"].as_array_mut()).flatten();
    let resources = flavors.filter(|it| it["name"] == flavor).filter_map(|it| it["resources"].as_array_mut()).flatten();
    let mut named = resources.filter(|it| it["name"] == resource);
    let found =
        named.next().ok_or_else(|| format!("ClusterQueue {queue} has no quota of {resource} in flavor {flavor}"))?;
    let field = &mut found["nominalQuota"];
    let old = field.as_str().map(str::to_owned).unwrap_or_else(|| field.to_string());
    let old = Quantity::parse(&old).map_err(|_| format!("nominalQuota {old} is not a quantity"))?;
    let (old, by) = (i128::from(old.milli_value()), i128::from(quantity.milli_value()));
    let new = sign.map_or(by, |sign| old + sign * by);
    if new < 0 {
        return Err("the nominal quota would be negative".to_owned());
    }
    *field = json!(if new % 1000 == 0 { (new / 1000).to_string() } else { format!("{new}m") });
    Ok(())
}

fn priority(objects: &mut [Value], text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected NAMESPACE/NAME=PRIORITY, such as blue/train-7=100";
    let (path, value) = text.split_once('=').ok_or(EXPECTED)?;
    let (namespace, name) = path.split_once('/').ok_or(EXPECTED)?;
    let value: i32 = value.parse().map_err(|_| EXPECTED.to_owned())?;
    let workload = objects.iter_mut().find(|object| {
        let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let is_named = object["metadata"]["name"] == name || owners.into_iter().any(|owner| owner["name"] == name);
        object["kind"] == "Workload" && object["metadata"]["namespace"] == namespace && is_named
    });
    let workload = workload.ok_or_else(|| format!("there is no Workload {path}, and none of a job of this name"))?;
    workload["spec"]["priority"] = json!(value);
    Ok(())
}

fn pool(objects: &mut [Value], text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected NODEPOOL=NODES, such as spot-np=40";
    let (name, nodes) = text.split_once('=').ok_or(EXPECTED)?;
    let nodes: i32 = nodes.parse().map_err(|_| EXPECTED.to_owned())?;
    let spec = &mut find(objects, "NodePool", name)?["spec"];
    spec["maxNodes"] = json!(nodes);
    if spec["static"] == true {
        spec["nodes"] = json!(nodes);
    }
    Ok(())
}

fn without(objects: &mut Vec<Value>, text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected KIND/NAME, KIND/NAMESPACE/NAME or KIND/LABEL=VALUE, such as Node/gpu-7 or \
                            Node/cloud.google.com/gce-topology-block=rack-3";
    if let Some((kind, (label, value))) = text.split_once('/').and_then(|(kind, of)| Some((kind, of.split_once('=')?)))
    {
        let before = objects.len();
        objects.retain(|object| {
            !(key(object).0.eq_ignore_ascii_case(kind) && object["metadata"]["labels"][label] == value)
        });
        let is_missing = objects.len() == before;
        return if is_missing { Err(format!("there is no {kind} with the label {label}={value}")) } else { Ok(()) };
    }
    let parts: Vec<&str> = text.split('/').collect();
    let (kind, namespace, name) = match parts.as_slice() {
        [kind, name] => (*kind, "", *name),
        [kind, namespace, name] => (*kind, *namespace, *name),
        _ => return Err(EXPECTED.to_owned()),
    };
    let before = objects.len();
    objects.retain(|object| {
        let (of_kind, of_namespace, of_name) = key(object);
        !(of_kind.eq_ignore_ascii_case(kind) && of_namespace == namespace && of_name == name)
    });
    if objects.len() == before { Err(format!("there is no {}", text.replacen('/', " ", 1))) } else { Ok(()) }
}
