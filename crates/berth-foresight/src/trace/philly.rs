//! The per-job extract of Microsoft's Philly trace: `timestamp,duration,num_gpus,gpu_time,cluster`.
//!
//! The timestamp is a local date and time without a zone, read as UTC; it is the submission. The
//! virtual cluster is the tenant. A job with up to eight GPUs is one pod, a larger one has a pod
//! per eight GPUs: the machines of Philly have eight.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{ResourceList, Time};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::builder::Builder;
use super::table::{Row, Table};
use super::{Format, Job, Owner, Problem, Trace};

/// GPUs of one machine.
const GPUS_PER_NODE: i64 = 8;
/// The resource of GPUs.
pub const GPU: &str = "nvidia.com/gpu";

/// Parses the file.
pub fn parse(text: &str) -> Result<Trace, Problem> {
    let table = Table::read(text, &["timestamp", "duration", "num_gpus", "cluster"])?;
    let instants = table.rows().map(instant).collect::<Result<Vec<i64>, Problem>>()?;
    let start = instants.iter().copied().min().unwrap_or(0);
    let mut builder = Builder::default();
    for (number, (row, at)) in (1..).zip(table.rows().zip(&instants)) {
        let gpus: i64 = row.required("num_gpus", "a number of GPUs")?;
        let run_time = row.seconds("duration")?;
        let Some(run_time) = run_time.filter(|_| gpus > 0) else {
            builder.leave_out(if gpus > 0 { "run time unknown" } else { "no GPU" });
            continue;
        };
        let (pods, requests) = pods(row, gpus, &mut builder)?;
        let tenant: String = row.required("cluster", "the name of a virtual cluster")?;
        let tenant = builder.name(&tenant);
        let job = Job {
            name: Name::from(number.to_string()),
            submitted: Duration::from_secs(u64::try_from(at - start).unwrap_or(0)),
            run_time,
            waited: None,
            limit: None,
            pods,
            requests,
            priority: 0,
            priority_class: None,
            owner: builder.owner(Owner {
                queue: Some(tenant.clone()),
                tenant,
                user: None,
                group: None,
                partition: None,
            }),
        };
        builder.add(row.line(), job)?;
    }
    builder.finish(Format::Philly, Some(Time::from_seconds(start)), None)
}

fn pods(row: Row<'_>, gpus: i64, builder: &mut Builder) -> Result<(i32, Arc<ResourceList>), Problem> {
    let nodes = gpus.div_euclid(GPUS_PER_NODE) + i64::from(gpus % GPUS_PER_NODE != 0);
    let pods = if gpus % nodes == 0 { nodes } else { gpus };
    let count = i32::try_from(pods).map_err(|_| row.problem(format!("{gpus} GPUs are more than a job can have")))?;
    Ok((count, builder.requests(ResourceList::from([(Name::from(GPU), gpus / pods)]))))
}

/// The second of a row's timestamp, read as UTC.
fn instant(row: Row<'_>) -> Result<i64, Problem> {
    let text = row.text("timestamp").unwrap_or_default();
    let wrong = || row.problem(format!("timestamp is \"{text}\": expected a time such as 2017-10-09 07:01:55"));
    let date = DateTime::strptime("%Y-%m-%d %H:%M:%S", text).map_err(|_| wrong())?;
    Ok(TimeZone::UTC.to_timestamp(date).map_err(|_| wrong())?.as_second())
}
