//! Runs the operators alone, against the cluster of the kubeconfig: without the controllers of
//! built-in kinds, as the test environments of the operators' own projects have it.
//!
//! `cargo run -p berth-operators --example operators -- leader-worker-sets trainer`

use berth_operators::{leader_worker_set, ray, trainer};
use berth_runtime::{Clock, Manager};
use kube::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::try_default().await?;
    let mut manager = Manager::new(client, Clock::system());
    for operator in std::env::args().skip(1) {
        match operator.as_str() {
            "leader-worker-sets" => leader_worker_set::install(&mut manager),
            "ray" => ray::install(&mut manager),
            "trainer" => trainer::install(&mut manager),
            other => {
                return Err(format!("unknown operator {other:?}; known are leader-worker-sets, ray, trainer").into());
            }
        }
    }
    manager.run(std::future::pending()).await?;
    Ok(())
}
