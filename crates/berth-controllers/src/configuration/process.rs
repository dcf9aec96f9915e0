//! The settings of the process that runs the controllers: addresses, certificates, leader election.
//! `berth controller` follows them, and `berth install` generates matching ports, rights and
//! mounts. Command line options override the file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_runtime::LeaderElection;
use jiff::SignedDuration;
use serde_json::Value;

use super::file::{self, File};
use crate::duration;

/// Default port of the probes; Kueue's.
pub const HEALTH_PORT: u16 = 8081;
/// Default port of the metrics. They are served over HTTP; Kueue's 8443 is for HTTPS.
pub const METRICS_PORT: u16 = 8080;
/// Default port of the webhooks; Kueue's.
pub const WEBHOOK_PORT: u16 = 9443;
/// Default folder of a webhook certificate that is provided from outside; Kueue's.
pub const CERTIFICATE_FOLDER: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Default path of the readiness probe.
pub const READINESS_PATH: &str = "/readyz";
/// Default path of the liveness probe.
pub const LIVENESS_PATH: &str = "/healthz";

/// Supported cipher suites of TLS 1.2, by Go's names; those of TLS 1.3 are not configurable.
pub const CIPHER_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// Supported key-exchange groups, by IANA number: P-256, P-384, X25519.
pub const KEY_EXCHANGE_GROUPS: &[i32] = &[23, 24, 29];

/// An address to listen on, in the format of Go programs: `ADDRESS:PORT`, `:PORT` for every
/// address, `0` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// Do not listen.
    Off,
    /// Listen on every address of this machine.
    Any(u16),
    /// Listen on this address.
    At(SocketAddr),
}

impl BindAddress {
    /// The port; `None` for [`BindAddress::Off`].
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Off => None,
            Self::Any(port) => Some(port),
            Self::At(address) => Some(address.port()),
        }
    }
}

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self::Off);
        }
        let any = text.strip_prefix(':').and_then(|port| port.parse().ok()).map(Self::Any);
        let local = || {
            let port = text.strip_prefix("localhost:")?.parse().ok()?;
            Some(Self::At((Ipv4Addr::LOCALHOST, port).into()))
        };
        any.or_else(local)
            .or_else(|| text.parse().ok().map(Self::At))
            .ok_or_else(|| "expected ADDRESS:PORT, :PORT for every address, or 0 for none".to_owned())
    }
}

/// The process settings in a file; absent if the file does not set them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// `namespace`: the controllers' own namespace.
    pub namespace: Option<String>,
    /// `health.healthProbeBindAddress`.
    pub health_address: Option<BindAddress>,
    /// `health.readinessEndpointName`.
    pub readiness_path: Option<String>,
    /// `health.livenessEndpointName`.
    pub liveness_path: Option<String>,
    /// `metrics.bindAddress`.
    pub metrics_address: Option<BindAddress>,
    /// `webhook.host`.
    pub webhook_host: Option<IpAddr>,
    /// `webhook.port`.
    pub webhook_port: Option<u16>,
    /// Folder of a certificate that is provided from outside (`internalCertManagement.enable:
    /// false`); absent: the controllers generate one.
    pub certificate_folder: Option<PathBuf>,
    /// `internalCertManagement.webhookServiceName`.
    pub webhook_service: Option<String>,
    /// `internalCertManagement.webhookSecretName`.
    pub webhook_secret: Option<String>,
    /// `leaderElection`.
    pub election: Election,
    /// `tls`.
    pub tls: Tls,
    /// `controller.cacheSyncTimeout`: exit if caches take longer to fill; absent: wait.
    pub cache_sync_timeout: Option<Duration>,
}

/// The settings of `leaderElection`; for absent settings, the program's defaults apply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Election {
    /// Act only while holding the Lease.
    pub elect: Option<bool>,
    /// Name of the Lease.
    pub name: Option<String>,
    /// Namespace of the Lease.
    pub namespace: Option<String>,
    /// How long other replicas wait after the last renewal that they have seen.
    pub lease_duration: Option<Duration>,
    /// How long the leader tries to renew.
    pub renew_deadline: Option<Duration>,
    /// Interval between two attempts.
    pub retry_period: Option<Duration>,
}

impl Election {
    /// Default lease duration. Component-base uses 15 s; here a killed leader is to be replaced
    /// within ten seconds, and this is the part spent waiting for its lease to expire.
    pub const LEASE_DURATION: Duration = Duration::from_secs(8);
    /// Default renew deadline, nearly the lease duration: it tolerates a slow server, and losing
    /// leadership costs little.
    pub const RENEW_DEADLINE: Duration = Duration::from_secs(7);
    /// Default retry period.
    pub const RETRY_PERIOD: Duration = Duration::from_secs(1);

    /// The leader election of a replica with this identity.
    pub fn of_replica(&self, name: &str, namespace: &str, identity: String) -> LeaderElection {
        LeaderElection {
            namespace: self.namespace.clone().unwrap_or_else(|| namespace.to_owned()),
            name: self.name.clone().unwrap_or_else(|| name.to_owned()),
            identity,
            lease_duration: self.lease_duration.unwrap_or(Self::LEASE_DURATION),
            renew_deadline: self.renew_deadline.unwrap_or(Self::RENEW_DEADLINE),
            retry_period: self.retry_period.unwrap_or(Self::RETRY_PERIOD),
        }
    }
}

/// `tls`: versions, suites and groups that the webhook server accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// True if only TLS 1.3 is accepted, false if TLS 1.2 is accepted as well.
    pub only_1_3: bool,
    /// Suites of TLS 1.2, names of [`CIPHER_SUITES`]; all when empty.
    pub cipher_suites: Vec<String>,
    /// Key-exchange groups by IANA number, of [`KEY_EXCHANGE_GROUPS`]; all when empty.
    pub key_exchange_groups: Vec<i32>,
}

/// The process settings of a valid file, or an error per field that is not supported.
pub(super) fn of_file(file: &File) -> Result<Process, Vec<Error>> {
    let mut errors = Vec::new();
    let mut process = Process { namespace: text(file.namespace.as_ref()), ..Process::default() };
    if let Some(name) = &process.namespace {
        errors.extend(super::validate::one_error(names::is_dns1123_label(name), name, &Path::new("namespace")));
    }
    if let Some(health) = &file.health {
        let path = Path::new("health");
        process.health_address =
            address(health.health_probe_bind_address.as_ref(), &path.child("healthProbeBindAddress"), &mut errors);
        let name = |name: Option<&String>| text(name);
        process.readiness_path = name(health.readiness_endpoint_name.as_ref());
        process.liveness_path = name(health.liveness_endpoint_name.as_ref());
        for (field, value) in
            [("readinessEndpointName", &process.readiness_path), ("livenessEndpointName", &process.liveness_path)]
        {
            let Some(value) = value else { continue };
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
            if !value.starts_with('/') || value.len() < 2 || !value.bytes().all(plain) {
                let detail = "must be a path such as /readyz, of letters, digits, '-', '_', '.' and '/'";
                errors.push(Error::invalid(&path.child(field), value.as_str(), detail));
            }
        }
        let readiness = process.readiness_path.as_deref().unwrap_or(READINESS_PATH);
        if readiness == process.liveness_path.as_deref().unwrap_or(LIVENESS_PATH) {
            let detail = "must differ from livenessEndpointName";
            errors.push(Error::invalid(&path.child("readinessEndpointName"), readiness, detail));
        }
    }
    let path = Path::new("metrics");
    process.metrics_address = address(file.metrics.bind_address.as_ref(), &path.child("bindAddress"), &mut errors);
    certificates(file, &mut process, &mut errors);
    if let Some(election) = &file.leader_election {
        process.election = of_election(election, &mut errors);
    }
    if let Some(tls) = &file.tls {
        process.tls = of_tls(tls, &mut errors);
    }
    if let Some(timeout) = file.controller.as_ref().and_then(|controller| controller.cache_sync_timeout.as_ref()) {
        let path = Path::new("controller");
        match nanoseconds(timeout) {
            // Zero is Go's unset value.
            Some(timeout) if timeout.is_zero() => {}
            Some(timeout) => process.cache_sync_timeout = Some(timeout),
            None => {
                let detail = "must be a duration such as 2m, or nanoseconds, not below 0";
                errors.push(Error::invalid(&path.child("cacheSyncTimeout"), timeout.clone(), detail));
            }
        }
    }
    if errors.is_empty() { Ok(process) } else { Err(errors) }
}

/// The text, unless it is empty.
fn text(value: Option<&String>) -> Option<String> {
    value.filter(|text| !text.is_empty()).cloned()
}

fn address(value: Option<&String>, path: &Path<'_>, errors: &mut Vec<Error>) -> Option<BindAddress> {
    let value = text(value)?;
    value.parse().map_err(|detail: String| errors.push(Error::invalid(path, value.as_str(), detail))).ok()
}

fn certificates(file: &File, process: &mut Process, errors: &mut Vec<Error>) {
    let path = Path::new("webhook");
    let webhook = file.webhook.clone().unwrap_or_default();
    if let Some(host) = text(webhook.host.as_ref()) {
        match host.parse() {
            Ok(host) => process.webhook_host = Some(host),
            Err(_) => errors.push(Error::invalid(&path.child("host"), host, "must be an IP address to listen on")),
        }
    }
    if let Some(port) = webhook.port {
        match u16::try_from(port) {
            Ok(port) if port > 0 => process.webhook_port = Some(port),
            _ => errors.push(Error::invalid(&path.child("port"), port, "must be between 1 and 65535")),
        }
    }
    let management = file.internal_cert_management.clone().unwrap_or_default();
    let folder = text(webhook.cert_dir.as_ref());
    process.webhook_service = text(management.webhook_service_name.as_ref());
    process.webhook_secret = text(management.webhook_secret_name.as_ref());
    if management.enable == Some(false) {
        process.certificate_folder = Some(folder.map_or_else(|| CERTIFICATE_FOLDER.into(), PathBuf::from));
    } else if folder.is_some_and(|folder| folder != CERTIFICATE_FOLDER) {
        let detail = "needs internalCertManagement.enable: false; a generated certificate is stored in a Secret, not in a \
                      folder";
        errors.push(Error::forbidden(&path.child("certDir"), detail));
    }
}

fn of_election(file: &file::LeaderElection, errors: &mut Vec<Error>) -> Election {
    let path = Path::new("leaderElection");
    if let Some(lock) = text(file.resource_lock.as_ref()).filter(|lock| lock != "leases") {
        errors.push(Error::not_supported(&path.child("resourceLock"), lock, &["leases"]));
    }
    let mut length = |field: &str, value: Option<SignedDuration>| {
        // Zero is Go's unset value.
        let value = value.filter(|value| !value.is_zero())?;
        let refuse = |_| errors.push(Error::invalid(&path.child(field), value.to_string(), "must be longer than 0s"));
        Duration::try_from(value).map_err(refuse).ok()
    };
    let election = Election {
        elect: file.leader_elect,
        name: text(file.resource_name.as_ref()),
        namespace: text(file.resource_namespace.as_ref()),
        lease_duration: length("leaseDuration", file.lease_duration),
        renew_deadline: length("renewDeadline", file.renew_deadline),
        retry_period: length("retryPeriod", file.retry_period),
    };
    if let Some(name) = &election.name {
        let wrong = names::is_dns1123_subdomain(name);
        errors.extend(super::validate::one_error(wrong, name, &path.child("resourceName")));
    }
    if let Some(name) = &election.namespace {
        let wrong = names::is_dns1123_label(name);
        errors.extend(super::validate::one_error(wrong, name, &path.child("resourceNamespace")));
    }
    // Only the durations are validated, so any identity will do.
    if let Some(problem) = election.of_replica("name", "namespace", "identity".to_owned()).problem() {
        errors.push(Error::invalid(&path, Value::Null, problem));
    }
    election
}

fn of_tls(file: &file::Tls, errors: &mut Vec<Error>) -> Tls {
    let path = Path::new("tls");
    if ["VersionTLS10", "VersionTLS11"].contains(&file.min_version.as_str()) {
        let at = path.child("minVersion");
        errors.push(Error::not_supported(&at, file.min_version.as_str(), &["VersionTLS12", "VersionTLS13"]));
    }
    let mut suites = Vec::new();
    let at = path.child("cipherSuites");
    for (index, suite) in file.cipher_suites.iter().enumerate() {
        // Go accepts two suites under an older name too.
        let full = if suite.ends_with("_POLY1305") { format!("{suite}_SHA256") } else { suite.clone() };
        if CIPHER_SUITES.contains(&full.as_str()) {
            suites.push(full);
        } else {
            errors.push(Error::not_supported(&at.index(index), suite.as_str(), CIPHER_SUITES));
        }
    }
    let at = path.child("curvePreferences");
    for (index, group) in file.curve_preferences.iter().enumerate() {
        if !KEY_EXCHANGE_GROUPS.contains(group) {
            let known: Vec<String> = KEY_EXCHANGE_GROUPS.iter().map(i32::to_string).collect();
            errors.push(Error::not_supported(&at.index(index), *group, &known));
        }
    }
    Tls {
        only_1_3: file.min_version == "VersionTLS13",
        cipher_suites: suites,
        key_exchange_groups: file.curve_preferences.clone(),
    }
}

/// A Go `time.Duration` in JSON, as nanoseconds or as text.
fn nanoseconds(value: &Value) -> Option<Duration> {
    match value {
        Value::String(text) => Duration::try_from(duration::parse(text).ok()?).ok(),
        other => other.as_u64().map(Duration::from_nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_like_in_go_programs() {
        assert_eq!(":8080".parse(), Ok(BindAddress::Any(8080)));
        assert_eq!("0".parse(), Ok(BindAddress::Off));
        assert_eq!("127.0.0.1:0".parse(), Ok(BindAddress::At(([127, 0, 0, 1], 0).into())));
        assert_eq!("localhost:81".parse(), Ok(BindAddress::At(([127, 0, 0, 1], 81).into())));
        assert!("8080".parse::<BindAddress>().unwrap_err().contains(":PORT"));
    }
}
