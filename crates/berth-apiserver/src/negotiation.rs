//! Chooses a media type that the client accepts (`Accept`), and whether to indent the response.
//!
//! Behaviour after Kubernetes' content negotiation (conformance suites `negotiate-*`,
//! `accept-negotiation`). Clauses are tried by quality, then specific media types before wildcards,
//! then in order. The first offer that matches is chosen. Unknown parameters are ignored.

/// Parameters of a clause, `as=Table` and the like, without the quality.
pub type Parameters<'a> = Vec<(&'a str, &'a str)>;

/// The first of `offered` that `accept` allows, with the parameters of its clause, which must be
/// allowed. An empty header chooses the first offer.
pub fn choose<'a, 'o>(
    accept: &'a str,
    offered: &[&'o str],
    allows: impl Fn(&'o str, &Parameters<'a>) -> bool,
) -> Option<(&'o str, Parameters<'a>)> {
    if accept.trim().is_empty() {
        return offered.first().map(|first| (*first, Vec::new()));
    }
    let mut clauses: Vec<Clause<'a>> = accept.split(',').filter_map(Clause::parse).collect();
    clauses.sort_by_key(|clause| (std::cmp::Reverse(clause.quality), clause.main == "*", clause.sub == "*"));
    for clause in clauses {
        let fits = offered.iter().find(|offer| clause.takes(offer) && allows(offer, &clause.parameters));
        if let Some(offer) = fits {
            return Some((offer, clause.parameters));
        }
    }
    None
}

struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    /// Quality in thousandths.
    quality: u32,
    parameters: Parameters<'a>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Clause<'a>> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let (main, sub) = match media.split_once('/') {
            Some((main, sub)) if !main.is_empty() && !sub.is_empty() && !sub.contains('/') => (main, sub),
            None if media == "*" => ("*", "*"),
            _ => return None,
        };
        let mut clause = Clause { main, sub, quality: 1000, parameters: Vec::new() };
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "q" => {
                    let quality = value.trim().parse::<f64>().unwrap_or(1.0);
                    clause.quality = (quality.clamp(0.0, 1.0) * 1000.0) as u32;
                }
                key => clause.parameters.push((key, value.trim())),
            }
        }
        Some(clause)
    }

    fn takes(&self, offer: &str) -> bool {
        let (main, sub) = offer.split_once('/').unwrap_or((offer, ""));
        (self.main == main || self.main == "*") && (self.sub == sub || self.sub == "*")
    }
}

/// The value of a parameter.
pub fn parameter<'a>(parameters: &Parameters<'a>, name: &str) -> Option<&'a str> {
    parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

/// True if a response is indented: if `query`, the value of the parameter `pretty`, requests it or,
/// without a value, for interactive programs.
pub fn is_pretty(query: Option<&str>, user_agent: &str) -> bool {
    match query.filter(|value| !value.is_empty()) {
        Some(value) => matches!(value, "1" | "t" | "T" | "true" | "True" | "TRUE"),
        None => ["curl", "Wget", "Mozilla/5.0"].iter().any(|prefix| user_agent.starts_with(prefix)),
    }
}
