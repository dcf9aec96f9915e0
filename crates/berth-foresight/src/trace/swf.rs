//! Standard Workload Format, version 2.2: header lines that begin with `;`, then a line of 18
//! numbers per job. -1 means unknown.
//!
//! A job with n processors becomes a job of n pods of one CPU each: they start together, as a
//! parallel job does. The tenant is the group, or the queue if no job has a group, or the user.
//!
//! Source: the definition of the Parallel Workloads Archive.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{ResourceList, Time};

use super::builder::{Builder, seconds};
use super::{Format, Job, ONLY_TENANT, Owner, Problem, Trace};

/// Number of columns.
pub const COLUMNS: usize = 18;

/// Name and meaning of each column, for errors.
const NAMES: [&str; COLUMNS] = [
    "job number",
    "submit time",
    "wait time",
    "run time",
    "number of allocated processors",
    "average CPU time used",
    "used memory",
    "requested number of processors",
    "requested time",
    "requested memory",
    "status",
    "user ID",
    "group ID",
    "executable number",
    "queue number",
    "partition number",
    "preceding job number",
    "think time",
];

/// The columns of a job. `None` is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// 1: number of the job.
    pub job: i64,
    /// 2: seconds from the start of the log to the submission.
    pub submit: f64,
    /// 3: seconds from the submission to the start.
    pub wait: Option<f64>,
    /// 4: seconds of run time.
    pub run: Option<f64>,
    /// 5: allocated processors.
    pub processors_used: Option<i64>,
    /// 6: mean CPU seconds per processor.
    pub cpu_used: Option<f64>,
    /// 7: mean memory per processor in kilobytes.
    pub memory_used: Option<f64>,
    /// 8: requested processors.
    pub processors_asked: Option<i64>,
    /// 9: requested run time in seconds.
    pub time_asked: Option<f64>,
    /// 10: requested memory per processor in kilobytes.
    pub memory_asked: Option<f64>,
    /// 11: status: 0 failed, 1 completed, 2 to 4 a part of a job, 5 cancelled.
    pub status: Option<i64>,
    /// 12: user.
    pub user: Option<i64>,
    /// 13: group.
    pub group: Option<i64>,
    /// 14: executable.
    pub application: Option<i64>,
    /// 15: queue.
    pub queue: Option<i64>,
    /// 16: partition.
    pub partition: Option<i64>,
    /// 17: the job whose end this job waited for before it was submitted.
    pub preceding: Option<i64>,
    /// 18: seconds from the end of the preceding job to the submission.
    pub think: Option<f64>,
}

/// The fields of the header that a replay uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// `UnixStartTime`: second at which the log starts.
    pub start: Option<i64>,
    /// `MaxProcs`, or `MaxNodes` without it: processors of the machine.
    pub processors: Option<i64>,
    /// `Queue` lines: names of the queues by number.
    pub queues: BTreeMap<i64, String>,
    /// `Partition` lines: names of the partitions by number.
    pub partitions: BTreeMap<i64, String>,
}

/// Parses a log.
pub fn parse(text: &str) -> Result<Trace, Problem> {
    let (header, records) = records(text)?;
    let tenancy = Tenancy::of(&records);
    let mut builder = Builder::default();
    for (line, record) in &records {
        let Some(run_time) = record.run.and_then(seconds) else {
            builder.leave_out("run time unknown");
            continue;
        };
        let asked = record.processors_asked.filter(|count| *count > 0);
        let Some(processors) = asked.or(record.processors_used.filter(|count| *count > 0)) else {
            builder.leave_out("number of processors unknown");
            continue;
        };
        let pods = i32::try_from(processors)
            .map_err(|_| Problem::at(*line, format!("{processors} processors are more than a job can have")))?;
        let owner = owner(record, &header, tenancy);
        let job = Job {
            name: Name::from(record.job.to_string()),
            submitted: seconds(record.submit)
                .ok_or_else(|| Problem::at(*line, format!("submit time {} is negative", record.submit)))?,
            run_time,
            waited: record.wait.and_then(seconds),
            limit: record.time_asked.and_then(seconds).filter(|limit| *limit > Duration::ZERO),
            pods,
            requests: builder.requests(ResourceList::from([(Name::from("cpu"), 1000)])),
            priority: 0,
            priority_class: None,
            owner: builder.owner(owner),
        };
        builder.add(*line, job)?;
    }
    let machine = header.processors.map(|count| ResourceList::from([(Name::from("cpu"), count.saturating_mul(1000))]));
    builder.finish(Format::Swf, header.start.map(Time::from_seconds), machine)
}

/// The attribute that separates the tenants of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenancy {
    Group,
    Queue,
    User,
    Nothing,
}

impl Tenancy {
    fn of(records: &[(u64, Record)]) -> Tenancy {
        if records.iter().any(|(_, record)| record.group.is_some()) {
            Tenancy::Group
        } else if records.iter().any(|(_, record)| record.queue.is_some()) {
            Tenancy::Queue
        } else if records.iter().any(|(_, record)| record.user.is_some()) {
            Tenancy::User
        } else {
            Tenancy::Nothing
        }
    }
}

fn owner(record: &Record, header: &Header, tenancy: Tenancy) -> Owner {
    let number = |kind: &str, number: Option<i64>| number.map(|number| Name::from(format!("{kind}-{number}")));
    let named = |kind: &str, number: Option<i64>, names: &BTreeMap<i64, String>| {
        number.map(|it| {
            names.get(&it).map_or_else(|| Name::from(format!("{kind}-{it}")), |name| Name::from(name.as_str()))
        })
    };
    let (user, group) = (number("user", record.user), number("group", record.group));
    let queue = named("queue", record.queue, &header.queues);
    let tenant = match tenancy {
        Tenancy::Group => group.clone(),
        Tenancy::Queue => queue.clone(),
        Tenancy::User => user.clone(),
        Tenancy::Nothing => None,
    };
    Owner {
        tenant: tenant.unwrap_or_else(|| Name::from(ONLY_TENANT)),
        user,
        group,
        queue,
        partition: named("partition", record.partition, &header.partitions),
    }
}

/// The header and the jobs of a log, each with its line.
pub fn records(text: &str) -> Result<(Header, Vec<(u64, Record)>), Problem> {
    let mut header = Header::default();
    let mut nodes = None;
    let mut records = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        if let Some(comment) = content.strip_prefix(';') {
            read_header(&mut header, &mut nodes, comment, line)?;
        } else if !content.is_empty() {
            records.push((line, record(content, line)?));
        }
    }
    header.processors = header.processors.or(nodes).filter(|count| *count > 0);
    Ok((header, records))
}

fn read_header(header: &mut Header, nodes: &mut Option<i64>, comment: &str, line: u64) -> Result<(), Problem> {
    let Some((field, value)) = comment.split_once(':') else { return Ok(()) };
    let (field, value) = (field.trim(), value.trim());
    let number = || {
        // Some logs add a remark behind the number.
        let word = value.split_whitespace().next().unwrap_or_default();
        let parsed = word.parse::<i64>();
        parsed.map_err(|_| Problem::at(line, format!("header field {field} is \"{word}\": expected an integer")))
    };
    let entry = || {
        let (number, name) = value.split_once(char::is_whitespace)?;
        Some((number.parse::<i64>().ok()?, name.split_whitespace().next()?.to_owned()))
    };
    match field {
        "UnixStartTime" => header.start = Some(number()?),
        "MaxProcs" => header.processors = Some(number()?),
        "MaxNodes" => *nodes = Some(number()?),
        "Queue" => header.queues.extend(entry()),
        "Partition" => header.partitions.extend(entry()),
        _ => {}
    }
    Ok(())
}

fn record(content: &str, line: u64) -> Result<Record, Problem> {
    let mut values = [0.0; COLUMNS];
    let mut count = 0;
    for word in content.split_whitespace() {
        let value = word.parse::<f64>().ok().filter(|value| value.is_finite());
        let name = NAMES.get(count).copied().unwrap_or("column");
        let value = value.ok_or_else(|| {
            Problem::at(line, format!("column {} ({name}) is \"{word}\": expected a number", count + 1))
        })?;
        if let Some(place) = values.get_mut(count) {
            *place = value;
        }
        count += 1;
    }
    if count != COLUMNS {
        return Err(Problem::at(line, format!("the line has {count} columns: expected {COLUMNS}")));
    }
    let amount = |column: usize| Some(values[column - 1]).filter(|value| *value >= 0.0);
    let integer = |column: usize| amount(column).map(|value| value as i64);
    Ok(Record {
        job: values[0] as i64,
        submit: values[1],
        wait: amount(3),
        run: amount(4),
        processors_used: integer(5),
        cpu_used: amount(6),
        memory_used: amount(7),
        processors_asked: integer(8),
        time_asked: amount(9),
        memory_asked: amount(10),
        status: integer(11),
        user: integer(12),
        group: integer(13),
        application: integer(14),
        queue: integer(15),
        partition: integer(16),
        preceding: integer(17),
        think: amount(18),
    })
}
