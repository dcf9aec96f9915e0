//! Client programs from the registries, as their users write them (`tests/clients`), and kube-rs's
//! own runtime. `tests/clients/install` installs the programs; a test of a missing program is
//! skipped with a notice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, WatchStreamExt, predicates, reflector, watcher};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;

use crate::cluster::{Cluster, file};

/// An installed program. Skips the running test if it is missing.
pub fn installed(path: &str) -> Option<PathBuf> {
    let path = Path::new(&file("target/clients")).join(path);
    if path.exists() {
        return Some(path);
    }
    berth_testing::skip(&format!("{} is missing; tests/clients/install makes it", path.display()));
    None
}

/// Runs a program, which must print `ok` last.
pub fn succeeds(command: &mut Command) {
    let output = command.output().expect("the program runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.trim().ends_with("ok"), "{command:?}\n{out}\n{err}");
}

#[test]
fn the_python_client_works() {
    let Some(python) = installed("python/bin/python") else { return };
    let cluster = Cluster::ephemeral(&[]);
    succeeds(Command::new(python).arg(file("tests/clients/python/client.py")).arg(&cluster.kubeconfig));
}

#[test]
fn the_javascript_client_works() {
    let Some(modules) = installed("javascript/node_modules") else { return };
    let cluster = Cluster::ephemeral(&[]);
    // Node resolves modules from the program's folder.
    let program = modules.with_file_name("client.mjs");
    std::fs::copy(file("tests/clients/javascript/client.mjs"), &program).expect("the program can be copied");
    succeeds(Command::new("node").arg(program).arg(&cluster.kubeconfig));
}

#[test]
fn the_go_clients_work() {
    let Some(program) = installed("go") else { return };
    let cluster = Cluster::ephemeral(&[]);
    for part in ["informers", "manager", "protobuf"] {
        succeeds(Command::new(&program).arg(&cluster.kubeconfig).arg(part));
    }
}

/// The client of a cluster's administrator.
pub async fn client(cluster: &Cluster) -> Client {
    Client::try_from(config(cluster).await).expect("a client")
}

/// The configuration of that client.
pub async fn config(cluster: &Cluster) -> Config {
    let file = Kubeconfig::read_from(&cluster.kubeconfig).expect("a kubeconfig");
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration")
}

/// kube-rs over the wire: a reflector with streaming lists and one with pages, and a `Controller`
/// that owns objects.
#[tokio::test(flavor = "multi_thread")]
async fn kube_runtime_works() {
    let cluster = Cluster::ephemeral(&[]);
    let client = client(&cluster).await;
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some("kube-runtime".into()), ..Default::default() },
        ..Default::default()
    };
    let post = PostParams::default();
    Api::all(client.clone()).create(&post, &namespace).await.expect("created");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-runtime");
    let map = |name: &str| ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..Default::default() },
        ..Default::default()
    };
    for index in 0..30 {
        maps.create(&post, &map(&format!("m-{index:02}"))).await.expect("created");
    }

    for config in [watcher::Config::default().streaming_lists(), watcher::Config::default().page_size(7)] {
        let (reader, writer) = reflector::store();
        let stream = watcher(maps.clone(), config).reflect(writer).applied_objects();
        let stream = stream.predicate_filter(predicates::resource_version, Default::default());
        let task = tokio::spawn(stream.try_for_each(|_| std::future::ready(Ok(()))));
        reader.wait_until_ready().await.expect("filled");
        let ours = reader.state().iter().filter(|map| map.name_any().starts_with("m-")).count();
        assert_eq!(ours, 30);
        let change = json!({"data": {"a": "b"}});
        maps.patch("m-03", &PatchParams::default(), &Patch::Merge(&change)).await.expect("patched");
        maps.delete("m-04", &DeleteParams::default()).await.expect("deleted");
        until(|| {
            let state = reader.state();
            let changed = state.iter().any(|map| map.name_any() == "m-03" && map.data.is_some());
            changed && !state.iter().any(|map| map.name_any() == "m-04")
        })
        .await;
        task.abort();
        maps.create(&post, &map("m-04")).await.expect("created again");
    }

    // Every ConfigMap whose name begins with "owner" gets a child, and a deleted child is created
    // again.
    let owners: Api<ConfigMap> = maps.clone();
    let context = std::sync::Arc::new(maps.clone());
    let controller = Controller::new(owners, watcher::Config::default().labels("role=owner"))
        .owns(maps.clone(), watcher::Config::default())
        .run(
            |owner, api| async move {
                let mut child = ConfigMap::default();
                child.metadata.name = Some(format!("{}-child", owner.name_any()));
                child.metadata.owner_references =
                    kube::Resource::controller_owner_ref(owner.as_ref(), &()).map(|o| vec![o]);
                let apply = PatchParams::apply("kube-runtime-test").force();
                api.patch(&child.name_any(), &apply, &Patch::Apply(&child)).await?;
                Ok(Action::await_change())
            },
            |_, _: &kube::Error, _| Action::requeue(Duration::from_secs(1)),
            context,
        )
        .for_each(|_| std::future::ready(()));
    let controller = tokio::spawn(controller);
    let mut owner = map("owner");
    owner.metadata.labels = Some([("role".to_owned(), "owner".to_owned())].into());
    maps.create(&post, &owner).await.expect("created");
    let child = exists(&maps, "owner-child", None).await;
    maps.delete("owner-child", &DeleteParams::default()).await.expect("deleted");
    exists(&maps, "owner-child", child.uid()).await;
    controller.abort();
}

/// Waits until the ConfigMap `name` exists with a UID other than `but`.
async fn exists(maps: &Api<ConfigMap>, name: &str, but: Option<String>) -> ConfigMap {
    for _ in 0..400 {
        if let Some(found) = maps.get_opt(name).await.expect("a response")
            && found.uid() != but
        {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} was not created");
}

async fn until(condition: impl Fn() -> bool) {
    for _ in 0..400 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the reflector did not receive the change");
}
