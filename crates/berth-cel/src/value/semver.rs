//! Semantic versions, as semver.org 2.0.0 orders them.

use std::cmp::Ordering;
use std::fmt;

/// A version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    /// Major, minor and patch version.
    pub(crate) numbers: [u64; 3],
    pre_release: Vec<String>,
    build: Vec<String>,
}

impl fmt::Display for Semver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        if !self.pre_release.is_empty() {
            write!(f, "-{}", self.pre_release.join("."))?;
        }
        if !self.build.is_empty() {
            write!(f, "+{}", self.build.join("."))?;
        }
        Ok(())
    }
}

impl Semver {
    /// The order of versions; build metadata is ignored.
    pub(crate) fn compare(&self, other: &Semver) -> Ordering {
        let by_numbers = self.numbers.cmp(&other.numbers);
        if by_numbers != Ordering::Equal {
            return by_numbers;
        }
        match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let pairs = self.pre_release.iter().zip(&other.pre_release);
                let first = pairs.map(|(a, b)| compare_part(a, b)).find(|order| *order != Ordering::Equal);
                first.unwrap_or_else(|| self.pre_release.len().cmp(&other.pre_release.len()))
            }
        }
    }

    /// Parses a version; `normalize` accepts a leading `v`, missing parts and leading zeros.
    pub(crate) fn parse(text: &str, normalize: bool) -> Result<Semver, String> {
        let normal;
        let mut text = text;
        if normalize {
            normal = normalized(text);
            text = &normal;
        }
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (rest, None),
        };
        let (patch, pre_release) = match rest.split_once('-') {
            Some((patch, pre_release)) => (patch, Some(pre_release)),
            None => (rest, None),
        };
        let identifiers = |text: Option<&str>, what: &str| -> Result<Vec<String>, String> {
            text.map_or(Ok(Vec::new()), |text| {
                text.split('.')
                    .map(|part| {
                        if part.is_empty() {
                            return Err(format!("{what} is empty"));
                        }
                        if !part.bytes().all(|b| b == b'-' || b.is_ascii_alphanumeric()) {
                            return Err(format!("Invalid character(s) found in {what} {}", quote(part)));
                        }
                        Ok(part.to_owned())
                    })
                    .collect()
            })
        };
        let numbers = [number("major", major)?, number("minor", minor)?, number("patch", patch)?];
        let pre_release = identifiers(pre_release, "prerelease")?;
        for part in &pre_release {
            if part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(format!("Numeric PreRelease version must not contain leading zeroes {}", quote(part)));
            }
        }
        Ok(Semver { numbers, pre_release, build: identifiers(build, "build meta data")? })
    }
}

fn quote(text: &str) -> String {
    berth_apimachinery::field::quote(text)
}

fn number(what: &str, text: &str) -> Result<u64, String> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {what} number {}", quote(text)));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{} number must not contain leading zeroes {}", capitalized(what), quote(text)));
    }
    text.parse().map_err(|_| format!("Invalid character(s) found in {what} number {}", quote(text)))
}

fn capitalized(what: &str) -> String {
    let mut text = what.to_owned();
    text[..1].make_ascii_uppercase();
    text
}

fn compare_part(a: &str, b: &str) -> Ordering {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.cmp(b),
    }
}

fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let mut parts: Vec<String> = numbers
        .split('.')
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0".to_owned(),
            trimmed => trimmed.to_owned(),
        })
        .collect();
    while parts.len() < 3 {
        parts.push("0".to_owned());
    }
    format!("{}{rest}", parts.join("."))
}
