//! Pulls from a real registry server: CNCF Distribution, which `tests/clients/install` builds.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use berth_images::{Config, Form, Name, NodeImages, Origin, Target, pull};
use berth_pod_runtime::{ImagePullPolicy, ImageRequest, Images, RegistryCredential, RuntimeError};
use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use serde_json::{Value, json};

use crate::build::{Built, Compressed, Layer, architecture, digest, image, image_for};
use crate::view::{Place, forms, view};

/// bcrypt hash of the password `secret`, with the fewest rounds.
const SECRET: &str = "$2a$04$Au8OfciHgaqsoKmMMcdHd.ZVuI/Ww658SByBuMBDFC7MY7VVbTnOW";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A running registry.
struct Registry {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/registry");
    if path.exists() {
        return Some(path);
    }
    berth_testing::skip("target/clients/registry is missing; tests/clients/install makes it");
    None
}

impl Registry {
    /// Starts a registry on a free port; with a password if `is_private`.
    fn start(is_private: bool) -> Option<Self> {
        let program = program()?;
        // TLS is not used, but creating a client requires a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        let mut config = json!({
            "version": "0.1",
            "log": { "level": "info", "formatter": "json" },
            "storage": { "filesystem": { "rootdirectory": data } },
            "http": { "addr": "127.0.0.1:0", "secret": "test" },
        });
        if is_private {
            let passwords = folder.path().join("passwords");
            fs::write(&passwords, format!("user:{SECRET}\n")).expect("written");
            config["auth"] = json!({ "htpasswd": { "realm": "test", "path": passwords } });
        }
        let path = folder.path().join("config.yml");
        fs::write(&path, config.to_string()).expect("written");
        let mut child = Command::new(program)
            .arg("serve")
            .arg(&path)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let start = line.find("listening on ")? + "listening on ".len();
            let rest = &line[start..];
            Some(
                rest[..rest.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ':')).unwrap_or(rest.len())]
                    .to_owned(),
            )
        });
        let address = address.expect("the registry did not print its address");
        // A full pipe would block the registry.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { child, address, _folder: folder })
    }

    fn name(&self, rest: &str) -> Name {
        Name::parse(&format!("{}/{rest}", self.address)).expect("a name")
    }

    async fn push(&self, name: &str, images: &[&Built], index: Option<&Value>) {
        let auth = RegistryAuth::Basic("user".into(), "secret".into());
        let client = Client::new(ClientConfig { protocol: ClientProtocol::Http, ..ClientConfig::default() });
        let reference: Reference = format!("{}/{name}", self.address).parse().expect("a reference");
        client.store_auth_if_needed(&self.address, &auth).await;
        let manifest = async |reference: &Reference, body: Vec<u8>, kind: &str| {
            client.push_manifest_raw(reference, body, kind.parse().expect("a type")).await.expect("pushed");
        };
        for image in images {
            for (digest, bytes) in &image.blobs {
                client.push_blob(&reference, bytes.clone(), digest).await.expect("pushed");
            }
            let place = if index.is_some() { reference.clone_with_digest(image.digest()) } else { reference.clone() };
            manifest(&place, image.manifest_bytes(), MANIFEST).await;
        }
        if let Some(index) = index {
            manifest(&reference, index.to_string().into_bytes(), INDEX).await;
        }
    }
}

fn app(text: &str) -> Built {
    let base = Layer::new().file("base", "b").done();
    image(&[base, Layer::new().file("app", text).done()], &json!({ "Cmd": ["/app"] }), Compressed::Gzip)
}

fn credential(registry: &str, password: &str) -> RegistryCredential {
    RegistryCredential { registry: registry.into(), username: "user".into(), password: password.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_by_tag_and_by_digest() {
    let Some(registry) = Registry::start(false) else { return };
    registry.push("team/app:1", &[&app("one")], None).await;
    for form in forms() {
        let place = Place::new(form);
        let name = registry.name("team/app:1");
        let pulled = pull(&place.store, &name, &[], &[]).await.expect("pulled");
        assert_eq!((pulled.was_present, pulled.record.digest.as_str()), (false, app("one").digest().as_str()));
        assert_eq!(pulled.record.origin, Origin::Pulled);
        let found = place.get(name.written());
        assert_eq!(found.cmd, ["/app"]);
        assert_eq!(found.id, format!("{}/team/app@{}", registry.address, app("one").digest()));
        assert_eq!(view(&found).map(|files| files.len()).unwrap_or(2), 2);
        assert_eq!(fs::read_dir(place.path("images/blobs")).expect("readable").count(), 0, "downloads are left");
        assert!(pull(&place.store, &name, &[], &[]).await.expect("pulled").was_present);
        // The same image by its digest is found without the registry.
        let by_digest = registry.name(&format!("team/app@{}", app("one").digest()));
        assert!(place.store.get(&by_digest).expect("readable").is_some());
        assert!(pull(&place.store, &by_digest, &[], &[]).await.expect("pulled").was_present);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_image_of_this_platform_is_pulled_from_an_index() {
    let Some(registry) = Registry::start(false) else { return };
    let foreign = image_for("s390x", &[Layer::new().file("foreign", "1").done()], &json!({}), Compressed::Gzip);
    let own = app("own");
    let entry = |image: &Built, architecture: &str| {
        let mut entry = image.descriptor();
        entry["platform"] = json!({ "os": "linux", "architecture": architecture });
        entry
    };
    let index = json!({
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [entry(&foreign, "s390x"), entry(&own, architecture())],
    });
    registry.push("multi:1", &[&foreign, &own], Some(&index)).await;
    let place = Place::new(Form::Flat);
    let name = registry.name("multi:1");
    let record = pull(&place.store, &name, &[], &[]).await.expect("pulled").record;
    assert_eq!((&record.digest, record.index_digest), (&own.digest(), Some(digest(index.to_string().as_bytes()))));
    // Manifests of users name the digest of the index.
    let by_index = registry.name(&format!("multi@{}", digest(index.to_string().as_bytes())));
    assert!(place.store.get(&by_index).expect("readable").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pull_policy_decides_when_the_registry_is_accessed() {
    let Some(registry) = Registry::start(false) else { return };
    let place = Place::new(Form::Flat);
    let images = NodeImages::new(place.store.clone(), Config { otherwise: Target::Pull, ..Config::default() });
    let name = registry.name("app:latest");
    let ensure = async |policy| {
        let request = ImageRequest { reference: name.written().into(), policy, credentials: Vec::new() };
        images.ensure(&request).await
    };
    registry.push("app:latest", &[&app("one")], None).await;
    assert!(matches!(
        ensure(ImagePullPolicy::Never).await,
        Err(RuntimeError::Image { reason: "ErrImageNeverPull", .. })
    ));
    let first = ensure(ImagePullPolicy::IfNotPresent).await.expect("pulled");
    assert_eq!(first.notice, None);
    registry.push("app:latest", &[&app("two")], None).await;
    let id = |image: berth_pod_runtime::Image| image.id;
    assert_eq!(ensure(ImagePullPolicy::IfNotPresent).await.map(id).expect("present"), first.id);
    assert_eq!(ensure(ImagePullPolicy::Never).await.map(id).expect("present"), first.id);
    let second = ensure(ImagePullPolicy::Always).await.map(id).expect("pulled");
    assert!(second.ends_with(&app("two").digest()), "{second}");
    drop(registry);
    // A tag that cannot be resolved is an error, although an older image is present.
    let gone = ensure(ImagePullPolicy::Always).await;
    assert!(matches!(gone, Err(RuntimeError::Image { reason: "ErrImagePull", .. })), "{gone:?}");
    assert_eq!(ensure(ImagePullPolicy::IfNotPresent).await.map(id).expect("present"), second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_image_needs_the_right_credentials() {
    let Some(registry) = Registry::start(true) else { return };
    registry.push("team/app:1", &[&app("one")], None).await;
    let place = Place::new(Form::Flat);
    let name = registry.name("team/app:1");
    let host = registry.address.as_str();
    for credentials in [vec![], vec![credential(host, "wrong")], vec![credential("example.com", "secret")]] {
        let error = pull(&place.store, &name, &credentials, &[]).await.expect_err("refused").to_string();
        assert!(error.starts_with(&format!("cannot pull {name}: ")), "{error}");
        assert!(!error.contains("wrong"), "{error}");
    }
    assert!(place.store.list().expect("readable").is_empty());
    // A wrong secret before the right one does not matter.
    let team = format!("{host}/team");
    let credentials = [credential(host, "secret"), credential(&team, "wrong")];
    pull(&place.store, &name, &credentials, &[]).await.expect("pulled");
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_that_need_an_image_at_the_same_time_share_its_pull() {
    let Some(registry) = Registry::start(false) else { return };
    registry.push("app:1", &[&app("one")], None).await;
    let place = Place::new(Form::Flat);
    let config = Config { otherwise: Target::Pull, ..Config::default() };
    let images = Arc::new(NodeImages::new(place.store.clone(), config));
    let reference = registry.name("app:1").written().to_owned();
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (images, reference) = (images.clone(), reference.clone());
            tokio::spawn(async move {
                let policy = ImagePullPolicy::IfNotPresent;
                images.ensure(&ImageRequest { reference, policy, credentials: Vec::new() }).await
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic").expect("pulled");
    }
    assert_eq!(fs::read_dir(place.path("images/layers")).expect("readable").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_the_registry_does_not_have_is_an_error_with_its_name() {
    let Some(registry) = Registry::start(false) else { return };
    let place = Place::new(Form::Flat);
    let name = registry.name("missing:1");
    let error = pull(&place.store, &name, &[], &[]).await.expect_err("missing").to_string();
    assert!(error.starts_with(&format!("cannot pull {name}: ")), "{error}");
}
