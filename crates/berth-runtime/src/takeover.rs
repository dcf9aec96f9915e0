//! Reads a cache's current state after an election, before the controllers start. The watch may not
//! have shown the last writes of the previous leader yet. Decisions without these writes could
//! allocate the same quota or node twice. A list during which the program wrote ends in the same
//! way ([`crate::inform`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use tokio::sync::RwLock;

use crate::inform::AnyCache;
use crate::wire::Undecoded;
use crate::{Clock, ObjectKey};

/// Number of objects per page, as in the lists of a watch.
const PAGE: u32 = 500;
/// First delay before a failed read is retried; doubles up to [`BACKOFF_MAX`].
const BACKOFF_BASE: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Updates a cache to the current state of the API, regardless of its watch. Retries until the read
/// succeeds, because controllers must not act on an outdated state. Holds the read lock of `gate`
/// while it changes the cache, and not during requests.
pub(crate) async fn catch_up(api: Api<Undecoded>, cache: AnyCache, clock: Clock, gate: Arc<RwLock<()>>) {
    let mut backoff = BACKOFF_BASE;
    while let Err(error) = read(&api, &cache, &gate).await {
        let (kind, error) = (&cache.resource.kind, crate::brief(&error));
        tracing::warn!(kind, %error, ?backoff, "cannot list objects in their current state, retrying");
        clock.sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Lists all objects into the cache and removes those that are not listed.
async fn read(api: &Api<Undecoded>, cache: &AnyCache, gate: &RwLock<()>) -> Result<(), kube::Error> {
    // Without a resourceVersion the server returns its current state, not a cached one.
    let mut params = ListParams::default().limit(PAGE);
    let mut listed: BTreeSet<ObjectKey> = BTreeSet::new();
    loop {
        let page = api.list(&params).await?;
        let _open = gate.read().await;
        for object in &page.items {
            listed.insert(ObjectKey::of(object));
            cache.apply_if_new(object);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => {
                // All pages are from one revision.
                let revision = page.metadata.resource_version.and_then(|version| version.parse().ok());
                cache.objects.forget_before(revision.unwrap_or_default(), &listed);
                return Ok(());
            }
        }
    }
}
