//! Pods that count on their node before they are bound: their bindings are being written, or their
//! claims wait for volumes.

use std::sync::Arc;

use berth_runtime::ObjectKey;

use super::gangs::Gang;
use super::state::{Decision, Preparing, State};
use crate::placement::{PodInfo, device_claims_of};

impl State {
    /// Counts the pod on its node, and returns the first write.
    pub(super) fn assume(&mut self, pod: Arc<PodInfo>, node: String) -> Decision {
        let pod = self.count_on(pod, &node);
        self.first_write(pod, node)
    }

    /// Counts the pod on its node, with devices that it gets there. Returns the pod without its
    /// needs of devices: they refer to a state of the devices, which would be copied for the next
    /// choice.
    pub(super) fn count_on(&mut self, pod: Arc<PodInfo>, node: &str) -> Arc<PodInfo> {
        let pod = if pod.claims_devices() { Arc::new(pod.without_device_needs()) } else { pod };
        self.stop_waiting(&pod.key);
        self.assumed.insert(pod.key.clone());
        self.cluster.place(pod.clone(), node);
        let chosen = self.cluster.node(node).filter(|_| pod.claims_devices()).and_then(|node| {
            let needs = self.storage.devices.needs(&pod.pod).behind(self.ahead_of(&pod));
            needs.on(node).ok()
        });
        if let Some(choices) = chosen {
            self.storage.devices.take(&pod.key, choices);
        }
        pod
    }

    /// The first write for a pod that counts on its node.
    pub(super) fn first_write(&mut self, pod: Arc<PodInfo>, node: String) -> Decision {
        if pod.volumes().are_bound() {
            return Decision::Bind { pod, node };
        }
        self.prepare_for(pod, node, None)
    }

    /// Chooses volumes for the claims of an assumed pod. It is bound together with the pods of its
    /// gang.
    pub(super) fn prepare_for(&mut self, pod: Arc<PodInfo>, node: String, gang: Option<Gang>) -> Decision {
        let choices = self.cluster.node(&node).map(|node| pod.volumes().on(node.name(), node.labels()));
        let choices = choices.and_then(Result::ok).unwrap_or_default();
        self.storage.take(&choices);
        self.preparing.insert(pod.key.clone(), Preparing { node: node.clone(), is_written: false, gang });
        for claim in pod.claims() {
            self.users.entry(claim).or_default().insert(pod.key.clone());
        }
        Decision::Prepare { pod, node, choices }
    }

    /// Records that the choices for a pod's claims are written.
    pub fn prepared(&mut self, key: &ObjectKey) {
        if let Some(preparing) = self.preparing.get_mut(key) {
            preparing.is_written = true;
            self.to_check.insert(key.clone());
        }
    }

    /// Decides the pods whose claims have changed: pods with all volumes are bound, those of a gang
    /// together. Pods whose volumes are not available on the chosen node are decided again, and so
    /// are the other pods of their gang.
    pub(super) fn check_prepared(&mut self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for key in std::mem::take(&mut self.to_check) {
            let Some(Preparing { node, gang, .. }) = self.preparing.get(&key) else { continue };
            let (node, gang) = (node.clone(), gang.clone());
            match (self.is_prepared(&key), gang) {
                (None, _) => self.binding_failed(&key),
                (Some(true), Some(gang)) => decisions.extend(self.bind_gang(&gang)),
                (Some(true), None) => {
                    let Some(pod) = self.cluster.pod(&key).map(|pod| Arc::new(pod.with_volumes(&self.storage))) else {
                        continue;
                    };
                    self.stop_preparing(&key);
                    decisions.push(Decision::Bind { pod, node });
                }
                (Some(false), _) => {}
            }
        }
        decisions
    }

    /// True if a pod has all its volumes; `None` if it cannot get them on its node.
    pub(super) fn is_prepared(&self, key: &ObjectKey) -> Option<bool> {
        let Preparing { node, is_written, .. } = self.preparing.get(key)?;
        if !*is_written {
            return Some(false);
        }
        let pod = self.cluster.pod(key)?.with_volumes(&self.storage);
        let fits = self.cluster.node(node).is_some_and(|it| pod.volumes().on(it.name(), it.labels()).is_ok());
        match (fits, pod.volumes().are_bound()) {
            (true, true) => Some(true),
            (true, false) if pod.volumes().are_for(node) => Some(false),
            _ => None,
        }
    }

    /// Reverts a decision that could not be written. The other pods of a gang that are not bound
    /// yet are reverted with it.
    pub fn binding_failed(&mut self, key: &ObjectKey) {
        let gang = self.preparing.get(key).and_then(|preparing| preparing.gang.clone());
        let with_it = self.preparing.iter().filter(|(_, it)| gang.is_some() && it.gang == gang);
        let mut failed: Vec<ObjectKey> = with_it.map(|(key, _)| key.clone()).collect();
        if failed.is_empty() {
            failed.push(key.clone());
        }
        if let Some(gang) = &gang {
            self.gangs.memory_mut(gang).retries += 1;
        }
        for key in failed {
            if self.stop_assuming(&key)
                && let Some(pod) = self.cluster.remove_pod(&key)
            {
                self.wait(pod);
            }
        }
    }

    pub(super) fn stop_preparing(&mut self, key: &ObjectKey) {
        self.preparing.remove(key);
        self.to_check.remove(key);
        if !self.waiting.contains_key(key)
            && let Some(pod) = self.cluster.pod(key).cloned()
        {
            self.forget_uses(&pod);
            for claim in pod.claims() {
                self.storage.give_back(&claim);
            }
        }
    }

    /// Reverts the choice of devices for a pod. The choice for a claim that the API shows as
    /// allocated is none any more.
    pub(super) fn give_back_devices(&mut self, key: &ObjectKey) {
        let Some(pod) = self.cluster.pod(key).filter(|pod| pod.claims_devices()).cloned() else { return };
        for claim in device_claims_of(&pod.pod).unwrap_or_default() {
            self.storage.devices.give_back(&claim);
        }
        self.storage.devices.give_back_extended(key);
    }

    /// Stops counting an assumed pod. Returns true if the pod was assumed.
    pub(super) fn stop_assuming(&mut self, key: &ObjectKey) -> bool {
        if self.preparing.contains_key(key) {
            self.stop_preparing(key);
        }
        self.gangs.release(key);
        self.give_back_devices(key);
        self.assumed.remove(key)
    }
}
