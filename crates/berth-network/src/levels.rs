//! Opens a pod network at a level.

use std::path::Path;
use std::sync::Arc;

use ipnet::Ipv4Net;

use crate::identity::Identity;
use crate::options::{Level, OpenError, Options};
use crate::plain::Loopback;
use crate::proxy::Clients;
use crate::ranges::Ranges;
use crate::sides::Sides;

const PLAIN_LIMIT: &str = "pods share the machine's network, each with a loopback address; Services are served at \
                           loopback addresses instead of their cluster IPs";

/// The connection of pods.
pub(crate) enum Fabric {
    #[cfg(target_os = "linux")]
    Full(crate::linux::Links),
    #[cfg(target_os = "linux")]
    Rootless(Arc<crate::holder::Holder>),
    Plain(Loopback),
}

/// A fabric and its limitations.
pub(crate) struct Opened {
    pub(crate) fabric: Fabric,
    pub(crate) ranges: Ranges,
    pub(crate) services: Option<(Ipv4Net, Clients)>,
    pub(crate) outside: Option<Arc<Loopback>>,
    pub(crate) sides: Sides,
    pub(crate) reason: Option<String>,
    pub(crate) limits: Vec<String>,
}

/// Opens the requested level, unless it is the plain level. The error is the reason if that does
/// not work.
pub(crate) async fn separate(
    options: &Options,
    identity: &Identity,
    folder: &Path,
    known: Option<Ipv4Net>,
    is_used: bool,
) -> Result<Opened, String> {
    let known = known.filter(|range| !range.network().is_loopback());
    match options.level {
        Level::Plain => Err("the plain level was requested".to_owned()),
        Level::Rootless => rootless(options, identity, folder, known, is_used).await,
        Level::Full => full(options, identity, folder, known, is_used).await,
    }
}

/// Opens the plain level. `reason` is why the requested level does not work.
pub(crate) fn plain(
    options: &Options,
    identity: &Identity,
    known: Option<Ipv4Net>,
    reason: String,
) -> Result<Opened, OpenError> {
    let loopback = Loopback::claim(identity, known).map_err(|error| OpenError::NoAddresses {
        reason: format!("{reason}; loopback addresses other than 127.0.0.1 cannot be used: {error}"),
    })?;
    Ok(Opened {
        ranges: Ranges::of(loopback.pods()).expect("the loopback network of a cluster has 65536 addresses"),
        fabric: Fabric::Plain(loopback),
        services: None,
        outside: None,
        sides: Sides::default(),
        reason: (options.level > Level::Plain).then_some(reason),
        limits: vec![PLAIN_LIMIT.to_owned()],
    })
}

/// Opens the full level. The error is the reason if that does not work.
#[cfg(target_os = "linux")]
async fn full(
    options: &Options,
    identity: &Identity,
    folder: &Path,
    known: Option<Ipv4Net>,
    is_used: bool,
) -> Result<Opened, String> {
    let opened = crate::linux::Links::open(identity.clone(), folder, options.pod_range, known, is_used).await;
    let links = opened.map_err(|error| error.to_string())?;
    let lacking = links.extend(options.service_range).await.map_err(|error| error.to_string())?;
    let range = options.service_range;
    let mut outside = None;
    let (services, lack) = match lacking.services {
        crate::linux::Reach::Everywhere => (Some((range, Clients::MachineFirst)), None),
        crate::linux::Reach::Pods => {
            let mut lack = format!("only pods can reach cluster IPs: another cluster of this machine uses {range}");
            outside = Loopback::claim(identity, None).ok().map(Arc::new);
            if let Some(loopback) = &outside {
                lack += &format!("; this machine reaches Services in {}", loopback.services());
            }
            (Some((range, Clients::Bridge)), Some(lack))
        }
        crate::linux::Reach::Nowhere(why) => (None, Some(format!("cluster IPs are not reachable: {why}"))),
    };
    let isolated = lacking.outside.map(|why| format!("pods cannot reach other networks: {why}"));
    let limits = isolated.into_iter().chain(lack).collect();
    let (ranges, sides) = (links.ranges(), Sides::default());
    Ok(Opened { ranges, fabric: Fabric::Full(links), services, outside, sides, reason: None, limits })
}

/// Opens the rootless level. The error is the reason if that does not work.
#[cfg(target_os = "linux")]
async fn rootless(
    options: &Options,
    identity: &Identity,
    folder: &Path,
    known: Option<Ipv4Net>,
    is_used: bool,
) -> Result<Opened, String> {
    let program = options.helper.as_deref().ok_or("no program for it is configured")?;
    let services = options.service_range;
    let choose = async || {
        let chosen = crate::linux::free_range(options.pod_range, known, is_used).await;
        chosen.map_err(|error| error.to_string())
    };
    let holder = crate::holder::Holder::open(program, folder, services, choose).await;
    let holder = Arc::new(holder.map_err(|error| error.to_string())?);
    let ranges = Ranges::of(holder.pods()).ok_or("the range of the pod network is too small")?;
    let mut limits = Vec::new();
    if let Some(reason) = holder.isolated() {
        limits.push(format!("pods cannot reach other networks: {reason}"));
    }
    let outside = match Loopback::claim(identity, None) {
        Ok(loopback) => {
            limits.push(format!("this machine reaches Services in {}", loopback.services()));
            Some(Arc::new(loopback))
        }
        Err(error) => {
            limits.push(format!("this machine cannot reach Services, except at node ports: {error}"));
            None
        }
    };
    let sides = Sides::of(holder.clone(), vec![ranges.pods, services]);
    let served = Some((services, Clients::All));
    Ok(Opened { ranges, fabric: Fabric::Rootless(holder), services: served, outside, sides, reason: None, limits })
}

#[cfg(not(target_os = "linux"))]
use self::unsupported as full;
#[cfg(not(target_os = "linux"))]
use self::unsupported as rootless;

/// Fails, because only Linux has the full and the rootless level.
#[cfg(not(target_os = "linux"))]
async fn unsupported(
    _options: &Options,
    _identity: &Identity,
    _folder: &Path,
    _known: Option<Ipv4Net>,
    _is_used: bool,
) -> Result<Opened, String> {
    Err("network namespaces exist on Linux only".to_owned())
}
