//! Validation of fine-tuning by torchtune, in upstream's words.

use berth_apimachinery::field::{Error, Path};
use serde_json::json;

use crate::trainer::policy::Processes;
use crate::trainer::policy::torchtune::{LLAMA_70B, MODELS, OF_RUNTIME, QWEN, SMALL, is_lora, is_qlora, model, recipe};
use crate::trainer::resolve::Resolved;
use crate::trainer::resources;
use crate::trainer::types::TrainJobSpec;

/// Validates a job that runs torchtune.
pub(super) fn validate(job: &TrainJobSpec, resolved: &Resolved) -> Vec<Error> {
    let spec = Path::new("spec");
    let (reference, trainer) = (spec.child("runtimeRef"), spec.child("trainer"));
    let name_at = reference.child("name");
    let runtime = job.runtime_ref.name.as_str();
    let model = model(runtime);
    let mut errors = Vec::new();
    if !MODELS.contains(&model.as_str()) {
        let detail = format!("must have a supported pretrained model, invalid model configured: {model}");
        errors.push(Error::invalid(&name_at, runtime, detail));
    }
    let nodes = job.nodes().unwrap_or(1);
    let nodes_at = trainer.child("numNodes");
    if nodes > 1 && model != LLAMA_70B {
        errors.push(Error::invalid(&nodes_at, nodes, format!("must be 1 for {model} model")));
    }
    let processes = job.processes().map_or(Processes::Auto, |count| Processes::Count(count.into()));
    let (_, configuration) = recipe(job, processes, nodes, resources::gpus(&resolved.resources(job)));
    if configuration.contains("_qlora") {
        if model == QWEN {
            errors.push(Error::invalid(&name_at, runtime, format!("QLoRA is not supported for {model} model")));
        }
        if !configuration.contains("_qlora_single_device") && SMALL.contains(&model.as_str()) {
            let shown = job.processes().map_or(json!("auto"), |count| json!(count));
            let detail = format!("must be auto or 1 for {model} model when using QLoRA");
            errors.push(Error::invalid(&trainer.child("numProcPerNode"), shown, detail));
            let own = job.trainer.as_ref().and_then(|it| it.resources_per_node.clone()).unwrap_or_default();
            let detail = format!("must have gpu resource with value 1 for {model} model when using QLoRA");
            errors.push(Error::invalid(&trainer.child("resourcesPerNode"), own, detail));
        }
    }
    if nodes > 1 && (is_lora(job) || is_qlora(job)) {
        let detail = "LoRA fine-tuning is not supported for multi-node training in TorchTune";
        errors.push(Error::invalid(&nodes_at, nodes, detail));
    }
    let args = trainer.child("args");
    let own = job.trainer.as_ref().and_then(|it| it.args.as_deref()).unwrap_or_default();
    for (index, arg) in own.iter().enumerate() {
        let key = arg.split('=').next().unwrap_or_default();
        if OF_RUNTIME.contains(&key) {
            let detail = format!("must not set immutable config {key:?} in trainer args; it is managed by the runtime");
            errors.push(Error::invalid(&args.index(index), arg.as_str(), detail));
        }
    }
    errors
}
