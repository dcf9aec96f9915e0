//! Validation of `clientConfig`, the location of a webhook, for admission webhooks and conversion
//! webhooks.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::{names, percent};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

const FORM: &str = "; desired format: https://host[/path]";

/// Checks that exactly one of `url` and `service` is set and valid. `ca_bundle` is true to check
/// the bundle too; stored objects may be older than that check.
pub fn validate(config: &Value, ca_bundle: bool, path: &Path<'_>) -> Vec<Error> {
    let url = config.get("url").and_then(Value::as_str);
    let service = config.get("service").filter(|service| service.is_object());
    let mut errors = match (url, service) {
        (Some(url), None) => validate_url(url, &path.child("url")),
        (None, Some(service)) => validate_service(service, &path.child("service")),
        _ => vec![Error::required(path, "exactly one of url or service is required")],
    };
    if ca_bundle {
        errors.extend(validate_ca_bundle(config.get("caBundle"), &path.child("caBundle")));
    }
    errors
}

/// A URL split into its parts, as far as webhooks need it: escapes are not decoded, and those in
/// the path are valid.
pub struct Url<'a> {
    /// Scheme, such as `https`; empty if there is none.
    pub scheme: &'a str,
    /// User information before the `@` of the host.
    pub user: Option<&'a str>,
    /// Host with its port.
    pub host: &'a str,
    /// Path, which begins with `/` or is empty.
    pub path: &'a str,
    /// Query after `?`, without the `?`.
    pub query: &'a str,
    /// Fragment after `#`, without the `#`.
    pub fragment: &'a str,
}

impl<'a> Url<'a> {
    /// Splits a URL into its parts.
    ///
    /// # Errors
    /// The string is not a URL; the error has the message of Go's `net/url`.
    pub fn parse(text: &'a str) -> Result<Url<'a>, String> {
        if text.chars().any(char::is_control) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let is_scheme = |scheme: &str| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        };
        let (scheme, rest) = match rest.split_once(':') {
            Some((scheme, after)) if is_scheme(scheme) => (scheme, after),
            Some(("", _)) => return Err("missing protocol scheme".to_owned()),
            _ => ("", rest),
        };
        let Some(rest) = rest.strip_prefix("//") else {
            return Ok(Url { scheme, user: None, host: "", path: rest, query, fragment });
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        if host.contains(' ') {
            return Err("invalid character \" \" in host name".to_owned());
        }
        if let Err(escape) = percent::decode_path(path) {
            return Err(format!("invalid URL escape \"{escape}\""));
        }
        Ok(Url { scheme, user, host, path, query, fragment })
    }

    /// Host without brackets, and the port, if it is given.
    pub fn host_and_port(&self) -> (&'a str, Option<u16>) {
        if let Some(rest) = self.host.strip_prefix('[')
            && let Some((host, after)) = rest.split_once(']')
        {
            return (host, after.strip_prefix(':').and_then(|port| port.parse().ok()));
        }
        match self.host.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()),
            None => (self.host, None),
        }
    }
}

/// The path with which a webhook is called, for a path in its `clientConfig`. Like Kubernetes'
/// client it is normalized: empty segments and `.` are removed, `..` removes the segment before it,
/// there is no slash at the end, and only characters that must be escaped are. Generators of
/// configurations rely on this. Many servers respond to other forms with a redirect, which webhooks
/// must not do.
pub fn clean_path(path: &str) -> String {
    let bytes = percent::decode_path(path).unwrap_or_else(|_| path.as_bytes().to_vec());
    let mut steps: Vec<&[u8]> = Vec::new();
    for step in bytes.split(|byte| *byte == b'/') {
        match step {
            b"" | b"." => {}
            b".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    if steps.is_empty() { "/".to_owned() } else { percent::path(&[b"/", &*steps.join(&b'/')].concat()) }
}

fn validate_url(text: &str, path: &Path<'_>) -> Vec<Error> {
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => return vec![Error::required(path, format!("url must be a valid URL: {error}{FORM}"))],
    };
    let mut errors = Vec::new();
    if url.scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(Error::invalid(path, url.scheme, detail));
    }
    if url.host.is_empty() {
        errors.push(Error::invalid(path, url.host, format!("host must be specified{FORM}")));
    }
    if let Some(user) = url.user {
        errors.push(Error::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !url.fragment.is_empty() {
        errors.push(Error::invalid(path, url.fragment, "fragments are not permitted in the URL"));
    }
    if !url.query.is_empty() {
        errors.push(Error::invalid(path, url.query, "query parameters are not permitted in the URL"));
    }
    errors
}

fn validate_service(service: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let text = |field: &str| service.get(field).and_then(Value::as_str);
    for field in ["name", "namespace"] {
        if text(field).unwrap_or_default().is_empty() {
            errors.push(Error::required(&path.child(field), format!("service {field} is required")));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(0);
    let problems = names::is_port_number(port);
    if !problems.is_empty() {
        let detail = format!("port is not valid: {}", problems.join(","));
        errors.push(Error::invalid(&path.child("port"), port, detail));
    }
    if let Some(url_path) = text("path") {
        validate_path(url_path, &path.child("path"), &mut errors);
    }
    errors
}

fn validate_path(url_path: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if matches!(url_path, "" | "/") {
        return;
    }
    if url_path == "//" {
        errors.push(Error::invalid(path, url_path, "segment[0] may not be empty"));
        return;
    }
    let steps = url_path.strip_prefix('/').unwrap_or_else(|| {
        errors.push(Error::invalid(path, url_path, "must start with a '/'"));
        &url_path[url_path.chars().next().map_or(0, char::len_utf8)..]
    });
    let steps = steps.strip_suffix('/').unwrap_or(steps);
    for (index, step) in steps.split('/').enumerate() {
        if step.is_empty() {
            errors.push(Error::invalid(path, url_path, format!("segment[{index}] may not be empty")));
            continue;
        }
        for problem in names::is_dns1123_subdomain(step) {
            errors.push(Error::invalid(path, url_path, format!("segment[{index}]: {problem}")));
        }
    }
}

/// Checks that a `caBundle` (base64 of PEM) has certificates. It may be absent or empty.
pub fn validate_ca_bundle(bundle: Option<&Value>, path: &Path<'_>) -> Vec<Error> {
    let Some(text) = bundle.and_then(Value::as_str).filter(|text| !text.is_empty()) else { return Vec::new() };
    match certificates(text) {
        Ok(_) => Vec::new(),
        Err(why) => vec![Error::invalid(path, text, format!("unable to load root certificates: {why}"))],
    }
}

/// The certificates of a `caBundle`; at least one.
pub fn certificates(bundle: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    use base64::Engine;
    let pem = base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        if let Err(error) = x509_parser::parse_x509_certificate(certificate.as_ref()) {
            return Err(error.to_string());
        }
        found.push(certificate);
    }
    if found.is_empty() {
        return Err("data does not contain any valid RSA or ECDSA certificates".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_normalized() {
        for (written, called) in [
            ("", "/"),
            ("/", "/"),
            ("//", "/"),
            ("//mutate--v1-pod", "/mutate--v1-pod"),
            ("/a//b/./c/../d/", "/a/b/d"),
            ("/../../a", "/a"),
            ("a", "/a"),
            ("/a%2Fb%20c/%7Ed", "/a/b%20c/~d"),
            ("/a b/\u{e9}?", "/a%20b/%C3%A9%3F"),
            ("/$&+,:;=@-_.~!*'()[]", "/$&+,:;=@-_.~%21%2A%27%28%29%5B%5D"),
            ("/%2", "/%252"),
        ] {
            assert_eq!(clean_path(written), called, "{written}");
            assert_eq!(clean_path(called), called, "{called} is clean");
        }
    }

    #[test]
    fn an_invalid_escape_is_rejected() {
        for (url, escape) in [("https://h/a%zz", "%zz"), ("https://h/%", "%"), ("https://h/%2\u{e9}", "%2\u{e9}")] {
            let rejected = Url::parse(url).err();
            assert_eq!(rejected, Some(format!("invalid URL escape \"{escape}\"")), "{url}");
        }
        assert!(Url::parse("https://h/%2Fa%20b").is_ok());
    }
}
