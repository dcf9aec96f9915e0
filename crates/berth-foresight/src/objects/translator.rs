//! Workloads in the engine's form, as the controllers read them.

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::devices::{Charges, Devices};
use berth_controllers::translate::{self, amounts};
use berth_engine::Name;
use berth_engine::model::Workload;
use k8s_openapi::api::core::v1::LimitRange;

use super::Objects;

/// Translates the workloads of a set of objects.
pub struct Translator<'a> {
    objects: &'a Objects,
    devices: Devices,
    limit_ranges: BTreeMap<&'a str, Vec<LimitRange>>,
}

impl<'a> Translator<'a> {
    /// The translator of a set.
    pub fn new(objects: &'a Objects) -> Translator<'a> {
        let mut limit_ranges: BTreeMap<&str, Vec<LimitRange>> = BTreeMap::new();
        for ((namespace, _), range) in &objects.limit_ranges {
            limit_ranges.entry(namespace).or_default().push(range.clone());
        }
        Translator { objects, devices: objects.devices(), limit_ranges }
    }

    /// The devices of the set.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// A workload in the engine's form, and what its devices change in the requests of its pods.
    pub fn translate(&self, workload: &api::Workload) -> (Workload, Charges) {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let context = translate::Context {
            resources: &self.objects.config.resources,
            limit_ranges: self.limit_ranges.get(namespace).map(Vec::as_slice).unwrap_or_default(),
            runtime_classes: &self.objects.runtime_classes,
        };
        let mut translated = translate::workload(workload, &context);
        match self.devices.charges(workload, || translate::adjusted_specs(workload, &context)) {
            Ok(charges) => {
                charges.apply(&mut translated);
                (translated, charges)
            }
            Err(problem) => {
                // Without the configuration of the controllers, their own account is what is known.
                if translated.admission.is_none() && !as_recorded(workload, &mut translated) {
                    translated.requeued = Some(false);
                    translated.inadmissible = Some(problem.message);
                }
                (translated, Charges::default())
            }
        }
    }
}

/// Takes the requests that the controllers recorded in the status of a waiting workload. False if
/// they recorded none.
fn as_recorded(workload: &api::Workload, translated: &mut Workload) -> bool {
    let recorded = workload.status.as_ref().map(|status| status.resource_requests.as_slice()).unwrap_or_default();
    for set in &mut translated.pod_sets {
        let Some(of_set) = recorded.iter().find(|it| it.name == *set.name) else { continue };
        let count = i64::from(set.count.max(1));
        let totals = amounts::from_resource_list(&of_set.resources);
        set.requests = totals.into_iter().map(|(name, total)| (Name::clone(&name), total / count)).collect();
    }
    !recorded.is_empty()
}
