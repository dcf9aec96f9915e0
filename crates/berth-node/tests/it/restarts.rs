//! Restarts of the runtime and ends of supervisors.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use berth_node::Level;
use berth_pod_runtime::{ContainerConfig, ContainerState, PodRuntime, PodUid, Result, RuntimeError, SandboxNetwork};
use futures::future::BoxFuture;

use crate::harness::{LEVELS, Node, is_alive, processes_with, until};

#[tokio::test]
async fn containers_outlive_the_runtime_and_are_adopted() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id =
            node.start(&pod, "echo begin; while ! test -e $PROCEED/go; do sleep 0.05; done; echo end; exit 5").await;
        node.wait_for_log(&id, "begin").await;
        let short = node.sandbox().await;
        let ended = node.start(&short, "exit 4").await;
        let node = node.reopen().await;
        assert!(node.runtime.pod(&pod).unwrap().is_ready);
        assert!(matches!(node.container_state(&id), Some(ContainerState::Running { .. })), "{level}");
        assert_eq!(node.exit(&ended).await.exit_code, 4);
        let output = node
            .runtime
            .exec_sync(&id, &["sh", "-c", "echo in"].map(str::to_owned), crate::harness::PATIENCE)
            .await
            .unwrap();
        assert_eq!(output.output, b"in\n");
        node.runtime.stop_container(&id, std::time::Duration::ZERO).await.unwrap();
        assert_eq!(node.exit(&id).await.exit_code, 137);
        assert_eq!(node.log(&id).await, "begin\n");
    }
}

#[tokio::test]
async fn an_end_while_no_runtime_runs_is_found_later() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "echo up; read line; exit 6").await;
        node.wait_for_log(&id, "up").await;
        let node = node.reopen().await;
        assert_eq!(node.exit(&id).await.exit_code, 6, "{level}");
    }
}

#[tokio::test]
async fn a_killed_supervisor_leaves_unknown_containers_and_no_processes() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "(setsid sleep 86398 &); echo up; exec sleep 86397").await;
        node.wait_for_log(&id, "up").await;
        until(|| !processes_with("sleep\086397").is_empty() && !processes_with("sleep\086398").is_empty()).await;
        let supervisor = node.supervisor(&pod);
        kill(supervisor);
        until(|| !is_alive(supervisor)).await;
        until(|| node.runtime.pod(&pod).is_some_and(|state| !state.is_ready)).await;
        assert!(matches!(node.container_state(&id), Some(ContainerState::Unknown { started_at: Some(_) })), "{level}");
        until(|| processes_with("sleep\086397").is_empty() && processes_with("sleep\086398").is_empty()).await;
        // A new sandbox of the pod knows the lost run and does not start it again.
        let config = crate::harness::sandbox(pod.clone());
        assert!(node.runtime.run_sandbox(&config).await.unwrap().is_ready);
        let again = node.start_with(&pod, "echo again", |_| {}).await.unwrap();
        assert!(matches!(again.state, ContainerState::Unknown { .. }), "{again:?}");
        let next = node.start_with(&pod, "echo next", |config| config.id.attempt = 1).await.unwrap();
        assert_eq!(node.exit(&next.id).await.exit_code, 0);
    }
}

#[tokio::test]
async fn a_supervisor_that_was_killed_while_no_runtime_ran_is_noticed() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "echo up; exec sleep 86396").await;
        node.wait_for_log(&id, "up").await;
        let supervisor = node.supervisor(&pod);
        kill(supervisor);
        until(|| !is_alive(supervisor)).await;
        let node = node.reopen().await;
        assert!(!node.runtime.pod(&pod).unwrap().is_ready);
        assert!(matches!(node.container_state(&id), Some(ContainerState::Unknown { .. })), "{level}");
        until(|| processes_with("sleep\086396").is_empty()).await;
    }
}

#[tokio::test]
async fn a_folder_that_was_never_completed_is_removed() {
    let Some(node) = Node::open(LEVELS[0]).await else { return };
    let half = crate::harness::uid();
    std::fs::create_dir_all(node.pod_folder(&half).join("volumes")).unwrap();
    // The folder of a process that was killed while it probed the isolation levels.
    let probe = node.folder.path().join("node/probe-1");
    std::fs::create_dir_all(probe.join("volumes")).unwrap();
    let node = node.reopen().await;
    assert!(!probe.exists());
    assert!(node.runtime.pod(&half).is_none());
    assert!(!node.pod_folder(&half).exists());
}

/// Files of a pod that a crash of the machine loses, because only the log of starts is synced.
#[derive(Clone, Copy, Debug)]
enum Loss {
    ContentOfConfiguration,
    Configuration,
    ConfigurationAndJournal,
    EndOfJournal,
    Folder,
}

#[tokio::test]
async fn a_program_does_not_start_twice_if_a_crash_of_the_machine_loses_files_of_its_pod() {
    use Loss::{Configuration, ConfigurationAndJournal, ContentOfConfiguration, EndOfJournal, Folder};
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let mut pods = Vec::new();
        for loss in [ContentOfConfiguration, Configuration, ConfigurationAndJournal, EndOfJournal, Folder] {
            let pod = node.sandbox().await;
            let id = node.start(&pod, "echo up; exec sleep 86395").await;
            node.wait_for_log(&id, "up").await;
            let supervisor = node.supervisor(&pod);
            kill(supervisor);
            until(|| !is_alive(supervisor)).await;
            until(|| node.runtime.pod(&pod).is_some_and(|pod| !pod.is_ready)).await;
            let folder = node.pod_folder(&pod);
            let (configuration, journal) = (folder.join("pod.json"), folder.join("journal"));
            match loss {
                ContentOfConfiguration => std::fs::write(configuration, "").unwrap(),
                Configuration => std::fs::remove_file(configuration).unwrap(),
                ConfigurationAndJournal => {
                    std::fs::remove_file(configuration).unwrap();
                    std::fs::remove_file(journal).unwrap();
                }
                EndOfJournal => {
                    let text = std::fs::read_to_string(&journal).unwrap();
                    let lines = text.split_inclusive('\n');
                    let kept: String = lines.take_while(|line| !line.contains(r#""record":"started""#)).collect();
                    assert!(kept.len() < text.len(), "{text}");
                    std::fs::write(journal, kept).unwrap();
                }
                Folder => std::fs::remove_dir_all(folder).unwrap(),
            }
            pods.push((loss, pod, id));
        }
        let starts = node.folder.path().join("node/starts");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let text = std::fs::read_to_string(&starts).unwrap();
        assert!(text.contains(boot.trim()));
        std::fs::write(&starts, text.replace(boot.trim(), "former-boot")).unwrap();
        let node = node.reopen().await;
        for (loss, pod, id) in pods {
            let state = node.runtime.pod(&pod).unwrap_or_else(|| panic!("{level}, {loss:?}: the pod is not known"));
            assert!(!state.is_ready && !state.name.is_empty(), "{state:?}");
            let run = node.container_state(&id);
            assert!(matches!(run, Some(ContainerState::Unknown { .. })), "{level}, {loss:?}: {run:?}");
            node.runtime.remove_sandbox(&pod).await.unwrap();
        }
        until(|| processes_with("sleep\086395").is_empty()).await;
        // The journals have the starts now.
        assert!(!std::fs::read_to_string(&starts).unwrap().contains("former-boot"));
    }
}

#[tokio::test]
async fn a_run_whose_start_failed_may_be_repeated_after_a_crash_of_the_machine() {
    let Some(node) = Node::open(LEVELS[0]).await else { return };
    let pod = node.sandbox().await;
    let missing = |config: &mut ContainerConfig| config.command = vec!["/does/not/exist".to_owned()];
    node.start_with(&pod, "", missing).await.unwrap_err();
    let supervisor = node.supervisor(&pod);
    kill(supervisor);
    until(|| !is_alive(supervisor)).await;
    let starts = node.folder.path().join("node/starts");
    until(|| std::fs::read_to_string(&starts).is_ok_and(|text| text.contains("notStarted"))).await;
    let text = std::fs::read_to_string(&starts).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(&starts, text.replace(boot.trim(), "former-boot")).unwrap();
    std::fs::remove_dir_all(node.pod_folder(&pod)).unwrap();
    let node = node.reopen().await;
    assert!(node.runtime.pod(&pod).is_none());
}

/// A pod network that cannot connect pods while it is broken.
#[derive(Default)]
struct Network {
    is_broken: AtomicBool,
    is_new: AtomicBool,
    connected: AtomicU32,
    /// Held by the test while it delays releases.
    releasing: tokio::sync::Mutex<()>,
    released: AtomicU32,
}

impl SandboxNetwork for Network {
    fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Relaxed)
    }

    fn allocate<'a>(&'a self, _: &'a PodUid) -> BoxFuture<'a, Result<IpAddr>> {
        Box::pin(async { Ok(IpAddr::from([10, 1, 0, 2])) })
    }

    fn connect<'a>(&'a self, _: &'a PodUid, _: u32) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            if self.is_broken.load(Ordering::Relaxed) {
                return Err(RuntimeError::Internal("the network is broken".to_owned()));
            }
            self.connected.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    fn release<'a>(&'a self, _: &'a PodUid) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let _turn = self.releasing.lock().await;
            self.released.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }
}

#[tokio::test]
async fn the_network_of_a_stopped_pod_is_released_in_the_background_and_before_the_pod_is_removed() {
    let network = Arc::new(Network::default());
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let Some(node) = Node::open_with(Level::Full, folder, Some(network.clone())).await else { return };
    let pod = node.sandbox().await;
    let supervisor = node.supervisor(&pod);
    let releasing = network.releasing.lock().await;
    node.runtime.stop_sandbox(&pod).await.unwrap();
    assert!(!is_alive(supervisor));
    let removal = node.runtime.remove_sandbox(&pod);
    tokio::pin!(removal);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut removal).await;
    assert!(early.is_err(), "the address of a removed pod would not be free");
    assert_eq!(network.released.load(Ordering::Relaxed), 0);
    drop(releasing);
    removal.await.unwrap();
    assert!(network.released.load(Ordering::Relaxed) > 0);
    assert!(node.runtime.pod(&pod).is_none());
}

#[tokio::test]
async fn a_pod_without_its_network_is_not_ready_and_one_that_was_interrupted_is_connected_later() {
    let network = Arc::new(Network::default());
    let open = async |folder: &Arc<tempfile::TempDir>| {
        let network = network.clone();
        Node::open_with(Level::Full, folder.clone(), Some(network)).await
    };
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let Some(node) = open(&folder).await else { return };
    network.is_broken.store(true, Ordering::Relaxed);
    let config = crate::harness::sandbox(crate::harness::uid());
    assert!(node.runtime.run_sandbox(&config).await.is_err());
    assert!(!node.runtime.pod(&config.uid).unwrap().is_ready, "a container could start without the network");
    drop(node);
    // The next runtime finds a supervisor but no container.
    network.is_broken.store(false, Ordering::Relaxed);
    let node = open(&folder).await.unwrap();
    assert!(node.runtime.pod(&config.uid).unwrap().is_ready);
    assert_eq!(network.connected.load(Ordering::Relaxed), 1);
    let id = node.start(&config.uid, "sleep 1000").await;
    drop(node);
    // A pod with a container is connected.
    let node = open(&folder).await.unwrap();
    assert_eq!(network.connected.load(Ordering::Relaxed), 1);
    assert!(node.container_state(&id).is_some());
    drop(node);
    // A pod with a container is not connected to a network that was created in the meantime.
    network.is_new.store(true, Ordering::Relaxed);
    let node = open(&folder).await.unwrap();
    assert_eq!(network.connected.load(Ordering::Relaxed), 2);
    assert!(node.runtime.pod(&config.uid).unwrap().is_ready);
    drop(node);
    network.is_broken.store(true, Ordering::Relaxed);
    let node = open(&folder).await.unwrap();
    assert!(!node.runtime.pod(&config.uid).unwrap().is_ready, "the pod has no network");
    drop(folder);
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
