//! Events about containers that cannot start.

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::status::waiting_reason;
use super::{Blocked, PodEvent, members};

/// Waiting reason of a container right after a failed pull of its image.
pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
/// Waiting reason of a container whose image will be pulled again after a delay.
pub const IMAGE_BACK_OFF: &str = "ImagePullBackOff";
/// Waiting reason of a container whose configuration cannot be resolved.
pub const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// The events for containers whose start became blocked between two statuses of a pod.
pub fn blocked_events<'a>(
    pod: &Pod,
    before: &PodStatus,
    after: &PodStatus,
    blocked: impl Fn(&str) -> Option<&'a Blocked>,
) -> Vec<PodEvent> {
    let mut events = Vec::new();
    for member in pod.spec.iter().flat_map(members) {
        let name = member.spec.name.as_str();
        let reason = waiting_reason(after, name);
        let Some(blocked) = blocked(name).filter(|it| reason == Some(&it.reason)) else { continue };
        if waiting_reason(before, name) == reason {
            continue;
        }
        let image = member.spec.image.as_deref().unwrap_or_default();
        let message = &blocked.message;
        let new = match blocked.reason.as_str() {
            IMAGE_BACK_OFF => vec![
                PodEvent::normal("BackOff", format!("Back-off pulling image {image:?}")),
                PodEvent::warning("Failed", format!("Error: {IMAGE_BACK_OFF}")),
            ],
            ERR_IMAGE_PULL => vec![
                PodEvent::warning("Failed", format!("Failed to pull image {image:?}: {message}")),
                PodEvent::warning("Failed", format!("Error: {ERR_IMAGE_PULL}")),
            ],
            _ => vec![PodEvent::warning("Failed", format!("Error: {message}"))],
        };
        events.extend(new.into_iter().map(|event| event.about(name)));
    }
    events
}
