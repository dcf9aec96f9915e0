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
    /// The jobs that exist now.
    Jobs,
    /// One workload, by its name or its job's.
    Workload {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The objects of a workload and its job as YAML.
    Yaml {
        /// Namespace of the workload.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The log of a pod.
    Logs {
        /// Namespace of the pod.
        namespace: String,
        /// Its name.
        pod: String,
    },
    /// The nodes.
    Nodes,
    /// The ProvisioningRequests.
    Provisioning,
    /// The preemptions of a period.
    Preemptions,
    /// The use of quota in a period, by team, user, queue or flavor.
    Usage,
    /// What would happen.
    WhatIf,
    /// Redirect to the page of the workload that the user typed.
    Find {
        /// `NAMESPACE/NAME`, or a name in `default`.
        what: String,
    },
    /// The style sheet.
    Style,
    /// The script.
    Script,
}

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The page.
    pub page: Page,
    /// The parameters of its address.
    pub parameters: Parameters,
}

/// The parameters of an address, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Parses a query string, or the body of a form. Parameters that are not UTF-8 are left out.
    pub fn parse(query: &str) -> Self {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(&name.replace('+', " "))?, decode(&value.replace('+', " "))?))
        };
        Parameters(query.split('&').filter(|it| !it.is_empty()).filter_map(pair).collect())
    }

    /// The first value; `None` if the parameter is absent or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.given(name).filter(|value| !value.is_empty())
    }

    /// The first value, which may be empty.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A number; 0 if it is absent or none.
    pub fn number(&self, name: &str) -> usize {
        self.get(name).and_then(|text| text.parse().ok()).unwrap_or(0).min(FROM_MAX)
    }

    /// The parameters with another value; an empty value removes it.
    #[must_use]
    pub fn with(&self, name: &str, value: impl std::fmt::Display) -> Self {
        let mut changed: Vec<_> = self.0.iter().filter(|(known, _)| known != name).cloned().collect();
        let value = value.to_string();
        if !value.is_empty() {
            changed.push((name.to_owned(), value));
        }
        Parameters(changed)
    }

    /// The parameters without one of them.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        self.with(name, "")
    }

    /// As part of an address.
    pub fn query(&self) -> String {
        let component = berth_apimachinery::percent::component;
        let pairs: Vec<String> =
            self.0.iter().map(|(name, value)| format!("{}={}", component(name), component(value))).collect();
        pairs.join("&")
    }
}

/// The address of each page, and the page for the names in it and the parameters. A part in braces is the
/// name of an object.
type Route = (&'static str, fn(&[&str], &Parameters) -> Page);

/// All addresses.
const ROUTES: [Route; 14] = [
    ("/", |_, given| Page::Overview { from: given.number("from") }),
    ("/style.css", |_, _| Page::Style),
    ("/script.js", |_, _| Page::Script),
    ("/find", |_, given| Page::Find { what: given.get("what").unwrap_or_default().to_owned() }),
    ("/jobs", |_, _| Page::Jobs),
    ("/nodes", |_, _| Page::Nodes),
    ("/provisioning", |_, _| Page::Provisioning),
    ("/preemptions", |_, _| Page::Preemptions),
    ("/usage", |_, _| Page::Usage),
    ("/what-if", |_, _| Page::WhatIf),
    ("/queues/{queue}", |names, given| Page::Queue {
        name: name(names, 0),
        from: given.number("from"),
        held_from: given.number("held"),
    }),
    ("/workloads/{namespace}/{workload}", |names, _| Page::Workload {
        namespace: name(names, 0),
        name: name(names, 1),
    }),
    ("/workloads/{namespace}/{workload}/yaml", |names, _| Page::Yaml {
        namespace: name(names, 0),
        name: name(names, 1),
    }),
    ("/logs/{namespace}/{pod}", |names, _| Page::Logs { namespace: name(names, 0), pod: name(names, 1) }),
];

/// The addresses of all pages; a part in braces is the name of an object.
pub fn routes() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().map(|(path, _)| *path)
}

fn name(names: &[&str], at: usize) -> String {
    names.get(at).map(|name| (*name).to_owned()).unwrap_or_default()
}

/// The names in a path that has this form.
fn names<'a>(form: &str, path: &[&'a str]) -> Option<Vec<&'a str>> {
    let mut names = Vec::new();
    let mut path = path.iter();
    for part in form.split('/').skip(1) {
        let given = *path.next()?;
        match part.starts_with('{') {
            true if is_name(given) => names.push(given),
            false if part == given => {}
            _ => return None,
        }
    }
    path.next().is_none().then_some(names)
}

impl Asked {
    /// Parses path and query; `None` if the page does not exist.
    pub fn read(uri: &Uri) -> Option<Asked> {
        let parameters = Parameters::parse(uri.query().unwrap_or_default());
        let segments: Vec<String> = uri.path().split('/').skip(1).map(decode).collect::<Option<Vec<String>>>()?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let page = ROUTES.iter().find_map(|(form, page)| Some(page(&names(form, &segments)?, &parameters)))?;
        Some(Asked { page, parameters })
    }

    /// False if the reader has stopped the updates of the page.
    pub fn is_live(&self) -> bool {
        self.parameters.get("refresh") != Some("off")
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
        let asked = read("/queues/a?from=50&held=200&refresh=off").expect("a page");
        assert_eq!((asked.is_live(), asked.page), (false, queue));
        let workload = Page::Workload { namespace: "team".to_owned(), name: "job-1".to_owned() };
        let asked = read("/workloads/team/job-1").expect("a page");
        assert_eq!((asked.is_live(), asked.page), (true, workload));
        assert_eq!(
            read("/find?what=team%2Fjob+1").map(|it| it.page),
            Some(Page::Find { what: "team/job 1".to_owned() })
        );
    }

    #[test]
    fn invalid_names_are_not_requested() {
        for none in [
            "/queues/",
            "/queues/a%2Fb",
            "/queues/..",
            "/workloads/a",
            "/queues/%zz",
            "/queues/%ff",
            "/secrets",
            "/logs/a",
        ] {
            assert_eq!(read(none), None, "{none}");
        }
        assert_eq!(read("/?from=many").map(|it| it.page), Some(Page::Overview { from: 0 }));
    }

    #[test]
    fn parameters_are_read_and_changed() {
        let parameters = Parameters::parse("q=a+b%26&state=Waiting&state=&x");
        assert_eq!((parameters.get("q"), parameters.get("x"), parameters.given("x")), (Some("a b&"), None, Some("")));
        assert_eq!(parameters.with("q", "c=d").without("x").without("state").query(), "q=c%3Dd");
    }
}
