//! The names of a cluster.
//!
//! Source: "Kubernetes DNS-Based Service Discovery", version 1.1.0. Where it does not specify the
//! behaviour, answers are those of CoreDNS. Pods have names only as long as they exist
//! (`pods verified`), and endpoints without a host name are named by their address
//! (`10-200-0-7.web.default.svc.cluster.local`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ipnet::Ipv4Net;

use crate::published::{Endpoint, EndpointPort, Kind, Published};

/// Time to live of records, in seconds. Clients see a change to a Service at most this much later.
pub const TTL: u32 = 5;
/// Version of the specification, published as `dns-version`.
const VERSION: &str = "1.1.0";

/// The answer to a question about a name of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// `NoError` or `NXDomain`.
    pub code: ResponseCode,
    /// Records of the answer section.
    pub answers: Vec<Record>,
    /// Additional records that clients need to use the answer.
    pub additionals: Vec<Record>,
    /// Another name, whose records must be added to the answer.
    pub alias: Option<Name>,
}

impl Answer {
    fn of(answers: Vec<Record>) -> Self {
        Self { code: ResponseCode::NoError, answers, additionals: Vec::new(), alias: None }
    }

    fn no_such_name() -> Self {
        Self { code: ResponseCode::NXDomain, ..Self::of(Vec::new()) }
    }

    /// The name exists but has no records of the type.
    fn no_data() -> Self {
        Self::of(Vec::new())
    }
}

/// Namespace and name of a Service.
type ServiceKey = (String, String);

/// The names of a cluster, with their addresses.
#[derive(Debug)]
pub struct Zone {
    domain: Name,
    /// Address of the name server.
    server: Ipv4Addr,
    /// Address ranges for which the zone answers reverse lookups.
    ranges: Vec<Ipv4Net>,
    /// Number of changes.
    serial: u32,
    services: BTreeMap<ServiceKey, Published>,
    by_address: BTreeMap<Ipv4Addr, BTreeSet<ServiceKey>>,
    /// Addresses of pods by namespace and name.
    pods: BTreeMap<ServiceKey, Ipv4Addr>,
    pod_addresses: BTreeMap<(String, Ipv4Addr), usize>,
}

impl Zone {
    /// An empty zone.
    pub fn new(domain: Name, server: Ipv4Addr, ranges: Vec<Ipv4Net>) -> Self {
        Self {
            domain: domain.to_lowercase(),
            server,
            ranges,
            serial: 1,
            services: BTreeMap::new(),
            by_address: BTreeMap::new(),
            pods: BTreeMap::new(),
            pod_addresses: BTreeMap::new(),
        }
    }

    /// Sets or removes a Service.
    pub fn set_service(&mut self, namespace: &str, name: &str, service: Option<Published>) {
        let key = (namespace.to_owned(), name.to_owned());
        if self.services.get(&key) == service.as_ref() {
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        if let Some(old) = self.services.remove(&key) {
            for address in reverse_addresses(&old) {
                if let Some(keys) = self.by_address.get_mut(&address) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        self.by_address.remove(&address);
                    }
                }
            }
        }
        if let Some(new) = service {
            for address in reverse_addresses(&new) {
                self.by_address.entry(address).or_default().insert(key.clone());
            }
            self.services.insert(key, new);
        }
    }

    /// Sets or removes the address of a pod.
    pub fn set_pod(&mut self, namespace: &str, name: &str, address: Option<Ipv4Addr>) {
        let key = (namespace.to_owned(), name.to_owned());
        let old = match address {
            Some(address) => self.pods.insert(key, address),
            None => self.pods.remove(&key),
        };
        if old == address {
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        if let Some(old) = old {
            let key = (namespace.to_owned(), old);
            if let Some(count) = self.pod_addresses.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.pod_addresses.remove(&key);
                }
            }
        }
        if let Some(address) = address {
            *self.pod_addresses.entry((namespace.to_owned(), address)).or_default() += 1;
        }
    }

    /// The answer to a question; `None` if the name does not belong to the cluster.
    pub fn lookup(&self, name: &Name, kind: RecordType) -> Option<Answer> {
        let lower = name.to_lowercase();
        if !self.domain.zone_of(&lower) {
            return self.reverse(name, kind);
        }
        let depth = usize::from(lower.num_labels() - self.domain.num_labels());
        let labels: Vec<String> =
            lower.iter().take(depth).map(|label| String::from_utf8_lossy(label).into_owned()).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        Some(match labels.as_slice() {
            [] => self.apex(name, kind),
            ["svc" | "pod" | "dns"] => Answer::no_data(),
            ["dns-version"] => {
                typed(kind, RecordType::TXT, || vec![record(name, RData::TXT(TXT::new(vec![VERSION.to_owned()])))])
            }
            ["ns", "dns"] => addresses(name, kind, [self.server]),
            [namespace, "svc" | "pod"] if self.has_namespace(namespace) => Answer::no_data(),
            [address, namespace, "pod"] => self.pod(name, kind, address, namespace),
            [service, namespace, "svc"] => self.with(namespace, service, |it| self.service(name, kind, it)),
            [label, service, namespace, "svc"] => {
                self.with(namespace, service, |it| self.below_service(name, kind, label, it))
            }
            [port, protocol, service, namespace, "svc"] => {
                self.with(namespace, service, |it| self.port(name, kind, port, protocol, it))
            }
            _ => Answer::no_such_name(),
        })
    }

    /// The record that reports in an answer that a name or its records do not exist.
    pub fn authority(&self) -> Record {
        record(&self.domain, self.soa())
    }

    fn soa(&self) -> RData {
        let [server, mailbox] = ["ns.dns", "hostmaster"].map(|name| self.name(name));
        RData::SOA(SOA::new(server, mailbox, self.serial, 7200, 1800, 86_400, TTL))
    }

    /// A name in the domain. A name that is too long for DNS becomes the domain itself. The API
    /// does not allow such names.
    fn name(&self, relative: &str) -> Name {
        Name::parse(relative, Some(&self.domain)).unwrap_or_else(|_| self.domain.clone())
    }

    fn apex(&self, name: &Name, kind: RecordType) -> Answer {
        match kind {
            RecordType::SOA => Answer::of(vec![record(name, self.soa())]),
            RecordType::NS => Answer {
                additionals: vec![record(&self.name("ns.dns"), RData::A(A(self.server)))],
                ..Answer::of(vec![record(name, RData::NS(NS(self.name("ns.dns"))))])
            },
            _ => Answer::no_data(),
        }
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        let from = (namespace.to_owned(), String::new());
        let first = |(found, _): &ServiceKey| found == namespace;
        self.services.range(from.clone()..).next().is_some_and(|(key, _)| first(key))
            || self.pods.range(from..).next().is_some_and(|(key, _)| first(key))
    }

    fn with(&self, namespace: &str, name: &str, answer: impl FnOnce(&Published) -> Answer) -> Answer {
        let service = self.services.get(&(namespace.to_owned(), name.to_owned()));
        service.map_or_else(Answer::no_such_name, answer)
    }

    fn pod(&self, name: &Name, kind: RecordType, address: &str, namespace: &str) -> Answer {
        let address = address.replace('-', ".").parse::<Ipv4Addr>().ok();
        let found = address.filter(|it| self.pod_addresses.contains_key(&(namespace.to_owned(), *it)));
        found.map_or_else(Answer::no_such_name, |address| addresses(name, kind, [address]))
    }

    fn service(&self, name: &Name, kind: RecordType, service: &Published) -> Answer {
        match &service.kind {
            Kind::ExternalName(target) => {
                let Ok(target) = Name::from_utf8(format!("{}.", target.trim_end_matches('.'))) else {
                    return Answer::no_data();
                };
                let answers = vec![record(name, RData::CNAME(CNAME(target.clone())))];
                Answer { alias: (kind != RecordType::CNAME).then_some(target), ..Answer::of(answers) }
            }
            // The specification requires NXDOMAIN if there are no endpoints.
            Kind::Headless if ready(service).next().is_none() => Answer::no_such_name(),
            Kind::Headless if kind == RecordType::SRV => self.ports(name, service, |_| true),
            Kind::ClusterIp(_) if kind == RecordType::SRV => self.ports(name, service, |_| true),
            Kind::Headless => {
                let unique: BTreeSet<Ipv4Addr> = ready(service).map(|endpoint| endpoint.address).collect();
                addresses(name, kind, unique)
            }
            Kind::ClusterIp(address) => addresses(name, kind, [*address]),
        }
    }

    /// The answer for a name directly below a Service: an endpoint, or the protocol of a port.
    fn below_service(&self, name: &Name, kind: RecordType, label: &str, service: &Published) -> Answer {
        if let Some(protocol) = label.strip_prefix('_') {
            let known = self.ports(name, service, |port| port.protocol.label() == protocol);
            return if known.answers.is_empty() { Answer::no_such_name() } else { Answer::no_data() };
        }
        let named: BTreeSet<Ipv4Addr> =
            ready(service).filter(|it| endpoint_label(it) == label).map(|it| it.address).collect();
        if named.is_empty() { Answer::no_such_name() } else { addresses(name, kind, named) }
    }

    fn port(&self, name: &Name, kind: RecordType, port: &str, protocol: &str, service: &Published) -> Answer {
        let (Some(port), Some(protocol)) = (port.strip_prefix('_'), protocol.strip_prefix('_')) else {
            return Answer::no_such_name();
        };
        let known = self.ports(name, service, |it| it.name == port && it.protocol.label() == protocol);
        match (known.answers.is_empty(), kind) {
            (true, _) => Answer::no_such_name(),
            (false, RecordType::SRV) => known,
            (false, _) => Answer::no_data(),
        }
    }

    /// The SRV records of the ports that `is_wanted` selects. They belong to the Service itself if
    /// it has an address, or else to its endpoints.
    fn ports(&self, name: &Name, service: &Published, is_wanted: impl Fn(&EndpointPort) -> bool) -> Answer {
        let base = format!("{}.{}.svc", service.name, service.namespace);
        let mut targets: BTreeMap<(String, u16), Ipv4Addr> = BTreeMap::new();
        if let Kind::ClusterIp(address) = service.kind {
            for port in &service.ports {
                let as_endpoint =
                    EndpointPort { name: port.name.clone(), protocol: port.protocol, number: port.number };
                if is_wanted(&as_endpoint) {
                    targets.insert((base.clone(), port.number), address);
                }
            }
        } else {
            for endpoint in ready(service) {
                for port in endpoint.ports.iter().filter(|port| is_wanted(port)) {
                    targets.insert((format!("{}.{base}", endpoint_label(endpoint)), port.number), endpoint.address);
                }
            }
        }
        let share = u16::try_from(100 / targets.len().max(1)).unwrap_or(1).max(1);
        let srv = |((target, number), _): (&(String, u16), _)| {
            record(name, RData::SRV(SRV::new(0, share, *number, self.name(target))))
        };
        let named: BTreeMap<&String, Ipv4Addr> = targets.iter().map(|((name, _), ip)| (name, *ip)).collect();
        let additionals = named.into_iter().map(|(target, ip)| record(&self.name(target), RData::A(A(ip)))).collect();
        Answer { additionals, ..Answer::of(targets.iter().map(srv).collect()) }
    }

    /// The answer to a reverse lookup of an address of the cluster; `None` for other addresses.
    fn reverse(&self, name: &Name, kind: RecordType) -> Option<Answer> {
        let IpAddr::V4(address) = name.parse_arpa_name().ok().filter(|net| net.prefix_len() == 32)?.addr() else {
            return None;
        };
        let Some(services) = self.by_address.get(&address) else {
            let is_ours = self.ranges.iter().any(|range| range.contains(&address));
            return is_ours.then(Answer::no_such_name);
        };
        let mut names = BTreeSet::new();
        for service in services.iter().filter_map(|key| self.services.get(key)) {
            let base = format!("{}.{}.svc", service.name, service.namespace);
            match service.kind {
                Kind::ClusterIp(_) => drop(names.insert(base)),
                _ => names.extend(
                    ready(service)
                        .filter(|endpoint| endpoint.address == address)
                        .map(|endpoint| format!("{}.{base}", endpoint_label(endpoint))),
                ),
            }
        }
        let records = || names.iter().map(|target| record(name, RData::PTR(PTR(self.name(target))))).collect();
        Some(typed(kind, RecordType::PTR, records))
    }
}

/// The addresses whose reverse lookup returns a Service.
fn reverse_addresses(service: &Published) -> BTreeSet<Ipv4Addr> {
    match service.kind {
        Kind::ClusterIp(address) => BTreeSet::from([address]),
        Kind::Headless => ready(service).map(|endpoint| endpoint.address).collect(),
        Kind::ExternalName(_) => BTreeSet::new(),
    }
}

fn ready(service: &Published) -> impl Iterator<Item = &Endpoint> {
    service.endpoints.iter().filter(|endpoint| endpoint.is_ready)
}

fn endpoint_label(endpoint: &Endpoint) -> String {
    endpoint.hostname.clone().unwrap_or_else(|| endpoint.address.to_string().replace('.', "-"))
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}

fn typed(asked: RecordType, has: RecordType, records: impl FnOnce() -> Vec<Record>) -> Answer {
    if asked == has { Answer::of(records()) } else { Answer::no_data() }
}

fn addresses(name: &Name, kind: RecordType, addresses: impl IntoIterator<Item = Ipv4Addr>) -> Answer {
    typed(kind, RecordType::A, || addresses.into_iter().map(|it| record(name, RData::A(A(it)))).collect())
}

#[cfg(test)]
mod tests;
