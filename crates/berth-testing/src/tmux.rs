//! A terminal for programs with a screen of their own: a server of tmux for one test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::skip;

/// Number of polls of the screen before a wait fails, four a second.
const POLLS_MAX: usize = 480;

/// A terminal of tmux with one program; both end when this is dropped.
pub struct Tmux {
    folder: PathBuf,
}

impl Tmux {
    /// Runs a command of the shell on a terminal of this size. `folder` is an empty folder for the
    /// server's socket. Skips the running test if tmux is not installed.
    pub fn start(folder: &Path, columns: u16, lines: u16, command: &str) -> Option<Self> {
        if !Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success()) {
            skip("tmux is not installed");
            return None;
        }
        let tmux = Self { folder: folder.to_owned() };
        let size = [columns.to_string(), lines.to_string()];
        let started = tmux.run(&["new-session", "-d", "-x", &size[0], "-y", &size[1], command]);
        assert!(started.status.success(), "tmux: {}", String::from_utf8_lossy(&started.stderr));
        Some(tmux)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        // Without the user's configuration, and with a locale that every machine has.
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").args(["-f", "/dev/null", "-S"]);
        command.arg(self.folder.join("socket")).args(arguments).output().expect("tmux runs")
    }

    /// Presses keys, by the names of tmux, such as `Enter` and `C-c`.
    pub fn keys(&self, keys: &[&str]) {
        let sent = self.run(&[&["send-keys"], keys].concat());
        assert!(sent.status.success(), "tmux: {}", String::from_utf8_lossy(&sent.stderr));
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, columns: u16, lines: u16) {
        self.run(&["resize-window", "-x", &columns.to_string(), "-y", &lines.to_string()]);
    }

    /// The screen as text.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.run(&["capture-pane", "-p"]).stdout).into_owned()
    }

    /// The screen with the escape sequences of colors and other attributes.
    pub fn colored_screen(&self) -> String {
        String::from_utf8_lossy(&self.run(&["capture-pane", "-p", "-e"]).stdout).into_owned()
    }

    /// The value of a format of tmux, such as `#{alternate_on}`.
    pub fn value(&self, format: &str) -> String {
        String::from_utf8_lossy(&self.run(&["display-message", "-p", format]).stdout).trim().to_owned()
    }

    /// Waits until the screen has all these texts. Returns the screen.
    ///
    /// # Panics
    /// The screen does not get them.
    pub fn wait_for(&self, texts: &[&str]) -> String {
        self.wait_until(&format!("{texts:?}"), |screen| texts.iter().all(|text| screen.contains(text)))
    }

    /// Waits until a condition holds for the screen. Returns the screen.
    ///
    /// # Panics
    /// The condition does not hold in time.
    pub fn wait_until(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        for _ in 0..POLLS_MAX {
            screen = self.screen();
            if condition(&screen) {
                return screen;
            }
            pause();
        }
        panic!("waited for {what} on the screen:\n{screen}");
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[expect(clippy::disallowed_methods, reason = "another process is waited for")]
fn pause() {
    std::thread::sleep(Duration::from_millis(250));
}
