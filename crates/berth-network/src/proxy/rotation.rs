//! Chooses the endpoint of a connection: the next in turn or, with session affinity, the endpoint
//! that the client used before.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of clients remembered for session affinity. Beyond it, the client that connected
/// least recently is forgotten.
const CLIENTS_MAX: usize = 4096;

/// The endpoints of a port of a Service.
pub(super) struct Rotation(Mutex<State>);

struct State {
    endpoints: Vec<SocketAddr>,
    next: usize,
    affinity: Option<Duration>,
    /// The endpoint of each client, and the time of its last use.
    clients: BTreeMap<IpAddr, (SocketAddr, Instant)>,
}

impl Rotation {
    pub(super) fn new(endpoints: Vec<SocketAddr>, affinity: Option<Duration>) -> Self {
        Self(Mutex::new(State { endpoints, next: 0, affinity, clients: BTreeMap::new() }))
    }

    /// Replaces the endpoints.
    pub(super) fn set(&self, endpoints: Vec<SocketAddr>, affinity: Option<Duration>) {
        let mut state = self.0.lock();
        state.endpoints = endpoints;
        state.affinity = affinity;
        if affinity.is_none() {
            state.clients.clear();
        }
    }

    /// True if the endpoint still receives connections.
    pub(super) fn has(&self, endpoint: SocketAddr) -> bool {
        self.0.lock().endpoints.contains(&endpoint)
    }

    /// The endpoints to try for a client, best first.
    pub(super) fn choose(&self, client: IpAddr) -> Vec<SocketAddr> {
        let state = &mut *self.0.lock();
        if state.endpoints.is_empty() {
            return Vec::new();
        }
        let mut order = state.endpoints.clone();
        let length = order.len();
        order.rotate_left(state.next % length);
        state.next = (state.next + 1) % length;
        if let Some(timeout) = state.affinity {
            let known = state.clients.get(&client).filter(|(_, used)| used.elapsed() <= timeout);
            if let Some(index) = known.and_then(|(endpoint, _)| order.iter().position(|it| it == endpoint)) {
                order.rotate_left(index);
            }
        }
        order
    }

    /// Remembers the endpoint of a client.
    pub(super) fn chosen(&self, client: IpAddr, endpoint: SocketAddr) {
        let state = &mut *self.0.lock();
        if state.affinity.is_none() {
            return;
        }
        state.clients.insert(client, (endpoint, Instant::now()));
        if state.clients.len() > CLIENTS_MAX
            && let Some(oldest) = state.clients.iter().min_by_key(|(_, (_, used))| *used).map(|(client, _)| *client)
        {
            state.clients.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|n| SocketAddr::from(([10, 0, 0, n], 80))).collect()
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 1, 0, last])
    }

    #[test]
    fn endpoints_are_chosen_in_turn() {
        let rotation = Rotation::new(endpoints(3), None);
        let chosen: Vec<_> = (0..4).map(|_| rotation.choose(ip(1))[0].ip()).collect();
        assert_eq!(chosen, [1, 2, 3, 1].map(|n| IpAddr::from([10, 0, 0, n])));
        rotation.set(Vec::new(), None);
        assert_eq!(rotation.choose(ip(1)), []);
    }

    #[tokio::test(start_paused = true)]
    async fn with_affinity_a_client_keeps_its_endpoint_until_the_timeout() {
        let rotation = Rotation::new(endpoints(3), Some(Duration::from_secs(10)));
        let choose = |client| {
            let chosen = rotation.choose(client)[0];
            rotation.chosen(client, chosen);
            chosen
        };
        let first = choose(ip(1));
        assert_ne!(choose(ip(2)), first);
        for _ in 0..4 {
            tokio::time::advance(Duration::from_secs(9)).await;
            assert_eq!(choose(ip(1)), first);
        }
        tokio::time::advance(Duration::from_secs(11)).await;
        let again: Vec<_> = [choose(ip(3)), choose(ip(4)), choose(ip(1))].to_vec();
        assert!(again.contains(&first), "the rotation continues");
        rotation.set(endpoints(3).into_iter().filter(|it| *it != first).collect(), Some(Duration::from_secs(10)));
        assert_ne!(rotation.choose(ip(1))[0], first);
    }
}
