//! Where the API server's admission meets the webhooks' logic: each plugin here turns a request into the typed call a
//! webhook server would make in a real cluster, and its findings into a Status.

use berth_api::jobset::v1alpha2::JobSet;
use berth_apimachinery::field;
use berth_apimachinery::meta::GroupKind;
use berth_apimachinery::status::Status;
use berth_apiserver::admission::{AdmissionPlugin, AdmissionRequest, Operation};
use berth_cluster::jobset::{gates::Gates, webhook};
use serde::de::DeserializeOwned;
use serde_json::Value;

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
        let new: JobSet = typed(object)?;
        let errors = match (&request.operation, &request.old_object) {
            (Operation::Update, Some(old)) => webhook::validate_update(&typed(old)?, &new, Gates::default()),
            _ => webhook::validate_create(&new, Gates::default(), &|namespace, name| {
                let claim = request.objects.get("", "persistentvolumeclaims", namespace, name)?;
                serde_json::from_value((*claim).clone()).ok()
            }),
        };
        refuse(request, errors)
    }
}

/// Whether the request writes an object of this resource itself, not one of its subresources.
fn is(request: &AdmissionRequest<'_>, group: &str, resource: &str) -> bool {
    request.group == group
        && request.resource == resource
        && request.subresource.is_empty()
        && matches!(request.operation, Operation::Create | Operation::Update)
}

/// The object as its type. The schema was checked before, so that a failure means a field our types read more strictly
/// than the schema does; the user is told which.
fn typed<T: DeserializeOwned>(object: &Value) -> Result<T, Status> {
    T::deserialize(object).map_err(|error| Status::bad_request(error.to_string()))
}

fn refuse(request: &AdmissionRequest<'_>, errors: Vec<field::Error>) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: request.group.to_owned(), kind: request.kind.to_owned() };
    Err(Status::invalid(&kind, request.name, &errors))
}
