//! Reads metrics in Prometheus' text format 0.0.4, which [`crate::exposition`] writes.
//!
//! Lines that are no samples (comments, empty lines, what the format does not know) are skipped: a
//! reader of some families must not depend on the others.
//!
//! Source: "Exposition formats" in Prometheus' documents.

use std::collections::BTreeMap;

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name of its family, with a suffix such as `_bucket`.
    pub name: &'a str,
    /// Its labels.
    pub labels: BTreeMap<&'a str, String>,
    /// Its value; NaN and infinities are possible.
    pub value: f64,
}

/// The samples of a text whose names pass the filter, in order. Labels of other samples are not
/// parsed.
pub fn read<'a>(text: &'a str, wanted: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = Sample<'a>> {
    text.lines().filter_map(move |line| sample(line.trim(), &wanted))
}

fn sample<'a>(line: &'a str, wanted: &impl Fn(&str) -> bool) -> Option<Sample<'a>> {
    let end = line.find(|it: char| !(it.is_ascii_alphanumeric() || matches!(it, '_' | ':')))?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || !wanted(name) {
        return None;
    }
    let rest = rest.trim_start();
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    // A time may follow the value.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// The labels up to the closing brace, and the text behind it.
fn labels(mut rest: &str) -> Option<(BTreeMap<&str, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (name, behind) = rest.split_once('=')?;
        let (value, behind) = quoted(behind.trim_start().strip_prefix('"')?)?;
        labels.insert(name.trim_end(), value);
        rest = behind;
    }
}

/// A text up to its closing quote, without escapes, and the text behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::{Exposition, Family};

    fn all(text: &str) -> Vec<(String, Vec<(String, String)>, f64)> {
        let of = |sample: Sample| {
            let labels = sample.labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            (sample.name.to_owned(), labels, sample.value)
        };
        read(text, |_| true).map(of).collect()
    }

    #[test]
    fn what_an_exposition_writes_is_read_again() {
        const POWER: Family = Family::gauge("power", "Power");
        for value in ["plain", "a\"b", "line\nbreak", "back\\slash", "}", "é, ="] {
            let text = Exposition::text(|it| it.add(&POWER, &[("gpu", "0"), ("name", value)], -1.5));
            let labels = vec![("gpu".to_owned(), "0".to_owned()), ("name".to_owned(), value.to_owned())];
            assert_eq!(all(&text), [("power".to_owned(), labels, -1.5)], "{text}");
        }
    }

    #[test]
    fn other_lines_and_unwanted_families_are_skipped() {
        let text = "# HELP a A\n# TYPE a gauge\n\na 1\n  a{} 2 1700000000000\nb{x=\"1\"} NaN\na{x=\"open 3\na{x} 4\n=5\na x\na\n";
        assert_eq!(all(text).len(), 3);
        let of_a: Vec<f64> = read(text, |name| name == "a").map(|it| it.value).collect();
        assert_eq!(of_a, [1.0, 2.0]);
        assert!(read(text, |name| name == "b").next().is_some_and(|it| it.value.is_nan()));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in ".*\\{?[a-z]*=?\"?.*\\\\?\"?\\}? ?[0-9.]*") {
            let _ = all(&text);
        }
    }
}
