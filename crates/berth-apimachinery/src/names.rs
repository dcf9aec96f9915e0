//! Validation of names: labels, subdomains, qualified names, label values, paths and ports.
//!
//! Each check returns error messages; an empty list means that the text is valid. Checks are loops
//! over bytes instead of regular expressions, because every write of an object runs several of
//! them. The messages quote the regular expressions of Kubernetes.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum length of a DNS label (RFC 1123, RFC 1035).
pub const LABEL_LENGTH_MAX: usize = 63;
/// Maximum length of a DNS subdomain (RFC 1123).
pub const SUBDOMAIN_LENGTH_MAX: usize = 253;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_TEXT: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const LABEL_VALUE_TEXT: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// `text (e.g. 'a',  or 'b', regex used for validation is 're')`: upstream's message for a violated
/// rule.
fn rule(text: &str, regex: &str, examples: &[&str]) -> String {
    let mut out = format!("{text} (");
    if !examples.is_empty() {
        let quoted: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
        out.push_str("e.g. ");
        out.push_str(&quoted.join(" or "));
    }
    out.push_str(&format!("regex used for validation is '{regex}')"));
    out
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// True if the text starts and ends with a byte that `edge` accepts, and `inner` accepts the bytes
/// between.
fn bracketed(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|b| edge(*b) || inner(*b)),
    }
}

fn lower_or_digit(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn label_shape(text: &str) -> bool {
    bracketed(text, lower_or_digit, |b| b == b'-')
}

fn subdomain_shape(text: &str) -> bool {
    text.split('.').all(label_shape)
}

fn qualified_shape(text: &str) -> bool {
    bracketed(text, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.'))
}

/// A DNS label of RFC 1123, the name of a namespace or service.
pub fn is_dns1123_label(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > LABEL_LENGTH_MAX {
        messages.push(too_long(LABEL_LENGTH_MAX));
    }
    if !label_shape(text) {
        // A subdomain in place of a label gets a shorter explanation.
        if subdomain_shape(text) {
            messages.push("must not contain dots".to_owned());
        } else {
            messages.push(rule("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character", LABEL, &["my-name", "123-abc"]));
        }
    }
    messages
}

/// A DNS subdomain of RFC 1123, the name of most objects.
pub fn is_dns1123_subdomain(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH_MAX {
        messages.push(too_long(SUBDOMAIN_LENGTH_MAX));
    }
    if !subdomain_shape(text) {
        messages.push(rule(SUBDOMAIN_TEXT, SUBDOMAIN, &["example.com"]));
    }
    messages
}

/// A DNS subdomain that may contain upper-case letters.
pub fn is_dns1123_subdomain_caseless(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH_MAX {
        messages.push(too_many_bytes(SUBDOMAIN_LENGTH_MAX));
    }
    if !text.split('.').all(|label| bracketed(label, |b| b.is_ascii_alphanumeric(), |b| b == b'-')) {
        messages.push(rule("an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character", SUBDOMAIN, &["Example.com"]));
    }
    messages
}

/// A DNS subdomain whose labels may contain and start with an underscore (service records).
pub fn is_dns1123_subdomain_with_underscore(text: &str) -> Vec<String> {
    const REGEX: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH_MAX {
        messages.push(too_long(SUBDOMAIN_LENGTH_MAX));
    }
    let label =
        |label: &str| bracketed(label.strip_prefix('_').unwrap_or(label), lower_or_digit, |b| matches!(b, b'-' | b'_'));
    if !text.split('.').all(label) {
        messages.push(rule("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character", REGEX, &["example.com"]));
    }
    messages
}

/// A DNS label of RFC 1035: starts with a letter.
pub fn is_dns1035_label(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > LABEL_LENGTH_MAX {
        messages.push(too_long(LABEL_LENGTH_MAX));
    }
    if !(label_shape(text) && text.as_bytes()[0].is_ascii_lowercase()) {
        messages.push(rule("a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character", "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    messages
}

/// A subdomain whose first label is `*`.
pub fn is_wildcard_dns1123_subdomain(text: &str) -> Vec<String> {
    const REGEX: &str = "\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH_MAX {
        messages.push(too_long(SUBDOMAIN_LENGTH_MAX));
    }
    if !text.strip_prefix("*.").is_some_and(subdomain_shape) {
        messages.push(rule("a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character", REGEX, &["*.example.com"]));
    }
    messages
}

/// `prefix/name` or `name`, the form of label keys, annotation keys, finalizers, conditions and
/// resources.
pub fn is_qualified_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                messages.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > SUBDOMAIN_LENGTH_MAX {
                    messages.push(format!("prefix part {}", too_many_bytes(SUBDOMAIN_LENGTH_MAX)));
                }
                if !subdomain_shape(prefix) {
                    messages.push(format!("prefix part {}", rule(SUBDOMAIN_TEXT, SUBDOMAIN, &["example.com"])));
                }
            }
            name
        }
        _ => {
            let text =
                rule(&format!("a valid label key {QUALIFIED_TEXT}"), QUALIFIED, &["MyName", "my.name", "123-abc"]);
            messages.push(format!("{text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"));
            return messages;
        }
    };
    if name.is_empty() {
        messages.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_LENGTH_MAX {
        messages.push(format!("name part {}", too_many_bytes(LABEL_LENGTH_MAX)));
    }
    if !qualified_shape(name) {
        messages.push(format!("name part {}", rule(QUALIFIED_TEXT, QUALIFIED, &["MyName", "my.name", "123-abc"])));
    }
    messages
}

/// The value of a label; may be empty.
pub fn is_label_value(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > LABEL_LENGTH_MAX {
        messages.push(too_many_bytes(LABEL_LENGTH_MAX));
    }
    if !text.is_empty() && !qualified_shape(text) {
        messages.push(rule(LABEL_VALUE_TEXT, LABEL_VALUE, &["MyValue", "my_value", "12345"]));
    }
    messages
}

/// A name that is valid as a URL path segment: not `.` or `..`, no `/` or `%`.
pub fn is_path_segment_name(text: &str) -> Vec<String> {
    match text {
        "." => vec!["may not be '.'".to_owned()],
        ".." => vec!["may not be '..'".to_owned()],
        _ => is_path_segment_prefix(text),
    }
}

/// A prefix of a name that is valid as a URL path segment: no `/` or `%`.
pub fn is_path_segment_prefix(text: &str) -> Vec<String> {
    ["/", "%"].into_iter().filter(|c| text.contains(c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A C identifier.
pub fn is_c_identifier(text: &str) -> Vec<String> {
    let shape =
        text.bytes().enumerate().all(|(i, b)| b == b'_' || b.is_ascii_alphabetic() || (i > 0 && b.is_ascii_digit()));
    if !text.is_empty() && shape {
        return Vec::new();
    }
    vec![rule(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// A key of a ConfigMap or Secret.
pub fn is_config_map_key(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > SUBDOMAIN_LENGTH_MAX {
        messages.push(too_long(SUBDOMAIN_LENGTH_MAX));
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        messages.push(rule(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    } else {
        messages.extend(not_a_parent_folder(text));
    }
    messages
}

fn not_a_parent_folder(text: &str) -> Option<String> {
    match text {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if text.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// The name of an environment variable: printable ASCII without `=`.
pub fn is_env_var_name(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if text.bytes().all(|b| (0x20..=0x7e).contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec![rule(
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
        "^[ -<>-~]+$",
        &[],
    )]
}

/// The name of an HTTP header.
pub fn is_http_header_name(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![rule(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// A port number.
pub fn is_port_number(port: i64) -> Vec<String> {
    within(port, 1, 65_535)
}

/// A numeric group id.
pub fn is_group_id(id: i64) -> Vec<String> {
    within(id, 0, i64::from(i32::MAX))
}

/// A numeric user id.
pub fn is_user_id(id: i64) -> Vec<String> {
    within(id, 0, i64::from(i32::MAX))
}

fn within(number: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&number) {
        Vec::new()
    } else {
        vec![format!("must be between {low} and {high}, inclusive")]
    }
}

/// The name of a port: at most 15 lower-case letters, digits and single dashes, at least one
/// letter.
pub fn is_port_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > 15 {
        messages.push(too_long(15));
    }
    if text.is_empty() || !text.bytes().all(|b| lower_or_digit(b) || b == b'-') {
        messages.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        messages.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        messages.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        messages.push("must not begin or end with a hyphen".to_owned());
    }
    messages
}

/// An integer followed by `%`.
pub fn is_percent(text: &str) -> Vec<String> {
    let digits = text.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Vec::new();
    }
    vec![rule("a valid percent string must be a numeric string followed by an ending '%'", "[0-9]+%", &["1%", "93%"])]
}

/// A decimal integer in canonical form.
pub fn is_decimal_integer(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["must be non-empty".to_owned()];
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical =
        text == "0" || (digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0') && !digits.is_empty());
    if canonical { Vec::new() } else { vec!["must be a valid decimal integer in canonical form".to_owned()] }
}

/// A subdomain of at least three labels.
pub fn is_fully_qualified_name(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec![String::new()];
    }
    let mut messages = is_dns1123_subdomain(text);
    if messages.is_empty() && text.split('.').count() < 3 {
        messages.push("should be a domain with at least three segments separated by dots".to_owned());
    }
    messages
}

/// A domain of at least two labels, with an optional dot at the end.
pub fn is_fully_qualified_domain_name(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec![String::new()];
    }
    let text = text.strip_suffix('.').unwrap_or(text);
    let mut messages = is_dns1123_subdomain(text);
    if !messages.is_empty() {
        return messages;
    }
    if text.split('.').count() < 2 {
        messages.push("should be a domain with at least two segments separated by dots".to_owned());
        return messages;
    }
    text.split('.').flat_map(is_dns1123_label).collect()
}

/// `domain/path`, e.g. a controller's name.
pub fn is_domain_prefixed_path(text: &str) -> Vec<String> {
    const REGEX: &str = "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+";
    if text.is_empty() {
        return vec![String::new()];
    }
    let Some((domain, path)) = text.split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty())
    else {
        return vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned()];
    };
    let mut messages = is_dns1123_subdomain(domain);
    if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b)) {
        messages.push(rule("Invalid path", REGEX, &[]));
    }
    messages
}

/// `domain/name`, a qualified name with a required prefix.
pub fn is_domain_prefixed_key(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec![String::new()];
    }
    match text.split_once('/') {
        None => vec!["must be a domain-prefixed key (such as \"acme.io/foo\")".to_owned()],
        Some(_) => is_qualified_name(text),
    }
}

enum Address {
    V4(Ipv4Addr, bool),
    V6(Ipv6Addr),
}

/// Parses an address; the flag of an IPv4 address is true if an octet has leading zeros.
fn address(text: &str) -> Option<Address> {
    if let Ok(v6) = text.parse::<Ipv6Addr>() {
        return Some(Address::V6(v6));
    }
    let parts: Vec<&str> = text.split('.').collect();
    let [a, b, c, d] = parts[..] else { return None };
    let octet = |part: &str| -> Option<u8> {
        (!part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())).then(|| part.parse::<u8>().ok()).flatten()
    };
    let zeros = parts.iter().any(|part| part.len() > 1 && part.starts_with('0'));
    Some(Address::V4(Ipv4Addr::new(octet(a)?, octet(b)?, octet(c)?, octet(d)?), zeros))
}

/// An IP address in canonical form.
pub fn is_ip(text: &str) -> Vec<String> {
    match address(text) {
        None => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
        Some(Address::V4(_, true)) => vec!["must not have leading 0s".to_owned()],
        Some(Address::V4(_, false)) => Vec::new(),
        Some(Address::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Some(Address::V6(v6)) => canonical(text, &v6.to_string()),
    }
}

/// An address range (CIDR) in canonical form.
pub fn is_cidr(text: &str) -> Vec<String> {
    let malformed = || vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    let Some((ip, length)) = text.split_once('/') else { return malformed() };
    let (Some(ip), true) = (address(ip), !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit())) else {
        return malformed();
    };
    let Ok(bits) = length.parse::<u32>() else { return malformed() };
    let zeros = length.len() > 1 && length.starts_with('0');
    match ip {
        Address::V4(_, _) if bits > 32 => malformed(),
        Address::V6(_) if bits > 128 => malformed(),
        Address::V4(_, true) => vec!["must not have leading 0s in IP or prefix length".to_owned()],
        Address::V4(_, false) if zeros => vec!["must not have leading 0s in IP or prefix length".to_owned()],
        Address::V4(v4, false) => {
            let rest = u32::from(v4).checked_shl(bits).unwrap_or(0);
            if rest != 0 { vec!["must not have bits set beyond the prefix length".to_owned()] } else { Vec::new() }
        }
        Address::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            vec!["must not have an IPv4-mapped IPv6 address".to_owned()]
        }
        Address::V6(_) if zeros => vec!["must not have leading 0s in IP or prefix length".to_owned()],
        Address::V6(v6) => {
            let rest = u128::from(v6).checked_shl(bits).unwrap_or(0);
            if rest != 0 {
                return vec!["must not have bits set beyond the prefix length".to_owned()];
            }
            canonical(text, &format!("{v6}/{bits}"))
        }
    }
}

fn canonical(text: &str, canonical: &str) -> Vec<String> {
    if text == canonical { Vec::new() } else { vec![format!("must be in canonical form (\"{canonical}\")")] }
}

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The user name of a service account.
pub fn service_account_user_name(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT}{namespace}:{name}")
}

/// The namespace and name in the user name of a service account; `None` for other users.
pub fn split_service_account_user_name(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    let valid = is_dns1123_label(namespace).is_empty() && is_dns1123_subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_differ_by_dots() {
        assert!(is_dns1123_label("my-name").is_empty());
        assert_eq!(is_dns1123_label("a.b"), ["must not contain dots"]);
        assert!(is_dns1123_subdomain("a.b").is_empty());
        assert!(!is_dns1123_subdomain("A").is_empty());
    }

    #[test]
    fn a_qualified_name_may_have_one_prefix() {
        assert!(is_qualified_name("example.com/My_Name").is_empty());
        assert!(!is_qualified_name("a/b/c").is_empty());
        assert_eq!(is_qualified_name("/b"), ["prefix part must be non-empty"]);
    }

    #[test]
    fn a_label_value_may_be_empty() {
        assert!(is_label_value("").is_empty());
        assert!(!is_label_value("-").is_empty());
    }
}
