//! `format.named("dns1123Label")` and the like: Kubernetes' validation of names and values, with
//! its messages.

use berth_apimachinery::names;

use super::{Timestamp, Url, bytes_of};

/// A named format.
pub struct NamedFormat {
    name: &'static str,
    /// The problems of a value; none if it is valid.
    pub(crate) check: fn(&str) -> Vec<String>,
    /// Length of the longest regular expression of the format upstream, which determines its cost.
    /// For formats without one, the length of an equivalent expression.
    regex: u64,
}

impl std::fmt::Debug for NamedFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "format {}", self.name)
    }
}

impl NamedFormat {
    pub(crate) fn regex_length(&self) -> u64 {
        self.regex
    }
}

const fn format(name: &'static str, check: fn(&str) -> Vec<String>, regex: u64) -> NamedFormat {
    NamedFormat { name, check, regex }
}

pub(crate) static NAMED_FORMATS: [NamedFormat; 13] = [
    format("dns1123Label", names::is_dns1123_label, 30),
    format("dns1123Subdomain", names::is_dns1123_subdomain, 60),
    format("dns1035Label", names::is_dns1035_label, 30),
    format("qualifiedName", names::is_qualified_name, 60),
    format("dns1123LabelPrefix", |text| names::is_dns1123_label(masked(text).as_ref()), 30),
    format("dns1123SubdomainPrefix", |text| names::is_dns1123_subdomain(masked(text).as_ref()), 60),
    format("dns1035LabelPrefix", |text| names::is_dns1035_label(masked(text).as_ref()), 30),
    format("labelValue", names::is_label_value, 40),
    format("uri", uri, 1103),
    format("uuid", |text| unless(is_uuid(text), "does not match the UUID format"), 70),
    format("byte", |text| unless(!text.is_empty() && bytes_of(text).is_some(), "invalid base64"), 84),
    format("date", |text| unless(Timestamp::parse_date(text).is_some(), "invalid date"), 71),
    format("datetime", |text| unless(Timestamp::parse(text).is_some(), "invalid datetime"), 71),
];

fn unless(good: bool, message: &str) -> Vec<String> {
    if good { Vec::new() } else { vec![message.to_owned()] }
}

/// The prefix of a generated name may end in a dash, because a suffix follows.
fn masked(text: &str) -> std::borrow::Cow<'_, str> {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a").into(),
        _ => text.into(),
    }
}

fn uri(text: &str) -> Vec<String> {
    match Url::parse(text) {
        Ok(_) => Vec::new(),
        Err(why) => vec![why],
    }
}

fn is_uuid(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    let dashes = text.chars().enumerate().filter(|(_, c)| *c == '-').all(|(at, _)| matches!(at, 8 | 13 | 18 | 23));
    plain.len() == 32 && dashes && plain.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The format with this name.
pub(crate) fn named_format(name: &str) -> Option<&'static NamedFormat> {
    NAMED_FORMATS.iter().find(|format| format.name == name)
}
