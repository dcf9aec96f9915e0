//! Deletes events an hour after they last occurred.

use std::time::Duration;

use berth_runtime::{Clock, Manager};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};

/// Lifetime of an event after it last occurred: Kubernetes' `--event-ttl`.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);
/// Minimum time between two sweeps.
const INTERVAL: Duration = Duration::from_secs(600);
/// Number of events per list request.
const PAGE: u32 = 1000;

/// Adds the task that deletes expired events.
pub fn install(manager: &mut Manager) {
    let (client, clock) = (manager.client(), manager.clock());
    manager.task("event-expiry", async move {
        let mut wait = INTERVAL;
        loop {
            clock.sleep(wait).await;
            wait = match sweep(&client, &clock).await {
                Ok(oldest) => until_next(oldest, clock.now()),
                Err(error) => {
                    tracing::debug!(
                        error = berth_runtime::brief(&error),
                        "deleting expired events failed, retrying later"
                    );
                    INTERVAL
                }
            };
        }
    });
}

/// Time until the next sweep, if the oldest remaining event last occurred at `oldest`.
fn until_next(oldest: Timestamp, now: Timestamp) -> Duration {
    let left = EVENT_TTL.saturating_sub(now.duration_since(oldest));
    Duration::try_from(left).unwrap_or_default().max(INTERVAL)
}

/// Deletes expired events. Returns when the oldest remaining event last occurred; now if none
/// remains.
async fn sweep(client: &Client, clock: &Clock) -> Result<Timestamp, kube::Error> {
    let now = clock.now();
    let oldest = now.checked_sub(EVENT_TTL).unwrap_or(Timestamp::MIN);
    let mut oldest_kept = now;
    let all: Api<Event> = Api::all(client.clone());
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = berth_runtime::write::list(&all, &page).await?;
        let next = list.metadata.continue_.clone().filter(|token| !token.is_empty());
        for event in &list.items {
            let Some(seen) = last_seen(event) else { continue };
            if seen >= oldest {
                oldest_kept = oldest_kept.min(seen);
                continue;
            }
            let api: Api<Event> = Api::namespaced(client.clone(), &event.namespace().unwrap_or_default());
            match berth_runtime::write::delete(&api, &event.name_any(), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if berth_runtime::is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        match next {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(oldest_kept),
        }
    }
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    series.or(last).or(first).or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_sweep_is_when_the_oldest_event_expires() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
        let minutes_ago = |minutes| now - SignedDuration::from_mins(minutes);
        assert_eq!(until_next(now, now), Duration::from_secs(3600));
        assert_eq!(until_next(minutes_ago(20), now), Duration::from_secs(40 * 60));
        assert_eq!(until_next(minutes_ago(55), now), INTERVAL);
        assert_eq!(until_next(minutes_ago(70), now), INTERVAL);
        // A client with a fast clock wrote an event in the future.
        assert_eq!(until_next(minutes_ago(-30), now), Duration::from_secs(90 * 60));
    }
}
