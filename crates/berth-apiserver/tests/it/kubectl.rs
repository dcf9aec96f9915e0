//! kubectl against the listener, over TLS on a loopback port.
//!
//! The tests need a port because kubectl is another process. They are skipped if kubectl is not
//! installed.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::kubeconfig::Kubeconfig;
use berth_apiserver::pki::Pki;
use berth_apiserver::tls::{Certificates, Listener};
use berth_apiserver::{ApiServer, Config};
use berth_store::MemoryStore;

/// A kubeconfig for a server on a port.
pub struct Fixture {
    directory: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Fixture {
    /// A kubectl command that uses the server's kubeconfig.
    pub fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.directory.path())
            .env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Runs kubectl with `stdin`. Returns whether it succeeded, and its output.
    fn run(&self, arguments: &str, stdin: &str) -> (bool, String, String) {
        use std::io::Write;
        let mut child = self
            .command()
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        // kubectl may end without reading its input. The output is checked, not this error.
        let _ = child.stdin.take().expect("piped").write_all(stdin.as_bytes());
        let output = child.wait_with_output().expect("kubectl ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    /// Runs kubectl. It must succeed and print all of `expected`.
    #[track_caller]
    fn check(&self, arguments: &str, stdin: &str, expected: &[&str]) -> String {
        let (succeeded, out, err) = self.run(arguments, stdin);
        assert!(succeeded, "kubectl {arguments}\n{out}\n{err}");
        for text in expected {
            assert!(out.contains(text), "kubectl {arguments} does not print {text:?}:\n{out}\n{err}");
        }
        out
    }

    /// Runs kubectl. It must fail with the error `expected`.
    #[track_caller]
    fn check_rejected(&self, arguments: &str, stdin: &str, expected: &str) {
        let (succeeded, out, err) = self.run(arguments, stdin);
        assert!(!succeeded, "kubectl {arguments} succeeded\n{out}");
        assert!(err.contains(expected), "kubectl {arguments} does not report {expected:?}:\n{out}\n{err}");
    }
}

/// Starts a server and runs `test` on another thread. Does nothing if kubectl is not installed.
fn with_kubectl(test: impl FnOnce(&Fixture) + Send + 'static) {
    with_kubectl_on(|_| {}, async |_| {}, test);
}

/// As [`with_kubectl`], with a server that is configured with `configure` and then prepared.
pub fn with_kubectl_on(
    configure: impl FnOnce(&mut Config),
    prepare: impl AsyncFnOnce(&ApiServer),
    test: impl FnOnce(&Fixture) + Send + 'static,
) {
    if !berth_testing::has_kubectl() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Certificates are checked against kubectl's own clock.
        #[allow(clippy::disallowed_methods, reason = "the real clock, because another process takes part")]
        let clock = Arc::new(jiff::Timestamp::now);
        let now = clock();
        let pki = Pki::ephemeral(now).expect("keys");
        let certificates = Certificates::of(&pki, pki.serving(&[]).expect("a certificate"));
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(any_port, &certificates, clock.clone()).await.expect("a free port");
        let mut config = Config::new(Arc::new(MemoryStore::new()), clock);
        config.token_key = Some(pki.token_key().clone());
        configure(&mut config);
        let server = ApiServer::new(config);
        server.ready().await.expect("stored");
        prepare(&server).await;
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = directory.path().join("kubeconfig");
        let url = format!("https://{}", listener.address());
        let identity = pki.client("admin", Some("system:masters")).expect("a certificate");
        let authority_pem = pki.authority_pem();
        Kubeconfig { name: "test", server: &url, authority_pem, server_name: None, identity: &identity }
            .write(&kubeconfig)
            .expect("written");
        let authenticator = Arc::new(Authenticator::new(Default::default(), server.tokens()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serve = tokio::spawn(listener.serve(server, authenticator, async move {
            let _ = stopped.await;
        }));
        let fixture = Fixture { directory, kubeconfig };
        let done = tokio::task::spawn_blocking(move || test(&fixture)).await;
        let _ = stop.send(());
        serve.await.expect("the listener stops");
        if let Err(error) = done {
            std::panic::resume_unwind(error.into_panic());
        }
    });
}

#[test]
fn discovery_explain_and_auth_commands_work() {
    with_kubectl(|kubectl| {
        kubectl.check("version", "", &["Server Version: v1.36.0+berth"]);
        kubectl.check("api-resources", "", &["configmaps", "batch/v1", "customresourcedefinitions"]);
        kubectl.check("api-versions", "", &["rbac.authorization.k8s.io/v1", "\nv1\n"]);
        kubectl.check("get ns", "", &["NAME", "STATUS", "AGE", "default", "kube-system"]);
        kubectl.check("explain job.spec.completionMode", "", &["FIELD: completionMode <string>"]);
        kubectl.check("explain crd --recursive", "", &["openAPIV3Schema"]);
        kubectl.check("explain pods --output=plaintext-openapiv2", "", &["KIND:     Pod", "metadata\t<Object>"]);
        kubectl.check("cluster-info", "", &["is running at"]);
        kubectl.check("get --raw /readyz", "", &["ok"]);
        kubectl.check("auth can-i create jobs -n team-a", "", &["yes"]);
        kubectl.check("auth whoami", "", &["admin", "system:masters"]);
    });
}

#[test]
fn a_config_map_is_applied_patched_and_deleted() {
    with_kubectl(|kubectl| {
        let manifest = |value: &str| {
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\n  labels: {{app: x}}\ndata:\n  mode: {value}\n"
            )
        };
        kubectl.check(
            "apply -f - --dry-run=server",
            &manifest("fast"),
            &["configmap/settings created (server dry run)"],
        );
        kubectl.check_rejected(
            "get cm settings",
            "",
            "Error from server (NotFound): configmaps \"settings\" not found",
        );
        kubectl.check("apply -f -", &manifest("fast"), &["configmap/settings created"]);
        kubectl.check("apply -f -", &manifest("fast"), &["configmap/settings unchanged"]);
        let (same, out, err) = kubectl.run("diff -f -", &manifest("slow"));
        assert!(!same && out.contains("-  mode: fast") && out.contains("+  mode: slow"), "{out}\n{err}");
        kubectl.check("apply -f -", &manifest("slow"), &["configmap/settings configured"]);
        kubectl.check("get cm settings -o jsonpath={.data.mode}", "", &["slow"]);
        kubectl.check("get cm -l app=x -o name", "", &["configmap/settings"]);
        kubectl.check("get cm", "", &["NAME", "DATA", "AGE"]);
        kubectl.check("describe cm settings", "", &["Name:         settings", "mode:", "slow"]);
        kubectl.check("label cm settings tier=one", "", &["labeled"]);
        kubectl.check("patch cm settings --type=merge -p {\"data\":{\"mode\":\"off\"}}", "", &["patched"]);
        kubectl.check("apply --server-side --force-conflicts -f -", &manifest("server"), &["serverside-applied"]);
        kubectl.check_rejected(
            "apply -f -",
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\nbogus: 1\n",
            "unknown field \"bogus\"",
        );
        kubectl.check("delete cm settings --timeout=20s", "", &["configmap \"settings\" deleted"]);
    });
}

#[test]
fn a_job_is_applied_patched_and_described() {
    with_kubectl(|kubectl| {
        let manifest = |image: &str| {
            format!(
                "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec:\n  suspend: true\n  template:\n    spec:\n      \
                 restartPolicy: Never\n      containers:\n      - {{name: a, image: {image}}}\n"
            )
        };
        kubectl.check("apply -f -", &manifest("busybox:1"), &["job.batch/j created"]);
        kubectl.check("get jobs", "", &["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]);
        kubectl.check("get jobs -o wide", "", &["CONTAINERS", "IMAGES", "busybox:1"]);
        kubectl.check("patch job j -p {\"spec\":{\"suspend\":false}}", "", &["patched"]);
        kubectl.check("get job j -o jsonpath={.spec.suspend}", "", &["false"]);
        kubectl.check("describe job j", "", &["Name:             j"]);
        kubectl.check("delete job j --wait=false", "", &["deleted"]);
    });
}

#[test]
fn role_bindings_and_service_account_tokens_work() {
    with_kubectl(|kubectl| {
        kubectl.check("create ns team-a", "", &["namespace/team-a created"]);
        kubectl.check("create rolebinding dev -n team-a --clusterrole=edit --user=alice", "", &["created"]);
        kubectl.check("auth can-i create jobs -n team-a --as alice", "", &["yes"]);
        let (allowed, out, _) = kubectl.run("auth can-i create jobs -n default --as alice", "");
        assert!(!allowed && out.contains("no"), "{out}");
        kubectl.check("get jobs -n team-a --as alice", "", &[]);
        kubectl.check_rejected(
            "get nodes --as alice",
            "",
            "Error from server (Forbidden): nodes is forbidden: User \"alice\" cannot list resource \"nodes\" in API group \"\" at the cluster scope",
        );
        kubectl.check("auth can-i --list -n team-a --as alice", "", &["jobs.batch"]);
        kubectl.check("create serviceaccount bot -n team-a", "", &["created"]);
        let token = kubectl.check("create token bot -n team-a", "", &["."]);
        let review = format!(
            "{{\"apiVersion\":\"authentication.k8s.io/v1\",\"kind\":\"TokenReview\",\"spec\":{{\"token\":\"{}\"}}}}",
            token.trim()
        );
        kubectl.check(
            "create -f - -o jsonpath={.status.user.username}",
            &review,
            &["system:serviceaccount:team-a:bot"],
        );
    });
}

#[test]
fn custom_resources_are_applied_explained_and_printed() {
    let definition = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, priority: 1, jsonPath: .spec.color}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, minimum: 1, description: How large it is.}
              color: {type: string}
"#;
    let widget = |spec: &str| {
        format!("apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {{name: w}}\nspec: {{{spec}}}\n")
    };
    with_kubectl(move |kubectl| {
        kubectl.check("apply -f -", definition, &["created"]);
        kubectl.check(
            "wait crd/widgets.shop.example.com --for=condition=Established --timeout=20s",
            "",
            &["condition met"],
        );
        kubectl.check("apply -f -", &widget("size: 2, color: red"), &["widget.shop.example.com/w created"]);
        kubectl.check("apply -f -", &widget("size: 3, color: red"), &["widget.shop.example.com/w configured"]);
        kubectl.check("get wd", "", &["NAME   SIZE\nw      3\n"]);
        kubectl.check("get wd -o wide", "", &["NAME   SIZE   COLOR\nw      3      red\n"]);
        kubectl.check("explain widget.spec.size", "", &["FIELD: size <integer>", "How large it is."]);
        kubectl.check_rejected(
            "apply -f -",
            &widget("size: 0"),
            "spec.size in body should be greater than or equal to 1",
        );
        kubectl.check_rejected("apply -f -", &widget("sise: 1"), "unknown field \"spec.sise\"");
        kubectl.check("delete crd widgets.shop.example.com --timeout=20s", "", &["deleted"]);
        kubectl.check_rejected("get wd", "", "the server could not find the requested resource");
    });
}
