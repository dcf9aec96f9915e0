//! The documented commands of kueuectl, with `berth` in its place: the examples of its reference,
//! all options and columns.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::cluster::{Cluster, file};

fn run(cluster: &Cluster, line: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.env("KUBECONFIG", &cluster.kubeconfig).args(line).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("berth runs");
    // A command that does not read its input may have ended.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("berth ends")
}

/// Words of a command line. Single quotes keep a word together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            other => words.last_mut().expect("one word at least").push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A command, and what its output has: lines whose cells are these, each without its age.
struct Case {
    line: &'static str,
    expected: &'static [&'static str],
}

const fn case(line: &'static str, expected: &'static [&'static str]) -> Case {
    Case { line, expected }
}

/// Checks that each expected line is in the output, with one space in place of several.
fn check(cluster: &Cluster, case: &Case) {
    let line = words(case.line);
    let output = run(cluster, &line.iter().map(String::as_str).collect::<Vec<_>>(), "");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in case.expected {
        let found = match expected.strip_prefix('!') {
            Some(unexpected) => !text.contains(unexpected),
            None => lines.iter().any(|line| line.starts_with(expected)),
        };
        assert!(found, "berth {}: {expected:?} in\n{text}", case.line);
    }
}

/// `create`, with the examples of the reference.
const CREATE: [Case; 15] = [
    case("create resourceflavor my-resource-flavor", &["resourceflavor.kueue.x-k8s.io/my-resource-flavor created"]),
    case(
        "create rf alpha --node-labels kubernetes.io/arch=arm64,kubernetes.io/os=linux",
        &["resourceflavor.kueue.x-k8s.io/alpha created"],
    ),
    case(
        "create rf beta --node-taints key1=value:NoSchedule,key2:NoExecute \
         --tolerations key1=value:NoSchedule,key2:NoExecute,key3=value,key4,:PreferNoSchedule",
        &["resourceflavor.kueue.x-k8s.io/beta created"],
    ),
    case("create clusterqueue my-cluster-queue", &["clusterqueue.kueue.x-k8s.io/my-cluster-queue created"]),
    case(
        "create cq strict --cohort cohortname --queuing-strategy StrictFIFO --namespace-selector fooX=barX,fooY=barY \
         --reclaim-within-cohort Any --preemption-within-cluster-queue LowerPriority",
        &["clusterqueue.kueue.x-k8s.io/strict created"],
    ),
    case(
        "create clusterqueue quotas --cohort cohortname \
         --nominal-quota 'alpha:cpu=9;memory=36Gi;nvidia.com/gpu=10,beta:cpu=18;memory=72Gi;nvidia.com/gpu=20' \
         --borrowing-limit 'alpha:cpu=1;memory=1Gi;nvidia.com/gpu=1,beta:cpu=2;memory=2Gi;nvidia.com/gpu=2' \
         --lending-limit 'alpha:cpu=1;memory=1Gi;nvidia.com/gpu=1,beta:cpu=2;memory=2Gi;nvidia.com/gpu=2'",
        &["clusterqueue.kueue.x-k8s.io/quotas created"],
    ),
    case("create cq dry --dry-run server -o name", &["clusterqueue.kueue.x-k8s.io/dry"]),
    case("create cq dry --dry-run client", &["clusterqueue.kueue.x-k8s.io/dry created (client dry run)"]),
    case("create localqueue my-local-queue -c my-cluster-queue", &["localqueue.kueue.x-k8s.io/my-local-queue created"]),
    case("create lq other -c none", &["berth: ClusterQueue none does not exist; -i creates the queue anyway"]),
    case("create lq other -c none -i", &["localqueue.kueue.x-k8s.io/other created"]),
    case("create cq json --dry-run client -o jsonpath={.spec.queueingStrategy}", &["BestEffortFIFO"]),
    case("create cq template --dry-run client --template {{.spec.queueingStrategy}}", &["BestEffortFIFO"]),
    case("create cq unwritten -o go-template", &["berth: -o go-template needs a template: -o go-template=TEMPLATE, "]),
    case("get cq unwritten", &["Error from server (NotFound)"]),
];

/// `list`, with every filter.
const LIST: [Case; 32] = [
    case(
        "list clusterqueue",
        &[
            "NAME COHORT PENDING WORKLOADS ADMITTED WORKLOADS ACTIVE AGE",
            "strict cohortname 0 0 true",
            "my-cluster-queue 0 0",
        ],
    ),
    case("list cq --active true", &["strict cohortname 0 0 true", "!false"]),
    case("list cq --active false", &["!true"]),
    case("list cq --field-selector metadata.name=quotas", &["quotas cohortname 0 0", "!strict"]),
    case("list cq -l no=label", &["No resources found"]),
    case("list rf -o yaml", &["- apiVersion: kueue.x-k8s.io/v1beta2", "!managedFields"]),
    case("list rf -o yaml --show-managed-fields", &["managedFields:"]),
    case("list cq -o name", &["clusterqueue.kueue.x-k8s.io/strict"]),
    case("list cq -o 'jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}'", &["strict", "quotas"]),
    case("list cq --template '{{range .items}}{{.metadata.name}}{{\"\n\"}}{{end}}'", &["strict", "quotas"]),
    case(
        "list cq -o 'go-template={{range .items}}{{.metadata.name}} {{exists . \"spec\" \"cohortName\"}}{{\"\n\"}}{{end}}'",
        &["quotas true", "my-cluster-queue false"],
    ),
    case("list cq -o go-template --template '{{len .items}}{{.missing}}'", &["5<no value>"]),
    case("list cq --template {{.missing}} --allow-missing-template-keys=false", &["berth: ", "!<no value>"]),
    case("list cq -o json --template {{.kind}}", &["berth: --template needs one of -o go-template, "]),
    case(
        "list cq -o name --as bob --as-group system:masters --as-user-extra reason=test --disable-compression",
        &["clusterqueue.kueue.x-k8s.io/strict"],
    ),
    case("list cq -o name --cache-dir /nowhere --user berth", &["clusterqueue.kueue.x-k8s.io/strict"]),
    case(
        "list cq -o name --user nobody",
        &["berth: --kubeconfig-user: the kubeconfig has no user nobody; it has berth"],
    ),
    case("list cq -o name -s https://127.0.0.1:1", &["berth: clusterqueues: ", "!clusterqueue.kueue"]),
    case("version -s https://127.0.0.1:1", &["Client Version: v", "berth: the controllers' image is not known"]),
    case("list cq -o parquet", &["PAR1"]),
    case(
        "list localqueue",
        &["NAME CLUSTERQUEUE PENDING WORKLOADS ADMITTED WORKLOADS AGE", "my-local-queue my-cluster-queue 0 0"],
    ),
    case("list lq -c none", &["other none 0 0", "!my-local-queue"]),
    case("list lq -A", &["NAMESPACE NAME CLUSTERQUEUE", "team-blue main blue 1 2"]),
    case("list resourceflavor", &["NAME NODE LABELS AGE", "alpha kubernetes.io/arch=arm64, kubernetes.io/os=linux"]),
    case(
        "list workload -n team-blue",
        &["NAME JOB TYPE JOB NAME LOCALQUEUE CLUSTERQUEUE STATUS POSITION IN QUEUE EXEC TIME AGE", "job-train-3"],
    ),
    case("list kueueworkload -A", &["NAMESPACE NAME JOB TYPE", "team-blue job-train-1"]),
    case("list workload -n team-blue --status pending", &["job-train-3", "!train-1", "!train-2"]),
    case("list workload -n team-blue --status admitted --status finished", &["job-train-1", "job-train-2", "!train-3"]),
    case("list workload -n team-blue -q main -c blue", &["job-train-1", "job-train-2", "job-train-3"]),
    case("list workload -n team-blue --localqueue none", &["No resources found in team-blue namespace."]),
    case("list workload -n team-blue --for job/train-2", &["job-train-2", "!train-1"]),
    case("list pods -n team-blue --for job/train-1", &["NAME READY STATUS RESTARTS AGE", "train-1-", "!train-2"]),
];

/// `stop`, `resume`, and what they change.
const STOP: [Case; 12] = [
    case("stop clusterqueue strict --keep-already-running", &["clusterqueue.kueue.x-k8s.io/strict stopped"]),
    case("get clusterqueue strict -o jsonpath={.spec.stopPolicy}", &["Hold"]),
    case("resume clusterqueue strict", &["clusterqueue.kueue.x-k8s.io/strict resumed"]),
    case("stop cq strict", &["clusterqueue.kueue.x-k8s.io/strict stopped"]),
    case("get cq strict -o jsonpath={.spec.stopPolicy}", &["HoldAndDrain"]),
    case(
        "stop localqueue my-local-queue --dry-run server",
        &["localqueue.kueue.x-k8s.io/my-local-queue stopped (server dry run)"],
    ),
    case("stop lq my-local-queue -o jsonpath={.spec.stopPolicy} --dry-run client", &["HoldAndDrain"]),
    case("get localqueue my-local-queue -o jsonpath={.spec.stopPolicy}", &["None"]),
    case("stop lq my-local-queue", &["localqueue.kueue.x-k8s.io/my-local-queue stopped"]),
    case("resume lq my-local-queue -o name", &["localqueue.kueue.x-k8s.io/my-local-queue"]),
    case("stop cq none", &["berth: ClusterQueue none does not exist"]),
    case("stop workload none", &["berth: Workload none does not exist in namespace default"]),
];

/// Commands that kubectl runs, and `version`.
const PASSED: [Case; 5] = [
    case("describe clusterqueue quotas", &["Name: quotas"]),
    case(
        "patch cq quotas --type merge -p '{\"spec\":{\"cohortName\":\"moved\"}}'",
        &["clusterqueue.kueue.x-k8s.io/quotas patched"],
    ),
    case("get cq quotas --output name", &["clusterqueue.kueue.x-k8s.io/quotas"]),
    case("delete localqueue other", &["localqueue.kueue.x-k8s.io \"other\" deleted"]),
    case("version", &["Client Version: v"]),
];

#[test]
fn the_documented_commands_of_kueuectl_work() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&[]);
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    cluster.run_blue_jobs();
    cluster.wait_until("two jobs to run, and one to wait", 60, |cluster| {
        let status = &cluster.get(&["localqueue", "main", "-n", "team-blue"])["status"];
        status["pendingWorkloads"] == 1 && status["admittedWorkloads"] == 2
    });
    cluster.wait_until("four pods", 60, |cluster| {
        cluster.get(&["pods", "-n", "team-blue"])["items"].as_array().is_some_and(|pods| pods.len() == 4)
    });
    CREATE.iter().for_each(|case| check(&cluster, case));
    let quotas = cluster.get(&["clusterqueue", "quotas"]);
    let alpha = &quotas["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2];
    assert_eq!(
        (&alpha["nominalQuota"], &alpha["borrowingLimit"], &alpha["lendingLimit"]),
        (&"10".into(), &"1".into(), &"1".into())
    );
    cluster.wait_until("the queues to be active", 60, |cluster| {
        let conditions = &cluster.get(&["clusterqueue", "strict"])["status"]["conditions"];
        conditions.as_array().into_iter().flatten().any(|it| it["type"] == "Active" && it["status"] == "True")
    });
    LIST.iter().for_each(|case| check(&cluster, case));
    STOP.iter().for_each(|case| check(&cluster, case));
    PASSED.iter().for_each(|case| check(&cluster, case));

    let name = |job: &str| {
        let line = format!("list workload -n team-blue --for job/{job} -o jsonpath={{.items[0].metadata.name}}");
        let output = run(&cluster, &words(&line).iter().map(String::as_str).collect::<Vec<_>>(), "");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let printed = |line: &str, input: &str| {
        let output = run(&cluster, &words(line).iter().map(String::as_str).collect::<Vec<_>>(), input);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // A stopped workload leaves its queue; a resumed one is queued again.
    let third = name("train-3");
    assert_eq!(
        printed(&format!("stop workload -n team-blue {third}"), ""),
        format!("workload.kueue.x-k8s.io/{third} stopped\n")
    );
    let active = |name: &str| cluster.get(&["workload", name, "-n", "team-blue"])["spec"]["active"].clone();
    assert_eq!(active(&third), false);
    assert_eq!(
        printed(&format!("resume workload -n team-blue {third}"), ""),
        format!("workload.kueue.x-k8s.io/{third} resumed\n")
    );
    assert_eq!(active(&third), true);

    // Jobs are deleted with their workloads, after a question.
    let line = format!("delete workload -n team-blue {third}");
    let asked = printed(&line, "n\n");
    assert!(
        asked.contains(&format!("  - job.batch/train-3 associated with the team-blue/{third} workload")),
        "{asked}"
    );
    assert!(asked.ends_with("Deletion is canceled\n"), "{asked}");
    assert_eq!(printed(&format!("{line} --dry-run server"), ""), "job.batch/train-3 deleted (server dry run)\n");
    assert!(printed(&line, "y\n").ends_with("job.batch/train-3 deleted\n"));
    let all = printed("delete workload -n team-blue --all --yes --cascade foreground", "");
    assert_eq!(all, "job.batch/train-1 deleted\njob.batch/train-2 deleted\n");
    cluster.wait_until("the jobs to be deleted", 60, |cluster| {
        cluster.get(&["jobs", "-n", "team-blue"])["items"].as_array().is_some_and(Vec::is_empty)
    });
}
