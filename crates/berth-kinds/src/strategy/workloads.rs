//! Deployments, ReplicaSets, StatefulSets, DaemonSets, CronJobs and related kinds: defaults and
//! validation.

use std::collections::BTreeSet;

use berth_apimachinery::cron::Schedule;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::names;
use berth_apimachinery::selector::{self, LabelSelector};
use berth_apimachinery::times::time_zone;
use berth_apimachinery::validation::NameCheck;
use serde_json::{Map, Value, json};

use super::rules::{items, named, supported, text};
use super::{
    Context, Strategy, immutable, job, non_negative, pod_defaults, pod_validation, same_as, set_default,
    set_default_text, spec_mut, storage,
};

fn default_template(spec: &mut Map<String, Value>) {
    let template = map_mut(spec.entry("template").or_insert_with(|| json!({})));
    let pod = map_mut(template.entry("spec").or_insert_with(|| json!({})));
    pod_defaults::pod_spec(pod);
    pod_defaults::service_account(pod);
}

/// Validation of selector and template, with the messages of one kind.
struct SelectorRules {
    /// Name of the kind in the error about an empty selector.
    noun: &'static str,
    /// Name of the kind in the error about pods with a deadline.
    kind: &'static str,
    /// Message of the error about an invalid selector; `None` if it is not reported.
    invalid: Option<&'static str>,
    /// True if the selector is required.
    needs_selector: bool,
}

const REPLICA_SET: SelectorRules = SelectorRules {
    noun: "deployment",
    kind: "ReplicaSet",
    invalid: Some("invalid label selector"),
    needs_selector: true,
};
const STATEFUL_SET: SelectorRules =
    SelectorRules { noun: "statefulset", kind: "StatefulSet", invalid: Some(""), needs_selector: true };
const DAEMON_SET: SelectorRules =
    SelectorRules { noun: "daemonset", kind: "DaemonSet", invalid: None, needs_selector: false };

impl SelectorRules {
    /// Validates that the selector is not empty and matches the labels of the template, and
    /// validates the template.
    fn check(&self, spec: &Value, template: &Value, errors: &mut Vec<Error>) {
        let path = Path::new("spec");
        let at = path.child("selector");
        let given = &spec["selector"];
        errors.extend(selector::validate_object(given, &at));
        let parsed = LabelSelector::from_object(given);
        let readable = parsed.is_ok();
        match parsed {
            _ if given.is_null() => {
                if self.needs_selector {
                    errors.push(Error::required(&at, ""));
                }
                labels_differ(template, errors);
            }
            Ok(selector) if selector.is_empty() => {
                let detail = format!("empty selector is invalid for {}", self.noun);
                errors.push(Error::invalid(&at, shown_selector(given), detail));
            }
            Ok(selector) => {
                let empty = Map::new();
                if !selector.matches(template["metadata"]["labels"].as_object().unwrap_or(&empty)) {
                    labels_differ(template, errors);
                }
            }
            Err(_) => {
                errors.extend(self.invalid.map(|detail| Error::invalid(&at, shown_selector(given), detail)));
            }
        }
        if readable || self.invalid.is_none() {
            errors.extend(pod_validation::pod_template(template, &path.child("template")));
        }
        if readable || self.invalid.is_none_or(str::is_empty) {
            check_endless(template, self.kind, errors);
        }
    }
}

/// A selector without its empty parts, as error messages show it.
fn shown_selector(selector: &Value) -> Value {
    let is_empty = |part: &Value| {
        part.is_null() || part.as_object().is_some_and(Map::is_empty) || part.as_array().is_some_and(Vec::is_empty)
    };
    let parts = selector.as_object().into_iter().flatten().filter(|(_, part)| !is_empty(part));
    Value::Object(parts.map(|(name, part)| (name.clone(), part.clone())).collect())
}

fn labels_differ(template: &Value, errors: &mut Vec<Error>) {
    let detail = "`selector` does not match template `labels`";
    let labels = template["metadata"]["labels"].clone();
    errors.push(Error::invalid(&Path::new("spec.template.metadata.labels"), labels, detail));
}

/// Validates that the pods of a template run until they are deleted.
fn check_endless(template: &Value, kind: &str, errors: &mut Vec<Error>) {
    let path = Path::new("spec.template.spec");
    let policy = template["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if !matches!(policy, "" | "Always") {
        errors.push(Error::not_supported(&path.child("restartPolicy"), policy, &["Always"]));
    }
    if !template["spec"]["activeDeadlineSeconds"].is_null() {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(Error::forbidden(&path.child("activeDeadlineSeconds"), detail));
    }
}

/// A number of pods that is absolute or a percentage, such as `maxSurge`.
pub(super) struct IntOrPercent<'a> {
    pub(super) value: &'a Value,
    pub(super) path: Path<'a>,
}

impl IntOrPercent<'_> {
    pub(super) fn check(&self, errors: &mut Vec<Error>) {
        match self.value.as_str() {
            Some(share) => {
                let messages = names::is_percent(share).into_iter();
                errors.extend(messages.map(|message| Error::invalid(&self.path, share, message)));
            }
            None => non_negative(self.value, &self.path, errors),
        }
    }

    /// The number, or the number before the percent sign; zero if it is invalid.
    fn number(&self) -> i64 {
        match self.value.as_str() {
            Some(_) => self.percent().unwrap_or_default(),
            None => self.value.as_i64().unwrap_or_default(),
        }
    }

    fn percent(&self) -> Option<i64> {
        self.value.as_str().and_then(|share| share.strip_suffix('%')).and_then(|share| share.parse().ok())
    }

    pub(super) fn at_most_100_percent(&self, errors: &mut Vec<Error>) {
        if self.percent().is_some_and(|percent| percent > 100) {
            errors.push(Error::invalid(&self.path, self.value.clone(), "must not be greater than 100%"));
        }
    }
}

fn check_numbers(spec: &Value, fields: &[&str], errors: &mut Vec<Error>) {
    let path = Path::new("spec");
    for field in fields {
        non_negative(&spec[*field], &path.child(field), errors);
    }
}

/// ControllerRevisions: immutable snapshots of a controller's template.
pub(crate) struct ControllerRevisions;

impl Strategy for ControllerRevisions {
    fn validate(&self, revision: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        if revision["data"].is_null() {
            errors.push(Error::required(&Path::new("data"), "data is mandatory"));
        }
        non_negative(&revision["revision"], &Path::new("revision"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        if new["data"] != old["data"] {
            errors.push(Error::invalid(&Path::new("data"), new["data"].clone(), "field is immutable"));
        }
        errors
    }
}

pub(crate) struct PodTemplates;

impl Strategy for PodTemplates {
    fn has_generation(&self) -> bool {
        true
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_template(map_mut(object));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        pod_validation::pod_template(&object["template"], &Path::new("template"))
    }
}

pub(crate) struct ReplicationControllers;

impl Strategy for ReplicationControllers {
    fn has_generation(&self) -> bool {
        true
    }

    fn orphans_dependents(&self) -> bool {
        true
    }

    /// The default selector and labels are the labels of the template.
    fn default(&self, object: &mut Value) {
        let labels = object.pointer("/spec/template/metadata/labels").filter(|labels| labels.is_object()).cloned();
        let has_labels = meta::labels(object).is_some_and(|labels| !labels.is_empty());
        if let Some(labels) = labels {
            let spec = spec_mut(object);
            if spec.get("selector").and_then(Value::as_object).is_none_or(Map::is_empty) {
                spec.insert("selector".to_owned(), labels.clone());
            }
            if !has_labels {
                meta::metadata_mut(object).insert("labels".to_owned(), labels);
            }
        }
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        if spec.get("template").is_some_and(Value::is_object) {
            default_template(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({"replicas": 0}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let spec = &object["spec"];
        let mut errors = Vec::new();
        check_numbers(spec, &["minReadySeconds"], &mut errors);
        let empty = Map::new();
        let wanted = spec["selector"].as_object().unwrap_or(&empty);
        if wanted.is_empty() {
            errors.push(Error::required(&Path::new("spec.selector"), ""));
        }
        check_numbers(spec, &["replicas"], &mut errors);
        let template = &spec["template"];
        if template.is_null() {
            errors.push(Error::required(&Path::new("spec.template"), ""));
            return errors;
        }
        let labels = &template["metadata"]["labels"];
        if !wanted.iter().all(|(name, value)| labels.get(name) == Some(value)) {
            labels_differ(template, &mut errors);
        }
        errors.extend(pod_validation::pod_template(template, &Path::new("spec.template")));
        check_endless(template, "ReplicationController", &mut errors);
        errors
    }
}

pub(crate) struct Deployments;

impl Strategy for Deployments {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        set_default(spec, "revisionHistoryLimit", 10);
        set_default(spec, "progressDeadlineSeconds", 600);
        let strategy = map_mut(spec.entry("strategy").or_insert_with(|| json!({})));
        set_default_text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = map_mut(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
            set_default(rolling, "maxUnavailable", "25%");
            set_default(rolling, "maxSurge", "25%");
        }
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let spec = &object["spec"];
        let mut errors = Vec::new();
        check_numbers(spec, &["replicas"], &mut errors);
        REPLICA_SET.check(spec, &spec["template"], &mut errors);
        let strategy = &spec["strategy"];
        let path = Path::new("spec.strategy");
        let rolling_at = path.child("rollingUpdate");
        match strategy["type"].as_str().unwrap_or_default() {
            "Recreate" if !strategy["rollingUpdate"].is_null() => {
                let detail = "may not be specified when strategy `type` is 'Recreate'";
                errors.push(Error::forbidden(&rolling_at, detail));
            }
            "Recreate" => {}
            "RollingUpdate" => {
                let share =
                    |field| IntOrPercent { value: &strategy["rollingUpdate"][field], path: rolling_at.child(field) };
                let (unavailable, surge) = (share("maxUnavailable"), share("maxSurge"));
                unavailable.check(&mut errors);
                surge.check(&mut errors);
                if unavailable.number() == 0 && surge.number() == 0 {
                    let detail = "may not be 0 when `maxSurge` is 0";
                    errors.push(Error::invalid(&unavailable.path, unavailable.value.clone(), detail));
                }
                unavailable.at_most_100_percent(&mut errors);
            }
            _ => errors.push(Error::not_supported(&path, strategy.clone(), &["Recreate", "RollingUpdate"])),
        }
        check_numbers(spec, &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"], &mut errors);
        if let Some(deadline) = spec["progressDeadlineSeconds"].as_i64()
            && deadline <= spec["minReadySeconds"].as_i64().unwrap_or_default()
        {
            let at = Path::new("spec.progressDeadlineSeconds");
            errors.push(Error::invalid(&at, deadline, "must be greater than minReadySeconds"));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["spec", "selector"], &mut errors);
        errors
    }
}

pub(crate) struct ReplicaSets;

impl Strategy for ReplicaSets {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({"replicas": 0}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let spec = &object["spec"];
        let mut errors = Vec::new();
        check_numbers(spec, &["replicas", "minReadySeconds"], &mut errors);
        REPLICA_SET.check(spec, &spec["template"], &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["spec", "selector"], &mut errors);
        errors
    }
}

pub(crate) struct StatefulSets;

/// Fields of a StatefulSet's specification that may change.
const STATEFUL_SET_FIELDS: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// The template with a volume for each claim template, as in the pods.
fn with_claims(spec: &Value) -> Value {
    let claims = items(&spec["volumeClaimTemplates"]);
    let mut template = spec["template"].clone();
    if claims.is_empty() || !template["spec"].is_object() {
        return template;
    }
    let name = |claim: &Value| text(&claim["metadata"], "name").to_owned();
    let volume = |name: &String| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let own = items(&spec["template"]["spec"]["volumes"]).iter();
    let names: BTreeSet<String> = claims.iter().map(name).collect();
    let own = own.filter(|volume| !names.contains(text(volume, "name")));
    let volumes: Vec<Value> = names.iter().map(volume).chain(own.cloned()).collect();
    template["spec"]["volumes"] = Value::Array(volumes);
    template
}

impl Strategy for StatefulSets {
    fn name_check(&self) -> NameCheck {
        names::is_dns1123_label
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "replicas", 1);
        set_default(spec, "revisionHistoryLimit", 10);
        set_default_text(spec, "podManagementPolicy", "OrderedReady");
        let strategy = map_mut(spec.entry("updateStrategy").or_insert_with(|| json!({})));
        set_default_text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = map_mut(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
            set_default(rolling, "partition", 0);
        }
        set_default(
            spec,
            "persistentVolumeClaimRetentionPolicy",
            json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
        );
        for claim in spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
            let claim = map_mut(claim);
            set_default_text(claim, "apiVersion", "v1");
            set_default_text(claim, "kind", "PersistentVolumeClaim");
            storage::claim_spec(map_mut(claim.entry("spec").or_insert_with(|| json!({}))));
            set_default(claim, "status", json!({"phase": "Pending"}));
        }
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({"availableReplicas": 0, "replicas": 0}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let spec = &object["spec"];
        let path = Path::new("spec");
        let mut errors = Vec::new();
        let policy = text(spec, "podManagementPolicy");
        if !matches!(policy, "OrderedReady" | "Parallel") {
            let detail = "must be 'OrderedReady' or 'Parallel'";
            errors.push(Error::invalid(&path.child("podManagementPolicy"), policy, detail));
        }
        let (strategy, strategy_at) = (&spec["updateStrategy"], path.child("updateStrategy"));
        let rolling_at = strategy_at.child("rollingUpdate");
        match text(strategy, "type") {
            "OnDelete" if !strategy["rollingUpdate"].is_null() => {
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                errors.push(Error::invalid(&rolling_at, strategy["rollingUpdate"].clone(), detail));
            }
            "OnDelete" => {}
            "RollingUpdate" => {
                let rolling = &strategy["rollingUpdate"];
                non_negative(&rolling["partition"], &rolling_at.child("partition"), &mut errors);
                let most = IntOrPercent { value: &rolling["maxUnavailable"], path: rolling_at.child("maxUnavailable") };
                if !most.value.is_null() {
                    most.check(&mut errors);
                    if most.number() == 0 {
                        errors.push(Error::invalid(&most.path, most.value.clone(), "cannot be 0"));
                    }
                    most.at_most_100_percent(&mut errors);
                }
            }
            _ => {
                let detail = "must be 'RollingUpdate' or 'OnDelete'";
                errors.push(Error::invalid(&strategy_at, strategy.clone(), detail));
            }
        }
        let (keep, keep_at) =
            (&spec["persistentVolumeClaimRetentionPolicy"], path.child("persistentVolumeClaimRetentionPolicy"));
        for field in ["whenDeleted", "whenScaled"] {
            supported(keep, field, &["Retain", "Delete"], &keep_at, &mut errors);
        }
        let claims_at = path.child("volumeClaimTemplates");
        for (index, claim) in items(&spec["volumeClaimTemplates"]).iter().enumerate() {
            let at = claims_at.index(index);
            storage::check_claim(&claim["spec"], &at.child("spec"), &mut errors);
        }
        check_numbers(spec, &["replicas", "minReadySeconds"], &mut errors);
        let ordinals = path.child("ordinals");
        non_negative(&spec["ordinals"]["start"], &ordinals.child("start"), &mut errors);
        if !text(spec, "serviceName").is_empty() {
            let at = path.child("serviceName");
            named(text(spec, "serviceName"), names::is_dns1123_label, &at, &mut errors);
        }
        STATEFUL_SET.check(spec, &with_claims(spec), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        let rest = |object: &Value| {
            let mut spec = object["spec"].clone();
            map_mut(&mut spec).retain(|field, _| !STATEFUL_SET_FIELDS.contains(&field.as_str()));
            spec
        };
        if !same_as("io.k8s.api.apps.v1.StatefulSetSpec", &rest(new), &rest(old)) {
            let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                          'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                          'minReadySeconds' are forbidden";
            errors.push(Error::forbidden(&Path::new("spec"), detail));
        }
        errors
    }
}

/// Annotation of a DaemonSet with the number of template changes, for clients older than
/// ControllerRevisions.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn note_generation(object: &mut Value, generation: i64) {
    let metadata = meta::metadata_mut(object);
    let annotations = map_mut(metadata.entry("annotations").or_insert_with(|| json!({})));
    annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string().into());
}

pub(crate) struct DaemonSets;

impl Strategy for DaemonSets {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default(spec, "revisionHistoryLimit", 10);
        let strategy = map_mut(spec.entry("updateStrategy").or_insert_with(|| json!({})));
        set_default_text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = map_mut(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
            set_default(rolling, "maxUnavailable", 1);
            set_default(rolling, "maxSurge", 0);
        }
        default_template(spec);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        note_generation(object, 1);
        let status = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0});
        map_mut(object).insert("status".to_owned(), status);
    }

    /// Increases the count if the template changes. A value from the client is ignored.
    fn prepare_update(&self, new: &mut Value, old: &Value, _context: &Context<'_>) {
        let noted = &old["metadata"]["annotations"][TEMPLATE_GENERATION];
        let before = noted.as_str().and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
        let of = |object: &Value| object["spec"]["template"].clone();
        let is_changed = !same_as("io.k8s.api.core.v1.PodTemplateSpec", &of(new), &of(old));
        note_generation(new, before + i64::from(is_changed));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let spec = &object["spec"];
        let path = Path::new("spec");
        let mut errors = Vec::new();
        DAEMON_SET.check(spec, &spec["template"], &mut errors);
        check_numbers(spec, &["minReadySeconds"], &mut errors);
        let (strategy, strategy_at) = (&spec["updateStrategy"], path.child("updateStrategy"));
        let rolling_at = strategy_at.child("rollingUpdate");
        match text(strategy, "type") {
            "OnDelete" => {}
            "RollingUpdate" => {
                let share =
                    |field| IntOrPercent { value: &strategy["rollingUpdate"][field], path: rolling_at.child(field) };
                let (unavailable, surge) = (share("maxUnavailable"), share("maxSurge"));
                unavailable.check(&mut errors);
                surge.check(&mut errors);
                if unavailable.number() != 0 && surge.number() != 0 {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.push(Error::invalid(&surge.path, surge.value.clone(), detail));
                } else if unavailable.number() == 0 && surge.number() == 0 {
                    errors.push(Error::required(&unavailable.path, "cannot be 0 when maxSurge is 0"));
                }
                unavailable.at_most_100_percent(&mut errors);
                surge.at_most_100_percent(&mut errors);
            }
            _ => errors.push(Error::not_supported(&strategy_at, strategy.clone(), &["RollingUpdate", "OnDelete"])),
        }
        check_numbers(spec, &["revisionHistoryLimit"], &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["spec", "selector"], &mut errors);
        errors
    }
}

pub(crate) struct CronJobs;

/// Maximum length of a CronJob's name: a Job's name has eleven more characters.
const CRON_JOB_NAME_MAX: usize = 52;

/// Validates a schedule. A time zone in it (`TZ=…`) is accepted only if the stored object has one.
fn check_schedule(spec: &Value, may_have_zone: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    if let Err(error) = parse_schedule(schedule) {
        errors.push(Error::invalid(path, schedule, error));
    }
    if !schedule.contains("TZ") {
        return;
    }
    if !may_have_zone {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(Error::invalid(path, schedule, detail));
    } else if !spec["timeZone"].is_null() {
        let detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
        errors.push(Error::invalid(path, schedule, detail));
    }
}

/// Parses a schedule, which may begin with a time zone.
fn parse_schedule(schedule: &str) -> Result<(), String> {
    let zoned = ["TZ=", "CRON_TZ="].iter().find_map(|prefix| schedule.strip_prefix(prefix));
    let Some(zoned) = zoned else {
        return Schedule::parse(schedule).map(drop).map_err(|error| error.to_string());
    };
    let (zone, rest) = zoned.split_once(' ').unwrap_or((zoned, ""));
    if time_zone(zone).is_none() {
        return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
    }
    Schedule::parse(rest.trim()).map(drop).map_err(|error| error.to_string())
}

/// Validates that a time zone is in the IANA database, with the same case.
fn check_time_zone(zone: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if zone.is_empty() {
        errors.push(Error::invalid(path, zone, "timeZone must be nil or non-empty string"));
    } else if zone.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.push(Error::invalid(path, zone, detail));
    } else if time_zone(zone).is_none() {
        errors.push(Error::invalid(path, zone, format!("unknown time zone {zone}")));
    }
}

/// Validates the specification of a CronJob.
fn check_cron_job(object: &Value, may_have_zone: bool) -> Vec<Error> {
    let path = Path::new("spec");
    let mut errors = Vec::new();
    check_schedule(&object["spec"], may_have_zone, &path.child("schedule"), &mut errors);
    check_numbers(&object["spec"], &["startingDeadlineSeconds"], &mut errors);
    if let Some(zone) = object["spec"]["timeZone"].as_str() {
        check_time_zone(zone, &path.child("timeZone"), &mut errors);
    }
    let policy = object["spec"]["concurrencyPolicy"].as_str().unwrap_or_default();
    if !matches!(policy, "Allow" | "Forbid" | "Replace") {
        errors.push(Error::not_supported(&path.child("concurrencyPolicy"), policy, &["Allow", "Forbid", "Replace"]));
    }
    let template = path.child("jobTemplate");
    errors.extend(job::validate_spec(&object["spec"]["jobTemplate"]["spec"], &template.child("spec")));
    check_numbers(&object["spec"], &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], &mut errors);
    errors
}

impl Strategy for CronJobs {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = spec_mut(object);
        set_default_text(spec, "concurrencyPolicy", "Allow");
        set_default(spec, "suspend", false);
        set_default(spec, "successfulJobsHistoryLimit", 3);
        set_default(spec, "failedJobsHistoryLimit", 1);
        // Only the pod template gets its defaults here. The Job's defaults are set on each Job.
        let template = map_mut(spec.entry("jobTemplate").or_insert_with(|| json!({})));
        let job = map_mut(template.entry("spec").or_insert_with(|| json!({})));
        default_template(job);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        map_mut(object).insert("status".to_owned(), json!({}));
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let mut errors = check_cron_job(object, false);
        let name = text(&object["metadata"], "name");
        if name.len() > CRON_JOB_NAME_MAX {
            let detail = format!("must be no more than {CRON_JOB_NAME_MAX} characters");
            errors.push(Error::invalid(&Path::new("metadata.name"), name, detail));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        check_cron_job(new, text(&old["spec"], "schedule").contains("TZ"))
    }
}
