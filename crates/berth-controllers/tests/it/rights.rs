//! The rights in the controllers' role match the kinds that they watch.

use std::sync::Arc;

use berth_apiserver::{ApiServer, Config as ServerConfig, UserInfo};
use berth_controllers::configuration::FairSharing;
use berth_controllers::{Config, Gate, Gates, jobs, rights};
use berth_runtime::{Clock, Manager};
use berth_store::MemoryStore;
use kube::Client;

#[tokio::test]
async fn the_role_lists_exactly_the_watched_kinds() {
    let clock = Clock::system();
    let now = clock.clone();
    let server = ApiServer::new(ServerConfig::new(Arc::new(MemoryStore::new()), Arc::new(move || now.now())));
    let mut manager = Manager::new(Client::new(server.in_process(UserInfo::master("test")), "default"), clock);
    let gates = Gates::default().with(Gate::FailureRecoveryPolicy, true).with(Gate::SparkApplicationIntegration, true);
    let mut config = Config { fair_sharing: Some(FairSharing::default()), feature_gates: gates, ..Config::default() };
    config.integrations.frameworks = jobs::integrated().into_iter().map(str::to_owned).collect();
    berth_controllers::install(&mut manager, config);
    assert_eq!(manager.watched(), rights::watched());
}
