//! `/healthz`, `/livez` and `/readyz`, and a path below them for each single check. The responses
//! are those of kube-apiserver: `ok`, or with `?verbose` one line for each check. `?exclude=NAME`
//! skips a check.
//!
//! A failed liveness probe restarts the server. Therefore a store that cannot write makes the
//! server not ready, but fails the liveness probe only if a restart would help.

use std::borrow::Cow;

use berth_store::{ListQuery, Store};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use crate::request::{HEALTH_PATHS, query_values};
use crate::{Body, RequestInfo};

/// Inputs of the checks.
pub(crate) struct Health<'a> {
    /// The store of all objects.
    pub(crate) store: &'a dyn Store,
    /// True if all objects that every cluster has are stored.
    pub(crate) is_started: bool,
}

/// Result of a check. The error is the reason for the failure.
type Outcome = Result<(), Cow<'static, str>>;

/// A check: its name, whether it concerns readiness and not liveness, and the function that runs
/// it for a probe.
struct Check {
    name: &'static str,
    of_readiness: bool,
    run: fn(&Health<'_>, &str) -> Outcome,
}

/// The probe whose failure restarts the server.
const ALIVE: &str = "livez";

const CHECKS: [Check; 3] = [
    Check { name: "ping", of_readiness: false, run: |_, _| Ok(()) },
    // The store, under the name that clients of Kubernetes expect.
    Check { name: "etcd", of_readiness: false, run: |health, probe| of_store(health.store, probe == ALIVE) },
    Check {
        name: "poststarthook/rbac/bootstrap-roles",
        of_readiness: true,
        run: |health, _| if health.is_started { Ok(()) } else { Err("not finished".into()) },
    },
];

/// Checks that objects can be read and written. With `is_fatal`, a store that cannot write fails
/// the check only if a restart helps.
pub(crate) fn of_store(store: &dyn Store, is_fatal: bool) -> Outcome {
    let one = ListQuery { limit: 1, ..ListQuery::all("/") };
    store.list(&one).map_err(|_| "the store does not respond")?;
    match store.trouble() {
        Some(trouble) if trouble.restart_helps || !is_fatal => {
            Err(format!("the store cannot write: {}", trouble.reason).into())
        }
        _ => Ok(()),
    }
}

/// The health paths and the paths of their checks.
pub(crate) fn paths() -> Vec<String> {
    let of = |probe: &str| {
        let checks: Vec<String> = checks(&probe[1..]).map(|check| format!("{probe}/{}", check.name)).collect();
        std::iter::once(probe.to_owned()).chain(checks)
    };
    HEALTH_PATHS.iter().flat_map(|probe| of(probe)).collect()
}

fn checks(probe: &str) -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().filter(move |check| probe != ALIVE || !check.of_readiness)
}

/// The response to a request for a health path; `None` for other paths, and for unknown checks.
pub(crate) fn response(health: &Health<'_>, info: &RequestInfo, query: &str) -> Option<Response<Body>> {
    if info.verb != "get" && info.verb != "head" {
        return None;
    }
    let path = info.path.trim_end_matches('/');
    let (probe, single) = HEALTH_PATHS.iter().find_map(|probe| Some((&probe[1..], path.strip_prefix(probe)?)))?;
    let mut checks = checks(probe);
    if !single.is_empty() {
        let check = checks.find(|check| single.strip_prefix('/') == Some(check.name))?;
        return Some(match (check.run)(health, probe) {
            Ok(()) => text(StatusCode::OK, "ok"),
            Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
        });
    }
    let mut excluded: Vec<String> = query_values(query, "exclude").filter(|name| !name.is_empty()).collect();
    let (mut lines, mut failed) = (String::new(), false);
    for check in checks {
        let before = excluded.len();
        excluded.retain(|name| name != check.name);
        if excluded.len() < before {
            lines.push_str(&format!("[+]{} excluded: ok\n", check.name));
            continue;
        }
        match (check.run)(health, probe) {
            Ok(()) => lines.push_str(&format!("[+]{} ok\n", check.name)),
            Err(why) => {
                failed = true;
                lines.push_str(&format!("[-]{} failed: {why}\n", check.name));
            }
        }
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    let verbose = query_values(query, "verbose").next().is_some();
    Some(match (failed, verbose) {
        (true, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{probe} check failed\n")),
        (false, true) => text(StatusCode::OK, format!("{lines}{probe} check passed\n")),
        (false, false) => text(StatusCode::OK, "ok"),
    })
}

fn text(code: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
