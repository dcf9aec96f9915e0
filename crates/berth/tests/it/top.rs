//! `berth top` on a terminal of tmux, against a cluster: views, keys, live changes, rights, and the
//! terminal after each way out.

use std::process::Command;

use berth_testing::tmux::Tmux;

use crate::cluster::{Cluster, file};

/// A shell on a terminal that runs `berth top` once and then shows the modes of the terminal.
fn start(cluster: &Cluster, folder: &std::path::Path, options: &str) -> Option<Tmux> {
    let command = format!(
        "export KUBECONFIG={}; {} top {options}; echo \"ended with $?\"; exec sh -c 'stty -a; sleep 1000'",
        cluster.kubeconfig.display(),
        env!("CARGO_BIN_EXE_berth"),
    );
    Tmux::start(folder, 80, 24, &command)
}

/// True if the terminal is as a shell needs it: lines are edited, keys are echoed, and the screen
/// is the usual one with a cursor.
fn is_restored(tmux: &Tmux) -> bool {
    // `extproc` is the last mode that stty prints.
    let screen = tmux.wait_for(&["ended with", "extproc"]);
    let modes: Vec<&str> = screen.split_whitespace().map(|word| word.trim_end_matches(';')).collect();
    ["icanon", "echo", "isig"].iter().all(|mode| modes.contains(mode))
        && [tmux.value("#{alternate_on}"), tmux.value("#{cursor_flag}")] == ["0", "1"]
}

/// The escape sequences that set a color other than the terminal's own.
fn colors(screen: &str) -> Vec<&str> {
    let codes = screen.split('\u{1b}').skip(1).filter_map(|part| Some(part.split_once('m')?.0.trim_start_matches('[')));
    let is_color = |code: &str| code.len() == 2 && code.starts_with(['3', '4']) && !matches!(code, "39" | "49");
    codes.filter(|codes| codes.split(';').any(is_color)).collect()
}

#[test]
fn berth_top_shows_queues_jobs_nodes_and_events_live() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::ephemeral(&[]);
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    let Some(tmux) = start(&cluster, folder.path(), "") else { return };
    tmux.wait_for(&["queues(all)[3]", "research", "  blue", "  green", "0/4", "0/8", "? help   q quit"]);

    // The watch shows what happens without a key.
    cluster.run_blue_jobs();
    tmux.wait_for(&["8/8", "8/4        4      1    2", "2 queues: 1 waiting, 2 running"]);

    // A queue opens its jobs; a job its explanation; escape goes back.
    tmux.keys(&["j", "Enter"]);
    tmux.wait_for(&["jobs(blue)[3]", "train-3", "Waiting", "WaitingForQuota"]);
    tmux.keys(&["/", "WaitingFor", "Enter"]);
    tmux.wait_for(&["jobs(blue)[1] /WaitingFor"]);
    tmux.keys(&["Enter"]);
    tmux.wait_for(&["explain team-blue/job-train-3", "waits in ClusterQueue blue", "4 requested for pod set main"]);
    tmux.keys(&["Escape"]);
    tmux.wait_for(&["jobs(blue)[1]"]);
    tmux.keys(&["t"]);
    tmux.wait_for(&["history team-blue/job-train-3", "Waiting"]);
    // Two escape characters at once would be another key.
    tmux.keys(&["Escape"]);
    tmux.wait_for(&["jobs(blue)[1]"]);
    tmux.keys(&["Escape"]);
    tmux.wait_for(&["jobs(blue)[3]"]);
    tmux.keys(&["Escape"]);
    tmux.wait_for(&["queues(all)[3]"]);
    tmux.keys(&["e"]);
    tmux.wait_for(&["holders of blue", "2 workloads hold quota of ClusterQueue blue."]);

    // A command opens a view.
    tmux.keys(&[":", "nodes", "Enter"]);
    tmux.wait_for(&["nodes(all)[", "default-pool", "POOL"]);
    tmux.keys(&[":", "ev", "Enter"]);
    tmux.wait_for(&["events(all)[", "LAST SEEN", "QuotaReserved"]);
    tmux.keys(&[":", "none", "Enter"]);
    tmux.wait_for(&["no view none; there are queues, local-queues, jobs"]);
    tmux.resize(200, 50);
    tmux.keys(&[":", "jobs", "Enter"]);
    tmux.wait_for(&["jobs(all)[3]", "CLUSTER QUEUE", "HOLDS", "4 cpu of default"]);

    // A finished job leaves the queue without a key.
    cluster.run(&["delete", "job", "train-1", "-n", "team-blue"]);
    tmux.wait_until("train-1 to leave and train-3 to run", |screen| {
        let is_running = |line: &str| line.contains("train-3") && line.contains("Running");
        !screen.contains("train-1") && screen.lines().any(is_running)
    });
    let screen = tmux.colored_screen();
    assert_ne!(colors(&screen), Vec::<&str>::new(), "{screen:?}");
    tmux.keys(&["q"]);
    assert!(is_restored(&tmux));
    tmux.wait_for(&["ended with 0"]);
}

#[test]
fn the_terminal_is_restored_after_a_signal_and_colors_are_optional() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::ephemeral(&[]);
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    for signal in ["TERM", "C-c"] {
        let socket = folder.path().join(signal);
        std::fs::create_dir(&socket).expect("a folder");
        let Some(tmux) = start(&cluster, &socket, "queues") else { return };
        tmux.wait_for(&["queues(all)[3]"]);
        assert_eq!(tmux.value("#{alternate_on}"), "1");
        match signal {
            "TERM" => {
                let children = Command::new("ps").args(["-o", "pid=", "--ppid", &tmux.value("#{pane_pid}")]).output();
                let pid = String::from_utf8_lossy(&children.expect("ps runs").stdout).trim().to_owned();
                assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
            }
            key => tmux.keys(&[key]),
        }
        assert!(is_restored(&tmux), "{signal}");
        tmux.wait_for(&["ended with 0"]);
    }

    // Without colors, the selected row is still reversed.
    let plain = folder.path().join("plain");
    std::fs::create_dir(&plain).expect("a folder");
    let command =
        format!("NO_COLOR=1 KUBECONFIG={} {} top jobs", cluster.kubeconfig.display(), env!("CARGO_BIN_EXE_berth"));
    cluster.run(&["apply", "-f", &file("examples/quickstart/green-job.yaml")]);
    let Some(tmux) = Tmux::start(&plain, 80, 24, &command) else { return };
    tmux.wait_for(&["jobs(all)[1]", "Running"]);
    let screen = tmux.colored_screen();
    assert_eq!(colors(&screen), Vec::<&str>::new(), "{screen:?}");
    assert!(screen.contains("[7m") || screen.contains(";7m"), "{screen:?}");
}

#[test]
fn a_user_sees_what_it_may_read() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::ephemeral(&[]);
    cluster.run(&[
        "apply",
        "-f",
        &file("examples/quickstart/queues.yaml"),
        "-f",
        &file("examples/quickstart/green-job.yaml"),
    ]);
    cluster.run(&["create", "serviceaccount", "reader", "-n", "team-green"]);
    let resources = "--resource=workloads.kueue.x-k8s.io,localqueues.kueue.x-k8s.io";
    cluster.run(&["create", "role", "reader", "-n", "team-green", "--verb=get,list,watch", resources]);
    let subject = "--serviceaccount=team-green:reader";
    cluster.run(&["create", "rolebinding", "reader", "-n", "team-green", "--role=reader", subject]);
    let token = cluster.run(&["create", "token", "reader", "-n", "team-green"]);

    // The kubeconfig of the reader.
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::copy(&cluster.kubeconfig, &kubeconfig).expect("copied");
    let config = |arguments: &[&str]| {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("config").arg("--kubeconfig").arg(&kubeconfig).args(arguments);
        assert!(kubectl.output().expect("kubectl runs").status.success());
    };
    config(&["set-credentials", "reader", &format!("--token={}", token.trim())]);
    config(&["set-context", "--current", "--user=reader", "--namespace=team-green"]);
    let command = format!("KUBECONFIG={} {} top jobs", kubeconfig.display(), env!("CARGO_BIN_EXE_berth"));
    let Some(tmux) = Tmux::start(folder.path(), 120, 24, &command) else { return };
    tmux.wait_for(&["jobs(all)[1]", "team-green", "Only the workloads of namespace team-green are shown"]);
    tmux.keys(&[":", "queues", "Enter"]);
    tmux.wait_for(&["queues(all)[0]", "You may not list clusterqueues", "is forbidden"]);
    tmux.keys(&[":", "lq", "Enter"]);
    tmux.wait_for(&["local-queues(all)[1]", "team-green"]);
    tmux.keys(&[":", "nodes", "Enter"]);
    tmux.wait_for(&["You may not list nodes"]);
    tmux.keys(&["q"]);
}
