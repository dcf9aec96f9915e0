//! Host names that the pages accept. Every client that reaches the port sees what the pages' user
//! may read, so requests of other web sites must be rejected. A site can resolve its own name to
//! this address (DNS rebinding), but then the `Host` header has that name.

use std::net::IpAddr;

use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};

use crate::layout::{TEXT, answer};

/// Accepted host names.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// True if the pages are served to other machines. Every IP address is accepted, because no web
    /// site can forge one as its name.
    pub beyond_loopback: bool,
    /// Further names.
    pub names: Vec<String>,
}

impl Hosts {
    /// True if a request has an accepted host name.
    pub fn accept(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut named = headers.get_all(header::HOST).iter();
        let host = match (uri.authority(), named.next(), named.next()) {
            (Some(authority), None, None) => authority.as_str(),
            (None, Some(host), None) => host.to_str().unwrap_or_default(),
            (Some(authority), Some(host), None) if host.as_bytes() == authority.as_str().as_bytes() => {
                authority.as_str()
            }
            _ => return false,
        };
        self.accept_name(without_port(host))
    }

    /// The response to a request with another host name, or that another web site sends.
    pub fn reject<B>(&self, request: &Request<B>) -> Option<Response<String>> {
        if !self.accept(request.uri(), request.headers()) {
            let message = "The pages do not accept this host name. Use localhost or an IP address, or allow the name \
                           with --host.\n";
            return Some(answer(StatusCode::MISDIRECTED_REQUEST, TEXT, message.to_owned()));
        }
        if !is_own(request) {
            let message = "The pages accept no requests of other web sites.\n";
            return Some(answer(StatusCode::FORBIDDEN, TEXT, message.to_owned()));
        }
        None
    }

    fn accept_name(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        match bare.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || self.beyond_loopback,
            Err(_) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                let is = |known: &str| name.eq_ignore_ascii_case(known);
                is("localhost") || self.names.iter().any(|known| is(known))
            }
        }
    }
}

/// True unless another web site sends the request. A link from elsewhere may open a page, and
/// nothing else: `Origin` and `Sec-Fetch-Site` are headers that browsers send and web sites cannot
/// change.
fn is_own<B>(request: &Request<B>) -> bool {
    let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let host = text("host").or_else(|| request.uri().authority().map(|it| it.as_str())).unwrap_or_default();
    if let Some(origin) = text("origin") {
        let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !named.is_some_and(|named| named.eq_ignore_ascii_case(host)) {
            return false;
        }
    }
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => true,
        Some(_) => request.method() == Method::GET && text("sec-fetch-mode") == Some("navigate"),
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(hosts: &Hosts, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect("a header"));
        hosts.accept(&Uri::from_static("/"), &headers)
    }

    #[test]
    fn only_names_of_this_machine_are_accepted() {
        let hosts = Hosts::default();
        for own in ["localhost", "localhost:8080", "LOCALHOST.:1", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "[::1]"]
        {
            assert!(accepts(&hosts, own), "{own}");
        }
        for foreign in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "192.168.1.5:8080", "10.0.0.1", "", "[::2]"]
        {
            assert!(!accepts(&hosts, foreign), "{foreign}");
        }
        assert!(!hosts.accept(&Uri::from_static("/"), &HeaderMap::new()));
    }

    #[test]
    fn two_host_names_are_rejected() {
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, "localhost".parse().expect("a header"));
        headers.append(header::HOST, "evil.example".parse().expect("a header"));
        assert!(!Hosts::default().accept(&Uri::from_static("/"), &headers));
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, "localhost".parse().expect("a header"));
        assert!(!Hosts::default().accept(&Uri::from_static("http://evil.example/"), &headers));
    }

    #[test]
    fn pages_for_other_machines_accept_addresses_and_given_names() {
        let hosts = Hosts { beyond_loopback: true, names: vec!["batch.example".to_owned()] };
        assert!(accepts(&hosts, "192.168.1.5:8080") && accepts(&hosts, "Batch.example:80"));
        assert!(!accepts(&hosts, "evil.example"));
    }

    #[test]
    fn requests_of_other_sites_are_rejected_except_links() {
        let check = |method: Method, headers: &[(&str, &str)]| {
            let mut request = Request::builder().method(method).uri("/live").header("host", "localhost:8080");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            is_own(&request.body(()).expect("a request"))
        };
        assert!(check(Method::GET, &[]));
        assert!(check(Method::POST, &[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")]));
        assert!(check(Method::GET, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]));
        assert!(!check(Method::GET, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")]));
        assert!(!check(Method::POST, &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate")]));
        for origin in ["http://evil.example", "null", "http://localhost:8080.evil.example"] {
            assert!(!check(Method::POST, &[("origin", origin)]), "{origin}");
        }
    }
}
