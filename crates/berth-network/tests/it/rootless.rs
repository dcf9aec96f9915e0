//! The pod network in a user namespace of its own.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_network::{Level, Network, Options, Report};
use berth_pod_runtime::SandboxNetwork;
use hickory_proto::op::ResponseCode;
use serde_json::json;

use crate::pods::{options, uid};
use crate::services::{World, ask, ask_by_udp, eventually, listen_as_api_server, on_machine, resolve, serve};
use crate::space::{Space, ip, isolated};

fn rootless(folder: &Path) -> Options {
    Options { level: Level::Rootless, ..options(folder) }
}

async fn open(folder: &Path) -> (Arc<Network>, Report) {
    let (network, report) = Network::open(rootless(folder)).await.unwrap();
    assert_eq!((report.level, &report.reason), (Level::Rootless, &None), "{report}");
    (network, report)
}

async fn start(network: &Network, name: &str) -> (Space, IpAddr) {
    let space = Space::of(network);
    let address = network.allocate(&uid(name)).await.unwrap();
    network.connect(&uid(name), space.pid()).await.unwrap();
    (space, address)
}

/// Another machine, at 192.0.2.2. This machine is 192.0.2.1 for it.
async fn other_machine() -> Space {
    let other = Space::new();
    ip(&format!("link add up0 type veth peer name eth0 netns {}", other.pid()));
    ip("address add 192.0.2.1/24 dev up0");
    ip("link set up0 up");
    let settle = |words: &'static str| other.run(move || drop(ip(words)));
    settle("address add 192.0.2.2/24 dev eth0").await;
    settle("link set eth0 up").await;
    other
}

/// IDs of the holders of this network.
fn holders(folder: &Path) -> Vec<i32> {
    let folder = folder.canonicalize().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let wanted = format!("pod-network\0{}\0", folder.display());
    numbers
        .filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.contains(&wanted)))
        .collect()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn pods_reach_each_other_services_names_and_other_networks() {
    isolated("rootless::pods_reach_each_other_services_names_and_other_networks", async {
        let other = other_machine().await;
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(rootless(folder.path())).await;
        let gateway = world.gateway;
        let (a, _) = world.pod("a", "a").await;
        let (b, address) = world.pod("b", "web").await;
        // Both listen at the same port of all addresses.
        let all = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        a.run(move || serve(all, "from a")).await;
        b.run(move || serve(all, "from b")).await;
        assert_eq!(a.run(move || ask((address, 8080))).await.unwrap(), "from b");
        let ports = json!([
            {"name": "main", "port": 80, "targetPort": 8080},
            {"name": "udp", "port": 90, "targetPort": 8080, "protocol": "UDP"},
        ]);
        let spec = json!({"type": "NodePort", "selector": {"app": "web"}, "ports": ports});
        let made = world.service("web", spec).await.spec.unwrap();
        let node_port = u16::try_from(made.ports.unwrap()[0].node_port.unwrap()).unwrap();
        let cluster_ip: Ipv4Addr = made.cluster_ip.unwrap().parse().unwrap();
        let name = "web.default.svc.cluster.local.";
        let found = (ResponseCode::NoError, vec![cluster_ip.to_string()]);
        eventually("the name", async || a.run(move || resolve(gateway, name)).await.filter(|it| *it == found)).await;
        let served = IpAddr::from(cluster_ip);
        eventually("TCP", async || a.run(move || ask((served, 80))).await.ok().filter(|it| it == "from b")).await;
        eventually("UDP", async || a.run(move || ask_by_udp((served, 90))).await.filter(|it| it == "from b")).await;
        // From this machine, at node ports and at loopback addresses of Services.
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(on_machine(move || ask((local, node_port))).await.unwrap(), "from b");
        let on_host = world.network.address_of_service_on_host(cluster_ip);
        assert!(on_host.is_loopback());
        assert_eq!(on_machine(move || ask((on_host.into(), 80))).await.unwrap(), "from b");
        let node = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(a.run(move || ask((gateway.into(), node_port))).await.unwrap(), "from b");
        let mut dialed = world.network.dial(SocketAddr::new(address, 8080)).await.unwrap().into_std().unwrap();
        dialed.set_nonblocking(false).unwrap();
        let mut text = String::new();
        on_machine(move || dialed.read_to_string(&mut text).map(|_| assert_eq!(text, "from b"))).await.unwrap();
        // Other networks see this machine's address.
        let outside = IpAddr::from([192, 0, 2, 2]);
        let (port, datagrams) = other.run(move || report_clients(outside)).await;
        assert_eq!(a.run(move || ask((outside, port))).await.unwrap(), node.to_string());
        assert_eq!(a.run(move || ask_by_udp((outside, datagrams))).await.unwrap(), node.to_string());
        let refused = a.run(move || ask((outside, 1))).await;
        assert!(refused.is_err(), "{refused:?}");
        let unserved = a.run(move || ask((IpAddr::from([10, 96, 200, 200]), 80))).await.unwrap_err();
        assert_eq!(unserved.kind(), ErrorKind::ConnectionRefused);
        // The machine's network is unchanged.
        assert!(!ip("-o link").contains("berth-") && on_machine(move || ask((address, 8080))).await.is_err());
        world.network.remove().await.unwrap();
        eventually("the holder's end", async || holders(folder.path()).is_empty().then_some(())).await;
    });
}

/// Sends the address of each client to it, over TCP and UDP. Returns the ports.
fn report_clients(address: IpAddr) -> (u16, u16) {
    let tcp = TcpListener::bind((address, 0)).unwrap();
    let udp = UdpSocket::bind((address, 0)).unwrap();
    let ports = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    std::thread::spawn(move || {
        while let Ok((mut stream, client)) = tcp.accept() {
            let _ = stream.write_all(client.ip().to_string().as_bytes());
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((_, client)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(client.ip().to_string().as_bytes(), client);
        }
    });
    ports
}

#[test]
fn pods_reach_the_api_server_but_no_other_loopback_address_of_the_machine() {
    isolated("rootless::pods_reach_the_api_server_but_no_other_loopback_address_of_the_machine", async {
        let folder = tempfile::tempdir().unwrap();
        let api_server = listen_as_api_server();
        let world = World::new(Options { api_server, ..rootless(folder.path()) }).await;
        let (pod, _) = world.pod("a", "a").await;
        let ports = json!([{"name": "https", "port": 443, "targetPort": 6443}]);
        world.service("kubernetes", json!({"clusterIP": "10.96.0.1", "ports": ports})).await;
        let target = world.network.api_server_for_pods(Ipv4Addr::new(10, 96, 0, 1));
        assert_eq!(target, "10.96.0.1:443".parse().unwrap());
        let answer =
            eventually("an answer", async || pod.run(move || ask((target.ip(), target.port()))).await.ok()).await;
        assert_eq!(answer, "the API server");
        let direct = pod.run(move || ask((api_server.ip(), api_server.port()))).await;
        assert!(direct.is_err(), "{direct:?}");
        world.network.remove().await.unwrap();
    });
}

#[test]
fn connections_between_pods_survive_the_process_and_the_holder() {
    isolated("rootless::connections_between_pods_survive_the_process_and_the_holder", async {
        let other = other_machine().await;
        let folder = tempfile::tempdir().unwrap();
        let (network, first) = open(folder.path()).await;
        assert!(network.is_new());
        let (a, _) = start(&network, "a").await;
        let (b, address) = start(&network, "b").await;
        let (mut near, mut far) = connected(&a, &b, address).await;
        let mut is_connected = move || {
            near.write_all(b"x").unwrap();
            let mut byte = [0];
            far.read_exact(&mut byte).unwrap();
        };
        is_connected();
        // The process ends without a word; the next one finds the network.
        drop(network);
        is_connected();
        let (network, second) = open(folder.path()).await;
        assert_eq!(first.pods, second.pods);
        assert!(!network.is_new());
        network.retain(&BTreeSet::from([uid("a"), uid("b")])).await.unwrap();
        is_connected();
        let (c, _) = start(&network, "c").await;
        assert_eq!(holders(folder.path()).len(), 1);
        // The holder is killed, and another one continues in its namespaces.
        let holder = holders(folder.path())[0];
        kill(holder);
        eventually("another holder", async || holders(folder.path()).iter().find(|pid| **pid != holder).copied()).await;
        is_connected();
        let outside = IpAddr::from([192, 0, 2, 2]);
        let (port, datagrams) = other.run(move || report_clients(outside)).await;
        eventually("TCP", async || c.run(move || ask((outside, port))).await.ok()).await;
        eventually("UDP", async || c.run(move || ask_by_udp((outside, datagrams))).await).await;
        let listener = b.run(move || TcpListener::bind((address, 0)).unwrap()).await;
        let at = listener.local_addr().unwrap();
        eventually("a socket in the pod network", async || network.dial(at).await.ok()).await;
        network.release(&uid("c")).await.unwrap();
        assert!(!c.run(|| ip("-o link")).await.contains("eth0"));
        network.remove().await.unwrap();
    });
}

/// A connection between two pods.
async fn connected(a: &Space, b: &Space, address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = b.run(move || TcpListener::bind((address, 0)).unwrap()).await;
    let at = listener.local_addr().unwrap();
    let near = a.run(move || TcpStream::connect(at).unwrap()).await;
    (near, listener.accept().unwrap().0)
}

#[test]
fn the_holder_ends_once_neither_a_process_nor_a_pod_uses_the_network() {
    isolated("rootless::the_holder_ends_once_neither_a_process_nor_a_pod_uses_the_network", async {
        let folder = tempfile::tempdir().unwrap();
        let (network, _) = open(folder.path()).await;
        let (pod, _) = start(&network, "a").await;
        drop(network);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(holders(folder.path()).len(), 1, "a pod uses the network");
        drop(pod);
        eventually("the holder's end", async || holders(folder.path()).is_empty().then_some(())).await;
        // The next process creates another network. A pod of the former one cannot be connected to
        // it.
        let (network, _) = open(folder.path()).await;
        assert!(network.is_new());
        let stranger = Space::new();
        let error = network.connect(&uid("a"), stranger.pid()).await.unwrap_err().to_string();
        assert!(error.contains("not permitted"), "{error}");
        network.remove().await.unwrap();
    });
}

#[test]
fn without_the_rights_the_network_is_plain_and_says_why() {
    isolated("rootless::without_the_rights_the_network_is_plain_and_says_why", async {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write("/proc/sys/user/max_net_namespaces", "0").unwrap();
        let (network, report) = Network::open(rootless(folder.path())).await.unwrap();
        assert_eq!(report.level, Level::Plain);
        let text = report.to_string();
        assert!(text.contains("level rootless does not work: network namespace: "), "{text}");
        assert!(network.is_shared() && holders(folder.path()).is_empty());
    });
}
