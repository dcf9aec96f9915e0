//! Assigns requests to queues by priority level and user, as Kubernetes' suggested FlowSchemas do.

use std::sync::Arc;

use crate::UserInfo;
use crate::request::{RequestInfo, is_probe, query_values};

/// Largest `limit` of a list that still counts as a short request.
const PAGE_MAX: usize = 1000;

/// Priority levels, named after those that Kubernetes suggests. The levels take turns: every level
/// with waiting requests gets equally many, however many requests another level has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Nodes' own requests, and probes.
    System,
    /// Leases of the cluster's controllers: a late renewal loses the leadership.
    LeaderElection,
    /// The cluster's controllers.
    WorkloadHigh,
    /// Service accounts.
    WorkloadLow,
    /// Other users, administrators among them.
    GlobalDefault,
    /// Unauthenticated users.
    CatchAll,
}

impl Level {
    pub(crate) const COUNT: usize = 6;
    pub(crate) const ALL: [Level; Level::COUNT] = [
        Level::System,
        Level::LeaderElection,
        Level::WorkloadHigh,
        Level::WorkloadLow,
        Level::GlobalDefault,
        Level::CatchAll,
    ];

    /// The level's name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::System => "system",
            Level::LeaderElection => "leader-election",
            Level::WorkloadHigh => "workload-high",
            Level::WorkloadLow => "workload-low",
            Level::GlobalDefault => "global-default",
            Level::CatchAll => "catch-all",
        }
    }
}

/// Level and user of a request, which determine the queue in which it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) level: Level,
    pub(crate) user: Arc<str>,
    /// True if the request may compute for long. Long requests wait only for each other.
    pub(crate) is_long: bool,
    /// True if the user is limited to a share while other such users call. The cluster's own
    /// components and members of `system:masters` are not limited, and do not limit others.
    pub(crate) shares: bool,
}

/// The flow of a request. `controllers` are users treated as cluster controllers.
pub(crate) fn of(info: &RequestInfo, query: &str, user: &UserInfo, controllers: &[String]) -> Flow {
    let is_controller = user.in_group("system:serviceaccounts:kube-system")
        || matches!(user.name.as_str(), "system:kube-controller-manager" | "system:kube-scheduler")
        || controllers.contains(&user.name);
    let level = if user.in_group("system:nodes") || is_probe(&info.path) {
        Level::System
    } else if is_controller && info.api_group == "coordination.k8s.io" {
        Level::LeaderElection
    } else if is_controller {
        Level::WorkloadHigh
    } else if user.in_group("system:serviceaccounts") {
        Level::WorkloadLow
    } else if user.in_group("system:authenticated") {
        Level::GlobalDefault
    } else {
        Level::CatchAll
    };
    let shares = matches!(level, Level::WorkloadLow | Level::GlobalDefault | Level::CatchAll)
        && !user.in_group("system:masters");
    Flow { level, user: user.name.as_str().into(), is_long: is_long(info, query), shares }
}

/// True if a request may scan more objects than one page of a list: selectors are evaluated on all
/// objects. OpenAPI documents are long too: the first request after a change of definitions
/// generates them.
fn is_long(info: &RequestInfo, query: &str) -> bool {
    if info.path.starts_with("/openapi/") {
        return true;
    }
    let values = |name: &'static str| query_values(query, name);
    let selects = ["labelSelector", "fieldSelector"].into_iter().any(|name| values(name).any(|text| !text.is_empty()));
    match info.verb.as_str() {
        "deletecollection" => true,
        "list" => {
            let limit = values("limit").last().and_then(|limit| limit.parse().ok());
            selects || limit.is_none_or(|limit: usize| limit == 0 || limit > PAGE_MAX)
        }
        // Without a version, or with "0", a watch begins with all existing objects.
        "watch" => {
            let version = values("resourceVersion").last();
            version.is_none_or(|version| matches!(version.as_str(), "" | "0"))
                || values("sendInitialEvents").next().is_some()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn flow(method: &Method, uri: &str, user: &UserInfo) -> (&'static str, bool) {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let info = RequestInfo::parse(method, path, query);
        let controllers = ["system:serviceaccount:batch:manager".to_owned()];
        let flow = of(&info, query, user, &controllers);
        (flow.level.name(), flow.is_long)
    }

    fn account(namespace: &str, name: &str) -> UserInfo {
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
        UserInfo::new(format!("system:serviceaccount:{namespace}:{name}"), &groups)
    }

    #[test]
    fn the_user_and_resource_of_a_request_determine_its_priority_level() {
        let (maps, lease) = ("/api/v1/namespaces/a/configmaps/m", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l");
        for (user, uri, level) in [
            (account("kube-system", "job-controller"), maps, "workload-high"),
            (account("kube-system", "job-controller"), lease, "leader-election"),
            (account("batch", "manager"), maps, "workload-high"),
            (account("batch", "manager"), lease, "leader-election"),
            (account("batch", "other"), lease, "workload-low"),
            (account("a", "tenant"), maps, "workload-low"),
            (UserInfo::new("system:kube-scheduler", &[]), maps, "workload-high"),
            (UserInfo::new("system:node:n1", &["system:nodes"]), lease, "system"),
            (UserInfo::new("ann", &[]), maps, "global-default"),
            (UserInfo::master("admin"), maps, "global-default"),
            (UserInfo::anonymous(), "/version", "catch-all"),
            (UserInfo::anonymous(), "/readyz", "system"),
            (UserInfo::anonymous(), "/livez/ping", "system"),
        ] {
            assert_eq!(flow(&Method::PUT, uri, &user), (level, false), "{} {uri}", user.name);
        }
    }

    #[test]
    fn only_workload_and_human_users_are_limited_to_a_share() {
        for (user, shares) in [
            (account("a", "tenant"), true),
            (UserInfo::new("ann", &[]), true),
            (UserInfo::anonymous(), true),
            (UserInfo::master("admin"), false),
            (account("kube-system", "job-controller"), false),
            (account("batch", "manager"), false),
            (UserInfo::new("system:node:n1", &["system:nodes"]), false),
        ] {
            let info = RequestInfo::parse(&Method::PUT, "/api/v1/namespaces/a/configmaps/m", "");
            assert_eq!(of(&info, "", &user, &["system:serviceaccount:batch:manager".to_owned()]).shares, shares);
        }
    }

    #[test]
    fn a_request_that_may_scan_all_objects_is_long() {
        let maps = "/api/v1/configmaps";
        for (method, uri, is_long) in [
            (Method::GET, maps.to_owned(), true),
            (Method::GET, format!("{maps}?limit=0"), true),
            (Method::GET, format!("{maps}?limit=100000"), true),
            (Method::GET, format!("{maps}?resourceVersion=1&limit=500"), false),
            (Method::GET, format!("{maps}?limit=1&limit=0"), true),
            (Method::GET, format!("{maps}?limit=1&labelSelector=a%3Db"), true),
            (Method::GET, format!("{maps}?watch=true"), true),
            (Method::GET, format!("{maps}?watch=true&resourceVersion=7"), false),
            (Method::GET, format!("{maps}?watch=true&sendInitialEvents=true"), true),
            (Method::GET, "/api/v1/namespaces/a/configmaps/m".to_owned(), false),
            (Method::DELETE, "/api/v1/namespaces/a/configmaps".to_owned(), true),
            (Method::POST, "/api/v1/namespaces/a/configmaps".to_owned(), false),
            (Method::GET, "/openapi/v2".to_owned(), true),
            (Method::GET, "/openapi/v3/apis/batch/v1".to_owned(), true),
            (Method::GET, "/apis".to_owned(), false),
        ] {
            assert_eq!(flow(&method, &uri, &UserInfo::new("ann", &[])), ("global-default", is_long), "{uri}");
        }
    }
}
