//! The webhook server's certificate: generated here, shared by all replicas through a Secret, and
//! renewed in time.
//!
//! Each renewal generates an authority, signs one certificate with it, and drops the authority's
//! key, so nothing else can be signed by it. The Secret also keeps the previous authority: replicas
//! that still serve the previous certificate stay trusted until they have read the new one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use berth_runtime::Clock;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// End of the certificate's validity, RFC 3339.
const NOT_AFTER: &str = "berth.dev/not-after";
/// Host names of the certificate, separated by blanks.
const NAMES: &str = "berth.dev/names";
/// Allowed difference between the clocks of machines.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// A certificate, its key and its certificate authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// PEM certificate.
    pub certificate_pem: String,
    /// PEM key of the certificate.
    pub key_pem: String,
    /// PEM certificates of the certificate authorities, newest first.
    pub authorities_pem: String,
}

/// Reads, generates and renews the certificate.
pub struct Certificates {
    api: Api<Secret>,
    /// Name of the Secret in the controllers' namespace.
    secret: String,
    clock: Clock,
    names: Vec<String>,
    lifetime: Duration,
}

impl Certificates {
    /// For a server with these host names. The certificate is kept in this Secret of this
    /// namespace.
    pub fn new(client: Client, namespace: &str, secret: &str, names: Vec<String>, lifetime: Duration) -> Self {
        // Clients compare certificates with their own clocks, so certificates are issued for real
        // time, regardless of cluster time.
        Self {
            api: Api::namespaced(client, namespace),
            secret: secret.to_owned(),
            clock: Clock::system(),
            names,
            lifetime,
        }
    }

    /// The certificate to serve. It is generated if it does not exist, and renewed when a third of
    /// its lifetime or less is left.
    pub async fn current(&self) -> anyhow::Result<Material> {
        loop {
            let kept = self.api.get_opt(&self.secret).await.context("reading the webhook certificate's Secret")?;
            let now = self.clock.now();
            if let Some((material, end)) = kept.as_ref().filter(|kept| self.is_for_us(kept)).and_then(read)
                && end.duration_since(now) > SignedDuration::try_from(self.lifetime / 3)?
            {
                return Ok(material);
            }
            let before = kept.as_ref().and_then(read).map(|(material, _)| material.authorities_pem);
            let (material, end) = make(&self.names, before.as_deref(), now, self.lifetime)?;
            let wanted = secret(&self.secret, kept.as_ref(), &material, end, &self.names);
            let params = PostParams::default();
            let written = match kept {
                Some(_) => self.api.replace(&self.secret, &params, &wanted).await,
                None => self.api.create(&params, &wanted).await,
            };
            match written {
                Ok(_) => {
                    tracing::info!("generated a webhook certificate that is valid until {end}");
                    return Ok(material);
                }
                // Another replica wrote its certificate first, so that one is used.
                Err(error) if berth_runtime::is_conflict(&error) || berth_runtime::is_already_exists(&error) => {}
                Err(error) => return Err(anyhow!(error).context("writing the webhook certificate's Secret")),
            }
        }
    }

    /// True if a certificate has the host names of this server.
    fn is_for_us(&self, secret: &Secret) -> bool {
        let names = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NAMES));
        names.is_some_and(|names| self.names.iter().all(|name| names.split(' ').any(|known| known == name)))
    }
}

fn read(secret: &Secret) -> Option<(Material, Timestamp)> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    let end = secret.metadata.annotations.as_ref()?.get(NOT_AFTER)?.parse().ok()?;
    let material =
        Material { certificate_pem: text("tls.crt")?, key_pem: text("tls.key")?, authorities_pem: text("ca.crt")? };
    Some((material, end))
}

fn secret(name: &str, before: Option<&Secret>, material: &Material, end: Timestamp, names: &[String]) -> Secret {
    let mut secret = before.cloned().unwrap_or_else(|| Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    });
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(NOT_AFTER.to_owned(), end.to_string());
    annotations.insert(NAMES.to_owned(), names.join(" "));
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    secret.data = Some(BTreeMap::from([
        ("tls.crt".to_owned(), bytes(&material.certificate_pem)),
        ("tls.key".to_owned(), bytes(&material.key_pem)),
        ("ca.crt".to_owned(), bytes(&material.authorities_pem)),
    ]));
    secret
}

/// A new certificate authority, and a certificate that it issues. The newest certificate authority
/// of `before` remains trusted.
fn make(
    names: &[String],
    before: Option<&str>,
    now: Timestamp,
    lifetime: Duration,
) -> anyhow::Result<(Material, Timestamp)> {
    let end = now.checked_add(SignedDuration::try_from(lifetime)?)?;
    let limit = |params: &mut CertificateParams| -> anyhow::Result<()> {
        let at = |time: Timestamp| -> anyhow::Result<_> {
            let seconds = u64::try_from(time.as_second()).context("a time before 1970")?;
            Ok(date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds))
        };
        params.not_before = at(now.checked_sub(SKEW)?)?;
        params.not_after = at(end)?;
        Ok(())
    };
    let mut authority = CertificateParams::default();
    authority.distinguished_name = DistinguishedName::new();
    // Certificate authorities of different renewals need different names, because verifiers select
    // an authority by name.
    authority.distinguished_name.push(DnType::CommonName, format!("berth-webhook-ca-{}", now.as_millisecond()));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    limit(&mut authority)?;
    let authority_key = KeyPair::generate()?;
    let authority_pem = authority.self_signed(&authority_key)?.pem();

    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = DistinguishedName::new();
    leaf.distinguished_name.push(DnType::CommonName, names.first().map_or("berth-webhook", String::as_str));
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    for name in names {
        leaf.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into().with_context(|| name.clone())?),
        });
    }
    limit(&mut leaf)?;
    let key = KeyPair::generate()?;
    let certificate = leaf.signed_by(&key, &Issuer::new(authority, authority_key))?;
    const END: &str = "-----END CERTIFICATE-----";
    let newest_before = before.and_then(|pem| pem.find(END).map(|at| format!("{}\n", &pem[..at + END.len()])));
    let material = Material {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
        authorities_pem: authority_pem + &newest_before.unwrap_or_default(),
    };
    Ok((material, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_keeps_only_the_previous_authority() {
        let names = ["berth-webhook.berth-system.svc".to_owned(), "127.0.0.1".to_owned()];
        let at = |text: &str| text.parse::<Timestamp>().expect("a timestamp");
        let day = Duration::from_secs(86_400);
        let (first, end) = make(&names, None, at("2026-01-01T00:00:00Z"), day).expect("made");
        assert_eq!(end, at("2026-01-02T00:00:00Z"));
        let (second, _) = make(&names, Some(&first.authorities_pem), at("2026-01-01T16:00:00Z"), day).expect("made");
        let (third, _) = make(&names, Some(&second.authorities_pem), at("2026-01-02T08:00:00Z"), day).expect("made");
        let certificates = |pem: &str| pem.matches("BEGIN CERTIFICATE").count();
        assert_eq!([&first, &second, &third].map(|made| certificates(&made.authorities_pem)), [1, 2, 2]);
        assert!(second.authorities_pem.contains(first.authorities_pem.trim()));
        assert!(!third.authorities_pem.contains(first.authorities_pem.trim()));
        let kept = secret("kept", None, &third, end, &names);
        assert_eq!(read(&kept), Some((third, end)));
    }
}
