//! The traces of real clusters next to the repository.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::Name;
use berth_foresight::policy::built_in::BuiltIn;
use berth_foresight::replay::Replay;
use berth_foresight::trace::{Selection, Trace, openb, read, text};
use berth_load::Untimed;

/// A file of the traces; `None` skips the test.
fn bytes(path: &str) -> Option<Vec<u8>> {
    let file = berth_testing::shared(&format!("traces/{path}"))?;
    Some(std::fs::read(file).expect("a readable file"))
}

fn trace(path: &str) -> Option<Trace> {
    let bytes = bytes(path)?;
    Some(read(path, &bytes, None).unwrap_or_else(|error| panic!("{error}")))
}

fn processor_hours(trace: &Trace) -> f64 {
    let seconds: f64 =
        trace.jobs.iter().map(|job| job.demand("cpu") as f64 / 1000.0 * job.run_time.as_secs_f64()).sum();
    seconds / 3600.0
}

/// The first days of a trace under the default policy keep the invariants of every replay.
fn replay_days(mut trace: Trace, days: u64) {
    let until = Some(Duration::from_secs(days * 86_400));
    Selection { until, ..Selection::default() }.apply(&mut trace);
    for built_in in [BuiltIn::BestEffort, BuiltIn::Reclaim] {
        let policy = built_in.policy(&trace);
        let history = Replay::new(&trace, &policy).expect("every job has a queue").run(&mut Untimed);
        super::replays::check(&trace, &policy, &history);
        assert!(history.jobs.iter().all(|record| record.ended.is_some()), "{built_in:?}");
    }
}

#[test]
fn the_log_of_nasa_has_its_published_figures() {
    let Some(trace) = trace("nasa-ipsc-1993/NASA-iPSC-1993-3.1-cln.swf.gz") else { return };
    assert_eq!(trace.jobs.len(), 18_239);
    assert_eq!(trace.machine.as_ref().map(|machine| machine["cpu"]), Some(128_000));
    assert_eq!(processor_hours(&trace).round(), 131_733.0);
    let mut sizes: BTreeMap<i32, usize> = BTreeMap::new();
    for job in &trace.jobs {
        *sizes.entry(job.pods).or_default() += 1;
    }
    assert_eq!((sizes[&1], sizes[&32], sizes[&128]), (4935, 3662, 420));
    replay_days(trace, 7);
}

#[test]
fn the_log_of_the_grid_has_its_published_figures() {
    let Some(trace) = trace("lcg-grid-2005/LCG-2005-1.swf.gz") else { return };
    assert_eq!(trace.jobs.len(), 188_041);
    assert_eq!(trace.machine.as_ref().map(|machine| machine["cpu"]), Some(24_515_000));
    assert_eq!(trace.jobs.last().map(|job| job.submitted.as_secs()), Some(950_392));
    assert_eq!(processor_hours(&trace).round(), 417_370.0);
    assert!(trace.jobs.iter().all(|job| job.limit.is_some() && job.pods == 1));
    let users: std::collections::BTreeSet<_> = trace.jobs.iter().map(|job| job.owner.user.clone()).collect();
    let groups: std::collections::BTreeSet<_> = trace.jobs.iter().map(|job| job.owner.group.clone()).collect();
    assert_eq!((users.len(), groups.len()), (216, 28));
    assert!(trace.jobs.iter().any(|job| job.owner.partition.as_deref() == Some("grid.ici.ro")));
}

#[test]
fn the_jobs_of_philly_have_their_published_figures() {
    let Some(trace) = trace("microsoft-philly-2017/philly_jobs.csv.gz") else { return };
    assert_eq!(trace.jobs.len(), 82_247);
    let gpu_seconds: f64 =
        trace.jobs.iter().map(|job| job.demand("nvidia.com/gpu") as f64 * job.run_time.as_secs_f64()).sum();
    assert_eq!((gpu_seconds / 3600.0).round(), 978_078.0);
    let quotas = berth_foresight::policy::built_in::quotas(&trace);
    assert_eq!(quotas.len(), 15);
    // Half of the published peaks, rounded up, and at least the largest job.
    let quota = |tenant: &str| quotas[tenant]["nvidia.com/gpu"];
    assert_eq!((quota("b436b2"), quota("6214e9"), quota("0e4a51"), quota("23dbec")), (378, 298, 118, 24));
}

#[test]
fn the_pods_and_nodes_of_openb_have_their_published_figures() {
    const FOLDER: &str = "alibaba-gpu-2023-openb";
    let Some(nodes) = bytes(&format!("{FOLDER}/openb_node_list_all_node.csv.gz")) else { return };
    let nodes = openb::nodes(&text(&nodes).expect("text")).expect("nodes");
    assert_eq!(nodes.len(), 1523);
    let machine = openb::machine(&nodes);
    assert_eq!((machine[openb::GPU_MILLI], machine["cpu"] / 1000), (6_212_000, 125_514));
    let Some(pods) = bytes(&format!("{FOLDER}/openb_pod_list_default.csv.gz")) else { return };
    let pods = text(&pods).expect("text");
    let listed = openb::pods(&pods).expect("pods");
    assert_eq!(listed.len(), 8152);
    let mut trace = read("openb", pods.as_bytes(), None).expect("a trace");
    let left_out: usize = trace.left_out.values().sum();
    assert_eq!(trace.jobs.len() + left_out, 8152);
    assert!(trace.jobs.len() > 7000, "{:?}", trace.left_out);
    trace.machine = Some(machine);
    let tenants: std::collections::BTreeSet<&Name> = trace.jobs.iter().map(|job| &job.owner.tenant).collect();
    assert_eq!(tenants.len(), 4);
    let untimed = bytes(&format!("{FOLDER}/openb_pod_list_multigpu50.csv.gz")).expect("another list");
    assert!(openb::pods(&text(&untimed).expect("text")).expect("pods").iter().any(|pod| pod.gpus == 8));
}
