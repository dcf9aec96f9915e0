//! Columns and cells of the Tables that `kubectl get` prints.
//!
//! Built-in kinds have their own printers, modelled on those of kube-apiserver. Custom resources
//! have the columns of their CustomResourceDefinition. All other kinds have their name and creation
//! time. A row always has all cells: the client hides columns with a priority above 0, which are
//! for wide views.

mod batch;
mod cells;
mod cluster;
mod config;
mod network;
mod pods;
mod workloads;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use berth_apimachinery::table::{Column, CustomColumn};
use berth_apimachinery::{builtin, meta};
use jiff::Timestamp;
use serde_json::Value;

use crate::registry::{Origin, PrinterColumn};
use crate::registry::{ResourceInfo, VersionInfo};

/// Name, type and priority of a column.
type Header = (&'static str, &'static str, i64);

/// The printer of one built-in kind.
struct Printer {
    group: &'static str,
    kind: &'static str,
    /// All columns after the name. Events have their name among these columns.
    headers: &'static [Header],
    /// True if the first column is the object's name. False for events.
    named: bool,
    /// The cells under `headers`.
    cells: fn(&Value, Timestamp) -> Vec<Value>,
}

const fn printer(
    group: &'static str,
    kind: &'static str,
    headers: &'static [Header],
    cells: fn(&Value, Timestamp) -> Vec<Value>,
) -> Printer {
    Printer { group, kind, headers, named: true, cells }
}

/// The age column that most kinds end with.
const AGE: Header = ("Age", "string", 0);

fn built_in(row: &ResourceInfo) -> Option<&'static Printer> {
    let tables =
        [batch::PRINTERS, cluster::PRINTERS, config::PRINTERS, network::PRINTERS, pods::PRINTERS, workloads::PRINTERS];
    tables.into_iter().flatten().find(|printer| printer.group == row.group && printer.kind == row.kind)
}

fn column(name: &str, cell_type: &str, priority: i64, description: &str) -> Column {
    Column {
        name: name.to_owned(),
        column_type: cell_type.to_owned(),
        // As upstream, the driver of a VolumeAttachment has the format of a name.
        format: if matches!(name, "Name" | "Attacher") { "name".to_owned() } else { String::new() },
        description: description.to_owned(),
        priority,
    }
}

/// The fields shown in columns, whose published descriptions are also those of the columns. One
/// line each: `group/Kind|column|definition|field`.
static FIELDS: &str = include_str!("../../data/columns.txt");
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The fields behind the columns of built-in kinds, by `group/Kind` and column.
fn fields() -> &'static BTreeMap<(&'static str, &'static str), (&'static str, &'static str)> {
    static READ: OnceLock<BTreeMap<(&str, &str), (&str, &str)>> = OnceLock::new();
    READ.get_or_init(|| {
        let parts = FIELDS.lines().map(|line| line.split('|').collect::<Vec<_>>());
        parts
            .filter_map(|parts| match parts[..] {
                [kind, column, definition, field] => Some(((kind, column), (definition, field))),
                _ => None,
            })
            .collect()
    })
}

/// Description of a column of a built-in kind, if the column shows a field; otherwise empty.
fn described(kind: &str, column: &str) -> &'static str {
    let of_all = || match column {
        "Name" => Some(&(META, "name")),
        "Age" => Some(&(META, "creationTimestamp")),
        _ => None,
    };
    let Some((definition, field)) = fields().get(&(kind, column)).or_else(of_all) else { return "" };
    let property = builtin::definition(definition).and_then(|it| it["properties"].get(*field));
    property.and_then(|it| it["description"].as_str()).unwrap_or_default()
}

fn name_column() -> Column {
    column("Name", "string", 0, described("", "Name"))
}

/// Description of a column with the creation time.
pub fn created() -> &'static str {
    described("", "Age")
}

fn created_column(name: &str) -> Column {
    column(name, "date", 0, created())
}

/// The columns of a kind's Table.
pub fn columns(row: &ResourceInfo, version: &VersionInfo) -> Vec<Column> {
    if matches!(row.origin, Origin::Custom(_)) {
        let mut columns = vec![name_column()];
        columns.extend(version.columns.iter().map(|own| Column {
            name: own.name.clone(),
            column_type: own.type_.clone(),
            format: own.format.clone(),
            description: if own.description.is_empty() {
                format!("Custom resource definition column (in JSONPath format): {}", own.json_path)
            } else {
                own.description.clone()
            },
            priority: own.priority,
        }));
        if version.columns.is_empty() {
            columns.push(created_column("Age"));
        }
        return columns;
    }
    match built_in(row) {
        Some(printer) => {
            let mut columns = Vec::with_capacity(printer.headers.len() + 1);
            if printer.named {
                columns.push(name_column());
            }
            let kind = format!("{}/{}", row.group, row.kind);
            columns.extend(
                printer
                    .headers
                    .iter()
                    .map(|(name, cell_type, priority)| column(name, cell_type, *priority, described(&kind, name))),
            );
            columns
        }
        None => vec![name_column(), created_column("Created At")],
    }
}

/// Sorts the objects of a list for printing: FlowSchemas in the order of matching. Other kinds keep
/// the order of the list.
pub fn sort<T: std::borrow::Borrow<Value>>(row: &ResourceInfo, objects: &mut [T]) {
    if row.group == "flowcontrol.apiserver.k8s.io" && row.kind == "FlowSchema" {
        // The sort is stable: schemas of equal precedence remain ordered by name.
        objects.sort_by_key(|object| object.borrow()["spec"]["matchingPrecedence"].as_i64().unwrap_or(0));
    }
}

/// The cells of one object, as many as [`columns`]. Ages are relative to `now`.
pub fn cells(row: &ResourceInfo, version: &VersionInfo, object: &Value, now: Timestamp) -> Vec<Value> {
    if matches!(row.origin, Origin::Custom(_)) {
        let mut cells = vec![meta::name(object).into()];
        cells.extend(version.columns.iter().map(|own| custom_cell(own, object, now)));
        if version.columns.is_empty() {
            cells.push(cells::age(object, now));
        }
        return cells;
    }
    match built_in(row) {
        Some(printer) => {
            // Printers read the storage version.
            let stored = (version.name != row.storage_version)
                .then(|| row.convert_builtin(object.clone(), &row.api_version(&row.storage_version)));
            let object = stored.as_ref().unwrap_or(object);
            let mut all = Vec::with_capacity(printer.headers.len() + 1);
            if printer.named {
                all.push(meta::name(object).into());
            }
            all.extend((printer.cells)(object, now));
            debug_assert_eq!(all.len(), printer.headers.len() + usize::from(printer.named), "{}", printer.kind);
            all
        }
        None => vec![meta::name(object).into(), meta::creation_timestamp(object).into()],
    }
}

fn custom_cell(own: &PrinterColumn, object: &Value, now: Timestamp) -> Value {
    let column = Column { column_type: own.type_.clone(), ..Column::default() };
    // Paths are validated when the CustomResourceDefinition is written. An invalid path gives an
    // empty cell.
    CustomColumn::new(column, &own.json_path).map_or(Value::Null, |column| column.cell(object, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;
    use serde_json::json;

    fn show(group: &str, plural: &str, object: Value) -> Vec<(String, Value)> {
        let registry = Registry::builtin();
        let row = registry.get(group, plural).expect("a built-in kind");
        let version = &row.versions[0];
        let now: Timestamp = "2026-01-01T00:10:30Z".parse().expect("a timestamp");
        let names = columns(row, version).into_iter().map(|column| column.name);
        names.zip(cells(row, version, &object, now)).collect()
    }

    fn check(group: &str, plural: &str, object: Value, expected: &[(&str, Value)]) {
        let shown = show(group, plural, object);
        for (name, value) in expected {
            let cell = shown.iter().find(|(column, _)| column == name).unwrap_or_else(|| panic!("no column {name}"));
            assert_eq!(cell.1, *value, "{plural}: {name}");
        }
    }

    #[test]
    fn every_kind_fills_all_its_columns_even_for_an_empty_object() {
        let registry = Registry::builtin();
        for row in registry.rows() {
            let version = &row.versions[0];
            let object = json!({"metadata": {"name": "x"}});
            let cells = cells(row, version, &object, Timestamp::UNIX_EPOCH);
            assert_eq!(cells.len(), columns(row, version).len(), "{}", row.plural);
        }
    }

    #[test]
    fn every_printer_belongs_to_a_served_kind() {
        let registry = Registry::builtin();
        let tables = [
            batch::PRINTERS,
            cluster::PRINTERS,
            config::PRINTERS,
            network::PRINTERS,
            pods::PRINTERS,
            workloads::PRINTERS,
        ];
        for printer in tables.into_iter().flatten() {
            assert!(registry.by_kind(printer.group, printer.kind).is_some(), "{}/{}", printer.group, printer.kind);
        }
    }

    #[test]
    fn the_status_of_a_pod_is_that_of_its_failing_container() {
        let created = json!({"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"});
        let status = |statuses: Value| {
            json!({"metadata": created, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeName": "n1"},
                "status": {"phase": "Running", "containerStatuses": statuses}})
        };
        check(
            "",
            "pods",
            status(json!([
                {"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}},
                {"name": "b", "ready": false, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"finishedAt": "2026-01-01T00:10:00Z"}}}])),
            &[
                ("Ready", json!("1/2")),
                ("Status", json!("CrashLoopBackOff")),
                ("Restarts", json!("3 (30s ago)")),
                ("Age", json!("10m")),
                ("Node", json!("n1")),
                ("IP", json!("<none>")),
            ],
        );
        let gated = json!({"metadata": created, "spec": {"containers": [{"name": "a"}]}, "status": {"phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}});
        check("", "pods", gated, &[("Status", json!("SchedulingGated")), ("Ready", json!("0/1"))]);
        let done = json!({"metadata": created, "spec": {"containers": [{"name": "a"}]}, "status": {"phase": "Succeeded",
            "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}});
        check("", "pods", done, &[("Status", json!("Completed")), ("Restarts", json!("0"))]);
    }

    #[test]
    fn a_job_shows_its_completions_and_duration() {
        let job = json!({"metadata": {"name": "j", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"completions": 5, "parallelism": 2, "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
            "status": {"succeeded": 5, "startTime": "2026-01-01T00:01:00Z", "completionTime": "2026-01-01T00:02:05Z",
                "conditions": [{"type": "Complete", "status": "True"}]}});
        check(
            "batch",
            "jobs",
            job,
            &[
                ("Status", json!("Complete")),
                ("Completions", json!("5/5")),
                ("Duration", json!("65s")),
                ("Age", json!("10m")),
                ("Images", json!("i:1")),
                ("Selector", json!("a=b")),
            ],
        );
        let suspended = json!({"metadata": {"name": "j"}, "spec": {"parallelism": 3, "suspend": true},
            "status": {"conditions": [{"type": "Suspended", "status": "True"}]}});
        check(
            "batch",
            "jobs",
            suspended,
            &[
                ("Status", json!("Suspended")),
                ("Completions", json!("0/1 of 3")),
                ("Duration", json!("")),
                ("Age", json!("<unknown>")),
            ],
        );
    }

    #[test]
    fn nodes_events_and_services_are_printed_as_by_kube_apiserver() {
        let node = json!({"metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/gpu": ""}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.35.0"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
        check(
            "",
            "nodes",
            node,
            &[
                ("Status", json!("Ready,SchedulingDisabled")),
                ("Roles", json!("gpu,worker")),
                ("Version", json!("v1.35.0")),
                ("Internal-IP", json!("10.0.0.1")),
                ("External-IP", json!("<none>")),
                ("OS-Image", json!("<unknown>")),
            ],
        );
        let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"}, "type": "Normal",
            "reason": "Scheduled", "message": "assigned \n", "eventTime": "2026-01-01T00:10:00.000000Z",
            "reportingComponent": "sched", "reportingInstance": "i"});
        check(
            "",
            "events",
            event,
            &[
                ("Last Seen", json!("30s")),
                ("Object", json!("pod/p")),
                ("Message", json!("assigned")),
                ("Count", json!(1)),
                ("Source", json!("sched, i")),
                ("Name", json!("e")),
            ],
        );
        let service = json!({"metadata": {"name": "s"}, "spec": {"type": "ClusterIP", "clusterIP": "None",
            "ports": [{"port": 80, "protocol": "TCP"}, {"port": 443, "nodePort": 30443}], "selector": {"b": "2", "a": "1"}}});
        check(
            "",
            "services",
            service,
            &[
                ("Cluster-IP", json!("None")),
                ("External-IP", json!("<none>")),
                ("Port(s)", json!("80/TCP,443:30443/TCP")),
                ("Selector", json!("a=1,b=2")),
            ],
        );
    }

    #[test]
    fn columns_that_show_a_field_have_its_description() {
        let registry = Registry::builtin();
        for ((kind, name), (definition, field)) in fields() {
            let (group, kind) = kind.split_once('/').expect("a group and a kind");
            let row = registry.by_kind(group, kind).unwrap_or_else(|| panic!("{group}/{kind} is served"));
            let columns = columns(row, &row.versions[0]);
            let column = columns.iter().find(|column| column.name == *name);
            let description = column.unwrap_or_else(|| panic!("{kind} has no column {name}")).description.as_str();
            assert!(!description.is_empty(), "{definition} has no description of {field}");
        }
        assert_eq!(fields().len(), FIELDS.lines().count());
        let pods = registry.get("", "pods").expect("served");
        let description = |name: &str| {
            let columns = columns(pods, &pods.versions[0]);
            columns.into_iter().find(|column| column.name == name).expect("a column").description
        };
        let age = description("Age");
        assert!(age.ends_with("sig-architecture/api-conventions.md#metadata"), "{age}");
        assert!(description("Name").starts_with("Name must be unique within a namespace."));
        assert!(description("IP").starts_with("podIP address allocated to the pod."));
    }

    #[test]
    fn kinds_without_a_printer_show_their_creation_time() {
        let role = json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        check("rbac.authorization.k8s.io", "roles", role, &[("Created At", json!("2026-01-01T00:00:00Z"))]);
    }
}
