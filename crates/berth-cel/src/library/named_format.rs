//! `format.named("dns1123Label")` and the like: Kubernetes' validation of names and values, with
//! its messages.

use berth_apimachinery::names;

use super::{Implementation, bytes_of, no_overload, parse_timestamp};
use crate::value::Value;

/// A named format.
pub struct NamedFormat {
    name: &'static str,
    check: fn(&str) -> Vec<String>,
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

static FORMATS: [NamedFormat; 13] = [
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
    format("date", |text| unless(parse_timestamp(&format!("{text}T00:00:00Z")).is_some(), "invalid date"), 71),
    format("datetime", |text| unless(parse_timestamp(text).is_some(), "invalid datetime"), 71),
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
    match super::Url::parse(text) {
        Ok(_) => Vec::new(),
        Err(why) => vec![why],
    }
}

fn is_uuid(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    let dashes = text.chars().enumerate().filter(|(_, c)| *c == '-').all(|(at, _)| matches!(at, 8 | 13 | 18 | 23));
    plain.len() == 32 && dashes && plain.bytes().all(|b| b.is_ascii_hexdigit())
}

fn named(name: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    macro_rules! constants {
        ($($name:literal => $index:literal),*) => {
            match name {
                $(concat!("format.", $name) => return Some(|_, _| Ok(Value::Format(&FORMATS[$index]))),)*
                _ => {}
            }
        };
    }
    constants!("dns1123Label" => 0, "dns1123Subdomain" => 1, "dns1035Label" => 2, "qualifiedName" => 3,
        "dns1123LabelPrefix" => 4, "dns1123SubdomainPrefix" => 5, "dns1035LabelPrefix" => 6, "labelValue" => 7,
        "uri" => 8, "uuid" => 9, "byte" => 10, "date" => 11, "datetime" => 12);
    Some(match name {
        "format.named" => |_, args| match args {
            [Value::String(name)] => {
                Ok(Value::Optional(named(name).map(|format| std::sync::Arc::new(Value::Format(format)))))
            }
            _ => no_overload(),
        },
        "validate" => |_, args| match args {
            [Value::Format(format), Value::String(text)] => {
                let messages = (format.check)(text);
                let list = || messages.into_iter().map(Value::from).collect::<Vec<_>>();
                Ok(Value::Optional(
                    (!(format.check)(text).is_empty()).then(|| std::sync::Arc::new(Value::from(list()))),
                ))
            }
            _ => no_overload(),
        },
        "format" => super::format::format,
        _ => return None,
    })
}
