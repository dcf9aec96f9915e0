//! DefaultStorageClass and DefaultIngressClass: claims and ingresses without a class get the newest
//! default class of the cluster. Without a default class they are not changed.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use serde_json::Value;

use super::{AdmissionPlugin, AdmissionRequest, Operation};
use crate::strategy;

/// Name of the newest object with one of these annotations set to `true`; of equally old ones, the
/// first by name.
fn newest_default(classes: Vec<Arc<Value>>, annotations: &[&str]) -> Option<String> {
    let is_default = |class: &Arc<Value>| annotations.iter().any(|name| meta::annotation(class, name) == Some("true"));
    let created = |class: &Value| class["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    let newest = classes
        .into_iter()
        .filter(is_default)
        .min_by_key(|class| (Reverse(created(class)), meta::name(class).to_owned()));
    newest.map(|class| meta::name(&class).to_owned())
}

fn is_created(request: &AdmissionRequest<'_>, group: &str, resource: &str) -> bool {
    request.operation == Operation::Create
        && (request.group, request.resource, request.subresource) == (group, resource, "")
}

pub(crate) struct DefaultStorageClass;

impl AdmissionPlugin for DefaultStorageClass {
    fn name(&self) -> &str {
        "DefaultStorageClass"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let has_class = |claim: &Value| {
            // An empty name requests volumes without a class.
            !claim["spec"]["storageClassName"].is_null()
                || meta::annotation(claim, "volume.beta.kubernetes.io/storage-class").is_some()
        };
        if !is_created(request, "", "persistentvolumeclaims") || request.object.as_ref().is_none_or(has_class) {
            return Ok(());
        }
        let classes = request.objects.list("storage.k8s.io", "storageclasses", None);
        let annotations =
            ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        let (Some(class), Some(claim)) = (newest_default(classes, &annotations), &mut request.object) else {
            return Ok(());
        };
        strategy::spec_mut(claim).insert("storageClassName".to_owned(), class.into());
        Ok(())
    }
}

pub(crate) struct DefaultIngressClass;

impl AdmissionPlugin for DefaultIngressClass {
    fn name(&self) -> &str {
        "DefaultIngressClass"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let has_class = |ingress: &Value| {
            !ingress["spec"]["ingressClassName"].is_null()
                || meta::annotation(ingress, "kubernetes.io/ingress.class").is_some()
        };
        let is_new = is_created(request, "networking.k8s.io", "ingresses");
        if !is_new || request.object.as_ref().is_none_or(has_class) {
            return Ok(());
        }
        let classes = request.objects.list("networking.k8s.io", "ingressclasses", None);
        let class = newest_default(classes, &["ingressclass.kubernetes.io/is-default-class"]);
        let (Some(class), Some(ingress)) = (class, &mut request.object) else { return Ok(()) };
        strategy::spec_mut(ingress).insert("ingressClassName".to_owned(), class.into());
        Ok(())
    }
}
