//! The log of a process, on the error output: its level and its form. The options have the names
//! and values of Kueue's manager, so that the arguments of its Deployment work.

use std::fmt::{self, Debug};
use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Environment variable with a filter by level and module, in tracing's syntax.
const FILTER: &str = "BERTH_LOG";
/// Filter of a process that logs its progress.
pub const PROGRESS: &str = "warn,berth=info";

/// Options of a process that takes the arguments of Kueue's manager.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Log")]
pub struct LogOptions {
    /// Level of the log: error, info, debug, or a number as for Kueue's manager: 1 and 2 are info,
    /// 3 and 4 debug, higher ones trace. It has precedence over BERTH_LOG.
    #[arg(long = "zap-log-level", value_name = "LEVEL", value_parser = level)]
    level: Option<Level>,
    /// Format of the log: text (console), or one JSON object per line with the keys level, ts,
    /// logger and msg.
    #[arg(long = "zap-encoder", value_name = "FORM", value_enum)]
    form: Option<Form>,
    /// Format of the times in the log.
    #[arg(long = "zap-time-encoding", value_name = "FORM", value_enum)]
    time: Option<TimeForm>,
    /// Log text at level debug, unless the options above say otherwise.
    #[arg(long = "zap-devel", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    devel: Option<bool>,
    /// Accepted because Kueue's manager has it. Berth logs no stack traces.
    #[arg(long = "zap-stacktrace-level", value_name = "LEVEL", value_parser = ["info", "error", "panic"])]
    stacktrace_level: Option<String>,
}

/// Level of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// The filter by module: other projects' libraries only report problems.
    fn filter(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Info => PROGRESS,
            Level::Debug => "warn,berth=debug",
            Level::Trace => "warn,berth=trace",
        }
    }
}

/// Parses a level as Kueue's manager does: a name, or a verbosity above 0.
fn level(text: &str) -> Result<Level, String> {
    match (text.to_ascii_lowercase().as_str(), text.parse::<u32>()) {
        ("error" | "panic", _) => Ok(Level::Error),
        ("info", _) | (_, Ok(1 | 2)) => Ok(Level::Info),
        ("debug", _) | (_, Ok(3 | 4)) => Ok(Level::Debug),
        (_, Ok(5..)) => Ok(Level::Trace),
        _ => Err("must be error, panic, info, debug, or a number above 0".to_owned()),
    }
}

/// Format of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Console,
    Json,
}

/// Format of the times in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum TimeForm {
    /// Seconds since 1970.
    Epoch,
    /// Milliseconds since 1970.
    Millis,
    /// Nanoseconds since 1970.
    Nano,
    /// Date and time, to the millisecond.
    Iso8601,
    /// Date and time, to the second.
    Rfc3339,
    /// Date and time, to the nanosecond.
    #[default]
    Rfc3339nano,
}

impl TimeForm {
    fn value(self, time: Timestamp) -> Value {
        match self {
            TimeForm::Epoch => json!(time.as_duration().as_secs_f64()),
            TimeForm::Millis => json!(time.as_millisecond()),
            TimeForm::Nano => json!(time.as_nanosecond()),
            TimeForm::Iso8601 => json!(format!("{time:.3}")),
            TimeForm::Rfc3339 => json!(format!("{time:.0}")),
            TimeForm::Rfc3339nano => json!(format!("{time:.9}")),
        }
    }
}

/// The machine's time: that of a log is not the cluster's.
#[expect(clippy::disallowed_methods, reason = "lines of the log have real times, regardless of the cluster's clock")]
fn now() -> Timestamp {
    Timestamp::now()
}

impl FormatTime for TimeForm {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        match self.value(now()) {
            Value::String(text) => writer.write_str(&text),
            number => write!(writer, "{number}"),
        }
    }
}

/// Lines of JSON with zap's keys.
struct JsonLines(TimeForm);

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = Map::new();
        line.insert("level".into(), event.metadata().level().as_str().to_ascii_lowercase().into());
        line.insert("ts".into(), self.0.value(now()));
        line.insert("logger".into(), event.metadata().target().into());
        event.record(&mut Fields(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// Collects the fields of an event.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: Value) {
        let key = if field.name() == "message" { "msg" } else { field.name() };
        self.0.insert(key.to_owned(), value);
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

impl LogOptions {
    /// The filter of these options; `None` if they leave it to BERTH_LOG.
    fn filter(&self) -> Option<&'static str> {
        let devel = (self.devel == Some(true)).then_some(Level::Debug);
        self.level.or(devel).map(Level::filter)
    }

    /// Starts the log of this process. `usual`: the filter without options and BERTH_LOG.
    pub fn start(&self, usual: &str) {
        let named = || EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(usual));
        let filter = self.filter().map_or_else(named, EnvFilter::new);
        let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
        match (self.form, self.time) {
            (Some(Form::Json), time) => log.event_format(JsonLines(time.unwrap_or_default())).init(),
            (_, Some(time)) => log.with_ansi(std::io::stderr().is_terminal()).with_timer(time).init(),
            (_, None) => log.with_ansi(std::io::stderr().is_terminal()).init(),
        }
        if self.stacktrace_level.is_some() {
            tracing::warn!("--zap-stacktrace-level has no effect: Berth logs no stack traces");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn levels_are_those_of_kueues_manager() {
        for (text, expected) in [
            ("info", Level::Info),
            ("1", Level::Info),
            ("2", Level::Info),
            ("Debug", Level::Debug),
            ("3", Level::Debug),
            ("5", Level::Trace),
            ("10", Level::Trace),
            ("error", Level::Error),
            ("panic", Level::Error),
        ] {
            assert_eq!(level(text), Ok(expected), "{text}");
        }
        for wrong in ["0", "-1", "verbose", ""] {
            assert!(level(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_option_has_precedence_over_the_environment() {
        let of = |level, devel| LogOptions { level, devel, ..LogOptions::default() }.filter();
        assert_eq!(of(None, None), None);
        assert_eq!(of(None, Some(false)), None);
        assert_eq!(of(None, Some(true)), Some("warn,berth=debug"));
        assert_eq!(of(Some(Level::Error), Some(true)), Some("error"));
    }

    #[test]
    fn times_have_each_of_zaps_forms() {
        let time: Timestamp = "2026-11-26T10:20:30.123456789Z".parse().expect("a time");
        for (form, expected) in [
            (TimeForm::Epoch, json!(1_795_688_430.123_456_7)),
            (TimeForm::Millis, json!(1_795_688_430_123_i64)),
            (TimeForm::Nano, json!(1_795_688_430_123_456_789_i64)),
            (TimeForm::Iso8601, json!("2026-11-26T10:20:30.123Z")),
            (TimeForm::Rfc3339, json!("2026-11-26T10:20:30Z")),
            (TimeForm::Rfc3339nano, json!("2026-11-26T10:20:30.123456789Z")),
        ] {
            assert_eq!(form.value(time), expected, "{form:?}");
        }
    }

    /// What a log wrote.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_json_has_zaps_keys_and_the_fields_of_the_event() {
        let written = Written::default();
        let to = written.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || to.clone())
            .event_format(JsonLines(TimeForm::Rfc3339))
            .finish();
        tracing::subscriber::with_default(log, || {
            tracing::info!(queue = "team \"a\"", waiting = 3, active = true, error = %"late", "queues are full");
        });
        let line = String::from_utf8(written.0.lock().clone()).expect("text");
        let mut line: Value = serde_json::from_str(line.trim_end()).expect("one object per line");
        assert!(line["ts"].as_str().is_some_and(|ts| ts.parse::<Timestamp>().is_ok()), "{line}");
        line.as_object_mut().expect("an object").remove("ts");
        let expected = json!({"level": "info", "logger": module_path!(), "msg": "queues are full",
            "queue": "team \"a\"", "waiting": 3, "active": true, "error": "late"});
        assert_eq!(line, expected);
    }
}
