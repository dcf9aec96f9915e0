//! `berth up`: a whole cluster in one process, on a loopback port, for kubectl and everything else that speaks
//! Kubernetes.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use std::sync::Arc;

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::auth::tokens::Tokens;
use berth_apiserver::kubeconfig::Kubeconfig;
use berth_apiserver::pki::Pki;
use berth_apiserver::tls::Listener;
use berth_runtime::Clock;
use berth_simulator::embedded::{Embedded, Options as EmbeddedOptions, Storage};
use clap::Args;
use serde_json::Value;

/// Options of `berth up`.
#[derive(Args)]
pub struct Options {
    /// Folder for objects, certificates and the kubeconfig. Default: berth in the user's data folder.
    #[arg(long, value_name = "DIR", env = "BERTH_DATA_DIR", conflicts_with = "ephemeral")]
    data_dir: Option<PathBuf>,
    /// Keep nothing: objects live in memory and go with the process.
    #[arg(long)]
    ephemeral: bool,
    /// Address to serve on. Port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Node pools and timing: a ClusterConfiguration file. Default: a few CPU nodes and a small L4 pool.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Configuration of the queueing controllers: a Kueue Configuration file.
    #[arg(long, value_name = "FILE")]
    controller_config: Option<PathBuf>,
    /// Run the embedded cluster's clock this many times faster than real time.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = time_scale)]
    time_scale: f64,
    /// Where to write the kubeconfig. Default: kubeconfig in the data folder.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

fn time_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 100_000.0 => Ok(scale),
        _ => Err("expected a number above 0, at most 100000".into()),
    }
}

/// Runs until Ctrl-C (or SIGTERM).
pub fn main(options: Options) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
    let code = runtime.block_on(up(options))?;
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(code)
}

async fn up(options: Options) -> anyhow::Result<ExitCode> {
    let folder = Folder::of(&options)?;
    std::fs::create_dir_all(folder.path()).with_context(|| folder.path().display().to_string())?;
    let clock = if options.time_scale == 1.0 {
        Clock::system()
    } else {
        Clock::scaled(Clock::system().now(), options.time_scale)
    };
    // Bind first: a taken port is the likeliest failure, and it must not touch the data.
    let now = Clock::system().now();
    let pki = match &folder {
        Folder::Kept(path) => Pki::load_or_create(&path.join("pki"), now)?,
        Folder::Temporary(_) => Pki::ephemeral(now)?,
    };
    let serving = pki.serving(&[options.listen.ip().to_string()])?;
    let listener = Listener::bind(options.listen, &pki, &serving)
        .await
        .with_context(|| "choose another address with --listen, or stop what uses this one")?;

    let embedded = Embedded::start(EmbeddedOptions {
        clock,
        seed: entropy()?,
        storage: match &folder {
            Folder::Kept(path) => Storage::Durable(path.clone()),
            Folder::Temporary(_) => Storage::Memory,
        },
        cluster: options.config.as_deref().map(read).transpose()?,
        configuration: options.controller_config.as_deref().map(read).transpose()?,
        root_ca: Some(pki.authority_pem().to_owned()),
    })
    .await?;

    let address = listener.address();
    let url = format!("https://{address}");
    let identity = pki.client("berth-admin", Some("system:masters"))?;
    let kubeconfig = options.kubeconfig.clone().unwrap_or_else(|| folder.path().join("kubeconfig"));
    Kubeconfig { name: "berth", server: &url, authority_pem: pki.authority_pem(), identity: &identity }
        .write(&kubeconfig)?;

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = embedded.server().clone();
    let token_clock = embedded.clock();
    let tokens = Tokens::new(pki.token_key(), Arc::new(move || token_clock.now()), Some(server.objects()));
    let authenticator = Authenticator::new(Default::default(), Some(Arc::new(tokens)));
    let serving = tokio::spawn(listener.serve(server, Arc::new(authenticator), async move {
        // A dropped sender also means that the process is on its way out.
        let _ = stopped.await;
    }));

    println!("Kubernetes API  {url}");
    println!("kubeconfig      {}", kubeconfig.display());
    println!("Next            export KUBECONFIG={} && kubectl get nodes", kubeconfig.display());

    let signal = signal().await?;
    eprintln!("berth: {signal}, stopping");
    let _ = stop.send(());
    if let Err(error) = serving.await {
        tracing::warn!(%error, "the listener did not stop cleanly");
    }
    embedded.stop().await;
    if let Folder::Temporary(path) = &folder {
        // Nothing in it outlives the process; a folder that cannot be removed does no harm.
        let _ = std::fs::remove_dir_all(path);
    }
    Ok(ExitCode::SUCCESS)
}

/// Where files go.
enum Folder {
    Kept(PathBuf),
    Temporary(PathBuf),
}

impl Folder {
    fn of(options: &Options) -> anyhow::Result<Self> {
        if options.ephemeral {
            return Ok(Self::Temporary(std::env::temp_dir().join(format!("berth-{}", std::process::id()))));
        }
        if let Some(path) = &options.data_dir {
            return Ok(Self::Kept(path.clone()));
        }
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let data = set("XDG_DATA_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".local/share")))
            .ok_or_else(|| anyhow!("neither XDG_DATA_HOME nor HOME is set: give --data-dir or --ephemeral"))?;
        Ok(Self::Kept(data.join("berth")))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) | Self::Temporary(path) => path,
        }
    }
}

/// Reads a YAML or JSON file.
fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))
}

/// A seed nobody can guess, and that differs at every start: identifiers must not repeat over a restart.
fn entropy() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(u64::from_le_bytes(bytes))
}

/// Waits for Ctrl-C or SIGTERM; says which.
async fn signal() -> anyhow::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    Ok(tokio::select! {
        biased;
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
    })
}
