//! IDs of simulated containers and images.

/// ID of a run of a simulated container.
pub fn container_id(uid: &str, name: &str, attempt: i32) -> String {
    let hash = crate::random::hash(&["container", uid, name, &attempt.to_string()]);
    format!("sim://{hash:016x}")
}

/// ID of a simulated image.
pub fn image_id(image: &str) -> String {
    format!("sim://{image}")
}
