//! A lock that lets only one cluster of this machine at a time choose its pod network. Otherwise
//! clusters that start at the same time could choose the same range, because none sees the bridge
//! that another will create next.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

/// Abstract address to which the choosing process is bound. Such an address belongs to a network
/// namespace, as bridges do, and becomes free when the process ends.
const NAME: &str = "berth-pod-network-choice";
/// Time between two attempts, and their number. There is a limit because another process could hold
/// the address forever.
const RETRY: Duration = Duration::from_millis(20);
const ATTEMPTS: u32 = 500;

/// The right to choose, until dropped.
pub(super) struct Turn {
    _address: Option<UnixListener>,
}

/// Waits for the right to choose, at most ten seconds.
pub(super) async fn take() -> Turn {
    for _ in 0..ATTEMPTS {
        match SocketAddr::from_abstract_name(NAME).and_then(|address| UnixListener::bind_addr(&address)) {
            Ok(address) => return Turn { _address: Some(address) },
            Err(error) if error.kind() == ErrorKind::AddrInUse => tokio::time::sleep(RETRY).await,
            Err(error) => {
                tracing::debug!(%error, "cannot reserve the choice of a pod network; a cluster that starts at the same time may choose the same network");
                return Turn { _address: None };
            }
        }
    }
    tracing::warn!("another process has been choosing its pod network for ten seconds; not waiting longer");
    Turn { _address: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_process_chooses_at_a_time() {
        let first = take().await;
        let second = tokio::spawn(take());
        tokio::time::sleep(RETRY * 3).await;
        assert!(!second.is_finished());
        drop(first);
        assert!(second.await.expect("no panic")._address.is_some());
    }
}
