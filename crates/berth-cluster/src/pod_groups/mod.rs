//! The PodGroup controller: writes the phase of PodGroups and the numbers of their pods. The
//! scheduler does not read them.
//!
//! Source: kubernetes-sigs/scheduler-plugins, `pkg/controllers/podgroup_controller.go`.

mod plan;

use berth_api::scheduling::{POD_GROUP_LABEL, PodGroup};
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer, is_not_found,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

pub use plan::{Plan, plan};

/// Adds the controller.
pub fn install(manager: &mut Manager) {
    let groups: Cache<PodGroup> = manager.cache_if_served();
    let pods: Cache<Pod> = manager.cache();
    let controller = Controller {
        writer: Writer::new(manager, &groups),
        clock: manager.clock(),
        recorder: manager.recorder("PodGroupController"),
        pods: pods.index(|pod| group_of(pod).map(|key| key.to_string()).into_iter().collect()),
    };
    manager
        .controller("pod-group")
        .watch_self(&groups)
        .watch(&pods, |delta| {
            let sides = [&delta.old, &delta.new].into_iter().flatten();
            sides.filter_map(|pod| group_of(pod)).collect::<std::collections::BTreeSet<_>>()
        })
        .run(controller);
}

/// The key of the PodGroup that a pod names.
fn group_of(pod: &Pod) -> Option<ObjectKey> {
    let name = pod.labels().get(POD_GROUP_LABEL).filter(|name| !name.is_empty())?;
    Some(ObjectKey::namespaced(pod.namespace().unwrap_or_default(), name))
}

struct Controller {
    writer: Writer<PodGroup>,
    clock: Clock,
    recorder: Recorder,
    pods: Index<Pod>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(group) = self.writer.cache().get(&key) else { return Ok(Action::Wait) };
        let pods = self.pods.get(&key.to_string());
        match plan(&group, &pods, self.clock.now()) {
            Plan::Keep => {}
            Plan::TimedOut => {
                let message = "schedule time longer than 48 hours";
                self.recorder.event(group.as_ref(), EventType::Warning, "Timeout", message);
            }
            Plan::Write(status) => {
                let written = PodGroup { status: Some(status), ..group.as_ref().clone() };
                match self.writer.replace_status(&written).await {
                    Err(error) if !is_not_found(&error) => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(Action::Wait)
    }
}
