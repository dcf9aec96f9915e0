//! Short texts of errors for logs: what was rejected and why, once. When the API rejects a write,
//! its message repeats the rejected value, which may be a whole pod template, and its causes repeat
//! it again. kube's errors contain the status in two forms.

use std::error::Error;

use kube::core::Status;

/// Maximum length of a text that is not shortened, in bytes.
const TEXT_MAX: usize = 480;
/// Length that is kept at both ends of a longer text, in bytes. The field is at the beginning and
/// the problem at the end.
const END_LENGTH: usize = 200;

/// Returns an error as one short line: each statement once, and of long values only the beginning
/// and the end.
pub fn brief(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut link = Some(error);
    while let Some(current) = link {
        let current_text = current.to_string();
        if let Some(status) = status_of(current) {
            let short = of_status(status);
            // Wrapping errors usually repeat the text of their source.
            text = if text.contains(&current_text) {
                text.replace(&current_text, &short)
            } else {
                format!("{text}: {short}")
            };
            break;
        }
        if !text.contains(&current_text) {
            text = format!("{text}: {current_text}");
        }
        link = current.source();
    }
    shortened(&text, TEXT_MAX * 2)
}

fn status_of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status),
        _ => error.downcast_ref::<Status>().or_else(|| error.downcast_ref::<Box<Status>>().map(AsRef::as_ref)),
    }
}

/// Returns the text of an API status. A long message is replaced by its shortened causes.
fn of_status(status: &Status) -> String {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let summary = if status.message.len() > TEXT_MAX && !causes.is_empty() {
        let details = status.details.as_ref();
        let (kind, name) = details.map(|it| (it.kind.as_str(), it.name.as_str())).unwrap_or_default();
        let each = TEXT_MAX / causes.len().min(3);
        let mut shown: Vec<String> = causes
            .iter()
            .take(3)
            .map(|cause| format!("{}: {}", cause.field, shortened(&cause.message, each)))
            .collect();
        if causes.len() > shown.len() {
            shown.push(format!("and {} more", causes.len() - shown.len()));
        }
        format!("{kind} {name:?} is rejected: {}", shown.join("; "))
    } else {
        shortened(&status.message, TEXT_MAX)
    };
    match (summary.is_empty(), status.reason.is_empty()) {
        (false, true) => format!("{summary} ({})", status.code),
        (false, false) => format!("{summary} ({} {})", status.code, status.reason),
        (true, _) => format!("the API returned {} {}", status.code, status.reason),
    }
}

/// Returns the text, or its beginning and end if it is longer than `max`.
fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = END_LENGTH.min(max / 2);
    let mut boundaries = text.char_indices().map(|(at, _)| at);
    let head = boundaries.by_ref().take_while(|at| *at <= end).last().unwrap_or(0);
    let tail = boundaries.find(|at| *at >= text.len() - end).unwrap_or(text.len());
    format!("{} [{} bytes omitted] {}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;

    /// Returns the status of kube-apiserver for a change to a Job's template.
    fn rejected(template: &str) -> Status {
        let why = format!("Invalid value: {template}: field is immutable");
        let status = json!({
            "code": 422, "reason": "Invalid", "message": format!("Job.batch \"train\" is invalid: spec.template: {why}"),
            "details": {"kind": "Job", "group": "batch", "name": "train",
                "causes": [{"reason": "FieldValueInvalid", "message": why, "field": "spec.template"}]},
        });
        serde_json::from_value(status).expect("a status")
    }

    #[test]
    fn a_rejection_is_logged_once_and_without_the_object() {
        let template = format!("{{\"Containers\": \"{}\"}}", "ü".repeat(4000));
        let error = kube::Error::Api(Box::new(rejected(&template)));
        assert!(error.to_string().len() > 20_000, "kube repeats the value");
        let text = brief(&error);
        assert!(text.len() < 700, "{} bytes: {text}", text.len());
        assert!(text.starts_with("Job \"train\" is rejected: spec.template: Invalid value: {\"Containers\""), "{text}");
        assert!(text.ends_with(": field is immutable (422 Invalid)"), "{text}");
        assert_eq!(text.matches("field is immutable").count(), 1, "{text}");
    }

    #[test]
    fn a_short_rejection_is_logged_in_full_with_the_text_of_the_wrapping_error() {
        let error = kube::Error::Api(Box::new(rejected("1")));
        let full = "Job.batch \"train\" is invalid: spec.template: Invalid value: 1: field is immutable (422 Invalid)";
        assert_eq!(brief(&error), full);
        let watched = watcher::Error::InitialListFailed(error);
        assert_eq!(brief(&watched), format!("failed to perform initial object list: {full}"));
    }

    #[test]
    fn other_errors_contain_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("the file cannot be read")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("no such device"));
        assert_eq!(brief(&error), "the file cannot be read: no such device");
        assert!(brief(&std::io::Error::other("x".repeat(100_000))).len() < 1000);
    }
}
