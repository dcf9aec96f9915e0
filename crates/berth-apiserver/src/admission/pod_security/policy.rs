//! Levels and versions of the Pod Security Standards, and the policy of a namespace: its labels
//! over the cluster's defaults.
//!
//! Source: Kubernetes documentation, "Pod Security Admission".

use std::fmt;

use berth_apimachinery::field::{Error, Path};
use serde_json::Value;

/// How much a pod may do. Later levels allow less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Everything.
    #[default]
    Privileged,
    /// Prevents known ways to gain privileges on the host.
    Baseline,
    /// Hardened pods only.
    Restricted,
}

impl Level {
    /// Parses the name of a level.
    ///
    /// # Errors
    /// The string is no name of a level; the message lists the levels.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "privileged" => Ok(Self::Privileged),
            "baseline" => Ok(Self::Baseline),
            "restricted" => Ok(Self::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        })
    }
}

/// The version of Kubernetes whose checks apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// `v1.` and this minor version.
    Minor(u32),
    /// The newest checks.
    #[default]
    Latest,
}

impl Version {
    /// Parses `latest` or `v1.x`.
    ///
    /// # Errors
    /// The string has another form.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let error = "must be \"latest\" or \"v1.x\"";
        if text == "latest" {
            return Ok(Self::Latest);
        }
        let minor = text.strip_prefix("v1.").ok_or(error)?;
        let is_number = minor.bytes().all(|byte| byte.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        minor.parse().ok().filter(|_| is_number).map(Self::Minor).ok_or(error)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minor(minor) => write!(f, "v1.{minor}"),
            Self::Latest => f.write_str("latest"),
        }
    }
}

/// A level of one version. Displays as `baseline:latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standard {
    /// Level.
    pub level: Level,
    /// Version of the checks.
    pub version: Version,
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// The standards of a namespace. Pods that violate one are rejected, recorded in the audit log, or
/// cause a warning for their creator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Pods that violate this are rejected.
    pub enforce: Standard,
    /// Violations of this are recorded in the audit log.
    pub audit: Standard,
    /// Violations of this are returned as warnings.
    pub warn: Standard,
}

/// Prefix of the labels of namespaces, and of audit annotations.
pub(super) const PREFIX: &str = "pod-security.kubernetes.io/";

impl Policy {
    /// True if nothing is checked.
    pub(super) fn is_open(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|standard| standard.level == Level::Privileged)
    }

    /// The policy of a namespace with these labels, and the errors in the labels. An invalid level
    /// enforces `restricted`, and neither warns nor is audited.
    pub(super) fn of(labels: &Value, defaults: Self) -> (Self, Vec<Error>) {
        let mut policy = defaults;
        let mut errors = Vec::new();
        let label = |name: &str| labels[format!("{PREFIX}{name}").as_str()].as_str();
        let mut report = |name: &str, value: &str, detail: &str| {
            let path = Path::new("metadata.labels");
            errors.push(Error::invalid(&path.key(&format!("{PREFIX}{name}")), value, detail));
        };
        let mut enforced = None;
        for (mode, standard, otherwise) in [
            ("enforce", &mut policy.enforce, Level::Restricted),
            ("audit", &mut policy.audit, Level::Privileged),
            ("warn", &mut policy.warn, Level::Privileged),
        ] {
            if let Some(value) = label(mode) {
                match Level::parse(value) {
                    Ok(level) => {
                        standard.level = level;
                        if mode == "enforce" {
                            enforced = Some(level);
                        }
                    }
                    Err(detail) => {
                        standard.level = otherwise;
                        report(mode, value, detail);
                    }
                }
            }
            let name = format!("{mode}-version");
            if let Some(value) = label(&name) {
                standard.version = Version::parse(value).unwrap_or_else(|detail| {
                    report(&name, value, detail);
                    Version::Latest
                });
            }
        }
        // A level that is enforced also causes warnings, for workloads whose pods would be
        // rejected.
        if let Some(level) = enforced.filter(|level| label("warn").is_none() && *level > policy.warn.level) {
            policy.warn.level = level;
            if label("warn-version").is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }

    /// The non-privileged modes that the labels set: `enforce=baseline:latest, warn=…`.
    pub(super) fn shown(&self, labels: &Value) -> String {
        let modes = [("enforce", self.enforce), ("audit", self.audit), ("warn", self.warn)];
        let is_set = |mode: &str| {
            [mode.to_owned(), format!("{mode}-version")]
                .iter()
                .any(|name| !labels[format!("{PREFIX}{name}").as_str()].is_null())
        };
        let shown = modes.iter().filter(|(mode, standard)| standard.level != Level::Privileged && is_set(mode));
        shown.map(|(mode, standard)| format!("{mode}={standard}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_override_defaults_and_an_enforced_level_also_warns() {
        let standard = |level, version| Standard { level, version };
        let (policy, errors) = Policy::of(
            &json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "v1.28"}),
            Policy::default(),
        );
        assert!(errors.is_empty());
        assert_eq!(policy.enforce, standard(Level::Baseline, Version::Minor(28)));
        assert_eq!(policy.warn, policy.enforce);
        assert_eq!(policy.audit, Standard::default());
        let (policy, _) = Policy::of(
            &json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}),
            Policy::default(),
        );
        assert_eq!(policy.warn, standard(Level::Restricted, Version::Latest));
        let defaults = Policy { enforce: standard(Level::Baseline, Version::Latest), ..Policy::default() };
        assert_eq!(Policy::of(&json!({}), defaults), (defaults, Vec::new()));
    }

    #[test]
    fn invalid_labels_are_errors_that_enforce_the_most() {
        let labels = json!({
            "pod-security.kubernetes.io/enforce": "base", "pod-security.kubernetes.io/warn": "x",
            "pod-security.kubernetes.io/audit-version": "v1.01",
        });
        let (policy, errors) = Policy::of(&labels, Policy::default());
        assert_eq!((policy.enforce.level, policy.warn.level), (Level::Restricted, Level::Privileged));
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"base\": must be one of \
                 privileged, baseline, restricted",
                "metadata.labels[pod-security.kubernetes.io/audit-version]: Invalid value: \"v1.01\": must be \
                 \"latest\" or \"v1.x\"",
                "metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"x\": must be one of privileged, \
                 baseline, restricted",
            ]
        );
    }

    #[test]
    fn versions_are_latest_or_a_minor_version() {
        assert_eq!(Version::parse("v1.0"), Ok(Version::Minor(0)));
        assert_eq!(Version::parse("v1.30").map(|version| version.to_string()).as_deref(), Ok("v1.30"));
        for text in ["", "1.30", "v1.", "v1.+3", "v2.0", "v1.030", "v1.3.1", "v1.99999999999"] {
            assert!(Version::parse(text).is_err(), "{text}");
        }
        assert!(Version::Minor(99) < Version::Latest);
    }
}
