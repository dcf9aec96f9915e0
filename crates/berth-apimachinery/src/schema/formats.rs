//! The string formats of a CustomResourceDefinition. Unknown formats are not checked.

use crate::names;

/// True if the string format is known: it is checked, or accepts every string by definition.
pub fn is_known_format(format: &str) -> bool {
    let dashed = matches!(format.replace('-', "").as_str(), "datetime" | "password");
    dashed || check(format, "").is_some()
}

/// True if the string has the format; `None` if the format is not checked.
pub(super) fn check(format: &str, text: &str) -> Option<bool> {
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).count();
    Some(match format {
        "date-time" | "datetime" => date_time(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => duration(text),
        "byte" => base64(text),
        "uri" => {
            text.split_once(':').is_some_and(|(scheme, _)| {
                scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                    && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
            }) || text.starts_with('/')
        }
        "email" => text.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty() && !host.is_empty() && !host.contains('@') && !text.contains(' ')
        }),
        "hostname" => {
            text.len() <= 255
                && !text.is_empty()
                && text.strip_suffix('.').unwrap_or(text).split('.').all(|label| {
                    label.len() <= 63
                        && !label.is_empty()
                        && !label.starts_with('-')
                        && !label.ends_with('-')
                        && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
                })
        }
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => text.split_once('/').is_some_and(|(ip, bits)| {
            let max = if ip.contains(':') { 128 } else { 32 };
            ip.parse::<std::net::IpAddr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= max)
        }),
        "mac" => {
            let parts: Vec<&str> = text.split([':', '-']).collect();
            matches!(parts.len(), 6 | 8 | 20)
                && parts.iter().all(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()))
        }
        "uuid" => uuid(text, None),
        "uuid3" => uuid(text, Some('3')),
        "uuid4" => uuid(text, Some('4')),
        "uuid5" => uuid(text, Some('5')),
        "bsonobjectid" => text.len() == 24 && text.chars().all(|c| c.is_ascii_hexdigit()),
        "isbn" => isbn10(text) || isbn13(text),
        "isbn10" => isbn10(text),
        "isbn13" => isbn13(text),
        "creditcard" => {
            (13..=16).contains(&digits(text))
                && text.chars().all(|c| c.is_ascii_digit() || c == ' ' || c == '-')
                && luhn(text)
        }
        "ssn" => {
            let parts: Vec<&str> = text.split(['-', ' ']).collect();
            let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            lengths == [3, 2, 4] && parts.iter().all(|part| part.chars().all(|c| c.is_ascii_digit()))
        }
        "hexcolor" => {
            let hex = text.strip_prefix('#').unwrap_or(text);
            matches!(hex.len(), 3 | 6) && hex.chars().all(|c| c.is_ascii_hexdigit())
        }
        "rgbcolor" => text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')).is_some_and(|rest| {
            let parts: Vec<&str> = rest.split(',').collect();
            parts.len() == 3 && parts.iter().all(|part| part.trim().parse::<u8>().is_ok())
        }),
        "password" => true,
        "k8s-short-name" => names::is_dns1123_label(text).is_empty(),
        "k8s-long-name" => names::is_dns1123_subdomain(text).is_empty(),
        _ => return None,
    })
}

fn date_time(text: &str) -> bool {
    // A time needs its zone; a date alone is not a time.
    text.parse::<jiff::Timestamp>().is_ok()
}

/// A Go duration (`1h2m`, also with days and weeks) or a number with a unit word.
fn duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['-', '+']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    const UNITS: [&str; 30] = [
        "milliseconds",
        "microseconds",
        "nanoseconds",
        "millisecond",
        "microsecond",
        "nanosecond",
        "seconds",
        "minutes",
        "second",
        "minute",
        "hours",
        "weeks",
        "milli",
        "micro",
        "hour",
        "days",
        "week",
        "nano",
        "mins",
        "secs",
        "min",
        "sec",
        "day",
        "hrs",
        "hr",
        "ms",
        "us",
        "µs",
        "ns",
        "wk",
    ];
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        if number.len() == rest.len() {
            return false;
        }
        let unit = number.trim_start();
        let known = UNITS.iter().chain(&["h", "m", "s", "d", "w"]).find(|known| unit.starts_with(**known));
        let Some(known) = known else { return false };
        rest = unit[known.len()..].trim_start();
    }
    true
}

fn base64(text: &str) -> bool {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text.replace(['\r', '\n'], "")).is_ok()
}

fn uuid(text: &str, version: Option<char>) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    let dashed = text.len() == 36 && [8, 13, 18, 23].iter().all(|i| text.as_bytes()[*i] == b'-');
    plain.len() == 32
        && (dashed || text.len() == 32)
        && plain.chars().all(|c| c.is_ascii_hexdigit())
        && version.is_none_or(|version| plain.as_bytes()[12] == version as u8)
}

fn isbn10(text: &str) -> bool {
    let plain: Vec<char> = text.chars().filter(|c| *c != '-' && *c != ' ').collect();
    plain.len() == 10 && {
        let sum = plain.iter().enumerate().try_fold(0, |sum, (i, c)| match (i, c) {
            (9, 'X' | 'x') => Some(sum + 10 * 10),
            (i, c) => c.to_digit(10).map(|digit| sum + (i as u32 + 1) * digit),
        });
        sum.is_some_and(|sum| sum % 11 == 0)
    }
}

fn isbn13(text: &str) -> bool {
    let plain: Vec<char> = text.chars().filter(|c| *c != '-' && *c != ' ').collect();
    plain.len() == 13 && {
        let sum = plain
            .iter()
            .enumerate()
            .try_fold(0, |sum, (i, c)| c.to_digit(10).map(|digit| sum + digit * if i % 2 == 0 { 1 } else { 3 }));
        sum.is_some_and(|sum| sum % 10 == 0)
    }
}

fn luhn(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, digit)| match i % 2 {
            0 => *digit,
            _ if digit * 2 > 9 => digit * 2 - 9,
            _ => digit * 2,
        })
        .sum();
    sum.is_multiple_of(10)
}
