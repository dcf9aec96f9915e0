//! Fine-tuning by torchtune (`tune run`): the recipe and its configuration, from the model that the
//! runtime's name contains and from the arguments of the job.

use super::torch::Processes;
use crate::trainer::constants::{NODE, PORT, STEP, TRAINER};
use crate::trainer::json::{jobs, pod};
use crate::trainer::resolve::Resolved;
use crate::trainer::resources;
use crate::trainer::types::TrainJobSpec;

/// The command that starts torchtune.
const ENTRYPOINT: [&str; 2] = ["tune", "run"];
/// Models that have configurations.
pub const MODELS: [&str; 4] = [LLAMA_1B, LLAMA_3B, LLAMA_70B, QWEN];
const LLAMA_1B: &str = "llama3_2/1B";
const LLAMA_3B: &str = "llama3_2/3B";
/// The only model that trains on several nodes.
pub const LLAMA_70B: &str = "llama3_3/70B";
/// The model without quantized fine-tuning.
pub const QWEN: &str = "qwen2_5/1.5B";
/// Models whose quantized fine-tuning uses one device.
pub const SMALL: [&str; 2] = [LLAMA_1B, LLAMA_3B];
/// Options that the runtime sets.
pub const OF_RUNTIME: [&str; 4] =
    ["output_dir", "tokenizer.path", "checkpointer.checkpoint_dir", "tokenizer.merges_file"];

/// True if the job runs torchtune.
pub fn is_fine_tuning(job: &TrainJobSpec) -> bool {
    let command = job.trainer.as_ref().and_then(|trainer| trainer.command.as_ref());
    command.is_some_and(|command| *command == ENTRYPOINT)
}

fn args(job: &TrainJobSpec) -> &[String] {
    job.trainer.as_ref().and_then(|trainer| trainer.args.as_deref()).unwrap_or_default()
}

/// True if an argument sets this option to true.
fn is_on(job: &TrainJobSpec, option: &str) -> bool {
    let pairs = args(job).iter().filter_map(|arg| arg.split_once('='));
    let mut values = pairs.filter(|(name, _)| name.contains(option)).map(|(_, value)| value.trim());
    values.any(|value| value.eq_ignore_ascii_case("true"))
}

/// True if the job trains low-rank adapters.
pub fn is_lora(job: &TrainJobSpec) -> bool {
    args(job).iter().any(|arg| arg.contains("model.lora_attn_modules"))
}

/// True if the job trains adapters of a quantized model.
pub fn is_qlora(job: &TrainJobSpec) -> bool {
    !is_on(job, "model.use_dora") && is_on(job, "model.quantize_base")
}

/// The model in the name of a runtime, such as `torchtune-llama3.2-1b`; empty if there is none.
pub fn model(runtime: &str) -> String {
    match *runtime.split('-').collect::<Vec<_>>() {
        [_, family, size] => format!("{}/{}", family.replace('.', "_"), size.to_uppercase()),
        _ => String::new(),
    }
}

/// The recipe and its configuration.
pub fn recipe(job: &TrainJobSpec, processes: Processes, nodes: i32, gpus: i64) -> (&'static str, String) {
    let is_single = nodes == 1 && (processes == Processes::Count(1) || gpus == 1);
    let (qlora, lora) = (nodes == 1 && is_qlora(job), nodes == 1 && is_lora(job));
    let (recipe, suffix) = match (is_single, qlora, lora) {
        (true, true, _) => ("lora_finetune_single_device", "_qlora_single_device"),
        (true, _, true) => ("lora_finetune_single_device", "_lora_single_device"),
        (true, ..) => ("full_finetune_single_device", "_full_single_device"),
        (_, true, _) => ("lora_finetune_distributed", "_qlora"),
        (_, _, true) => ("lora_finetune_distributed", "_lora"),
        _ if nodes > 1 => ("full_finetune_distributed", "_full_multinode"),
        _ => ("full_finetune_distributed", "_full"),
    };
    (recipe, format!("{}{suffix}", model(&job.runtime_ref.name)))
}

/// The command of the training container.
pub(super) fn command(name: &str, job: &TrainJobSpec, processes: Processes, resolved: &Resolved) -> Vec<String> {
    let (nodes, gpus) = (resolved.nodes(), resources::gpus(&resolved.resources(job)));
    let mut command: Vec<String> = ENTRYPOINT.map(str::to_owned).into();
    let is_distributed = match processes {
        Processes::Count(count) => nodes > 1 || count > 1,
        Processes::Auto => nodes > 1 || gpus > 1,
    };
    if is_distributed {
        command.push(format!("--rdzv_endpoint={}:{PORT}", resolved.first_node(name)));
    }
    let (recipe, configuration) = recipe(job, processes, nodes, gpus);
    command.extend([recipe.to_owned(), "--config".to_owned(), configuration]);
    let trainers = jobs(&resolved.spec).iter().filter(|it| it["template"]["metadata"]["labels"][STEP] == TRAINER);
    let containers = trainers.flat_map(|it| pod(it)["containers"].as_array().into_iter().flatten());
    for container in containers.filter(|container| container["name"] == NODE) {
        let words = container["command"].as_array().into_iter().flatten().filter_map(|word| word.as_str());
        let is_of_runtime = |word: &&str| OF_RUNTIME.contains(&word.split('=').next().unwrap_or_default());
        command.extend(words.filter(is_of_runtime).map(str::to_owned));
    }
    command
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::trainer::policy::enforce;
    use crate::trainer::resolve::resolve;
    use crate::trainer::samples::{job, torch};

    fn tuned(trainer: Value) -> Vec<String> {
        let mut spec = json!({"runtimeRef": {"name": "torchtune-llama3.2-1b"}, "trainer": trainer});
        spec["trainer"]["command"] = json!(["tune", "run"]);
        let job = job(spec);
        let mut runtime = torch();
        let container = "/template/spec/replicatedJobs/0/template/spec/template/spec/containers/0";
        runtime.pointer_mut(container).expect("a container")["command"] =
            json!(["tune", "run", "output_dir=/workspace/output", "other=1"]);
        let mut resolved = resolve(&job, &runtime).expect("a resolved runtime");
        enforce("train", &job, &mut resolved).expect("a policy").command.expect("a command")
    }

    #[test]
    fn the_recipe_follows_devices_and_arguments() {
        let endpoint = "--rdzv_endpoint=train-node-0-0.train:29500";
        assert_eq!(
            tuned(json!({"numProcPerNode": 1})),
            [
                "tune",
                "run",
                "full_finetune_single_device",
                "--config",
                "llama3_2/1B_full_single_device",
                "output_dir=/workspace/output"
            ]
        );
        let lora = tuned(json!({"numProcPerNode": 2, "args": ["model.lora_attn_modules=[q_proj]"]}));
        assert_eq!(lora[2..6], [endpoint, "lora_finetune_distributed", "--config", "llama3_2/1B_lora"]);
        let qlora = tuned(json!({"numProcPerNode": 1, "args": ["model.quantize_base=True"]}));
        assert_eq!(qlora[4], "llama3_2/1B_qlora_single_device");
        let nodes = tuned(json!({"numNodes": 2}));
        assert_eq!(nodes[2..6], [endpoint, "full_finetune_distributed", "--config", "llama3_2/1B_full_multinode"]);
    }

    #[test]
    fn the_model_is_in_the_name_of_the_runtime() {
        assert_eq!(model("torchtune-qwen2.5-1.5b"), QWEN);
        assert_eq!(model("torch-distributed"), "");
    }
}
