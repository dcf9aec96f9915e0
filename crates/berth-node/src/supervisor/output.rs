//! The output of a container: reads it, logs it, and copies it to attached clients.

use std::cell::RefCell;
use std::rc::Rc;

use berth_pod_runtime::StreamName;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

use crate::log::{LogFile, StreamWriter};
use crate::terminal::Terminal;
use crate::time::now;

/// Number of bytes to read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Number of chunks by which an attached client may lag. A slower client is disconnected, so that
/// it cannot stop the container.
const LAG_MAX: usize = 64;

/// The output of a container, and its input if it has one.
pub(super) struct Output {
    log: RefCell<LogFile>,
    sinks: RefCell<Vec<Sink>>,
    pub stdin: Mutex<Option<Stdin>>,
    pub terminal: Option<Rc<Terminal>>,
    pumps: RefCell<Vec<JoinHandle<()>>>,
}

/// The container's end of an input stream.
pub(super) enum Stdin {
    Pipe(pipe::Sender),
    Terminal(Rc<Terminal>),
}

struct Sink {
    stream: StreamName,
    sender: mpsc::Sender<Bytes>,
}

impl Output {
    pub fn new(log: LogFile, stdin: Option<Stdin>, terminal: Option<Rc<Terminal>>) -> Rc<Self> {
        Rc::new(Self {
            log: RefCell::new(log),
            sinks: RefCell::default(),
            stdin: Mutex::new(stdin),
            terminal,
            pumps: RefCell::default(),
        })
    }

    /// Reads a pipe until its end.
    pub fn pump_pipe(self: &Rc<Self>, stream: StreamName, mut pipe: pipe::Receiver) {
        let output = self.clone();
        let pump = tokio::task::spawn_local(async move {
            let mut writer = StreamWriter::new(stream);
            let mut buffer = vec![0; CHUNK_BYTES];
            while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
                output.write(&mut writer, stream, &buffer[..read]);
            }
            let _ = writer.finish(&mut output.log.borrow_mut(), now());
        });
        self.pumps.borrow_mut().push(pump);
    }

    /// Reads a terminal until no process has it open any more.
    pub fn pump_terminal(self: &Rc<Self>, terminal: Rc<Terminal>) {
        let output = self.clone();
        let pump = tokio::task::spawn_local(async move {
            let mut writer = StreamWriter::new(StreamName::Stdout);
            let mut buffer = vec![0; CHUNK_BYTES];
            loop {
                let read = terminal.read(&mut buffer).await;
                if read == 0 {
                    break;
                }
                output.write(&mut writer, StreamName::Stdout, &buffer[..read]);
            }
            let _ = writer.finish(&mut output.log.borrow_mut(), now());
        });
        self.pumps.borrow_mut().push(pump);
    }

    fn write(&self, writer: &mut StreamWriter, stream: StreamName, bytes: &[u8]) {
        // If the disk is full, log lines are lost, but the container continues.
        let _ = writer.write(&mut self.log.borrow_mut(), now(), bytes);
        let mut sinks = self.sinks.borrow_mut();
        if sinks.is_empty() {
            return;
        }
        let bytes = Bytes::copy_from_slice(bytes);
        sinks.retain(|sink| sink.stream != stream || sink.sender.try_send(bytes.clone()).is_ok());
    }

    /// Copies the future output of a stream to a client.
    pub fn subscribe(&self, stream: StreamName) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(LAG_MAX);
        self.sinks.borrow_mut().push(Sink { stream, sender });
        receiver
    }

    /// Waits until the output has been read to its end.
    pub async fn drain(&self) {
        let pumps: Vec<JoinHandle<()>> = self.pumps.borrow_mut().drain(..).collect();
        for mut pump in pumps {
            // A process that escaped may keep the pipe open. Output from before the container's end
            // is in the pipe, and is read as long as the pump makes progress.
            if tokio::time::timeout(std::time::Duration::from_millis(500), &mut pump).await.is_err() {
                pump.abort();
                let _ = pump.await;
            }
        }
        // This ends the streams of attached clients.
        self.sinks.borrow_mut().clear();
    }
}

impl Stdin {
    /// Writes all bytes, as fast as the container reads them.
    pub async fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.write_all(bytes).await,
            Self::Terminal(terminal) => terminal.write_all(bytes).await,
        }
    }
}
