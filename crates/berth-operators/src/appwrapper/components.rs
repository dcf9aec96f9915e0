//! Objects of any kind: found by discovery, then read, created and deleted by name.

use std::collections::BTreeMap;

use berth_runtime::{is_already_exists, is_controlled_by, is_not_found, message};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::DynamicObject;
use kube::discovery::{ApiResource, Scope, pinned_kind};
use kube::error::DiscoveryError;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;

use super::names;
use super::plan::{Outcome, Presence};
use super::types::ComponentStatus;

/// The wrapped objects of all AppWrappers.
pub struct Components {
    client: Client,
    /// The discovered kinds, by `apiVersion` and `kind`.
    kinds: Mutex<BTreeMap<(String, String), ApiResource>>,
}

/// Why a kind cannot be used.
enum Unusable {
    /// The cluster does not serve the kind, or it has no namespaces.
    Useless(String),
    /// Discovery failed.
    Unknown(kube::Error),
}

impl Components {
    /// Objects of this API.
    pub fn new(client: Client) -> Self {
        Self { client, kinds: Mutex::default() }
    }

    /// The resource of a kind.
    async fn kind(&self, api_version: &str, kind: &str) -> Result<ApiResource, Unusable> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.kinds.lock().get(&key) {
            return Ok(known.clone());
        }
        let missing = || Unusable::Useless(format!("the cluster does not serve kind {kind:?} of {api_version:?}"));
        if api_version.is_empty() || kind.is_empty() {
            return Err(missing());
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let wanted = kube::core::GroupVersionKind::gvk(group, version, kind);
        match pinned_kind(&self.client, &wanted).await {
            Ok((_, capabilities)) if capabilities.scope == Scope::Cluster => {
                let why = format!("{kind} of {api_version} has no namespace; an AppWrapper's components need one");
                Err(Unusable::Useless(why))
            }
            Ok((resource, _)) => {
                self.kinds.lock().insert(key, resource.clone());
                Ok(resource)
            }
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_) | DiscoveryError::MissingResource(_))) => {
                Err(missing())
            }
            Err(error) if is_not_found(&error) => Err(missing()),
            Err(error) => Err(Unusable::Unknown(error)),
        }
    }

    /// Plural name of a kind; `None` if it cannot be discovered.
    pub async fn resource(&self, api_version: &str, kind: &str) -> Option<String> {
        self.kind(api_version, kind).await.ok().map(|resource| resource.plural)
    }

    fn api(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    fn forget(&self, component: &ComponentStatus) {
        self.kinds.lock().remove(&(component.api_version.clone(), component.kind.clone()));
    }

    /// The object of a component, if it exists and this AppWrapper controls it.
    async fn find(&self, namespace: &str, component: &ComponentStatus, uid: &str) -> kube::Result<Option<Found>> {
        if component.name.is_empty() {
            return Ok(None);
        }
        let resource = match self.kind(&component.api_version, &component.kind).await {
            Ok(resource) => resource,
            // The objects were deleted together with their kind.
            Err(Unusable::Useless(_)) => return Ok(None),
            Err(Unusable::Unknown(error)) => return Err(error),
        };
        let api = self.api(namespace, &resource);
        let object = berth_runtime::write::get_opt(&api, &component.name).await?;
        Ok(object.filter(|object| is_controlled_by(object, uid)).map(|object| Found { api, object }))
    }

    /// State of a component.
    ///
    /// # Errors
    /// The API cannot be read.
    pub async fn presence(&self, namespace: &str, component: &ComponentStatus, uid: &str) -> kube::Result<Presence> {
        let Some(Found { object, .. }) = self.find(namespace, component, uid).await? else {
            return Ok(Presence::Absent);
        };
        let is_deleting = object.metadata.deletion_timestamp.is_some();
        Ok(Presence::Present { is_deleting, has_failed: has_failed(component, &object.data["status"]) })
    }

    /// Creates a component's object. An existing object of its name counts as created if the
    /// AppWrapper controls it: an interrupted attempt made it.
    pub async fn create(&self, object: Value, template: &Value, uid: &str, component: &ComponentStatus) -> Outcome {
        let rejected = |message: String, is_fatal: bool| Outcome::Rejected { message, is_fatal };
        let resource = match self.kind(&component.api_version, &component.kind).await {
            Ok(resource) => resource,
            Err(Unusable::Useless(why)) => return rejected(why, true),
            Err(Unusable::Unknown(error)) => return rejected(message(&error), false),
        };
        let object: DynamicObject = match berth_api::json::from_value(object) {
            Ok(object) => object,
            Err(error) => return rejected(error.to_string(), true),
        };
        let api = self.api(&object.namespace().unwrap_or_default(), &resource);
        match berth_runtime::write::create(&api, &PostParams::default(), &object).await {
            Ok(_) => Outcome::Created,
            Err(error) if is_already_exists(&error) => match berth_runtime::write::get_opt(&api, &component.name).await
            {
                Ok(Some(known)) if !is_controlled_by(&known, uid) => {
                    if names::is_generated(template) {
                        return Outcome::NameTaken;
                    }
                    let what = format!("{} {}", component.kind, component.name);
                    rejected(format!("{what} already exists and does not belong to the AppWrapper"), true)
                }
                Ok(Some(known)) if known.metadata.deletion_timestamp.is_none() => Outcome::Created,
                Ok(_) => rejected(format!("an earlier {} is still being deleted", component.kind), false),
                Err(error) => rejected(message(&error), false),
            },
            Err(error) => {
                if is_not_found(&error) {
                    // The kind may have been deleted since it was discovered.
                    self.forget(component);
                }
                let is_invalid = matches!(&error, kube::Error::Api(status) if status.code == 422);
                rejected(message(&error), is_invalid)
            }
        }
    }

    /// Deletes a component's object, and its dependents in the background.
    ///
    /// # Errors
    /// The API rejects the deletion.
    pub async fn delete(
        &self,
        namespace: &str,
        component: &ComponentStatus,
        uid: &str,
        is_forced: bool,
    ) -> kube::Result<()> {
        let Some(Found { api, object }) = self.find(namespace, component, uid).await? else { return Ok(()) };
        let preconditions = Preconditions { uid: object.metadata.uid, resource_version: None };
        let mut params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        if is_forced {
            params = params.grace_period(0);
        }
        match berth_runtime::write::delete(&api, &component.name, &params).await {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

struct Found {
    api: Api<DynamicObject>,
    object: DynamicObject,
}

/// True if the controller of the object with this status reports a failure that will not be
/// corrected. Jobs and PyTorchJobs do so. Other kinds report failures that may pass, or none.
pub fn has_failed(component: &ComponentStatus, status: &Value) -> bool {
    let reports = matches!(
        (component.api_version.as_str(), component.kind.as_str()),
        ("batch/v1", "Job") | ("kubeflow.org/v1", "PyTorchJob")
    );
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    reports && conditions.any(|condition| condition["type"] == "Failed" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_condition_counts_for_kinds_that_do_not_recover() {
        let status = json!({"conditions": [{"type": "Failed", "status": "True"}]});
        let of = |api_version: &str, kind: &str| {
            let component =
                ComponentStatus { api_version: api_version.into(), kind: kind.into(), ..ComponentStatus::default() };
            has_failed(&component, &status)
        };
        assert!(of("batch/v1", "Job") && of("kubeflow.org/v1", "PyTorchJob"));
        assert!(!of("ray.io/v1", "RayCluster") && !of("jobset.x-k8s.io/v1alpha2", "JobSet"));
    }
}
