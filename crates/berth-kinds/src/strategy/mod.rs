//! Rules of single kinds: defaults, immutable fields and validation. The request path is shared by
//! all kinds and calls these hooks. All custom resources share one strategy. Built-in kinds without
//! rules share another, and the others have their own.

mod addresses;
mod admission_policy;
pub mod api_service;
mod autoscaler;
mod definition;
mod devices;
mod disruption;
mod endpoints;
mod events;
mod flow_control;
mod job;
mod job_policies;
mod limit_range;
mod limits_validation;
mod meta_only;
mod namespace;
mod networking;
mod pod;
mod pod_container;
mod pod_defaults;
pub mod pod_ephemeral;
mod pod_placement;
pub mod pod_resize;
mod pod_security;
mod pod_status;
mod pod_validation;
mod pod_volumes;
mod priority_class;
mod rules;
mod secret;
mod service;
pub mod signing_request;
mod storage;
mod webhook_configuration;
mod workloads;

pub use autoscaler::default_behavior;
pub use pod::MIRROR;
pub use pod_container::is_extended as is_extended_resource;
pub use pod_defaults::service_account as pod_service_account;
pub use priority_class::SYSTEM as SYSTEM_CLASSES;
pub use rules::ERRORS_MAX;
pub use secret::{ACCOUNT_NAME, TOKEN_TYPE};
pub use service::{RANGE as SERVICE_RANGE, free_address};

use std::sync::Arc;

use berth_apimachinery::field::{Error, Path};
pub use berth_apimachinery::meaning::{same, same_as};
use berth_apimachinery::names;
use berth_apimachinery::validation::NameCheck;
use serde_json::{Map, Value, json};

use crate::crd::names::Taken;
use crate::registry::{Origin, Registry, ResourceInfo};
use crate::user::UserInfo;

/// The stored objects that the rules of a kind read besides the written object.
pub trait StoredObjects: Send + Sync {
    /// All objects of a kind in one namespace, or in all namespaces with `None`, ordered by
    /// namespace and name.
    fn list(&self, group: &str, resource: &str, namespace: Option<&str>) -> Vec<Arc<Value>>;

    /// Names that a CustomResourceDefinition requests and that other definitions have.
    fn names_in_the_way(&self, definition: &Value) -> Taken;
}

/// Issues the tokens of Secrets of type `kubernetes.io/service-account-token`.
pub trait SecretTokens: Send + Sync {
    /// Fills in the missing data of such a Secret. Does not change other Secrets.
    fn fill_secret(&self, secret: &mut Value);
}

/// The inputs of preparing an object, other than the object itself.
pub struct Context<'a> {
    /// The stored objects.
    pub objects: &'a dyn StoredObjects,
    /// The table of kinds.
    pub registry: &'a Registry,
    /// The time of the request.
    pub now: jiff::Timestamp,
    /// Issuer of the tokens of Secrets; `None` if the server issues none.
    pub tokens: Option<&'a dyn SecretTokens>,
    /// The user that sent the request.
    pub user: &'a UserInfo,
}

/// The rules of a kind. Objects are in the version of the request.
pub trait Strategy: Send + Sync {
    /// The validation of names.
    fn name_check(&self) -> NameCheck {
        names::is_dns1123_subdomain
    }

    /// True if `metadata.generation` counts changes to the specification.
    fn has_generation(&self) -> bool {
        false
    }

    /// True if a status sent on create is dropped.
    fn clears_status_on_create(&self) -> bool {
        true
    }

    /// True if PUT creates an object that does not exist.
    fn creates_on_update(&self) -> bool {
        false
    }

    /// Fills in missing optional fields. Called on every write, so it must not change existing
    /// values.
    fn default(&self, _object: &mut Value) {}

    /// Sets the system fields of a new object. Its metadata is complete.
    fn prepare_create(&self, _object: &mut Value, _context: &Context<'_>) {}

    /// Reverts changes that an update may not make, where upstream ignores them instead of
    /// rejecting the update.
    fn prepare_update(&self, _new: &mut Value, _old: &Value, _context: &Context<'_>) {}

    /// As [`Strategy::prepare_update`], for an update of the status.
    fn prepare_status_update(&self, _new: &mut Value, _old: &Value, _now: jiff::Timestamp) {}

    /// Warnings about a valid object, for the client that writes it. `old` is the replaced object.
    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Validates a new object.
    fn validate(&self, _object: &Value) -> Vec<Error> {
        Vec::new()
    }

    /// Validates an update.
    fn validate_update(&self, new: &Value, _old: &Value) -> Vec<Error> {
        self.validate(new)
    }

    /// Validates an update of the status.
    fn validate_status_update(&self, _new: &Value, _old: &Value) -> Vec<Error> {
        Vec::new()
    }

    /// Seconds between a request for deletion and the removal of the object.
    fn grace_period(&self, _object: &Value, _requested: Option<i64>) -> i64 {
        0
    }

    /// True if deletion is graceful. If so, the last state of an object has the grace period, even
    /// if it is zero.
    fn is_graceful(&self) -> bool {
        false
    }

    /// Makes the changes of a deletion other than those of metadata.
    fn prepare_delete(&self, _object: &mut Value) {}

    /// True if dependents are orphaned when a deletion has no propagation policy.
    fn orphans_dependents(&self) -> bool {
        false
    }

    /// True if something other than finalizers in the metadata delays the removal of the object.
    fn is_deletion_pending(&self, _object: &Value) -> bool {
        false
    }
}

/// True if a replacement requires a `resourceVersion`. For other kinds, a replacement without it
/// overwrites any stored state. The kinds are those of kube-apiserver 1.36, for historical reasons.
pub fn insists_on_revision(row: &ResourceInfo, custom: bool) -> bool {
    custom
        || match row.group.as_str() {
            "admissionregistration.k8s.io"
            | "apiextensions.k8s.io"
            | "apiregistration.k8s.io"
            | "coordination.k8s.io"
            | "node.k8s.io"
            | "policy" => true,
            "storage.k8s.io" => {
                matches!(row.plural.as_str(), "csidrivers" | "csinodes" | "csistoragecapacities" | "volumeattachments")
            }
            _ => false,
        }
}

/// True if DELETE returns the removed object instead of a Status. The kinds are those of
/// kube-apiserver, for historical reasons.
pub fn returns_deleted_object(row: &ResourceInfo) -> bool {
    match row.group.as_str() {
        "" => matches!(
            row.plural.as_str(),
            "namespaces"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        "resource.k8s.io" => true,
        "storage.k8s.io" => row.plural != "csistoragecapacities",
        _ => false,
    }
}

/// The strategy of a row.
pub fn of(row: &ResourceInfo) -> &'static dyn Strategy {
    if matches!(row.origin, Origin::Custom(_)) {
        return &meta_only::Custom;
    }
    match (row.group.as_str(), row.plural.as_str()) {
        ("", "pods") => &pod::Pods,
        ("", "namespaces") => &namespace::Namespaces,
        ("", "secrets") => &secret::Secrets,
        ("", "configmaps") => &secret::ConfigMaps,
        ("", "services") => &service::Services,
        ("", "nodes") => &meta_only::Nodes,
        ("", "events") | ("events.k8s.io", _) => &events::Events,
        ("", "serviceaccounts") => &meta_only::Plain,
        ("", "endpoints") => &endpoints::Endpoints,
        ("", "podtemplates") => &workloads::PodTemplates,
        ("", "replicationcontrollers") => &workloads::ReplicationControllers,
        ("", "resourcequotas") => &limit_range::Quotas,
        ("", "persistentvolumeclaims") => &storage::Claims,
        ("", "persistentvolumes") => &storage::Volumes,
        ("", "limitranges") => &limit_range::LimitRanges,
        ("autoscaling", _) => &autoscaler::Autoscalers,
        ("batch", "jobs") => &job::Jobs,
        ("batch", "cronjobs") => &workloads::CronJobs,
        ("apps", "deployments") => &workloads::Deployments,
        ("apps", "replicasets") => &workloads::ReplicaSets,
        ("apps", "statefulsets") => &workloads::StatefulSets,
        ("apps", "controllerrevisions") => &workloads::ControllerRevisions,
        ("apps", "daemonsets") => &workloads::DaemonSets,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => &flow_control::FlowSchemas,
        ("flowcontrol.apiserver.k8s.io", _) => &flow_control::PriorityLevels,
        ("discovery.k8s.io", "endpointslices") => &endpoints::Slices,
        ("networking.k8s.io", "networkpolicies") => &networking::Policies,
        ("networking.k8s.io", "ingresses") => &networking::Ingresses,
        ("networking.k8s.io", "ingressclasses") => &networking::IngressClasses,
        ("policy", "poddisruptionbudgets") => &disruption::DisruptionBudgets,
        ("resource.k8s.io", "deviceclasses") => &devices::Classes,
        ("resource.k8s.io", "resourceclaims") => &devices::Claims,
        ("resource.k8s.io", "resourceclaimtemplates") => &devices::Templates,
        ("resource.k8s.io", "resourceslices") => &devices::Slices,
        ("resource.k8s.io", _) => &meta_only::WithGeneration,
        ("storage.k8s.io", "storageclasses") => &storage::Classes,
        ("storage.k8s.io", "csidrivers") => &storage::Drivers,
        ("storage.k8s.io", "volumeattributesclasses") => &storage::AttributesClasses,
        ("storage.k8s.io", "csinodes") => &storage::NodeDrivers,
        ("storage.k8s.io", "csistoragecapacities") => &storage::Capacities,
        ("node.k8s.io", "runtimeclasses") => &meta_only::RuntimeClasses,
        ("storage.k8s.io", "volumeattachments") => &storage::Attachments,
        ("networking.k8s.io", "ipaddresses") => &addresses::IpAddresses,
        ("networking.k8s.io", "servicecidrs") => &addresses::ServiceCidrs,
        ("scheduling.k8s.io", "priorityclasses") => &priority_class::PriorityClasses,
        ("apiregistration.k8s.io", _) => &api_service::ApiServices,
        ("apiextensions.k8s.io", _) => &definition::Definitions,
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => &meta_only::Roles,
        ("rbac.authorization.k8s.io", _) => &meta_only::Bindings,
        ("certificates.k8s.io", _) => &signing_request::SigningRequests,
        ("coordination.k8s.io", _) => &meta_only::Leases,
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => {
            &webhook_configuration::WebhookConfigurations
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => &admission_policy::ValidatingPolicies,
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => &admission_policy::MutatingPolicies,
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => &admission_policy::ValidatingBindings,
        ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings") => &admission_policy::MutatingBindings,
        ("policy" | "networking.k8s.io" | "admissionregistration.k8s.io", _) => &meta_only::WithGeneration,
        _ => &meta_only::Plain,
    }
}

/// Sets `field` of a map when it is absent or null.
pub fn set_default(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let slot = map.entry(field).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// As [`set_default`], also if the field is the empty string.
pub fn set_default_text(map: &mut Map<String, Value>, field: &str, value: &str) {
    if map.get(field).and_then(Value::as_str).unwrap_or_default().is_empty() {
        map.insert(field.to_owned(), value.into());
    }
}

/// `object.spec` as a map; created if it is missing.
pub fn spec_mut(object: &mut Value) -> &mut Map<String, Value> {
    let map = berth_apimachinery::meta::map_mut(object);
    berth_apimachinery::meta::map_mut(map.entry("spec").or_insert_with(|| json!({})))
}

/// Reports an error if `new` and `old` differ at a path below the object.
pub fn immutable(new: &Value, old: &Value, path: &[&str], errors: &mut Vec<Error>) {
    let at = |object: &Value| path.iter().try_fold(object, |value, step| value.get(step)).cloned().unwrap_or_default();
    let (new, old) = (at(new), at(old));
    if !same(&new, &old) {
        errors.push(Error::invalid(&Path::new(&path.join(".")), new, "field is immutable"));
    }
}

/// Reports an error if a number is below zero.
pub fn non_negative(value: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(number) = value.as_i64().filter(|number| *number < 0) {
        errors.push(Error::invalid(path, number, "must be greater than or equal to 0"));
    }
}
