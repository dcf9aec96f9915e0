//! The role of the controllers is what they call: scenarios with controllers that have nothing but that role, and the
//! audit log of what they asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use berth_apiserver::audit::policy::Policy;
use berth_apiserver::audit::{Log, Sink};
use berth_controllers::rights;
use serde_json::{Value, json};

/// Group, resource with its subresource, verb.
type Call = (String, String, String);

/// The calls of the controllers, and those of them that were refused.
#[derive(Default)]
struct Calls {
    made: Mutex<BTreeSet<Call>>,
    forbidden: Mutex<BTreeSet<Call>>,
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
    }
}

/// Runs a scenario with controllers that may only do what their role allows.
fn run(path: &str, calls: &Arc<Calls>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let policy = Policy::from_value(&json!({"omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}));
    let log = Log { policy: Arc::new(policy.expect("a policy")), sink: calls.clone() };
    let mut report = String::new();
    let change = |options: &mut berth_simulator::embedded::Options| {
        options.apart = true;
        options.audit = Some(log);
    };
    let mut sink = |text: &str| report.push_str(text);
    let outcome = berth_simulator::runner::run_with(&path, &BTreeMap::new(), change, &mut sink);
    let failed = outcome.map(|outcome| outcome.failed).unwrap_or_else(|error| panic!("{error}\n{report}"));
    assert_eq!(failed, 0, "{report}");
}

/// What the role allows and no scenario makes the controllers do: group, resource, verb, and why.
const NOT_DRIVEN: &[(&str, &str, &str, &str)] =
    &[("", "podtemplates", "get", LEFT_OVER), ("autoscaling.x-k8s.io", "provisioningrequests", "get", LEFT_OVER)];
const LEFT_OVER: &str = "looks at what a controller left that was killed between making it and noting that it did";

#[test]
fn the_role_allows_exactly_the_calls_that_are_made() {
    let calls = Arc::new(Calls::default());
    for name in ["gke-batch-refarch", "pods", "topology"] {
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
    let listed: BTreeSet<Call> = NOT_DRIVEN
        .iter()
        .map(|(group, resource, verb, _)| ((*group).to_owned(), (*resource).to_owned(), (*verb).to_owned()))
        .collect();
    let beyond: Vec<&Call> = made.difference(&allowed).collect();
    assert!(beyond.is_empty(), "made, but not in the role: {beyond:?}");
    let unused: Vec<&Call> = allowed.difference(&made).filter(|call| !listed.contains(*call)).collect();
    assert!(unused.is_empty(), "in the role, but never made: {unused:#?}");
    let driven: Vec<&Call> = listed.intersection(&made).collect();
    assert!(driven.is_empty(), "listed as not driven, but made: {driven:?}");
}
