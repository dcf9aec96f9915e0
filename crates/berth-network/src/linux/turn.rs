//! One cluster of this machine at a time chooses its pod network. Clusters that start at once would
//! otherwise choose the same range, because none sees the bridge that another is about to create.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

/// Abstract address that the choosing process is bound to. Such addresses belong to a network
/// namespace, as bridges do, and are free again when the process ends.
const NAME: &str = "berth-pod-network-choice";
/// Time between two attempts, and their number: another process may hold the address for ever.
const RETRY: Duration = Duration::from_millis(20);
const ATTEMPTS: u32 = 500;

/// The right to choose, until dropped.
pub(super) struct Turn {
    _address: Option<UnixListener>,
}

/// Waits for the right to choose, for ten seconds at most.
pub(super) async fn take() -> Turn {
    for _ in 0..ATTEMPTS {
        match SocketAddr::from_abstract_name(NAME).and_then(|address| UnixListener::bind_addr(&address)) {
            Ok(address) => return Turn { _address: Some(address) },
            Err(error) if error.kind() == ErrorKind::AddrInUse => tokio::time::sleep(RETRY).await,
            Err(error) => {
                tracing::debug!(%error, "the pod network is chosen without regard to clusters that start now");
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
