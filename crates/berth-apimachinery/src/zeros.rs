//! The fields of Kubernetes' own types that are written when they are zero, and those whose zero
//! value differs from an absent field.
//!
//! Derived from the table of protobuf fields ([`builtin::PROTOBUF_FIELDS`]), which marks Go
//! pointers and fields that are always written. The published definitions are not sufficient: they
//! require some fields that Go omits when empty.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::builtin;

/// The fields of a definition that are written with a false, zero or empty value. `None` if the
/// definition is not a message: strings, numbers and raw JSON.
pub(crate) fn kept(definition: &str) -> Option<BTreeSet<&'static str>> {
    fields(definition, true)
}

/// The fields of a definition where a false, zero or empty value differs from an absent one. `None`
/// as for [`kept`].
pub(crate) fn pointers(definition: &str) -> Option<BTreeSet<&'static str>> {
    fields(definition, false)
}

fn fields(definition: &str, with_shown: bool) -> Option<BTreeSet<&'static str>> {
    let third_from_last = definition.rmatch_indices('.').nth(2);
    let message = third_from_last.map_or(definition, |(dot, _)| &definition[dot + 1..]);
    let mut found = BTreeSet::new();
    add(message, with_shown, &mut found).then_some(found)
}

fn messages() -> &'static BTreeMap<&'static str, &'static str> {
    static MESSAGES: OnceLock<BTreeMap<&str, &str>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let lines = builtin::PROTOBUF_FIELDS.lines().filter(|line| !line.starts_with('@'));
        lines.filter_map(|line| line.split_once(' ')).collect()
    })
}

/// Adds the pointer fields of a message and, with `with_shown`, its fields that are always written.
/// Returns true if the message exists.
fn add(message: &str, with_shown: bool, kept: &mut BTreeSet<&'static str>) -> bool {
    let Some(fields) = messages().get(message) else { return false };
    for field in fields.split(',') {
        let Some((name, kind)) = field.split_once('=').and_then(|(_, rest)| rest.split_once(':')) else { continue };
        let (kind, is_shown) = kind.strip_suffix('!').map_or((kind, false), |kind| (kind, true));
        if name.is_empty() {
            // A message whose fields are inlined in this one.
            match (kind.strip_prefix('.'), message.rsplit_once('.')) {
                (Some(name), Some((package, _))) => add(&format!("{package}.{name}"), with_shown, kept),
                _ => add(kind, with_shown, kept),
            };
            continue;
        }
        // An absent bytes or list field differs from an empty one only in protobuf.
        let is_pointer = kind.strip_prefix('?').is_some_and(|kind| !matches!(kind, "bytes" | "List"));
        if (is_shown && with_shown) || is_pointer {
            kept.insert(name);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_always_written_fields_keep_their_zeros() {
        let kept = |name: &str, field: &str| kept(name).expect("it is a message").contains(field);
        let pod = "io.k8s.api.core.v1.PodSpec";
        assert!(kept(pod, "priority"), "a pointer");
        assert!(kept(pod, "containers"), "always shown");
        assert!(!kept(pod, "hostNetwork") && !kept(pod, "tolerations"));
        assert!(kept("io.k8s.api.admissionregistration.v1.NamedRuleWithOperations", "scope"), "two messages down");
        assert!(!kept("io.k8s.api.authentication.v1.TokenReviewSpec", "token"), "required and left out");
        assert!(!kept("io.k8s.api.admissionregistration.v1.WebhookClientConfig", "caBundle"), "bytes");
        assert_eq!(super::kept("io.k8s.apimachinery.pkg.api.resource.Quantity"), None);
    }

    #[test]
    fn fields_that_keep_zeros_exist_in_their_definition() {
        let mut messages = 0;
        for name in builtin::document().names() {
            let Some(kept) = kept(name) else { continue };
            messages += 1;
            let definition = builtin::definition(name).expect("it has a name");
            for field in kept {
                assert!(!definition["properties"][field].is_null(), "{name} has no {field}");
            }
        }
        assert!(messages > 500, "{messages}");
    }
}
