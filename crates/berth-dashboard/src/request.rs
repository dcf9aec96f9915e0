//! Parses requests.

use http::Uri;

/// Maximum offset in a list.
const FROM_MAX: usize = 1_000_000_000;

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// Cohorts and queues, from this row on.
    Overview {
        /// Number of rows to skip.
        from: usize,
    },
    /// One cluster queue.
    Queue {
        /// Its name.
        name: String,
        /// Number of waiting workloads to skip.
        from: usize,
        /// Number of workloads that hold quota to skip.
        held_from: usize,
    },
    /// One workload, by its name or its job's.
    Workload {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Redirect to the page of the workload that the user typed.
    Find {
        /// `NAMESPACE/NAME`, or a name in `default`.
        what: String,
    },
    /// The style sheet.
    Style,
}

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The page.
    pub page: Page,
    /// True if the page reloads itself.
    pub refresh: bool,
}

impl Asked {
    /// Parses path and query; `None` if the page does not exist.
    pub fn read(uri: &Uri) -> Option<Asked> {
        let query = uri.query().unwrap_or_default();
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| decode(&pair.strip_prefix(name)?.strip_prefix('=')?.replace('+', " ")))
        };
        let number = |name: &str| parameter(name).and_then(|text| text.parse().ok()).unwrap_or(0).min(FROM_MAX);
        let segments: Vec<String> = uri.path().split('/').skip(1).map(decode).collect::<Option<Vec<String>>>()?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let page = match segments.as_slice() {
            [""] => Page::Overview { from: number("from") },
            ["style.css"] => Page::Style,
            ["find"] => Page::Find { what: parameter("what")? },
            ["queues", name] if is_name(name) => {
                Page::Queue { name: (*name).to_owned(), from: number("from"), held_from: number("held") }
            }
            ["workloads", namespace, name] if is_name(namespace) && is_name(name) => {
                Page::Workload { namespace: (*namespace).to_owned(), name: (*name).to_owned() }
            }
            _ => return None,
        };
        Some(Asked { page, refresh: parameter("refresh").as_deref() != Some("off") })
    }
}

/// True if an object can have this name. Other names are not requested from the API.
pub fn is_name(name: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= 253
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &'static str) -> Option<Asked> {
        Asked::read(&Uri::from_static(uri))
    }

    #[test]
    fn paths_are_pages() {
        assert_eq!(read("/").map(|it| it.page), Some(Page::Overview { from: 0 }));
        let queue = Page::Queue { name: "a".to_owned(), from: 50, held_from: 200 };
        assert_eq!(read("/queues/a?from=50&held=200&refresh=off"), Some(Asked { page: queue, refresh: false }));
        let workload = Page::Workload { namespace: "team".to_owned(), name: "job-1".to_owned() };
        assert_eq!(read("/workloads/team/job-1"), Some(Asked { page: workload, refresh: true }));
        assert_eq!(
            read("/find?what=team%2Fjob+1").map(|it| it.page),
            Some(Page::Find { what: "team/job 1".to_owned() })
        );
    }

    #[test]
    fn invalid_names_are_not_requested() {
        for none in
            ["/queues/", "/queues/a%2Fb", "/queues/..", "/workloads/a", "/queues/%zz", "/queues/%ff", "/secrets"]
        {
            assert_eq!(read(none), None, "{none}");
        }
        assert_eq!(read("/?from=many").map(|it| it.page), Some(Page::Overview { from: 0 }));
    }
}
