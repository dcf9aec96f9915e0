//! The objects that pods refer to, in order to wake the pods when such an object changes.

use std::collections::BTreeSet;

use berth_runtime::{Cache, Index, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::lifecycle::members;

/// Kind of an object that a pod refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
    /// A PersistentVolumeClaim.
    Claim,
}

impl Kind {
    fn key(self, namespace: &str, name: &str) -> String {
        let kind = match self {
            Kind::ConfigMap => "c",
            Kind::Secret => "s",
            Kind::Claim => "v",
        };
        format!("{kind}/{namespace}/{name}")
    }
}

/// Pods that have not terminated, by the objects that they refer to.
#[derive(Clone)]
pub struct References(Index<Pod>);

impl References {
    /// Indexes the pods for which `is_chosen` returns true.
    pub fn new(pods: &Cache<Pod>, is_chosen: impl Fn(&Pod) -> bool + Send + Sync + 'static) -> Self {
        Self(pods.index(move |pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let is_terminal = matches!(phase, Some("Succeeded" | "Failed"));
            if is_terminal || !is_chosen(pod) { Vec::new() } else { keys(pod).into_iter().collect() }
        }))
    }

    /// Keys of the pods that refer to an object.
    pub fn to(&self, kind: Kind, namespace: &str, name: &str) -> Vec<ObjectKey> {
        self.0.keys(&kind.key(namespace, name))
    }
}

/// Names of the objects that a pod refers to.
pub fn names(pod: &Pod) -> BTreeSet<(Kind, String)> {
    let mut names = BTreeSet::new();
    let Some(spec) = &pod.spec else { return names };
    let mut add = |kind: Kind, name: &str| {
        if !name.is_empty() {
            names.insert((kind, name.to_owned()));
        }
    };
    for member in members(spec) {
        for source in member.spec.env_from.iter().flatten() {
            source.config_map_ref.iter().for_each(|it| add(Kind::ConfigMap, &it.name));
            source.secret_ref.iter().for_each(|it| add(Kind::Secret, &it.name));
        }
        for source in member.spec.env.iter().flatten().filter_map(|it| it.value_from.as_ref()) {
            source.config_map_key_ref.iter().for_each(|it| add(Kind::ConfigMap, &it.name));
            source.secret_key_ref.iter().for_each(|it| add(Kind::Secret, &it.name));
        }
    }
    for volume in spec.volumes.iter().flatten() {
        volume.config_map.iter().for_each(|it| add(Kind::ConfigMap, &it.name));
        volume.secret.iter().for_each(|it| add(Kind::Secret, it.secret_name.as_deref().unwrap_or_default()));
        volume.persistent_volume_claim.iter().for_each(|it| add(Kind::Claim, &it.claim_name));
        if volume.ephemeral.is_some() {
            add(Kind::Claim, &format!("{}-{}", pod.name_any(), volume.name));
        }
        for source in volume.projected.iter().flat_map(|it| it.sources.iter().flatten()) {
            source.config_map.iter().for_each(|it| add(Kind::ConfigMap, &it.name));
            source.secret.iter().for_each(|it| add(Kind::Secret, &it.name));
        }
    }
    names
}

fn keys(pod: &Pod) -> BTreeSet<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    names(pod).into_iter().map(|(kind, name)| kind.key(namespace, &name)).collect()
}
