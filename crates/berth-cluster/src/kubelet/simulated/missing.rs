//! Obstacles to starting the containers of a simulated pod: missing ConfigMaps and Secrets, and
//! images that the configuration declares unreachable.

use std::collections::BTreeMap;

use berth_api::berth::{Duration, SimulatedPods};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, Volume};

use crate::kubelet::lifecycle::{
    Blocked, CONFIG_ERROR, ERR_IMAGE_PULL, IMAGE_BACK_OFF, PodEvent, blocked_events, members,
};
use crate::kubelet::options::ClusterIps;
use crate::kubelet::resolve::{Amounts, Context, Objects, environment, volume};

/// The ConfigMap with the cluster's CA certificate. A simulated cluster without certificates has
/// none, and no simulated program reads it.
const ROOT_CA: &str = "kube-root-ca.crt";
/// How long a container shows `ErrImagePull` before it shows `ImagePullBackOff`.
const PULL_RETRY: SignedDuration = SignedDuration::from_secs(10);

/// Obstacles to starting the containers of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Missing {
    /// The event about a volume that cannot be mounted.
    pub volume: Option<PodEvent>,
    /// Error in the configuration of containers, by name.
    configurations: BTreeMap<String, String>,
    /// Images that cannot be pulled, by container.
    images: BTreeMap<String, String>,
}

impl Missing {
    /// The current obstacles of a pod.
    pub fn of(pod: &Pod, objects: &Objects, simulated: &SimulatedPods) -> Self {
        let (status, allocatable) = (PodStatus::default(), Amounts::new());
        let context = Context {
            pod,
            status: pod.status.as_ref().unwrap_or(&status),
            objects,
            allocatable: &allocatable,
            services: &ClusterIps,
        };
        let mut missing = Self::default();
        for member in pod.spec.iter().flat_map(members) {
            let name = &member.spec.name;
            let image = member.spec.image.as_deref().unwrap_or_default();
            if simulated.unreachable_images.iter().any(|pattern| matches(pattern, image)) {
                missing.images.insert(name.clone(), image.to_owned());
            } else if refers(&member.spec)
                && let Err(error) = environment(&context, &member.spec)
            {
                missing.configurations.insert(name.clone(), error);
            }
        }
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        missing.volume = volumes.filter_map(checked).find_map(|spec| {
            let error = volume(&context, &spec, &BTreeMap::new()).err()?;
            let message = format!("MountVolume.SetUp failed for volume {:?} : {error}", spec.name);
            Some(PodEvent::warning("FailedMount", message))
        });
        missing
    }

    /// The blocked containers of a pod. A container whose image cannot be pulled shows
    /// `ErrImagePull` for ten seconds and `ImagePullBackOff` afterwards.
    pub fn blocked(&self, status: &PodStatus, start_delay: Duration, now: Timestamp) -> BTreeMap<String, Blocked> {
        let mut blocked = BTreeMap::new();
        for (name, error) in &self.configurations {
            let block = Blocked { reason: CONFIG_ERROR.into(), message: error.clone(), until: None };
            blocked.insert(name.clone(), block);
        }
        let since = status.start_time.as_ref().map_or(now, |time| time.0);
        let delay = SignedDuration::try_from(start_delay.0).unwrap_or_default();
        let retry = since.checked_add(delay).and_then(|at| at.checked_add(PULL_RETRY)).unwrap_or(Timestamp::MAX);
        for (name, image) in &self.images {
            let error = format!("image {image:?} matches a pattern of pods.unreachableImages in the configuration");
            let block = if now < retry {
                Blocked { reason: ERR_IMAGE_PULL.into(), message: error, until: Some(retry) }
            } else {
                let message = format!("Back-off pulling image {image:?}: {ERR_IMAGE_PULL}: {error}");
                Blocked { reason: IMAGE_BACK_OFF.into(), message, until: None }
            };
            blocked.insert(name.clone(), block);
        }
        blocked
    }

    /// The events for containers that became blocked between two statuses.
    pub fn events(
        pod: &Pod,
        before: &PodStatus,
        after: &PodStatus,
        blocked: &BTreeMap<String, Blocked>,
    ) -> Vec<PodEvent> {
        blocked_events(pod, before, after, |name| blocked.get(name))
    }
}

/// True if the container's environment comes from ConfigMaps or Secrets.
fn refers(container: &Container) -> bool {
    container.env_from.as_ref().is_some_and(|sources| !sources.is_empty())
        || container
            .env
            .iter()
            .flatten()
            .filter_map(|it| it.value_from.as_ref())
            .any(|source| source.config_map_key_ref.is_some() || source.secret_key_ref.is_some())
}

/// The part of a volume whose objects a simulated pod needs; `None` if it needs none.
fn checked(volume: &Volume) -> Option<Volume> {
    if volume.config_map.is_some() || volume.secret.is_some() {
        return Some(volume.clone());
    }
    let mut volume = volume.clone();
    let sources = volume.projected.as_mut()?.sources.as_mut()?;
    sources.retain(|source| source.secret.is_some() || source.config_map.as_ref().is_some_and(|it| it.name != ROOT_CA));
    (!sources.is_empty()).then_some(volume)
}

/// True if an image matches a pattern, in which `*` matches any string.
fn matches(pattern: &str, image: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| image.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_patterns_match_whole_references() {
        for (pattern, image, expected) in [
            ("registry.example.com/*", "registry.example.com/team/train:1", true),
            ("registry.example.com/*", "docker.io/registry.example.com/train", false),
            ("*:latest", "busybox:latest", true),
            ("*/train:*", "a/b/train:3", true),
            ("*ab*ab", "ab", false),
            ("busybox", "busybox:1", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, image), expected, "{pattern} {image}");
        }
    }
}
