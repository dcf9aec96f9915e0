//! Paths that every authenticated user may request without a role, such as health checks.

use std::collections::BTreeSet;

/// Always-allowed paths: exact, or a prefix when `*` is at the end.
#[derive(Clone, Debug, Default)]
pub struct AllowedPaths {
    exact: BTreeSet<String>,
    prefixes: Vec<String>,
}

impl AllowedPaths {
    /// Reads a list of paths.
    ///
    /// # Errors
    /// A `*` that is not the last character.
    pub fn new<S: AsRef<str>>(paths: &[S]) -> Result<AllowedPaths, String> {
        let mut allowed = AllowedPaths::default();
        for path in paths {
            let path = path.as_ref();
            let bare = path.strip_prefix('/').unwrap_or(path);
            match bare.strip_suffix('*') {
                Some(prefix) if prefix.contains('*') => return Err(format!("only trailing * allowed in \"{path}\"")),
                None if bare.contains('*') => return Err(format!("only trailing * allowed in \"{path}\"")),
                Some(prefix) => allowed.prefixes.push(prefix.to_owned()),
                None => {
                    allowed.exact.insert(bare.to_owned());
                }
            }
        }
        Ok(allowed)
    }

    /// The health paths that every server allows: `/healthz`, `/livez`, `/readyz`.
    pub fn health() -> &'static AllowedPaths {
        static HEALTH: std::sync::LazyLock<AllowedPaths> = std::sync::LazyLock::new(|| {
            AllowedPaths::new(&["/healthz", "/livez", "/readyz"]).expect("these paths are well-formed")
        });
        &HEALTH
    }

    /// True if `path` is allowed.
    pub fn allows(&self, path: &str) -> bool {
        let bare = path.strip_prefix('/').unwrap_or(path);
        self.exact.contains(bare) || self.prefixes.iter().any(|prefix| bare.starts_with(prefix))
    }
}
