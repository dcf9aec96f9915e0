//! PyTorch: `MASTER_ADDR` and the other variables of `torch.distributed`, and the variables `PET_*`
//! of `torchrun`. Workers get an init container that waits until the master's name has an address.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{add, port, unbuffered};
use crate::training::types::{ElasticPolicy, Job, Replica};

/// Image of the init container.
const INIT_IMAGE: &str = "alpine:3.10";
/// Maximum number of times that the init container looks up the name, at intervals of 2 seconds.
const INIT_TRIES: u32 = 100;

pub(super) fn complete(job: &Job<'_>, replica: &Replica, index: i32, pod: &mut PodSpec) -> Result<(), String> {
    let variables = variables(job, replica, index)?;
    for container in &mut pod.containers {
        add(container, variables.clone());
    }
    if replica.type_ == "Worker" && job.spec.replica("Master").is_some() {
        let wait = wait_for(&job.replica_name("Master", 0));
        pod.init_containers.get_or_insert_default().push(wait);
    }
    Ok(())
}

fn variables(job: &Job<'_>, replica: &Replica, index: i32) -> Result<Vec<(&'static str, String)>, String> {
    let spec = job.spec;
    let mut variables = vec![unbuffered()];
    if spec.replica("Master").is_some() {
        let port = port(job, "Master")?.to_string();
        let master = job.replica_name("Master", 0);
        let rank = if replica.type_ == "Worker" { index + 1 } else { index };
        let processes = spec.processes_per_pod.as_deref().and_then(|number| number.parse().ok()).unwrap_or(1_i64);
        variables.extend([
            ("MASTER_PORT", port.clone()),
            ("PET_MASTER_PORT", port),
            ("MASTER_ADDR", master.clone()),
            ("PET_MASTER_ADDR", master),
            ("WORLD_SIZE", i64::from(spec.total()).saturating_mul(processes).to_string()),
            ("RANK", rank.to_string()),
            ("PET_NODE_RANK", rank.to_string()),
        ]);
    }
    if let Some(processes) = &spec.processes_per_pod {
        variables.push(("PET_NPROC_PER_NODE", processes.clone()));
    }
    match &spec.elastic {
        Some(elastic) => variables.extend(elastic_variables(job, elastic)?),
        None => variables.push(("PET_NNODES", spec.total().to_string())),
    }
    Ok(variables)
}

fn elastic_variables(job: &Job<'_>, elastic: &ElasticPolicy) -> Result<Vec<(&'static str, String)>, String> {
    let host = elastic.rdzv_host.clone().unwrap_or_else(|| job.replica_name("Worker", 0));
    let rendezvous = elastic.rdzv_port.map_or_else(|| port(job, "Worker"), Ok)?;
    let (least, most) = (elastic.min_replicas.unwrap_or(1), elastic.max_replicas.unwrap_or(1));
    let mut variables = vec![
        ("PET_RDZV_ENDPOINT", format!("{host}:{rendezvous}")),
        ("PET_RDZV_BACKEND", elastic.rdzv_backend.clone().unwrap_or_else(|| "c10d".to_owned())),
        ("PET_NNODES", format!("{least}:{most}")),
    ];
    variables.extend(elastic.max_restarts.map(|restarts| ("PET_MAX_RESTARTS", restarts.to_string())));
    variables.extend(elastic.n_proc_per_node.map(|processes| ("PET_NPROC_PER_NODE", processes.to_string())));
    variables.extend(elastic.rdzv_id.clone().map(|id| ("PET_RDZV_ID", id)));
    if let Some(options) = elastic.rdzv_conf.as_ref().filter(|options| !options.is_empty()) {
        let options: Vec<_> = options.iter().map(|option| format!("{}={}", option.key, option.value)).collect();
        variables.push(("PET_RDZV_CONF", options.join(",")));
    }
    if elastic.standalone == Some(true) {
        variables.push(("PET_STANDALONE", String::new()));
    }
    Ok(variables)
}

/// The init container. It ends when the name of the master's Service has an address, and fails
/// after [`INIT_TRIES`]. Some images have `getent`, others `nslookup`.
fn wait_for(master: &str) -> Container {
    let script = format!(
        "for try in $(seq {INIT_TRIES}); do if getent hosts {master} || nslookup {master}; then exit 0; fi; \
         echo waiting for master; sleep 2; done; exit 1"
    );
    let amounts = |cpu: &str, memory: &str| {
        BTreeMap::from([("cpu", cpu), ("memory", memory)].map(|(name, of)| (name.to_owned(), Quantity(of.to_owned()))))
    };
    Container {
        name: "init-pytorch".to_owned(),
        image: Some(INIT_IMAGE.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(["sh", "-c", &script].map(str::to_owned).to_vec()),
        resources: Some(ResourceRequirements {
            limits: Some(amounts("100m", "20Mi")),
            requests: Some(amounts("50m", "10Mi")),
            claims: None,
        }),
        ..Container::default()
    }
}
