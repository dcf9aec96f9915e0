//! The controllers that update the network's names and proxy with the cluster's Services, endpoints
//! and pods, and that give Services of type LoadBalancer their address.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use berth_apimachinery::well_known::SERVICE_NAME;
use berth_runtime::{Action, Cache, Delta, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Pod, Service, ServiceStatus};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};

use crate::host_ports;
use crate::network::Network;
use crate::proxy::{Owner, wanted};
use crate::published::{Endpoint, EndpointPort, Kind, Published};

/// Adds the controllers that feed the network's name server and proxy.
pub fn install(manager: &mut Manager, network: Arc<Network>) {
    let (services, slices, pods) =
        (manager.cache::<Service>(), manager.cache::<EndpointSlice>(), manager.cache::<Pod>());
    let controller = Arc::new(Controller {
        client: manager.client(),
        recorder: manager.recorder("service-network"),
        services: services.clone(),
        of_service: slices.index(|slice| service_of(slice).map(|key| key.to_string()).into_iter().collect()),
        network: network.clone(),
    });
    host_ports::install(manager, &pods, network.clone());
    let of_pods = network.clone();
    manager
        .controller("service-network")
        // One at a time, so that no two Services get the same address.
        .concurrency(1)
        .watch_self(&services)
        .watch(&slices, |delta| {
            [&delta.old, &delta.new].into_iter().flatten().filter_map(|it| service_of(it)).collect::<BTreeSet<_>>()
        })
        .watch(&pods, move |delta| {
            name_pod(&of_pods, delta);
            []
        })
        .run(Shared(controller.clone()));
    // All caches are filled when a task starts.
    manager.task("names", async move {
        for service in services.iter() {
            controller.name(&ObjectKey::of(service.as_ref()), Some(&service));
        }
        network.names().set_filled();
        pending().await
    });
}

fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let name = slice.labels().get(SERVICE_NAME)?;
    Some(ObjectKey::namespaced(slice.namespace().unwrap_or_default(), name))
}

/// Publishes the address of a pod as long as the pod has one and has not ended.
fn name_pod(network: &Network, delta: &Delta<Pod>) {
    let address = delta.new.as_ref().and_then(|pod| {
        let status = pod.status.as_ref()?;
        let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        status.pod_ip.as_deref().filter(|_| !has_ended)?.parse().ok()
    });
    let key = ObjectKey::of(delta.latest().as_ref());
    network.names().zone.write().set_pod(&key.namespace, &key.name, address);
}

struct Shared(Arc<Controller>);

struct Controller {
    client: Client,
    recorder: Recorder,
    services: Cache<Service>,
    of_service: Index<EndpointSlice>,
    network: Arc<Network>,
}

impl Reconciler for Shared {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let controller = &self.0;
        let service = controller.services.get(&key);
        let published = controller.name(&key, service.as_ref());
        let fronts = published.map_or(Vec::new(), |it| wanted(&it, controller.network.as_ref()));
        let served = controller.network.proxy().set(Owner::Service(key), fronts).await;
        if let Some(service) = &service {
            controller.balance(service).await?;
            if let Err(error) = &served {
                controller.recorder.event(service.as_ref(), EventType::Warning, "FailedToServe", &error.to_string());
            }
        }
        match served {
            // A retry would fail as well.
            Err(error) if !error.is_forbidden() => Err(error.into()),
            _ => Ok(Action::Wait),
        }
    }
}

impl Controller {
    /// Publishes the names of a Service, or removes them. Returns the published form.
    fn name(&self, key: &ObjectKey, service: Option<&Arc<Service>>) -> Option<Published> {
        let slices = self.of_service.get(&key.to_string());
        let mut published = service.and_then(|service| Published::of(service, &slices));
        if let Some(published) = &mut published
            && (key.namespace.as_str(), key.name.as_str()) == ("default", "kubernetes")
        {
            published.endpoints = api_server(published, self.network.api_server());
        }
        let named = published.clone().map(|it| match it.kind {
            Kind::ClusterIp(address) => {
                Published { kind: Kind::ClusterIp(self.network.address_of_service(address)), ..it }
            }
            _ => it,
        });
        self.network.names().zone.write().set_service(&key.namespace, &key.name, named);
        published
    }

    /// Writes the address of a Service's load balancer into its status. Removes it if the Service
    /// now has another type.
    async fn balance(&self, service: &Arc<Service>) -> Result<(), Error> {
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let present = ingress(service);
        let wanted = if is_balanced(service) {
            let kept = present.iter().copied().find(|address| self.network.is_external(*address));
            let Some(address) = kept.or_else(|| self.free_address(service)) else {
                let message = "no address is free for the Service: delete Services of type LoadBalancer";
                self.recorder.event(service.as_ref(), EventType::Warning, "SyncLoadBalancerFailed", message);
                return Err(message.into());
            };
            vec![address]
        } else {
            present.iter().copied().filter(|address| !self.network.is_external(*address)).collect()
        };
        if wanted == present {
            return Ok(());
        }
        let list: Vec<_> = wanted
            .iter()
            .map(|address| LoadBalancerIngress {
                ip: Some(address.to_string()),
                ip_mode: Some("Proxy".to_owned()),
                ..LoadBalancerIngress::default()
            })
            .collect();
        let balancer = LoadBalancerStatus { ingress: (!list.is_empty()).then_some(list) };
        let status = ServiceStatus { load_balancer: Some(balancer), ..service.status.clone().unwrap_or_default() };
        let changed = Service { status: Some(status), ..(**service).clone() };
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.namespace().unwrap_or_default());
        let params = PostParams::default();
        let written = berth_runtime::write::replace_status(&api, &service.name_any(), &params, &changed).await?;
        self.services.observe(written);
        Ok(())
    }

    fn free_address(&self, service: &Service) -> Option<Ipv4Addr> {
        let spec = service.spec.as_ref()?;
        let cluster_ip = spec.cluster_ip.as_deref()?.parse().ok()?;
        let asked = spec.load_balancer_ip.as_deref().and_then(|text| text.parse().ok());
        let taken: BTreeSet<Ipv4Addr> = self.services.iter().flat_map(|it| ingress(&it)).collect();
        self.network.external_address(cluster_ip, asked, &taken)
    }
}

/// True if this network is the load balancer of the Service. A Service with a load balancer class
/// has another one.
fn is_balanced(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none())
}

fn ingress(service: &Service) -> Vec<Ipv4Addr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|it| it.ip.as_deref()?.parse().ok()).collect()
}

/// The API server as the endpoint of its own Service. It listens at a loopback address, which is
/// not allowed in an EndpointSlice.
fn api_server(service: &Published, address: SocketAddr) -> Vec<Endpoint> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if !ip.is_unspecified() => ip,
        // An IPv6 wildcard accepts IPv4 as well.
        _ => Ipv4Addr::LOCALHOST,
    };
    let ports = service.ports.iter().map(|port| EndpointPort {
        name: port.name.clone(),
        protocol: port.protocol,
        number: address.port(),
    });
    vec![Endpoint {
        address: ip,
        hostname: None,
        is_ready: true,
        is_draining: false,
        is_pod: false,
        ports: ports.collect(),
    }]
}
