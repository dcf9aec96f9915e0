//! The controller of Cohorts: their weighted share under fair sharing.

use berth_api::kueue::v1beta2::{Cohort, CohortStatus, FairSharingStatus};
use berth_runtime::{Action, Cache, Error, Manager, ObjectKey, Reconciler};
use kube::{Api, Client};

use crate::execute::{Part, patch};
use crate::scheduler::{RegisteredScheduler, SchedulerState};
use crate::stores::Stores;

/// True if this change to a cohort can affect decisions.
pub fn concerns(old: Option<&Cohort>, new: &Cohort) -> bool {
    old.is_none_or(|old| old.spec != new.spec || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp)
}

/// Adds the controller to the manager. Shares change with the usage of the cohort's cluster queues,
/// so any change to a cluster queue triggers a reconcile of every cohort.
pub(crate) fn install(manager: &mut Manager, stores: &Stores, scheduler: &RegisteredScheduler) {
    let client = manager.client();
    let cohorts: Cache<Cohort> = manager.cache();
    let all = cohorts.clone();
    manager
        .controller("cohort")
        .watch_self(&cohorts)
        .watch(&stores.cluster_queues, move |_| {
            all.list().iter().map(|cohort| ObjectKey::of(cohort.as_ref())).collect::<Vec<_>>()
        })
        .run(Controller { client, cohorts, scheduler: scheduler.state.clone() });
}

struct Controller {
    client: Client,
    cohorts: Cache<Cohort>,
    scheduler: SchedulerState,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(cohort) = self.cohorts.get(&key) else { return Ok(Action::Wait) };
        let Some(figures) = self.scheduler.engine().cohort_status(&key.name) else { return Ok(Action::Wait) };
        let mut wanted = (*cohort).clone();
        wanted.status.get_or_insert_with(CohortStatus::default).fair_sharing =
            Some(FairSharingStatus { weighted_share: figures.weighted_share.value });
        let api: Api<Cohort> = Api::all(self.client.clone());
        if let Some(answer) = patch(&api, cohort.as_ref(), &wanted, Part::Status, None).await? {
            self.cohorts.observe(answer);
        }
        Ok(Action::Wait)
    }
}
