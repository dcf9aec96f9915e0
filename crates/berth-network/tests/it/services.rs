//! Services can be resolved by name and reached at all their addresses.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_network::{Level, Network, Options};
use berth_pod_runtime::SandboxNetwork;
use berth_runtime::{Clock, Manager};
use berth_store::MemoryStore;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::pods::{options, uid};
use crate::space::{Space, ip, isolated};

const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) network: Arc<Network>,
    pub(crate) gateway: Ipv4Addr,
    client: Client,
}

impl World {
    /// Starts an API server and the controllers. They run until the test's runtime ends.
    pub(crate) async fn new(options: Options) -> Self {
        let clock = Clock::system();
        let of_server = clock.clone();
        let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || of_server.now())));
        server.ready().await.unwrap();
        let client = Client::new(server.in_process(UserInfo::master("test")), "default");
        let (network, report) = Network::open(options).await.unwrap();
        let mut manager = Manager::new(client.clone(), clock);
        berth_cluster::endpoints::install(&mut manager);
        berth_network::install(&mut manager, network.clone());
        tokio::spawn(manager.run(std::future::pending()));
        Self { network, gateway: report.pods.hosts().next().unwrap(), client }
    }

    /// Starts a pod, with its object.
    pub(crate) async fn pod(&self, name: &str, app: &str) -> (Space, IpAddr) {
        let space = Space::of(self.network.as_ref());
        let address = self.network.allocate(&uid(name)).await.unwrap();
        self.network.connect(&uid(name), space.pid()).await.unwrap();
        self.object(name, app, address).await;
        (space, address)
    }

    async fn object(&self, name: &str, app: &str, address: IpAddr) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let containers = json!([{"name": "c", "image": "i", "ports": [{"name": "main", "containerPort": 8080}]}]);
        let spec = json!({"nodeName": "n", "hostname": name, "subdomain": "peers", "containers": containers});
        let pod = json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": spec});
        api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        self.ready(name, Some(address), true).await;
    }

    async fn ready(&self, name: &str, address: Option<IpAddr>, ready: bool) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let conditions = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
        let mut status = json!({"phase": "Running", "conditions": conditions});
        if let Some(address) = address {
            status["podIP"] = json!(address.to_string());
        }
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn service(&self, name: &str, spec: Value) -> Service {
        let api: Api<Service> = Api::namespaced(self.client.clone(), "default");
        let service = json!({"metadata": {"name": name}, "spec": spec});
        api.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap()
    }
}

/// Repeats a call until it returns a value.
pub(crate) async fn eventually<T>(what: &str, mut call: impl AsyncFnMut() -> Option<T>) -> T {
    #[expect(clippy::disallowed_methods, reason = "a deadline of the test")]
    let start = Instant::now();
    loop {
        if let Some(value) = call().await {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Responds to every connection and datagram on port 8080 with `text`.
pub(crate) fn serve(address: IpAddr, text: &'static str) {
    let tcp = TcpListener::bind((address, 8080)).unwrap();
    let udp = UdpSocket::bind((address, 8080)).unwrap();
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().map_while(Result::ok) {
            let _ = stream.write_all(text.as_bytes());
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((_, client)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(text.as_bytes(), client);
        }
    });
}

pub(crate) fn ask(address: (IpAddr, u16)) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(address), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

pub(crate) fn ask_by_udp(address: (IpAddr, u16)) -> Option<String> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    socket.connect(address).ok()?;
    socket.send(b"hello").ok()?;
    let mut buffer = [0; 100];
    let length = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
    message
}

/// Sends a question to a name server. Returns the code and the data of the answer.
pub(crate) fn resolve(server: Ipv4Addr, name: &str) -> Option<(ResponseCode, Vec<String>)> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.set_read_timeout(Some(TIMEOUT)).ok()?;
    socket.connect((server, 53)).ok()?;
    socket.send(&question(name, RecordType::A).to_vec().ok()?).ok()?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer).ok()?;
    let answer = Message::from_vec(&buffer[..length]).ok()?;
    Some((answer.metadata.response_code, answer.answers.iter().map(|it| it.data.to_string()).collect()))
}

pub(crate) async fn on_machine<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(job).await.unwrap()
}

#[test]
fn services_are_reached_by_name_from_pods_and_from_the_machine() {
    isolated("services::services_are_reached_by_name_from_pods_and_from_the_machine", async {
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(options(folder.path())).await;
        let gateway = world.gateway;
        let (client, _) = world.pod("client", "client").await;
        let (server, address) = world.pod("server", "web").await;
        server.run(move || serve(address, "from server")).await;
        let ports = json!([
            {"name": "main", "port": 80, "targetPort": "main"},
            {"name": "udp", "port": 90, "targetPort": 8080, "protocol": "UDP"},
        ]);
        let spec = json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": ports});
        let made = world.service("web", spec).await.spec.unwrap();
        world.service("peers", json!({"clusterIP": "None", "selector": {"app": "web"}})).await;
        let node_port = u16::try_from(made.ports.unwrap()[0].node_port.unwrap()).unwrap();
        let cluster_ip: IpAddr = made.cluster_ip.unwrap().parse().unwrap();
        let api: Api<Service> = Api::namespaced(world.client.clone(), "default");
        let external: IpAddr = eventually("an address of the load balancer", async || {
            let balancer = api.get("web").await.unwrap().status?.load_balancer?;
            balancer.ingress?.first()?.ip.as_ref()?.parse().ok()
        })
        .await;
        let name = "web.default.svc.cluster.local.";
        let found = (ResponseCode::NoError, vec![cluster_ip.to_string()]);
        eventually("the name", async || client.run(move || resolve(gateway, name)).await.filter(|it| *it == found))
            .await;
        for target in [(cluster_ip, 80), (external, 80), (gateway.into(), node_port)] {
            eventually("an answer to the pod", async || client.run(move || ask(target)).await.ok()).await;
            assert_eq!(on_machine(move || ask(target)).await.unwrap(), "from server", "{target:?}");
        }
        assert_eq!(on_machine(move || ask((Ipv4Addr::LOCALHOST.into(), node_port))).await.unwrap(), "from server");
        let by_udp = eventually("a datagram", async || client.run(move || ask_by_udp((cluster_ip, 90))).await).await;
        assert_eq!(by_udp, "from server");
        let peer = client.run(move || resolve(gateway, "server.peers.default.svc.cluster.local.")).await.unwrap();
        assert_eq!(peer, (ResponseCode::NoError, vec![address.to_string()]));

        world.ready("server", None, false).await;
        eventually("no endpoint", async || {
            let refused = client.run(move || ask((cluster_ip, 80))).await.err()?;
            (refused.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
        })
        .await;
        let gone = (ResponseCode::NXDomain, Vec::new());
        eventually("no name", async || {
            let name = "server.peers.default.svc.cluster.local.";
            client.run(move || resolve(gateway, name)).await.filter(|it| *it == gone)
        })
        .await;
        api.delete("web", &DeleteParams::default()).await.unwrap();
        eventually("the Service is gone", async || {
            client.run(move || resolve(gateway, name)).await.filter(|it| *it == gone)
        })
        .await;
    });
}

#[test]
fn other_machines_do_not_reach_node_ports() {
    isolated("services::other_machines_do_not_reach_node_ports", node_port_from_another_machine(false));
}

#[test]
fn other_machines_reach_exposed_node_ports() {
    isolated("services::other_machines_reach_exposed_node_ports", node_port_from_another_machine(true));
}

async fn node_port_from_another_machine(expose_node_ports: bool) {
    let other = Space::new();
    ip(&format!("link add up0 type veth peer name eth0 netns {}", other.pid()));
    ip("address add 192.0.2.1/24 dev up0");
    ip("link set up0 up");
    other.run(|| drop(ip("address add 192.0.2.2/24 dev eth0"))).await;
    other.run(|| drop(ip("link set eth0 up"))).await;
    let machine = Ipv4Addr::new(192, 0, 2, 1);
    let folder = tempfile::tempdir().unwrap();
    let options = Options { node_addresses: vec![machine], expose_node_ports, ..options(folder.path()) };
    let world = World::new(options).await;
    let (server, address) = world.pod("server", "web").await;
    server.run(move || serve(address, "from server")).await;
    let ports = json!([{"port": 80, "targetPort": 8080}]);
    let spec = json!({"type": "NodePort", "selector": {"app": "web"}, "ports": ports});
    let made = world.service("web", spec).await.spec.unwrap();
    let node_port = u16::try_from(made.ports.unwrap()[0].node_port.unwrap()).unwrap();
    let target = (IpAddr::from(machine), node_port);
    eventually("an answer to the machine", async || on_machine(move || ask(target)).await.ok()).await;
    let answer = other.run(move || ask(target)).await;
    assert_eq!(answer.is_ok_and(|text| text == "from server"), expose_node_ports);
}

#[test]
fn endpoints_are_used_in_turn_and_simulated_ones_refuse() {
    isolated("services::endpoints_are_used_in_turn_and_simulated_ones_refuse", async {
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(options(folder.path())).await;
        let (one, first) = world.pod("one", "web").await;
        let (two, second) = world.pod("two", "web").await;
        one.run(move || serve(first, "one")).await;
        two.run(move || serve(second, "two")).await;
        world.object("simulated", "web", "10.3.0.9".parse().unwrap()).await;
        world.object("alone", "alone", "10.3.0.10".parse().unwrap()).await;
        let port = json!([{"port": 80, "targetPort": 8080}]);
        let address = async |name: &str, spec: Value| {
            let made = world.service(name, spec).await.spec.unwrap();
            made.cluster_ip.unwrap().parse::<IpAddr>().unwrap()
        };
        let web = address("web", json!({"selector": {"app": "web"}, "ports": port})).await;
        let spec = json!({"selector": {"app": "web"}, "ports": port, "sessionAffinity": "ClientIP"});
        let sticky = address("sticky", spec).await;
        let alone = address("alone", json!({"selector": {"app": "alone"}, "ports": port})).await;
        let answers = async |address: IpAddr| {
            let mut all: Vec<String> = Vec::new();
            for _ in 0..4 {
                all.extend(on_machine(move || ask((address, 80))).await.ok());
            }
            all
        };
        eventually("both in turn", async || {
            let mut all = answers(web).await;
            all.sort();
            (all == ["one", "one", "two", "two"]).then_some(())
        })
        .await;
        eventually("always the same", async || {
            let all = answers(sticky).await;
            (all.len() == 4 && all.iter().all(|it| *it == all[0])).then_some(())
        })
        .await;
        let refused = on_machine(move || ask((alone, 80))).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

/// Serves as the API server of a cluster. Returns its address.
pub(crate) fn listen_as_api_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"the API server");
        }
    });
    address
}

#[test]
fn pods_reach_the_api_server_by_its_service() {
    isolated("services::pods_reach_the_api_server_by_its_service", async {
        let folder = tempfile::tempdir().unwrap();
        let api_server = listen_as_api_server();
        let world = World::new(Options { api_server, ..options(folder.path()) }).await;
        let (pod, _) = world.pod("a", "a").await;
        let ports = json!([{"name": "https", "port": 443, "targetPort": 6443}]);
        world.service("kubernetes", json!({"clusterIP": "10.96.0.1", "ports": ports})).await;
        let target = world.network.api_server_for_pods(Ipv4Addr::new(10, 96, 0, 1));
        let answer =
            eventually("an answer", async || pod.run(move || ask((target.ip(), target.port()))).await.ok()).await;
        assert_eq!(answer, "the API server");
        let config = world.network.dns_config("team").unwrap();
        assert_eq!(config.nameservers, [world.gateway.to_string()]);
        assert_eq!(config.searches, ["team.svc.cluster.local", "svc.cluster.local", "cluster.local"]);
    });
}

#[test]
fn pods_of_two_clusters_reach_the_services_of_their_own() {
    isolated("services::pods_of_two_clusters_reach_the_services_of_their_own", async {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut clusters = Vec::new();
        for (folder, text) in [(&one, "the first"), (&two, "the second")] {
            let world = World::new(options(folder.path())).await;
            let (server, address) = world.pod("server", "web").await;
            server.run(move || serve(address, text)).await;
            let ports = json!([
                {"name": "main", "port": 80, "targetPort": 8080},
                {"name": "udp", "port": 90, "targetPort": 8080, "protocol": "UDP"},
            ]);
            world.service("web", json!({"clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": ports})).await;
            let (client, _) = world.pod("client", "client").await;
            clusters.push((world, client, server, text));
        }
        let web = IpAddr::from([10, 96, 0, 9]);
        for (_, client, _, text) in &clusters {
            let answer = eventually("TCP", async || client.run(move || ask((web, 80))).await.ok()).await;
            assert_eq!(answer, *text);
            let answer = eventually("UDP", async || client.run(move || ask_by_udp((web, 90))).await).await;
            assert_eq!(answer, *text);
        }
        assert_eq!(on_machine(move || ask((web, 80))).await.unwrap(), "the first", "the machine asks the first");
        // Pods on the machine's network find the Services of their own cluster by variables and
        // names.
        for (world, client, _, text) in &clusters {
            let address = world.network.address_of_service_on_host(Ipv4Addr::new(10, 96, 0, 9));
            assert_eq!(address.is_loopback(), *text == "the second", "{address}");
            assert_eq!(on_machine(move || ask((address.into(), 80))).await.unwrap(), *text);
            let gateway = world.gateway;
            let name = "web.default.svc.cluster.local.";
            let resolved = on_machine(move || resolve(gateway, name)).await.expect("an answer").1;
            assert_eq!(resolved, [address.to_string()], "{text}");
            let resolved = client.run(move || resolve(gateway, name)).await.expect("an answer").1;
            assert_eq!(resolved, ["10.96.0.9"], "{text}");
            let api_server = world.network.api_server_on_host(Ipv4Addr::new(10, 96, 0, 1));
            assert_eq!(api_server.ip().is_loopback(), *text == "the second", "{api_server}");
        }
        // A restart of the first cluster does not change that.
        let again = Network::open(options(one.path())).await.unwrap().1;
        assert!(!again.limits.iter().any(|limit| limit.starts_with("cluster IPs")), "{again}");
        // Once the first cluster has ended, the routes of the second one apply.
        clusters.remove(0).0.network.remove().await.unwrap();
        let client = &clusters[0].1;
        assert_eq!(client.run(move || ask((web, 80))).await.unwrap(), "the second");
    });
}

#[test]
fn a_host_port_leads_to_its_pod_until_the_pod_ends() {
    isolated("services::a_host_port_leads_to_its_pod_until_the_pod_ends", async {
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(options(folder.path())).await;
        let (pod, address) = world.pod("a", "a").await;
        let (client, _) = world.pod("client", "client").await;
        pod.run(move || serve(address, "from the pod")).await;
        let api: Api<Pod> = Api::namespaced(world.client.clone(), "default");
        let ports = json!([{"containerPort": 8080, "hostPort": 80}]);
        let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i", "ports": ports}]});
        let object = json!({"metadata": {"name": "forwarded"}, "spec": spec});
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        world.ready("forwarded", Some(address), true).await;
        let (local, gateway) = ((IpAddr::from(Ipv4Addr::LOCALHOST), 80), (world.gateway.into(), 80));
        eventually("an answer", async || on_machine(move || ask(local)).await.ok()).await;
        assert_eq!(client.run(move || ask(gateway)).await.unwrap(), "from the pod");
        let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
        api.patch_status("forwarded", &PatchParams::default(), &ended).await.unwrap();
        eventually("the end", async || on_machine(move || ask(local)).await.err()).await;
    });
}

#[test]
fn at_the_plain_level_names_lead_to_the_addresses_that_are_served() {
    isolated("services::at_the_plain_level_names_lead_to_the_addresses_that_are_served", async {
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(Options { level: Level::Plain, ..options(folder.path()) }).await;
        let gateway = world.gateway;
        let address = world.network.allocate(&uid("a")).await.unwrap();
        serve(address, "from the pod");
        world.object("a", "web", address).await;
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
        let made = world.service("web", spec).await.spec.unwrap();
        let served = world.network.address_of_service(made.cluster_ip.unwrap().parse().unwrap());
        assert!(served.is_loopback());
        let found = (ResponseCode::NoError, vec![served.to_string()]);
        eventually("the name", async || {
            let name = "web.default.svc.cluster.local.";
            on_machine(move || resolve(gateway, name)).await.filter(|it| *it == found)
        })
        .await;
        let answer = eventually("an answer", async || on_machine(move || ask((served.into(), 80))).await.ok()).await;
        assert_eq!(answer, "from the pod");
        let api_server = world.network.api_server_for_pods(Ipv4Addr::new(10, 96, 0, 1));
        assert_eq!(api_server, "127.0.0.1:6443".parse().unwrap(), "the API server is not reached directly");
    });
}

#[test]
fn long_answers_come_over_tcp() {
    isolated("services::long_answers_come_over_tcp", async {
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(options(folder.path())).await;
        let gateway = world.gateway;
        world.service("many", json!({"clusterIP": "None", "selector": {"app": "many"}})).await;
        for number in 0..60 {
            world.object(&format!("p{number}"), "many", IpAddr::from([10, 3, 1, number])).await;
        }
        let name = "many.default.svc.cluster.local.";
        let over_tcp = move || {
            let mut stream = TcpStream::connect((gateway, 53)).ok()?;
            let bytes = question(name, RecordType::A).to_vec().ok()?;
            stream.write_all(&[&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()).ok()?;
            let mut length = [0; 2];
            stream.read_exact(&mut length).ok()?;
            let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut answer).ok()?;
            Message::from_vec(&answer).ok()
        };
        eventually("all addresses", async || {
            let answer = on_machine(over_tcp).await?;
            (answer.answers.len() == 60 && !answer.metadata.truncation).then_some(())
        })
        .await;
        let (_, some) = on_machine(move || resolve(gateway, name)).await.unwrap();
        assert!((10..60).contains(&some.len()), "{} records in a small datagram", some.len());
    });
}

/// Answers every question with the address 192.0.2.80, in place of the host's name server.
fn serve_names(address: &str) {
    let socket = UdpSocket::bind((address, 53)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let mut message = Message::from_vec(&buffer[..length]).unwrap().into_response();
            let name = message.queries[0].name().clone();
            message.add_answer(Record::from_rdata(name, 60, RData::A(A(Ipv4Addr::new(192, 0, 2, 80)))));
            let _ = socket.send_to(&message.to_vec().unwrap(), client);
        }
    });
}

#[test]
fn other_names_and_external_names_are_answered_by_the_name_servers_of_the_host() {
    isolated("services::other_names_and_external_names_are_answered_by_the_name_servers_of_the_host", async {
        let folder = tempfile::tempdir().unwrap();
        let resolvers = folder.path().join("resolv.conf");
        std::fs::write(&resolvers, "nameserver 127.0.0.99\n").unwrap();
        let mounted = Command::new("mount").arg("--bind").args([&resolvers, Path::new("/etc/resolv.conf")]).status();
        assert!(mounted.unwrap().success(), "the mount namespace does not allow the mount");
        serve_names("127.0.0.99");
        let world = World::new(options(folder.path())).await;
        let gateway = world.gateway;
        let (pod, _) = world.pod("a", "a").await;
        world.service("db", json!({"type": "ExternalName", "externalName": "db.example.com"})).await;
        let answer = pod.run(move || resolve(gateway, "example.com.")).await.unwrap();
        assert_eq!(answer, (ResponseCode::NoError, vec!["192.0.2.80".to_owned()]));
        let want = ["db.example.com.", "192.0.2.80"].map(str::to_owned).to_vec();
        eventually("the alias and its address", async || {
            let found = pod.run(move || resolve(gateway, "db.default.svc.cluster.local.")).await?;
            (found == (ResponseCode::NoError, want.clone())).then_some(())
        })
        .await;
        std::fs::write(&resolvers, "").unwrap();
        let answer = pod.run(move || resolve(gateway, "example.com.")).await.unwrap();
        assert_eq!(answer.0, ResponseCode::ServFail);
    });
}
