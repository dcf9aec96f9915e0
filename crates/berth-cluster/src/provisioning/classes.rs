//! The provisioning classes that the cluster serves: the valid ProvisioningClass objects.

use std::sync::Arc;

use berth_api::berth::{ProvisioningClass, ProvisioningClassSpec, provisioning_class_name_problem};
use berth_runtime::{Action, Cache, Error, EventType, Manager, ObjectKey, Reconciler, Recorder};
use kube::ResourceExt;

/// The classes of a cluster.
#[derive(Clone)]
pub struct Classes(Cache<ProvisioningClass>);

impl Classes {
    /// The classes in the manager's cache.
    pub fn of(manager: &mut Manager) -> Self {
        Self(manager.cache())
    }

    /// The cache, to watch it.
    pub fn cache(&self) -> &Cache<ProvisioningClass> {
        &self.0
    }

    /// The class with this name; `None` if the cluster does not serve it.
    pub fn get(&self, name: &str) -> Option<ProvisioningClassSpec> {
        let class = self.0.get(&ObjectKey::cluster(name))?;
        let is_served = class.metadata.deletion_timestamp.is_none() && problem(&class).is_none();
        is_served.then(|| class.spec.clone())
    }

    /// Names of all served classes, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.iter().map(|class| class.name_any()).collect();
        names.retain(|name| self.get(name).is_some());
        names.sort();
        names
    }
}

/// The first error of a class, if there is one.
fn problem(class: &ProvisioningClass) -> Option<String> {
    if let Some(why) = provisioning_class_name_problem(&class.name_any()) {
        return Some(format!("metadata.name: {why}"));
    }
    class.spec.problems("spec").first().map(ToString::to_string)
}

/// Adds the controller that reports invalid classes.
pub fn install(manager: &mut Manager) {
    let classes: Cache<ProvisioningClass> = manager.cache();
    let recorder = manager.recorder("cluster-autoscaler");
    manager.controller("provisioning-classes").watch_self(&classes).run(Report { classes: classes.clone(), recorder });
}

struct Report {
    classes: Cache<ProvisioningClass>,
    recorder: Recorder,
}

impl Reconciler for Report {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(class) = self.classes.get(&key) else { return Ok(Action::Wait) };
        if let Some(problem) = problem(&class) {
            let message = format!("The class is not served until it is valid: {problem}");
            self.recorder.event(Arc::as_ref(&class), EventType::Warning, "InvalidProvisioningClass", &message);
        }
        Ok(Action::Wait)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_has_a_known_name_and_waits_at_most_seven_days() {
        let class = |name: &str, spec| ProvisioningClass::new(name, serde_json::from_value(spec).unwrap());
        let queued = "queued-provisioning.gke.io";
        assert_eq!(problem(&class(queued, json!({}))), None);
        assert_eq!(
            problem(&class(queued, json!({ "maxWait": "169h" }))).unwrap(),
            "spec.maxWait: 169h0m0s is more than 7 days (168h)"
        );
        assert_eq!(
            problem(&class("mine", json!({}))).unwrap(),
            "metadata.name: \"mine\" is not a known class: expected best-effort-atomic-scale-up.autoscaling.x-k8s.io, \
             check-capacity.autoscaling.x-k8s.io, queued-provisioning.gke.io"
        );
    }
}
