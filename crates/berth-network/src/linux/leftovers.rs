//! Removes bridges and packet filter tables that other clusters left on this machine, for example
//! because their process was killed.
//!
//! A process that uses a bridge holds a socket with the bridge's name. The name belongs to the
//! network namespace, like the bridge. The bridge's alias contains the folder of its cluster. A
//! bridge without such a process is no longer needed if its folder does not exist or no pod is
//! connected to it.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::{Handle, LinkUnspec};

use super::{LinkError, delete, name_of, namespace, nft};
use crate::identity::{bridge_of_table, table_of_bridge};

/// Prefix of the alias of a bridge.
const ALIAS: &str = "berth cluster ";
/// Maximum length of the alias of an interface.
const ALIAS_MAX: usize = 255;

/// Marks a bridge as used by this process.
#[derive(Debug)]
pub(super) struct Claim(
    #[expect(dead_code, reason = "the name of the socket stays in use while the socket is open")] UnixDatagram,
);

impl Claim {
    /// Claims a bridge. Fails with `AddrInUse` if another process has claimed it.
    pub(super) fn take(bridge: &str) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(format!("berth-network/{bridge}"))?;
        UnixDatagram::bind_addr(&address).map(Self)
    }
}

/// Writes the folder of the cluster to the bridge's alias. Other clusters never remove a bridge
/// without an alias.
pub(super) async fn label(handle: &Handle, bridge: &str, folder: &Path) -> Result<(), LinkError> {
    let alias = format!("{ALIAS}{}", folder.display());
    if alias.len() > ALIAS_MAX {
        return Ok(());
    }
    let message = LinkUnspec::new_with_name(bridge).alias(alias).build();
    handle.link().set(message).execute().await.map_err(LinkError::of(format!("setting the alias of {bridge}")))
}

/// Removes the bridges of other clusters that are no longer needed, with their interfaces and
/// tables.
pub(super) async fn remove(handle: &Handle, own: &str) -> Result<(), LinkError> {
    let links = namespace::links(handle).await?;
    for link in &links {
        let alias = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => alias.strip_prefix(ALIAS),
            _ => None,
        });
        let (Some(name), Some(folder)) = (name_of(link), alias) else { continue };
        let Some(table) = table_of_bridge(name).filter(|_| name != own) else { continue };
        // While the claim is held, a process that starts now cannot use a bridge that is being
        // removed.
        let Ok(_claim) = Claim::take(name) else { continue };
        let ports: Vec<&str> = links
            .iter()
            .filter(|port| port.attributes.contains(&LinkAttribute::Controller(link.header.index)))
            .filter_map(name_of)
            .collect();
        if Path::new(folder).exists() && !ports.is_empty() {
            continue;
        }
        tracing::info!(bridge = name, folder, "removing the pod network of a cluster that has ended");
        for port in ports {
            delete(handle, port).await?;
        }
        delete(handle, name).await?;
        remove_table(&table)?;
    }
    remove_tables(&links, own)
}

/// Removes the tables of other clusters whose bridge no longer exists. Their rules would drop the
/// packets of a cluster that gets the same range of pod addresses.
fn remove_tables(links: &[LinkMessage], own: &str) -> Result<(), LinkError> {
    let listing = |source| LinkError::Io { what: "listing the packet filter's tables".to_owned(), source };
    for table in nft::tables().map_err(listing)? {
        let Some(bridge) = bridge_of_table(&table).filter(|bridge| bridge != own) else { continue };
        if links.iter().any(|link| name_of(link) == Some(&bridge)) {
            continue;
        }
        let Ok(_claim) = Claim::take(&bridge) else { continue };
        remove_table(&table)?;
    }
    Ok(())
}

fn remove_table(table: &str) -> Result<(), LinkError> {
    nft::remove(table).map_err(|source| LinkError::Io { what: format!("removing the table {table}"), source })
}
