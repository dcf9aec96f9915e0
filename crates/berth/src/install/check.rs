//! Finds the obstacles to an installation, before anything is changed.
//!
//! An installation is typically stopped halfway by webhooks of programs that no longer run: a
//! webhook with failure policy Fail whose Service has no endpoint rejects every matching request. A
//! cluster with Kueue has some two dozen webhooks, among them for Deployments and pods of nearly
//! every namespace.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use berth_apimachinery::selector::LabelSelector;
use berth_controllers::rights::{self, WEBHOOK_CONFIGURATION};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{FIELD_MANAGER, manifests, stored};

const KUEUE: &str = "kueue.x-k8s.io";

/// Findings of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// Obstacles that must be removed first.
    pub obstacles: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The objects of an installation that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Only the objects that hold jobs.
    Hold,
    /// Controllers that decide and write nothing, beside a Kueue that may run.
    Standby,
    /// The whole installation.
    Whole,
}

/// Namespace and name of a Service.
type Service = (String, String);

/// An object that will be written.
#[derive(Clone, Debug)]
struct Subject {
    /// Description for messages.
    what: String,
    group: String,
    version: String,
    resource: String,
    operation: &'static str,
    /// Namespace; `None` matches every namespace.
    namespace: Option<String>,
    /// Labels of the object; `None` if they are unknown, which matches every selector.
    labels: Option<Value>,
}

/// A webhook that would reject an object.
#[derive(Debug, PartialEq)]
struct Refusal {
    /// Kind and name of its configuration.
    configuration: (String, String),
    webhook: String,
    service: Service,
    what: String,
}

/// Finds the obstacles to creating these objects, and to the objects that the controllers write
/// when they run.
pub async fn look(client: &Client, objects: &[Value], step: Step) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let namespace = namespace_of(objects);
    let mut configurations = list::<MutatingWebhookConfiguration>(client).await?;
    configurations.extend(list::<ValidatingWebhookConfiguration>(client).await?);
    configurations.retain(|configuration| configuration["metadata"]["name"] != WEBHOOK_CONFIGURATION);
    let mut definitions = BTreeMap::new();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let of_installation = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition");
    let of_installation = of_installation.map(|object| text(&object["metadata"]["name"]));
    for name in rights::converted_kinds().into_iter().chain(of_installation).collect::<BTreeSet<_>>() {
        if let Some(found) = api.get_opt(&name).await.with_context(|| format!("CustomResourceDefinition {name}"))? {
            definitions.insert(name, json!(found));
        }
    }
    let services = configurations.iter().flat_map(hooks).filter_map(|hook| service(&hook["clientConfig"]));
    let converting = definitions.values().filter_map(converter);
    let ready = ready(client, services.chain(converting).collect()).await?;
    let spaces: Api<Namespace> = Api::all(client.clone());
    let found = spaces.get_opt(&namespace).await.with_context(|| format!("Namespace {namespace}"))?;
    let labels = found.as_ref().map(|found| json!(found.metadata.labels));

    let own = objects.iter().flat_map(hooks).find_map(|hook| service(&hook["clientConfig"]));
    for service in running(&configurations, &definitions, &ready, own.as_ref()) {
        let service = named(&service);
        let serves = format!("Service {service} serves webhooks or conversions of {KUEUE}");
        if step == Step::Standby {
            report.notes.push(format!("{serves}: these controllers continue to decide, and Berth's are on standby"));
            continue;
        }
        report.obstacles.push(format!(
            "{serves}, so other queueing controllers are running. Both would admit workloads. \
             Stop them first; for Kueue: `kubectl scale deployment kueue-controller-manager -n kueue-system --replicas=0`"
        ));
    }
    let mut subjects: Vec<Subject> = objects.iter().flat_map(subjects).collect();
    if step == Step::Whole {
        subjects.extend(written());
    }
    let refusals = refusals(&configurations, &ready, &subjects, &namespace, labels.as_ref());
    report.obstacles.extend(texts(&refusals));
    conversions(&definitions, objects, &ready, step, &mut report);
    stored::look(&definitions, objects, &mut report);
    if refusals.is_empty() && labels.is_some() {
        report.obstacles.extend(dry_run(client, objects).await);
    }
    Ok(report)
}

async fn list<K>(client: &Client) -> anyhow::Result<Vec<Value>>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
    K: serde::Serialize,
{
    let found = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    let found = found.with_context(|| format!("cannot list {}", K::plural(&())))?;
    let kind = K::kind(&()).into_owned();
    Ok(found
        .items
        .iter()
        .map(|object| {
            let mut value = json!(object);
            value["kind"] = json!(kind);
            value
        })
        .collect())
}

fn namespace_of(objects: &[Value]) -> String {
    let found = objects.iter().find(|object| object["kind"] == "Namespace");
    found.and_then(|object| object["metadata"]["name"].as_str()).unwrap_or(rights::NAMESPACE).to_owned()
}

fn hooks(configuration: &Value) -> Vec<&Value> {
    configuration["webhooks"].as_array().into_iter().flatten().collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The Service of a `clientConfig`; `None` for a URL.
fn service(config: &Value) -> Option<Service> {
    let service = config.get("service").filter(|service| !service.is_null())?;
    Some((text(&service["namespace"]), text(&service["name"])))
}

/// The conversion Service of a definition.
fn converter(definition: &Value) -> Option<Service> {
    let conversion = &definition["spec"]["conversion"];
    (conversion["strategy"] == "Webhook").then(|| service(&conversion["webhook"]["clientConfig"]))?
}

fn named((namespace, name): &Service) -> String {
    format!("{namespace}/{name}")
}

/// The Services among these that have a ready endpoint.
async fn ready(client: &Client, services: BTreeSet<Service>) -> anyhow::Result<BTreeSet<Service>> {
    let mut ready = BTreeSet::new();
    for (namespace, name) in services {
        let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &namespace);
        let params = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
        let slices = api.list(&params).await.with_context(|| format!("endpoints of Service {namespace}/{name}"))?;
        let mut endpoints = slices.items.iter().flat_map(|slice| &slice.endpoints);
        let is_ready = endpoints.any(|endpoint| {
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
            ready.unwrap_or(true) && !endpoint.addresses.is_empty()
        });
        if is_ready {
            ready.insert((namespace, name));
        }
    }
    Ok(ready)
}

/// Ready Services of webhooks and conversions for Kueue's kinds, except for Berth's own.
/// `configurations` are those of other programs.
fn running(
    configurations: &[Value],
    definitions: &BTreeMap<String, Value>,
    ready: &BTreeSet<Service>,
    own: Option<&Service>,
) -> BTreeSet<Service> {
    let hooks = configurations.iter().flat_map(hooks);
    let about_queues = hooks.filter(|hook| {
        let mut rules = hook["rules"].as_array().into_iter().flatten();
        rules.any(|rule| rule["apiGroups"].as_array().is_some_and(|groups| groups.iter().any(|group| group == KUEUE)))
    });
    let services = about_queues.filter_map(|hook| service(&hook["clientConfig"]));
    let converting = definitions.values().filter_map(converter);
    services.chain(converting).filter(|service| ready.contains(service) && own != Some(service)).collect()
}

/// An object of the installation, and the objects that it causes to be created.
fn subjects(object: &Value) -> Vec<Subject> {
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    // The API server calls no webhook for webhook configurations.
    if group == "admissionregistration.k8s.io" {
        return Vec::new();
    }
    let (namespace, name) = (object["metadata"]["namespace"].as_str(), text(&object["metadata"]["name"]));
    let shown = namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"));
    let subject = Subject {
        what: format!("{kind} {shown}"),
        group: group.to_owned(),
        version: version.to_owned(),
        resource: ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind)).plural,
        operation: "CREATE",
        namespace: namespace.map(str::to_owned),
        labels: Some(object["metadata"]["labels"].clone()),
    };
    if kind != "Deployment" {
        return vec![subject];
    }
    let labels = Some(object["spec"]["template"]["metadata"]["labels"].clone());
    let made = |what: &str, group: &str, resource: &str| Subject {
        what: format!("the {what} of {}", subject.what),
        group: group.to_owned(),
        resource: resource.to_owned(),
        labels: labels.clone(),
        ..subject.clone()
    };
    let (sets, pods) = (made("ReplicaSet", "apps", "replicasets"), made("pods", "", "pods"));
    vec![subject, sets, pods]
}

/// The objects that the controllers write when they run.
fn written() -> Vec<Subject> {
    let one = |group: &str, resource: &str, operation| Subject {
        what: format!("writes of {resource} by the controllers"),
        group: group.to_owned(),
        version: "*".to_owned(),
        resource: resource.to_owned(),
        operation,
        namespace: None,
        labels: None,
    };
    let operations = |verbs: &[&str]| {
        let known = [("create", "CREATE"), ("patch", "UPDATE"), ("delete", "DELETE")];
        known.into_iter().filter(|(verb, _)| verbs.contains(verb)).map(|(_, operation)| operation).collect::<Vec<_>>()
    };
    let all = rights::WRITES.iter();
    all.flat_map(|(group, resource, verbs)| operations(verbs).into_iter().map(|it| one(group, resource, it))).collect()
}

/// The webhooks that would reject each subject: webhooks with failure policy Fail whose Service has
/// no ready endpoint.
fn refusals(
    configurations: &[Value],
    ready: &BTreeSet<Service>,
    subjects: &[Subject],
    namespace: &str,
    labels: Option<&Value>,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for configuration in configurations {
        for hook in hooks(configuration) {
            let Some(service) = service(&hook["clientConfig"]) else { continue };
            if hook["failurePolicy"] == "Ignore" || ready.contains(&service) {
                continue;
            }
            for subject in subjects.iter().filter(|subject| is_asked(hook, subject, namespace, labels)) {
                refusals.push(Refusal {
                    configuration: (text(&configuration["kind"]), text(&configuration["metadata"]["name"])),
                    webhook: text(&hook["name"]),
                    service: service.clone(),
                    what: subject.what.clone(),
                });
            }
        }
    }
    refusals
}

/// True if a webhook is called for this object. Its `matchConditions`, which may exclude the
/// object, are not evaluated.
fn is_asked(hook: &Value, subject: &Subject, own: &str, own_labels: Option<&Value>) -> bool {
    let has = |list: &Value, wanted: &str| {
        list.as_array().is_some_and(|all| all.iter().any(|one| one == "*" || one == wanted || wanted == "*"))
    };
    let resource = |list: &Value| {
        let (kind, part) = subject.resource.split_once('/').unwrap_or((&subject.resource, ""));
        list.as_array().into_iter().flatten().filter_map(Value::as_str).any(|rule| match rule.split_once('/') {
            None => (rule == "*" || rule == kind) && part.is_empty(),
            Some((of, sub)) => (of == "*" || of == kind) && (sub == "*" || (sub == part && !part.is_empty())),
        })
    };
    // Objects of other versions are converted to a version of the rule, unless `matchPolicy` is
    // Exact.
    let any_version = hook["matchPolicy"] != "Exact";
    let mut rules = hook["rules"].as_array().into_iter().flatten();
    let about = rules.any(|rule| {
        has(&rule["apiGroups"], &subject.group)
            && (any_version || has(&rule["apiVersions"], &subject.version))
            && has(&rule["operations"], subject.operation)
            && resource(&rule["resources"])
    });
    let selected = |selector: &Value, labels: &Value| {
        if selector.is_null() {
            return true;
        }
        let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).unwrap_or_default();
        // A selector that cannot be parsed counts as matching.
        LabelSelector::from_object(selector).map_or(true, |selector| selector.matches(&labels))
    };
    let in_namespace = subject.namespace.as_ref().is_none_or(|namespace| {
        let mut labels =
            own_labels.filter(|labels| namespace == own && labels.is_object()).cloned().unwrap_or(json!({}));
        labels["kubernetes.io/metadata.name"] = json!(namespace);
        selected(&hook["namespaceSelector"], &labels)
    });
    about && in_namespace && subject.labels.as_ref().is_none_or(|labels| selected(&hook["objectSelector"], labels))
}

/// Rejections as messages: one for each configuration and Service.
fn texts(refusals: &[Refusal]) -> Vec<String> {
    let mut grouped: BTreeMap<(&(String, String), &Service), Vec<&Refusal>> = BTreeMap::new();
    for refusal in refusals {
        grouped.entry((&refusal.configuration, &refusal.service)).or_default().push(refusal);
    }
    let texts = grouped.into_iter().map(|(((kind, name), service), refusals)| {
        let mut seen = BTreeSet::new();
        let refused: Vec<String> = refusals
            .iter()
            .filter(|refusal| seen.insert(&refusal.webhook))
            .map(|refusal| format!("{} rejects {}", refusal.webhook, refusal.what))
            .collect();
        let delete = kind.to_lowercase();
        format!(
            "{kind} {name}: Service {} has no ready endpoint, and failurePolicy is Fail: {}. Start the pods of the Service; \
             or create Berth's policies and webhook configurations (`berth install --hold-only --apply`) and then run \
             `kubectl delete {delete} {name}`",
            named(service),
            refused.join(", ")
        )
    });
    texts.collect()
}

/// The current conversion webhooks of the kinds, as far as the installation changes them.
fn conversions(
    definitions: &BTreeMap<String, Value>,
    objects: &[Value],
    ready: &BTreeSet<Service>,
    step: Step,
    report: &mut Report,
) {
    let queues = definitions.get("localqueues.kueue.x-k8s.io");
    let versions = queues.and_then(|it| it["spec"]["versions"].as_array());
    let is_read = |version: &Value| version["name"] == "v1beta2" && version["served"] == true;
    if step != Step::Whole && !versions.is_some_and(|versions| versions.iter().any(is_read)) {
        report.obstacles.push(
            "localqueues.kueue.x-k8s.io is not served in v1beta2, in which the policies read a namespace's default queue; \
             first update Kueue to a version that serves v1beta2, or install without --hold-only and --standby"
                .to_owned(),
        );
    }
    let own = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition").find_map(converter);
    let mut others: BTreeMap<Service, Vec<&str>> = BTreeMap::new();
    for (name, definition) in definitions {
        if let Some(service) = converter(definition).filter(|service| own.as_ref() != Some(service)) {
            others.entry(service).or_default().push(name);
        }
    }
    for (service, names) in others {
        let state = if ready.contains(&service) { "which responds" } else { "which has no ready endpoint" };
        let then = match &own {
            Some(own) => format!("`berth install --apply` changes the conversion to Service {}", named(own)),
            None => "this installation does not change the conversion".to_owned(),
        };
        report.notes.push(format!("converted by Service {}, {state}: {}; {then}", named(&service), names.join(", ")));
    }
}

/// Sends the Deployment to the API server as a dry run.
async fn dry_run(client: &Client, objects: &[Value]) -> Option<String> {
    let object = objects.iter().find(|object| object["kind"] == "Deployment")?;
    let typed: DynamicObject = serde_json::from_value(object.clone()).ok()?;
    let resource = ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&());
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    let params = PatchParams::apply(FIELD_MANAGER).force().dry_run();
    let error = api.patch(&name, &params, &Patch::Apply(&typed)).await.err()?;
    let message = berth_runtime::message(&error);
    Some(format!("Deployment {namespace}/{name} would be rejected: {message}"))
}

/// The policies and webhook configurations that hold jobs: which of them exist.
pub async fn held(client: &Client, objects: &[Value]) -> anyhow::Result<String> {
    let (mut there, mut missing) = (0, Vec::new());
    for object in objects.iter().filter(|object| manifests::holds(object)) {
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let name = text(&object["metadata"]["name"]);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        match api.get_opt(&name).await.with_context(|| format!("{kind} {name}"))? {
            Some(_) => there += 1,
            None => missing.push(format!("{kind} {name}")),
        }
    }
    Ok(match (there, missing.as_slice()) {
        (_, []) => format!("the objects that hold jobs exist: {there} policies, bindings and webhook configurations"),
        (0, _) => "the objects that hold jobs do not exist yet".to_owned(),
        (_, missing) => format!("some of the objects that hold jobs are missing: {}", missing.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(hooks: Value) -> Value {
        json!({"kind": "MutatingWebhookConfiguration", "metadata": {"name": "other"}, "webhooks": hooks})
    }

    fn hook(name: &str, group: &str, resource: &str) -> Value {
        json!({"name": name, "failurePolicy": "Fail",
            "clientConfig": {"service": {"namespace": "kueue-system", "name": "webhook"}},
            "namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
                "values": ["kube-system", "kueue-system"]}]},
            "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE"]}]})
    }

    fn deployment(namespace: &str) -> Vec<Subject> {
        subjects(&json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "berth-controller", "namespace": namespace, "labels": {"a": "b"}},
            "spec": {"template": {"metadata": {"labels": {"c": "d"}}}}}))
    }

    fn refused(hooks: Value, ready: &[Service], namespace: &str) -> Vec<String> {
        let ready = ready.iter().cloned().collect();
        let found = refusals(&[configuration(hooks)], &ready, &deployment(namespace), namespace, None);
        found.into_iter().map(|refusal| format!("{}: {}", refusal.webhook, refusal.what)).collect()
    }

    #[test]
    fn webhooks_without_an_endpoint_are_reported_with_the_rejected_objects() {
        let both = json!([hook("mdeployment", "apps", "deployments"), hook("mpod", "", "pods")]);
        let expected = [
            "mdeployment: Deployment berth-system/berth-controller",
            "mpod: the pods of Deployment berth-system/berth-controller",
        ];
        assert_eq!(refused(both.clone(), &[], "berth-system"), expected);
        assert_eq!(refused(both.clone(), &[], "kueue-system"), [""; 0], "its selector leaves the namespace out");
        let service = ("kueue-system".to_owned(), "webhook".to_owned());
        assert_eq!(refused(both, &[service], "berth-system"), [""; 0], "the Service has an endpoint");
    }

    #[test]
    fn webhooks_that_are_skipped_or_do_not_match_reject_nothing() {
        let mut hook = hook("m", "apps", "deployments");
        hook["objectSelector"] = json!({"matchLabels": {"a": "c"}});
        assert_eq!(refused(json!([hook]), &[], "berth-system"), [""; 0]);
        hook["objectSelector"] = json!({"matchLabels": {"a": "b"}});
        assert_eq!(refused(json!([hook]), &[], "berth-system").len(), 1);
        hook["failurePolicy"] = json!("Ignore");
        assert_eq!(refused(json!([hook]), &[], "berth-system"), [""; 0]);
        hook["failurePolicy"] = json!("Fail");
        hook["rules"][0]["operations"] = json!(["UPDATE"]);
        assert_eq!(refused(json!([hook]), &[], "berth-system"), [""; 0]);
        hook["clientConfig"] = json!({"url": "https://elsewhere"});
        hook["rules"][0]["operations"] = json!(["*"]);
        assert_eq!(refused(json!([hook]), &[], "berth-system"), [""; 0], "a webhook with a URL counts as available");
    }

    #[test]
    fn rejections_of_the_controllers_own_writes_are_found() {
        let mut of_workloads = hook("vworkload", KUEUE, "workloads");
        of_workloads["rules"][0]["operations"] = json!(["UPDATE"]);
        let found =
            refusals(&[configuration(json!([of_workloads]))], &BTreeSet::new(), &written(), "berth-system", None);
        assert_eq!(found[0].what, "writes of workloads by the controllers");
        let text = texts(&found).remove(0);
        assert!(
            text.starts_with("MutatingWebhookConfiguration other: Service kueue-system/webhook has no ready endpoint")
                && text.ends_with("`kubectl delete mutatingwebhookconfiguration other`"),
            "{text}"
        );
    }
}
