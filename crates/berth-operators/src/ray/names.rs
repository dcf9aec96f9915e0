//! Names of the objects of a Ray cluster.

use sha1::{Digest, Sha1};

use super::types::RayClusterSpec;

/// Domain of the cluster's DNS names.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// Maximum length of the part of a pod's name before `-worker-` and five random characters, and of
/// the names that [`checked`] returns.
const PREFIX_MAX: usize = 50;

/// Name of the Service of a RayCluster's head.
pub fn head_service(cluster: &str, spec: &RayClusterSpec) -> String {
    let given = spec.head_group_spec.head_service.as_ref().and_then(|service| service.metadata.name.as_deref());
    given.filter(|name| !name.is_empty()).map_or_else(|| default_head_service(cluster), str::to_owned)
}

/// Name of the Service of the head of a RayJob or RayService, and of a RayCluster that sets none.
pub fn default_head_service(owner: &str) -> String {
    format!("{owner}-head-svc")
}

/// Name of a Service for Ray Serve.
pub fn serve_service(owner: &str) -> String {
    format!("{owner}-serve-svc")
}

/// Name of the headless Service of the workers.
pub fn headless_service(cluster: &str) -> String {
    format!("{cluster}-headless")
}

/// DNS name of a Service with the cluster's domain.
pub fn dns_name(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}.svc.{CLUSTER_DOMAIN}")
}

/// `metadata.generateName` of the pods of a group: `prefix` is `<cluster>` for the head, and
/// `<cluster>-<group>` for workers.
pub fn pod_prefix(prefix: &str, node_type: &str) -> String {
    let cut: String = prefix.chars().take(PREFIX_MAX).collect();
    format!("{cut}-{node_type}-").to_lowercase()
}

/// The last 50 characters of a name. If the first of them is a digit or punctuation, it is replaced
/// by the letter `r`.
pub fn checked(name: &str) -> String {
    shortened(name, PREFIX_MAX, |first| first.is_ascii_digit() || first.is_ascii_punctuation())
}

/// The last 63 characters of a label value. If the first of them is punctuation, it is replaced by
/// the letter `r`.
pub fn checked_label(value: &str) -> String {
    shortened(value, 63, |first| first.is_ascii_punctuation())
}

/// Five characters that depend on these words, for the end of a name. They are among those that
/// Kubernetes uses in generated names.
pub fn suffix(words: &[&str]) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut digest = Sha1::new();
    for word in words {
        digest.update(word.as_bytes());
        digest.update([0]);
    }
    digest.finalize().iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

fn shortened(name: &str, length_max: usize, is_bad: impl Fn(char) -> bool) -> String {
    let skipped = name.chars().count().saturating_sub(length_max);
    let mut rest = name.chars().skip(skipped);
    match rest.next() {
        Some(first) if is_bad(first) => std::iter::once('r').chain(rest).collect(),
        Some(first) => std::iter::once(first).chain(rest).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_end_and_starts_with_a_letter() {
        let long = format!("{}7{}", "a".repeat(30), "b".repeat(49));
        assert_eq!(checked(&long), format!("r{}", "b".repeat(49)));
        assert_eq!(checked("-x"), "rx");
        assert_eq!(checked("plain"), "plain");
        assert_eq!(checked_label("7x"), "7x");
    }

    #[test]
    fn a_pod_name_starts_with_the_cut_name_in_lower_case() {
        assert_eq!(pod_prefix("Demo-Small", "worker"), "demo-small-worker-");
        assert_eq!(pod_prefix(&"x".repeat(60), "head"), format!("{}-head-", "x".repeat(50)));
    }
}
