//! The bound server of an embedded API server: its data folder, certificates, listener and
//! kubeconfigs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use berth_apiserver::ApiServer;
use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::kubeconfig::Kubeconfig;
use berth_apiserver::pki::{FrontProxy, Identity, Pki};
use berth_apiserver::tls::{Certificates, CertificatesHandle, ListenError, Listener, OWN_NAME};
use berth_embedded::Storage;
use berth_runtime::Clock;
use clap::Args;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::process::{self, TemporaryFolder};
use crate::time;

/// Data folder and address of an embedded API server.
#[derive(Args)]
pub struct ServerOptions {
    /// Folder for objects, certificates and the kubeconfig. Default: berth in the user's data
    /// folder.
    #[arg(long, value_name = "DIR", env = "BERTH_DATA_DIR", conflicts_with = "ephemeral")]
    data_dir: Option<PathBuf>,
    /// Keep nothing on disk: objects are lost when the process ends.
    #[arg(long)]
    ephemeral: bool,
    /// Recover the intact objects of a damaged store, list the others, and keep the damaged files
    /// in the same folder. An intact store is not changed.
    #[arg(long, conflicts_with = "ephemeral")]
    recover: bool,
    /// Address to serve on. Port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Path of the kubeconfig. Default: kubeconfig in the data folder.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// PEM file with additional certificate authorities for client certificates. The common name of
    /// a certificate is the user's name, and its organizations are the user's groups.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// PEM serving certificate, followed by any intermediates. Default: a certificate issued by
    /// Berth's own certificate authority.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// PEM private key of --tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
}

/// Interval at which certificate files are read again.
const CERTIFICATE_FILES: Duration = Duration::from_secs(60);

/// Certificate authorities and serving certificate from files, in addition to those of Berth's own
/// certificate authority.
struct Given {
    client_ca: Option<PathBuf>,
    serving: Option<(PathBuf, PathBuf)>,
    own_authority_pem: String,
    own: Identity,
}

impl Given {
    fn of(options: &ServerOptions, pki: &Pki) -> anyhow::Result<Self> {
        let serving = options.tls_cert_file.clone().zip(options.tls_private_key_file.clone());
        Ok(Self {
            client_ca: options.client_ca_file.clone(),
            serving,
            own_authority_pem: pki.authority_pem().to_owned(),
            own: pki.serving(&[options.listen.ip().to_string(), OWN_NAME.to_owned()])?,
        })
    }

    fn any(&self) -> bool {
        self.client_ca.is_some() || self.serving.is_some()
    }

    fn read(&self) -> anyhow::Result<Certificates> {
        let read = |option: &str, path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("{option} {}", path.display()))
        };
        let mut client_authorities_pem = self.own_authority_pem.clone();
        if let Some(path) = &self.client_ca {
            let pem = read("--client-ca-file", path)?;
            // Without an authority, client certificates would be rejected only later, at the first
            // request.
            if !matches!(CertificateDer::pem_slice_iter(pem.as_bytes()).next(), Some(Ok(_))) {
                bail!("--client-ca-file {}: the file contains no PEM certificate", path.display());
            }
            client_authorities_pem.push_str(&pem);
        }
        let serving = match &self.serving {
            Some((certificate, key)) => Identity {
                certificate_pem: read("--tls-cert-file", certificate)?,
                key_pem: read("--tls-private-key-file", key)?,
            },
            None => self.own.clone(),
        };
        Ok(Certificates { client_authorities_pem, serving, own: self.serving.is_some().then(|| self.own.clone()) })
    }

    /// Reads the files again when they change. New connections use the new certificates.
    async fn follow(self, handle: CertificatesHandle) {
        let clock = Clock::system();
        let mut said = String::new();
        loop {
            clock.sleep(CERTIFICATE_FILES).await;
            let replaced = self.read().and_then(|certificates| Ok(handle.replace(&certificates)?));
            let problem = replaced.err().map(|error| format!("{error:#}")).unwrap_or_default();
            if problem != said && !problem.is_empty() {
                tracing::warn!("{problem}; the current certificates stay in use");
            }
            said = problem;
        }
    }
}

/// A server that is bound and has certificates, but does not respond yet.
pub struct BoundServer {
    folder: Folder,
    pki: Pki,
    listener: Listener,
    kubeconfig: PathBuf,
    given: Given,
}

impl BoundServer {
    /// Opens the folder and binds the port. The port is bound first: a port in use is the most
    /// likely failure, and it must not change the data.
    pub async fn open(options: &ServerOptions) -> anyhow::Result<Self> {
        let folder = Folder::of(options)?;
        if let Folder::Permanent(path) = &folder {
            process::private_folder(path, is_ours).context("--data-dir, or the user's data folder")?;
        }
        // Clients compare certificates with their own clocks, so certificates are issued for real
        // time, regardless of cluster time.
        let now = Clock::system().now();
        let pki = match &folder {
            Folder::Permanent(path) => Pki::load_or_create(&path.join("pki"), now)?,
            Folder::Temporary(_) => Pki::ephemeral(now)?,
        };
        let given = Given::of(options, &pki)?;
        let listener = Listener::bind(options.listen, &given.read()?, Arc::new(|| Clock::system().now())).await;
        let listener = listener.map_err(|error| match error {
            ListenError::Bind { .. } => anyhow::Error::from(error)
                .context("choose another address with --listen, or stop the process that uses this one"),
            error => error.into(),
        })?;
        if let Folder::Permanent(path) = &folder
            && options.recover
        {
            recover(path)?;
        }
        let kubeconfig = options.kubeconfig.clone().unwrap_or_else(|| folder.path().join("kubeconfig"));
        Ok(Self { folder, pki, listener, kubeconfig, given })
    }

    /// Storage of the objects.
    pub fn storage(&self) -> Storage {
        match &self.folder {
            Folder::Permanent(path) => Storage::Durable(path.clone()),
            Folder::Temporary(_) => Storage::Memory,
        }
    }

    /// The data folder; `None` with --ephemeral.
    pub fn data_dir(&self) -> Option<&Path> {
        match &self.folder {
            Folder::Permanent(path) => Some(path),
            Folder::Temporary(_) => None,
        }
    }

    /// The data folder, or the temporary folder with --ephemeral.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Certificates of this cluster.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Certificate that the server presents to aggregated API servers. They trust it to identify
    /// users.
    pub fn front_proxy(&self) -> anyhow::Result<FrontProxy> {
        let client_authority_pem = self.given.read()?.client_authorities_pem;
        Ok(FrontProxy { client_authority_pem, ..self.pki.front_proxy()? })
    }

    /// URL of the server.
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

    /// Writes a component's kubeconfig as `NAME.kubeconfig` in the folder of the administrator's.
    /// Returns its path.
    pub fn write_kubeconfig_of(&self, component: &str, identity: &Identity) -> anyhow::Result<PathBuf> {
        let path = self.kubeconfig.with_file_name(format!("{component}.kubeconfig"));
        self.write(&path, identity)?;
        Ok(path)
    }

    fn write(&self, path: &Path, identity: &Identity) -> anyhow::Result<()> {
        let server = self.url();
        let authority_pem = self.pki.authority_pem();
        let server_name = self.given.serving.is_some().then_some(OWN_NAME);
        let config = Kubeconfig { name: "berth", server: &server, authority_pem, server_name, identity };
        let Err(error) = config.write(path) else { return Ok(()) };
        // The disk may be full. Clients can still read stored objects, and delete objects to free
        // space.
        if !config.is_served_by(path, Clock::system().now()) {
            return Err(error.into());
        }
        tracing::warn!(%error, "the kubeconfig was not rewritten; the current kubeconfig is valid");
        Ok(())
    }

    /// Starts to respond to requests.
    pub fn serve(self, server: ApiServer) -> Serving {
        let (stop, stopped) = oneshot::channel::<()>();
        let authenticator = Authenticator::new(Default::default(), server.tokens());
        let following = server.clone().follow_services();
        let certificates = self.listener.certificates();
        let given = self.given;
        let serving = self.listener.serve(server, Arc::new(authenticator), async move {
            // A dropped sender also means that the process ends.
            let _ = stopped.await;
        });
        let task = tokio::spawn(async move {
            let following = tokio::spawn(following);
            let renewing = given.any().then(|| tokio::spawn(given.follow(certificates)));
            serving.await;
            following.abort();
            if let Some(renewing) = renewing {
                renewing.abort();
            }
        });
        Serving { stop, task, folder: self.folder }
    }
}

/// A server that responds to requests.
pub struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    folder: Folder,
}

impl Serving {
    /// Waits briefly for open requests, then stops.
    pub async fn stop(self) -> Leftovers {
        // The receiver is dropped only if the listener failed, which the join below reports.
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::warn!(%error, "the listener did not stop cleanly");
        }
        Leftovers(self.folder)
    }
}

/// Files of a stopped server.
pub struct Leftovers(Folder);

impl Leftovers {
    /// Removes the files of an ephemeral server.
    pub fn clear(self) {
        drop(self.0);
    }
}

/// Maximum number of lost objects to print. The report lists all.
const LOST_SHOWN: usize = 50;

/// Recovers the objects of a damaged store and prints the result.
fn recover(folder: &Path) -> anyhow::Result<()> {
    let Some(recovery) = berth_embedded::api::recover(folder)? else {
        eprintln!("berth: {}: the store is intact; there is nothing to recover", folder.display());
        return Ok(());
    };
    for line in recovery.lost.iter().take(LOST_SHOWN) {
        eprintln!("berth: {line}");
    }
    if recovery.lost.len() > LOST_SHOWN {
        eprintln!("berth: and {} more, in {}", recovery.lost.len() - LOST_SHOWN, recovery.report.display());
    }
    let lost = match recovery.lost.len() {
        0 => "no object is lost".to_owned(),
        number => format!("{number} are damaged (listed in {})", recovery.report.display()),
    };
    let damaged = recovery.damaged.display();
    eprintln!("berth: recovered {} objects, {lost}; the damaged store is kept as {damaged}", recovery.kept);
    Ok(())
}

/// Location of the files.
enum Folder {
    Permanent(PathBuf),
    Temporary(TemporaryFolder),
}

/// `berth` in the user's data folder.
pub fn default_data_dir() -> anyhow::Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    let data = data
        .ok_or_else(|| anyhow!("neither XDG_DATA_HOME nor HOME is set; use --data-dir, or --ephemeral for berth up"))?;
    Ok(data.join("berth"))
}

/// Files of a data folder.
pub fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(".new").unwrap_or(name);
    name.starts_with("store.sqlite")
        || [time::FILE, "pki", "kubeconfig", crate::image::FOLDER].contains(&name)
        || name.ends_with(".kubeconfig")
}

impl Folder {
    fn of(options: &ServerOptions) -> anyhow::Result<Self> {
        if options.ephemeral {
            return Ok(Self::Temporary(TemporaryFolder::new("berth")?));
        }
        if let Some(path) = &options.data_dir {
            return Ok(Self::Permanent(path.clone()));
        }
        default_data_dir().map(Self::Permanent)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Permanent(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        server: ServerOptions,
    }

    async fn open(arguments: &[&str]) -> anyhow::Result<BoundServer> {
        let arguments = ["berth"].iter().chain(arguments);
        BoundServer::open(&Cli::try_parse_from(arguments)?.server).await
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn files_are_private_and_a_usable_kubeconfig_need_not_be_rewritten() {
        let home = tempfile::tempdir().expect("a folder");
        let data = home.path().join("data");
        let data = data.display().to_string();
        let bound = open(&["--data-dir", &data, "--listen", "127.0.0.1:0"]).await.expect("opens");
        bound.write_kubeconfig().expect("written");
        assert_eq!((mode(Path::new(&data)), mode(bound.kubeconfig())), (0o700, 0o600));
        let (kubeconfig, address) = (bound.kubeconfig().to_owned(), bound.url().replace("https://", ""));
        drop(bound);
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("set");
        // A folder at the temporary path makes each new write fail.
        fs::create_dir_all(Path::new(&data).join("kubeconfig.new/folder")).expect("made");
        let bound = open(&["--data-dir", &data, "--listen", &address]).await.expect("opens");
        assert_eq!(mode(Path::new(&data)), 0o700, "the folder's mode is corrected");
        let before = fs::read(&kubeconfig).expect("there");
        bound.write_kubeconfig().expect("the current kubeconfig is valid");
        assert_eq!(fs::read(&kubeconfig).expect("there"), before);
        // The current kubeconfig names another address.
        let elsewhere = open(&["--data-dir", &data, "--listen", "127.0.0.1:0"]).await.expect("opens");
        let error = elsewhere.write_kubeconfig().expect_err("cannot be written").to_string();
        assert!(error.contains("kubeconfig"), "{error}");
    }

    #[tokio::test]
    async fn an_ephemeral_folder_is_private_and_removed_at_the_end() {
        let bound = open(&["--ephemeral", "--listen", "127.0.0.1:0"]).await.expect("opens");
        let folder = bound.kubeconfig().parent().expect("a folder").to_owned();
        assert_eq!(mode(&folder), 0o700);
        assert!(!folder.ends_with(format!("berth-{}", std::process::id())), "the folder's name is predictable");
        drop(bound);
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn a_file_of_authorities_needs_a_certificate() {
        let home = tempfile::tempdir().expect("a folder");
        let file = home.path().join("ca.crt");
        let shown = file.display().to_string();
        let arguments = ["--ephemeral", "--listen", "127.0.0.1:0", "--client-ca-file", &shown];
        for text in ["", "nothing of the kind\n"] {
            fs::write(&file, text).expect("written");
            let error = open(&arguments).await.err().expect("refused").to_string();
            assert_eq!(error, format!("--client-ca-file {shown}: the file contains no PEM certificate"));
        }
        fs::write(&file, Pki::ephemeral(Clock::system().now()).expect("made").authority_pem()).expect("written");
        let bound = open(&arguments).await.expect("opens");
        fs::write(&file, "").expect("written");
        assert!(bound.given.read().is_err(), "a file without a certificate was accepted");
    }
}
