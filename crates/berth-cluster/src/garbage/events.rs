//! Events are kept for an hour.

use std::time::Duration;

use berth_runtime::{Clock, Manager};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};

/// How long an event is kept after it last happened: Kubernetes' `--event-ttl`.
const KEPT: SignedDuration = SignedDuration::from_hours(1);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(600);
/// Events read at once.
const PAGE: u32 = 1000;

/// Adds the sweep.
pub fn install(manager: &mut Manager) {
    let (client, clock) = (manager.client(), manager.clock());
    manager.task("event-expiry", async move {
        loop {
            clock.sleep(INTERVAL).await;
            if let Err(error) = sweep(&client, &clock).await {
                tracing::debug!(%error, "old events not removed, trying again later");
            }
        }
    });
}

async fn sweep(client: &Client, clock: &Clock) -> Result<(), kube::Error> {
    let oldest = clock.now().checked_sub(KEPT).unwrap_or(Timestamp::MIN);
    let all: Api<Event> = Api::all(client.clone());
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = all.list(&page).await?;
        let next = list.metadata.continue_.clone().filter(|token| !token.is_empty());
        for event in list.items.iter().filter(|event| last_seen(event).is_some_and(|at| at < oldest)) {
            let api: Api<Event> = Api::namespaced(client.clone(), &event.namespace().unwrap_or_default());
            match api.delete(&event.name_any(), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if berth_runtime::is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        match next {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    series.or(last).or(first).or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}
