//! The controllers that execute the decisions of `decide` and `check`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::kueue::events;
use berth_api::kueue::reasons::active;
use berth_api::kueue::v1beta2::{AdmissionCheck, AdmissionCheckStatus, ProvisioningRequestConfig, Workload};
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Serving, owned_by,
};
use k8s_openapi::api::core::v1::PodTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;

use super::decide::{Step, View, decide};
use super::{CONTROLLER_NAME, check, requests};
use crate::conditions::{self, NewCondition, truncate};
use crate::configuration::Config;
use crate::cool_down::controller::CoolDowns;
use crate::execute::{self, FIELD_MANAGER, Part, patch};
use crate::gates::Gates;
use crate::stores::Stores;
use crate::workload::{checks, status};

/// Condition message of a valid check while it cannot be served.
const NOT_SERVED: &str = "the cluster does not serve provisioningrequests.autoscaling.x-k8s.io in version v1; install an \
                          autoscaler that provides them";
/// Maximum length of a check state's message, in bytes.
const CHECK_MESSAGE_MAX: usize = 32 * 1024;

/// Adds two controllers to the manager: one for AdmissionChecks, one for workloads.
pub fn install(manager: &mut Manager, config: &Arc<Config>, stores: &Stores) {
    let configs: Cache<ProvisioningRequestConfig> = manager.cache();
    // The autoscaler installs the CRD. Checks are inactive until then, and again if the CRD is
    // removed.
    let requests: Cache<ProvisioningRequest> = manager.cache_if_served();
    let serving = manager.serving::<ProvisioningRequest>();
    let (client, clock, recorder) = (manager.client(), manager.clock(), manager.recorder("berth-provisioning"));

    let cool_downs = CoolDowns::new(manager, config, stores);

    let all = stores.admission_checks.clone();
    let builder = manager.controller("provisioning-check");
    let (checks, each_check) = (builder.queue(), all.clone());
    builder
        .watch_self(&stores.admission_checks)
        .watch(&configs, move |_| all.list().iter().map(|c| ObjectKey::of(c.as_ref())).collect::<Vec<_>>())
        .run(CheckController {
            client: client.clone(),
            clock: clock.clone(),
            checks: stores.admission_checks.clone(),
            configs: configs.clone(),
            serving: serving.clone(),
        });

    let by_check = stores.workloads.index(requests::checks_of);
    let keys_of =
        |workloads: Vec<Arc<Workload>>| workloads.iter().map(|w| ObjectKey::of(w.as_ref())).collect::<Vec<_>>();
    let of_checks = by_check.clone();
    let (of_configs, all_checks) = (by_check, stores.admission_checks.clone());
    let requests_of = requests.index(|request: &ProvisioningRequest| {
        request.owner_references().iter().filter(|o| o.kind == "Workload").map(|o| o.uid.clone()).collect()
    });
    let builder = manager.controller("provisioning").concurrency(16);
    let (workloads, of_workloads, with_check) = (builder.queue(), stores.workloads.clone(), requests::checks_of);
    builder
        .watch_self(&stores.workloads)
        .watch(&requests, |delta| {
            let request = delta.latest();
            let namespace = request.namespace().unwrap_or_default();
            let owners = requests::owner_names(request).into_iter();
            owners.map(|owner| ObjectKey::namespaced(namespace.clone(), owner)).collect::<Vec<_>>()
        })
        .watch(&stores.admission_checks, move |delta| keys_of(of_checks.get(&delta.latest().name_any())))
        .watch(&configs, move |delta| {
            let name = delta.latest().name_any();
            let mut affected = BTreeSet::new();
            for check in all_checks.list() {
                if check::config_name(&check, CONTROLLER_NAME).is_some_and(|config| config == name) {
                    affected.extend(keys_of(of_configs.get(&check.name_any())));
                }
            }
            affected
        })
        .run(Controller {
            client,
            clock,
            recorder,
            gates: config.gates(),
            cool_downs,
            stores: stores.clone(),
            configs,
            requests,
            requests_of,
            serving: serving.clone(),
        });
    manager.task("provisioning-kind", async move {
        let mut serving = serving;
        serving.mark_unchanged();
        while serving.changed().await.is_ok() {
            each_check.iter().for_each(|check| checks.add(ObjectKey::of(check.as_ref())));
            let waiting = of_workloads.iter().filter(|workload| !with_check(workload).is_empty());
            waiting.for_each(|workload| workloads.add(ObjectKey::of(workload.as_ref())));
        }
    });
}

fn is_served(serving: &watch::Receiver<Serving>) -> bool {
    *serving.borrow() == Serving::Served
}

/// The check with its current condition; `None` if another controller serves it. `served`: the
/// cluster serves ProvisioningRequests.
pub fn refreshed(
    check: &AdmissionCheck,
    find: impl Fn(&str) -> Option<Arc<ProvisioningRequestConfig>>,
    served: bool,
    now: jiff::Timestamp,
) -> Option<AdmissionCheck> {
    if check.spec.controller_name != CONTROLLER_NAME {
        return None;
    }
    let found = check::config(check, find);
    let (active, reason, message) = match &found {
        Ok(_) if !served => (false, "ProvisioningRequestsNotServed", NOT_SERVED),
        Ok(_) => (true, active::ACTIVE, "The admission check is active"),
        Err(message) => (false, active::BAD_PARAMETERS_REF, message.as_str()),
    };
    let mut check = check.clone();
    let new = NewCondition {
        type_: conditions::ACTIVE,
        status: active,
        reason,
        message,
        generation: check.metadata.generation,
    };
    conditions::set(&mut check.status.get_or_insert_with(AdmissionCheckStatus::default).conditions, new, now);
    Some(check)
}

struct CheckController {
    client: Client,
    clock: Clock,
    checks: Cache<AdmissionCheck>,
    configs: Cache<ProvisioningRequestConfig>,
    serving: watch::Receiver<Serving>,
}

impl Reconciler for CheckController {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(check) = self.checks.get(&key) else { return Ok(Action::Wait) };
        let find = |name: &str| self.configs.get(&ObjectKey::cluster(name));
        let Some(wanted) = refreshed(&check, find, is_served(&self.serving), self.clock.now()) else {
            return Ok(Action::Wait);
        };
        let api: Api<AdmissionCheck> = Api::all(self.client.clone());
        if let Some(answer) = patch(&api, check.as_ref(), &wanted, Part::Status, None).await? {
            self.checks.observe(answer);
        }
        Ok(Action::Wait)
    }
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    gates: Gates,
    cool_downs: CoolDowns,
    stores: Stores,
    configs: Cache<ProvisioningRequestConfig>,
    requests: Cache<ProvisioningRequest>,
    requests_of: Index<ProvisioningRequest>,
    serving: watch::Receiver<Serving>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        if !is_served(&self.serving) {
            // Requests can be neither read nor created, so check states do not change.
            return Ok(Action::Wait);
        }
        let Some(workload) = self.stores.workloads.get(&key) else { return Ok(Action::Wait) };
        let own = self.requests_of.get(workload.metadata.uid.as_deref().unwrap_or_default());
        let checks = self.checks_of(&workload);
        if own.is_empty() && checks.is_empty() {
            return Ok(Action::Wait);
        }
        let steps = {
            let flavor = |name: &str| self.stores.flavor(name);
            let queue = workload.status.as_ref().and_then(|status| status.admission.as_ref());
            let queue = queue.and_then(|admission| self.stores.cluster_queue(&admission.cluster_queue));
            let has_alternative = |failed: &[String]| self.cool_downs.has_alternative(queue.as_deref(), failed);
            let view = View {
                checks,
                requests: own,
                flavor: &flavor,
                cool_down: self.cool_downs.is_on(),
                has_alternative: &has_alternative,
                gates: &self.gates,
                now: self.clock.now(),
            };
            decide(&workload, &view)?
        };
        for step in steps {
            match step {
                Step::Delete(request) => {
                    let api: Api<ProvisioningRequest> = Api::namespaced(self.client.clone(), &key.namespace);
                    execute::delete(&api, request.as_ref()).await?;
                    self.requests.observe_deleted(&request);
                }
                Step::Create { check, templates, request } => {
                    self.create(&workload, &check, templates, &request).await?;
                }
                Step::Failed(failure) => self.cool_downs.record(&failure).await?,
                Step::Succeeded(flavors) => self.cool_downs.record_success(&flavors).await?,
                Step::Status { workload: wanted, events } => {
                    self.write(&workload, &wanted).await?;
                    for event in events {
                        event.record(&self.recorder, workload.as_ref());
                    }
                }
            }
        }
        Ok(Action::Wait)
    }
}

impl Controller {
    /// The workload's checks that this controller serves, with their configurations.
    fn checks_of(&self, workload: &Workload) -> BTreeMap<String, Option<Arc<ProvisioningRequestConfig>>> {
        let states = workload.status.as_ref().map_or(&[][..], |status| &status.admission_checks);
        let find = |name: &str| self.stores.admission_checks.get(&ObjectKey::cluster(name));
        let config = |name: &str| self.configs.get(&ObjectKey::cluster(name));
        let served = check::served_by(states, CONTROLLER_NAME, find);
        served.iter().map(|served| (served.name_any(), check::config(served, config).ok())).collect()
    }

    async fn write(&self, before: &Workload, after: &Workload) -> Result<(), Error> {
        let namespace = before.namespace().unwrap_or_default();
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &namespace);
        let version = before.resource_version();
        if let Some(answer) = patch(&api, before, after, Part::Status, version.as_deref()).await? {
            self.stores.workloads.observe(answer);
        }
        Ok(())
    }

    async fn create(
        &self,
        workload: &Arc<Workload>,
        check: &str,
        templates: Vec<PodTemplate>,
        request: &ProvisioningRequest,
    ) -> Result<(), Error> {
        let name = request.name_any();
        let known = || self.requests.get(&ObjectKey::of(request));
        match self.try_create(workload, &templates, request).await {
            Ok(made) => {
                let made_name = made.name_any();
                self.requests.observe(made);
                let message = format!("Created ProvisioningRequest: {made_name:?}");
                self.recorder.event(
                    workload.as_ref(),
                    EventType::Normal,
                    events::PROVISIONING_REQUEST_CREATED,
                    &message,
                );
                Ok(())
            }
            // An earlier attempt created the request, and the watch has delivered or will deliver
            // it. A request of another owner is a conflict, which is reported below.
            Err(Failure::Request(error))
                if berth_runtime::is_already_exists(&error) && is_own(known().as_deref(), workload) =>
            {
                Err(error.into())
            }
            Err(Failure::Template(error) | Failure::Request(error)) => {
                let text = berth_runtime::message(&error);
                let message =
                    truncate(&format!("Error creating ProvisioningRequest {name:?}: {text}"), CHECK_MESSAGE_MAX);
                self.recorder.event(workload.as_ref(), EventType::Warning, events::FAILED_CREATE, &message);
                let mut after = (**workload).clone();
                let states = &mut status::status_mut(&mut after).admission_checks;
                if let Some(state) = states.iter().find(|state| state.name == check).cloned() {
                    checks::set_state(
                        states,
                        berth_api::kueue::v1beta2::AdmissionCheckState { message, ..state },
                        self.clock.now(),
                    );
                    self.write(workload, &after).await?;
                }
                Err(error.into())
            }
        }
    }

    /// Creates the templates first, because an autoscaler may read a request as soon as it exists.
    /// Afterwards the request becomes their owner.
    ///
    /// Templates that an earlier, interrupted attempt created are owned by the workload and are
    /// reused. If the request exists already, the templates stay owned by the workload and are
    /// deleted with it.
    async fn try_create(
        &self,
        workload: &Workload,
        templates: &[PodTemplate],
        request: &ProvisioningRequest,
    ) -> Result<ProvisioningRequest, Failure> {
        let namespace = request.namespace().unwrap_or_default();
        let api: Api<PodTemplate> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        for template in templates {
            match berth_runtime::write::create(&api, &params, template).await {
                Ok(_) => {}
                Err(error) if berth_runtime::is_already_exists(&error) => {
                    // An empty patch returns the object, so that no permission to read templates is
                    // needed.
                    let params =
                        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
                    let nothing = Patch::Merge(serde_json::json!({}));
                    let found = berth_runtime::write::patch(&api, &template.name_any(), &params, &nothing)
                        .await
                        .map_err(Failure::Template)?;
                    if !is_left(&found, workload, &request.name_any()) {
                        return Err(Failure::Template(error));
                    }
                }
                Err(error) => return Err(Failure::Template(error)),
            }
        }
        let requests: Api<ProvisioningRequest> = Api::namespaced(self.client.clone(), &namespace);
        let request = berth_runtime::write::create(&requests, &params, request).await.map_err(Failure::Request)?;
        for template in templates {
            let mut owned = template.clone();
            owned.metadata.owner_references = Some(vec![owned_by(&request)]);
            patch(&api, template, &owned, Part::Main, None).await.map_err(Failure::Template)?;
        }
        Ok(request)
    }
}

/// The write that failed when a request was created.
enum Failure {
    Template(kube::Error),
    Request(kube::Error),
}

/// True if the existing request belongs to the workload. A request that is not in the cache yet
/// counts as its own.
fn is_own(known: Option<&ProvisioningRequest>, workload: &Workload) -> bool {
    let is_workload = |owner: &OwnerReference| Some(&owner.uid) == workload.metadata.uid.as_ref();
    known.is_none_or(|request| request.owner_references().iter().any(is_workload))
}

/// True if an earlier attempt of the workload created this template; its owner is the workload or
/// the request of this name.
fn is_left(template: &PodTemplate, workload: &Workload, request: &str) -> bool {
    template.owner_references().iter().any(|owner| {
        let of_request = owner.kind == ProvisioningRequest::kind(&()) && owner.name == request;
        of_request || Some(&owner.uid) == workload.metadata.uid.as_ref()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_request_belongs_to_the_workload_that_owns_it() {
        let mut workload = Workload::default();
        workload.metadata.name = Some("w".to_owned());
        workload.metadata.uid = Some("1".to_owned());
        let mut request = ProvisioningRequest::default();
        assert!(is_own(None, &workload), "not in the cache yet");
        assert!(!is_own(Some(&request), &workload), "it has no owner");
        request.metadata.owner_references = Some(vec![owned_by(&workload)]);
        assert!(is_own(Some(&request), &workload));
        workload.metadata.uid = Some("2".to_owned());
        assert!(!is_own(Some(&request), &workload), "its owner is an earlier workload of that name");
    }
}
