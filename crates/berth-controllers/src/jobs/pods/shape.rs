//! The shape of a pod: the fields that determine its quota and its placement. Pods of a group with
//! the same shape form one pod set, whose name is the hash of the shape.
//!
//! The name is Kueue's, so that groups continue when Berth replaces Kueue, and when Kueue replaces
//! Berth. Kueue hashes the JSON that Go writes for the shape. Therefore the fields of each type
//! stand in the order of Kubernetes' Go types, and maps in the order of their keys.
//!
//! Source: Kueue 0.19, `GenerateRoleHash`.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Number of digits of a role's name.
const DIGITS: usize = 8;

/// Name of the pod set for a pod of this spec. `None` if the spec is not one of a pod, which the
/// API server rejects.
pub fn role(spec: &Value) -> Option<String> {
    let spec = Shape::deserialize(spec).ok()?;
    // Go escapes these characters in strings. They cannot occur elsewhere in JSON.
    let text = serde_json::to_string(&Shaped { spec }).ok()?;
    let text = text.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
    let digest = hex::encode(Sha256::digest(text.as_bytes()));
    Some(digest[..DIGITS].to_owned())
}

/// True if a role has a name that [`role`] could have given, in this version or an earlier one.
/// Other names come from the annotation of a client.
pub fn is_hash(role: &str) -> bool {
    role.len() == DIGITS && role.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// A field without an entry. Go leaves some of them out, and writes `null` for the others.
trait Empty {
    fn is_empty(&self) -> bool;
}

impl<T> Empty for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<V> Empty for BTreeMap<String, V> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Empty for String {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Empty for i32 {
    fn is_empty(&self) -> bool {
        *self == 0
    }
}

fn nothing<T: Empty>(field: &Option<T>) -> bool {
    field.as_ref().is_none_or(Empty::is_empty)
}

/// Writes `null` for an empty field.
fn or_null<T: Empty + Serialize, S: Serializer>(field: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    field.as_ref().filter(|field| !field.is_empty()).serialize(serializer)
}

/// A quantity in its canonical form.
struct Amount(Quantity);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Quantity::from_json(&value).map(Amount).map_err(de::Error::custom)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

type Resources = BTreeMap<String, Amount>;
type Text = Option<String>;
type Texts = Option<Vec<String>>;

#[derive(Serialize)]
struct Shaped {
    spec: Shape,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    affinity: Option<Affinity>,
    #[serde(serialize_with = "or_null")]
    containers: Option<Vec<Container>>,
    #[serde(serialize_with = "or_null")]
    init_containers: Option<Vec<Container>>,
    #[serde(serialize_with = "or_null")]
    node_selector: Option<BTreeMap<String, String>>,
    #[serde(serialize_with = "or_null")]
    overhead: Option<Resources>,
    priority: Option<i32>,
    #[serde(serialize_with = "or_null")]
    resource_claims: Option<Vec<Claim>>,
    /// Written as the requests alone, and only if the pod has resources of its own.
    #[serde(serialize_with = "requests", skip_serializing_if = "Option::is_none")]
    resources: Option<Requests>,
    runtime_class_name: Text,
    #[serde(serialize_with = "or_null")]
    tolerations: Option<Vec<Toleration>>,
    #[serde(serialize_with = "or_null")]
    topology_spread_constraints: Option<Vec<Spread>>,
}

fn requests<S: Serializer>(resources: &Option<Requests>, serializer: S) -> Result<S::Ok, S::Error> {
    match resources {
        Some(resources) => or_null(&resources.requests, serializer),
        None => serializer.serialize_none(),
    }
}

#[derive(Default, Deserialize, Serialize)]
struct Requests {
    #[serde(serialize_with = "or_null")]
    requests: Option<Resources>,
}

#[derive(Deserialize, Serialize)]
struct Container {
    #[serde(serialize_with = "or_null")]
    ports: Option<Vec<Port>>,
    #[serde(default)]
    resources: Requests,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    #[serde(skip_serializing_if = "nothing")]
    name: Text,
    #[serde(skip_serializing_if = "nothing")]
    host_port: Option<i32>,
    #[serde(default)]
    container_port: i32,
    #[serde(skip_serializing_if = "nothing")]
    protocol: Text,
    #[serde(rename = "hostIP", skip_serializing_if = "nothing")]
    host_ip: Text,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    #[serde(default)]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_claim_name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_claim_template_name: Text,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Toleration {
    #[serde(skip_serializing_if = "nothing")]
    key: Text,
    #[serde(skip_serializing_if = "nothing")]
    operator: Text,
    #[serde(skip_serializing_if = "nothing")]
    value: Text,
    #[serde(skip_serializing_if = "nothing")]
    effect: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    toleration_seconds: Option<i64>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spread {
    #[serde(default)]
    max_skew: i32,
    #[serde(default)]
    topology_key: String,
    #[serde(default)]
    when_unsatisfiable: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_domains: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_affinity_policy: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_taints_policy: Text,
    #[serde(skip_serializing_if = "nothing")]
    match_label_keys: Texts,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct LabelSelector {
    #[serde(skip_serializing_if = "nothing")]
    match_labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "nothing")]
    match_expressions: Option<Vec<Requirement>>,
}

#[derive(Deserialize, Serialize)]
struct Requirement {
    #[serde(default)]
    key: String,
    #[serde(default)]
    operator: String,
    #[serde(skip_serializing_if = "nothing")]
    values: Texts,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Affinity {
    #[serde(skip_serializing_if = "Option::is_none")]
    node_affinity: Option<NodeAffinity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_affinity: Option<PodAffinity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_anti_affinity: Option<PodAffinity>,
}

#[derive(Deserialize, Serialize)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", skip_serializing_if = "Option::is_none")]
    required: Option<NodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", skip_serializing_if = "nothing")]
    preferred: Option<Vec<PreferredNodes>>,
}

#[derive(Deserialize, Serialize)]
struct NodeSelector {
    #[serde(rename = "nodeSelectorTerms")]
    terms: Option<Vec<NodeTerm>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeTerm {
    #[serde(skip_serializing_if = "nothing")]
    match_expressions: Option<Vec<Requirement>>,
    #[serde(skip_serializing_if = "nothing")]
    match_fields: Option<Vec<Requirement>>,
}

#[derive(Deserialize, Serialize)]
struct PreferredNodes {
    #[serde(default)]
    weight: i32,
    #[serde(default)]
    preference: NodeTerm,
}

/// Affinity or anti-affinity to pods.
#[derive(Deserialize, Serialize)]
struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", skip_serializing_if = "nothing")]
    required: Option<Vec<PodTerm>>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", skip_serializing_if = "nothing")]
    preferred: Option<Vec<PreferredPods>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodTerm {
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "nothing")]
    namespaces: Texts,
    #[serde(default)]
    topology_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "nothing")]
    match_label_keys: Texts,
    #[serde(skip_serializing_if = "nothing")]
    mismatch_label_keys: Texts,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PreferredPods {
    #[serde(default)]
    weight: i32,
    #[serde(default)]
    pod_affinity_term: PodTerm,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each name is the one that Kueue's `GenerateRoleHash` gives to the spec.
    #[test]
    fn the_name_of_a_role_is_kueues() {
        let named = |spec: &Value, name: &str| assert_eq!(role(spec).as_deref(), Some(name), "{spec}");
        named(&json!({"containers": [{"name": "c"}]}), "7aa6c7b8");
        let tolerated = ["not-ready", "unreachable"].map(|key| {
            json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 300})
        });
        let resources = json!({"requests": {"memory": "0.5Gi", "cpu": "1000m"}, "limits": {"cpu": "1"}});
        let containers = json!([{"name": "c", "image": "pause", "resources": resources}]);
        named(&json!({"containers": containers, "priority": 0, "tolerations": tolerated}), "ad58b949");
        let required = json!([{"topologyKey": "kubernetes.io/hostname", "mismatchLabelKeys": ["m"],
            "matchLabelKeys": ["l"], "namespaceSelector": {}, "namespaces": ["b", "a"],
            "labelSelector": {"matchExpressions": [{"values": ["w"], "operator": "In", "key": "app"}],
                "matchLabels": {"z": "1", "b": "2"}}}]);
        let node_terms = json!([{"matchExpressions": [{"values": ["<gpu>&"], "operator": "NotIn", "key": "kind"},
            {"key": "disk", "operator": "Exists"}]}]);
        let preference = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        let spec = json!({
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required,
                    "preferredDuringSchedulingIgnoredDuringExecution":
                        [{"podAffinityTerm": {"topologyKey": "zone"}, "weight": 5}]},
                "podAffinity": {},
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "preference": preference}],
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": node_terms}}},
            "containers": [
                {"name": "c", "ports": [{"protocol": "TCP", "containerPort": 80, "hostPort": 8080, "name": "http",
                    "hostIP": "10.0.0.1"}, {"containerPort": 81}],
                    "resources": {"requests": {"nvidia.com/gpu": 2, "cpu": "1500m"}, "claims": [{"name": "x"}]}},
                {"name": "d"}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "0.1"}}}],
            "nodeSelector": {"z": "y", "a": "b"}, "overhead": {"memory": "128Mi"}, "priority": 1000,
            "resourceClaims": [{"resourceClaimTemplateName": "t", "name": "x"},
                {"name": "y", "resourceClaimName": "r"}],
            "resources": {"limits": {"cpu": "4"}}, "runtimeClassName": "kata",
            "tolerations": [{"effect": "NoSchedule", "value": "", "operator": "Equal", "key": "k"},
                {"operator": "Exists", "tolerationSeconds": 0}],
            "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", "topologyKey": "zone", "maxSkew": 1,
                "labelSelector": {"matchLabels": {"app": "w"}}, "minDomains": 2, "matchLabelKeys": ["h"],
                "nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Ignore"}]});
        named(&spec, "5cd6349d");
    }

    #[test]
    fn pods_with_equal_requirements_have_one_role() {
        let spec =
            |image: &str, cpu: &str| json!({"containers": [{"image": image, "resources": {"requests": {"cpu": cpu}}}]});
        assert_eq!(role(&spec("a", "1")), role(&spec("b", "1")), "the image is not a requirement");
        assert_eq!(role(&spec("a", "1")), role(&spec("a", "1000m")), "quantities are compared by amount");
        assert_ne!(role(&spec("a", "1")), role(&spec("a", "2")));
        let mut selected = spec("a", "1");
        selected["nodeSelector"] = json!({});
        assert_eq!(role(&spec("a", "1")), role(&selected));
        selected["nodeSelector"] = json!({"disk": "fast"});
        assert_ne!(role(&spec("a", "1")), role(&selected));
    }

    #[test]
    fn a_spec_that_is_not_one_of_a_pod_has_no_role() {
        assert_eq!(role(&json!({"containers": "none"})), None);
        assert_eq!(role(&Value::Null), None);
    }
}
