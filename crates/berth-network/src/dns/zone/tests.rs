use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);

fn published(service: Value, slices: &[Value]) -> Published {
    let service = serde_json::from_value(service).unwrap();
    let slices: Vec<_> = slices.iter().map(|it| Arc::new(serde_json::from_value(it.clone()).unwrap())).collect();
    Published::of(&service, &slices).expect("the Service has an address")
}

fn slice(endpoints: Value) -> Value {
    json!({"addressType": "IPv4", "metadata": {"name": "s"}, "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
}

/// Services `web` (cluster IP), `workers` (headless), `starting` (headless, no ready endpoint) and
/// `db` (external), and a pod, in namespace `team`.
fn zone() -> Zone {
    let ranges = vec!["10.200.0.0/16".parse().unwrap(), "10.96.0.0/16".parse().unwrap()];
    let mut zone = Zone::new(Name::from_str("cluster.local.").unwrap(), GATEWAY, ranges);
    let ports = json!([{"name": "http", "port": 80}, {"name": "query", "port": 53, "protocol": "UDP"}]);
    let web =
        json!({"metadata": {"name": "web", "namespace": "team"}, "spec": {"clusterIP": "10.96.0.20", "ports": ports}});
    let headless = |name: &str| json!({"metadata": {"name": name, "namespace": "team"}, "spec": {"clusterIP": "None", "ports": ports}});
    let endpoint = |ip: &str, host: Value, ready: bool| json!({"addresses": [ip], "hostname": host, "conditions": {"ready": ready}});
    let workers = slice(json!([
        endpoint("10.200.0.6", json!("w-1"), true),
        endpoint("10.200.0.5", json!("w-0"), true),
        endpoint("10.200.0.7", Value::Null, true),
        endpoint("10.200.0.8", json!("w-3"), false),
    ]));
    let starting = slice(json!([endpoint("10.200.0.9", json!("s-0"), false)]));
    let db = json!({"metadata": {"name": "db", "namespace": "team"},
        "spec": {"type": "ExternalName", "externalName": "db.example.com"}});
    zone.set_service("team", "web", Some(published(web, &[])));
    zone.set_service("team", "workers", Some(published(headless("workers"), &[workers])));
    zone.set_service("team", "starting", Some(published(headless("starting"), &[starting])));
    zone.set_service("team", "db", Some(published(db, &[])));
    zone.set_pod("team", "w-0", Some(Ipv4Addr::new(10, 200, 0, 5)));
    zone
}

/// The answer as a string: the code, then the data of the records, with `+` before additional ones.
fn ask(zone: &Zone, kind: RecordType, name: &str) -> String {
    let Some(answer) = zone.lookup(&Name::from_str(name).unwrap(), kind) else { return "not ours".to_owned() };
    let code = if answer.code == ResponseCode::NoError { "ok".to_owned() } else { format!("{:?}", answer.code) };
    let mut words = vec![code];
    words.extend(answer.answers.iter().map(|record| record.data.to_string()));
    words.extend(answer.additionals.iter().map(|record| format!("+{} {}", record.name, record.data)));
    words.join(", ")
}

#[track_caller]
fn check(kind: RecordType, name: &str, want: &str) {
    assert_eq!(ask(&zone(), kind, name), want, "{kind} {name}");
}

#[test]
fn a_service_has_the_address_of_its_cluster_ip() {
    check(RecordType::A, "web.team.svc.cluster.local.", "ok, 10.96.0.20");
    check(RecordType::A, "WEB.Team.svc.Cluster.local.", "ok, 10.96.0.20");
    check(RecordType::AAAA, "web.team.svc.cluster.local.", "ok");
    check(RecordType::A, "web.other.svc.cluster.local.", "NXDomain");
    check(RecordType::A, "none.team.svc.cluster.local.", "NXDomain");
}

#[test]
fn a_headless_service_has_the_addresses_of_its_ready_endpoints() {
    check(RecordType::A, "workers.team.svc.cluster.local.", "ok, 10.200.0.5, 10.200.0.6, 10.200.0.7");
    check(RecordType::A, "w-1.workers.team.svc.cluster.local.", "ok, 10.200.0.6");
    check(RecordType::A, "10-200-0-7.workers.team.svc.cluster.local.", "ok, 10.200.0.7");
    check(RecordType::AAAA, "w-1.workers.team.svc.cluster.local.", "ok");
    check(RecordType::A, "w-3.workers.team.svc.cluster.local.", "NXDomain");
    check(RecordType::A, "starting.team.svc.cluster.local.", "NXDomain");
}

#[test]
fn ports_have_srv_records() {
    check(
        RecordType::SRV,
        "_http._tcp.web.team.svc.cluster.local.",
        "ok, 0 100 80 web.team.svc.cluster.local., +web.team.svc.cluster.local. 10.96.0.20",
    );
    check(
        RecordType::SRV,
        "_http._tcp.workers.team.svc.cluster.local.",
        "ok, 0 33 8080 10-200-0-7.workers.team.svc.cluster.local., 0 33 8080 w-0.workers.team.svc.cluster.local., \
         0 33 8080 w-1.workers.team.svc.cluster.local., +10-200-0-7.workers.team.svc.cluster.local. 10.200.0.7, \
         +w-0.workers.team.svc.cluster.local. 10.200.0.5, +w-1.workers.team.svc.cluster.local. 10.200.0.6",
    );
    check(RecordType::SRV, "_http._udp.web.team.svc.cluster.local.", "NXDomain");
    check(RecordType::A, "_http._tcp.web.team.svc.cluster.local.", "ok");
    check(RecordType::A, "_tcp.web.team.svc.cluster.local.", "ok");
}

#[test]
fn an_external_name_is_an_alias() {
    check(RecordType::A, "db.team.svc.cluster.local.", "ok, db.example.com.");
    let answer = zone().lookup(&Name::from_str("db.team.svc.cluster.local.").unwrap(), RecordType::A).unwrap();
    assert_eq!(answer.alias, Some(Name::from_str("db.example.com.").unwrap()));
}

#[test]
fn pods_and_addresses_have_names() {
    check(RecordType::A, "10-200-0-5.team.pod.cluster.local.", "ok, 10.200.0.5");
    check(RecordType::A, "10-200-0-6.team.pod.cluster.local.", "NXDomain");
    check(RecordType::PTR, "20.0.96.10.in-addr.arpa.", "ok, web.team.svc.cluster.local.");
    check(RecordType::PTR, "5.0.200.10.in-addr.arpa.", "ok, w-0.workers.team.svc.cluster.local.");
    check(RecordType::PTR, "99.0.200.10.in-addr.arpa.", "NXDomain");
    check(RecordType::PTR, "1.1.1.1.in-addr.arpa.", "not ours");
}

#[test]
fn the_domain_itself_exists_and_other_domains_are_not_answered() {
    check(RecordType::A, "cluster.local.", "ok");
    check(RecordType::A, "svc.cluster.local.", "ok");
    check(RecordType::A, "team.svc.cluster.local.", "ok");
    check(RecordType::A, "other.svc.cluster.local.", "NXDomain");
    check(RecordType::NS, "cluster.local.", "ok, ns.dns.cluster.local., +ns.dns.cluster.local. 10.200.0.1");
    check(RecordType::TXT, "dns-version.cluster.local.", "ok, 1.1.0");
    check(RecordType::A, "example.com.", "not ours");
    check(RecordType::A, "local.", "not ours");
    assert!(ask(&zone(), RecordType::SOA, "cluster.local.").starts_with("ok, ns.dns.cluster.local. hostmaster."));
}

#[test]
fn removed_objects_have_no_names() {
    let mut zone = zone();
    zone.set_service("team", "workers", None);
    zone.set_service("team", "web", None);
    zone.set_pod("team", "w-0", None);
    for (kind, name) in [
        (RecordType::A, "web.team.svc.cluster.local."),
        (RecordType::A, "w-0.workers.team.svc.cluster.local."),
        (RecordType::A, "10-200-0-5.team.pod.cluster.local."),
        (RecordType::PTR, "20.0.96.10.in-addr.arpa."),
        (RecordType::PTR, "5.0.200.10.in-addr.arpa."),
    ] {
        assert_eq!(ask(&zone, kind, name), "NXDomain", "{kind} {name}");
    }
}
