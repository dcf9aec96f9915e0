//! Services have the addresses of their pods.

use berth_cluster::endpoints;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::world::{World, eventually};

fn of<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

fn pod(name: &str, app: &str) -> Pod {
    let spec =
        json!({"nodeName": "n1", "hostname": name, "subdomain": "web", "containers": [{"name": "c", "image": "i"}]});
    of(json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": spec}))
}

#[tokio::test(start_paused = true)]
async fn slices_follow_pods_and_services() {
    let world = World::new().await;
    let pods: Api<Pod> = Api::namespaced(world.client(), "default");
    let services: Api<Service> = Api::namespaced(world.client(), "default");
    let slices: Api<EndpointSlice> = Api::namespaced(world.client(), "default");
    let nodes: Api<Node> = Api::all(world.client());
    let (post, merge) = (PostParams::default(), PatchParams::default());
    let listed = async || {
        let all = slices.list(&ListParams::default()).await.unwrap().items;
        let mut seen: Vec<String> = Vec::new();
        for endpoint in all.iter().flat_map(|slice| &slice.endpoints) {
            let ready = endpoint.conditions.as_ref().unwrap().ready == Some(true);
            let zone = endpoint.zone.as_deref().unwrap_or("-");
            let name = endpoint.hostname.as_deref().unwrap_or("-");
            seen.push(format!("{} {name} {zone} {ready}", endpoint.addresses[0]));
        }
        (all.len(), seen)
    };
    let status = async |name: &str, ip: &str, ready: &str| {
        let status = json!({"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]});
        pods.patch_status(name, &merge, &Patch::Merge(&json!({"status": status}))).await.unwrap();
    };
    let until = async {
        let labels = json!({"topology.kubernetes.io/zone": "z1"});
        nodes.create(&post, &of(json!({"metadata": {"name": "n1", "labels": labels}}))).await.unwrap();
        pods.create(&post, &pod("a", "web")).await.unwrap();
        status("a", "10.0.0.1", "True").await;
        let spec = json!({"clusterIP": "None", "selector": {"app": "web"}});
        services.create(&post, &of(json!({"metadata": {"name": "web"}, "spec": spec}))).await.unwrap();
        eventually("the pod that was there", async || listed().await == (1, vec!["10.0.0.1 a z1 true".into()])).await;
        pods.create(&post, &pod("b", "web")).await.unwrap();
        pods.create(&post, &pod("c", "db")).await.unwrap();
        status("b", "10.0.0.2", "False").await;
        status("c", "10.0.0.3", "True").await;
        let both = ["10.0.0.1 a z1 true", "10.0.0.2 b z1 false"].map(str::to_owned);
        eventually("another pod", async || listed().await == (1, both.to_vec())).await;
        // A slice that a user deletes comes back.
        let name = slices.list(&ListParams::default()).await.unwrap().items[0].name_any();
        slices.delete(&name, &DeleteParams::default()).await.unwrap();
        eventually("a new slice", async || listed().await == (1, both.to_vec())).await;
        services.patch("web", &merge, &Patch::Merge(&json!({"spec": {"selector": {"app": "db"}}}))).await.unwrap();
        eventually("the other pod", async || listed().await == (1, vec!["10.0.0.3 c z1 true".into()])).await;
        pods.patch("c", &merge, &Patch::Merge(&json!({"metadata": {"labels": {"app": "x"}}}))).await.unwrap();
        eventually("no pod", async || listed().await == (1, Vec::new())).await;
        let revision = async || slices.list(&ListParams::default()).await.unwrap().metadata.resource_version;
        let before = revision().await;
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert_eq!(revision().await, before, "slices without differences are not written");
    };
    world.run(endpoints::install, until).await;
}

/// Ready and other addresses of an Endpoints object; `None` if it does not exist.
async fn addresses(world: &World, name: &str) -> Option<(Vec<String>, Vec<String>)> {
    let endpoints: Api<Endpoints> = Api::namespaced(world.client(), "default");
    let subsets = endpoints.get_opt(name).await.unwrap()?.subsets.unwrap_or_default();
    let of = |list: &Option<Vec<EndpointAddress>>| -> Vec<String> {
        list.iter().flatten().map(|it| it.ip.clone()).collect()
    };
    let (ready, other): (Vec<_>, Vec<_>) =
        subsets.iter().map(|it| (of(&it.addresses), of(&it.not_ready_addresses))).unzip();
    Some((ready.concat(), other.concat()))
}

#[tokio::test(start_paused = true)]
async fn a_service_with_a_selector_has_an_endpoints_object() {
    let world = World::new().await;
    let pods: Api<Pod> = Api::namespaced(world.client(), "default");
    let services: Api<Service> = Api::namespaced(world.client(), "default");
    let endpoints: Api<Endpoints> = Api::namespaced(world.client(), "default");
    let (post, merge) = (PostParams::default(), PatchParams::default());
    let until = async {
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
        services.create(&post, &of(json!({"metadata": {"name": "web"}, "spec": spec}))).await.unwrap();
        eventually("an empty object", async || addresses(&world, "web").await == Some((vec![], vec![]))).await;
        for (name, ip, ready) in [("a", "10.0.0.1", "True"), ("b", "10.0.0.2", "False")] {
            pods.create(&post, &pod(name, "web")).await.unwrap();
            let status = json!({"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]});
            pods.patch_status(name, &merge, &Patch::Merge(&json!({"status": status}))).await.unwrap();
        }
        let both = Some((vec!["10.0.0.1".to_owned()], vec!["10.0.0.2".to_owned()]));
        eventually("both pods", async || addresses(&world, "web").await == both).await;
        endpoints.delete("web", &DeleteParams::default()).await.unwrap();
        eventually("the object again", async || addresses(&world, "web").await == both).await;
        // The Endpoints object is not mirrored, because the Service has slices of its own.
        let slices: Api<EndpointSlice> = Api::namespaced(world.client(), "default");
        assert_eq!(slices.list(&ListParams::default()).await.unwrap().items.len(), 1);
        services.delete("web", &DeleteParams::default()).await.unwrap();
        eventually("no object", async || addresses(&world, "web").await.is_none()).await;
        // An object that has no Service is a user's own.
        endpoints.create(&post, &of(json!({"metadata": {"name": "lone"}}))).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert!(endpoints.get_opt("lone").await.unwrap().is_some());
    };
    world.run(endpoints::install, until).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_a_service_without_a_selector_are_mirrored() {
    let world = World::new().await;
    let services: Api<Service> = Api::namespaced(world.client(), "default");
    let endpoints: Api<Endpoints> = Api::namespaced(world.client(), "default");
    let slices: Api<EndpointSlice> = Api::namespaced(world.client(), "default");
    let post = PostParams::default();
    let mirrored = async || {
        let all = slices.list(&ListParams::default()).await.unwrap().items;
        let shown = all.iter().flat_map(|slice| {
            let port = slice.ports.iter().flatten().find_map(|port| port.port).unwrap_or_default();
            slice.endpoints.iter().map(move |endpoint| format!("{}:{port}", endpoint.addresses[0]))
        });
        (all.len(), shown.collect::<Vec<_>>())
    };
    let subsets = |ip: &str, port: u16| json!([{"addresses": [{"ip": ip}], "ports": [{"name": "db", "port": port}]}]);
    let until = async {
        let spec = json!({"ports": [{"name": "db", "port": 5432}]});
        services.create(&post, &of(json!({"metadata": {"name": "db"}, "spec": spec}))).await.unwrap();
        let made = json!({"metadata": {"name": "db"}, "subsets": subsets("192.0.2.1", 5432)});
        endpoints.create(&post, &of(made)).await.unwrap();
        eventually("a slice", async || mirrored().await == (1, vec!["192.0.2.1:5432".to_owned()])).await;
        let change = json!({"subsets": subsets("192.0.2.2", 8080)});
        endpoints.patch("db", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        eventually("the change", async || mirrored().await == (1, vec!["192.0.2.2:8080".to_owned()])).await;
        endpoints.delete("db", &DeleteParams::default()).await.unwrap();
        eventually("no slice", async || mirrored().await == (0, vec![])).await;
    };
    world.run(endpoints::install, until).await;
}
