//! Validation of the configuration file, after defaults are filled in. Paths are those of the file.

use std::collections::{BTreeMap, BTreeSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::file::{
    AccessProvider, AdmissionFairSharing, FairSharing, File, Integrations, InternalCertManagement, MultiKueue,
    ObjectRetentionPolicies, Resources, Tls, VisibilityServer, WaitForPodsReady,
};
use super::{device_classes, frameworks, metric_labels};
use crate::gates::{Gate, Gates};
use crate::selector;
use crate::webhooks::labels;

/// Namespace in which jobs are never managed, besides the controllers' own.
const SYSTEM_NAMESPACE: &str = "kube-system";
/// The controllers' namespace if the file does not set it.
const NAMESPACE_DEFAULT: &str = "kueue-system";
/// Name of the dispatcher that has settings.
const INCREMENTAL_DISPATCHER: &str = "kueue.x-k8s.io/multikueue-dispatcher-incremental";
/// TLS versions that are valid in a file.
const TLS_VERSIONS: &[&str] = &["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
/// Key-exchange groups in Go's TLS, by IANA number.
const CURVES: &[i32] = &[23, 24, 25, 29, 4587, 4588, 4589];
/// Cipher suites of TLS 1.2 and older in Go's TLS.
const CIPHER_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Validates a file; empty if it is valid.
pub fn validate(file: &File, gates: &Gates) -> Vec<Error> {
    let mut errors = Vec::new();
    if let Some(wait) = &file.wait_for_pods_ready {
        errors.extend(wait_for_pods_ready(wait));
    }
    errors.extend(integrations(file.integrations.as_ref(), gates));
    errors.extend(managed_namespaces(file));
    if let Some(multi) = &file.multi_kueue {
        errors.extend(multi_kueue(multi));
    }
    if let Some(fair) = &file.fair_sharing {
        errors.extend(fair_sharing(fair));
    }
    if let Some(fair) = &file.admission_fair_sharing {
        errors.extend(admission_fair_sharing(fair));
    }
    if let Some(certificates) = &file.internal_cert_management {
        errors.extend(certificate_names(certificates));
    }
    if let Some(resources) = &file.resources {
        errors.extend(transformations(resources));
        errors.extend(quota_check(resources, gates));
        errors.extend(device_classes::validate(resources, gates));
    }
    if let Some(policies) = &file.object_retention_policies {
        errors.extend(retention(policies));
    }
    if let Some(option) = &file.flavor_cool_down {
        let path = Path::new("flavorCoolDown");
        errors.extend(not_negative(option.initial, &path.child("initial")));
        errors.extend(not_negative(option.maximum, &path.child("maximum")));
    }
    if let Some(option) = &file.failure_recovery {
        errors.extend(not_negative(option.grace_period, &Path::new("failureRecovery").child("gracePeriod")));
    }
    if let Some(options) = &file.tls {
        errors.extend(tls(options));
    }
    if let Some(server) = &file.visibility_server {
        errors.extend(visibility_server(server));
    }
    errors.extend(metric_labels::validate(&file.metrics));
    if let Some(wanted) = file.metrics.local_queue_metrics.as_ref().filter(|wanted| wanted.enable)
        && let Some(selector) = &wanted.local_queue_selector
    {
        let path = Path::new("metrics");
        let path = path.child("localQueueMetrics");
        errors.extend(labels::selector(selector, &path.child("localQueueSelector")));
    }
    errors
}

/// Validates the feature gates, with all problems in one error, because gates depend on each other.
/// Gates come from the file or from the command line (`A=true,B=false`), never from both.
pub fn validate_gates(gates: &BTreeMap<String, bool>, on_command_line: &str) -> Result<Gates, Error> {
    if !gates.is_empty() && !on_command_line.is_empty() {
        let detail = "feature gates for CLI and configuration cannot both specified";
        return Err(Error::invalid(&Path::new("featureGates"), json!(gates), detail));
    }
    Gates::from_map(gates).map_err(|errors| {
        let text = match errors.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Error::invalid(&Path::new("featureGates"), json!(gates), text)
    })
}

fn not_negative(duration: Option<SignedDuration>, path: &Path<'_>) -> Option<Error> {
    let duration = duration.filter(SignedDuration::is_negative)?;
    Some(Error::invalid(path, duration.to_string(), "must be greater than or equal to 0"))
}

fn not_negative_number(number: Option<i32>, path: &Path<'_>) -> Option<Error> {
    let number = number.filter(|number| *number < 0)?;
    Some(Error::invalid(path, number, "must be greater than or equal to 0"))
}

/// One error with all problems of a name.
pub(super) fn one_error(problems: Vec<String>, value: &str, path: &Path<'_>) -> Option<Error> {
    (!problems.is_empty()).then(|| Error::invalid(path, value, problems.join("; ")))
}

fn wait_for_pods_ready(wait: &WaitForPodsReady) -> Vec<Error> {
    let path = Path::new("waitForPodsReady");
    let mut errors = Vec::new();
    match wait.timeout.filter(|timeout| !timeout.is_zero()) {
        None => errors.push(Error::required(&path.child("timeout"), "must be greater than 0")),
        timeout => errors.extend(not_negative(timeout, &path.child("timeout"))),
    }
    errors.extend(not_negative(wait.recovery_timeout, &path.child("recoveryTimeout")));
    let Some(strategy) = &wait.requeuing_strategy else { return errors };
    let path = path.child("requeuingStrategy");
    if let Some(timestamp) = &strategy.timestamp
        && !["Creation", "Eviction"].contains(&timestamp.as_str())
    {
        let at = path.child("timestamp");
        errors.push(Error::not_supported(&at, timestamp.as_str(), &["Creation", "Eviction"]));
    }
    errors.extend(not_negative_number(strategy.backoff_limit_count, &path.child("backoffLimitCount")));
    errors.extend(not_negative_number(strategy.backoff_base_seconds, &path.child("backoffBaseSeconds")));
    errors.extend(not_negative_number(strategy.backoff_max_seconds, &path.child("backoffMaxSeconds")));
    errors
}

fn integrations(integrations: Option<&Integrations>, gates: &Gates) -> Vec<Error> {
    let path = Path::new("integrations");
    let Some(integrations) = integrations else { return vec![Error::required(&path, "must be specified")] };
    let at = path.child("frameworks");
    if integrations.frameworks.is_empty() {
        return vec![Error::required(&at, "must name at least one framework, such as batch/job")];
    }
    let mut errors = Vec::new();
    let mut known_kinds = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (index, name) in integrations.frameworks.iter().enumerate() {
        let at = at.index(index);
        match frameworks::find(name) {
            None => errors.push(Error::not_supported(&at, name.as_str(), &frameworks::names())),
            Some(framework) => {
                if !seen.insert(name) {
                    errors.push(Error::duplicate(&at, name.as_str()));
                }
                known_kinds.insert(framework.kind_argument());
                if let Some(gate) = framework.gate().filter(|gate| !gates.on(*gate)) {
                    let detail = format!("needs feature gate {gate}, which is off by default");
                    errors.push(Error::forbidden(&at, detail));
                }
            }
        }
    }
    if let Some(writers) = &integrations.owner_reference_writers {
        let at = path.child("ownerReferenceWriters");
        for (field, names) in [("users", &writers.users), ("groups", &writers.groups)] {
            let at = at.child(field);
            let empty = names.iter().position(String::is_empty);
            errors.extend(
                empty.map(|index| Error::required(&at.index(index), "must be the name of an account or group")),
            );
        }
    }
    let at = path.child("externalFrameworks");
    for (index, name) in integrations.external_frameworks.iter().enumerate() {
        let at = at.index(index);
        if !is_kind_argument(name) {
            errors.push(Error::invalid(&at, name.as_str(), "must be of the form Kind.version.group"));
        } else if !known_kinds.insert(name.clone()) {
            errors.push(Error::duplicate(&at, name.as_str()));
        }
    }
    errors
}

/// True for `Kind.version.group`.
fn is_kind_argument(text: &str) -> bool {
    let mut parts = text.splitn(3, '.');
    (0..3).all(|_| parts.next().is_some_and(|part| !part.is_empty()))
}

/// Validates the namespace selector: it is required if pods are managed, and must exclude the
/// system's namespaces.
fn managed_namespaces(file: &File) -> Vec<Error> {
    let path = Path::new("managedJobsNamespaceSelector");
    let Some(wanted) = &file.managed_jobs_namespace_selector else {
        let enabled = file.integrations.as_ref().map_or(&[][..], |integrations| &integrations.frameworks);
        let made_of_pods = enabled.iter().filter_map(|name| frameworks::find(name)).any(|it| it.made_of_pods);
        let detail = "must be specified when an integration of pods is enabled";
        return if made_of_pods { vec![Error::required(&path, detail)] } else { Vec::new() };
    };
    let errors = labels::selector(wanted, &path);
    if !errors.is_empty() {
        return errors;
    }
    let own = file.namespace.as_deref().unwrap_or(NAMESPACE_DEFAULT);
    let prohibited = [SYSTEM_NAMESPACE, own];
    let hit = prohibited.iter().find(|name| {
        let labels = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), (**name).to_owned())]);
        selector::matches(wanted, &labels)
    });
    let refuse = |name: &&str| {
        Error::invalid(
            &path,
            json!(wanted),
            format!("should not match the {name:?} namespace: jobs there must not be managed"),
        )
    };
    hit.map(refuse).into_iter().collect()
}

fn multi_kueue(multi: &MultiKueue) -> Vec<Error> {
    let path = Path::new("multiKueue");
    let mut errors = Vec::new();
    errors.extend(not_negative(multi.gc_interval, &path.child("gcInterval")));
    errors.extend(not_negative(multi.worker_lost_timeout, &path.child("workerLostTimeout")));
    if let Some(origin) = &multi.origin {
        errors.extend(one_error(names::is_label_value(origin), origin, &path.child("origin")));
    }
    let at = path.child("externalFrameworks");
    let mut seen = BTreeSet::new();
    for (index, framework) in multi.external_frameworks.iter().enumerate() {
        let at = at.index(index);
        let at = at.child("name");
        if framework.name.is_empty() {
            errors.push(Error::required(&at, "must be of the form Kind.version.group"));
        } else if !is_kind_argument(&framework.name) {
            errors.push(Error::invalid(&at, framework.name.as_str(), "must be of the form Kind.version.group"));
        } else if !seen.insert(&framework.name) {
            errors.push(Error::duplicate(&at, framework.name.as_str()));
        }
    }
    if let Some(incremental) = &multi.incremental_dispatcher_config {
        let at = path.child("incrementalDispatcherConfig");
        if multi.dispatcher_name.as_deref() != Some(INCREMENTAL_DISPATCHER) {
            let detail = format!("can only be set when dispatcherName is {INCREMENTAL_DISPATCHER}");
            errors.push(Error::invalid(&at, json!(incremental), detail));
        } else if let Some(size) = incremental.step_size.filter(|size| *size < 1) {
            errors.push(Error::invalid(&at.child("stepSize"), size, "must be greater than or equal to 1"));
        }
    }
    if let Some(profile) = &multi.cluster_profile {
        let at = path.child("clusterProfile");
        let (access, credentials) = (at.child("accessProviders"), at.child("credentialsProviders"));
        if !profile.access_providers.is_empty() && !profile.credentials_providers.is_empty() {
            errors.push(Error::forbidden(&credentials, "cannot be set together with accessProviders"));
        } else {
            errors.extend(profile.access_providers.iter().flat_map(|it| access_provider(it, &access)));
            errors.extend(profile.credentials_providers.iter().flat_map(|it| access_provider(it, &credentials)));
        }
    }
    errors
}

fn access_provider(provider: &AccessProvider, path: &Path<'_>) -> Vec<Error> {
    const MODES: [&str; 3] = ["Never", "IfAvailable", "Always"];
    let mut errors = Vec::new();
    let mut required = |text: &str, at: &Path<'_>| {
        if text.is_empty() {
            errors.push(Error::required(at, "must be specified"));
        }
    };
    let exec = &provider.exec_config;
    let at = path.child("execConfig");
    required(&provider.name, &path.child("name"));
    required(&exec.command, &at.child("command"));
    required(&exec.api_version, &at.child("apiVersion"));
    let of_variable = at.child("env");
    for variable in &exec.env {
        required(&variable.name, &of_variable.child("name"));
    }
    required(&exec.interactive_mode, &at.child("interactiveMode"));
    if !exec.interactive_mode.is_empty() && !MODES.contains(&exec.interactive_mode.as_str()) {
        errors.push(Error::not_supported(&at.child("interactiveMode"), exec.interactive_mode.as_str(), &MODES));
    }
    errors
}

fn fair_sharing(fair: &FairSharing) -> Vec<Error> {
    const SETS: [&[&str]; 3] = [
        &["LessThanOrEqualToFinalShare"],
        &["LessThanInitialShare"],
        &["LessThanOrEqualToFinalShare", "LessThanInitialShare"],
    ];
    let path = Path::new("fairSharing");
    let at = path.child("preemptionStrategies");
    let strategies = &fair.preemption_strategies;
    if strategies.is_empty() {
        return vec![Error::required(&at, "must name at least one strategy")];
    }
    if SETS.iter().any(|set| set.iter().eq(strategies.iter())) {
        return Vec::new();
    }
    let sets: Vec<String> = SETS.iter().map(|set| set.join(",")).collect();
    vec![Error::not_supported(&at, json!(strategies), &sets)]
}

fn admission_fair_sharing(fair: &AdmissionFairSharing) -> Vec<Error> {
    let path = Path::new("admissionFairSharing");
    let mut errors = Vec::new();
    errors.extend(not_negative(fair.usage_half_life_time, &path.child("usageHalfLifeTime")));
    if let Some(interval) = fair.usage_sampling_interval.filter(|interval| !interval.is_positive()) {
        let at = path.child("usageSamplingInterval");
        errors.push(Error::invalid(&at, interval.to_string(), "must be greater than 0"));
    }
    let at = path.child("resourceWeights");
    for (resource, weight) in fair.resource_weights.iter().filter(|(_, weight)| **weight < 0.0) {
        errors.push(Error::invalid(&at.key(resource), *weight, "must be greater than or equal to 0"));
    }
    errors
}

fn certificate_names(certificates: &InternalCertManagement) -> Vec<Error> {
    if certificates.enable == Some(false) {
        return Vec::new();
    }
    let path = Path::new("internalCertManagement");
    let mut errors = Vec::new();
    if let Some(name) = &certificates.webhook_service_name {
        errors.extend(one_error(names::is_dns1035_label(name), name, &path.child("webhookServiceName")));
    }
    if let Some(name) = &certificates.webhook_secret_name {
        errors.extend(one_error(names::is_dns1123_subdomain(name), name, &path.child("webhookSecretName")));
    }
    errors
}

fn transformations(resources: &Resources) -> Vec<Error> {
    const STRATEGIES: [&str; 2] = ["Retain", "Replace"];
    let path = Path::new("resources");
    let path = path.child("transformations");
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, rule) in resources.transformations.iter().enumerate() {
        let at = path.index(index);
        if let Some(strategy) = &rule.strategy
            && !STRATEGIES.contains(&strategy.as_str())
        {
            errors.push(Error::not_supported(&at.child("strategy"), strategy.as_str(), &STRATEGIES));
        }
        if !seen.insert(&rule.input) {
            errors.push(Error::duplicate(&at.child("input"), rule.input.as_str()));
        }
        let outputs = at.child("outputs");
        for (name, amount) in &rule.outputs {
            let text = match amount {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            if let Err(error) = berth_apimachinery::quantity::Quantity::parse(&text) {
                errors.push(Error::invalid(&outputs.key(name), text, error.to_string()));
            }
        }
    }
    errors
}

fn quota_check(resources: &Resources, gates: &Gates) -> Vec<Error> {
    const STRATEGIES: [&str; 2] = ["BlockUndeclared", "IgnoreUndeclared"];
    let Some(strategy) = resources.quota_check_strategy.as_deref().filter(|_| gates.on(Gate::QuotaCheckStrategy))
    else {
        return Vec::new();
    };
    let path = Path::new("resources");
    let at = path.child("quotaCheckStrategy");
    if !STRATEGIES.contains(&strategy) {
        return vec![Error::not_supported(&at, strategy, &STRATEGIES)];
    }
    if strategy == "IgnoreUndeclared" && !resources.exclude_resource_prefixes.is_empty() {
        let detail = "excludeResourcePrefixes is not allowed when quotaCheckStrategy is IgnoreUndeclared";
        return vec![Error::invalid(&at, strategy, detail)];
    }
    Vec::new()
}

fn retention(policies: &ObjectRetentionPolicies) -> Vec<Error> {
    let Some(policy) = &policies.workloads else { return Vec::new() };
    let path = Path::new("objectRetentionPolicies");
    let path = path.child("workloads");
    let mut errors = Vec::new();
    errors.extend(not_negative(policy.after_finished, &path.child("afterFinished")));
    errors.extend(not_negative(policy.after_deactivated_by_kueue, &path.child("afterDeactivatedByKueue")));
    errors
}

fn tls(options: &Tls) -> Vec<Error> {
    let path = Path::new("tls");
    let mut problems = Vec::new();
    if !options.min_version.is_empty() && !TLS_VERSIONS.contains(&options.min_version.as_str()) {
        let known = TLS_VERSIONS.join(", ");
        problems.push(format!("unknown tls version {:?}, supported: {known}", options.min_version));
    }
    let unknown = options.cipher_suites.iter().find(|suite| !CIPHER_SUITES.contains(&suite.as_str()));
    problems.extend(unknown.map(|suite| format!("unknown cipher suite {suite:?}")));
    let unknown = options.curve_preferences.iter().find(|curve| !CURVES.contains(curve));
    problems.extend(unknown.map(|curve| format!("unknown curve {curve}, supported: {CURVES:?}")));
    let mut errors = Vec::new();
    if options.min_version == "VersionTLS13" && !options.cipher_suites.is_empty() {
        let detail = "may not be specified when minVersion is VersionTLS13, whose suites cannot be chosen";
        errors.push(Error::invalid(&path.child("cipherSuites"), json!(options.cipher_suites), detail));
    }
    if !problems.is_empty() {
        errors.push(Error::invalid(&path, json!(options), problems.join("; ")));
    }
    errors
}

fn visibility_server(server: &VisibilityServer) -> Vec<Error> {
    let path = Path::new("visibilityServer");
    let mut errors = Vec::new();
    if let Some(address) = &server.bind_address {
        errors.extend(one_error(names::is_ip(address), address, &path.child("bindAddress")));
    }
    if let Some(port) = server.bind_port {
        let wrong = names::is_port_number(i64::from(port));
        errors.extend(wrong.into_iter().map(|detail| Error::invalid(&path.child("bindPort"), port, detail)));
    }
    errors
}
