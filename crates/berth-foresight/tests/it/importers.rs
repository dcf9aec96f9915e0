//! Importers, on small files of our own.

use std::io::Write;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{ResourceList, Time};
use berth_foresight::trace::{Format, Selection, openb, read, swf};

use super::{SMALL, trace};

fn error(text: &str) -> String {
    read("file", text.as_bytes(), None).expect_err("an invalid trace").to_string()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn cpus(count: i64) -> ResourceList {
    ResourceList::from([(Name::from("cpu"), count * 1000)])
}

const SWF: &str = "\
; Version: 2.2
; UnixStartTime: 749458803
; MaxNodes: 64
; MaxProcs: 128 (two per node)
; Queue: 1 batch
; Partition: 2 north    the large one
;
  1   0  5 100  4  90 1000  8  200 2000 1 3 1 7 1 2 -1 -1
  2  30 -1  50 16  -1   -1 -1   -1   -1 0 4 2 7 1 2  1 10
  3  40 -1  -1 16  -1   -1 -1   -1   -1 5 4 2 7 1 2 -1 -1
  4  40 -1  10 -1  -1   -1  0   -1   -1 5 4 2 7 1 2 -1 -1
";

#[test]
fn all_columns_of_the_standard_workload_format_are_read() {
    let (header, records) = swf::records(SWF).expect("a log");
    assert_eq!((header.start, header.processors), (Some(749_458_803), Some(128)));
    assert_eq!((header.queues[&1].as_str(), header.partitions[&2].as_str()), ("batch", "north"));
    let (line, first) = records[0];
    assert_eq!(line, 8);
    let wanted = swf::Record {
        job: 1,
        submit: 0.0,
        wait: Some(5.0),
        run: Some(100.0),
        processors_used: Some(4),
        cpu_used: Some(90.0),
        memory_used: Some(1000.0),
        processors_asked: Some(8),
        time_asked: Some(200.0),
        memory_asked: Some(2000.0),
        status: Some(1),
        user: Some(3),
        group: Some(1),
        application: Some(7),
        queue: Some(1),
        partition: Some(2),
        preceding: None,
        think: None,
    };
    assert_eq!(first, wanted);
    assert_eq!((records[1].1.preceding, records[1].1.think), (Some(1), Some(10.0)));
}

#[test]
fn a_log_becomes_jobs_with_a_pod_per_requested_processor() {
    let trace = trace(SWF);
    assert_eq!((trace.format, trace.start), (Format::Swf, Some(Time::from_seconds(749_458_803))));
    assert_eq!(trace.machine, Some(cpus(128)));
    assert_eq!(trace.jobs.len(), 2);
    assert_eq!(trace.left_out["run time unknown"], 1);
    assert_eq!(trace.left_out["number of processors unknown"], 1);
    let (first, second) = (&trace.jobs[0], &trace.jobs[1]);
    assert_eq!((first.pods, &*first.requests), (8, &cpus(1)));
    assert_eq!((first.waited, first.limit), (Some(seconds(5)), Some(seconds(200))));
    assert_eq!((second.pods, second.submitted, second.run_time), (16, seconds(30), seconds(50)));
    let owner = &first.owner;
    let text = |name: &Option<Name>| name.as_deref().map(str::to_owned).unwrap_or_default();
    assert_eq!(
        [owner.tenant.to_string(), text(&owner.user), text(&owner.queue), text(&owner.partition)],
        ["group-1", "user-3", "batch", "north"]
    );
}

#[test]
fn errors_of_a_log_name_line_and_column() {
    let wrong = |from: &str, to: &str| error(&SWF.replace(from, to));
    assert_eq!(wrong("50 16", "50"), "file:9: the line has 17 columns: expected 18");
    assert_eq!(wrong("2  30 -1", "2  soon -1"), "file:9: column 2 (submit time) is \"soon\": expected a number");
    assert_eq!(
        wrong("MaxProcs: 128", "MaxProcs: many"),
        "file:4: header field MaxProcs is \"many\": expected an integer"
    );
    assert_eq!(wrong("  2  30", "  1  30"), "file:9: job 1 is already in line 8");
    assert_eq!(wrong("  1   0", "  1  -7"), "file:8: submit time -7 is negative");
    assert_eq!(error("; MaxProcs: 1\n"), "file: has no job that can be replayed");
}

#[test]
fn philly_jobs_are_sorted_by_time_and_large_ones_have_a_pod_per_machine() {
    let trace = trace(
        "timestamp,duration,num_gpus,gpu_time,cluster\n\
         2017-10-09 07:01:55,66.0,1,66.0,b\n\
         2017-10-09 07:00:00,10.5,12,126.0,a\n\
         2017-10-09 07:00:05,20.0,16,320.0,a\n\
         2017-10-09 07:00:05,20.0,0,0.0,a\n",
    );
    let got: Vec<_> = trace
        .jobs
        .iter()
        .map(|job| (&*job.name, job.submitted.as_secs(), job.pods, job.requests["nvidia.com/gpu"], &*job.owner.tenant))
        .collect();
    assert_eq!(got, [("2", 0, 2, 6, "a"), ("3", 5, 2, 8, "a"), ("1", 115, 1, 1, "b")]);
    assert_eq!(trace.jobs[0].run_time, Duration::from_millis(10_500));
    assert_eq!(trace.start, Some(Time::from_seconds(1_507_532_400)));
    assert_eq!(trace.left_out["no GPU"], 1);
    let text = "timestamp,duration,num_gpus,gpu_time,cluster\nyesterday,66.0,1,66.0,b\n";
    assert_eq!(error(text), "file:2: timestamp is \"yesterday\": expected a time such as 2017-10-09 07:01:55");
    let text = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,-1,1,66.0,b\n";
    assert_eq!(error(text), "file:2: duration is \"-1\": expected seconds, not negative");
}

const PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,6000,12288,1,460,,LS,Running,10,110,30
p1,8000,1024,4,1000,V100M16|V100M32,BE,Running,5,105,5
p2,8000,1024,0,0,,BE,Pending,5,105,
p3,8000,1024,0,0,,BE,Failed,5,,
";

#[test]
fn openb_pods_share_gpus_and_run_from_their_scheduling_to_their_deletion() {
    let trace = trace(PODS);
    let got: Vec<_> = trace
        .jobs
        .iter()
        .map(|job| (&*job.name, job.submitted.as_secs(), job.run_time.as_secs(), job.demand(openb::GPU_MILLI)))
        .collect();
    assert_eq!(got, [("p1", 0, 100, 4000), ("p2", 0, 100, 0), ("p0", 5, 80, 460)]);
    assert_eq!(trace.jobs[2].waited, Some(seconds(20)));
    assert_eq!(trace.jobs[2].requests["memory"], 12288 << 20);
    assert_eq!(trace.left_out["times unknown"], 1);
    let pods = openb::pods(PODS).expect("pods");
    assert_eq!(pods[1].models, ["V100M16", "V100M32"]);
    let nodes =
        openb::nodes("sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,2,T4\nn1,1000,1024,0,\n").expect("nodes");
    assert_eq!(openb::machine(&nodes)[openb::GPU_MILLI], 2000);
    assert_eq!(
        error(&PODS.replace(",1,460,", ",1,1460,")),
        "file:2: gpu_milli is 1460: expected 1 to 1000 for a pod with one GPU"
    );
    let untimed = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,0,0\n";
    assert_eq!(error(untimed), "file:1: column creation_time is missing: pods without times cannot be replayed");
}

#[test]
fn our_own_format_has_columns_in_any_order_and_quantities() {
    let trace = trace(
        "run,submit,request:nvidia.com/gpu,request:memory,pods,queue,priority_class,wait\n\
         60,2026-01-31T12:00:10Z,2,4Gi,3,night,high,5\n\
         60,2026-01-31T12:00:00Z,,1500M,,,,\n\
         ,2026-01-31T12:00:00Z,,1500M,,,,\n",
    );
    let (first, second) = (&trace.jobs[0], &trace.jobs[1]);
    assert_eq!((&*first.name, &*first.owner.tenant, first.requests["memory"]), ("2", "all", 1_500_000_000));
    assert_eq!((second.submitted, second.pods, second.demand("nvidia.com/gpu")), (seconds(10), 3, 6));
    assert_eq!((&*second.owner.tenant, second.priority_class.as_deref()), ("night", Some("high")));
    assert_eq!(trace.start, Some(Time::from_seconds(1_769_860_800)));
    assert_eq!(trace.left_out["run time unknown"], 1);
}

#[test]
fn errors_of_our_own_format_name_line_and_column() {
    let wrong = |from: &str, to: &str| error(&SMALL.replacen(from, to, 1));
    assert_eq!(wrong("500m", "much"), "file:5: request:cpu is \"much\": expected a quantity such as 2, 500m or 4Gi");
    assert_eq!(
        wrong(",limit,", ",limits,"),
        "file:1: column limits is unknown: expected submit, run, job, wait, limit, \
         pods, tenant, user, group, queue, partition, priority, priority_class, request:RESOURCE"
    );
    assert_eq!(wrong("b1,20", "a1,20"), "file:4: job a1 is already in line 2");
    assert_eq!(wrong("ann,2,1", "ann,0,1"), "file:2: pods is 0: expected an integer of at least 1");
    assert_eq!(
        wrong("a2,10", "a2,2026-01-31T12:00:00Z"),
        "file:3: submit mixes seconds and times: use one of them in the whole file"
    );
    assert_eq!(wrong("a2,10", "a2"), "file:3: the line has 8 columns: the header line has 9");
    assert_eq!(wrong("500m", "0"), "file:5: the job requests nothing: at least one request:RESOURCE must be above 0");
    assert!(error("when,how\n1,2\n").starts_with("file:1: the format of the file is unknown: expected Standard"));
}

#[test]
fn a_compressed_file_is_the_same_trace() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(SMALL.as_bytes()).expect("memory can be written");
    let bytes = encoder.finish().expect("memory can be written");
    assert_eq!(read("small.csv", &bytes, None).expect("a trace"), trace(SMALL));
    let broken = read("small.csv", &bytes[..bytes.len() - 9], None).expect_err("a cut file").to_string();
    assert!(broken.starts_with("small.csv: is not a valid gzip file"), "{broken}");
}

#[test]
fn a_selection_starts_with_its_first_job_and_scales_arrivals() {
    let mut part = trace(SMALL);
    let (from, until, limit, scale) = (Some(seconds(10)), Some(seconds(30)), Some(2), Some(2.0));
    let selection = Selection { from, until, limit, scale, ..Selection::default() };
    selection.apply(&mut part);
    let got: Vec<_> = part.jobs.iter().map(|job| (&*job.name, job.submitted.as_secs())).collect();
    assert_eq!(got, [("a2", 0), ("b1", 5)]);
}

#[test]
fn jobs_of_many_pods_can_have_fewer_and_larger_ones() {
    let mut trace = trace("submit,run,pods,request:cpu\n0,60,12,1\n1,60,7,1\n2,60,3,2\n");
    let demands =
        |trace: &berth_foresight::trace::Trace| trace.jobs.iter().map(|job| job.demand("cpu")).collect::<Vec<_>>();
    let before = demands(&trace);
    Selection { pods_max: Some(5), ..Selection::default() }.apply(&mut trace);
    let pods: Vec<(i32, i64)> = trace.jobs.iter().map(|job| (job.pods, job.requests["cpu"])).collect();
    assert_eq!(pods, [(4, 3000), (1, 7000), (3, 2000)]);
    assert_eq!(demands(&trace), before);
}
