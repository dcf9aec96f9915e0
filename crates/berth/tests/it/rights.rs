//! The role of the controllers allows exactly the calls that they make. The tests run scenarios
//! with controllers that have only that role, and read the audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use berth_apiserver::audit::policy::Policy;
use berth_apiserver::audit::{Log, Sink};
use berth_controllers::rights;
use berth_testing::has_kubectl;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::process::Process;

/// Group, resource with its subresource, verb.
type Call = (String, String, String);

/// The calls of the controllers, including rejected ones, and the additional permissions that they
/// need if the API server checks references to owners.
#[derive(Default)]
struct Calls {
    made: Mutex<BTreeSet<Call>>,
    forbidden: Mutex<BTreeSet<Call>>,
    for_owners: Mutex<BTreeSet<Call>>,
}

/// The permissions that the admission plugin OwnerReferencesPermissionEnforcement requires:
/// `update` of the finalizers of an owner whose deletion waits for the object, and `delete` of an
/// object whose owners change.
fn asked_for_owners(event: &Value) -> Vec<Call> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let owners = event["requestObject"]["metadata"]["ownerReferences"].as_array();
    let mut asked = Vec::new();
    if owners.is_some() && event["verb"] != "create" {
        let reference = &event["objectRef"];
        asked.push((text(&reference["apiGroup"]), text(&reference["resource"]), "delete".to_owned()));
    }
    for owner in owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true) {
        let group = text(&owner["apiVersion"]).rsplit_once('/').map_or(String::new(), |(group, _)| group.to_owned());
        asked.push((group, format!("{}s/finalizers", text(&owner["kind"]).to_lowercase()), "update".to_owned()));
    }
    asked
}

impl Sink for Calls {
    fn write(&self, event: &str) {
        let event: Value = serde_json::from_str(event).expect("JSON");
        let reference = &event["objectRef"];
        if event["user"]["username"] != rights::USER || reference.is_null() {
            return;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = match text(&reference["subresource"]) {
            subresource if subresource.is_empty() => text(&reference["resource"]),
            subresource => format!("{}/{subresource}", text(&reference["resource"])),
        };
        let call = (text(&reference["apiGroup"]), resource, text(&event["verb"]));
        if event["responseStatus"]["code"] == 403 {
            self.forbidden.lock().unwrap().insert(call.clone());
        }
        self.made.lock().unwrap().insert(call);
        self.for_owners.lock().unwrap().extend(asked_for_owners(&event));
    }
}

/// Runs a scenario with controllers that have only their role.
fn run(path: &str, calls: &Arc<Calls>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let policy = Policy::from_value(&json!({"omitStages": ["RequestReceived"], "rules": [{"level": "Request"}]}));
    let log = Log { policy: Arc::new(policy.expect("a policy")), sink: calls.clone() };
    let mut report = String::new();
    let change = |options: &mut berth_embedded::Options| {
        options.apart = true;
        options.audit = Some(log);
    };
    let mut sink = |text: &str| report.push_str(text);
    let outcome = berth_simulator::runner::run_with(&path, &BTreeMap::new(), change, &mut sink);
    let failed = outcome.map(|outcome| outcome.failed).unwrap_or_else(|error| panic!("{error:#}\n{report}"));
    assert_eq!(failed, 0, "{report}");
}

#[test]
fn the_role_allows_exactly_the_calls_of_the_controllers() {
    let calls = Arc::new(Calls::default());
    for name in ["concurrent-admission", "gke-batch-refarch", "pods", "topology", "workloads"] {
        run(&format!("../../examples/{name}/scenario.yaml"), &calls);
    }
    for name in ["capacity", "never-ready"] {
        run(&format!("tests/it/rights/{name}.yaml"), &calls);
    }
    let forbidden = calls.forbidden.lock().unwrap();
    assert!(forbidden.is_empty(), "the role lacks {forbidden:?}");
    let made = calls.made.lock().unwrap();
    let mut allowed = BTreeSet::new();
    for ((group, resource), verbs) in rights::calls() {
        allowed.extend(verbs.into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
    }
    let beyond: Vec<&Call> = made.difference(&allowed).collect();
    assert!(beyond.is_empty(), "made, but not in the role: {beyond:?}");
    let unused: Vec<&Call> = allowed.difference(&made).collect();
    assert!(unused.is_empty(), "in the role, but never made: {unused:#?}");
    let asked: BTreeSet<Call> = calls.for_owners.lock().unwrap().difference(&allowed).cloned().collect();
    assert_eq!(asked, rights::owner_rights(), "the permissions to set owners differ from those in the role");
}

/// Group, resource, verb, and the name to which the permission is limited, if any.
type NamedCall = (String, String, String, String);

/// The permissions of rules that are limited to names, or to one namespace.
fn named_calls(rules: &Value, out: &mut BTreeSet<NamedCall>) {
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for rule in rules.as_array().into_iter().flatten() {
        let names = match list(&rule["resourceNames"]) {
            names if names.is_empty() => vec![String::new()],
            names => names,
        };
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                for verb in list(&rule["verbs"]) {
                    out.extend(names.iter().map(|it| (group.clone(), resource.clone(), verb.clone(), it.clone())));
                }
            }
        }
    }
}

/// A permission that the calls do not show: applying an object that does not exist requires
/// `create`, but is recorded as `patch`.
const NOT_SHOWN: (&str, &str, &str) = ("discovery.k8s.io", "endpointslices", "create");

#[test]
fn the_rights_by_name_are_exactly_those_that_processes_use() {
    if !has_kubectl() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("audit.log");
    let cluster = Cluster::apiserver(&["--audit-log-path", &log.display().to_string()]);
    let kubeconfig = cluster.kubeconfig.display().to_string();
    let installed = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["install", "--apply", "--kubeconfig", &kubeconfig])
        .output()
        .expect("berth runs");
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    // A leader that releases its Lease is replaced at once. On a busy machine, no leader may lose
    // it earlier.
    let options = [
        "--webhook-certificate-lifetime=60s",
        "--leader-elect-lease-duration=60s",
        "--leader-elect-renew-deadline=40s",
    ];
    let first = Process::controller(&cluster, &options);
    first.wait_logged("serving pending workloads to the API server");
    let second = Process::controller(&cluster, &options);
    let ready = |replica: &Process| replica.logged("/readyz").is_some() && replica.get("/readyz").0 == 200;
    cluster.wait_until("both replicas to be ready", 60, |_| ready(&first) && ready(&second));
    // The certificate is renewed, and another replica takes over.
    const SECRET: [&str; 4] = ["secret", rights::WEBHOOK_SECRET, "-n", rights::NAMESPACE];
    let ended = "berth.dev/not-after=2020-01-01T00:00:00Z";
    cluster.run(&[&["annotate", "--overwrite"][..], &SECRET, &[ended]].concat());
    cluster.wait_until("the certificate to be renewed", 60, |cluster| {
        let end = cluster.get(&SECRET)["metadata"]["annotations"]["berth.dev/not-after"].clone();
        end != "2020-01-01T00:00:00Z"
    });
    first.terminate();
    second.wait_logged("serving pending workloads to the API server");
    second.terminate();

    let mut allowed = BTreeSet::new();
    for object in rights::objects(rights::NAMESPACE) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if ![rights::NAME, rights::LEADER_ELECTION].contains(&name) {
            continue;
        }
        match object["kind"].as_str() {
            Some("Role") => named_calls(&object["rules"], &mut allowed),
            Some("ClusterRole") => {
                let rules = object["rules"].as_array().cloned().unwrap_or_default();
                let named: Vec<Value> = rules.into_iter().filter(|rule| rule["resourceNames"].is_array()).collect();
                named_calls(&json!(named), &mut allowed);
            }
            _ => {}
        }
    }
    // Another test covers the permissions without names.
    let unnamed = rights::calls();
    let is_unnamed = |group: &str, resource: &str, verb: &str| {
        let verbs = unnamed.get(&(group.to_owned(), resource.to_owned()));
        verbs.is_some_and(|verbs| verbs.contains(verb))
    };
    let about: BTreeSet<(&str, &str)> = allowed.iter().map(|(group, resource, ..)| (&**group, &**resource)).collect();
    let mut made = BTreeSet::new();
    for line in std::fs::read_to_string(&log).expect("a log").lines() {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (reference, verb) = (&event["objectRef"], text(&event["verb"]));
        let (group, resource) = (text(&reference["apiGroup"]), text(&reference["resource"]));
        if event["user"]["username"] != rights::USER || !about.contains(&(&*group, &*resource)) {
            continue;
        }
        assert_ne!(event["responseStatus"]["code"], 403, "{line}");
        // An object that is created has no name for authorization yet.
        let name = if verb == "create" { String::new() } else { text(&reference["name"]) };
        let call = (group, resource, verb, name);
        if allowed.contains(&call) || !is_unnamed(&call.0, &call.1, &call.2) {
            made.insert(call);
        }
    }
    let beyond: Vec<&NamedCall> = made.difference(&allowed).collect();
    assert!(beyond.is_empty(), "made, but not allowed: {beyond:#?}");
    let unused: Vec<&NamedCall> = allowed
        .difference(&made)
        .filter(|(group, resource, verb, _)| (&**group, &**resource, &**verb) != NOT_SHOWN)
        .collect();
    assert!(unused.is_empty(), "allowed, but never used: {unused:#?}");
}
