//! Pods that try to harm Berth, the host or other pods.

use std::time::Duration;

use berth_node::Level;
use berth_pod_runtime::{LogQuery, PodRuntime};

use crate::harness::{LEVELS, Node, is_alive, processes_with, until};

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_ends_with_its_pod() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node.sandbox().await;
    // Each process remains, so that the limit is reached and the shell cannot fork.
    let script = "(while :; do sleep 86392 & done) & echo up; exec sleep 86392";
    let id = node.start(&pod, script).await;
    node.wait_for_log(&id, "up").await;
    until(|| processes_with("sleep\086392").len() > 50).await;
    // The runtime continues to work.
    let (exit, log) = node.run("echo other pod").await;
    assert_eq!((exit.exit_code, log.as_str()), (0, "other pod\n"));
    let count = processes_with("86392").len();
    assert!(count <= 64, "{count} processes");
    node.runtime.remove_sandbox(&pod).await.unwrap();
    assert_eq!(processes_with("sleep\086392"), Vec::<u32>::new());
}

#[tokio::test]
async fn a_pod_sees_neither_berths_folder_nor_other_pods() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let secret = format!("secret-of-{}", std::process::id());
    let victim = node.sandbox().await;
    let other = node.start_with(&victim, "echo $SECRET > /tmp/secret; echo up; sleep 86391", |config| {
        config.env = vec![("SECRET".to_owned(), secret.clone())];
    });
    let other = other.await.unwrap().id;
    node.wait_for_log(&other, "up").await;
    let folder = node.folder.path().join("node");
    let socket = node.pod_folder(&victim).join("socket");
    assert!(socket.exists());
    let script = format!(
        "ls -A {folder} 2>/dev/null; cat {pod}/journal 2>/dev/null; test -e {socket} && echo SOCKET; \
         ls /proc/1/root/../../../{folder} 2>/dev/null; mkdir /tmp/m; mount -t proc proc /tmp/m 2>/dev/null && echo MOUNTED; \
         umount {parent} 2>/dev/null && echo UNMOUNTED; mknod /tmp/disk b 254 0 2>/dev/null && echo NODE; \
         grep -l {secret} /proc/*/environ 2>/dev/null | grep -v $$; \
         echo x > /proc/sysrq-trigger 2>/dev/null && echo SYSRQ; echo 1 > /proc/sys/vm/drop_caches 2>/dev/null && echo SYSCTL; \
         grep -c '^[^:]*:[^*]' /etc/shadow; exit 0",
        folder = folder.display(),
        pod = node.pod_folder(&victim).display(),
        socket = socket.display(),
        parent = folder.parent().unwrap().display(),
    );
    let (exit, log) = node.run(&script).await;
    assert_eq!(exit.exit_code, 0, "{log}");
    for word in ["SOCKET", "MOUNTED", "UNMOUNTED", "NODE", "SYSRQ", "SYSCTL", "pods", "record", "environ"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
    assert_eq!(log.lines().last(), Some("0"), "no password of the host is shown: {log}");
}

#[tokio::test]
async fn a_pod_replaces_the_hidden_keys_of_the_hosts_ssh_server_by_its_own() {
    let is_key = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().ends_with("_key");
    let mut entries = std::fs::read_dir("/etc/ssh").into_iter().flatten().flatten();
    let Some(key) = entries.find(is_key).map(|entry| entry.path()) else {
        return berth_testing::skip("no SSH server is installed: /etc/ssh has no key");
    };
    let Some(node) = Node::open(Level::Full).await else { return };
    let before = std::fs::read(&key).expect("the host's key");
    let key_path = key.display();
    let script = format!(
        "test -e {key_path} && echo VISIBLE; echo new > {key_path}.tmp && mv {key_path}.tmp {key_path} && cat {key_path}; \
         grep ^root: /etc/shadow; ls -A /tmp"
    );
    let (exit, log) = node.run(&script).await;
    assert_eq!((exit.exit_code, log.as_str()), (0, "new\nroot:*:::::::\n"));
    assert_eq!(std::fs::read(&key).expect("the host's key"), before);
}

#[tokio::test]
async fn a_pod_cannot_signal_or_write_to_its_supervisor() {
    let Some(node) = Node::open(Level::Full).await else { return };
    for shared in [false, true] {
        let pod = node.sandbox_with(|config| config.share_process_namespace = shared).await;
        let supervisor = node.supervisor(&pod);
        let script = format!(
            "kill -9 {supervisor} 2>/dev/null; kill -9 -1 2>/dev/null; \
             for p in /proc/[0-9]*; do echo x >> $p/exe; done 2>/dev/null; exit 0"
        );
        let id = node.start(&pod, &script).await;
        node.exit(&id).await;
        assert!(is_alive(supervisor), "shared: {shared}");
    }
    // The executable was not changed, so another supervisor can start.
    node.sandbox().await;
}

#[tokio::test]
async fn a_command_in_a_hostile_container_cannot_change_the_executable() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node.sandbox().await;
    // Opens the executable of each new process, to write to it once the process runs another
    // program.
    let script = "echo up; while :; do for p in /proc/[0-9]*; do \
                  (echo x >> $p/exe) 2>/dev/null && readlink $p/exe; done; done";
    let id = node.start(&pod, script).await;
    node.wait_for_log(&id, "up").await;
    let helper = env!("CARGO_BIN_EXE_berth-node-helper");
    let before = std::fs::read(helper).unwrap();
    for _ in 0..20 {
        node.runtime.exec_sync(&id, &["true".to_owned()], Duration::from_secs(30)).await.unwrap();
    }
    assert!(std::fs::read(helper).unwrap() == before, "the executable was changed");
}

/// At the plain level, Landlock protects Berth's files, also if they are in a folder that pods may
/// otherwise write to.
#[tokio::test]
async fn at_the_plain_level_a_pod_writes_to_no_file_of_berth_or_of_another_pod() {
    for folder in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")] {
        let Ok(folder) = folder else { continue };
        let Some(node) = Node::open_in(Level::Plain, std::sync::Arc::new(folder)).await else { return };
        let victim = node.sandbox_with(data_on_disk).await;
        let id = node.start_with(&victim, "echo up; sleep 1000", with_data).await.unwrap().id;
        node.wait_for_log(&id, "up").await;
        let pod = node.pod_folder(&victim);
        let script = format!(
            "for file in journal pod.json logs/main_0.log volumes/data/new; do \
             (echo x >> {pod}/$file) 2>/dev/null && echo WRITTEN $file; done; \
             cat {pod}/pod.json 2>/dev/null && echo READ; echo own > $TMPDIR/file && echo end",
            pod = pod.display()
        );
        let (_, log) = node.run(&script).await;
        if log.contains("WRITTEN") && !has_landlock() {
            return berth_testing::skip("the kernel has no Landlock");
        }
        assert_eq!(log, "end\n", "{}", pod.display());
    }
}

/// True if the kernel restricts files by Landlock.
fn has_landlock() -> bool {
    let modules = std::fs::read_to_string("/sys/kernel/security/lsm");
    // The list may not be mounted. Then only kernels before 5.13 certainly have no Landlock.
    modules.map_or(true, |modules| modules.split(',').any(|name| name.trim() == "landlock"))
}

#[tokio::test]
async fn a_huge_log_is_bounded_and_its_end_is_kept() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id =
            node.start(&pod, "yes 0123456789012345678901234567890123456789 | head -c 80000000; echo; echo last").await;
        node.exit(&id).await;
        let logs = std::fs::read_dir(node.pod_folder(&pod).join("logs")).unwrap().flatten();
        let bytes: u64 = logs.map(|log| log.metadata().unwrap().len()).sum();
        assert!(bytes < 60 << 20, "{level}: {bytes} bytes");
        let tail = node.log_with(&id, LogQuery { tail_lines: Some(1), ..LogQuery::default() }).await;
        assert_eq!(tail, "last\n", "{level}");
    }
}

#[tokio::test]
async fn zombies_do_not_pile_up_under_the_supervisor() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox_with(|config| config.share_process_namespace = level == Level::Full).await;
        let id = node
            .start(&pod, "i=0; while test $i -lt 300; do (sleep 0.01 &) ; i=$((i+1)); done; echo end; sleep 1000")
            .await;
        node.wait_for_log(&id, "end").await;
        let supervisor = node.supervisor(&pod);
        until(|| zombies_below(supervisor) == 0).await;
    }
}

fn zombies_below(root: u32) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let fields = stats.filter_map(|stat| {
        let rest: Vec<String> = stat.rsplit(") ").next()?.split(' ').map(str::to_owned).collect();
        Some((rest[0].clone(), rest[1].parse::<u32>().ok()?))
    });
    fields.filter(|(state, parent)| state == "Z" && *parent == root).count()
}

#[tokio::test]
async fn a_full_volume_in_memory_stops_its_pod_only() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node
        .sandbox_with(|config| {
            let volume = berth_pod_runtime::Volume::EmptyDir { memory: true, size_limit_bytes: Some(1 << 20) };
            config.volumes.insert("data".to_owned(), volume);
        })
        .await;
    let id = node
        .start_with(&pod, "head -c 100000000 /dev/zero > /data/file; stat -c %s /data/file", |config| {
            config.mounts.push(berth_pod_runtime::Mount {
                volume: "data".to_owned(),
                path: "/data".to_owned(),
                sub_path: String::new(),
                read_only: false,
                propagation: berth_pod_runtime::Propagation::Private,
            });
        })
        .await
        .unwrap()
        .id;
    node.exit(&id).await;
    assert!(node.log(&id).await.ends_with("1048576\n"));
}

#[tokio::test]
async fn a_container_inherits_no_descriptor_of_the_process_that_started_berth() {
    let file = tempfile::NamedTempFile::with_prefix("inherited-").unwrap();
    // A duplicated descriptor is not closed when a program is executed.
    let inherited = rustix::io::dup(&file).unwrap();
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let (_, log) = node.run("ls -l /proc/self/fd; echo listed").await;
        assert!(log.ends_with("listed\n") && !log.contains("inherited-"), "{level:?}: {log}");
    }
    drop(inherited);
}

#[tokio::test]
async fn rights_are_dropped() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let (_, log) = node
        .run_with("grep -E 'NoNewPrivs|Seccomp:|CapEff|CapBnd' /proc/self/status; unshare -U true 2>/dev/null || echo refused", |config| {
            config.security.allow_privilege_escalation = false;
        })
        .await;
    assert!(log.contains("NoNewPrivs:\t1") && log.contains("Seccomp:\t2") && log.contains("refused"), "{log}");
    assert!(log.contains("CapEff:\t00000000a00425fb") && log.contains("CapBnd:\t00000000a00425fb"), "{log}");
    let (_, log) = node
        .run_with("grep -E 'CapEff|CapBnd' /proc/self/status", |config| {
            config.security.user = Some(1000);
            config.security.capabilities.drop = vec!["ALL".to_owned()];
        })
        .await;
    assert_eq!(log, "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\n");
}

/// A volume on disk, mounted at `/data`.
fn with_data(config: &mut berth_pod_runtime::ContainerConfig) {
    config.mounts.push(berth_pod_runtime::Mount {
        volume: "data".to_owned(),
        path: "/data".to_owned(),
        sub_path: String::new(),
        read_only: false,
        propagation: berth_pod_runtime::Propagation::Private,
    });
}

fn data_on_disk(config: &mut berth_pod_runtime::SandboxConfig) {
    let volume = berth_pod_runtime::Volume::EmptyDir { memory: false, size_limit_bytes: None };
    config.volumes.insert("data".to_owned(), volume);
}

#[tokio::test]
async fn links_and_deep_folders_in_a_volume_are_neither_followed_nor_an_obstacle() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("file"), vec![7; 1 << 20]).unwrap();
        let pod = node.sandbox_with(data_on_disk).await;
        let script = format!(
            "ln -s {outside} /data/folder; ln -s {outside}/file /data/file; ln -s /dev/zero /data/endless; \
             mkfifo /data/pipe; cd /data; i=0; while test $i -lt 1500; do mkdir d && cd d; i=$((i+1)); done; \
             echo up; sleep 1000",
            outside = outside.path().display(),
        );
        let id = node.start_with(&pod, &script, with_data).await.unwrap().id;
        node.wait_for_log(&id, "up").await;
        let used = node.runtime.disk(&pod).await.unwrap().volumes["data"];
        assert!(used < 64 << 20, "{level}: a link was followed: {used} bytes");
        node.runtime.remove_sandbox(&pod).await.unwrap();
        assert!(!node.pod_folder(&pod).exists());
        let trash = std::fs::read_dir(node.folder.path().join("node/trash")).unwrap().count();
        assert_eq!(trash, 0, "{level}: the folder was not removed");
        assert!(outside.path().join("file").exists(), "{level}: a link was followed");
    }
}

#[tokio::test]
async fn a_termination_message_that_was_replaced_is_not_read() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let script = "rm -f $0; ln -s /etc/hostname $0; ln -s /etc/hostname /dev/termination-log; mkfifo $0; exit 3";
        let pod = node.sandbox().await;
        let path = node.pod_folder(&pod).join("containers/main_0/termination").display().to_string();
        let start = node.start_with(&pod, script, |config| config.command.push(path));
        let id = start.await.unwrap().id;
        let exit = node.exit(&id).await;
        assert_eq!((exit.exit_code, exit.message.as_str()), (3, ""), "{level}");
    }
}

#[tokio::test]
async fn a_full_disk_loses_no_exit_code_and_ends_neither_the_supervisor_nor_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(folder.path()) else { return };
    {
        let Some(node) = Node::open_in(Level::Full, std::sync::Arc::new(folder)).await else { return };
        let pod = node.sandbox_with(data_on_disk).await;
        let script = "trap 'exit 7' TERM; cat /dev/zero > /data/filler; while test ! -e /data/end; do \
                      sleep 0.05; done; exit 7";
        let id = node.start_with(&pod, script, with_data).await.unwrap().id;
        let filler = node.pod_folder(&pod).join("volumes/data/filler");
        until(|| disk.is_full() && std::fs::metadata(&filler).is_ok()).await;
        // Another pod is rejected as a whole.
        let other = crate::harness::sandbox(crate::harness::uid());
        let refused = node.runtime.run_sandbox(&other).await;
        assert!(refused.is_err(), "{refused:?}");
        // The container ends while its end cannot be recorded.
        node.runtime.stop_container(&id, Duration::from_secs(30)).await.unwrap();
        assert_eq!(node.exit(&id).await.exit_code, 7);
        assert!(is_alive(node.supervisor(&pod)));
        std::fs::remove_file(&filler).unwrap();
        // The record is written as soon as there is space again.
        let journal = node.pod_folder(&pod).join("journal");
        until(|| std::fs::read_to_string(&journal).unwrap().contains("\"exited\"")).await;
        node.runtime.remove_sandbox(&pod).await.unwrap();
        node.runtime.run_sandbox(&other).await.unwrap();
        node.runtime.remove_sandbox(&other.uid).await.unwrap();
        drop(node);
    }
}

/// A small disk, unmounted when dropped.
struct Disk(std::path::PathBuf);

impl Disk {
    /// Mounts a disk of 16 MiB on a folder. If that fails, skips the test and returns `None`.
    fn mount(folder: &std::path::Path) -> Option<Self> {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs"]).arg(folder);
        let is_mounted = rustix::process::geteuid().is_root() && mount.status().is_ok_and(|status| status.success());
        if !is_mounted {
            berth_testing::skip("a tmpfs cannot be mounted");
            return None;
        }
        Some(Self(folder.to_owned()))
    }

    fn is_full(&self) -> bool {
        rustix::fs::statvfs(&self.0).is_ok_and(|disk| disk.f_bavail == 0)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
