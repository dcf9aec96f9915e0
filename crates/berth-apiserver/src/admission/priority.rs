//! Priority: sets a pod's priority from its `priorityClassName`, or from the global default class
//! without one.

use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use serde_json::Value;

use super::{AdmissionPlugin, AdmissionRequest, Operation, forbidden, is_pod_create};
use crate::strategy;

const GROUP: &str = "scheduling.k8s.io";
const PLURAL: &str = "priorityclasses";

pub(crate) struct Priority;

/// The fields that a pod gets from its class.
struct Class {
    name: String,
    value: i64,
    policy: String,
}

impl AdmissionPlugin for Priority {
    fn name(&self) -> &str {
        "Priority"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_create(request) {
            return Ok(());
        }
        let Some(object) = &request.object else { return Ok(()) };
        let wanted = object["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
        let class = if wanted.is_empty() {
            global_default(request)
        } else {
            let Some(class) = find(request, &wanted) else {
                let why = format!("no PriorityClass with name {wanted} was found");
                return Err(forbidden(request, &why));
            };
            class
        };
        let given = object["spec"]["priority"].as_i64();
        if given.is_some_and(|given| given != class.value) {
            let why = format!(
                "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
                given.unwrap_or_default(),
                class.value
            );
            return Err(forbidden(request, &why));
        }
        let Some(object) = &mut request.object else { return Ok(()) };
        let spec = strategy::spec_mut(object);
        if !class.name.is_empty() {
            spec.insert("priorityClassName".to_owned(), class.name.into());
        }
        spec.insert("priority".to_owned(), class.value.into());
        strategy::set_default_text(spec, "preemptionPolicy", &class.policy);
        Ok(())
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let is_class = request.group == GROUP && request.resource == PLURAL;
        let Some(object) = request.object.as_ref().filter(|_| is_class && request.operation != Operation::Delete)
        else {
            return Ok(());
        };
        if object["globalDefault"] != true {
            return Ok(());
        }
        let other = classes(request)
            .into_iter()
            .find(|class| class["globalDefault"] == true && meta::name(class) != meta::name(object));
        match other {
            Some(other) => {
                let why = format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    meta::name(&other)
                );
                Err(forbidden(request, &why))
            }
            None => Ok(()),
        }
    }
}

fn classes(request: &AdmissionRequest<'_>) -> Vec<Arc<Value>> {
    request.objects.list(GROUP, PLURAL, None)
}

fn class_of(object: &Value) -> Class {
    Class {
        name: meta::name(object).to_owned(),
        value: object["value"].as_i64().unwrap_or(0),
        policy: object["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority").to_owned(),
    }
}

fn find(request: &AdmissionRequest<'_>, name: &str) -> Option<Class> {
    if let Some(object) = request.objects.get(GROUP, PLURAL, "", name) {
        return Some(class_of(&object));
    }
    // The system's classes apply even if their objects do not exist.
    let (name, value, _) = strategy::SYSTEM_CLASSES.iter().find(|(system, ..)| *system == name)?;
    Some(Class { name: (*name).to_owned(), value: *value, policy: "PreemptLowerPriority".to_owned() })
}

fn global_default(request: &AdmissionRequest<'_>) -> Class {
    // Two servers with one store can create several default classes. The one with the lowest
    // priority applies, as upstream.
    classes(request)
        .iter()
        .filter(|class| class["globalDefault"] == true)
        .map(|class| class_of(class))
        .min_by_key(|class| class.value)
        .unwrap_or_else(|| Class { name: String::new(), value: 0, policy: "PreemptLowerPriority".to_owned() })
}
