//! URLs: absolute ones with a host, or absolute paths.

use berth_apimachinery::percent;

/// A URL, split into its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    pub(crate) scheme: String,
    pub(crate) host: String,
    pub(crate) path: String,
    query: String,
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Url {
    /// Parses an absolute URI or an absolute path.
    pub(crate) fn parse(text: &str) -> Result<Url, String> {
        let fail = |why: &str| Err(format!("parse {}: {why}", berth_apimachinery::field::quote(text)));
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return fail("net/url: invalid control character in URL");
        }
        if text.is_empty() {
            return fail("empty url");
        }
        let rest = text.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (scheme, rest) = match rest.find(':') {
            Some(colon) if is_scheme(&rest[..colon]) => (rest[..colon].to_ascii_lowercase(), &rest[colon + 1..]),
            Some(0) => return fail("missing protocol scheme"),
            _ => (String::new(), rest),
        };
        if scheme.is_empty() && !rest.starts_with('/') {
            return fail("invalid URI for request");
        }
        // If no slash follows the scheme, the rest is opaque.
        let rest = if !scheme.is_empty() && !rest.starts_with('/') { "" } else { rest };
        let (host, path) = match rest.strip_prefix("//") {
            Some(after) if !scheme.is_empty() || !rest.starts_with("///") => {
                let end = after.find('/').unwrap_or(after.len());
                (&after[..end], &after[end..])
            }
            _ => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        if let Some(problem) = host_problem(host) {
            return fail(&problem);
        }
        if let Some(escape) = percent::malformed(path) {
            return fail(&format!("invalid URL escape \"{escape}\""));
        }
        Ok(Url {
            text: text.to_owned(),
            scheme,
            host: host.to_owned(),
            path: percent::given_path(path),
            query: query.to_owned(),
        })
    }

    pub(crate) fn hostname(&self) -> &str {
        match self.host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => self.host.rsplit_once(':').map_or(&self.host, |(name, _)| name),
        }
    }

    pub(crate) fn port(&self) -> &str {
        let after = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, after)| after);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }

    pub(crate) fn query(&self) -> Vec<(String, Vec<String>)> {
        let mut values: Vec<(String, Vec<String>)> = Vec::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(key), Some(value)) = (unescaped(key), unescaped(value)) else { continue };
            match values.iter_mut().find(|(known, _)| *known == key) {
                Some((_, list)) => list.push(value),
                None => values.push((key, vec![value])),
            }
        }
        values
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

fn host_problem(host: &str) -> Option<String> {
    let port = if host.starts_with('[') {
        match host.rfind(']') {
            Some(end) => &host[end + 1..],
            None => return Some("missing ']' in host".to_owned()),
        }
    } else {
        host.rfind(':').map_or("", |colon| &host[colon..])
    };
    let is_port = port.is_empty() || (port.starts_with(':') && port[1..].bytes().all(|b| b.is_ascii_digit()));
    if !is_port {
        return Some(format!("invalid port \"{port}\" after host"));
    }
    host.contains([' ', '<', '>', '"']).then(|| "invalid character in host name".to_owned())
}

fn unescaped(text: &str) -> Option<String> {
    percent::malformed(text).is_none().then(|| percent::decode_component(text))
}
