//! Keys are paths, such as `/a/b/c`. A prefix to list or watch ends in `/`, is a whole key, or is
//! empty. The prefixes that match a key can therefore be enumerated at its slashes.

/// Returns all prefixes of `key` under which a watcher may be registered: the empty one, each part
/// up to and including a `/`, and the key itself.
pub(crate) fn prefixes(key: &str) -> impl Iterator<Item = &str> {
    let slashes = key.match_indices('/').map(|(at, _)| &key[..=at]);
    let whole = (!key.ends_with('/')).then_some(key);
    std::iter::once("").chain(slashes).chain(whole)
}
