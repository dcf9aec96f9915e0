//! Keys are paths: `/a/b/c`. A prefix someone lists or watches ends in `/` (or is a whole key, or empty), so the prefixes
//! a key falls under can be counted off at its slashes.

/// All prefixes of `key` that a watcher may be registered under: the empty one, each part up to and including a `/`, and
/// the key itself.
pub(crate) fn prefixes(key: &str) -> impl Iterator<Item = &str> {
    let slashes = key.match_indices('/').map(|(at, _)| &key[..=at]);
    let whole = (!key.ends_with('/')).then_some(key);
    std::iter::once("").chain(slashes).chain(whole)
}
