//! Berth's own trace format: a CSV file with a header line, columns in any order.
//!
//! | column | unit | |
//! |---|---|---|
//! | `submit` | seconds from the start of the trace, or a time such as `2026-01-31T12:00:00Z` | required |
//! | `run` | seconds | required; empty: the job is left out |
//! | `job` | name | default: number of the row |
//! | `wait` | seconds from the submission to the start | |
//! | `limit` | seconds: the declared maximum run time | |
//! | `pods` | number of equal pods that start together | default 1 |
//! | `request:RESOURCE` | quantity per pod, such as `request:cpu`, `request:nvidia.com/gpu` | at least one |
//! | `tenant`, `user`, `group`, `queue`, `partition` | names | `tenant` defaults to group, queue, user |
//! | `priority` | integer | default 0 |
//! | `priority_class` | name of a WorkloadPriorityClass | |

use std::time::Duration;

use berth_apimachinery::quantity::Quantity;
use berth_controllers::translate::amounts;
use berth_engine::Name;
use berth_engine::model::{ResourceList, Time};

use super::builder::Builder;
use super::table::{Row, Table};
use super::{Format, Job, ONLY_TENANT, Owner, Problem, Trace};

const COLUMNS: [&str; 14] = [
    "submit",
    "run",
    "job",
    "wait",
    "limit",
    "pods",
    "tenant",
    "user",
    "group",
    "queue",
    "partition",
    "priority",
    "priority_class",
    "request:RESOURCE",
];

/// Parses the file.
pub fn parse(text: &str) -> Result<Trace, Problem> {
    let table = Table::read(text, &["submit", "run"])?;
    let resources: Vec<&str> = table.header.iter().filter_map(|column| column.strip_prefix("request:")).collect();
    let unknown = table.header.iter().find(|it| !it.starts_with("request:") && !COLUMNS.contains(&it.as_str()));
    if let Some(unknown) = unknown {
        return Err(Problem::at(1, format!("column {unknown} is unknown: expected {}", COLUMNS.join(", "))));
    }
    if resources.is_empty() {
        return Err(Problem::at(1, "a column request:RESOURCE is missing, such as request:cpu"));
    }
    let (start, submissions) = submissions(&table)?;
    let mut builder = Builder::default();
    for (number, (row, submitted)) in (1..).zip(table.rows().zip(submissions)) {
        let name = row.text("job").map_or_else(|| number.to_string(), str::to_owned);
        let Some(run_time) = row.seconds("run")? else {
            builder.leave_out("run time unknown");
            continue;
        };
        let pods = row.value::<i32>("pods", "an integer of at least 1")?.unwrap_or(1);
        if pods < 1 {
            return Err(row.problem(format!("pods is {pods}: expected an integer of at least 1")));
        }
        let requests = requests(row, &resources)?;
        let job = Job {
            name: Name::from(name),
            submitted,
            run_time,
            waited: row.seconds("wait")?,
            limit: row.seconds("limit")?,
            pods,
            requests: builder.requests(requests),
            priority: row.value("priority", "an integer")?.unwrap_or(0),
            priority_class: row.text("priority_class").map(|name| builder.name(name)),
            owner: owner(row, &mut builder),
        };
        builder.add(row.line(), job)?;
    }
    builder.finish(Format::Csv, start, None)
}

/// The submission of each row, and the instant from which it is counted.
fn submissions(table: &Table) -> Result<(Option<Time>, Vec<Duration>), Problem> {
    const EXPECTED: &str = "seconds, not negative, or a time such as 2026-01-31T12:00:00Z";
    let mut instants = Vec::new();
    let mut seconds = Vec::new();
    for row in table.rows() {
        let text = row.text("submit").unwrap_or_default();
        let wrong = || row.problem(format!("submit is \"{text}\": expected {EXPECTED}"));
        if let Ok(value) = text.parse::<f64>() {
            seconds.push(super::builder::seconds(value).ok_or_else(wrong)?);
        } else {
            let at = berth_apimachinery::times::parse_time(text).map_err(|_| wrong())?;
            instants.push(Time(i64::try_from(at.as_nanosecond()).map_err(|_| wrong())?));
        }
        if !instants.is_empty() && !seconds.is_empty() {
            return Err(row.problem("submit mixes seconds and times: use one of them in the whole file"));
        }
    }
    match instants.iter().copied().min() {
        Some(start) => Ok((Some(start), instants.into_iter().map(|at| start.until(at)).collect())),
        None => Ok((None, seconds)),
    }
}

fn requests(row: Row<'_>, resources: &[&str]) -> Result<ResourceList, Problem> {
    let mut requests = ResourceList::new();
    for resource in resources {
        let column = format!("request:{resource}");
        let Some(text) = row.text(&column) else { continue };
        let quantity = Quantity::parse(text)
            .map_err(|_| row.problem(format!("{column} is \"{text}\": expected a quantity such as 2, 500m or 4Gi")))?;
        let amount = amounts::request(resource, &quantity);
        if amount < 0 {
            return Err(row.problem(format!("{column} is \"{text}\": expected a quantity of at least 0")));
        }
        if amount > 0 {
            requests.insert(Name::from(*resource), amount);
        }
    }
    if requests.is_empty() {
        return Err(row.problem("the job requests nothing: at least one request:RESOURCE must be above 0"));
    }
    Ok(requests)
}

fn owner(row: Row<'_>, builder: &mut Builder) -> std::sync::Arc<Owner> {
    let mut name = |column: &str| row.text(column).map(|text| builder.name(text));
    let (user, group, queue) = (name("user"), name("group"), name("queue"));
    let (tenant, partition) = (name("tenant"), name("partition"));
    let tenant = tenant.or_else(|| group.clone()).or_else(|| queue.clone()).or_else(|| user.clone());
    let tenant = tenant.unwrap_or_else(|| Name::from(ONLY_TENANT));
    builder.owner(Owner { tenant, user, group, queue, partition })
}
