//! Admission checks that never pass.

use std::sync::Arc;

use berth_api::kueue::constants::MULTIKUEUE_CONTROLLER;
use berth_api::kueue::v1beta2::AdmissionCheck;
use berth_controllers::provisioning;
use berth_controllers::translate;

use super::facts::Facts;
use super::{Findings, Severity, text};
use crate::objects::{ObjectRef, Sourced};

pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for queue in &facts.queues {
        for (number, rule) in queue.checks.iter().enumerate() {
            if facts.objects.admission_checks.contains_key(&*rule.check) {
                continue;
            }
            let message =
                format!("AdmissionCheck {} does not exist; the queue admits nothing until it does", rule.check);
            let help = "create the AdmissionCheck, or remove it from the queue";
            let field = format!("spec.admissionChecksStrategy.admissionChecks[{number}].name");
            let object = ObjectRef::cluster("ClusterQueue", &queue.name);
            findings.add("check-missing", object, facts.queue_source(&queue.name), text(field, message, help));
        }
    }
    for (name, check) in &facts.objects.admission_checks {
        if check.object.spec.controller_name == provisioning::CONTROLLER_NAME {
            provisions(facts, name, check, findings);
        } else {
            served(name, check, findings);
        }
    }
}

fn provisions(facts: &Facts<'_>, name: &str, check: &Sourced<AdmissionCheck>, findings: &mut Findings) {
    let object = ObjectRef::cluster("AdmissionCheck", name);
    if !facts.objects.config.provisioning_requests {
        let message = "the controllers are configured not to serve ProvisioningRequests";
        let help = "set provisioningRequests to true in the configuration, or remove the check from the queues";
        let found = text("spec.controllerName", message, help);
        findings.add("check-unserved", object, check.source.as_ref(), found);
        return;
    }
    let find = |name: &str| facts.objects.provisioning_configs.get(name).map(|it| Arc::new(it.object.clone()));
    if let Err(problem) = provisioning::check::config(&check.object, find) {
        let help = "create the ProvisioningRequestConfig, and name it in spec.parameters with apiGroup kueue.x-k8s.io \
                    and kind ProvisioningRequestConfig";
        let message = format!("the check is not active, so its queues admit nothing: {problem}");
        findings.add("provisioning-config", object, check.source.as_ref(), text("spec.parameters", message, help));
    }
}

/// A check of another project's controller.
fn served(name: &str, check: &Sourced<AdmissionCheck>, findings: &mut Findings) {
    let controller = check.object.spec.controller_name.as_str();
    let object = ObjectRef::cluster("AdmissionCheck", name);
    if controller == MULTIKUEUE_CONTROLLER {
        let message = format!("Berth does not dispatch jobs to other clusters, so no controller serves {controller}");
        let help = "remove the check from the queues";
        let found = text("spec.controllerName", message, help);
        findings.add("check-unserved", object, check.source.as_ref(), found);
    } else if check.source.is_none() && !translate::admission_check(&check.object).active {
        let message = format!("controller {controller} does not report the check as Active");
        let help = "start the controller, or remove the check from the queues";
        let found = text("spec.controllerName", message, help);
        findings.add("check-unserved", object, None, found);
    } else if check.source.is_some() {
        let message = format!("no controller of Berth serves {controller}: another one must run in the cluster");
        let help =
            "install the controller, or correct spec.controllerName; Berth serves kueue.x-k8s.io/provisioning-request";
        let found = text("spec.controllerName", message, help);
        findings.add_as(Severity::Note, "check-unserved", object, check.source.as_ref(), found);
    }
}
