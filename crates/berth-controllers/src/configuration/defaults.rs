//! Defaults of a file, as in Kueue (`docs/reference/kueue-config.v1beta2.md`).

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::file::{File, RequeuingStrategy};
use super::{FairSharing, RequeuingStrategy as Requeuing, WaitForPodsReady};

/// The only integration if the file lists none.
const FRAMEWORK: &str = "batch/job";

/// The file with its defaults. `own` is the controllers' namespace if the file does not set it.
pub(super) fn fill(mut file: File, own: &str) -> File {
    let namespace = file.namespace.get_or_insert_with(|| own.to_owned()).clone();
    file.managed_jobs_namespace_selector.get_or_insert_with(|| outside_of_system(&namespace));
    let integrations = file.integrations.get_or_insert_default();
    if integrations.frameworks.is_empty() {
        integrations.frameworks = vec![FRAMEWORK.to_owned()];
    }
    if let Some(connection) = &mut file.client_connection {
        connection.qps.get_or_insert(300.0);
        connection.burst.get_or_insert(500);
    }
    let wait = file.wait_for_pods_ready.get_or_insert_default();
    if wait.timeout.is_none_or(|timeout| timeout.is_zero()) {
        wait.timeout = SignedDuration::try_from(WaitForPodsReady::TIMEOUT_DEFAULT).ok();
    }
    // An absent recovery timeout equals the timeout.
    wait.block_admission.get_or_insert(false);
    let requeuing = Requeuing::default();
    let strategy = wait.requeuing_strategy.get_or_insert_with(RequeuingStrategy::default);
    strategy.timestamp.get_or_insert_with(|| "Eviction".to_owned());
    strategy.backoff_base_seconds.get_or_insert(requeuing.backoff_base_seconds);
    strategy.backoff_max_seconds.get_or_insert(requeuing.backoff_max_seconds);
    if let Some(fair) = &mut file.fair_sharing
        && fair.preemption_strategies.is_empty()
    {
        let strategies = FairSharing::default().preemption_strategies;
        fair.preemption_strategies = strategies.iter().map(|strategy| format!("{strategy:?}")).collect();
    }
    if let Some(fair) = &mut file.admission_fair_sharing {
        fair.usage_half_life_time.get_or_insert(SignedDuration::ZERO);
        if fair.usage_sampling_interval.is_none_or(|interval| interval.is_zero()) {
            fair.usage_sampling_interval = Some(SignedDuration::from_mins(5));
        }
    }
    if let Some(resources) = &mut file.resources {
        resources.quota_check_strategy.get_or_insert_with(|| "BlockUndeclared".to_owned());
        for rule in &mut resources.transformations {
            rule.strategy.get_or_insert_with(|| "Retain".to_owned());
        }
    }
    file
}

/// Selects every namespace except the system's and the controllers' own.
pub(crate) fn outside_of_system(own: &str) -> LabelSelector {
    let requirement = LabelSelectorRequirement {
        key: "kubernetes.io/metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec!["kube-system".to_owned(), own.to_owned()]),
    };
    LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None }
}
