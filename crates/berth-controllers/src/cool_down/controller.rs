//! Writes the cool-downs of flavors, and removes a cool-down when its time is over.

use std::sync::Arc;

use berth_api::kueue::v1beta2::{ClusterQueue, ResourceFlavor};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, is_not_found};
use kube::{Api, Client};

use super::{Failure, expired, failed, has_alternative, recovered, until};
use crate::configuration::{Config, FlavorCoolDown};
use crate::execute::{Part, patch};
use crate::stores::Stores;

/// Adds the controller that ends cool-downs.
pub(crate) fn install(manager: &mut Manager, config: &Config, stores: &Stores) {
    let cool_downs = CoolDowns::new(manager, config, stores);
    manager.controller("flavor-cool-down").watch_self(&stores.flavors).run(cool_downs);
}

/// Reads and writes the cool-downs of flavors.
#[derive(Clone)]
pub(crate) struct CoolDowns {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    flavors: Cache<ResourceFlavor>,
    config: Option<Arc<FlavorCoolDown>>,
}

impl CoolDowns {
    pub(crate) fn new(manager: &mut Manager, config: &Config, stores: &Stores) -> Self {
        Self {
            client: manager.client(),
            clock: manager.clock(),
            recorder: manager.recorder("berth-flavors"),
            flavors: stores.flavors.clone(),
            config: config.flavor_cool_down.clone().map(Arc::new),
        }
    }

    /// True if failures of flavors are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.config.is_some()
    }

    /// True if a workload of the queue can use another flavor after these have failed.
    pub(crate) fn has_alternative(&self, queue: Option<&ClusterQueue>, failed: &[String]) -> bool {
        let is_cooling = |name: &str| self.flavors.get(&ObjectKey::cluster(name)).is_none_or(|f| until(&f).is_some());
        self.is_on() && queue.is_some_and(|queue| has_alternative(queue, failed, is_cooling))
    }

    /// Records a failure. It must be recorded before the workload is queued again.
    pub(crate) async fn record(&self, failure: &Failure) -> Result<(), Error> {
        let Some(config) = &self.config else { return Ok(()) };
        for name in &failure.flavors {
            let Some(flavor) = self.flavors.get(&ObjectKey::cluster(name)) else { continue };
            if let Some(changed) = failed(&flavor, config, failure, self.clock.now()) {
                self.write(&flavor, &changed).await?;
                let text = super::text(&changed).unwrap_or_default();
                let message = format!("Flavor {name} gets no further workloads {text}");
                self.recorder.event(flavor.as_ref(), EventType::Warning, "FlavorCoolDown", &message);
            }
        }
        Ok(())
    }

    /// Records that capacity of these flavors was provisioned.
    pub(crate) async fn record_success(&self, flavors: &[String]) -> Result<(), Error> {
        if !self.is_on() {
            return Ok(());
        }
        for name in flavors {
            let Some(flavor) = self.flavors.get(&ObjectKey::cluster(name)) else { continue };
            if let Some(changed) = recovered(&flavor) {
                self.write(&flavor, &changed).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, before: &ResourceFlavor, after: &ResourceFlavor) -> Result<(), Error> {
        let api: Api<ResourceFlavor> = Api::all(self.client.clone());
        let version = before.metadata.resource_version.as_deref();
        match patch(&api, before, after, Part::Main, version).await {
            Ok(Some(written)) => self.flavors.observe(written),
            Ok(None) => {}
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl Reconciler for CoolDowns {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(flavor) = self.flavors.get(&key) else { return Ok(Action::Wait) };
        let now = self.clock.now();
        if let Some(changed) = expired(&flavor, now) {
            self.write(&flavor, &changed).await?;
            return Ok(Action::Wait);
        }
        Ok(until(&flavor).map_or(Action::Wait, |at| Action::After(self.clock.until(at))))
    }
}
