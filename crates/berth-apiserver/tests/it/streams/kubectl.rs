//! kubectl over WebSockets and, like its older versions, over SPDY.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::programs::Programs;
use crate::harness::Server;
use crate::kubectl::{Fixture, with_kubectl_on};

/// Variables that make kubectl use SPDY.
const SPDY: [(&str, &str); 2] =
    [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];

/// Runs `test` with each protocol.
fn with_pods(test: impl Fn(&Fixture, &[(&str, &str)]) + Send + 'static) {
    let prepare = async |server: &berth_apiserver::ApiServer| {
        super::add_pods(&Server { api: server.clone() }).await;
    };
    let configure = |config: &mut berth_apiserver::Config| config.pod_streams = Some(Arc::new(Programs));
    with_kubectl_on(configure, prepare, move |kubectl| {
        test(kubectl, &[]);
        test(kubectl, &SPDY);
    });
}

fn command(kubectl: &Fixture, variables: &[(&str, &str)], arguments: &str) -> Command {
    let mut command = kubectl.command();
    command.args(arguments.split_whitespace()).envs(variables.iter().copied());
    command
}

/// Exit code, output and errors of a command with `stdin`.
fn run(mut command: Command, stdin: &[u8]) -> (Option<i32>, Vec<u8>, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("kubectl starts");
    let (mut input, stdin) = (child.stdin.take().expect("piped"), stdin.to_vec());
    let writer = std::thread::spawn(move || drop(input.write_all(&stdin)));
    let output = child.wait_with_output().expect("kubectl ends");
    writer.join().expect("no panic");
    (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn exec_returns_outputs_exit_codes_and_errors() {
    with_pods(|kubectl, variables| {
        let kubectl_exec = |arguments: &str, words: &[&str], stdin: &[u8]| {
            let mut command = command(kubectl, variables, arguments);
            command.args(words);
            run(command, stdin)
        };
        let script = "echo out; echo err >&2; exit 3";
        let (code, out, err) = kubectl_exec("exec p -c main --", &["sh", "-c", script], b"");
        assert_eq!((code, out.as_slice()), (Some(3), &b"out\n"[..]), "{err}");
        assert!(err.contains("err\n") && err.contains("command terminated with exit code 3"), "{err}");
        let input: Vec<u8> = (0..8 * 1024 * 1024_u32).map(|number| ((number * 31) >> 3) as u8).collect();
        let (code, out, err) = kubectl_exec("exec -i p -c main --", &["cat"], &input);
        assert!(code == Some(0) && out == input, "{code:?} {} bytes: {err}", out.len());
        let (code, _, err) = kubectl_exec("exec p -c side --", &["true"], b"");
        assert!(code == Some(1) && err.contains("container not found (\"side\")"), "{err}");
        let (code, _, err) = kubectl_exec("exec p -c main --", &["/no/such/program"], b"");
        assert!(code == Some(1) && err.contains("error executing command in container: No such file"), "{err}");
    });
}

#[test]
fn attach_and_logs_show_what_a_container_prints() {
    with_pods(|kubectl, variables| {
        let (code, out, err) = run(command(kubectl, variables, "attach -i p -c main"), b"hello\n");
        assert_eq!((code, out.as_slice()), (Some(0), &b"hello\n"[..]), "{err}");
        let (code, out, err) = run(command(kubectl, variables, "logs -l app=web -c side --tail 2 --prefix"), b"");
        let text = String::from_utf8_lossy(&out).into_owned();
        assert!(code == Some(0) && text.contains("[pod/p/side] side 1\n"), "{text}{err}");
    });
}

#[test]
fn cp_copies_files_in_both_directions() {
    with_pods(|kubectl, variables| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let content = vec![7; 1024 * 1024];
        std::fs::write(path("here"), &content).expect("written");
        let to = format!("cp {} p:{} -c main", path("here").display(), path("there").display());
        let (code, _, err) = run(command(kubectl, variables, &to), b"");
        assert!(code == Some(0) && std::fs::read(path("there")).is_ok_and(|it| it == content), "{err}");
        let back = format!("cp p:{} {} -c main", path("there").display(), path("back").display());
        let (code, _, err) = run(command(kubectl, variables, &back), b"");
        assert!(code == Some(0) && std::fs::read(path("back")).is_ok_and(|it| it == content), "{err}");
    });
}

#[test]
fn port_forward_carries_successive_and_concurrent_connections() {
    with_pods(|kubectl, variables| {
        let mut command = command(kubectl, variables, "port-forward p :7");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("kubectl starts");
        let mut line = String::new();
        // Kept open until the end: kubectl prints a line for each connection.
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("a line");
        let address = line.split_whitespace().nth(2).expect("Forwarding from ADDRESS -> 7").to_owned();
        for _ in 0..3 {
            let mut connections: Vec<TcpStream> =
                (0..5).map(|_| TcpStream::connect(&address).expect("connected")).collect();
            for (number, connection) in connections.iter_mut().enumerate() {
                connection.write_all(format!("hello {number}").as_bytes()).expect("sent");
            }
            for (number, connection) in connections.iter_mut().enumerate() {
                let mut text = [0; 7];
                connection.read_exact(&mut text).expect("a response");
                assert_eq!(text, format!("hello {number}").as_bytes());
            }
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    });
}
