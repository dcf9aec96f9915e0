//! Commands in containers, attachments and forwarded ports.

use std::io::Write;
use std::time::Duration;

use berth_node::Level;
use berth_pod_runtime::{ContainerId, Duplex, ExitStatus, PodRuntime, RuntimeError, StreamIo, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::harness::{LEVELS, Node, PATIENCE, eventually, processes_with, until};

/// The client's ends of the streams of a command.
struct Client {
    stdin: Option<DuplexStream>,
    stdout: DuplexStream,
    stderr: DuplexStream,
}

fn streams(tty: bool) -> (StreamIo, Client) {
    let (stdin, own_stdin) = duplex(64 << 10);
    let (stdout, own_stdout) = duplex(64 << 10);
    let (stderr, own_stderr) = duplex(64 << 10);
    let io = StreamIo {
        stdin: Some(Box::new(stdin)),
        stdout: Some(Box::new(stdout)),
        stderr: if tty { None } else { Some(Box::new(stderr)) },
        tty,
        resize: None,
    };
    (io, Client { stdin: Some(own_stdin), stdout: own_stdout, stderr: own_stderr })
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_owned()).collect()
}

async fn text(stream: &mut DuplexStream) -> String {
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

async fn end(task: JoinHandle<berth_pod_runtime::Result<ExitStatus>>) -> i32 {
    tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().unwrap().code
}

async fn sleeping(node: &Node) -> ContainerId {
    let pod = node.sandbox().await;
    node.start_with(&pod, "sleep 100000", |config| {
        config.env = vec![("FROM".to_owned(), "container".to_owned())];
        config.working_dir = "/usr".to_owned();
    })
    .await
    .unwrap()
    .id
}

#[tokio::test]
async fn a_command_has_the_containers_environment_and_its_own_exit_code() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let id = sleeping(&node).await;
        let (io, mut client) = streams(false);
        let command = words(&["sh", "-c", "echo $FROM $(pwd); echo problem >&2; exit 9"]);
        let task = tokio::spawn(node.runtime.exec(id, command, io));
        assert_eq!(text(&mut client.stdout).await, "container /usr\n", "{level}");
        assert_eq!(text(&mut client.stderr).await, "problem\n");
        assert_eq!(end(task).await, 9);
    }
}

#[tokio::test]
async fn sixty_four_mebibytes_pass_through_cat_which_ends_with_its_input() {
    const BYTES: usize = 64 << 20;
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let id = sleeping(&node).await;
        let (io, mut client) = streams(false);
        let task = tokio::spawn(node.runtime.exec(id, words(&["cat"]), io));
        let mut stdin = client.stdin.take().unwrap();
        let write = async move {
            let chunk: Vec<u8> = (0..1 << 20).map(|index: u32| index.to_le_bytes()[0]).collect();
            for _ in 0..BYTES >> 20 {
                stdin.write_all(&chunk).await.unwrap();
            }
        };
        let read = async {
            let mut bytes = Vec::with_capacity(BYTES);
            client.stdout.read_to_end(&mut bytes).await.unwrap();
            bytes
        };
        let ((), bytes) = tokio::time::timeout(PATIENCE, async { tokio::join!(write, read) }).await.unwrap();
        assert_eq!(bytes.len(), BYTES, "{level}");
        assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == index.to_le_bytes()[0]));
        assert_eq!(end(task).await, 0);
    }
}

#[tokio::test]
async fn a_command_on_a_terminal_sees_its_size() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let id = sleeping(&node).await;
        let (mut io, mut client) = streams(true);
        let (sizes, receiver) = mpsc::channel(4);
        io.resize = Some(receiver);
        sizes.send(TerminalSize { width: 101, height: 37 }).await.unwrap();
        let script =
            "while test \"$(stty size)\" != '37 101'; do :; done; tty; echo $TERM; read line; echo got $line; exit 4";
        let task = tokio::spawn(node.runtime.exec(id, words(&["sh", "-c", script]), io));
        client.stdin.as_mut().unwrap().write_all(b"typed\n").await.unwrap();
        let output = text(&mut client.stdout).await;
        assert!(output.contains("/dev/pts/") && output.contains("xterm\r\n"), "{level}: {output}");
        assert!(output.contains("got typed\r\n"), "{level}: {output}");
        assert_eq!(end(task).await, 4);
    }
}

#[tokio::test]
async fn a_command_ends_when_its_client_disconnects() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let id = sleeping(&node).await;
        let (io, mut client) = streams(false);
        let command = words(&["sh", "-c", "echo up; sleep 86395; true"]);
        let task = tokio::spawn(node.runtime.exec(id, command, io));
        let mut up = [0; 3];
        client.stdout.read_exact(&mut up).await.unwrap();
        until(|| !processes_with("sleep\086395").is_empty()).await;
        task.abort();
        until(|| processes_with("sleep\086395").is_empty()).await;
    }
}

#[tokio::test]
async fn a_command_that_leaves_a_process_behind_ends() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let id = sleeping(&node).await;
        let (io, mut client) = streams(false);
        let task = tokio::spawn(node.runtime.exec(id, words(&["sh", "-c", "sleep 86394 & echo done"]), io));
        assert_eq!(text(&mut client.stdout).await, "done\n");
        assert_eq!(end(task).await, 0);
    }
}

#[tokio::test]
async fn probes_get_output_time_out_and_fail() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let id = sleeping(&node).await;
        let run = |script: &'static str, timeout| {
            let (node, id) = (&node, &id);
            async move { node.runtime.exec_sync(id, &words(&["sh", "-c", script]), timeout).await }
        };
        let output = run("echo out; echo err >&2; exit 1", PATIENCE).await.unwrap();
        assert_eq!((output.exit_code, output.output.len()), (1, 8));
        let output = run("head -c 1000000 /dev/zero", PATIENCE).await.unwrap();
        assert_eq!(output.output.len(), 10 << 10);
        let late = run("sleep 86393; true", Duration::from_millis(500)).await;
        assert!(matches!(late, Err(RuntimeError::TimedOut(_))), "{late:?}");
        until(|| processes_with("sleep\086393").is_empty()).await;
        let missing = node.runtime.exec_sync(&id, &words(&["no-such-program"]), PATIENCE).await;
        assert!(matches!(missing, Err(RuntimeError::Start { exit_code: 127, .. })), "{missing:?}");
        node.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        node.exit(&id).await;
        let ended = run("true", PATIENCE).await;
        assert!(matches!(ended, Err(RuntimeError::NotFound(_))), "{ended:?}");
    }
}

#[tokio::test]
async fn an_attached_client_talks_to_the_container_itself() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let script = "while read line; do echo got $line; done; echo end >&2; exit 8";
        let id = node
            .start_with(&pod, script, |config| {
                config.stdin = true;
                config.stdin_once = true;
            })
            .await
            .unwrap()
            .id;
        let (io, mut client) = streams(false);
        let task = tokio::spawn(node.runtime.attach(id.clone(), io));
        let mut stdin = client.stdin.take().unwrap();
        stdin.write_all(b"one\n").await.unwrap();
        let mut line = [0; 8];
        client.stdout.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"got one\n", "{level}");
        drop(stdin);
        assert_eq!(text(&mut client.stderr).await, "end\n");
        assert_eq!(end(task).await, 8);
        assert_eq!(node.exit(&id).await.exit_code, 8);
        assert_eq!(node.log(&id).await, "got one\nend\n");
    }
}

#[tokio::test]
async fn a_container_on_a_terminal_is_attached_and_logged() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node
            .start_with(&pod, "read line; echo got $line; tty; exit 2", |config| {
                config.stdin = true;
                config.tty = true;
            })
            .await
            .unwrap()
            .id;
        let (io, mut client) = streams(true);
        let task = tokio::spawn(node.runtime.attach(id.clone(), io));
        client.stdin.as_mut().unwrap().write_all(b"typed\n").await.unwrap();
        let output = text(&mut client.stdout).await;
        assert!(output.contains("got typed\r\n"), "{level}: {output}");
        assert_eq!(end(task).await, 2);
        assert!(node.log(&id).await.contains("/dev/pts/"));
    }
}

#[tokio::test]
async fn a_port_of_a_pod_is_forwarded() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        if !std::path::Path::new("/usr/bin/python3").exists() {
            berth_testing::skip("python3 is not installed");
            return;
        }
        let pod = node.sandbox().await;
        let script = "import socket; s = socket.create_server(('127.0.0.1', 0)); \
                      print(s.getsockname()[1], flush=True); c = s.accept()[0]\n\
                      while d := c.recv(65536): c.sendall(d.upper())\n\
                      c.sendall(b'END')";
        let id = node
            .start_with(&pod, "", |config| config.command = words(&["/usr/bin/python3", "-c", script]))
            .await
            .unwrap()
            .id;
        let port: u16 = eventually(|| async { node.log(&id).await.trim().parse().ok() }).await;
        let (server, mut client) = duplex(64 << 10);
        let stream: Box<dyn Duplex> = Box::new(server);
        let task = tokio::spawn(node.runtime.port_forward(pod.clone(), port, stream));
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(text(&mut client).await, "HELLOEND", "{level}");
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
        let (server, _client) = duplex(1);
        let refused = node.runtime.port_forward(pod, 1, Box::new(server)).await;
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("port 1"), "{message}");
    }
    let _ = std::io::stderr().flush();
}

#[tokio::test]
async fn a_forwarded_connection_ends_when_the_program_closes_it() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return berth_testing::skip("python3 is not installed");
    }
    let Some(node) = Node::open(Level::Plain).await else { return };
    let pod = node.sandbox().await;
    let script = "import socket; s = socket.create_server(('127.0.0.1', 0)); \
                  print(s.getsockname()[1], flush=True); c = s.accept()[0]; c.recv(1); c.sendall(b'bye'); c.close()\n\
                  while True: s.accept()";
    let server = node.start_with(&pod, "", |config| config.command = words(&["/usr/bin/python3", "-c", script]));
    let id = server.await.unwrap().id;
    let port: u16 = eventually(|| async { node.log(&id).await.trim().parse().ok() }).await;
    let (server, mut client) = duplex(64 << 10);
    let stream: Box<dyn Duplex> = Box::new(server);
    let task = tokio::spawn(node.runtime.port_forward(pod, port, stream));
    client.write_all(b"x").await.unwrap();
    assert_eq!(text(&mut client).await, "bye");
    // The client has not closed its side of the connection.
    tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
    drop(client);
}

#[tokio::test]
async fn a_port_of_the_host_is_not_reachable_through_a_pod() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let pod = node.sandbox().await;
    let (server, _client) = duplex(1);
    let port = listener.local_addr().unwrap().port();
    assert!(node.runtime.port_forward(pod, port, Box::new(server)).await.is_err());
}
