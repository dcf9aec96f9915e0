//! What a valid file asks for and Berth does not have.

use berth_apimachinery::field::{Error, Path};

use super::file::File;
use crate::jobs;

/// Gates of features Berth does not have; switching one on is refused.
const MISSING: &[&str] = &[
    "CustomMetricLabels",
    "FailureRecoveryPolicy",
    "KueueDRAIntegrationConsumableCapacity",
    "MultiKueueClusterProfile",
    "MultiKueueManagerQuotaAutomation",
    "SchedulerLibraryIntegration",
    "SparkApplicationIntegration",
];

/// Fields that would change what is decided, but cannot be honoured.
pub(super) fn refusals(file: &File) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("integrations");
    let path = path.child("frameworks");
    for (index, name) in file.integrations.iter().flat_map(|it| &it.frameworks).enumerate() {
        if !jobs::is_integrated(name) {
            errors.push(Error::forbidden(&path.index(index), format!("Berth has no integration of {name}")));
        }
    }
    if file.multi_kueue.is_some() {
        errors.push(Error::forbidden(&Path::new("multiKueue"), "Berth does not dispatch to other clusters"));
    }
    if file.resources.as_ref().is_some_and(|resources| !resources.device_class_mappings.is_empty()) {
        let path = Path::new("resources");
        let detail = "Berth does not count devices of dynamic resource allocation";
        errors.push(Error::forbidden(&path.child("deviceClassMappings"), detail));
    }
    if !file.metrics.custom_labels.is_empty() {
        let path = Path::new("metrics");
        errors.push(Error::forbidden(&path.child("customLabels"), "Berth's series have no labels of objects"));
    }
    let path = Path::new("featureGates");
    for (name, _) in file.feature_gates.iter().filter(|(name, on)| **on && MISSING.contains(&name.as_str())) {
        errors.push(Error::forbidden(&path.key(name), "Berth does not have this feature"));
    }
    errors
}

/// Fields that are fine and do nothing here, each with the reason.
pub(super) fn notices(file: &File) -> Vec<String> {
    const SERVER: &str = "admission, health and metrics are part of Berth's API server";
    const CLIENT: &str = "controllers take what the API gives them";
    let controller = file.controller.as_ref();
    let concurrency = controller.is_some_and(|controller| !controller.group_kind_concurrency.is_empty());
    let table = [
        ("webhook", file.webhook.is_some(), SERVER),
        ("health", file.health.is_some(), SERVER),
        ("metrics.bindAddress", file.metrics.bind_address.is_some(), SERVER),
        (
            "metrics.localQueueMetrics",
            file.metrics.local_queue_metrics.is_some(),
            "there are no series per local queue",
        ),
        ("metrics.enableClusterQueueResources", file.metrics.enable_cluster_queue_resources.is_some(), "always on"),
        ("internalCertManagement", file.internal_cert_management.is_some(), SERVER),
        ("tls", file.tls.is_some(), SERVER),
        ("visibilityServer", file.visibility_server.is_some(), SERVER),
        ("leaderElection", file.leader_election.is_some(), "there is one set of controllers"),
        ("pprofBindAddress", file.pprof_bind_address.is_some(), "there is no profiler to serve"),
        ("controller.groupKindConcurrency", concurrency, CLIENT),
        (
            "controller.cacheSyncTimeout",
            controller.is_some_and(|controller| controller.cache_sync_timeout.is_some()),
            "controllers start when their caches are full",
        ),
    ];
    table.iter().filter(|(_, set, _)| *set).map(|(field, _, why)| format!("{field}: has no effect; {why}")).collect()
}
