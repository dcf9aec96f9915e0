//! Packing of pods with parts of GPUs.

use berth_foresight::packing::{Placement, pack};
use berth_foresight::trace::openb::{Node, Pod};

fn node(name: &str, cpu: i64, gpus: u32, model: &str) -> Node {
    Node { name: name.to_owned(), cpu_milli: cpu, memory_mib: 1 << 20, gpus, model: model.to_owned() }
}

fn pod(cpu: i64, gpus: u32, gpu_milli: i64, models: &[&str]) -> Pod {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    Pod { name: "pod".to_owned(), cpu_milli: cpu, memory_mib: 1, gpus, gpu_milli, models }
}

#[test]
fn a_part_of_a_gpu_comes_from_one_gpu() {
    // The sum of the free parts is 0.8 GPUs, but each GPU has 0.4 free only.
    let nodes = [node("n", 64_000, 2, "T4")];
    for placement in [Placement::BestFit, Placement::LeastFragmentation] {
        let packing = pack(&nodes, &[pod(1000, 1, 600, &[])], placement);
        assert_eq!((packing.placed, packing.allocated), (2, 1.2), "{placement:?}");
        assert!(packing.rejected > 0, "{placement:?}");
    }
}

#[test]
fn the_model_of_the_gpu_and_the_free_cpu_decide_whether_a_pod_fits() {
    let nodes = [node("n0", 1000, 1, "T4"), node("n1", 4000, 1, "V100")];
    let wrong_model = pack(&nodes, &[pod(1000, 1, 1000, &["A10"])], Placement::BestFit);
    assert_eq!((wrong_model.placed, wrong_model.share()), (0, 0.0));
    let no_cpu = pack(&nodes, &[pod(2000, 1, 1000, &["T4"])], Placement::BestFit);
    assert_eq!(no_cpu.placed, 0);
    let either = pack(&nodes, &[pod(1000, 1, 1000, &["T4", "V100"])], Placement::BestFit);
    assert_eq!((either.placed, either.share()), (2, 1.0));
}

#[test]
fn shared_pods_leave_whole_gpus_for_pods_that_need_several() {
    let nodes = [node("n0", 64_000, 4, "T4"), node("n1", 64_000, 4, "T4")];
    let pods = [pod(1000, 1, 500, &[]), pod(1000, 1, 500, &[]), pod(1000, 4, 1000, &[]), pod(1000, 1, 500, &[])];
    for placement in [Placement::BestFit, Placement::LeastFragmentation] {
        let packing = pack(&nodes, &pods, placement);
        // The pods that share GPUs are all on one node; only the second pod with four GPUs is
        // rejected.
        assert_eq!((packing.allocated, packing.rejected), (6.5, 1), "{placement:?}");
    }
}

#[test]
fn a_list_without_gpus_ends() {
    let packing = pack(&[node("n", 64_000, 1, "T4")], &[pod(1000, 0, 0, &[])], Placement::BestFit);
    assert_eq!((packing.placed, packing.requested), (1, 0.0));
}
