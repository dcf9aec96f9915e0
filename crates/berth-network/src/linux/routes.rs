//! The routes of a network namespace, and the address range that they leave for a pod network.

use std::net::Ipv4Addr;

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::namespace::{self, ignore_existing};
use super::{LinkError, connect};
use crate::ranges::{Ranges, choose, overlap};

/// Number of the routing table of the machine's own addresses.
const TABLE_LOCAL: u32 = 255;
/// Number of the routing table that the kernel searches after that.
pub(super) const TABLE_MAIN: u32 = 254;

/// Chooses the range of a pod network in a namespace of its own. The machine must not use the
/// range, because pods could not reach its addresses.
pub(crate) async fn free_range(
    wanted: Option<Ipv4Net>,
    known: Option<Ipv4Net>,
    is_used: bool,
) -> Result<Ipv4Net, LinkError> {
    let (connection, handle) = connect()?;
    let task = tokio::spawn(connection);
    let routes = routes(&handle, None).await;
    task.abort();
    let range = range(wanted, known, is_used, &routes?)?;
    Ranges::of(range).map(|ranges| ranges.pods).ok_or(LinkError::RangeTooSmall(range))
}

/// A route of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) destination: Ipv4Net,
    pub(super) interface: Option<u32>,
    /// True if the addresses belong to this machine.
    pub(super) is_local: bool,
    pub(super) metric: u32,
}

/// The IPv4 routes of this machine, except those of the interface `own` and the loopback network.
/// The default route has prefix length 0.
pub(super) async fn routes(handle: &Handle, own: Option<u32>) -> Result<Vec<Route>, LinkError> {
    let filter = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let messages: Vec<RouteMessage> =
        handle.route().get(filter).execute().try_collect().await.map_err(LinkError::of("listing routes"))?;
    let parsed = messages.iter().filter_map(|message| {
        if !matches!(message.header.kind, RouteType::Unicast | RouteType::Local) {
            return None;
        }
        let (mut destination, mut interface, mut metric) = (Ipv4Addr::UNSPECIFIED, None, 0);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(RouteAddress::Inet(address)) => destination = *address,
                RouteAttribute::Oif(index) => interface = Some(*index),
                RouteAttribute::Priority(given) => metric = *given,
                _ => {}
            }
        }
        let destination = Ipv4Net::new(destination, message.header.destination_prefix_length).ok()?;
        Some(Route { destination, interface, is_local: message.header.kind == RouteType::Local, metric })
    });
    Ok(parsed
        .filter(|route| !route.destination.network().is_loopback())
        .filter(|route| own.is_none() || route.interface != own)
        .collect())
}

/// Chooses the range of the pod network.
pub(super) fn range(
    wanted: Option<Ipv4Net>,
    known: Option<Ipv4Net>,
    is_used: bool,
    routes: &[Route],
) -> Result<Ipv4Net, LinkError> {
    if let Some(known) = known
        && is_used
    {
        return Ok(known);
    }
    let mut used: Vec<Ipv4Net> =
        routes.iter().map(|route| route.destination).filter(|range| range.prefix_len() > 0).collect();
    if let Some(wanted) = wanted.map(|range| range.trunc()) {
        let other = used.iter().find(|other| overlap(wanted, **other));
        return other.map_or(Ok(wanted), |other| Err(LinkError::RangeInUse { wanted, used: *other }));
    }
    // Name servers are often reached through the default route.
    used.extend(crate::resolvers::of_host().into_iter().filter_map(|server| match server {
        std::net::IpAddr::V4(address) => Some(Ipv4Net::from(address)),
        std::net::IpAddr::V6(_) => None,
    }));
    choose(known, &used).ok_or(LinkError::NoRange)
}

/// The packet size of the interface of the default route. Larger packets from pods would be
/// fragmented or lost.
pub(super) async fn default_mtu(handle: &Handle, routes: &[Route]) -> Result<Option<u32>, LinkError> {
    let default = routes.iter().find(|route| route.destination.prefix_len() == 0).and_then(|route| route.interface);
    let links = namespace::links(handle).await?;
    let link = links.iter().find(|link| Some(link.header.index) == default);
    Ok(link.and_then(|link| {
        link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        })
    }))
}

/// Makes all addresses in a range addresses of this machine. A connection to one of them is refused
/// if there is no listener.
pub(super) async fn add_local_route(
    handle: &Handle,
    bridge: u32,
    range: Ipv4Net,
    metric: u32,
) -> Result<(), LinkError> {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .priority(metric)
        .destination_prefix(range.network(), range.prefix_len())
        .output_interface(bridge)
        .kind(RouteType::Local)
        .scope(RouteScope::Host)
        .table_id(TABLE_LOCAL)
        .build();
    let added = handle.route().add(route).execute().await;
    ignore_existing(added).map_err(LinkError::of(format!("adding a local route for {range}")))
}
