//! The target of a bench: an API server and controllers in this process, in processes of their own,
//! or in another cluster.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use berth_apiserver::UserInfo;
use berth_controllers::rights;
use berth_embedded::Storage;
use berth_embedded::api::{ApiOptions, Apiserver};
use berth_process::connect::{self, Requests};
use berth_process::limit::{Limit, Limiter};
use berth_process::process::{self, TemporaryFolder};
use berth_runtime::{Clock, Manager};
use clap::{Args, ValueEnum};
use kube::Client;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::Layer;

use crate::measure::Cost;
use crate::sender::Sender;

/// Maximum time for a process to start serving.
const START_MAX: Duration = Duration::from_secs(60);

/// Where the API server and the controllers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// In this process, on a durable store.
    Embedded,
    /// (for `berth bench api`) `berth apiserver` as a separate process, over TLS.
    Processes,
}

/// Options of the target.
#[derive(Args)]
pub struct TargetOptions {
    /// Where the API server and the controllers run.
    #[arg(long, value_enum, default_value = "embedded")]
    api: Where,
    /// Kubeconfig file of an existing cluster: measure it and its controllers instead of starting
    /// them. The cluster should have no other load.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["api", "limit", "data_dir"])]
    kubeconfig: Option<PathBuf>,
    /// Limit on the requests of the controllers' client, as in client-go: requests per second and
    /// kind, and burst; or `none`.
    #[arg(long, value_name = "QPS/BURST", default_value = "none", value_parser = limit)]
    limit: LimitOption,
    /// Folder for the store, on the disk to measure; kept afterwards. Default: a temporary folder,
    /// removed afterwards.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug)]
pub struct LimitOption(pub Option<Limit>);

fn limit(text: &str) -> Result<LimitOption, String> {
    if text == "none" { Ok(LimitOption(None)) } else { text.parse().map(|limit| LimitOption(Some(limit))) }
}

impl TargetOptions {
    /// The limit of the controllers' client.
    pub fn limit(&self) -> Option<Limit> {
        self.limit.0
    }

    /// Description of the target for the report.
    pub fn describe(&self) -> String {
        match (&self.kubeconfig, self.api) {
            (Some(path), _) => format!("the cluster of {}", path.display()),
            (None, Where::Embedded) => "embedded, one process, durable".to_owned(),
            (None, Where::Processes) => "berth apiserver and berth controller over TLS, durable".to_owned(),
        }
    }
}

/// Number of writes by verb and resource.
pub type Writes = BTreeMap<String, u64>;

/// The counts minus those of an earlier measurement.
pub fn since(counts: &Writes, earlier: &Writes) -> Writes {
    let left = |kind: &str, count: u64| count - earlier.get(kind).copied().unwrap_or(0).min(count);
    counts.iter().map(|(kind, count)| (kind.clone(), left(kind, *count))).filter(|(_, count)| *count > 0).collect()
}

/// A running target.
pub struct Target {
    /// The bench's own client.
    pub client: Client,
    own: Requests,
    side: Side,
    folder: Option<Folder>,
}

enum Side {
    Embedded {
        requests: Requests,
        stop: Option<oneshot::Sender<()>>,
        manager: JoinHandle<Result<(), berth_runtime::ManagerError>>,
        at_start: Cost,
    },
    Processes {
        // Dropped first, because controllers log errors if their server stops before them.
        controller: Running,
        server: Running,
        metrics: String,
    },
    Foreign {
        at_start: Cost,
    },
}

/// Folder of a server's files during a bench.
pub struct Folder {
    path: PathBuf,
    /// Removes the folder when dropped; `None` if the user named the folder.
    _temporary: Option<TemporaryFolder>,
}

impl Folder {
    /// The given folder, or a temporary one.
    pub fn of(given: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = given else {
            let temporary = TemporaryFolder::new("berth-bench")?;
            return Ok(Folder { path: temporary.path().to_owned(), _temporary: Some(temporary) });
        };
        process::private_folder(path, |_| false).context("--data-dir")?;
        Ok(Folder { path: path.to_owned(), _temporary: None })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Target {
    /// Starts the target. Once this returns, the API responds and the controllers run.
    pub async fn start(options: &TargetOptions) -> anyhow::Result<Self> {
        let own = Requests::default();
        if let Some(path) = &options.kubeconfig {
            let client = client_of(path, &own).await?;
            return Ok(Target { client, own, side: Side::Foreign { at_start: Cost::own() }, folder: None });
        }
        let folder = Folder::of(options.data_dir.as_deref())?;
        let (client, side) = match options.api {
            Where::Embedded => embedded(&folder.path, options.limit(), &own).await?,
            Where::Processes => processes(&folder.path, options.limit(), &own).await?,
        };
        Ok(Target { client, own, side, folder: Some(folder) })
    }

    /// Cost of each process since the target was started.
    pub fn costs(&self) -> Vec<(&'static str, Cost)> {
        match &self.side {
            Side::Embedded { at_start, .. } => vec![("server, controller and load", Cost::own().since(*at_start))],
            Side::Processes { server, controller, .. } => {
                vec![("server", server.cost()), ("controller", controller.cost()), ("load", Cost::own())]
            }
            Side::Foreign { at_start } => vec![("load", Cost::own().since(*at_start))],
        }
    }

    /// Writes of the controllers so far. Empty for another cluster, because its writes are unknown.
    pub async fn controller_writes(&self) -> anyhow::Result<Writes> {
        Ok(match &self.side {
            Side::Embedded { requests, .. } => writes(&requests.text()),
            Side::Processes { metrics, .. } => writes(&get(metrics, "/metrics").await?),
            Side::Foreign { .. } => Writes::new(),
        })
    }

    /// Writes of the bench itself so far.
    pub fn own_writes(&self) -> Writes {
        writes(&self.own.text())
    }

    /// Size of the store's files in bytes.
    pub fn disk(&self) -> Option<u64> {
        let folder = self.folder.as_ref()?;
        let entries = std::fs::read_dir(&folder.path).ok()?;
        Some(entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum())
    }

    /// Why the run cannot continue, if a process or the controllers have ended.
    pub fn dead(&mut self) -> Option<String> {
        match &mut self.side {
            Side::Embedded { manager, .. } => manager.is_finished().then(|| "the controllers stopped".to_owned()),
            Side::Processes { server, controller, .. } => [("apiserver", server), ("controller", controller)]
                .into_iter()
                .find_map(|(name, it)| Some(format!("berth {name} ended: {}", it.child.try_wait().ok()??))),
            Side::Foreign { .. } => None,
        }
    }

    /// Stops the controllers and processes that were started.
    pub async fn stop(self) {
        if let Side::Embedded { mut stop, manager, .. } = self.side {
            if let Some(stop) = stop.take() {
                // The manager may have ended by itself, which the join below reports.
                let _ = stop.send(());
            }
            if let Ok(Err(error)) = manager.await {
                tracing::error!(%error, "the controllers stopped early");
            }
        }
    }
}

/// An API server alone.
pub struct Server {
    side: Alone,
    folder: Folder,
}

enum Alone {
    Embedded { api: Apiserver, at_start: Cost },
    Process(Running),
}

impl Server {
    /// Starts the server. Once this returns, it responds to requests.
    pub async fn start(place: Where, folder: Option<&Path>) -> anyhow::Result<Self> {
        let folder = Folder::of(folder)?;
        let side = match place {
            Where::Embedded => {
                let at_start = Cost::own();
                let config = berth_controllers::Config::default();
                Alone::Embedded { api: apiserver(&folder.path, Clock::system(), config).await?, at_start }
            }
            Where::Processes => Alone::Process(apiserver_process(&folder.path)?),
        };
        Ok(Server { side, folder })
    }

    /// A client with its own connection.
    pub async fn client(&self) -> anyhow::Result<Client> {
        match &self.side {
            Alone::Embedded { api, .. } => Ok(api.client("berth:bench")),
            Alone::Process(_) => client_of(&self.folder.path.join("kubeconfig"), &Requests::default()).await,
        }
    }

    /// A sender with its own connection.
    pub async fn sender(&self) -> anyhow::Result<Sender> {
        match &self.side {
            Alone::Embedded { api, .. } => Ok(Sender::Inside(api.client("berth:bench"))),
            Alone::Process(_) => Sender::connect(&config_of(&self.folder.path.join("kubeconfig")).await?).await,
        }
    }

    /// True if users of the server take turns. In-process users do not wait for each other.
    pub fn takes_turns(&self) -> bool {
        matches!(self.side, Alone::Process(_))
    }

    /// Client configuration that authenticates with a token in place of the certificate.
    pub async fn config_with(&self, token: &str) -> anyhow::Result<kube::Config> {
        let mut config = config_of(&self.folder.path.join("kubeconfig")).await?;
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        Ok(config)
    }

    /// Cost of the server. If embedded, it includes the cost of its clients.
    pub fn cost(&self) -> Cost {
        match &self.side {
            Alone::Embedded { at_start, .. } => Cost::own().since(*at_start),
            Alone::Process(process) => process.cost(),
        }
    }
}

async fn apiserver(folder: &Path, clock: Clock, controllers: berth_controllers::Config) -> anyhow::Result<Apiserver> {
    let (seed, storage) = (process::entropy()?, Storage::Durable(folder.to_owned()));
    Ok(Apiserver::start(ApiOptions {
        operators: Default::default(),
        clock,
        seed,
        storage,
        controllers,
        pod_security: Default::default(),
        token_key: None,
        audit: None,
        front_proxy: None,
        controllers_elsewhere: false,
        bare: false,
        field_owners: true,
    })
    .await?)
}

fn apiserver_process(folder: &Path) -> anyhow::Result<Running> {
    let data = folder.display().to_string();
    let server = Running::start(&["apiserver", "--data-dir", &data, "--listen", "127.0.0.1:0"])?;
    server.wait("Ready")?;
    Ok(server)
}

async fn embedded(folder: &Path, limit: Option<Limit>, own: &Requests) -> anyhow::Result<(Client, Side)> {
    let at_start = Cost::own();
    let clock = Clock::system();
    let config = berth_controllers::Config::default();
    let api = apiserver(folder, clock.clone(), config.clone()).await?;
    let requests = Requests::default();
    let wire = api.server().in_process(UserInfo::master(rights::USER)).lean();
    let client = Client::new(requests.layer(Limiter::per_kind(limit).layer(wire)), "default");
    let mut manager = Manager::new(client, clock);
    let config = berth_controllers::Config { client_limit: limit.map(Limit::of_controllers), ..config };
    api.serve(berth_controllers::install(&mut manager, config));
    let (stop, stopped) = oneshot::channel::<()>();
    let manager = tokio::spawn(manager.run(async move {
        let _ = stopped.await;
    }));
    let client = Client::new(own.layer(api.server().in_process(UserInfo::master("berth:bench")).lean()), "default");
    Ok((client, Side::Embedded { requests, stop: Some(stop), manager, at_start }))
}

async fn processes(folder: &Path, limit: Option<Limit>, own: &Requests) -> anyhow::Result<(Client, Side)> {
    let server = apiserver_process(folder)?;
    let kubeconfig = folder.join("controller.kubeconfig").display().to_string();
    let mut arguments = vec![
        "controller".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        "--leader-elect=false".to_owned(),
        "--health-probe-bind-address=0".to_owned(),
        "--webhook-bind-address=0".to_owned(),
        "--metrics-bind-address=127.0.0.1:0".to_owned(),
    ];
    if let Some(limit) = limit {
        arguments.push(format!("--kube-api-qps={}", limit.qps));
        arguments.push(format!("--kube-api-burst={}", limit.burst));
        // As in the published runs.
        arguments.push("--kube-api-limit-per-kind".to_owned());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let controller = Running::start(&arguments)?;
    let line = controller.wait("serving http://")?;
    let address = line.split_once("serving http://").map_or("", |(_, rest)| rest);
    let metrics = address.trim_end_matches("/metrics").to_owned();
    let client = client_of(&folder.join("kubeconfig"), own).await?;
    Ok((client, Side::Processes { server, controller, metrics }))
}

async fn client_of(path: &Path, requests: &Requests) -> anyhow::Result<Client> {
    connect::client(config_of(path).await?, requests, &Limiter::none())
}

/// A client with its own connection.
pub fn client_with(config: kube::Config) -> anyhow::Result<Client> {
    connect::client(config, &Requests::default(), &Limiter::none())
}

async fn config_of(path: &Path) -> anyhow::Result<kube::Config> {
    let file = Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
    Ok(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

/// `berth up` with this machine as its node, as a process of its own.
pub struct Machine {
    /// The bench's own client.
    pub client: Client,
    process: Running,
    _folder: Folder,
}

impl Machine {
    /// Starts the cluster. Once this returns, the node is ready.
    pub async fn start(folder: Option<&Path>, isolation: &str) -> anyhow::Result<Self> {
        let folder = Folder::of(folder)?;
        let kubeconfig = folder.path.join("kubeconfig");
        let [data, file] = [&folder.path, &kubeconfig].map(|path| path.display().to_string());
        let mut process = Running::start(&[
            "up",
            "--runtime=process",
            "--isolation",
            isolation,
            "--data-dir",
            &data,
            "--kubeconfig",
            &file,
            "--listen=127.0.0.1:0",
            "--stop-pods",
        ])?;
        process.wait("Next ")?;
        let client = client_of(&kubeconfig, &Requests::default()).await?;
        let deadline = tokio::time::Instant::now() + START_MAX;
        while !has_ready_node(&client).await? {
            if let Some(status) = process.child.try_wait()? {
                bail!("berth up ended: {status}");
            }
            if tokio::time::Instant::now() > deadline {
                bail!("the node of this machine is not ready after {} s", START_MAX.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Machine { client, process, _folder: folder })
    }

    /// Cost of the process of `berth up`, without its pods.
    pub fn cost(&self) -> Cost {
        self.process.cost()
    }

    /// Stops the cluster and its pods as Ctrl-C does.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.process.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
        let deadline = tokio::time::Instant::now() + START_MAX;
        while self.process.child.try_wait()?.is_none() {
            if tokio::time::Instant::now() > deadline {
                bail!("berth up did not stop within {} s", START_MAX.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

async fn has_ready_node(client: &Client) -> anyhow::Result<bool> {
    let list: serde_json::Value = client.request(http::Request::get("/api/v1/nodes").body(Vec::new())?).await?;
    Ok(list["items"].as_array().into_iter().flatten().any(|node| crate::simulated::is(node, "Ready")))
}

/// A child process that runs `berth`; killed when dropped.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("the path of this program")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("berth {}", arguments.join(" ")))?;
        let (sender, lines) = mpsc::channel();
        let name = arguments.first().copied().unwrap_or_default().to_owned();
        if let Some(out) = child.stdout.take() {
            follow(out, sender.clone(), None);
        }
        if let Some(err) = child.stderr.take() {
            follow(err, sender, Some(name));
        }
        Ok(Running { child, lines })
    }

    /// Waits for an output line that contains this string. Returns the line.
    fn wait(&self, text: &str) -> anyhow::Result<String> {
        loop {
            match self.lines.recv_timeout(START_MAX) {
                Ok(line) if line.contains(text) => return Ok(line),
                Ok(_) => {}
                Err(_) => bail!("a berth process did not start; its output is above"),
            }
        }
    }

    fn cost(&self) -> Cost {
        Cost::of(self.child.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the output to its end, so that the process never blocks on a full pipe. Warnings and
/// errors are printed.
fn follow(stream: impl std::io::Read + Send + 'static, lines: mpsc::Sender<String>, complaints: Option<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some(name) = &complaints
                && (line.contains("WARN") || line.contains("ERROR") || line.starts_with("berth:"))
            {
                eprintln!("{name}: {line}");
            }
            // The receiver may be dropped once the process runs.
            let _ = lines.send(line);
        }
    });
}

async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await.with_context(|| address.to_owned())?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).ok_or_else(|| anyhow!("no response from {address}"))
}

/// Writes by verb and resource, from the request counts of a component. Failed writes are counted
/// separately, with their status code.
pub fn writes(metrics: &str) -> Writes {
    let mut writes = Writes::new();
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("berth_kubernetes_requests_total{") else { continue };
        let Some((labels, count)) = rest.rsplit_once("} ") else { continue };
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let (Some(verb), Some(resource), Some(code)) = (label("verb"), label("resource"), label("code")) else {
            continue;
        };
        if matches!(verb, "get" | "list" | "watch") {
            continue;
        }
        let rejected = if code.starts_with('2') { String::new() } else { format!(" rejected with {code}") };
        *writes.entry(format!("{verb} {resource}{rejected}")).or_default() += count.trim().parse::<u64>().unwrap_or(0);
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successful_writes_are_counted_separately_from_reads_and_failures() {
        let text = "# TYPE berth_kubernetes_requests_total counter\n\
            berth_kubernetes_requests_total{verb=\"patch\",group=\"g\",resource=\"workloads/status\",code=\"200\"} 7\n\
            berth_kubernetes_requests_total{verb=\"patch\",group=\"g\",resource=\"workloads/status\",code=\"409\"} 2\n\
            berth_kubernetes_requests_total{verb=\"watch\",group=\"g\",resource=\"workloads\",code=\"200\"} 1\n";
        let found = writes(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found["patch workloads/status"], 7);
        assert_eq!(found["patch workloads/status rejected with 409"], 2);
    }
}
