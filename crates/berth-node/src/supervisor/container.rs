//! One run of a container: its start, the records about it, and its end.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use berth_helper::wire::{receive, send};
use berth_pod_runtime::{
    ContainerConfig, ContainerId, ContainerState, ContainerStatus, Exit, StreamName, TerminationMessagePolicy,
};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use tokio::net::unix::pipe;

use super::kill;
use super::output::{Output, Stdin};
use super::pod::{Container, Live, Pause, Pod};
use super::setup::shared_memory;
use super::spawn::{Ended, Helper, PidNamespace};
use crate::cgroup::{DeviceNumber, Group};
use crate::folder::TERMINATION;
use crate::journal::Record;
use crate::log::{FILE_BYTES_MAX, LogFile, tail_text};
use crate::options::Level;
use crate::processes::ProcessId;
use crate::protocol::{ContainerEntry, Entry, Go, Report, WireError};
use crate::terminal::Terminal;
use crate::time::now;
use crate::{tree, volumes};

/// Maximum size of a termination message in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Part of a log that serves as a termination message: maximum number of lines, and of bytes.
const MESSAGE_LOG: (usize, usize) = (80, 2048);

/// Standard streams of a program, and the supervisor's ends of their pipes.
struct Streams {
    program: Vec<OwnedFd>,
    stdin: Option<pipe::Sender>,
    outputs: Vec<(StreamName, pipe::Receiver)>,
}

/// The mount namespace of a container. It exists until this value is dropped.
///
/// Otherwise the last process of the container would remove the mounts when it ends, with the CPU
/// time that the container may use. While it waits for CPU time, it holds the kernel's lock of all
/// mounts, for which the starts of all other containers wait.
struct Mounts {
    _namespace: Option<std::fs::File>,
}

impl Mounts {
    /// The namespace of a process. Where it cannot be opened, the kernel removes the mounts at the
    /// end of the container.
    fn of(pid: u32) -> Self {
        Self { _namespace: std::fs::File::open(format!("/proc/{pid}/ns/mnt")).ok() }
    }
}

/// Starts one run of a container, unless this run was started before.
pub(super) async fn start(pod: &Rc<Pod>, config: ContainerConfig) -> Result<ContainerStatus, WireError> {
    let _starting = pod.starting.lock().await;
    if let Some(known) = pod.find(&config.id) {
        return known.error.clone().map_or_else(|| Ok(known.status()), Err);
    }
    if pod.is_stopping() {
        return Err(WireError::NotFound(format!("pod {}: the sandbox is being stopped", config.id.pod)));
    }
    crate::folder::check_name("container", &config.id.name).map_err(WireError::from)?;
    let folder = pod.folder.container(&config.id);
    tree::remove(&folder)?;
    std::fs::create_dir_all(&folder)?;
    let group = make_group(pod, &config)?;
    match launch(pod, &config, folder, group.clone()).await {
        Ok(status) => {
            forget_old_logs(pod, &config.id);
            Ok(status)
        }
        Err(error) => {
            if let Some(group) = group {
                let _ = tokio::task::spawn_blocking(move || group.kill() && group.remove().is_ok()).await;
            }
            Err(error)
        }
    }
}

async fn launch(
    pod: &Rc<Pod>,
    config: &ContainerConfig,
    folder: PathBuf,
    group: Option<Group>,
) -> Result<ContainerStatus, WireError> {
    let log = LogFile::open(&pod.folder.log(&config.id), FILE_BYTES_MAX)?;
    let streams = if config.tty { None } else { Some(open_streams(config.stdin)?) };
    let namespace = pid_namespace(pod, config).await?;
    let helper = pod.children.start(&pod.init, namespace)?;
    let score = oom_score(config, pod.launch.machine_memory_bytes).to_string();
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", helper.pid), score);
    let entry = Entry::Container(Box::new(entry(pod, config, folder, group.as_ref())));
    let fds: Vec<BorrowedFd<'_>> = streams.iter().flat_map(|streams| &streams.program).map(AsFd::as_fd).collect();
    send(&helper.control, &entry, &fds).await?;
    let (program, terminal) = match receive::<Report>(&helper.control).await? {
        Some((Report::Ready(program), mut fds)) => (program, fds.pop()),
        Some((Report::Failed(error), _)) => return Err(error),
        None => return Err(killed_in_setup(helper).await),
    };
    let mounts = Mounts::of(helper.pid);
    let id = config.id.clone();
    let process = ProcessId::of(helper.pid).ok_or_else(|| WireError::Internal(format!("container {id} has ended")))?;
    let started_at = now();
    let image_id = config.image.id.clone();
    pod.record(&Record::Started { id: id.clone(), image_id: image_id.clone(), process, at: started_at })?;
    send(&helper.control, &Go, &[]).await?;
    if let Ok(Some((Report::Failed(error), _))) = receive::<Report>(&helper.control).await {
        let error = add_failed(pod, &id, image_id, started_at, error);
        let _ = helper.ended.await;
        return Err(error);
    }
    let terminal = terminal.map(Terminal::new).transpose()?.map(Rc::new);
    let (stdin, outputs) = match streams {
        Some(streams) => (streams.stdin.map(Stdin::Pipe), streams.outputs),
        None => (terminal.clone().filter(|_| config.stdin).map(Stdin::Terminal), Vec::new()),
    };
    let output = Output::new(log, stdin, terminal.clone());
    for (stream, pipe) in outputs {
        output.pump_pipe(stream, pipe);
    }
    if let Some(terminal) = terminal {
        output.pump_terminal(terminal);
    }
    let live = Rc::new(Live {
        config: config.clone(),
        limits: Cell::new(config.limits),
        pid: helper.pid,
        handle: helper.handle,
        group,
        program,
        output,
        is_over_limit: Cell::new(false),
    });
    let status = ContainerStatus { id, image_id, state: ContainerState::Running { started_at } };
    let container = Rc::new(Container::new(status.clone(), None, Some(live.clone())));
    pod.add(container.clone());
    let pod = pod.clone();
    tokio::task::spawn_local(async move {
        let ended = helper.ended.await.unwrap_or(Ended { code: 137, signal: Some(9) });
        finish(&pod, &container, &live, mounts, started_at, ended).await;
    });
    Ok(status)
}

/// The error if the helper ended without a report. The kernel killed it, for example because the
/// container's memory limit is too small for it.
async fn killed_in_setup(helper: Helper) -> WireError {
    let ended = helper.ended.await.ok();
    let message = match ended.and_then(|ended| ended.signal) {
        Some(9) => "the container was killed while it was set up: its memory limit may be too small".to_owned(),
        _ => format!("the container ended while it was set up: {ended:?}"),
    };
    WireError::Start { exit_code: 128, message }
}

/// Records that a program could not be executed.
fn add_failed(
    pod: &Rc<Pod>,
    id: &ContainerId,
    image_id: String,
    started_at: jiff::Timestamp,
    error: WireError,
) -> WireError {
    let exit_code = if let WireError::Start { exit_code, .. } = &error { *exit_code } else { 128 };
    let exit =
        Exit { started_at, finished_at: now(), exit_code, signal: None, oom_killed: false, message: error.to_string() };
    pod.record_later(Record::Failed { id: id.clone(), error: error.clone(), exit: exit.clone() });
    let status = ContainerStatus { id: id.clone(), image_id, state: ContainerState::Exited(exit) };
    pod.add(Rc::new(Container::new(status, Some(error.clone()), None)));
    error
}

/// Kills the processes that the program left behind, and records the program's end.
async fn finish(
    pod: &Rc<Pod>,
    container: &Container,
    live: &Rc<Live>,
    mounts: Mounts,
    started_at: jiff::Timestamp,
    ended: Ended,
) {
    let finished_at = now();
    kill::kill_leftovers(pod, live).await;
    live.output.drain().await;
    let is_out_of_memory = live.group.as_ref().is_some_and(|group| group.oom_kills() > 0) && ended.code != 0;
    let exit = Exit {
        started_at,
        finished_at,
        exit_code: ended.code,
        signal: ended.signal,
        oom_killed: is_out_of_memory || live.is_over_limit.get(),
        message: termination_message(pod, &live.config, ended.code),
    };
    pod.record_later(Record::Exited { id: live.config.id.clone(), exit: exit.clone() });
    pod.end(container, ContainerState::Exited(exit), ended.code);
    let (group, folder) = (live.group.clone(), pod.folder.container(&live.config.id));
    // Files that the container wrote outside of volumes are no longer needed. They are removed
    // first, because the kernel would keep the group as long as their pages are in the file cache.
    let _ = tokio::task::spawn_blocking(move || {
        drop(mounts);
        let _ = tree::remove(&folder.join(TERMINATION));
        // Empty folders take no space worth a wait for the disk. They are removed with the pod.
        let upper = folder.join("upper");
        if std::fs::read_dir(&upper).is_ok_and(|mut entries| entries.next().is_some()) {
            for part in [upper, folder.join("work"), folder.join("root")] {
                let _ = tree::remove(&part);
            }
        }
        if let Some(group) = group {
            let _ = group.remove();
        }
    })
    .await;
}

/// The control group of a container.
fn make_group(pod: &Pod, config: &ContainerConfig) -> Result<Option<Group>, WireError> {
    let Some(parent) = &pod.launch.group else { return Ok(None) };
    let group = parent.child(&format!("{}-{}", config.id.name, config.id.attempt));
    group.create()?;
    group.limit(&config.limits, None)?;
    if !config.security.privileged && pod.launch.level == Level::Full {
        let numbers: Vec<DeviceNumber> =
            config.devices.iter().flat_map(|device| &device.paths).filter_map(|path| device_number(path)).collect();
        group.restrict_devices(&numbers)?;
    }
    Ok(Some(group))
}

fn device_number(path: &Path) -> Option<DeviceNumber> {
    let stat = rustix::fs::stat(path).ok()?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_block = kind == FileType::BlockDevice;
    (is_block || kind == FileType::CharacterDevice).then(|| DeviceNumber {
        is_block,
        major: rustix::fs::major(stat.st_rdev),
        minor: rustix::fs::minor(stat.st_rdev),
    })
}

fn open_streams(has_stdin: bool) -> Result<Streams, WireError> {
    let (stdin, own_stdin) = if has_stdin {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
        (read, Some(pipe::Sender::from_owned_fd(write)?))
    } else {
        (OwnedFd::from(std::fs::File::open("/dev/null")?), None)
    };
    let mut program = vec![stdin];
    let mut outputs = Vec::new();
    for stream in [StreamName::Stdout, StreamName::Stderr] {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
        program.push(write);
        outputs.push((stream, pipe::Receiver::from_owned_fd(read)?));
    }
    Ok(Streams { program, stdin: own_stdin, outputs })
}

/// The PID namespace of a new container.
async fn pid_namespace(pod: &Rc<Pod>, config: &ContainerConfig) -> Result<PidNamespace, WireError> {
    if pod.launch.level == Level::Plain || pod.launch.config.host_pid {
        return Ok(PidNamespace::Inherited);
    }
    if pod.launch.config.share_process_namespace {
        return Ok(PidNamespace::Of(pause(pod).await?));
    }
    let Some(target) = &config.target else { return Ok(PidNamespace::New) };
    let live = pod.live_by_name(target);
    let live = live.ok_or_else(|| WireError::Config(format!("target container {target:?} does not run")))?;
    Ok(PidNamespace::Of(live.handle.try_clone()?))
}

/// The first process of the shared PID namespace. It is started when it is first needed.
async fn pause(pod: &Rc<Pod>) -> Result<OwnedFd, WireError> {
    if let Some(pause) = &*pod.pause.borrow() {
        return Ok(pause.handle.try_clone()?);
    }
    let helper = pod.children.start(&pod.init, PidNamespace::New)?;
    let group = pod.launch.group.as_ref().map(|parent| parent.child("pause"));
    group.iter().try_for_each(Group::create)?;
    send(&helper.control, &Entry::Pause(group), &[]).await?;
    match receive::<Report>(&helper.control).await? {
        Some((Report::Ready(_), _)) => {}
        Some((Report::Failed(error), _)) => return Err(error),
        None => return Err(WireError::Internal("the first process of the pod ended".to_owned())),
    }
    send(&helper.control, &Go, &[]).await?;
    let handle = helper.handle.try_clone()?;
    *pod.pause.borrow_mut() = Some(Pause { handle: helper.handle, _control: helper.control });
    Ok(handle)
}

fn entry(pod: &Pod, config: &ContainerConfig, folder: PathBuf, group: Option<&Group>) -> ContainerEntry {
    let launch = &pod.launch;
    ContainerEntry {
        config: config.clone(),
        level: launch.level,
        folder,
        etc: pod.folder.etc(),
        volumes: volumes::sources(&pod.folder, &launch.config),
        hidden: launch.hidden.clone(),
        host_root: launch.host_root,
        shm: shared_memory(&pod.folder),
        host_network: !launch.has_network_namespace(),
        group: group.cloned(),
        hostname: launch.config.hostname.clone(),
        cookie: launch.config.uid.0.clone(),
    }
}

/// Score for the kernel's choice of a process to kill when memory runs out. A process with score
/// 1000 is killed first. The rule of kubelets: containers without requests first, then those that
/// requested the smallest share of the machine's memory.
fn oom_score(config: &ContainerConfig, machine_memory_bytes: u64) -> i64 {
    let limits = &config.limits;
    match (limits.memory_request_bytes, limits.memory_bytes) {
        (0, None) => 1000,
        (request, Some(limit)) if request == limit && limits.cpu_milli == Some(limits.cpu_request_milli) => -997,
        (request, _) => {
            let share = u128::from(request) * 1000 / u128::from(machine_memory_bytes.max(1));
            (1000 - i64::try_from(share).unwrap_or(1000)).clamp(3, 999)
        }
    }
}

fn termination_message(pod: &Pod, config: &ContainerConfig, code: i32) -> String {
    let path = pod.folder.container(&config.id).join(TERMINATION);
    let message = read_message(&path).unwrap_or_default();
    let falls_back = config.termination_message_policy == TerminationMessagePolicy::FallbackToLogsOnError;
    if message.is_empty() && falls_back && code != 0 {
        return tail_text(&pod.folder.log(&config.id), MESSAGE_LOG.0, MESSAGE_LOG.1).unwrap_or_default();
    }
    message
}

/// Reads the start of a termination message. Berth creates a regular file, but a container at the
/// plain level may replace it with a link to another file or with a pipe that never ends.
fn read_message(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut bytes = Vec::new();
    let mut start = std::io::Read::take(std::fs::File::from(file), MESSAGE_BYTES_MAX as u64);
    std::io::Read::read_to_end(&mut start, &mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Removes the logs of runs before the previous one. As in kubelets, only one ended run keeps its
/// log.
fn forget_old_logs(pod: &Pod, id: &ContainerId) {
    let Some(attempt) = id.attempt.checked_sub(2) else { return };
    let old = ContainerId { attempt, ..id.clone() };
    let _ = crate::log::remove(&pod.folder.log(&old));
    let _ = tree::remove(&pod.folder.container(&old));
}

/// Sends a container its stop signal, and SIGKILL after `grace`.
pub(super) fn stop(pod: &Rc<Pod>, id: &ContainerId, grace: Duration) -> Result<(), WireError> {
    let container = pod.find(id).ok_or_else(|| WireError::NotFound(format!("container {id} was not started")))?;
    let Some(live) = container.live() else { return Ok(()) };
    if !grace.is_zero() {
        live.signal(stop_signal(&live.config.image.stop_signal));
    }
    tokio::task::spawn_local(async move {
        if tokio::time::timeout(grace, container.ended()).await.is_err() {
            live.signal(Signal::KILL);
            kill::kill_all(live).await;
        }
    });
    Ok(())
}

/// The signal for an image's `STOPSIGNAL`, which is a name with or without `SIG`, or a number.
fn stop_signal(name: &str) -> Signal {
    let named = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("KILL", Signal::KILL),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("TERM", Signal::TERM),
        ("WINCH", Signal::WINCH),
        ("ABRT", Signal::ABORT),
    ];
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_number = || short.parse().ok().and_then(Signal::from_named_raw);
    named
        .iter()
        .find(|(other, _)| *other == short)
        .map(|(_, signal)| *signal)
        .or_else(by_number)
        .unwrap_or(Signal::TERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals_are_names_or_numbers() {
        for (name, signal) in
            [("", Signal::TERM), ("SIGINT", Signal::INT), ("quit", Signal::QUIT), ("10", Signal::USR1)]
        {
            assert_eq!(stop_signal(name), signal, "{name}");
        }
    }
}
