//! The runtime's side of commands, attachments and forwarded ports: copies data between a client's
//! streams and pipes whose other ends belong to a container.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{
    ContainerId, Duplex, ExecOutput, ExitStatus, Input, Output, Result, RuntimeError, StreamIo, TerminalSize,
};
use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::Winsize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use super::supervisor::{Connection, gone};
use crate::folder::PodFolder;
use crate::protocol::{AttachStreams, Reply, Request};
use crate::terminal::Terminal;

/// Number of bytes to copy at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Maximum output of a command that runs without a client, as in kubelets.
const OUTPUT_BYTES_MAX: usize = 10 << 10;

/// Time limit for copying a client's last input after the program has closed its side of a
/// forwarded connection, as in other container runtimes.
const LAST_INPUT: Duration = Duration::from_secs(1);

fn internal(error: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::Internal(error.to_string())
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC).map_err(internal)
}

/// Runs a command with a client's streams.
pub(super) async fn exec(folder: PodFolder, id: ContainerId, command: Vec<String>, io: StreamIo) -> Result<ExitStatus> {
    let request = Request::Exec { id, command, tty: io.tty };
    if io.tty {
        let connection = Connection::open(&folder, &request, &[]).await?;
        let terminal = begin(&folder, &connection).await?.ok_or_else(|| internal("the command has no terminal"))?;
        return exec_on_terminal(&folder, &connection, terminal, io).await;
    }
    let (stdin, own_stdin) = if io.stdin.is_some() {
        let (read, write) = new_pipe()?;
        (read, Some(pipe::Sender::from_owned_fd(write).map_err(internal)?))
    } else {
        (null()?, None)
    };
    let (stdout, own_stdout) = output_pipe(io.stdout.is_some())?;
    let (stderr, own_stderr) = output_pipe(io.stderr.is_some())?;
    let connection = Connection::open(&folder, &request, &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]).await?;
    drop((stdin, stdout, stderr));
    begin(&folder, &connection).await?;
    let (exited, has_exited) = watch::channel(false);
    let outputs = async {
        tokio::try_join!(
            copy_out(own_stdout, io.stdout, has_exited.clone()),
            copy_out(own_stderr, io.stderr, has_exited.clone())
        )
    };
    let end = async {
        let code = finish(&folder, &connection).await;
        exited.send_replace(true);
        code
    };
    let work = async {
        let (outputs, code) = tokio::join!(outputs, end);
        // If the client stops reading, the result of the command does not change.
        outputs.map_err(internal)?;
        code
    };
    tokio::select! {
        code = work => code,
        never = copy_in(io.stdin, own_stdin) => match never {},
    }
}

/// Waits for the start of a command or attachment. Returns its terminal.
async fn begin(folder: &PodFolder, connection: &Connection) -> Result<Option<OwnedFd>> {
    match connection.next().await {
        Some((Reply::Done, mut fds)) => Ok(fds.pop()),
        Some((Reply::Error(error), _)) => Err(error.into()),
        Some(_) => Err(internal("the supervisor sent an unexpected response")),
        None => Err(gone(folder)),
    }
}

async fn finish(folder: &PodFolder, connection: &Connection) -> Result<ExitStatus> {
    match connection.next().await {
        Some((Reply::Exited { code }, _)) => Ok(ExitStatus { code }),
        Some((Reply::Error(error), _)) => Err(error.into()),
        Some(_) => Err(internal("the supervisor sent an unexpected response")),
        None => Err(gone(folder)),
    }
}

fn null() -> Result<OwnedFd> {
    let file = std::fs::File::options().read(true).write(true).open("/dev/null").map_err(internal)?;
    Ok(OwnedFd::from(file))
}

fn output_pipe(is_wanted: bool) -> Result<(OwnedFd, Option<pipe::Receiver>)> {
    if !is_wanted {
        return Ok((null()?, None));
    }
    let (read, write) = new_pipe()?;
    Ok((write, Some(pipe::Receiver::from_owned_fd(read).map_err(internal)?)))
}

/// Copies a client's input. Closes the pipe when the input ends, then waits forever.
async fn copy_in(stdin: Option<Input>, pipe: Option<pipe::Sender>) -> std::convert::Infallible {
    if let (Some(mut stdin), Some(mut pipe)) = (stdin, pipe) {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(read @ 1..) = stdin.read(&mut buffer).await {
            if pipe.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    }
    std::future::pending().await
}

/// Copies a command's output until it ends. Once the command has exited, only the data already in
/// the pipe is copied, because a process that the command left behind may keep the pipe open.
async fn copy_out(
    pipe: Option<pipe::Receiver>,
    output: Option<Output>,
    mut has_exited: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let (Some(mut pipe), Some(mut output)) = (pipe, output) else { return Ok(()) };
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut is_over = false;
    loop {
        let read = if is_over {
            read_now(&pipe, &mut buffer)?
        } else {
            tokio::select! {
                biased;
                read = pipe.read(&mut buffer) => read?,
                _ = has_exited.wait_for(|exited| *exited) => {
                    is_over = true;
                    continue;
                }
            }
        };
        if read == 0 {
            return output.shutdown().await;
        }
        output.write_all(&buffer[..read]).await?;
        output.flush().await?;
    }
}

/// Reads what is in a pipe without waiting; 0 if there is nothing.
///
/// `try_read` reads nothing before the runtime has noticed the data, and it may notice the end of
/// the command first.
fn read_now(pipe: &pipe::Receiver, buffer: &mut [u8]) -> std::io::Result<usize> {
    match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut *buffer)) {
        Err(rustix::io::Errno::AGAIN) => Ok(0),
        read => Ok(read?),
    }
}

async fn exec_on_terminal(
    folder: &PodFolder,
    connection: &Connection,
    terminal: OwnedFd,
    io: StreamIo,
) -> Result<ExitStatus> {
    let terminal = Terminal::new(terminal).map_err(internal)?;
    let (exited, has_exited) = watch::channel(false);
    let work = async {
        let output = read_terminal(&terminal, io.stdout, has_exited);
        let end = async {
            let code = finish(folder, connection).await;
            exited.send_replace(true);
            code
        };
        let (output, code) = tokio::join!(output, end);
        output.map_err(internal)?;
        code
    };
    tokio::select! {
        code = work => code,
        never = write_terminal(&terminal, io.stdin) => match never {},
        never = resize(terminal.as_fd(), io.resize) => match never {},
    }
}

async fn read_terminal(
    terminal: &Terminal,
    output: Option<Output>,
    mut has_exited: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut output = output;
    let mut is_over = false;
    loop {
        let read = if is_over {
            terminal.read_now(&mut buffer)
        } else {
            tokio::select! {
                biased;
                read = terminal.read(&mut buffer) => read,
                _ = has_exited.wait_for(|exited| *exited) => {
                    is_over = true;
                    continue;
                }
            }
        };
        match &mut output {
            Some(output) if read == 0 => return output.shutdown().await,
            Some(output) => {
                output.write_all(&buffer[..read]).await?;
                output.flush().await?;
            }
            None if read == 0 => return Ok(()),
            None => {}
        }
    }
}

async fn write_terminal(terminal: &Terminal, stdin: Option<Input>) -> std::convert::Infallible {
    if let Some(mut stdin) = stdin {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(read @ 1..) = stdin.read(&mut buffer).await {
            if terminal.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    }
    std::future::pending().await
}

/// Applies the sizes of the client's terminal.
async fn resize(terminal: BorrowedFd<'_>, sizes: Option<mpsc::Receiver<TerminalSize>>) -> std::convert::Infallible {
    if let Some(mut sizes) = sizes {
        while let Some(size) = sizes.recv().await {
            let size = Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
    }
    std::future::pending().await
}

/// Runs a command without a client and returns its output.
pub(super) async fn exec_sync(folder: PodFolder, id: ContainerId, command: Vec<String>) -> Result<ExecOutput> {
    let collected = Arc::new(Mutex::new(Vec::new()));
    let output = || -> Option<Output> { Some(Box::new(Collect(collected.clone()))) };
    let io = StreamIo { stdin: None, stdout: output(), stderr: output(), tty: false, resize: None };
    let status = exec(folder, id, command, io).await?;
    let output = std::mem::take(&mut *collected.lock());
    Ok(ExecOutput { exit_code: status.code, output })
}

/// Keeps the first bytes that are written to it, and discards the rest.
struct Collect(Arc<Mutex<Vec<u8>>>);

impl tokio::io::AsyncWrite for Collect {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        let mut collected = self.0.lock();
        let kept = bytes.len().min(OUTPUT_BYTES_MAX - collected.len());
        collected.extend_from_slice(&bytes[..kept]);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

/// Connects a client's streams to those of a container.
pub(super) async fn attach(folder: PodFolder, id: ContainerId, io: StreamIo) -> Result<ExitStatus> {
    let streams = AttachStreams { stdin: io.stdin.is_some(), stdout: io.stdout.is_some(), stderr: io.stderr.is_some() };
    let mut fds = Vec::new();
    let mut outputs = Vec::new();
    for output in [io.stdout, io.stderr].into_iter().flatten() {
        let (read, write) = new_pipe()?;
        fds.push(write);
        outputs.push((pipe::Receiver::from_owned_fd(read).map_err(internal)?, output));
    }
    let mut own_stdin = None;
    if streams.stdin {
        let (read, write) = new_pipe()?;
        fds.push(read);
        own_stdin = Some(pipe::Sender::from_owned_fd(write).map_err(internal)?);
    }
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let connection = Connection::open(&folder, &Request::Attach { id, streams }, &borrowed).await?;
    drop(fds);
    let terminal = begin(&folder, &connection).await?;
    let copies = outputs.into_iter().map(|(mut pipe, mut output)| async move {
        let copied = copy_until_end(&mut pipe, &mut output).await;
        let _ = output.shutdown().await;
        copied
    });
    let work = async {
        let (copied, code) = tokio::join!(futures::future::try_join_all(copies), finish(&folder, &connection));
        copied.map_err(internal)?;
        code
    };
    let resizing = async {
        match &terminal {
            Some(terminal) => resize(terminal.as_fd(), io.resize).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        code = work => code,
        never = copy_in(io.stdin, own_stdin) => match never {},
        never = resizing => match never {},
    }
}

async fn copy_until_end(from: &mut (impl AsyncRead + Unpin), to: &mut Output) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

/// Connects a client's stream to a port of the pod, until both directions have ended.
pub(super) async fn port_forward(folder: PodFolder, port: u16, stream: Box<dyn Duplex>) -> Result<()> {
    let connection = Connection::open(&folder, &Request::Connect { port }, &[]).await?;
    let socket = begin(&folder, &connection).await?.ok_or_else(|| internal("the supervisor sent no socket"))?;
    let socket = std::net::TcpStream::from(socket);
    socket.set_nonblocking(true).map_err(internal)?;
    join(stream, TcpStream::from_std(socket).map_err(internal)?).await.map_err(internal)
}

/// Copies in both directions until the pod's program has closed the connection. The client may
/// close its side earlier. Some clients (such as the Python client) close theirs only when the
/// whole session ends.
async fn join(client: Box<dyn Duplex>, pod: TcpStream) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_pod, mut to_pod) = pod.into_split();
    let sending = async {
        // A program that no longer reads may still write.
        let _ = tokio::io::copy(&mut from_client, &mut to_pod).await;
        let _ = to_pod.shutdown().await;
    };
    let receiving = async {
        tokio::io::copy(&mut from_pod, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::pin!(sending, receiving);
    tokio::select! {
        () = &mut sending => receiving.await,
        received = &mut receiving => {
            let _ = tokio::time::timeout(LAST_INPUT, sending).await;
            received
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_of_a_command_that_has_exited_is_complete_although_the_pipe_stays_open() {
        let (read, write) = new_pipe().expect("a pipe");
        let pipe = pipe::Receiver::from_owned_fd(read).expect("a receiver");
        // The runtime is not polled between this write and the copy.
        rustix::io::write(&write, b"last").expect("room in the pipe");
        let (output, mut client) = tokio::io::duplex(64);
        let (_exited, has_exited) = watch::channel(true);
        copy_out(Some(pipe), Some(Box::new(output)), has_exited).await.expect("a copy");
        let mut copied = String::new();
        client.read_to_string(&mut copied).await.expect("text");
        assert_eq!(copied, "last");
    }
}
