//! Authentication and authorization: every route rejects unauthenticated clients, and RBAC agrees
//! with a second, naive implementation of its documentation.

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::auth::rbac::{self, Policies};
use berth_apiserver::auth::{Attributes, MASTERS};
use berth_apiserver::{Registry, UserInfo};
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::harness::{read, server};

/// Every path of the registry with every method, and the paths that belong to no kind.
fn routes(registry: &Registry) -> Vec<(Method, String)> {
    let mut paths: Vec<String> = [
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/api/v1",
        "/metrics",
        "/logs",
        "/debug/pprof",
        "/.well-known/openid-configuration",
        "/openid/v1/jwks",
        "/versions",
        "/healthzz",
        "//api",
    ]
    .map(str::to_owned)
    .to_vec();
    for row in registry.rows() {
        for version in row.versions.iter().filter(|version| version.served) {
            let root = if row.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", row.group) };
            let root = format!("{root}/{}", version.name);
            let scope = if row.namespaced { "/namespaces/default" } else { "" };
            let collection = format!("{root}{scope}/{}", row.plural);
            paths.push(root.clone());
            paths.push(format!("{root}/{}", row.plural));
            paths.push(format!("{root}/watch/{}", row.plural));
            paths.push(format!("{collection}/name"));
            paths.extend(version.subresources.iter().map(|sub| format!("{collection}/name/{}", sub.name)));
            paths.push(collection);
        }
    }
    let methods =
        [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
    let all = paths.iter().flat_map(|path| methods.iter().map(move |method| (method.clone(), path.clone())));
    all.collect()
}

#[tokio::test(start_paused = true)]
async fn only_version_and_health_are_served_to_unauthenticated_clients() {
    let server = server();
    let authenticator = Authenticator::new(BTreeMap::new(), server.api.tokens());
    let routes = routes(&server.api.registry());
    assert!(routes.len() > 1000, "{}", routes.len());
    for (method, path) in &routes {
        let rejected = authenticator.authenticate(None, path, &mut HeaderMap::new()).expect_err(path);
        assert_eq!(rejected.code, 401, "{method} {path}");
    }
    // Even without authentication, authorization rejects anonymous users and users without a role.
    for user in [UserInfo::anonymous(), UserInfo::new("without-role", &[])] {
        for (method, path) in &routes {
            let public = ["/", "/api", "/apis", "/openapi", "/healthz", "/version"];
            let is_discovery = method == Method::GET && user.name == "without-role" && {
                let root = path.split('/').filter(|part| !part.is_empty()).count() <= 3 && !path.contains("namespaces");
                root || public.iter().any(|it| path == it || path.starts_with("/openapi"))
            };
            // All authenticated users may review their own access.
            let is_self_review = path.contains("/selfsubject") && user.name == "without-role";
            if is_discovery || is_self_review {
                continue;
            }
            let request = Request::builder().method(method).uri(path.as_str()).body(Full::new(Bytes::new())).unwrap();
            let answer = read(server.api.handle(request, user.clone()).await).await;
            assert!(matches!(answer.code, 401 | 403), "{} {method} {path}: {} {}", user.name, answer.code, answer.body);
        }
    }
}

/// Random roles and bindings.
#[derive(Default)]
struct World {
    roles: Vec<Arc<Value>>,
    cluster_roles: Vec<Arc<Value>>,
    bindings: Vec<Arc<Value>>,
    cluster_bindings: Vec<Arc<Value>>,
}

fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

impl Policies for World {
    fn role(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let is_wanted = |role: &&Arc<Value>| {
            field(&role["metadata"], "namespace") == namespace && field(&role["metadata"], "name") == name
        };
        self.roles.iter().find(is_wanted).cloned()
    }

    fn cluster_role(&self, name: &str) -> Option<Arc<Value>> {
        self.cluster_roles.iter().find(|role| field(&role["metadata"], "name") == name).cloned()
    }

    fn cluster_roles(&self) -> Vec<Arc<Value>> {
        self.cluster_roles.clone()
    }

    fn role_bindings(&self, namespace: &str) -> Vec<Arc<Value>> {
        let own = self.bindings.iter().filter(|it| field(&it["metadata"], "namespace") == namespace);
        own.cloned().collect()
    }

    fn cluster_role_bindings(&self) -> Vec<Arc<Value>> {
        self.cluster_bindings.clone()
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const RESOURCES: [&str; 7] = ["*", "pods", "pods/log", "jobs", "*/scale", "jobs/scale", "pods/*"];
const VERBS: [&str; 4] = ["*", "get", "list", "delete"];
const GROUPS: [&str; 3] = ["*", "", "batch"];
const URLS: [&str; 5] = ["*", "/metrics", "/api/*", "/a*", "/healthz"];

fn pick<'a>(random: &mut SmallRng, from: &[&'a str]) -> &'a str {
    from[random.random_range(0..from.len())]
}

fn some(random: &mut SmallRng, from: &[&str], most: usize) -> Vec<String> {
    (0..random.random_range(0..=most)).map(|_| pick(random, from).to_owned()).collect()
}

fn rule(random: &mut SmallRng) -> Value {
    if random.random_bool(0.2) {
        return json!({"verbs": some(random, &VERBS, 2), "nonResourceURLs": some(random, &URLS, 2)});
    }
    json!({
        "verbs": some(random, &VERBS, 2), "apiGroups": some(random, &GROUPS, 2),
        "resources": some(random, &RESOURCES, 2), "resourceNames": some(random, &NAMES, 1),
    })
}

fn subject(random: &mut SmallRng) -> Value {
    match random.random_range(0..4) {
        0 => json!({"kind": "User", "name": pick(random, &["a", "b", "*", "system:serviceaccount:a:b"])}),
        1 => json!({"kind": "Group", "name": pick(random, &["a", "b", "system:serviceaccounts:a"])}),
        2 => json!({"kind": "ServiceAccount", "name": pick(random, &NAMES)}),
        _ => json!({"kind": "ServiceAccount", "name": pick(random, &NAMES), "namespace": pick(random, &NAMES)}),
    }
}

fn world(random: &mut SmallRng) -> World {
    let mut world = World::default();
    for name in NAMES {
        for namespace in NAMES.into_iter().filter(|_| random.random_bool(0.5)).collect::<Vec<_>>() {
            let rules: Vec<Value> = (0..2).map(|_| rule(random)).collect();
            let role = json!({"metadata": {"name": name, "namespace": namespace}, "rules": rules});
            world.roles.push(Arc::new(role));
        }
        let rules: Vec<Value> = (0..2).map(|_| rule(random)).collect();
        let labels = json!({"team": pick(random, &NAMES)});
        let mut role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
        if random.random_bool(0.3) {
            role["rules"] = json!([]);
            let selector = json!({"matchLabels": {"team": pick(random, &NAMES)}});
            role["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
        }
        world.cluster_roles.push(Arc::new(role));
    }
    for _ in 0..8 {
        let subjects: Vec<Value> = (0..2).map(|_| subject(random)).collect();
        let name = pick(random, &["a", "b", "c", "missing"]);
        let kind = pick(random, &["Role", "ClusterRole"]);
        let namespace = pick(random, &NAMES);
        world.bindings.push(Arc::new(json!({"metadata": {"name": "x", "namespace": namespace},
            "roleRef": {"kind": kind, "name": name}, "subjects": subjects})));
        let subjects: Vec<Value> = (0..2).map(|_| subject(random)).collect();
        let name = pick(random, &["a", "b", "c", "missing"]);
        world.cluster_bindings.push(Arc::new(json!({"metadata": {"name": "y"},
            "roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects})));
    }
    world
}

/// A second implementation of the documentation, which shares no code with that of the server.
mod reference {
    use super::*;

    fn list(value: &Value, name: &str) -> Vec<String> {
        value[name].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn holds(list: &[String], wanted: &str) -> bool {
        list.contains(&wanted.to_owned()) || list.contains(&"*".to_owned())
    }

    fn rule_allows(rule: &Value, asked: &Attributes<'_>) -> bool {
        if !holds(&list(rule, "verbs"), asked.verb) {
            return false;
        }
        if !asked.is_resource_request {
            return list(rule, "nonResourceURLs").iter().any(|url| {
                let prefix = url.strip_suffix('*');
                url == asked.path || prefix.is_some_and(|prefix| asked.path.starts_with(prefix))
            });
        }
        let names = list(rule, "resourceNames");
        if !names.is_empty() && !names.contains(&asked.name.to_owned()) || !holds(&list(rule, "apiGroups"), asked.group)
        {
            return false;
        }
        let full = match asked.subresource {
            "" => asked.resource.to_owned(),
            sub => format!("{}/{sub}", asked.resource),
        };
        let of_all = format!("*/{}", asked.subresource);
        let resources = list(rule, "resources");
        holds(&resources, &full) || !asked.subresource.is_empty() && resources.contains(&of_all)
    }

    fn is_subject(subject: &Value, user: &UserInfo, namespace: &str) -> bool {
        let name = field(subject, "name");
        match field(subject, "kind") {
            "User" => user.name == name,
            "Group" => user.groups.iter().any(|group| group == name),
            _ => {
                let own = field(subject, "namespace");
                let own = if own.is_empty() { namespace } else { own };
                !own.is_empty() && user.name == format!("system:serviceaccount:{own}:{name}")
            }
        }
    }

    fn rules_of(world: &World, kind: &str, namespace: &str, name: &str) -> Vec<Value> {
        let Some(role) = (if kind == "Role" { world.role(namespace, name) } else { world.cluster_role(name) }) else {
            return Vec::new();
        };
        // An aggregated role has the rules of all roles that it selects, directly or indirectly.
        let (mut all, mut seen, mut open) = (Vec::new(), Vec::new(), vec![role]);
        while let Some(role) = open.pop() {
            if seen.contains(&role) {
                continue;
            }
            all.extend(role["rules"].as_array().cloned().unwrap_or_default());
            let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array().cloned().unwrap_or_default();
            for other in &world.cluster_roles {
                let team = &other["metadata"]["labels"]["team"];
                if selectors.iter().any(|selector| selector["matchLabels"]["team"] == *team) {
                    open.push(other.clone());
                }
            }
            seen.push(role);
        }
        all
    }

    pub fn allows(world: &World, asked: &Attributes<'_>, user: &UserInfo) -> bool {
        let grants = |binding: &Value, namespace: &str| {
            let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
            subjects.iter().any(|subject| is_subject(subject, user, namespace)) && {
                let role = &binding["roleRef"];
                let rules = rules_of(world, field(role, "kind"), namespace, field(role, "name"));
                rules.iter().any(|rule| rule_allows(rule, asked))
            }
        };
        world.cluster_bindings.iter().any(|binding| grants(binding, ""))
            || !asked.namespace.is_empty()
                && world.bindings.iter().any(|binding| {
                    field(&binding["metadata"], "namespace") == asked.namespace && grants(binding, asked.namespace)
                })
    }
}

#[test]
fn random_roles_allow_what_the_documentation_says() {
    let mut random = SmallRng::seed_from_u64(7);
    let (mut allowed, mut asked_in_all) = (0, 0);
    for _ in 0..100 {
        let world = world(&mut random);
        for _ in 0..100 {
            let user = match random.random_range(0..3) {
                0 => UserInfo::new(
                    format!("system:serviceaccount:{}:{}", pick(&mut random, &NAMES), pick(&mut random, &NAMES)),
                    &["system:serviceaccounts:a"],
                ),
                1 => UserInfo::new(pick(&mut random, &NAMES), &["a"]),
                _ => UserInfo::new(pick(&mut random, &NAMES), &[pick(&mut random, &["b", "c"])]),
            };
            assert!(!user.in_group(MASTERS));
            let is_resource_request = random.random_bool(0.8);
            let asked = if is_resource_request {
                let (resource, subresource) =
                    [("pods", ""), ("pods", "log"), ("jobs", ""), ("jobs", "scale"), ("secrets", "")]
                        [random.random_range(0..5)];
                Attributes {
                    verb: pick(&mut random, &["get", "list", "delete", "patch"]),
                    group: pick(&mut random, &["", "batch", "apps"]),
                    resource,
                    subresource,
                    name: pick(&mut random, &["", "a", "b"]),
                    namespace: pick(&mut random, &["", "a", "b"]),
                    is_resource_request,
                    ..Attributes::default()
                }
            } else {
                let path = pick(&mut random, &["/metrics", "/api", "/api/v1", "/healthz", "/other"]);
                Attributes { verb: pick(&mut random, &["get", "post"]), path, ..Attributes::default() }
            };
            let wanted = reference::allows(&world, &asked, &user);
            let got = rbac::decide(&world, &asked, &user);
            assert_eq!(got.allowed, wanted, "{asked:?} by {user:?}: {}", got.reason);
            allowed += usize::from(wanted);
            asked_in_all += 1;
        }
    }
    assert_eq!(asked_in_all, 10_000);
    // Enough requests are allowed to make the comparison meaningful.
    assert!(allowed > 250, "{allowed}");
}
