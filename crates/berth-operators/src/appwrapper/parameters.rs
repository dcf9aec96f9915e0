//! Grace periods and limits of one AppWrapper: the configuration's, changed by annotations.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_apimachinery::times;

use super::config::FaultTolerance;

/// Start of the annotations that change parameters.
const PREFIX: &str = "workload.codeflare.dev.appwrapper/";
/// Annotation with the time for which the components of a failed AppWrapper are kept.
pub const DELETION_ON_FAILURE: &str = "workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration";

/// Grace periods and limits of one AppWrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Time for all pods to be created after the components.
    pub admission_grace: Duration,
    /// Time for all pods to run after the components were created.
    pub warmup_grace: Duration,
    /// Time for failed pods to be replaced.
    pub failure_grace: Duration,
    /// Time from a failure until the components are created again.
    pub retry_pause: Duration,
    /// Maximum number of resets.
    pub retry_limit: i32,
    /// Time after which remaining pods and components are deleted without their own grace period.
    pub forceful_deletion_grace: Duration,
    /// Time for which the components of a failed AppWrapper, and its quota, are kept.
    pub deletion_on_failure_grace: Duration,
    /// Time for which the components of a succeeded AppWrapper are kept.
    pub success_ttl: Duration,
    /// Exit codes after which a reset is useless.
    pub terminal_exit_codes: Vec<i32>,
    /// If not empty: the only exit codes after which a reset is useful.
    pub retryable_exit_codes: Vec<i32>,
}

impl Parameters {
    /// The parameters of an AppWrapper with these annotations, and the annotations that are
    /// malformed and therefore have no effect.
    pub fn of(annotations: Option<&BTreeMap<String, String>>, configuration: &FaultTolerance) -> (Self, Vec<String>) {
        let mut reader = Reader { annotations, maximum: configuration.grace_period_maximum.0, malformed: Vec::new() };
        let ceiling = configuration.success_ttl.0;
        let parameters = Self {
            admission_grace: reader.grace("admissionGracePeriodDuration", configuration.admission_grace_period.0),
            warmup_grace: reader.grace("warmupGracePeriodDuration", configuration.warmup_grace_period.0),
            failure_grace: reader.grace("failureGracePeriodDuration", configuration.failure_grace_period.0),
            retry_pause: reader.grace("retryPausePeriodDuration", configuration.retry_pause_period.0),
            retry_limit: reader.limit("retryLimit", configuration.retry_limit),
            forceful_deletion_grace: reader
                .grace("forcefulDeletionGracePeriodDuration", configuration.forceful_deletion_grace_period.0),
            deletion_on_failure_grace: reader.grace("deletionOnFailureGracePeriodDuration", Duration::ZERO),
            success_ttl: match reader.duration("successTTLDuration") {
                Some(written) if !written.is_zero() && written < ceiling => written,
                _ => ceiling,
            },
            terminal_exit_codes: reader.exit_codes("terminalExitCodes"),
            retryable_exit_codes: reader.exit_codes("retryableExitCodes"),
        };
        (parameters, reader.malformed)
    }

    /// True if a container that exits with this code makes resets useless.
    pub fn is_terminal(&self, exit_code: i32) -> bool {
        let is_listed = self.terminal_exit_codes.contains(&exit_code);
        let is_unlisted = !self.retryable_exit_codes.is_empty() && !self.retryable_exit_codes.contains(&exit_code);
        exit_code != 0 && (is_listed || is_unlisted)
    }
}

struct Reader<'a> {
    annotations: Option<&'a BTreeMap<String, String>>,
    maximum: Duration,
    malformed: Vec<String>,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.annotations?.get(&format!("{PREFIX}{name}")).map(String::as_str)
    }

    fn report(&mut self, name: &str, text: &str, expected: &str) {
        self.malformed.push(format!("annotation {PREFIX}{name}: {text:?} is not {expected}"));
    }

    /// A written duration; negative ones are zero.
    fn duration(&mut self, name: &str) -> Option<Duration> {
        let text = self.text(name)?.to_owned();
        match times::parse_duration(&text) {
            Ok(duration) => Some(Duration::try_from(duration).unwrap_or_default()),
            Err(_) => {
                self.report(name, &text, "a duration such as 90s or 1h30m");
                None
            }
        }
    }

    fn grace(&mut self, name: &str, usual: Duration) -> Duration {
        self.duration(name).unwrap_or(usual).min(self.maximum)
    }

    fn limit(&mut self, name: &str, usual: i32) -> i32 {
        let Some(text) = self.text(name).map(str::to_owned) else { return usual };
        text.parse().unwrap_or_else(|_| {
            self.report(name, &text, "a number");
            usual
        })
    }

    /// The listed numbers. Other entries are skipped.
    fn exit_codes(&self, name: &str) -> Vec<i32> {
        let entries = self.text(name).into_iter().flat_map(|text| text.split(','));
        entries.filter_map(|entry| entry.parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)]) -> (Parameters, Vec<String>) {
        let annotations = annotations.iter().map(|(name, text)| (format!("{PREFIX}{name}"), (*text).to_owned()));
        Parameters::of(Some(&annotations.collect()), &FaultTolerance::default())
    }

    #[test]
    fn the_configuration_holds_without_annotations() {
        let (parameters, malformed) = Parameters::of(None, &FaultTolerance::default());
        assert_eq!(parameters.retry_pause, Duration::from_secs(90));
        assert_eq!(parameters.deletion_on_failure_grace, Duration::ZERO);
        assert_eq!(parameters.success_ttl, Duration::from_secs(7 * 24 * 3600));
        assert_eq!(parameters.retry_limit, 3);
        assert!(malformed.is_empty());
    }

    #[test]
    fn annotations_change_parameters_within_bounds() {
        let (parameters, malformed) = read(&[
            ("retryPausePeriodDuration", "5s"),
            ("warmupGracePeriodDuration", "25h"),
            ("failureGracePeriodDuration", "-1m"),
            ("retryLimit", "0"),
            ("successTTLDuration", "1h"),
            ("deletionOnFailureGracePeriodDuration", "1m30s"),
        ]);
        assert_eq!(parameters.retry_pause, Duration::from_secs(5));
        assert_eq!(parameters.warmup_grace, Duration::from_secs(24 * 3600));
        assert_eq!(parameters.failure_grace, Duration::ZERO);
        assert_eq!(parameters.retry_limit, 0);
        assert_eq!(parameters.success_ttl, Duration::from_secs(3600));
        assert_eq!(parameters.deletion_on_failure_grace, Duration::from_secs(90));
        assert!(malformed.is_empty());
    }

    /// The periods that annotations change: name of the annotation, and the parameter.
    type Period = (&'static str, fn(&Parameters) -> Duration);
    const PERIODS: [Period; 6] = [
        ("admissionGracePeriodDuration", |it| it.admission_grace),
        ("warmupGracePeriodDuration", |it| it.warmup_grace),
        ("failureGracePeriodDuration", |it| it.failure_grace),
        ("retryPausePeriodDuration", |it| it.retry_pause),
        ("forcefulDeletionGracePeriodDuration", |it| it.forceful_deletion_grace),
        ("deletionOnFailureGracePeriodDuration", |it| it.deletion_on_failure_grace),
    ];

    #[test]
    fn each_period_is_read_limited_and_kept_if_its_annotation_is_malformed() {
        let (usual, _) = read(&[]);
        for (name, period) in PERIODS {
            let of = |text: &str| read(&[(name, text)]);
            let (changed, _) = of("10s");
            assert_eq!(period(&changed), Duration::from_secs(10), "{name}");
            let others = PERIODS.iter().filter(|(other, _)| *other != name);
            assert!(others.clone().all(|(_, other)| other(&changed) == other(&usual)), "{name}");
            assert_eq!(period(&of("-10m").0), Duration::ZERO, "{name}");
            assert_eq!(period(&of("48h").0), Duration::from_secs(24 * 3600), "{name}");
            let (kept, malformed) = of("222badTime");
            assert_eq!((kept, malformed.len()), (usual.clone(), 1), "{name}");
        }
    }

    #[test]
    fn a_success_ttl_beyond_the_ceiling_has_no_effect() {
        for text in ["0s", "-1h", "168h", "999h"] {
            let (parameters, _) = read(&[("successTTLDuration", text)]);
            assert_eq!(parameters.success_ttl, Duration::from_secs(7 * 24 * 3600), "{text}");
        }
    }

    #[test]
    fn malformed_annotations_are_reported_and_have_no_effect() {
        let (parameters, malformed) =
            read(&[("admissionGracePeriodDuration", "soon"), ("retryLimit", "many"), ("terminalExitCodes", "1,x,3")]);
        let (retryable, _) = read(&[("retryableExitCodes", "x,10,20")]);
        assert_eq!(retryable.retryable_exit_codes, [10, 20]);
        assert_eq!(parameters.admission_grace, Duration::from_secs(60));
        assert_eq!(parameters.retry_limit, 3);
        assert_eq!(parameters.terminal_exit_codes, [1, 3]);
        assert_eq!(malformed.len(), 2);
        assert!(malformed[0].contains("admissionGracePeriodDuration: \"soon\" is not a duration"), "{malformed:?}");
    }

    #[test]
    fn exit_codes_end_retries() {
        let (parameters, _) = read(&[("terminalExitCodes", "3,10")]);
        assert_eq!([0, 1, 3, 10].map(|code| parameters.is_terminal(code)), [false, false, true, true]);
        let (parameters, _) = read(&[("retryableExitCodes", "3,10")]);
        assert_eq!([0, 1, 3, 10].map(|code| parameters.is_terminal(code)), [false, true, false, false]);
        let (parameters, _) = read(&[]);
        assert!(!parameters.is_terminal(1));
    }
}
