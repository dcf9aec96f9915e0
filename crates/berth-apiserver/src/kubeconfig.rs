//! The kubeconfig file for clients: one cluster, one user and one context, all named after the
//! cluster. Certificates are embedded, so that the file can be copied anywhere.

use std::path::Path;

use base64::Engine;

use crate::pki::{Identity, PkiError, end_and_key, write_private};

/// Content of a kubeconfig.
pub struct Kubeconfig<'a> {
    /// Name of cluster, user and context.
    pub name: &'a str,
    /// URL of the server, such as `https://127.0.0.1:6443`.
    pub server: &'a str,
    /// PEM certificate of the certificate authority that signed the server's certificate.
    pub authority_pem: &'a str,
    /// Name that clients send (SNI) and expect in the server's certificate, if it is not the host
    /// of the URL.
    pub server_name: Option<&'a str>,
    /// The client's certificate and key.
    pub identity: &'a Identity,
}

impl Kubeconfig<'_> {
    /// The kubeconfig as YAML.
    pub fn to_yaml(&self) -> String {
        let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        // Names are quoted as JSON strings, which are also YAML strings.
        let name = serde_json::Value::from(self.name);
        let server = serde_json::Value::from(self.server);
        let server_name =
            self.server_name.map(|name| format!("    tls-server-name: {}\n", serde_json::Value::from(name)));
        let server_name = server_name.unwrap_or_default();
        let (authority, certificate, key) =
            (encode(self.authority_pem), encode(&self.identity.certificate_pem), encode(&self.identity.key_pem));
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: {name}\n  cluster:\n    server: {server}\n    \
             certificate-authority-data: {authority}\n{server_name}users:\n- name: {name}\n  user:\n    \
             client-certificate-data: {certificate}\n    client-key-data: {key}\ncontexts:\n- name: {name}\n  \
             context:\n    cluster: {name}\n    user: {name}\ncurrent-context: {name}\npreferences: {{}}\n"
        )
    }

    /// Writes the file, readable by its owner only. An existing file is replaced atomically.
    pub fn write(&self, path: &Path) -> Result<(), PkiError> {
        write_private(path, self.to_yaml().as_bytes())
    }

    /// True if the existing file need not be rewritten: it names the same server, trusts the same
    /// authority, and has a client certificate that is still valid at `now`.
    pub fn is_served_by(&self, path: &Path, now: jiff::Timestamp) -> bool {
        let read = |text: &str| serde_saphyr::from_str::<serde_json::Value>(text).ok();
        let Some(kept) = std::fs::read_to_string(path).ok().and_then(|text| read(&text)) else { return false };
        let Some(wanted) = read(&self.to_yaml()) else { return false };
        let certificate = kept["users"][0]["user"]["client-certificate-data"].as_str().unwrap_or_default();
        let certificate = base64::engine::general_purpose::STANDARD.decode(certificate).unwrap_or_default();
        let end = end_and_key(&String::from_utf8_lossy(&certificate)).map(|(end, _)| end);
        let same = |part: &str| kept[part] == wanted[part];
        same("clusters") && same("contexts") && same("current-context") && end.is_some_and(|end| end > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_reads_back_as_yaml() {
        let identity = Identity { certificate_pem: "CERT".to_owned(), key_pem: "KEY".to_owned() };
        let config = Kubeconfig {
            name: "berth",
            server: "https://127.0.0.1:6443",
            authority_pem: "CA",
            server_name: None,
            identity: &identity,
        };
        let value: serde_json::Value = serde_saphyr::from_str(&config.to_yaml()).expect("YAML");
        assert!(value["clusters"][0]["cluster"]["tls-server-name"].is_null());
        let named = Kubeconfig { server_name: Some("berth-apiserver"), ..config };
        let value: serde_json::Value = serde_saphyr::from_str(&named.to_yaml()).expect("YAML");
        assert_eq!(value["clusters"][0]["cluster"]["tls-server-name"], "berth-apiserver");
        assert_eq!(value["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
        assert_eq!(value["users"][0]["user"]["client-key-data"], "S0VZ");
        assert_eq!(value["current-context"], "berth");
    }

    #[test]
    fn an_existing_kubeconfig_is_kept_for_the_same_server_until_its_certificate_expires() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        let now: jiff::Timestamp = "2026-03-01T12:00:00Z".parse().expect("a timestamp");
        let pki = crate::pki::Pki::ephemeral(now).expect("made");
        let (first, second) = (pki.client("a", None).expect("signed"), pki.client("a", None).expect("signed"));
        let authority_pem = pki.authority_pem();
        let config =
            |server, identity| Kubeconfig { name: "berth", server, authority_pem, server_name: None, identity };
        let here = "https://127.0.0.1:6443";
        assert!(!config(here, &second).is_served_by(&path, now), "the file does not exist");
        config(here, &first).write(&path).expect("written");
        assert!(config(here, &second).is_served_by(&path, now));
        assert!(!config("https://127.0.0.1:6444", &second).is_served_by(&path, now));
        let later = now + jiff::SignedDuration::from_hours(24 * 367);
        assert!(!config(here, &second).is_served_by(&path, later));
    }
}
