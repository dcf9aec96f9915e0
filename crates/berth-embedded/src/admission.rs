//! Admission plugins that run the webhooks' logic in the API server's process.
//!
//! Each plugin turns a request into the typed call that a webhook server would make. It turns the
//! problems that are found into the Status that kube-apiserver returns for such a webhook's
//! response.

use std::sync::Arc;

use berth_api::berth::NodeHealthConfiguration;
use berth_api::jobset::constants::JOBSET_NAME;
use berth_api::jobset::v1alpha2::JobSet;
use berth_apimachinery::field;
use berth_apimachinery::meta::GroupVersionKind;
use berth_apimachinery::status::Status;
use berth_apiserver::admission::webhooks::review::refusal;
use berth_apiserver::admission::{AdmissionPlugin, AdmissionRequest, Operation};
use berth_apiserver::auth::{self, Attributes};
use berth_apiserver::{Objects, Registry};
use berth_cluster::jobset::placement::{ClusterView, PlacementError};
use berth_cluster::jobset::{gates::Gates, webhook};
use berth_controllers::webhooks::review::{Stage, denial};
use berth_controllers::webhooks::{self, Webhooks, submitter};
use berth_operators::appwrapper::admission::{self as app_wrappers, Creator, Verdict};
use berth_operators::appwrapper::config::AppWrapperConfiguration;
use berth_operators::health::avoid_unhealthy_nodes;
use berth_operators::leader_worker_set::webhook as leader_worker_set;
use berth_operators::trainer::constants::GROUP as TRAINER;
use berth_operators::trainer::webhook as trainer;
use berth_operators::training::validate as training;
use berth_runtime::Clock;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Kueue's defaulting and validating webhooks, for its own kinds and for the jobs it queues.
pub struct KueueWebhook(pub Webhooks);

impl AdmissionPlugin for KueueWebhook {
    fn name(&self) -> &str {
        "kueue.x-k8s.io"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !writes_object(request) || !self.0.concerns(request.group, request.resource) {
            return Ok(());
        }
        let Some(mut object) = request.object.take() else { return Ok(()) };
        let old = request.old_object.clone();
        let seen = webhooks::Request {
            group: request.group,
            resource: request.resource,
            namespace: request.namespace,
            old_object: old.as_deref(),
        };
        let lookup = |group: &str, resource: &str, namespace: &str, name: &str| {
            request.objects.get(group, resource, namespace, name)
        };
        let errors = self.0.mutate(seen, &mut object, &lookup);
        submitter::stamp(seen, &request.user.name, &mut object);
        request.object = Some(object);
        errors.or_else(|errors| refuse(request, Stage::Mutate, errors))
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let Some(object) = &request.object else { return Ok(()) };
        let seen = webhooks::Request {
            group: request.group,
            resource: request.resource,
            namespace: request.namespace,
            old_object: request.old_object.as_deref(),
        };
        if !writes_object(request) && !webhooks::is_validated(seen, request.subresource, &request.user.name) {
            return Ok(());
        }
        let lookup = |group: &str, resource: &str, namespace: &str, name: &str| {
            request.objects.get(group, resource, namespace, name)
        };
        let mut errors = self.0.validate(seen, object, &lookup);
        if request.subresource.is_empty() {
            let account = webhooks::Account { name: &request.user.name, groups: &request.user.groups };
            errors.extend(self.0.validate_account(seen, account, object));
        }
        refuse(request, Stage::Validate, errors)
    }
}

/// AppWrapper's defaulting and validating webhooks. It precedes [`KueueWebhook`], which suspends
/// AppWrappers with a queue, because it adds the default queue.
pub struct AppWrapperWebhook {
    configuration: AppWrapperConfiguration,
    builtin: Registry,
}

impl AppWrapperWebhook {
    /// The webhooks for this configuration.
    pub fn new(configuration: AppWrapperConfiguration) -> Self {
        Self { configuration, builtin: Registry::builtin() }
    }

    /// Plural name of a kind's resource; `*` if the cluster does not serve the kind.
    fn resource(&self, kind: &GroupVersionKind, objects: &Objects) -> String {
        if let Some(row) = self.builtin.by_kind(&kind.group, &kind.kind) {
            return row.plural.clone();
        }
        let definitions = objects.list("apiextensions.k8s.io", "customresourcedefinitions", None);
        let mut specs = definitions.iter().map(|definition| &definition["spec"]);
        let found =
            specs.find(|spec| spec["group"] == kind.group.as_str() && spec["names"]["kind"] == kind.kind.as_str());
        found.and_then(|spec| spec["names"]["plural"].as_str()).unwrap_or("*").to_owned()
    }

    /// The rights of the user for each component.
    fn verdicts(&self, request: &AdmissionRequest<'_>, object: &Value) -> Vec<Verdict> {
        let verdict = |kind: Option<GroupVersionKind>| {
            let resource = kind.as_ref().map_or_else(|| "*".to_owned(), |kind| self.resource(kind, request.objects));
            let attributes = Attributes {
                verb: "create",
                group: kind.as_ref().map_or("*", |kind| kind.group.as_str()),
                resource: &resource,
                subresource: "",
                name: "",
                namespace: request.namespace,
                path: "",
                is_resource_request: true,
            };
            let decision = auth::decide(request.objects, &attributes, request.user);
            Verdict { resource: resource.clone(), is_allowed: Ok(decision.allowed) }
        };
        app_wrappers::kinds(object).into_iter().map(verdict).collect()
    }
}

fn creator<'a>(request: &AdmissionRequest<'a>) -> Creator<'a> {
    Creator { name: &request.user.name, uid: &request.user.uid }
}

impl AdmissionPlugin for AppWrapperWebhook {
    fn name(&self) -> &str {
        "workload.codeflare.dev"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let creator = creator(request);
        if is(request, "workload.codeflare.dev", "appwrappers")
            && request.operation == Operation::Create
            && let Some(object) = &mut request.object
        {
            app_wrappers::default_on_create(object, creator, &self.configuration);
        }
        Ok(())
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "workload.codeflare.dev", "appwrappers") {
            return Ok(());
        }
        let Some(object) = &request.object else { return Ok(()) };
        let errors = match &request.old_object {
            Some(old) if request.operation == Operation::Update => app_wrappers::validate_update(object, old),
            _ => {
                let is_checked = self.configuration.user_rbac_admission_check;
                let verdicts = is_checked.then(|| self.verdicts(request, object));
                app_wrappers::validate_create(object, request.namespace, creator(request), verdicts.as_deref())
            }
        };
        refuse(request, Stage::Validate, errors)
    }
}

/// JobSet's defaulting and validating webhooks.
pub struct JobSetWebhook;

impl AdmissionPlugin for JobSetWebhook {
    fn name(&self) -> &str {
        "jobset.x-k8s.io"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if is(request, "jobset.x-k8s.io", "jobsets")
            && let Some(object) = &mut request.object
        {
            webhook::default_jobset(object);
        }
        Ok(())
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "jobset.x-k8s.io", "jobsets") {
            return Ok(());
        }
        let Some(object) = &request.object else { return Ok(()) };
        let new: JobSet = typed(request, object)?;
        let errors = match (&request.operation, &request.old_object) {
            (Operation::Update, Some(old)) => webhook::validate_update(&typed(request, old)?, &new, Gates::default()),
            _ => webhook::validate_create(&new, Gates::default(), &|namespace, name| {
                let claim = request.objects.get("", "persistentvolumeclaims", namespace, name)?;
                serde_json::from_value((*claim).clone()).ok()
            }),
        };
        refuse(request, Stage::Validate, errors)
    }
}

/// JobSet's webhooks for pods: exclusive placement.
pub struct JobSetPodWebhook;

impl AdmissionPlugin for JobSetPodWebhook {
    fn name(&self) -> &str {
        "pods.jobset.x-k8s.io"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "", "pods") || request.operation != Operation::Create {
            return Ok(());
        }
        let view = Stored(request.objects);
        let Some(object) = &mut request.object else { return Ok(()) };
        let prepared = webhook::default_pod(object, &view);
        prepared.map_err(|error| denied(request, Stage::Mutate, &error))
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "", "pods") || request.operation != Operation::Create {
            return Ok(());
        }
        let Some(object) = &request.object else { return Ok(()) };
        webhook::validate_pod(object, &Stored(request.objects))
            .map_err(|error| denied(request, Stage::Validate, &error))
    }
}

/// The defaulting and validating webhooks of LeaderWorkerSet, and its webhook for pods.
pub struct LeaderWorkerSetWebhook;

impl AdmissionPlugin for LeaderWorkerSetWebhook {
    fn name(&self) -> &str {
        "leaderworkerset.x-k8s.io"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let is_set = is(request, "leaderworkerset.x-k8s.io", "leaderworkersets");
        let is_new_pod = is(request, "", "pods") && request.operation == Operation::Create;
        let Some(object) = &mut request.object else { return Ok(()) };
        if is_set {
            leader_worker_set::default_set(object);
        } else if is_new_pod && let Err(message) = leader_worker_set::default_pod(object, request.namespace) {
            return Err(refusal(&webhook_name(request, Stage::Mutate), &denial(&message)));
        }
        Ok(())
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "leaderworkerset.x-k8s.io", "leaderworkersets") {
            return Ok(());
        }
        let Some(object) = &request.object else { return Ok(()) };
        refuse(request, Stage::Validate, leader_worker_set::validate(object, request.old_object.as_deref()))
    }
}

/// The webhooks of Kubeflow Trainer: defaults of TrainJobs, and validation of jobs and runtimes.
pub struct TrainerWebhook(pub Clock);

impl TrainerWebhook {
    fn refuse(stage: &str, request: &AdmissionRequest<'_>, problem: &str) -> Status {
        let name = format!("{stage}.{}.trainer.kubeflow.org", request.kind.to_lowercase());
        refusal(&name, &denial(problem))
    }
}

impl AdmissionPlugin for TrainerWebhook {
    fn name(&self) -> &str {
        "trainer.kubeflow.org"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, TRAINER, "trainjobs") {
            return Ok(());
        }
        let now = format!("{:.0}", self.0.now());
        let old = request.old_object.clone();
        if let Some(object) = &mut request.object {
            trainer::default_job(object, old.as_deref(), &now);
        }
        Ok(())
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let Some(object) = request.object.as_ref().filter(|_| request.group == TRAINER && writes_object(request))
        else {
            return Ok(());
        };
        let errors = match request.resource {
            "trainjobs" => {
                trainer::validate_job(object, request.old_object.as_deref(), &|group, resource, namespace, name| {
                    request.objects.get(group, resource, namespace, name)
                })
                .map_err(|problem| Self::refuse("validator", request, &problem))?
                .errors
            }
            "trainingruntimes" | "clustertrainingruntimes" if request.operation == Operation::Create => {
                trainer::validate_runtime(object)
            }
            _ => Vec::new(),
        };
        if errors.is_empty() {
            return Ok(());
        }
        Err(Self::refuse("validator", request, &field::aggregate(&errors)))
    }

    fn warn(&self, request: &AdmissionRequest<'_>) -> Vec<String> {
        let Some(object) = request.object.as_ref().filter(|_| is(request, TRAINER, "trainjobs")) else {
            return Vec::new();
        };
        let judged = trainer::validate_job(object, None, &|group, resource, namespace, name| {
            request.objects.get(group, resource, namespace, name)
        });
        judged.map(|judged| judged.warnings).unwrap_or_default()
    }
}

/// The node affinity by which pods of queued jobs avoid unhealthy nodes.
pub struct NodeHealthWebhook(pub Arc<NodeHealthConfiguration>);

impl AdmissionPlugin for NodeHealthWebhook {
    fn name(&self) -> &str {
        "node-health.berth.dev"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is(request, "", "pods") || request.operation != Operation::Create {
            return Ok(());
        }
        let Some(object) = &mut request.object else { return Ok(()) };
        avoid_unhealthy_nodes(object, &self.0);
        Ok(())
    }
}

/// The training operator's validating webhooks.
pub struct TrainingWebhook;

impl AdmissionPlugin for TrainingWebhook {
    fn name(&self) -> &str {
        "training-operator.kubeflow.org"
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        match training_verdict(request) {
            Some((webhook, verdict)) if !verdict.errors.is_empty() => {
                Err(refusal(&webhook, &denial(&field::aggregate(&verdict.errors))))
            }
            _ => Ok(()),
        }
    }

    fn warn(&self, request: &AdmissionRequest<'_>) -> Vec<String> {
        training_verdict(request).map(|(_, verdict)| verdict.warnings).unwrap_or_default()
    }
}

/// Name and verdict of the webhook for this request; `None` if the training operator has none.
fn training_verdict(request: &AdmissionRequest<'_>) -> Option<(String, training::Verdict)> {
    if request.group != "kubeflow.org" || !writes_object(request) {
        return None;
    }
    let framework = training::validated_kind(request.kind)?;
    let old = request.old_object.as_deref().filter(|_| request.operation == Operation::Update);
    let verdict = training::validate(framework, old, request.object.as_ref()?);
    Some((training::webhook_name(framework), verdict))
}

/// The stored objects, as exclusive placement reads them.
struct Stored<'a>(&'a Objects);

impl ClusterView for Stored<'_> {
    fn pods_of_set(&self, namespace: &str, set: &str) -> Vec<Pod> {
        let pods = self.0.list("", "pods", Some(namespace));
        let of_set = pods.iter().filter(|pod| pod["metadata"]["labels"][JOBSET_NAME] == set);
        of_set.filter_map(|pod| Pod::deserialize(pod.as_ref()).ok()).collect()
    }

    fn node(&self, name: &str) -> Option<Node> {
        Node::deserialize(self.0.get("", "nodes", "", name)?.as_ref()).ok()
    }
}

fn denied(request: &AdmissionRequest<'_>, stage: Stage, error: &PlacementError) -> Status {
    refusal(&webhook_name(request, stage), &denial(&error.to_string()))
}

/// Name of the webhook that would reject the request if Kueue or JobSet were installed. Both have
/// one webhook per stage and kind, named by the same rule.
fn webhook_name(request: &AdmissionRequest<'_>, stage: Stage) -> String {
    let stage = match stage {
        Stage::Mutate => "m",
        Stage::Validate => "v",
    };
    format!("{stage}{}.kb.io", request.kind.to_lowercase())
}

/// True if the request creates or updates an object of this resource, not one of its subresources.
fn is(request: &AdmissionRequest<'_>, group: &str, resource: &str) -> bool {
    request.group == group && request.resource == resource && writes_object(request)
}

fn writes_object(request: &AdmissionRequest<'_>) -> bool {
    request.subresource.is_empty() && matches!(request.operation, Operation::Create | Operation::Update)
}

/// The object as its Rust type. The schema was checked before, so a failure means that a type is
/// stricter than the schema. The error contains the field.
fn typed<T: DeserializeOwned>(request: &AdmissionRequest<'_>, object: &Value) -> Result<T, Status> {
    T::deserialize(object).map_err(|error| {
        let unreadable = json!({"code": 400, "message": error.to_string()});
        refusal(&webhook_name(request, Stage::Validate), &unreadable)
    })
}

fn refuse(request: &AdmissionRequest<'_>, stage: Stage, errors: Vec<field::Error>) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(refusal(&webhook_name(request, stage), &denial(&field::aggregate(&errors))))
}
