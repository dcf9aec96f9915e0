//! Printers of Jobs and CronJobs.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{
    NONE, age, containers, count, either_or, has_condition, is_being_deleted, moment, number, selector, since, span,
    text, text_or,
};
use super::{AGE, Printer, printer};

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "batch",
        "Job",
        &[
            ("Status", "string", 0),
            ("Completions", "string", 0),
            ("Duration", "string", 0),
            AGE,
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        job,
    ),
    printer(
        "batch",
        "CronJob",
        &[
            ("Schedule", "string", 0),
            ("Timezone", "string", 0),
            ("Suspend", "boolean", 0),
            ("Active", "integer", 0),
            ("Last Schedule", "string", 0),
            AGE,
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        cron_job,
    ),
];

fn job(object: &Value, now: Timestamp) -> Vec<Value> {
    let succeeded = number(object, "/status/succeeded");
    let completions = match (object.pointer("/spec/completions"), number(object, "/spec/parallelism")) {
        (Some(Value::Number(wanted)), _) => format!("{succeeded}/{wanted}"),
        (_, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        _ => format!("{succeeded}/1"),
    };
    let duration = match (moment(object, "/status/startTime"), moment(object, "/status/completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => span(start, end.unwrap_or(now)),
    };
    let (names, images) = containers(object, "/spec/template/spec");
    vec![
        job_status(object).into(),
        completions.into(),
        duration.into(),
        age(object, now),
        names.into(),
        images.into(),
        selector(object.pointer("/spec/selector")).into(),
    ]
}

fn job_status(object: &Value) -> &'static str {
    let has = |kind: &str| has_condition(object, kind);
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if is_being_deleted(object) {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let last = match text(object, "/status/lastScheduleTime") {
        "" => NONE.to_owned(),
        _ => since(object, "/status/lastScheduleTime", now),
    };
    let (names, images) = containers(object, "/spec/jobTemplate/spec/template/spec");
    let suspended = either_or(object, "/spec/suspend", "<unset>");
    let shown = match suspended.as_str() {
        "true" => "True",
        "false" => "False",
        other => other,
    };
    vec![
        text(object, "/spec/schedule").into(),
        text_or(object, "/spec/timeZone", NONE).into(),
        json!(shown),
        count(object, "/status/active").into(),
        last.into(),
        age(object, now),
        names.into(),
        images.into(),
        selector(object.pointer("/spec/jobTemplate/spec/selector")).into(),
    ]
}
