//! The report of a scenario run: plain text, the same bytes for the same seed.

use std::fmt::Write as _;

use jiff::Timestamp;

/// Collects the report and hands every finished piece to a sink (a terminal, a file, a test).
pub struct Report<'a> {
    sink: &'a mut dyn FnMut(&str),
    start: Timestamp,
    /// Expectations looked at.
    pub checked: usize,
    /// Expectations that failed.
    pub failed: usize,
}

impl<'a> Report<'a> {
    /// A report of a run that starts at this cluster time.
    pub fn new(start: Timestamp, sink: &'a mut dyn FnMut(&str)) -> Self {
        Self { sink, start, checked: 0, failed: 0 }
    }

    /// A line.
    pub fn line(&mut self, text: &str) {
        (self.sink)(&format!("{text}\n"));
    }

    /// A step's heading, with the cluster time since the start.
    pub fn heading(&mut self, name: &str, now: Timestamp) {
        let elapsed = self.elapsed(now);
        (self.sink)(&format!("\n== {name}  [{elapsed}]\n"));
    }

    /// What a command would print, with the command.
    pub fn shown(&mut self, command: &str, output: &str) {
        (self.sink)(&format!("\n$ {command}\n{}\n", output.trim_end()));
    }

    /// The result of an expectation: its title, when it was decided, and the differences if it failed.
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
    fn elapsed_time_reads_like_a_stopwatch() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut sink = |_: &str| {};
        let report = Report::new(start, &mut sink);
        let at = |text: &str| report.elapsed(text.parse().unwrap());
        assert_eq!(at("2026-01-01T00:00:12.5Z"), "12.5s");
        assert_eq!(at("2026-01-01T00:02:03Z"), "2m03s");
        assert_eq!(at("2026-01-01T01:02:03Z"), "1h02m03s");
    }
}
