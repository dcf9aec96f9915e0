//! The progress line of work over a second, on a terminal only.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use berth_load::Probe;

/// Counts the jobs that ended.
pub struct Counted<'a>(pub &'a AtomicUsize);

impl Probe for Counted<'_> {
    fn ended(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Time after which work is worth a line, and time between two states of the line.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(100);

/// Does work while a line on the error output shows its progress, after the first second. If the
/// error output is not a terminal, there is no line.
pub fn during<T>(text: &(dyn Fn(Duration) -> String + Sync), work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    // https://no-color.org: no escape sequences.
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
    watched(text, Line::new(std::io::stderr(), is_plain), SHOWN_AFTER, work)
}

/// The progress of counted work: `12 of 48 jobs ended (25 %)`.
pub fn counted(count: &AtomicUsize, whole: usize, what: &str) -> String {
    let count = count.load(Ordering::Relaxed).min(whole);
    format!("{count} of {whole} {what} ({} %)", count * 100 / whole.max(1))
}

fn watched<T>(
    text: &(dyn Fn(Duration) -> String + Sync),
    mut line: Line<impl Write + Send>,
    shown_after: Duration,
    work: impl FnOnce() -> T,
) -> T {
    let (going_on, over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut passed, mut pause) = (Duration::ZERO, shown_after);
            while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                passed += pause;
                pause = EVERY;
                line.show(&text(passed));
            }
            line.clear();
        });
        let done = work();
        drop(going_on);
        done
    })
}

/// A line that is replaced in place.
struct Line<W> {
    to: W,
    /// True if blanks replace the line before, instead of an escape sequence.
    is_plain: bool,
    /// Number of characters that are shown.
    shown: usize,
}

impl<W: Write> Line<W> {
    fn new(to: W, is_plain: bool) -> Self {
        Self { to, is_plain, shown: 0 }
    }

    fn show(&mut self, text: &str) {
        self.clear();
        // A terminal that went away is no reason to stop.
        let _ = write!(self.to, "{text}");
        let _ = self.to.flush();
        self.shown = text.chars().count();
    }

    fn clear(&mut self) {
        match self.shown {
            0 => {}
            shown if self.is_plain => drop(write!(self.to, "\r{:shown$}\r", "")),
            _ => drop(write!(self.to, "\r\x1b[K")),
        }
        let _ = self.to.flush();
        self.shown = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// An output that keeps what is written.
    struct Kept<'a>(&'a Mutex<Vec<u8>>);

    impl Write for Kept<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is written for work that ends when the line is shown.
    fn written(is_plain: bool) -> String {
        let (kept, shown) = (Mutex::default(), AtomicUsize::new(0));
        let text = |_: Duration| {
            shown.fetch_add(1, Ordering::Relaxed);
            counted(&shown, 4, "jobs ended")
        };
        let line = Line::new(Kept(&kept), is_plain);
        watched(&text, line, Duration::from_millis(1), || {
            while shown.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        });
        String::from_utf8(kept.into_inner().expect("not poisoned")).expect("text")
    }

    #[test]
    fn a_line_is_removed_at_the_end_of_the_work() {
        let text = written(false);
        assert!(text.starts_with("1 of 4 jobs ended (25 %)") && text.ends_with("\r\x1b[K"), "{text:?}");
        let text = written(true);
        assert!(text.ends_with(&format!("\r{:24}\r", "")) && !text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn short_work_has_no_line() {
        let kept = Mutex::default();
        let line = Line::new(Kept(&kept), false);
        assert_eq!(watched(&|_| "never".to_owned(), line, Duration::from_secs(600), || 7), 7);
        assert_eq!(kept.into_inner().expect("not poisoned"), b"");
    }
}
