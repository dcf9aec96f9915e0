//! Kubernetes clients from a kubeconfig or in-cluster credentials, and counts of their requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use berth_apimachinery::exposition::{Exposition, Family};
use berth_apiserver::RequestInfo;
use berth_runtime::Clock;
use clap::{Arg, Args, Command};
use http::{HeaderValue, Request, Response, header};
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::{Mutex, MutexGuard};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tower::{Layer, Service};

use crate::limit::Limiter;

/// Interval of requests to an API server that does not respond or does not yet serve the needed
/// groups.
const RETRY: Duration = Duration::from_secs(1);

/// Options that select the cluster.
#[derive(Args)]
#[command(next_help_heading = "Cluster")]
pub struct ConnectOptions {
    /// Kubeconfig file of the cluster. Default: $KUBECONFIG, then the pod's service account, then
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use. Default: its current context.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    overrides: Overrides,
}

/// kubectl's options that replace parts of a kubeconfig. `--help` lists them, `-h` does not.
#[derive(Args, Clone, Debug, Default)]
struct Overrides {
    /// Cluster of the kubeconfig to use. Default: that of the context.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    cluster: Option<String>,
    /// User of the kubeconfig to use. Default: that of the context.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    kubeconfig_user: Option<String>,
    /// Address of the API server.
    #[arg(long, value_name = "URL", hide_short_help = true)]
    server: Option<http::Uri>,
    /// PEM file with the authorities that sign the API server's certificate.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    certificate_authority: Option<PathBuf>,
    /// Do not verify the API server's certificate.
    #[arg(long, hide_short_help = true, conflicts_with = "certificate_authority")]
    insecure_skip_tls_verify: bool,
    /// Name that the API server's certificate must have. Default: the host of its address.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    tls_server_name: Option<String>,
    /// Bearer token, in place of the credentials of the kubeconfig.
    #[arg(long, value_name = "TOKEN", hide_short_help = true)]
    token: Option<String>,
    /// PEM file with your certificate, in place of the credentials of the kubeconfig.
    #[arg(long, value_name = "FILE", hide_short_help = true, requires = "client_key")]
    client_certificate: Option<String>,
    /// PEM file with the key of your certificate.
    #[arg(long, value_name = "FILE", hide_short_help = true, requires = "client_certificate")]
    client_key: Option<String>,
    /// User to act as. Your own user needs the right to impersonate this user.
    #[arg(long = "as", value_name = "USER", hide_short_help = true)]
    as_user: Option<String>,
    /// Group to act as. May be repeated.
    #[arg(long, value_name = "GROUP", hide_short_help = true, requires = "as_user")]
    as_group: Vec<String>,
    /// UID to act as.
    #[arg(long, value_name = "UID", hide_short_help = true, requires = "as_user")]
    as_uid: Option<String>,
    /// Extra field of the user to act as. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", hide_short_help = true, requires = "as_user", value_parser = extra)]
    as_user_extra: Vec<(String, String)>,
    /// Time to wait for the API server's response, such as 30s, or a number of seconds. 0: no
    /// limit.
    #[arg(long, value_name = "TIME", hide_short_help = true, value_parser = time)]
    request_timeout: Option<Duration>,
    /// Ask the API server not to compress its responses.
    #[arg(long, hide_short_help = true)]
    disable_compression: bool,
    /// Accepted for scripts of kubectl. No effect: what the API server serves is not cached in
    /// files.
    #[arg(long = "cache-dir", value_name = "DIR", hide_short_help = true)]
    _cache_dir: Option<PathBuf>,
}

/// The id of the option `--server`, and of the option for the user of the kubeconfig.
const SERVER: &str = "server";
const KUBECONFIG_USER: &str = "kubeconfig_user";

/// Gives options that select a cluster the names that they have for kubectl, `-s` and `--user`, in
/// each command that has no other option of that name.
pub fn with_names_of_kubectl(mut command: Command) -> Command {
    let has = |found: &dyn Fn(&Arg) -> bool| command.get_arguments().any(found);
    let is_of_cluster = has(&|it| it.get_id() == SERVER);
    let has_short = has(&|it| it.get_short_and_visible_aliases().is_some_and(|all| all.contains(&'s')));
    let has_user = has(&|it| it.get_long() == Some("user"));
    if is_of_cluster && !has_short {
        command = command.mut_arg(SERVER, |it| it.short('s'));
    }
    if is_of_cluster && !has_user {
        command = command.mut_arg(KUBECONFIG_USER, |it| it.visible_alias("user"));
    }
    command.mut_subcommands(with_names_of_kubectl)
}

/// Parses an extra field of a user.
fn extra(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a duration, or a number of seconds, as kubectl does.
fn time(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let parsed = berth_controllers::duration::parse(text)?;
    Duration::try_from(parsed).map_err(|_| "must not be negative".to_owned())
}

/// The certificates of a PEM file.
fn certificates(file: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let at = || format!("--certificate-authority {}", file.display());
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found: Vec<Vec<u8>> = found.with_context(at)?.iter().map(|der| der.to_vec()).collect();
    if found.is_empty() { Err(anyhow!("{}: no certificate", at())) } else { Ok(found) }
}

impl Overrides {
    /// Replaces parts of the client's configuration.
    fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        if let Some(server) = &self.server {
            config.cluster_url = server.clone();
        }
        if let Some(file) = &self.certificate_authority {
            config.root_cert = Some(certificates(file)?);
            config.root_cert_file = None;
        }
        config.accept_invalid_certs |= self.insecure_skip_tls_verify;
        if self.tls_server_name.is_some() {
            config.tls_server_name.clone_from(&self.tls_server_name);
        }
        if let Some(token) = &self.token {
            config.auth_info = serde_json::from_value(serde_json::json!({ "token": token })).context("--token")?;
        }
        if self.client_certificate.is_some() {
            let token = if self.token.is_some() { config.auth_info.token.take() } else { None };
            config.auth_info = AuthInfo {
                client_certificate: self.client_certificate.clone(),
                client_key: self.client_key.clone(),
                token,
                ..AuthInfo::default()
            };
        }
        if self.as_user.is_some() {
            config.auth_info.impersonate.clone_from(&self.as_user);
            config.auth_info.impersonate_groups = (!self.as_group.is_empty()).then(|| self.as_group.clone());
            config.auth_info.impersonate_uid.clone_from(&self.as_uid);
            let mut extra: HashMap<String, Vec<String>> = HashMap::new();
            for (key, value) in &self.as_user_extra {
                extra.entry(key.clone()).or_default().push(value.clone());
            }
            config.auth_info.impersonate_user_extra = (!extra.is_empty()).then_some(extra);
        }
        config.disable_compression |= self.disable_compression;
        if let Some(limit) = self.request_timeout {
            config.read_timeout = (!limit.is_zero()).then_some(limit);
        }
        Ok(())
    }
}

impl ConnectOptions {
    /// The client configuration of the selected cluster. Sends no request.
    pub async fn config(&self) -> anyhow::Result<Config> {
        let (context, cluster) = (self.context.clone(), self.overrides.cluster.clone());
        let user = self.overrides.kubeconfig_user.clone();
        let options = KubeConfigOptions { context, cluster, user };
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let mut config = match &self.kubeconfig {
            Some(path) => {
                let at = || format!("--kubeconfig {}", path.display());
                let file = Kubeconfig::read_from(path).with_context(at)?;
                self.check_user(&file)?;
                Config::from_custom_kubeconfig(file, &options).await.with_context(at)?
            }
            None if in_cluster && std::env::var_os("KUBECONFIG").is_none() && self.context.is_none() => {
                Config::incluster().context("the pod's service account")?
            }
            None => {
                const NONE: &str = "no cluster is configured; use --kubeconfig, set KUBECONFIG, or run in a pod with a service account";
                let file = Kubeconfig::read().context(NONE)?;
                self.check_user(&file)?;
                Config::from_custom_kubeconfig(file, &options).await.context(NONE)?
            }
        };
        self.overrides.apply(&mut config)?;
        let agent = concat!("berth/", env!("CARGO_PKG_VERSION"));
        config.headers.push((header::USER_AGENT, HeaderValue::from_static(agent)));
        Ok(config)
    }

    /// Checks that the kubeconfig has the chosen user. The client would act without credentials.
    fn check_user(&self, file: &Kubeconfig) -> anyhow::Result<()> {
        let Some(user) = &self.overrides.kubeconfig_user else { return Ok(()) };
        let names: Vec<&str> = file.auth_infos.iter().map(|it| it.name.as_str()).collect();
        if !names.contains(&user.as_str()) {
            bail!("--kubeconfig-user: the kubeconfig has no user {user}; it has {}", names.join(", "));
        }
        Ok(())
    }
}

/// A client whose requests are counted in `requests` and limited by `limiter`.
pub fn client(config: Config, requests: &Requests, limiter: &Limiter) -> anyhow::Result<Client> {
    let url = config.cluster_url.to_string();
    requests.lock().host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let builder = ClientBuilder::try_from(config).with_context(|| url)?;
    Ok(builder.with_layer(limiter).with_layer(requests).build())
}

/// A client that retries 429, 503 and 504 for minutes, for work that must not stop halfway.
pub fn persistent(config: Config) -> anyhow::Result<Client> {
    client(config, &Requests::default(), &Limiter::none())
}

/// An interactive client: 429, 503 and 504 are returned to the caller. A [`persistent`] client
/// retries them for minutes.
pub fn asking(mut config: Config) -> anyhow::Result<Client> {
    config.default_retry = false;
    client(config, &Requests::default(), &Limiter::none())
}

/// The CA certificates with which the API server's certificate is verified, in PEM. `None` if the
/// system's certificate authorities are used.
pub fn authority_pem(config: &Config) -> Option<String> {
    let mut pem = String::new();
    for der in config.root_cert.as_ref()? {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        for line in text.as_bytes().chunks(64) {
            pem.push_str(std::str::from_utf8(line).unwrap_or_default());
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    Some(pem)
}

/// Waits until the API responds and serves these groups. Logs what is missing, once and when it
/// changes.
///
/// # Errors
/// The API rejects the credentials, so waiting does not help.
pub async fn wait_for_groups(client: &Client, clock: &Clock, needed: &[&str]) -> anyhow::Result<()> {
    let mut logged = String::new();
    loop {
        let problem = match client.list_api_groups().await {
            Ok(list) => {
                let served: BTreeSet<String> = list.groups.into_iter().map(|group| group.name).collect();
                let missing: Vec<&str> = needed.iter().copied().filter(|group| !served.contains(*group)).collect();
                if missing.is_empty() {
                    return Ok(());
                }
                format!("not served yet: {}; `berth install | kubectl apply -f -` installs them", missing.join(", "))
            }
            Err(kube::Error::Api(status)) if status.code == 401 => {
                bail!("the API server does not accept the credentials (401 Unauthorized)")
            }
            Err(kube::Error::Api(status)) if status.code == 403 => return Err(anyhow!("{}", status.message)),
            Err(error) => format!("the API server does not respond: {}", causes(&error)),
        };
        if problem != logged {
            tracing::warn!("{problem}; waiting");
            logged = problem;
        }
        clock.sleep(RETRY).await;
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            let _ = write!(text, ": {more}");
        }
        source = error.source();
    }
    text
}

/// Key of a count: verb, group, resource with its subresource, and the response's status code.
type Call = (String, String, String, u16);

/// Counts requests by verb, resource and status code. Clones share the counts.
#[derive(Clone, Default)]
pub struct Requests(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    /// Requests for resources.
    calls: BTreeMap<Call, u64>,
    /// All requests by method and status code. The code 0 stands for no response.
    all: BTreeMap<(String, u16), u64>,
    /// Host and port of the API server.
    host: String,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock()
    }

    /// The counts in the Prometheus text format, as `/metrics` of another process has them.
    pub fn text(&self) -> String {
        Exposition::text(|exposition| self.write(exposition))
    }

    /// Writes the counts as a metric.
    pub fn write(&self, exposition: &mut Exposition) {
        const REQUESTS: Family = Family::counter(
            "berth_kubernetes_requests_total",
            "Requests to the Kubernetes API, by verb, resource and response code",
        );
        const REST: Family = Family::counter(
            "rest_client_requests_total",
            "Requests to the Kubernetes API, by response code, method and host",
        );
        let counts = self.lock();
        for ((method, code), count) in &counts.all {
            let code = if *code == 0 { "<error>".to_owned() } else { code.to_string() };
            exposition.add(&REST, &[("code", &code), ("host", &counts.host), ("method", method)], *count as f64);
        }
        for ((verb, group, resource, code), count) in &counts.calls {
            let labels =
                [("verb", verb.as_str()), ("group", group), ("resource", resource), ("code", &code.to_string())];
            exposition.add(&REQUESTS, &labels, *count as f64);
        }
    }
}

impl<S> Layer<S> for Requests {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, requests: self.clone() }
    }
}

/// A client's connection whose requests are counted.
#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    requests: Requests,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let uri = request.uri();
        let info = RequestInfo::parse(request.method(), uri.path(), uri.query().unwrap_or_default());
        let (requests, method) = (self.requests.clone(), request.method().to_string());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().map_or(0, |response| response.status().as_u16());
            *requests.lock().all.entry((method, status)).or_default() += 1;
            if info.is_resource_request {
                let resource = match info.subresource.as_str() {
                    "" => info.resource,
                    subresource => format!("{}/{subresource}", info.resource),
                };
                *requests.lock().calls.entry((info.verb, info.api_group, resource, status)).or_default() += 1;
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn an_interactive_client_returns_the_first_response() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let mut request = [0; 4096];
                // One read returns the whole request, because it is small.
                let _ = stream.read(&mut request).await;
                let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer).await;
            }
        });
        let client = asking(Config::new(url.parse().expect("an address"))).expect("a client");
        let answer = tokio::time::timeout(Duration::from_secs(20), client.list_api_groups()).await;
        assert!(answer.expect("at once").is_err());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        serving.abort();
    }

    /// Options on a command line.
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        connect: ConnectOptions,
    }

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: main
contexts: [{name: main, context: {cluster: here, user: alice, namespace: team}}]
clusters: [{name: here, cluster: {server: 'https://here:6443'}}, {name: there, cluster: {server: 'https://there:6443'}}]
users: [{name: alice, user: {token: secret}}, {name: robot, user: {username: robot}}]
";

    async fn config(file: &Path, words: &[&str]) -> anyhow::Result<Config> {
        let fixed = ["berth", "--kubeconfig", file.to_str().expect("text")];
        let line = fixed.iter().chain(words);
        <Line as clap::Parser>::try_parse_from(line)?.connect.config().await
    }

    #[tokio::test]
    async fn kubectls_options_replace_parts_of_the_kubeconfig() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, KUBECONFIG).expect("written");
        let plain = config(&file, &[]).await.expect("a configuration");
        assert_eq!(plain.cluster_url, "https://here:6443");
        let as_bob =
            "--cluster there --as bob --as-group blue --as-group red --as-user-extra a=1 --as-user-extra a=b=c";
        let as_bob: Vec<&str> = as_bob.split(' ').collect();
        let changed = config(&file, &as_bob).await.expect("a configuration");
        assert_eq!(
            (changed.cluster_url.to_string().as_str(), changed.default_namespace.as_str()),
            ("https://there:6443/", "team")
        );
        assert_eq!(changed.auth_info.impersonate.as_deref(), Some("bob"));
        assert_eq!(changed.auth_info.impersonate_groups, Some(vec!["blue".to_owned(), "red".to_owned()]));
        let extra = HashMap::from([("a".to_owned(), vec!["1".to_owned(), "b=c".to_owned()])]);
        assert_eq!(changed.auth_info.impersonate_user_extra, Some(extra));
        let changed = config(&file, &["--kubeconfig-user", "robot"]).await.expect("a configuration");
        assert_eq!(changed.auth_info.username.as_deref(), Some("robot"));
        let unknown = config(&file, &["--kubeconfig-user", "bob"]).await.expect_err("no such user");
        assert_eq!(unknown.to_string(), "--kubeconfig-user: the kubeconfig has no user bob; it has alice, robot");
        assert!(!changed.disable_compression);
        let changed = config(&file, &["--disable-compression", "--cache-dir", "/none"]).await;
        assert!(changed.expect("a configuration").disable_compression);
        let elsewhere =
            ["--server", "https://api:443", "--insecure-skip-tls-verify", "--request-timeout", "30", "--token", "t"];
        let changed = config(&file, &elsewhere).await.expect("a configuration");
        assert_eq!(changed.cluster_url, "https://api:443");
        assert!(changed.accept_invalid_certs);
        assert_eq!(changed.read_timeout, Some(Duration::from_secs(30)));
        assert_ne!(format!("{:?}", changed.auth_info.token), "None");
        let changed = config(&file, &["--client-certificate", "me.crt", "--client-key", "me.key"]).await;
        let credentials = changed.expect("a configuration").auth_info;
        assert_eq!(
            (credentials.client_certificate.as_deref(), credentials.client_key.as_deref()),
            (Some("me.crt"), Some("me.key"))
        );
        assert_eq!(format!("{:?}", credentials.token), "None", "the token of the kubeconfig is not sent too");
        assert!(config(&file, &["--client-key", "me.key"]).await.is_err(), "a key needs a certificate");
        assert_eq!(config(&file, &["--request-timeout=0"]).await.expect("a configuration").read_timeout, None);
        assert!(config(&file, &["--as-group", "blue"]).await.is_err(), "a group needs a user");
        assert!(config(&file, &["--as", "bob", "--as-user-extra", "a"]).await.is_err(), "a field needs a value");
        let missing = config(&file, &["--certificate-authority", file.to_str().expect("text")]).await;
        assert!(missing.unwrap_err().to_string().contains("no certificate"));
    }

    #[test]
    fn kubectls_short_names_are_given_where_they_mean_nothing_else() {
        let subcommand = |name: &'static str| <Line as clap::CommandFactory>::command().name(name);
        let own = subcommand("own").arg(Arg::new("state").short('s')).arg(Arg::new("user").long("user"));
        let command = Command::new("berth").subcommands([own, subcommand("plain")]);
        let command = with_names_of_kubectl(command);
        command.clone().debug_assert();
        let url = |words: &[&str]| {
            let matches = command.clone().try_get_matches_from(words).ok()?;
            let (_, of_command) = matches.subcommand()?;
            Some((
                of_command.get_one::<http::Uri>(SERVER).map(ToString::to_string),
                of_command.get_one::<String>(KUBECONFIG_USER).cloned(),
            ))
        };
        let given = |server: &str, user: Option<&str>| Some((Some(server.to_owned()), user.map(str::to_owned)));
        assert_eq!(url(&["berth", "plain", "-s", "https://a/", "--user", "bob"]), given("https://a/", Some("bob")));
        assert_eq!(
            url(&["berth", "own", "-s", "x", "--user", "y", "--server", "https://a/"]),
            given("https://a/", None)
        );
    }
}
