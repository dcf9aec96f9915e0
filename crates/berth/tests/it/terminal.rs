//! kubectl on a terminal, as in interactive use: `exec -it`, `attach -it` and `debug -it`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_testing::{has_kubectl, skip};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::cluster::{Cluster, pause};

/// kubectl with a terminal of its own; killed when dropped.
struct Terminal {
    keyboard: File,
    kubectl: Child,
    screen: Arc<Mutex<String>>,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The two sides of a terminal: that of its user, and that of programs.
pub fn sides() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).expect("a terminal");
    unlockpt(&master).expect("unlocked");
    let slave = ioctl_tiocgptpeer(&master, flags).expect("the other side of the terminal");
    (master, slave)
}

impl Terminal {
    /// Starts kubectl on a terminal of 30 rows and 90 columns.
    fn start(cluster: &Cluster, arguments: &[&str]) -> Self {
        let (master, slave) = sides();
        tcsetwinsize(&master, size(30, 90)).expect("resized");
        let stdio = |slave: &OwnedFd| Stdio::from(slave.try_clone().expect("a copy"));
        // The controlling terminal of kubectl, so that the kernel signals changes of its size.
        let kubectl = Command::new("setsid")
            .args(["--ctty", "kubectl"])
            .args(cluster.kubectl_options())
            .args(arguments)
            .stdin(stdio(&slave))
            .stdout(stdio(&slave))
            .stderr(stdio(&slave))
            .spawn()
            .expect("setsid runs");
        drop(slave);
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut output, shown) = (keyboard.try_clone().expect("a copy"), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // An error means that kubectl has closed its side.
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..read]);
                shown.lock().expect("no thread panics while it holds the screen").push_str(&text);
            }
        });
        Self { keyboard, kubectl, screen }
    }

    fn type_line(&mut self, line: &str) {
        self.keyboard.write_all(format!("{line}\n").as_bytes()).expect("typed");
    }

    fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.keyboard, size(rows, columns)).expect("resized");
    }

    /// Waits until the screen shows a string.
    fn wait_for(&self, text: &str) {
        for _ in 0..1200 {
            if self.screen.lock().expect("no thread panics while it holds the screen").contains(text) {
                return;
            }
            pause(Duration::from_millis(50));
        }
        panic!("waited for {text:?} on the screen: {:?}", self.screen.lock());
    }

    /// Waits for the end of kubectl. Returns its exit code.
    fn end(mut self) -> Option<i32> {
        self.kubectl.wait().expect("kubectl can be waited for").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // kubectl has ended already after `end`.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

const PODS: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": {"terminationGracePeriodSeconds": 1,
     "containers": [{"name": "main", "image": "busybox", "command": ["sleep", "86123"]}]}},
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shell"}, "spec": {"terminationGracePeriodSeconds": 1,
     "containers": [{"name": "main", "image": "busybox", "command": ["sh"], "stdin": true, "tty": true}]}}
]}"#;

/// The terminal echoes typed lines. Quotes split the printed words in them, so that only the output
/// has the whole words.
#[test]
fn interactive_sessions_have_a_terminal() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if !has_kubectl() {
        return;
    }
    if !Command::new("setsid").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("setsid is not installed");
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    let manifest = tempfile::NamedTempFile::with_suffix(".json").expect("a temporary file");
    std::fs::write(manifest.path(), PODS).expect("written");
    cluster.run(&["apply", "-f", &manifest.path().display().to_string()]);
    cluster.run(&["wait", "--for=condition=Ready", "pod/worker", "pod/shell", "--timeout=60s"]);

    // The size of the terminal follows the client's, and the exit code is the command's.
    let mut terminal = Terminal::start(&cluster, &["exec", "-it", "worker", "--", "sh"]);
    terminal.type_line("until test \"$(stty size)\" = '30 90'; do sleep 0.1; done; echo fi''rst; tty");
    terminal.wait_for("first\r\n/dev/pts/");
    terminal.resize(40, 120);
    terminal.type_line("until test \"$(stty size)\" = '40 120'; do sleep 0.1; done; echo sec''ond");
    terminal.wait_for("second\r\n");
    terminal.type_line("exit 7");
    assert_eq!(terminal.end(), Some(7));

    let mut terminal = Terminal::start(&cluster, &["attach", "-it", "shell"]);
    terminal.type_line("until test \"$(stty size)\" = '30 90'; do sleep 0.1; done; echo atta''ched");
    terminal.wait_for("attached\r\n");
    drop(terminal);

    // A debugger without a command runs a shell that sees the processes of its target.
    let debug = ["debug", "-it", "worker", "--image=busybox", "--target=main", "--profile=baseline"];
    let mut terminal = Terminal::start(&cluster, &debug);
    terminal.type_line("tr '\\0' ' ' < /proc/1/cmdline; echo; echo de''bugged");
    terminal.wait_for("sleep 86123 \r\ndebugged\r\n");
    terminal.type_line("exit");
    terminal.end();
    let status = &cluster.get(&["pod", "worker"])["status"];
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    cluster.wait_until("the debugger to end", 30, |cluster| {
        let status = &cluster.get(&["pod", "worker"])["status"];
        status["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    });
    cluster.interrupt();
}
