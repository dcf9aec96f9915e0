//! The front of an embedded API server: its data folder, certificates, listener and kubeconfigs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use berth_apiserver::ApiServer;
use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::kubeconfig::Kubeconfig;
use berth_apiserver::pki::{Identity, Pki};
use berth_apiserver::tls::Listener;
use berth_runtime::Clock;
use berth_simulator::embedded::Storage;
use clap::Args;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Where an embedded API server keeps things and listens.
#[derive(Args)]
pub struct FrontOptions {
    /// Folder for objects, certificates and the kubeconfig. Default: berth in the user's data folder.
    #[arg(long, value_name = "DIR", env = "BERTH_DATA_DIR", conflicts_with = "ephemeral")]
    data_dir: Option<PathBuf>,
    /// Keep nothing: objects live in memory and go with the process.
    #[arg(long)]
    ephemeral: bool,
    /// Address to serve on. Port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Where to write the kubeconfig. Default: kubeconfig in the data folder.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// Bound and certified, but not answering yet.
pub struct Front {
    folder: Folder,
    pki: Pki,
    listener: Listener,
    kubeconfig: PathBuf,
}

impl Front {
    /// Takes the folder and the port. The port comes before anything is opened: a taken one is the likeliest failure, and
    /// it must not touch the data.
    pub async fn open(options: &FrontOptions) -> anyhow::Result<Self> {
        let folder = Folder::of(options)?;
        std::fs::create_dir_all(folder.path()).with_context(|| folder.path().display().to_string())?;
        // Certificates are checked against the clients' clocks: real time, however fast the cluster's runs.
        let now = Clock::system().now();
        let pki = match &folder {
            Folder::Kept(path) => Pki::load_or_create(&path.join("pki"), now)?,
            Folder::Temporary(_) => Pki::ephemeral(now)?,
        };
        let serving = pki.serving(&[options.listen.ip().to_string()])?;
        let listener = Listener::bind(options.listen, &pki, &serving)
            .await
            .with_context(|| "choose another address with --listen, or stop what uses this one")?;
        let kubeconfig = options.kubeconfig.clone().unwrap_or_else(|| folder.path().join("kubeconfig"));
        Ok(Self { folder, pki, listener, kubeconfig })
    }

    /// Where objects go.
    pub fn storage(&self) -> Storage {
        match &self.folder {
            Folder::Kept(path) => Storage::Durable(path.clone()),
            Folder::Temporary(_) => Storage::Memory,
        }
    }

    /// Certificates of this cluster.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Where clients find the server.
    pub fn url(&self) -> String {
        format!("https://{}", self.listener.address())
    }

    /// The administrator's kubeconfig file.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Writes the administrator's kubeconfig.
    pub fn write_kubeconfig(&self) -> anyhow::Result<()> {
        let identity = self.pki.client("berth-admin", Some("system:masters"))?;
        self.write(&self.kubeconfig, &identity)
    }

    /// Writes a component's kubeconfig beside the administrator's, under `NAME.kubeconfig`; returns its path.
    pub fn write_kubeconfig_of(&self, component: &str, identity: &Identity) -> anyhow::Result<PathBuf> {
        let path = self.kubeconfig.with_file_name(format!("{component}.kubeconfig"));
        self.write(&path, identity)?;
        Ok(path)
    }

    fn write(&self, path: &Path, identity: &Identity) -> anyhow::Result<()> {
        let server = self.url();
        let authority_pem = self.pki.authority_pem();
        Kubeconfig { name: "berth", server: &server, authority_pem, identity }.write(path)?;
        Ok(())
    }

    /// Answers from now on.
    pub fn serve(self, server: ApiServer) -> Serving {
        let (stop, stopped) = oneshot::channel::<()>();
        let authenticator = Authenticator::new(Default::default(), server.tokens());
        let following = server.clone().follow_services();
        let serving = self.listener.serve(server, Arc::new(authenticator), async move {
            // A dropped sender also means that the process is on its way out.
            let _ = stopped.await;
        });
        let task = tokio::spawn(async move {
            let following = tokio::spawn(following);
            serving.await;
            following.abort();
        });
        Serving { stop, task, folder: self.folder }
    }
}

/// A server that answers.
pub struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    folder: Folder,
}

impl Serving {
    /// Lets open requests finish for a moment, then stops answering.
    pub async fn stop(self) -> Leftovers {
        // The listener is gone only when it died, which the join reports.
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::warn!(%error, "the listener did not stop cleanly");
        }
        Leftovers(self.folder)
    }
}

/// Files of a server that has stopped.
pub struct Leftovers(Folder);

impl Leftovers {
    /// Removes what was only for this run.
    pub fn clear(self) {
        if let Folder::Temporary(path) = &self.0 {
            // Nothing in it outlives the process; a folder that cannot be removed does no harm.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Where files go.
enum Folder {
    Kept(PathBuf),
    Temporary(PathBuf),
}

impl Folder {
    fn of(options: &FrontOptions) -> anyhow::Result<Self> {
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
