//! `--runtime process`: this machine as a node of `berth up`, on which pods run as processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use berth_api::berth::{ClusterConfiguration, ImageConfiguration, ImageFiles, ImageMapping, NodePoolSpec};
use berth_apiserver::admission::pod_security::PodSecurity;
use berth_apiserver::admission::pod_security::policy::Level as PodSecurityLevel;
use berth_cluster::storage::{DiskFolders, Folders};
use berth_cluster::{KubeletOptions, MachineNode, ProcessNode, ServiceAddresses};
use berth_embedded::Node;
use berth_images::{NodeImages, Store};
use berth_machine::{AssignedDevices, ThisMachine};
use berth_network::{Network, Options as NetworkOptions};
use berth_node::{Helper, Level, Options as RuntimeOptions, ProcessRuntime};
use berth_pod_runtime::{Machine, PodRuntime};
use clap::{Args, ValueEnum};
use tokio::task::JoinSet;

use crate::bound_server::BoundServer;
use crate::node_health::MachineProbe;
use crate::{image, process};

/// Folder of the node in the data folder.
const FOLDER: &str = "node";
/// Folder of local volumes in the data folder.
const VOLUMES: &str = "volumes";
/// Domain of the cluster's names.
const DOMAIN: &str = "cluster.local";

/// Options of a node that runs processes.
#[derive(Args)]
pub struct NodeOptions {
    /// Runtime of pods: `simulated` computes their states, `process` adds this machine as a node
    /// and runs their programs on it. Simulated nodes then have the taint berth.dev/simulated.
    #[arg(long, value_enum, default_value_t = Runtime::Simulated)]
    runtime: Runtime,
    /// Isolation of pods that run as processes. Default: the highest level that works here.
    #[arg(long, value_enum)]
    isolation: Option<IsolationLevel>,
    /// Where to find the files of images that no mapping matches and that are not imported: `host`
    /// uses this machine's own files, `pull` pulls the image from its registry, `strict` rejects
    /// the image. Default: images.otherwise of the cluster configuration, else `host`.
    #[arg(long, value_name = "host|pull|strict")]
    images: Option<ImageFiles>,
    /// Maps images by a pattern of their names to an absolute folder, or to `host`, `pull` or
    /// `strict`. May be repeated. The first pattern that matches applies. These patterns are
    /// compared before those of the cluster configuration.
    #[arg(long, value_name = "PATTERN=FILES", value_parser = mapping)]
    image_map: Vec<ImageMapping>,
    /// File that declares devices of this machine. They replace the detected devices of the same
    /// resource.
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    /// Pod Security level of namespaces without a label of their own, when pods run as processes.
    /// `privileged` gives every user that may create pods the privileges of this process.
    #[arg(long, value_enum, default_value_t = PodSecurityChoice::Baseline)]
    pod_security: PodSecurityChoice,
    /// Let other machines reach node ports and host ports, at all addresses of this machine.
    /// Without this option, only this machine and its pods reach them.
    #[arg(long)]
    expose_node_ports: bool,
    /// Stop all pods when the cluster stops. Without this option they continue, and the next start
    /// adopts them.
    #[arg(long)]
    stop_pods: bool,
}

/// Runtimes of pods.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Runtime {
    Simulated,
    Process,
}

/// Isolation levels of the process runtime.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IsolationLevel {
    Full,
    Rootless,
    Plain,
}

impl From<IsolationLevel> for Level {
    fn from(level: IsolationLevel) -> Self {
        match level {
            IsolationLevel::Full => Self::Full,
            IsolationLevel::Rootless => Self::Rootless,
            IsolationLevel::Plain => Self::Plain,
        }
    }
}

/// Pod Security levels.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PodSecurityChoice {
    Privileged,
    Baseline,
    Restricted,
}

impl NodeOptions {
    /// Pod Security of namespaces without labels: the option's level if pods run as processes.
    pub fn pod_security(&self, cluster: &ClusterConfiguration) -> PodSecurity {
        let level = match self.pod_security {
            _ if !self.runs_processes(cluster) => PodSecurityLevel::Privileged,
            PodSecurityChoice::Privileged => PodSecurityLevel::Privileged,
            PodSecurityChoice::Baseline => PodSecurityLevel::Baseline,
            PodSecurityChoice::Restricted => PodSecurityLevel::Restricted,
        };
        let mut security = PodSecurity::default();
        security.defaults.enforce.level = level;
        security
    }

    /// True if pods run as processes: by the option, or by a node pool of the configuration.
    pub fn runs_processes(&self, cluster: &ClusterConfiguration) -> bool {
        let runs = |spec: &NodePoolSpec| spec.is_process() || spec.is_hosted();
        self.runtime == Runtime::Process || cluster.node_pools.iter().any(|pool| runs(&pool.spec))
    }

    /// Opens this machine as a node; `None` if pods are simulated. The pods of a cluster with
    /// `--ephemeral` end with it, because their folder is deleted.
    ///
    /// # Errors
    /// The machine cannot be described, the requested isolation does not work, or the folder cannot
    /// be used.
    pub async fn open(&self, bound: &BoundServer, cluster: &ClusterConfiguration) -> anyhow::Result<Option<OpenNode>> {
        if !self.runs_processes(cluster) {
            return Ok(None);
        }
        let data = bound.folder();
        let folder = data.join(FOLDER);
        // Pods may run as other users, and must be able to reach their folders within this folder.
        process::private_folder(&folder, crate::bound_server::is_ours).context("the folder of the node")?;
        let found = berth_machine::detect(Path::new("/"));
        let found = match &self.devices {
            Some(file) => {
                berth_machine::declared(file, found).with_context(|| format!("--devices {}", file.display()))?
            }
            None => found,
        };
        let machine = Arc::new(ThisMachine::read(&folder, &found).context("this machine cannot be described")?);
        let devices = Arc::new(AssignedDevices::open(&folder, found)?);
        let helper = std::env::current_exe().context("the path of this program")?;
        let prepared =
            ProcessRuntime::prepare(self.process_runtime(&folder, data, helper.clone(), &cluster.images)?).await?;
        let isolation = prepared.isolation().clone();
        let addresses = &machine.facts().addresses;
        let options = self.network(&folder, bound.address(), addresses, isolation.level, helper)?;
        let (network, network_report) = Network::open(options).await?;
        let runtime = Arc::new(prepared.open(Some(network.clone())).await?);
        // Addresses of pods that ended while this process did not run.
        network.retain(&runtime.pods().iter().map(|pod| pod.uid.clone()).collect()).await?;
        let facts = machine.facts();
        let mut report = vec![format!("pods run as processes of {}: isolation {}", facts.name, isolation.level)];
        report.extend(isolation.reasons);
        report.push(format!("pod network: {network_report}"));
        let shortages = machine.pressure().context("the current usage of this machine")?;
        for shortage in [shortages.memory, shortages.disk, shortages.pids].into_iter().flatten() {
            report.push(format!("WARNING: no pod is scheduled to this machine for now: {shortage}"));
        }
        let options = KubeletOptions {
            cluster_dns: network.cluster_dns().into_iter().map(IpAddr::from).collect(),
            cluster_dns_on_host: network.cluster_dns_on_host().into_iter().map(IpAddr::from).collect(),
            cluster_domain: DOMAIN.to_owned(),
            host_ip: facts.addresses.first().map_or_else(|| "127.0.0.1".to_owned(), ToString::to_string),
            host_dns: berth_network::host_dns(),
            services: Arc::new(Served(network.clone())),
            services_on_host: Arc::new(ServedOnHost(network.clone())),
        };
        let process =
            ProcessNode { name: facts.name.clone(), runtime: runtime.clone(), devices: devices.clone(), options };
        let machine = MachineNode {
            name: facts.name.clone(),
            machine: machine.clone(),
            devices,
            runtime_version: runtime.version(),
        };
        let mut folders = Folders::new();
        folders.insert(process.name.clone(), Arc::new(DiskFolders::new(data.join(VOLUMES))));
        let health = Arc::new(MachineProbe::new());
        let node = Node { process, machine, folders, network: network.clone(), health };
        Ok(Some(OpenNode { node, report, runtime, network, stop_pods: self.stop_pods || bound.data_dir().is_none() }))
    }

    fn network(
        &self,
        folder: &Path,
        api_server: SocketAddr,
        addresses: &[IpAddr],
        isolation: berth_node::Level,
        helper: PathBuf,
    ) -> anyhow::Result<NetworkOptions> {
        Ok(NetworkOptions {
            folder: folder.join("network"),
            level: match isolation {
                berth_node::Level::Plain => berth_network::Level::Plain,
                berth_node::Level::Rootless => berth_network::Level::Rootless,
                berth_node::Level::Full => berth_network::Level::Full,
            },
            helper: Some(helper),
            pod_range: None,
            cluster_domain: DOMAIN.to_owned(),
            service_range: berth_kinds::strategy::SERVICE_RANGE.parse().context("the range of cluster IPs")?,
            api_server,
            node_addresses: addresses
                .iter()
                .filter_map(|address| match address {
                    IpAddr::V4(address) => Some(*address),
                    IpAddr::V6(_) => None,
                })
                .collect(),
            expose_node_ports: self.expose_node_ports,
        })
    }

    fn process_runtime(
        &self,
        folder: &Path,
        data: &Path,
        helper: PathBuf,
        configured: &ImageConfiguration,
    ) -> anyhow::Result<RuntimeOptions> {
        let store = Store::open(&data.join(image::FOLDER))?;
        let mappings = self.image_map.iter().chain(&configured.mappings).cloned().collect();
        let otherwise = self.images.clone().unwrap_or_else(|| configured.otherwise.clone());
        let images = ImageConfiguration { mappings, otherwise, plain_http: configured.plain_http.clone() };
        let images = NodeImages::new(store, image::configured(&images));
        Ok(RuntimeOptions {
            hidden: vec![data.to_owned()],
            level: self.isolation.map(Level::from),
            ..RuntimeOptions::new(folder.to_owned(), Arc::new(images), Helper(helper))
        })
    }
}

/// Addresses at which the pods of this machine reach Services.
#[derive(Debug)]
struct Served(Arc<Network>);

impl ServiceAddresses for Served {
    fn service(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr {
        self.0.address_of_service(cluster_ip)
    }

    fn api_server(&self, service: SocketAddr) -> SocketAddr {
        match service.ip() {
            IpAddr::V4(cluster_ip) => self.0.api_server_for_pods(cluster_ip),
            IpAddr::V6(_) => service,
        }
    }
}

/// Addresses at which pods on this machine's network reach Services.
#[derive(Debug)]
struct ServedOnHost(Arc<Network>);

impl ServiceAddresses for ServedOnHost {
    fn service(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr {
        self.0.address_of_service_on_host(cluster_ip)
    }

    fn api_server(&self, service: SocketAddr) -> SocketAddr {
        match service.ip() {
            IpAddr::V4(cluster_ip) => self.0.api_server_on_host(cluster_ip),
            IpAddr::V6(_) => service,
        }
    }
}

/// This machine as an opened node.
pub struct OpenNode {
    /// The node for the embedded cluster.
    pub node: Node,
    /// Lines to print: isolation and network, with the reasons for missing parts.
    pub report: Vec<String>,
    runtime: Arc<ProcessRuntime>,
    network: Arc<Network>,
    stop_pods: bool,
}

/// The end of a node.
pub struct Closing {
    runtime: Arc<ProcessRuntime>,
    network: Arc<Network>,
    stop_pods: bool,
}

impl OpenNode {
    /// Separates the cluster's node from the handle that closes it.
    pub fn split(self) -> (Node, Closing) {
        let Self { node, runtime, network, stop_pods, .. } = self;
        (node, Closing { runtime, network, stop_pods })
    }
}

impl Closing {
    /// Call it after the controllers have stopped. Stops the pods and removes the network if that
    /// was requested; otherwise pods continue.
    pub async fn close(self) {
        if !self.stop_pods {
            let running = self.runtime.pods().iter().filter(|pod| pod.is_ready).count();
            if running > 0 {
                eprintln!("berth: {running} pods continue; the next start adopts them, and --stop-pods stops them");
            }
            return;
        }
        let mut stopping = JoinSet::new();
        for pod in self.runtime.pods() {
            let runtime = self.runtime.clone();
            stopping.spawn(async move {
                let stopped = async {
                    runtime.stop_sandbox(&pod.uid).await?;
                    runtime.remove_sandbox(&pod.uid).await
                };
                if let Err(error) = stopped.await {
                    eprintln!("berth: pod {}/{} was not stopped: {error}", pod.namespace, pod.name);
                }
            });
        }
        if !stopping.is_empty() {
            eprintln!("berth: stopping {} pods", stopping.len());
        }
        stopping.join_all().await;
        if let Err(error) = self.network.remove().await {
            eprintln!("berth: the pod network was not removed: {error}");
        }
    }
}

/// Parses `PATTERN=FILES`.
fn mapping(text: &str) -> Result<ImageMapping, String> {
    let (image, files) = text.split_once('=').filter(|(image, _)| !image.is_empty()).ok_or("expected PATTERN=FILES")?;
    Ok(ImageMapping { image: image.to_owned(), files: files.parse()?, ..ImageMapping::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_mappings_need_a_pattern_and_files() {
        assert_eq!(mapping("torch:*=/srv/torch").unwrap().files, ImageFiles::Folder("/srv/torch".into()));
        assert_eq!(mapping("*=host").unwrap().files, ImageFiles::Host);
        for wrong in ["torch", "=/srv", "torch=", "torch=srv"] {
            assert!(mapping(wrong).is_err(), "{wrong}");
        }
    }
}
