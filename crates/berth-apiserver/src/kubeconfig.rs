//! The kubeconfig file clients use: one cluster, one user, one context, all called after the cluster, certificates
//! embedded so that the file works wherever it is copied.

use std::path::Path;

use base64::Engine;

use crate::pki::{Identity, PkiError, write_private};

/// What goes into a kubeconfig.
pub struct Kubeconfig<'a> {
    /// Name of cluster, user and context.
    pub name: &'a str,
    /// `https://127.0.0.1:6443`.
    pub server: &'a str,
    /// Certificate of the authority that signed the server's, PEM.
    pub authority_pem: &'a str,
    /// The name to ask the server for and to find in its certificate, when that is not the address's.
    pub server_name: Option<&'a str>,
    /// The client's certificate and key.
    pub identity: &'a Identity,
}

impl Kubeconfig<'_> {
    /// The file's text, YAML.
    pub fn to_yaml(&self) -> String {
        let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        // Names are quoted as JSON strings, which YAML reads the same.
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

    /// Writes the file, readable by its owner only, replacing an earlier one whole.
    pub fn write(&self, path: &Path) -> Result<(), PkiError> {
        write_private(path, self.to_yaml().as_bytes())
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
}
