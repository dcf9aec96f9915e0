//! Starts, ends, logs, environment and limits of containers.

use std::time::Duration;

use berth_node::Level;
use berth_pod_runtime::{
    ContainerState, Limits, LogQuery, PodLimits, PodRuntime, RuntimeError, TerminationMessagePolicy,
};

use crate::harness::{LEVELS, Node, PATIENCE, is_alive, processes_with, until};

#[tokio::test]
async fn a_container_that_prints_a_line_and_exits_3_has_its_log_and_exit_code() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let (exit, log) = node.run("echo hello; echo oops >&2; exit 3").await;
        assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (3, None, false), "{level}");
        assert_eq!(log, "hello\noops\n", "{level}");
        assert!(exit.finished_at >= exit.started_at);
    }
}

#[tokio::test]
async fn a_container_that_a_signal_ends_reports_the_signal() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        // The first process of a PID namespace ignores signals that it does not handle.
        let (exit, _) = node.run("sh -c 'kill -9 $$'; exit $?").await;
        assert_eq!(exit.exit_code, 137, "{level}");
    }
}

#[tokio::test]
async fn environment_directory_and_user_are_those_of_the_configuration() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let script = "echo $GREETING $HOSTNAME $(hostname) $(pwd) $(id -u) $(id -g) $(id -G) $HOME $$; \
                  tr '\\0' '\\n' </proc/$$/environ | grep data";
    let (exit, log) = node
        .run_with(script, |config| {
            config.env = vec![("GREETING".to_owned(), "one".to_owned()), ("GREETING".to_owned(), "two".to_owned())];
            config.env.push(("data-1".to_owned(), "value".to_owned()));
            config.working_dir = "/made/for/it".to_owned();
            config.security.user = Some(1234);
            config.security.group = Some(55);
            config.security.supplemental_groups = vec![66];
        })
        .await;
    assert_eq!(log, "two pod pod /made/for/it 1234 55 55 66 / 1\ndata-1=value\n");
    assert_eq!(exit.exit_code, 0);
}

#[tokio::test]
async fn a_program_that_does_not_exist_fails_with_127_at_each_start() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        for _ in 0..2 {
            let started = node.start_with(&pod, "", |config| config.command = vec!["no-such-program".to_owned()]).await;
            let Err(RuntimeError::Start { exit_code: 127, message }) = started else { panic!("{started:?}") };
            assert!(message.contains("no-such-program"), "{message}");
        }
        let state = node.runtime.pod(&pod).unwrap();
        assert_eq!(state.containers.len(), 1);
    }
}

#[tokio::test]
async fn a_start_is_not_repeated() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "echo once; sleep 1000").await;
        node.wait_for_log(&id, "once").await;
        assert_eq!(node.start(&pod, "echo once; sleep 1000").await, id);
        assert_eq!(node.log(&id).await, "once\n");
        node.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        assert_eq!(node.exit(&id).await.exit_code, 137);
        let again = node.start_with(&pod, "echo once", |_| {}).await.unwrap();
        assert!(matches!(again.state, ContainerState::Exited(_)), "{again:?}");
    }
}

#[tokio::test]
async fn a_container_that_handles_the_stop_signal_chooses_its_exit_code() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done").await;
        node.wait_for_log(&id, "up").await;
        node.runtime.stop_container(&id, PATIENCE).await.unwrap();
        assert_eq!(node.exit(&id).await.exit_code, 7, "{level}");
    }
}

#[tokio::test]
async fn a_container_that_ignores_the_stop_signal_is_killed_after_the_grace_period() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "trap '' TERM; echo up; while :; do sleep 0.05; done").await;
        node.wait_for_log(&id, "up").await;
        node.runtime.stop_container(&id, Duration::from_millis(300)).await.unwrap();
        let exit = node.exit(&id).await;
        assert_eq!((exit.exit_code, exit.signal), (137, Some(9)), "{level}");
    }
}

#[tokio::test]
async fn a_termination_message_comes_from_its_file_or_the_log() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let (exit, _) = node.run("echo why > /dev/termination-log; exit 1").await;
    assert_eq!(exit.message, "why\n");
    let fall_back = |config: &mut berth_pod_runtime::ContainerConfig| {
        config.termination_message_policy = TerminationMessagePolicy::FallbackToLogsOnError;
    };
    let (exit, _) = node.run_with("echo reason; exit 1", fall_back).await;
    assert_eq!(exit.message, "reason\n");
    let (exit, _) = node.run_with("echo fine", fall_back).await;
    assert_eq!(exit.message, "");
}

#[tokio::test]
async fn a_followed_log_ends_with_its_container() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node.sandbox().await;
    let id = node.start(&pod, "for i in 1 2 3; do echo $i; sleep 0.1; done").await;
    let log = node.log_with(&id, LogQuery { follow: true, ..LogQuery::default() }).await;
    assert_eq!(log, "1\n2\n3\n");
    let log = node.log_with(&id, LogQuery { tail_lines: Some(1), ..LogQuery::default() }).await;
    assert_eq!(log, "3\n");
}

#[tokio::test]
async fn a_container_above_its_memory_limit_is_killed_and_reported_as_oom_killed() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        // `tail` keeps a line that never ends in memory.
        let (exit, _) = node
            .run_with("head -c 1000000000 /dev/zero | tail | wc -c; exit 9", |config| {
                config.limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
            })
            .await;
        assert!(exit.oom_killed, "{level}: {exit:?}");
    }
}

#[tokio::test]
async fn limits_of_a_running_container_are_changed() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let limits = |cpu_milli, mebibytes: u64| Limits {
        cpu_milli: Some(cpu_milli),
        cpu_request_milli: cpu_milli,
        memory_bytes: Some(mebibytes << 20),
        ..Limits::default()
    };
    let pod = node.sandbox_with(|config| config.limits = limits(500, 64)).await;
    // `tail` keeps 20 MB in memory.
    let script = "echo up; (head -c 20000000 /dev/zero; sleep 1000) | tail";
    let id = node.start_with(&pod, script, |config| config.limits = limits(500, 64)).await.unwrap().id;
    node.wait_for_log(&id, "up").await;
    let script = "cd /sys/fs/cgroup; cat cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 cpu.max; \
                  cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max";
    let shown = async || {
        let command = ["sh", "-c", script].map(str::to_owned);
        let output = node.runtime.exec_sync(&id, &command, Duration::from_secs(30)).await.unwrap();
        String::from_utf8(output.output).unwrap()
    };
    if shown().await.is_empty() {
        return berth_testing::skip("control groups cannot be written");
    }
    let change = async |new: Limits| {
        let limits = PodLimits { pod: new, containers: vec![(id.clone(), new)] };
        node.runtime.update_limits(&pod, &limits).await
    };
    for (cpu_milli, mebibytes) in [(2000, 128), (250, 48), (1000, 96)] {
        change(limits(cpu_milli, mebibytes)).await.unwrap();
        assert_eq!(shown().await, format!("{}\n{}\n", cpu_milli * 100, mebibytes << 20));
    }
    crate::harness::eventually(|| async {
        let stats = node.runtime.stats(&pod).await?;
        (stats.containers.first()?.memory_bytes > 8 << 20).then_some(())
    })
    .await;
    let refused = change(limits(1000, 4)).await;
    assert!(matches!(&refused, Err(RuntimeError::Config(message)) if message.contains("more than its new limit")));
    assert_eq!(shown().await, format!("100000\n{}\n", 96 << 20), "nothing has changed");
}

#[tokio::test]
async fn every_process_of_a_container_is_in_its_control_groups() {
    let Some(node) = Node::open(Level::Full).await else { return };
    for share_process_namespace in [false, true] {
        let pod = node.sandbox_with(|config| config.share_process_namespace = share_process_namespace).await;
        let id = node.start(&pod, "cat /proc/self/cgroup; echo; sleep 1000").await;
        // The paths are relative to the groups of the container's first process.
        let own = node.wait_for_log(&id, "\n\n").await;
        let command = ["cat", "/proc/self/cgroup"].map(str::to_owned);
        let output = node.runtime.exec_sync(&id, &command, Duration::from_secs(30)).await.unwrap();
        let of_command = String::from_utf8(output.output).unwrap();
        for groups in [own.trim(), of_command.trim()] {
            assert!(!groups.is_empty() && groups.lines().all(|line| line.ends_with(":/")), "{groups}");
        }
    }
}

/// The kernel keeps a removed memory group for as long as a page of the file cache is charged to
/// it.
#[tokio::test]
async fn the_root_of_a_container_charges_no_file_cache_to_its_memory_group() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let script = "cat /sys/fs/cgroup/memory/memory.stat 2>/dev/null || cat /sys/fs/cgroup/memory.stat";
    for attempt in 0.. {
        // The kernel charges a page of a program to the group that reads it first, and the end of a
        // container releases its pages. Here the host's group reads them.
        let on_host = tokio::process::Command::new("sh").args(["-c", script]).output().await;
        assert!(on_host.is_ok(), "{on_host:?}");
        let (exit, statistics) = node.run(script).await;
        if exit.exit_code != 0 {
            return berth_testing::skip("this machine has no memory groups");
        }
        let charged = |names: [&str; 2]| {
            let line = statistics.lines().filter_map(|line| line.split_once(' ')).find(|(key, _)| names.contains(key));
            line.and_then(|(_, bytes)| bytes.parse::<u64>().ok()).unwrap_or(0)
        };
        // The names in version 1 and 2 of control groups. Pages of a root are in no program's
        // memory.
        if charged(["total_cache", "file"]) == charged(["total_mapped_file", "file_mapped"]) {
            return;
        }
        assert!(attempt < 5, "{statistics}");
    }
}

#[tokio::test]
async fn containers_of_a_pod_share_its_network_and_not_its_processes() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node.sandbox().await;
    let first = node.start(&pod, "echo here; exec sleep 1000").await;
    node.wait_for_log(&first, "here").await;
    let second = node
        .start_with(
            &pod,
            "ls /proc | grep -c '^[0-9]*$'; readlink /proc/self/ns/net; cat /sys/class/net/lo/flags",
            |config| {
                config.id.name = "second".to_owned();
            },
        )
        .await
        .unwrap()
        .id;
    assert_eq!(node.exit(&second).await.exit_code, 0);
    let log = node.log(&second).await;
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].parse::<u32>().unwrap() <= 4, "{log}");
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert_ne!(lines[1], own.to_str().unwrap());
    assert_eq!(lines[2], "0x9", "the loopback interface is not up");
}

#[tokio::test]
async fn a_shared_process_namespace_shows_the_other_containers() {
    let Some(node) = Node::open(Level::Full).await else { return };
    let pod = node.sandbox_with(|config| config.share_process_namespace = true).await;
    let first = node.start(&pod, "sleep 4321").await;
    let second = node
        .start_with(&pod, "cat /proc/*/cmdline | tr '\\0' ' '; ls -A /proc/1/root 2>&1; (sleep 987 &)", |config| {
            config.id.name = "second".to_owned();
        })
        .await
        .unwrap()
        .id;
    assert_eq!(node.exit(&second).await.exit_code, 0);
    let log = node.log(&second).await;
    assert!(log.contains("sleep 4321"), "{log}");
    assert!(!log.contains("etc"), "the first process shows files of the host: {log}");
    until(|| processes_with("sleep\0987").is_empty()).await;
    node.runtime.stop_container(&first, Duration::ZERO).await.unwrap();
    assert_eq!(node.exit(&first).await.signal, Some(9));
}

#[tokio::test]
async fn a_double_forked_daemon_ends_with_its_pod() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "(setsid sh -c 'echo up; exec sleep 86399' &) ; sleep 1000").await;
        node.wait_for_log(&id, "up").await;
        until(|| !processes_with("sleep\086399").is_empty()).await;
        let supervisor = node.supervisor(&pod);
        node.runtime.stop_sandbox(&pod).await.unwrap();
        assert_eq!(processes_with("sleep\086399"), Vec::<u32>::new(), "{level}");
        assert!(!is_alive(supervisor));
        let state = node.runtime.pod(&pod).unwrap();
        assert!(!state.is_ready);
        assert!(
            matches!(&state.containers[0].state, ContainerState::Exited(exit) if exit.exit_code == 137),
            "{state:?}"
        );
        node.runtime.stop_sandbox(&pod).await.unwrap();
        node.runtime.remove_sandbox(&pod).await.unwrap();
        assert!(node.runtime.pod(&pod).is_none());
        assert!(!node.pod_folder(&pod).exists());
        node.runtime.remove_sandbox(&pod).await.unwrap();
    }
}

#[tokio::test]
async fn use_of_memory_and_cpu_is_reported() {
    for level in LEVELS {
        let Some(node) = Node::open(level).await else { continue };
        let pod = node.sandbox().await;
        let id = node.start(&pod, "echo up; while :; do :; done").await;
        node.wait_for_log(&id, "up").await;
        let used = crate::harness::eventually(|| async {
            let stats = node.runtime.stats(&pod).await.unwrap();
            stats.containers.first().filter(|container| container.cpu_nanos > 50_000_000).cloned()
        })
        .await;
        assert!(used.memory_bytes > 0, "{used:?}");
    }
}

#[tokio::test]
async fn a_rootless_container_has_namespaces_of_its_own() {
    let Some(node) = Node::open(Level::Rootless).await else { return };
    let (exit, log) =
        node.run("id -u; echo $$; hostname; cat /sys/class/net/lo/flags; touch /tmp/x && echo wrote").await;
    assert_eq!(exit.exit_code, 0, "{log}");
    assert_eq!(log, "0\n1\npod\n0x9\nwrote\n");
    let pod = node.sandbox().await;
    let id = node.start(&pod, "echo up; sleep 1000").await;
    node.wait_for_log(&id, "up").await;
    let output = node.runtime.exec_sync(&id, &["hostname".to_owned()], PATIENCE).await.unwrap();
    assert_eq!(output.output, b"pod\n");
    let other = node.start_with(&pod, "true", |config| {
        config.id.name = "other".to_owned();
        config.security.user = Some(1000);
    });
    assert!(matches!(other.await, Err(RuntimeError::Config(_))));
    node.runtime.remove_sandbox(&pod).await.unwrap();
}

#[test]
fn a_rootless_container_runs_on_a_host_with_mounts_within_mounts() {
    if !rustix::process::geteuid().is_root() {
        berth_testing::skip("only root can mount file systems for this test");
        return;
    }
    let script = "mount -t tmpfs outer /opt && mkdir /opt/inner && mount -t tmpfs inner /opt/inner && \
                  exec \"$0\" --exact containers::a_rootless_container_has_namespaces_of_its_own --nocapture";
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert!(!text.contains("SKIPPED"), "{text}");
}
