//! Between being elected and acting: what the leader before has written last may not have come through the watches yet. A
//! fresh read of what decisions rest on closes the gap, so that nothing is given away twice.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::inform::take;
use crate::wire::Seen;
use crate::{Cache, Clock, ObjectKey};

/// Objects of one answer, as watches list them.
const PAGE: u32 = 500;
/// First delay before a failed read is tried again; doubles up to [`BACKOFF_MAX`].
const BACKOFF_BASE: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Brings a cache to the most recent state there is, whatever its watch has shown so far. Tries until it succeeds: not to
/// act is better than to act on what is not so.
pub(crate) async fn catch_up<K>(api: Api<Seen<K>>, cache: Cache<K>, clock: Clock)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    let mut backoff = BACKOFF_BASE;
    while let Err(error) = read(&api, &cache).await {
        let error = crate::brief(&error);
        tracing::warn!(kind = %K::kind(&()), %error, ?backoff, "cannot read what there is before acting, retrying");
        clock.sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn read<K>(api: &Api<Seen<K>>, cache: &Cache<K>) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + 'static,
{
    // No resourceVersion: the state at the time of the request, not one a server may have at hand.
    let mut params = ListParams::default().limit(PAGE);
    let mut listed: BTreeSet<ObjectKey> = BTreeSet::new();
    loop {
        let page = api.list(&params).await?;
        for object in &page.items {
            listed.insert(ObjectKey::of(object));
            take(cache, object);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => {
                // All pages are of one revision.
                let revision = page.metadata.resource_version.and_then(|version| version.parse().ok());
                cache.forget_before(revision.unwrap_or_default(), &listed);
                return Ok(());
            }
        }
    }
}
