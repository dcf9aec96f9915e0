//! Facts about the machine.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use berth_pod_runtime::MachineFacts;

use crate::figures::memory_bytes;
use crate::text::{self, label, line, node_name};

/// Addresses of documentation networks. A route to them is the default route; nothing is sent.
const ELSEWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// Reads all facts except those of the disk and the devices.
pub(crate) fn read(root: &Path) -> io::Result<MachineFacts> {
    let host = line(root, "proc/sys/kernel/hostname").unwrap_or_default();
    let name = Some(node_name(&host)).filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".into());
    let machine_id = line(root, "etc/machine-id").unwrap_or_default();
    Ok(MachineFacts {
        name,
        // Follows CPU affinity and the quota of control groups.
        cpus: std::thread::available_parallelism()?.get() as u64,
        memory_bytes: memory_bytes(root)?,
        disk_bytes: 0,
        architecture: architecture().to_owned(),
        kernel_version: line(root, "proc/sys/kernel/osrelease").unwrap_or_default(),
        os_image: os_image(root),
        boot_id: line(root, "proc/sys/kernel/random/boot_id").unwrap_or_default(),
        system_uuid: line(root, "sys/class/dmi/id/product_uuid").unwrap_or_else(|| machine_id.clone()),
        machine_id,
        instance_type: line(root, "sys/class/dmi/id/product_name")
            .map(|name| label(&name))
            .filter(|name| !name.is_empty()),
        addresses: addresses(),
        labels: Default::default(),
    })
}

/// This machine's architecture, with Kubernetes' name.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

fn os_image(root: &Path) -> String {
    let release =
        text::read(root, "etc/os-release").or_else(|_| text::read(root, "usr/lib/os-release")).unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |name| name.trim().trim_matches(['"', '\'']).to_owned())
}

/// The source addresses of this machine for other networks; the loopback address if it has no
/// network.
fn addresses() -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for elsewhere in ELSEWHERE {
        let Ok(elsewhere) = elsewhere.parse::<SocketAddr>() else { continue };
        let any: SocketAddr = if elsewhere.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        // Connecting a UDP socket only looks up the route.
        let local = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(elsewhere)?;
            socket.local_addr()
        });
        found.extend(local.ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified()));
    }
    if found.is_empty() {
        found.push(IpAddr::from([127, 0, 0, 1]));
    }
    found
}
