//! The report of a scenario run: plain text, byte for byte the same for the same seed.

use std::fmt::Write as _;

use jiff::Timestamp;

/// Formats the report and passes each finished piece to a sink (a terminal, a file, a test).
pub struct Report<'a> {
    sink: &'a mut dyn FnMut(&str),
    start: Timestamp,
    /// Number of expectations that were checked.
    pub checked: usize,
    /// Number of expectations that failed.
    pub failed: usize,
}

impl<'a> Report<'a> {
    /// The report of a run that starts at this cluster time.
    pub fn new(start: Timestamp, sink: &'a mut dyn FnMut(&str)) -> Self {
        Self { sink, start, checked: 0, failed: 0 }
    }

    /// Adds a line.
    pub fn line(&mut self, text: &str) {
        (self.sink)(&format!("{text}\n"));
    }

    /// Adds a step's heading, with the cluster time since the start.
    pub fn heading(&mut self, name: &str, now: Timestamp) {
        let elapsed = self.elapsed(now);
        (self.sink)(&format!("\n== {name}  [{elapsed}]\n"));
    }

    /// Adds a command and its output.
    pub fn shown(&mut self, command: &str, output: &str) {
        (self.sink)(&format!("\n$ {command}\n{}\n", output.trim_end()));
    }

    /// Adds the result of an expectation: its title, the cluster time since the start, and the
    /// differences if it failed. Counts it.
    pub fn verdict(&mut self, title: &str, now: Timestamp, differences: &[String]) {
        self.checked += 1;
        let elapsed = self.elapsed(now);
        let mut text = String::new();
        if differences.is_empty() {
            let _ = writeln!(text, "  ok    {title}  [{elapsed}]");
        } else {
            self.failed += 1;
            let _ = writeln!(text, "  FAIL  {title}  [{elapsed}]");
            for difference in differences {
                let _ = writeln!(text, "          {difference}");
            }
        }
        (self.sink)(&text);
    }

    /// Cluster time since the start, as `1h02m03s` or `12.5s`.
    pub fn elapsed(&self, now: Timestamp) -> String {
        let millis = now.duration_since(self.start).as_millis().max(0);
        let (seconds, fraction) = (millis / 1000, millis % 1000);
        let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        match (hours, minutes) {
            (0, 0) if fraction > 0 => format!("{rest}.{:0>1}s", fraction / 100),
            (0, 0) => format!("{rest}s"),
            (0, _) => format!("{minutes}m{rest:02}s"),
            _ => format!("{hours}h{minutes:02}m{rest:02}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_is_shown_in_hours_minutes_and_seconds() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut sink = |_: &str| {};
        let report = Report::new(start, &mut sink);
        let at = |text: &str| report.elapsed(text.parse().unwrap());
        assert_eq!(at("2026-01-01T00:00:12.5Z"), "12.5s");
        assert_eq!(at("2026-01-01T00:02:03Z"), "2m03s");
        assert_eq!(at("2026-01-01T01:02:03Z"), "1h02m03s");
    }
}
