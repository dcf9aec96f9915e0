//! The rows of the built-in kinds, as Kubernetes' discovery publishes them: the generally available
//! versions of release 1.36.

use std::sync::Arc;

use super::{Origin, Registry, ResourceInfo, ScalePaths, SchemaSource, Subresource, VersionInfo};

/// Verbs of the main resource.
#[derive(Clone, Copy, PartialEq)]
enum Verbs {
    /// All verbs.
    All,
    /// All verbs except `deletecollection`.
    NoDeleteCollection,
    /// Only `create`. The response is computed; nothing is stored.
    Review,
    /// Only `get` and `list`. The response is computed; nothing is stored.
    Report,
}

const ALL: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const NO_DELETE_COLLECTION: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];
/// Verbs of a subresource that connects a client to a container.
const CONNECT: [&str; 2] = ["create", "get"];
const READ_WRITE: [&str; 3] = ["get", "patch", "update"];

/// One built-in kind. Items of lists are separated by spaces.
struct Row {
    /// The preferred version, which is also the storage version.
    group_version: &'static str,
    /// Other served versions. `ResourceInfo::convert_builtin` converts them.
    older: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static str,
    categories: &'static str,
    namespaced: bool,
    verbs: Verbs,
    subresources: &'static str,
    fields: &'static str,
    /// Text of the `Warning` header in responses, for a deprecated kind.
    deprecation: Option<&'static str>,
}

const fn row(group_version: &'static str, kind: &'static str, plural: &'static str, namespaced: bool) -> Row {
    Row {
        group_version,
        older: "",
        kind,
        plural,
        short_names: "",
        categories: "",
        namespaced,
        verbs: Verbs::All,
        subresources: "",
        fields: "",
        deprecation: None,
    }
}

/// A namespaced kind.
const fn namespaced(group_version: &'static str, kind: &'static str, plural: &'static str) -> Row {
    row(group_version, kind, plural, true)
}

/// A cluster-scoped kind.
const fn cluster(group_version: &'static str, kind: &'static str, plural: &'static str) -> Row {
    row(group_version, kind, plural, false)
}

impl Row {
    const fn short(mut self, names: &'static str) -> Row {
        self.short_names = names;
        self
    }

    const fn older(mut self, versions: &'static str) -> Row {
        self.older = versions;
        self
    }

    const fn category(mut self, categories: &'static str) -> Row {
        self.categories = categories;
        self
    }

    const fn sub(mut self, subresources: &'static str) -> Row {
        self.subresources = subresources;
        self
    }

    /// Sets the fields that selectors may use besides name and namespace, as paths in the object.
    const fn fields(mut self, fields: &'static str) -> Row {
        self.fields = fields;
        self
    }

    const fn deprecated(mut self, warning: &'static str) -> Row {
        self.deprecation = Some(warning);
        self
    }

    const fn verbs(mut self, verbs: Verbs) -> Row {
        self.verbs = verbs;
        self
    }
}

const CORE: &str = "v1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const APPS: &str = "apps/v1";
const AUTHENTICATION: &str = "authentication.k8s.io/v1";
const AUTHORIZATION: &str = "authorization.k8s.io/v1";
const BATCH: &str = "batch/v1";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io/v1";
const NETWORKING: &str = "networking.k8s.io/v1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";
const RESOURCE: &str = "resource.k8s.io/v1";
const STORAGE: &str = "storage.k8s.io/v1";

const ROWS: &[Row] = &[
    namespaced(CORE, "Binding", "bindings").verbs(Verbs::Review),
    cluster(CORE, "ComponentStatus", "componentstatuses")
        .short("cs")
        .verbs(Verbs::Report)
        .deprecated("v1 ComponentStatus is deprecated in v1.19+"),
    namespaced(CORE, "ConfigMap", "configmaps").short("cm"),
    namespaced(CORE, "Endpoints", "endpoints")
        .short("ep")
        .deprecated("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    namespaced(CORE, "Event", "events").short("ev").fields(
        ".involvedObject.kind .involvedObject.namespace .involvedObject.name .involvedObject.uid \
         .involvedObject.apiVersion .involvedObject.resourceVersion .involvedObject.fieldPath .reason \
         .reportingComponent .source .type",
    ),
    namespaced(CORE, "LimitRange", "limitranges").short("limits"),
    cluster(CORE, "Namespace", "namespaces")
        .short("ns")
        .verbs(Verbs::NoDeleteCollection)
        .sub("finalize status")
        .fields(".status.phase"),
    cluster(CORE, "Node", "nodes").short("no").sub("proxy status").fields(".spec.unschedulable"),
    namespaced(CORE, "PersistentVolumeClaim", "persistentvolumeclaims").short("pvc").sub("status"),
    cluster(CORE, "PersistentVolume", "persistentvolumes").short("pv").sub("status"),
    namespaced(CORE, "Pod", "pods")
        .short("po")
        .category("all")
        .sub("attach binding ephemeralcontainers eviction exec log portforward proxy resize status")
        .fields(
            ".spec.nodeName .spec.restartPolicy .spec.schedulerName .spec.serviceAccountName .spec.hostNetwork \
         .status.phase .status.podIP .status.nominatedNodeName",
        ),
    namespaced(CORE, "PodTemplate", "podtemplates"),
    namespaced(CORE, "ReplicationController", "replicationcontrollers")
        .short("rc")
        .category("all")
        .sub("scale status")
        .fields(".status.replicas"),
    namespaced(CORE, "ResourceQuota", "resourcequotas").short("quota").sub("status"),
    namespaced(CORE, "Secret", "secrets").fields(".type"),
    namespaced(CORE, "ServiceAccount", "serviceaccounts").short("sa").sub("token"),
    namespaced(CORE, "Service", "services")
        .short("svc")
        .category("all")
        .sub("proxy status")
        .fields(".spec.clusterIP .spec.type"),
    cluster(ADMISSION, "MutatingAdmissionPolicy", "mutatingadmissionpolicies").category("api-extensions"),
    cluster(ADMISSION, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings").category("api-extensions"),
    cluster(ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations").category("api-extensions"),
    cluster(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
        .category("api-extensions")
        .sub("status"),
    cluster(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
        .category("api-extensions"),
    cluster(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations").category("api-extensions"),
    cluster("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
        .short("crd crds")
        .category("api-extensions")
        .sub("status"),
    cluster("apiregistration.k8s.io/v1", "APIService", "apiservices").category("api-extensions").sub("status"),
    namespaced(APPS, "ControllerRevision", "controllerrevisions"),
    namespaced(APPS, "DaemonSet", "daemonsets").short("ds").category("all").sub("status"),
    namespaced(APPS, "Deployment", "deployments").short("deploy").category("all").sub("scale status"),
    namespaced(APPS, "ReplicaSet", "replicasets").short("rs").category("all").sub("scale status"),
    namespaced(APPS, "StatefulSet", "statefulsets").short("sts").category("all").sub("scale status"),
    cluster(AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews").verbs(Verbs::Review),
    cluster(AUTHENTICATION, "TokenReview", "tokenreviews").verbs(Verbs::Review),
    namespaced(AUTHORIZATION, "LocalSubjectAccessReview", "localsubjectaccessreviews").verbs(Verbs::Review),
    cluster(AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews").verbs(Verbs::Review),
    cluster(AUTHORIZATION, "SelfSubjectRulesReview", "selfsubjectrulesreviews").verbs(Verbs::Review),
    cluster(AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews").verbs(Verbs::Review),
    namespaced("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .older("v1")
        .short("hpa")
        .category("all")
        .sub("status"),
    namespaced(BATCH, "CronJob", "cronjobs").short("cj").category("all").sub("status"),
    namespaced(BATCH, "Job", "jobs").category("all").sub("status").fields(".status.successful"),
    cluster("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests")
        .short("csr")
        .sub("approval status")
        .fields(".spec.signerName"),
    namespaced("coordination.k8s.io/v1", "Lease", "leases"),
    namespaced("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
    namespaced("events.k8s.io/v1", "Event", "events").short("ev").fields(
        ".regarding.kind .regarding.namespace .regarding.name .regarding.uid .regarding.apiVersion \
         .regarding.resourceVersion .regarding.fieldPath .reason .reportingController .type",
    ),
    cluster(FLOW_CONTROL, "FlowSchema", "flowschemas").sub("status"),
    cluster(FLOW_CONTROL, "PriorityLevelConfiguration", "prioritylevelconfigurations").sub("status"),
    cluster(NETWORKING, "IPAddress", "ipaddresses").short("ip"),
    cluster(NETWORKING, "IngressClass", "ingressclasses"),
    namespaced(NETWORKING, "Ingress", "ingresses").short("ing").sub("status"),
    namespaced(NETWORKING, "NetworkPolicy", "networkpolicies").short("netpol"),
    cluster(NETWORKING, "ServiceCIDR", "servicecidrs").sub("status"),
    cluster("node.k8s.io/v1", "RuntimeClass", "runtimeclasses"),
    namespaced("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets").short("pdb").sub("status"),
    cluster(RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    cluster(RBAC, "ClusterRole", "clusterroles"),
    namespaced(RBAC, "RoleBinding", "rolebindings"),
    namespaced(RBAC, "Role", "roles"),
    cluster(RESOURCE, "DeviceClass", "deviceclasses"),
    namespaced(RESOURCE, "ResourceClaim", "resourceclaims").sub("status"),
    namespaced(RESOURCE, "ResourceClaimTemplate", "resourceclaimtemplates"),
    cluster(RESOURCE, "ResourceSlice", "resourceslices").fields(".spec.nodeName .spec.driver"),
    cluster("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses").short("pc"),
    cluster(STORAGE, "CSIDriver", "csidrivers"),
    cluster(STORAGE, "CSINode", "csinodes"),
    namespaced(STORAGE, "CSIStorageCapacity", "csistoragecapacities"),
    cluster(STORAGE, "StorageClass", "storageclasses").short("sc"),
    cluster(STORAGE, "VolumeAttachment", "volumeattachments").sub("status"),
    cluster(STORAGE, "VolumeAttributesClass", "volumeattributesclasses").short("vac"),
];

impl Registry {
    /// The built-in kinds.
    pub fn builtin() -> Registry {
        let mut registry = Registry::default();
        for row in ROWS {
            registry.insert(info(row));
        }
        registry
    }
}

fn info(row: &Row) -> ResourceInfo {
    let (group, version) = row.group_version.split_once('/').unwrap_or(("", row.group_version));
    let verbs: &[&str] = match row.verbs {
        Verbs::All => &ALL,
        Verbs::NoDeleteCollection => &NO_DELETE_COLLECTION,
        Verbs::Review => &["create"],
        Verbs::Report => &["get", "list"],
    };
    ResourceInfo {
        group: group.to_owned(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.to_owned(),
        singular: row.kind.to_lowercase(),
        short_names: words(row.short_names),
        categories: words(row.categories),
        namespaced: row.namespaced,
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        storage_version: version.to_owned(),
        versions: std::iter::once(version)
            .chain(row.older.split_whitespace())
            .map(|version| version_info(row, group, version))
            .collect(),
        origin: if matches!(row.verbs, Verbs::Review | Verbs::Report) { Origin::Virtual } else { Origin::BuiltIn },
    }
}

fn version_info(row: &Row, group: &str, version: &str) -> VersionInfo {
    let subresources = row.subresources.split_whitespace();
    VersionInfo {
        name: version.to_owned(),
        served: true,
        deprecation_warning: row.deprecation.map(str::to_owned),
        subresources: subresources.map(|name| subresource(row, group, version, name)).collect(),
        schema: SchemaSource::BuiltIn(Arc::default()),
        columns: Vec::new(),
        selectable_fields: words(row.fields),
    }
}

fn subresource(row: &Row, group: &str, version: &str, name: &str) -> Subresource {
    let (group, version, kind, verbs): (&str, &str, &str, &[&str]) = match name {
        "scale" => ("autoscaling", "v1", "Scale", &READ_WRITE),
        "binding" => ("", "v1", "Binding", &["create"]),
        "eviction" => ("policy", "v1", "Eviction", &["create"]),
        "token" => ("authentication.k8s.io", "v1", "TokenRequest", &["create"]),
        "log" => (group, version, row.kind, &["get"]),
        "exec" => (group, version, "PodExecOptions", &CONNECT),
        "attach" => (group, version, "PodAttachOptions", &CONNECT),
        "portforward" => (group, version, "PodPortForwardOptions", &CONNECT),
        "proxy" => {
            let kind = match row.kind {
                "Node" => "NodeProxyOptions",
                "Service" => "ServiceProxyOptions",
                _ => "PodProxyOptions",
            };
            (group, version, kind, &["create", "delete", "get", "patch", "update"])
        }
        "finalize" => (group, version, row.kind, &["update"]),
        _ => (group, version, row.kind, &READ_WRITE),
    };
    Subresource {
        name: name.to_owned(),
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        scale: (name == "scale").then(|| ScalePaths {
            spec_replicas: ".spec.replicas".to_owned(),
            status_replicas: ".status.replicas".to_owned(),
            selector: Some(".spec.selector".to_owned()),
        }),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Group and plural name under which a row's objects are stored. Events of `events.k8s.io` are
/// stored as events of the core group.
pub(super) fn storage_of(row: &ResourceInfo) -> (&str, &str) {
    if row.group == "events.k8s.io" && row.plural == "events" { ("", "events") } else { (&row.group, &row.plural) }
}

/// The built-in registry, created on first use.
pub fn shared() -> Arc<Registry> {
    static SHARED: std::sync::OnceLock<Arc<Registry>> = std::sync::OnceLock::new();
    SHARED.get_or_init(|| Arc::new(Registry::builtin())).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_apimachinery::meta::GroupVersionKind;

    /// `docs/kinds.md` names each kind once, with the part of Berth that acts on it, or the reason
    /// why none does.
    #[test]
    fn every_built_in_kind_is_documented_once() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kinds.md");
        let text = std::fs::read_to_string(page).expect("the page of kinds");
        let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let mut documented: Vec<&str> = cells.flat_map(|cell| cell.split(", ")).filter(|it| *it != "kinds").collect();
        documented.sort_unstable();
        let mut kinds: Vec<&str> = ROWS.iter().map(|row| row.kind).collect();
        kinds.sort_unstable();
        // Events have two groups.
        kinds.dedup();
        assert_eq!(documented, kinds);
    }

    #[test]
    fn every_built_in_kind_has_a_published_schema() {
        let document = berth_apimachinery::builtin::document();
        let known = |group: &str, version: &str, kind: &str| {
            document.by_gvk(&GroupVersionKind::new(group, version, kind)).is_some()
        };
        for row in Registry::builtin().rows() {
            for version in &row.versions {
                assert!(known(&row.group, &version.name, &row.kind), "{}", row.kind);
                // The options of connections are read from queries, and have no schema.
                for sub in version.subresources.iter().filter(|sub| !sub.kind.ends_with("Options")) {
                    assert!(known(&sub.group, &sub.version, &sub.kind), "{}/{}", row.plural, sub.name);
                }
            }
        }
    }

    #[test]
    fn paths_and_verbs_agree_with_the_published_list() {
        let Some(path) = berth_testing::shared("kubernetes/resources.csv") else { return };
        let csv = std::fs::read_to_string(path).expect("a readable file");
        let published: std::collections::BTreeMap<&str, &str> =
            csv.lines().skip(1).filter_map(|line| Some((line.split(',').next()?, line.rsplit(',').next()?))).collect();
        for row in Registry::builtin().rows() {
            for version in &row.versions {
                let root = if row.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", row.group) };
                let scope = if row.namespaced { "/namespaces/{namespace}" } else { "" };
                let collection = format!("{root}/{}{scope}/{}", version.name, row.plural);
                let actions =
                    published.get(collection.as_str()).unwrap_or_else(|| panic!("{collection} is not published"));
                assert_eq!(
                    actions.contains("deletecollection"),
                    row.verbs.contains(&"deletecollection".to_owned()),
                    "{collection}"
                );
                assert_eq!(actions.contains("post"), row.verbs.contains(&"create".to_owned()), "{collection}");
                for sub in &version.subresources {
                    let name = if row.plural == "namespaces" {
                        format!("{root}/v1/namespaces/{{name}}")
                    } else {
                        format!("{collection}/{{name}}")
                    };
                    let path = format!("{name}/{}", sub.name);
                    let actions = published.get(path.as_str()).unwrap_or_else(|| panic!("{path} is not published"));
                    // Connections: the document has one action for all methods, and both verbs are
                    // checked for permissions.
                    if *actions == "connect" {
                        let has = |verb: &str| sub.verbs.iter().any(|known| known == verb);
                        assert!(has("get") && has("create"), "{path}: {:?}", sub.verbs);
                        continue;
                    }
                    for (verb, action) in [("get", "get"), ("create", "post"), ("update", "put"), ("patch", "patch")] {
                        assert_eq!(
                            actions.split(' ').any(|a| a == action),
                            sub.verbs.iter().any(|v| v == verb),
                            "{path} {verb}"
                        );
                    }
                }
            }
        }
    }
}
