//! AppWrapper's configuration file: parsed, defaulted and validated.
//!
//! The shape is that of AppWrapper 1.x, with the further settings of 0.30, the version that MLBatch
//! installs. Unlike upstream, which ignores unknown fields, a misspelt field is a problem.
//! Durations are Go text such as `90s`; integers, as upstream reads them, are nanoseconds.
//!
//! Source: `pkg/config` of project-codeflare/appwrapper 1.2.1 and 0.30.0.

use std::time::Duration as Span;

use berth_apimachinery::decode::without_nulls;
use berth_apimachinery::names::is_dns1123_subdomain;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::berth::{ConfigurationError, Duration, NodeHealthConfiguration, Problem, strict};

/// The whole file. The sections besides `appwrapper` configure upstream's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationFile {
    /// Settings of the AppWrapper controller and its admission.
    pub appwrapper: AppWrapperConfiguration,
    /// Addresses and leader election of upstream's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_manager: Option<ControllerManager>,
    /// Names of the certificates and webhooks of upstream's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_management: Option<CertManagement>,
    /// Unless false, AppWrappers pass through the webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhooks_enabled: Option<bool>,
}

/// Settings of the AppWrapper controller and its admission.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppWrapperConfiguration {
    /// Node health: which nodes pods must leave or avoid.
    pub autopilot: NodeHealthConfiguration,
    /// Grace periods and limits of retries.
    pub fault_tolerance: FaultTolerance,
    /// Unless false, the creator of an AppWrapper must be authorized to create its components.
    #[serde(rename = "userRBACAdmissionCheck")]
    pub user_rbac_admission_check: bool,
    /// Scheduler of pods whose templates name none; empty leaves them alone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scheduler_name: String,
    /// Local queue of AppWrappers that name none; empty leaves them alone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default_queue_name: String,
    /// ClusterQueue whose lending limits follow the unhealthy capacity; empty turns this off.
    /// AppWrapper 0.30 only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub slack_queue_name: String,
    /// Whether Kueue queues AppWrappers. AppWrapper 0.30 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_kueue_integrations: Option<bool>,
    /// Settings of the queueing of AppWrappers, with upstream's spelling. AppWrapper 0.30 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kueue_job_reconciller: Option<KueueJobReconciler>,
}

/// Grace periods and limits of retries. Most can be changed per AppWrapper by an annotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FaultTolerance {
    /// Time for all pods to be created after the components.
    #[serde(deserialize_with = "duration")]
    pub admission_grace_period: Duration,
    /// Time for all pods to run after the components were created.
    #[serde(deserialize_with = "duration")]
    pub warmup_grace_period: Duration,
    /// Time for failed pods to be replaced.
    #[serde(deserialize_with = "duration")]
    pub failure_grace_period: Duration,
    /// Time from the failure until the components are created again.
    #[serde(rename = "resetPause", deserialize_with = "duration")]
    pub retry_pause_period: Duration,
    /// Maximum number of resets.
    pub retry_limit: i32,
    /// Time after which remaining pods and components are deleted without their own grace period.
    #[serde(rename = "deletionGracePeriod", deserialize_with = "duration")]
    pub forceful_deletion_grace_period: Duration,
    /// Maximum of the periods above, also for annotations.
    #[serde(rename = "gracePeriodCeiling", deserialize_with = "duration")]
    pub grace_period_maximum: Duration,
    /// Time for which the components of a succeeded AppWrapper are kept.
    #[serde(rename = "successTTLCeiling", deserialize_with = "duration")]
    pub success_ttl: Duration,
}

/// Settings of the queueing of AppWrappers in AppWrapper 0.30. Berth takes them from Kueue's
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KueueJobReconciler {
    manage_jobs_without_queue_name: Option<bool>,
    wait_for_pods_ready: Option<Value>,
    label_keys_to_copy: Vec<String>,
}

/// Addresses and leader election of upstream's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerManager {
    metrics: Metrics,
    health: Health,
    leader_election: Option<bool>,
    #[serde(rename = "enableHTTP2")]
    enable_http2: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metrics {
    bind_address: Option<String>,
    secure_serving: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Health {
    bind_address: Option<String>,
}

/// Names of the certificates and webhooks of upstream's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertManagement {
    namespace: Option<String>,
    certificate_dir: Option<String>,
    certificate_name: Option<String>,
    certificate_org: Option<String>,
    mutating_webhook_config_name: Option<String>,
    validating_webhook_config_name: Option<String>,
    webhook_service_name: Option<String>,
    webhook_secret_name: Option<String>,
}

impl Default for AppWrapperConfiguration {
    fn default() -> Self {
        Self {
            autopilot: NodeHealthConfiguration::default(),
            fault_tolerance: FaultTolerance::default(),
            user_rbac_admission_check: true,
            scheduler_name: String::new(),
            default_queue_name: String::new(),
            slack_queue_name: String::new(),
            enable_kueue_integrations: None,
            kueue_job_reconciller: None,
        }
    }
}

impl Default for FaultTolerance {
    fn default() -> Self {
        Self {
            admission_grace_period: Duration::from_secs(60),
            warmup_grace_period: Duration::from_secs(300),
            failure_grace_period: Duration::from_secs(60),
            retry_pause_period: Duration::from_secs(90),
            retry_limit: 3,
            forceful_deletion_grace_period: Duration::from_secs(600),
            grace_period_maximum: Duration::from_secs(24 * 3600),
            success_ttl: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// Reads a duration: Go text, or an integer of nanoseconds.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a duration such as \"90s\" or \"1h30m\", or nanoseconds")]
    enum Written {
        Nanoseconds(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Nanoseconds(nanoseconds) => Ok(Duration(Span::from_nanos(nanoseconds))),
        Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

impl ConfigurationFile {
    /// Reads and validates a file, already parsed from YAML. All problems are reported at once with
    /// their paths.
    pub fn read(mut value: Value) -> Result<Self, ConfigurationError> {
        without_nulls(&mut value);
        if value.is_null() {
            return Ok(Self::default());
        }
        let mut problems = Vec::new();
        let file: Self = strict(value, "", &mut problems).unwrap_or_default();
        // Validation of incomplete values would only repeat the errors above.
        if problems.is_empty() {
            problems = file.appwrapper.problems("appwrapper");
        }
        if problems.is_empty() { Ok(file) } else { Err(ConfigurationError { problems }) }
    }

    /// Names of the fields in the file that have no effect, each with the place that Berth takes
    /// the setting from.
    pub fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        let table = [
            ("controllerManager", "the configuration of `berth controller`", self.controller_manager.is_some()),
            ("certManagement", "the configuration of `berth controller`", self.cert_management.is_some()),
            (
                "appwrapper.kueueJobReconciller",
                "Kueue's configuration (manageJobsWithoutQueueName, waitForPodsReady)",
                self.appwrapper.kueue_job_reconciller.is_some(),
            ),
        ];
        table.into_iter().filter(|(_, _, set)| *set).map(|(field, place, _)| (field, place)).collect()
    }
}

impl AppWrapperConfiguration {
    /// The problems of the values below `path`.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (field, name) in [
            ("schedulerName", &self.scheduler_name),
            ("defaultQueueName", &self.default_queue_name),
            ("slackQueueName", &self.slack_queue_name),
        ] {
            let wrong = if name.is_empty() { Vec::new() } else { is_dns1123_subdomain(name) };
            problems.extend(wrong.into_iter().map(|why| Problem::new(format!("{path}.{field}"), why)));
        }
        if self.enable_kueue_integrations == Some(false) {
            let message = "false is not supported: remove workload.codeflare.dev/appwrapper from \
                           integrations.frameworks of Kueue's configuration to run AppWrappers without queueing";
            problems.push(Problem::new(format!("{path}.enableKueueIntegrations"), message));
        }
        problems.extend(self.autopilot.problems(&format!("{path}.autopilot")));
        problems.extend(self.fault_tolerance.problems(&format!("{path}.faultTolerance")));
        problems
    }
}

impl FaultTolerance {
    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |field: &str, message: String| problems.push(Problem::new(format!("{path}.{field}"), message));
        let maximum = self.grace_period_maximum;
        for (field, period) in [
            ("admissionGracePeriod", self.admission_grace_period),
            ("warmupGracePeriod", self.warmup_grace_period),
            ("failureGracePeriod", self.failure_grace_period),
            ("resetPause", self.retry_pause_period),
            ("deletionGracePeriod", self.forceful_deletion_grace_period),
        ] {
            if period > maximum {
                add(field, format!("{period} exceeds gracePeriodCeiling, which is {maximum}"));
            }
        }
        let (admission, warmup) = (self.admission_grace_period, self.warmup_grace_period);
        if admission > warmup {
            add("admissionGracePeriod", format!("{admission} exceeds warmupGracePeriod, which is {warmup}"));
        }
        if self.retry_limit < 0 {
            add("retryLimit", format!("{} is less than 0", self.retry_limit));
        }
        if self.success_ttl.0.is_zero() {
            add("successTTLCeiling", format!("{} is not a positive duration", self.success_ttl));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(value: Value) -> Vec<String> {
        let error = ConfigurationFile::read(value).expect_err("must be rejected");
        error.problems.iter().map(ToString::to_string).collect()
    }

    fn taints(file: &ConfigurationFile, resource: &str) -> Vec<(String, &'static str)> {
        let taints = file.appwrapper.autopilot.resource_taints.get(resource);
        taints.into_iter().flatten().map(|taint| (taint.value.clone(), taint.effect.as_str())).collect()
    }

    #[test]
    fn an_empty_file_has_the_defaults_of_upstream() {
        let file = ConfigurationFile::read(Value::Null).unwrap();
        assert_eq!(file, ConfigurationFile::read(json!({})).unwrap());
        let periods = &file.appwrapper.fault_tolerance;
        assert_eq!(periods.retry_pause_period.to_string(), "1m30s");
        assert_eq!(periods.success_ttl.to_string(), "168h0m0s");
        assert_eq!(periods.retry_limit, 3);
        assert!(file.appwrapper.user_rbac_admission_check);
        let expected =
            [("WARN", "PreferNoSchedule"), ("ERR", "NoSchedule"), ("TESTING", "NoSchedule"), ("EVICT", "NoExecute")];
        assert_eq!(taints(&file, "nvidia.com/gpu"), expected.map(|(value, effect)| (value.to_owned(), effect)));
    }

    #[test]
    fn the_file_of_mlbatch_is_read() {
        let file = ConfigurationFile::read(json!({
            "appwrapper": {
                "enableKueueIntegrations": true,
                "kueueJobReconciller": {
                    "manageJobsWithoutQueueName": true,
                    "waitForPodsReady": {"enable": false},
                },
                "defaultQueueName": "default-queue",
                "schedulerName": "scheduler-plugins-scheduler",
                "slackQueueName": "slack-cluster-queue",
                "userRBACAdmissionCheck": false,
            },
            "controllerManager": {
                "health": {"bindAddress": ":8081"},
                "metrics": {"bindAddress": "127.0.0.1:8080"},
                "leaderElection": true,
            },
        }))
        .unwrap();
        assert_eq!(file.appwrapper.slack_queue_name, "slack-cluster-queue");
        assert!(!file.appwrapper.user_rbac_admission_check);
        let fields: Vec<_> = file.without_effect().into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["controllerManager", "appwrapper.kueueJobReconciller"]);
    }

    #[test]
    fn periods_are_text_or_nanoseconds() {
        let file = ConfigurationFile::read(json!({"appwrapper": {"faultTolerance": {
            "admissionGracePeriod": 30_000_000_000_u64, "resetPause": "2m", "retryLimit": 0,
        }}}))
        .unwrap();
        let periods = file.appwrapper.fault_tolerance;
        assert_eq!(periods.admission_grace_period, Duration::from_secs(30));
        assert_eq!(periods.retry_pause_period, Duration::from_secs(120));
        assert_eq!(periods.warmup_grace_period, Duration::from_secs(300));
        let wrong = json!({"appwrapper": {"faultTolerance": {"resetPause": -5}}});
        let [problem] = problems(wrong).try_into().unwrap();
        assert!(problem.starts_with("appwrapper.faultTolerance.resetPause: expected a duration"), "{problem}");
    }

    #[test]
    fn taints_of_a_file_replace_those_of_the_same_resource() {
        let read = |taints: Value| {
            ConfigurationFile::read(json!({"appwrapper": {"autopilot": {"resourceTaints": taints}}})).unwrap()
        };
        let one = json!([{"key": "health", "value": "bad", "effect": "NoExecute"}]);
        let more = read(json!({"amd.com/gpu": one}));
        assert_eq!(taints(&more, "amd.com/gpu"), [("bad".to_owned(), "NoExecute")]);
        assert_eq!(taints(&more, "nvidia.com/gpu").len(), 4);
        assert_eq!(taints(&read(json!({"nvidia.com/gpu": one})), "nvidia.com/gpu").len(), 1);
        assert!(taints(&read(json!({"nvidia.com/gpu": []})), "nvidia.com/gpu").is_empty());
    }

    #[test]
    fn problems_have_the_path_of_the_field() {
        let found = problems(json!({"appwrapper": {
            "enableKueueIntegrations": false,
            "schedulerName": "A b",
            "autopilot": {
                "preferNoScheduleWeight": 0,
                "resourceTaints": {"gpu": [{"key": "", "value": "c", "effect": "NoSchedule"}]},
            },
            "faultTolerance": {"admissionGracePeriod": "25h", "retryLimit": -1, "successTTLCeiling": "0s"},
        }}));
        let paths: Vec<_> = found.iter().map(|problem| problem.split_once(": ").unwrap().0).collect();
        let expected = [
            "appwrapper.schedulerName",
            "appwrapper.enableKueueIntegrations",
            "appwrapper.autopilot.preferNoScheduleWeight",
            "appwrapper.autopilot.resourceTaints[gpu][0].key",
            "appwrapper.faultTolerance.admissionGracePeriod",
            "appwrapper.faultTolerance.admissionGracePeriod",
            "appwrapper.faultTolerance.retryLimit",
            "appwrapper.faultTolerance.successTTLCeiling",
        ];
        assert_eq!(paths, expected);
        assert_eq!(
            found[4],
            "appwrapper.faultTolerance.admissionGracePeriod: 25h0m0s exceeds gracePeriodCeiling, which is 24h0m0s"
        );
    }

    #[test]
    fn no_period_exceeds_the_ceiling_and_success_has_a_time_to_live() {
        let of = |periods: Value| problems(json!({"appwrapper": {"faultTolerance": periods}}));
        let fields =
            ["admissionGracePeriod", "warmupGracePeriod", "failureGracePeriod", "resetPause", "deletionGracePeriod"];
        let base = json!({"admissionGracePeriod": "1s", "warmupGracePeriod": "1s", "failureGracePeriod": "1s",
            "resetPause": "1s", "deletionGracePeriod": "1s", "gracePeriodCeiling": "1s"});
        for field in fields {
            let mut periods = base.clone();
            periods[field] = json!("10s");
            let expected = format!("appwrapper.faultTolerance.{field}: 10s exceeds gracePeriodCeiling, which is 1s");
            assert_eq!(of(periods)[0], expected);
        }
        let order = json!({"admissionGracePeriod": "10s", "warmupGracePeriod": "1s"});
        let expected = "appwrapper.faultTolerance.admissionGracePeriod: 10s exceeds warmupGracePeriod, which is 1s";
        assert_eq!(of(order), [expected]);
        let [problem] = of(json!({"successTTLCeiling": "-1s"})).try_into().unwrap();
        assert!(problem.starts_with("appwrapper.faultTolerance.successTTLCeiling: "), "{problem}");
    }

    #[test]
    fn an_unknown_field_or_effect_is_a_problem() {
        assert_eq!(problems(json!({"appwrapper": {"slackQueue": "a"}})), ["appwrapper.slackQueue: unknown field"]);
        let taint = json!([{"key": "a", "value": "b", "effect": "Never"}]);
        let [problem] =
            problems(json!({"appwrapper": {"autopilot": {"resourceTaints": {"gpu": taint}}}})).try_into().unwrap();
        assert!(problem.starts_with("appwrapper.autopilot.resourceTaints.gpu[0].effect: "), "{problem}");
    }

    #[test]
    fn a_written_configuration_is_read_back() {
        let configuration = AppWrapperConfiguration::default();
        let file = ConfigurationFile::read(json!({"appwrapper": configuration})).unwrap();
        assert_eq!(file.appwrapper, configuration);
    }
}
