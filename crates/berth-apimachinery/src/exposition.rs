//! Metrics as text: Prometheus' text format 0.0.4, and OpenMetrics 1.0 with exemplars.
//!
//! A request creates one [`Exposition`], each source of metrics adds its samples, and
//! [`Exposition::finish`] returns the response. Each family has a buffer of its own, so sources may
//! write their families in any order, and nothing but text is stored. Families without samples are
//! omitted. Sources with many objects format the labels of an object once ([`Labels`]).
//!
//! Source: the specification of OpenMetrics 1.0, and "Exposition formats" in Prometheus' documents.
//! Counters whose names do not end in `_total`, such as those of dcgm-exporter, have the type
//! `unknown` in OpenMetrics, because that format would change their names.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use jiff::Timestamp;

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A sum that only grows.
    Counter,
    /// A value that may rise and fall.
    Gauge,
    /// Counts of values by upper bound.
    Histogram,
}

/// A family of samples.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name. Names of counters of our own end in `_total`.
    pub name: &'static str,
    /// Type.
    pub kind: Kind,
    /// One line that says what the samples are.
    pub help: &'static str,
}

impl Family {
    /// A counter.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, help }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, help }
    }
}

/// Format of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that a client prefers by its header `Accept`; the text format if it states none.
    pub fn accepted(accept: &str) -> Self {
        let mut best = (0.0, Self::Text);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (1.0, "");
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = value.trim().trim_matches('"'),
                    _ => {}
                }
            }
            let format = match media {
                "application/openmetrics-text" if matches!(version, "" | "0.0.1" | "1.0.0") => Self::OpenMetrics,
                "text/plain" | "text/*" | "*/*" => Self::Text,
                _ => continue,
            };
            if quality > best.0 {
                best = (quality, format);
            }
        }
        best.1
    }

    /// The value of header `Content-Type`.
    pub fn media(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Labels as text, without braces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(String);

impl Labels {
    /// These labels, in this order.
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        let mut labels = Self::default();
        for (name, value) in pairs {
            labels.push(name, value);
        }
        labels
    }

    /// These labels and further ones.
    #[must_use]
    pub fn with(&self, pairs: &[(&str, &str)]) -> Self {
        let mut labels = self.clone();
        for (name, value) in pairs {
            labels.push(name, value);
        }
        labels
    }

    /// Adds other labels.
    pub fn append(&mut self, other: &Self) {
        if !self.0.is_empty() && !other.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&other.0);
    }

    /// Adds a label.
    pub fn push(&mut self, name: &str, value: &str) {
        push(&mut self.0, name, value);
    }
}

/// A label name for a key of Kubernetes, such as `label_kubernetes_io_arch` for
/// `kubernetes.io/arch`.
///
/// Source: kube-state-metrics, which replaces every other character with an underscore.
pub fn label_name(prefix: &str, key: &str) -> String {
    let allowed = |char: char| if char.is_ascii_alphanumeric() { char } else { '_' };
    prefix.chars().chain(key.chars().map(allowed)).collect()
}

fn push(text: &mut String, name: &str, value: &str) {
    if !text.is_empty() {
        text.push(',');
    }
    text.push_str(name);
    text.push_str("=\"");
    if value.contains(['\\', '"', '\n']) {
        for char in value.chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                char => text.push(char),
            }
        }
    } else {
        text.push_str(value);
    }
    text.push('"');
}

/// An example of a counted value: labels that identify the event, its value and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Exemplar {
    labels: Labels,
    value: f64,
    at: Timestamp,
}

/// Maximum number of characters of an exemplar's label names and values together.
///
/// Source: OpenMetrics 1.0, "Exemplars".
const EXEMPLAR_CHARACTERS_MAX: usize = 128;

impl Exemplar {
    /// An exemplar; `None` if its labels are too long for the format.
    pub fn new(labels: &[(&str, &str)], value: f64, at: Timestamp) -> Option<Self> {
        let characters: usize = labels.iter().map(|(name, value)| name.chars().count() + value.chars().count()).sum();
        (characters <= EXEMPLAR_CHARACTERS_MAX).then(|| Self { labels: Labels::of(labels), value, at })
    }
}

impl fmt::Display for Exemplar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.at.as_millisecond();
        let (seconds, rest) = (milliseconds.div_euclid(1000), milliseconds.rem_euclid(1000));
        write!(f, " # {{{}}} {} {seconds}.{rest:03}", self.labels.0, Number(self.value))
    }
}

/// Contents of a histogram.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Per bucket, the last of them without a bound: the number of values above the previous bound
    /// and up to its own, and the last exemplar.
    buckets: Vec<(u64, Option<Exemplar>)>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, in ascending order.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: vec![(0, None); bounds.len() + 1], sum: 0.0 }
    }

    /// Adds a value.
    pub fn observe(&mut self, value: f64) {
        self.observe_with(value, None);
    }

    /// Adds a value with an example of it.
    pub fn observe_with(&mut self, value: f64, exemplar: Option<Exemplar>) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.buckets[bucket].0 += 1;
        if exemplar.is_some() {
            self.buckets[bucket].1 = exemplar;
        }
        self.sum += value;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(count, _)| count).sum()
    }
}

/// Handle of a family in an [`Exposition`].
#[derive(Clone, Copy, Debug)]
pub struct FamilyId(usize);

/// A response in preparation.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    families: Vec<(Family, String)>,
    /// Never iterated.
    known: HashMap<&'static str, FamilyId>,
}

impl Exposition {
    /// An empty response.
    pub fn new(format: Format) -> Self {
        Self { format, families: Vec::new(), known: HashMap::new() }
    }

    /// What a source writes, in the text format.
    pub fn text(write: impl FnOnce(&mut Self)) -> String {
        let mut exposition = Self::new(Format::Text);
        write(&mut exposition);
        exposition.finish()
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The handle of a family. Families appear in the order of the first call.
    pub fn family(&mut self, family: &Family) -> FamilyId {
        if let Some(known) = self.known.get(family.name) {
            return *known;
        }
        let id = FamilyId(self.families.len());
        self.families.push((*family, String::new()));
        self.known.insert(family.name, id);
        id
    }

    /// Adds a sample of a gauge or counter.
    pub fn add(&mut self, family: &Family, labels: &[(&str, &str)], value: f64) {
        let id = self.family(family);
        self.sample(id, &Labels::default(), labels, value);
    }

    /// Adds a sample of a gauge or counter, with these labels and further ones.
    pub fn sample(&mut self, family: FamilyId, labels: &Labels, further: &[(&str, &str)], value: f64) {
        self.sample_with(family, labels, further, value, None);
    }

    /// Like [`Exposition::sample`], with an exemplar, which only OpenMetrics can show.
    pub fn sample_with(
        &mut self,
        family: FamilyId,
        labels: &Labels,
        further: &[(&str, &str)],
        value: f64,
        exemplar: Option<&Exemplar>,
    ) {
        let (family, text) = &mut self.families[family.0];
        line(text, family.name, "", labels, further, Number(value));
        if let Some(exemplar) = exemplar.filter(|_| self.format == Format::OpenMetrics && is_counter(family)) {
            let _ = write!(text, "{exemplar}");
        }
        text.push('\n');
    }

    /// Adds the samples of a histogram.
    pub fn histogram(&mut self, family: FamilyId, labels: &Labels, further: &[(&str, &str)], of: &Histogram) {
        let (family, text) = &mut self.families[family.0];
        let labels = labels.with(further);
        let mut total = 0;
        for (bound, (count, exemplar)) in of.bounds.iter().copied().chain([f64::INFINITY]).zip(&of.buckets) {
            total += count;
            let bound = match self.format {
                // OpenMetrics requires a fraction.
                Format::OpenMetrics if bound.is_finite() => format!("{bound:?}"),
                _ => Number(bound).to_string(),
            };
            line(text, family.name, "_bucket", &labels, &[("le", &bound)], Number(total as f64));
            if let Some(exemplar) = exemplar.as_ref().filter(|_| self.format == Format::OpenMetrics) {
                let _ = write!(text, "{exemplar}");
            }
            text.push('\n');
        }
        for (suffix, value) in [("_sum", of.sum), ("_count", total as f64)] {
            line(text, family.name, suffix, &labels, &[], Number(value));
            text.push('\n');
        }
    }

    /// The whole text.
    pub fn finish(self) -> String {
        let size = self.families.iter().map(|(family, text)| text.len() + family.help.len() + 128).sum();
        let mut all = String::with_capacity(size);
        for (family, text) in self.families.iter().filter(|(_, text)| !text.is_empty()) {
            let (name, kind) = head(family, self.format);
            let _ = writeln!(all, "# HELP {name} {}\n# TYPE {name} {kind}", family.help.replace('\n', " "));
            all.push_str(text);
        }
        if self.format == Format::OpenMetrics {
            all.push_str("# EOF\n");
        }
        all
    }
}

/// True if OpenMetrics accepts the family as a counter.
fn is_counter(family: &Family) -> bool {
    family.kind == Kind::Counter && family.name.ends_with("_total")
}

/// Name and type of a family in its metadata.
fn head(family: &Family, format: Format) -> (&'static str, &'static str) {
    match (family.kind, format) {
        (Kind::Gauge, _) => (family.name, "gauge"),
        (Kind::Histogram, _) => (family.name, "histogram"),
        (Kind::Counter, Format::Text) => (family.name, "counter"),
        (Kind::Counter, Format::OpenMetrics) => match family.name.strip_suffix("_total") {
            Some(name) => (name, "counter"),
            None => (family.name, "unknown"),
        },
    }
}

/// A sample without the end of its line.
fn line(text: &mut String, name: &str, suffix: &str, labels: &Labels, further: &[(&str, &str)], value: Number) {
    text.push_str(name);
    text.push_str(suffix);
    if !labels.0.is_empty() || !further.is_empty() {
        text.push('{');
        let mut all = String::new();
        if further.is_empty() {
            text.push_str(&labels.0);
        } else {
            for (name, value) in further {
                push(&mut all, name, value);
            }
            text.push_str(&labels.0);
            if !labels.0.is_empty() {
                text.push(',');
            }
            text.push_str(&all);
        }
        text.push('}');
    }
    let _ = write!(text, " {value}");
}

/// A number in both formats.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value.is_infinite() && value > 0.0 => f.write_str("+Inf"),
            value if value.is_infinite() => f.write_str("-Inf"),
            value => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: Family = Family::counter("requests_total", "Requests");
    const ENERGY: Family = Family::counter("ENERGY", "Energy");
    const WAIT: Family = Family::histogram("wait_seconds", "Waits");
    const SHARE: Family = Family::gauge("share", "Share");

    fn text(format: Format) -> String {
        let mut exposition = Exposition::new(format);
        exposition.add(&REQUESTS, &[("path", "a\"\\\n")], 2.0);
        exposition.add(&ENERGY, &[], 7.0);
        let requests = exposition.family(&REQUESTS);
        let exemplar = Exemplar::new(&[("job", "b")], 1.0, Timestamp::from_millisecond(1_500_250).unwrap());
        exposition.sample_with(requests, &Labels::of(&[("path", "b")]), &[("code", "200")], 1.0, exemplar.as_ref());
        let mut waits = Histogram::new(&[0.5, 2.0]);
        waits.observe(0.25);
        waits.observe_with(60.0, exemplar);
        let wait = exposition.family(&WAIT);
        exposition.histogram(wait, &Labels::default(), &[("queue", "q")], &waits);
        let _without_samples = exposition.family(&SHARE);
        exposition.finish()
    }

    #[test]
    fn families_are_written_together_in_the_text_format() {
        let expected = r#"# HELP requests_total Requests
# TYPE requests_total counter
requests_total{path="a\"\\\n"} 2
requests_total{path="b",code="200"} 1
# HELP ENERGY Energy
# TYPE ENERGY counter
ENERGY 7
# HELP wait_seconds Waits
# TYPE wait_seconds histogram
wait_seconds_bucket{queue="q",le="0.5"} 1
wait_seconds_bucket{queue="q",le="2"} 1
wait_seconds_bucket{queue="q",le="+Inf"} 2
wait_seconds_sum{queue="q"} 60.25
wait_seconds_count{queue="q"} 2
"#;
        assert_eq!(text(Format::Text), expected);
    }

    #[test]
    fn open_metrics_has_exemplars_and_an_end() {
        let expected = r#"# HELP requests Requests
# TYPE requests counter
requests_total{path="a\"\\\n"} 2
requests_total{path="b",code="200"} 1 # {job="b"} 1 1500.250
# HELP ENERGY Energy
# TYPE ENERGY unknown
ENERGY 7
# HELP wait_seconds Waits
# TYPE wait_seconds histogram
wait_seconds_bucket{queue="q",le="0.5"} 1
wait_seconds_bucket{queue="q",le="2.0"} 1
wait_seconds_bucket{queue="q",le="+Inf"} 2 # {job="b"} 1 1500.250
wait_seconds_sum{queue="q"} 60.25
wait_seconds_count{queue="q"} 2
# EOF
"#;
        assert_eq!(text(Format::OpenMetrics), expected);
    }

    #[test]
    fn special_numbers_have_prometheus_names() {
        let numbers = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.1].map(|number| Number(number).to_string());
        assert_eq!(numbers, ["+Inf", "-Inf", "NaN", "0.1"]);
    }

    #[test]
    fn the_client_chooses_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for accept in ["", "*/*", "text/html,*/*;q=0.8", "text/plain, application/openmetrics-text;q=0.5", "a;q=x"] {
            assert_eq!(Format::accepted(accept), Format::Text, "{accept}");
        }
        assert_eq!(Format::accepted("application/openmetrics-text;version=2.0.0"), Format::Text);
    }

    #[test]
    fn a_long_exemplar_is_left_out_and_label_names_have_allowed_characters() {
        assert!(Exemplar::new(&[("name", &"a".repeat(124))], 1.0, Timestamp::UNIX_EPOCH).is_some());
        assert!(Exemplar::new(&[("name", &"a".repeat(125))], 1.0, Timestamp::UNIX_EPOCH).is_none());
        assert_eq!(label_name("label_", "nvidia.com/gpu-x"), "label_nvidia_com_gpu_x");
    }
}
