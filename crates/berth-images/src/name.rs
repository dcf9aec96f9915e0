//! Names of images, and the patterns that match them.

use std::fmt;

use oci_client::Reference;

use crate::{Error, Result};

/// A reference as users write it, with its full form: `python` is
/// `docker.io/library/python:latest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    written: String,
    reference: Reference,
}

impl Name {
    /// Parses a reference.
    ///
    /// # Errors
    /// [`Error::Reference`] if the string is not a reference.
    pub fn parse(text: &str) -> Result<Self> {
        let reference: Reference =
            text.parse().map_err(|source| Error::Reference { reference: text.to_owned(), source })?;
        Ok(Self { written: text.to_owned(), reference })
    }

    /// The reference as written.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Registry, repository, and tag or digest.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }

    /// Registry and repository: `docker.io/library/python`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.reference.registry(), self.reference.repository())
    }

    /// True if the pattern matches the reference as written or in its full form, with or without
    /// its tag or digest. `*` matches any characters, `?` one character.
    pub fn matches(&self, pattern: &str) -> bool {
        let full = self.to_string();
        let written_repository = without_version(&self.written);
        [self.written.as_str(), &full, written_repository, &self.repository()]
            .iter()
            .any(|text| is_match(pattern.as_bytes(), text.as_bytes()))
    }
}

impl fmt::Display for Name {
    /// The full form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reference.fmt(f)
    }
}

/// The reference without tag and digest.
fn without_version(written: &str) -> &str {
    let text = written.split('@').next().unwrap_or(written);
    match text.rsplit_once(':') {
        // A colon before a slash separates the registry's port.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => text,
    }
}

/// Matches `text` against a pattern with `*` and `?`.
fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Position after the last `*`, and the current end of its match in the text.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((after, end)) => {
                    star = Some((after, end + 1));
                    p = after;
                    t = end + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, image: &str, expected: bool) {
        let name = Name::parse(image).expect("a reference");
        assert_eq!(name.matches(pattern), expected, "{pattern} on {image}");
    }

    #[test]
    fn a_pattern_matches_the_written_and_the_full_form_with_and_without_the_tag() {
        check("python", "python:3.12", true);
        check("python:3.12", "python:3.12", true);
        check("docker.io/library/python", "python:3.12", true);
        check("docker.io/*", "python", true);
        check("pytorch/*", "pytorch/pytorch:2.9", true);
        check("*/agnhost:2.?", "registry.k8s.io/e2e-test-images/agnhost:2.5", true);
        check("localhost:5000/team", "localhost:5000/team:v1", true);
        check("python:3.11", "python:3.12", false);
        check("pytho", "python", false);
        check("*:3.1*2", "python:3.1.2", true);
        check("*", "quay.io/a/b@sha256:0000000000000000000000000000000000000000000000000000000000000000", true);
    }

    #[test]
    fn a_name_has_a_full_form() {
        assert_eq!(Name::parse("python").expect("a name").to_string(), "docker.io/library/python:latest");
        assert_eq!(Name::parse("localhost:5000/a/b:c").expect("a name").to_string(), "localhost:5000/a/b:c");
        let error = Name::parse("Not An Image").expect_err("no name").to_string();
        assert!(error.contains("\"Not An Image\" is not an image reference"), "{error}");
    }
}
