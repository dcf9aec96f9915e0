//! What a log says of an error: what was refused and why, once. The API answers a refused write with the value it refuses,
//! which may be a whole pod template, in its message and again in the causes; and kube's errors show the answer in two forms.

use std::error::Error;

use kube::core::Status;

/// Longest text that is said whole.
const TEXT_MAX: usize = 480;
/// What is kept of the beginning and of the end of a longer one: there stand the field and what is wrong with it.
const END: usize = 200;

/// An error as one short line: each thing it says once, and of long values the beginning and the end.
pub fn brief(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut link = Some(error);
    while let Some(current) = link {
        let said = current.to_string();
        if let Some(status) = status_of(current) {
            let short = of_status(status);
            // Whatever wraps it says what it wraps.
            text = if text.contains(&said) { text.replace(&said, &short) } else { format!("{text}: {short}") };
            break;
        }
        if !text.contains(&said) {
            text = format!("{text}: {said}");
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

fn of_status(status: &Status) -> String {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let what = if status.message.len() > TEXT_MAX && !causes.is_empty() {
        let details = status.details.as_ref();
        let (kind, name) = details.map(|it| (it.kind.as_str(), it.name.as_str())).unwrap_or_default();
        let each = TEXT_MAX / causes.len().min(3);
        let mut said: Vec<String> = causes
            .iter()
            .take(3)
            .map(|cause| format!("{}: {}", cause.field, shortened(&cause.message, each)))
            .collect();
        if causes.len() > said.len() {
            said.push(format!("and {} more", causes.len() - said.len()));
        }
        format!("{kind} {name:?} is refused: {}", said.join("; "))
    } else {
        shortened(&status.message, TEXT_MAX)
    };
    match (what.is_empty(), status.reason.is_empty()) {
        (false, true) => format!("{what} ({})", status.code),
        (false, false) => format!("{what} ({} {})", status.code, status.reason),
        (true, _) => format!("the API answered {} {}", status.code, status.reason),
    }
}

/// The text, or its beginning and end where it is too long.
fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = END.min(max / 2);
    let mut boundaries = text.char_indices().map(|(at, _)| at);
    let head = boundaries.by_ref().take_while(|at| *at <= end).last().unwrap_or(0);
    let tail = boundaries.find(|at| *at >= text.len() - end).unwrap_or(text.len());
    format!("{} [{} bytes left out] {}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;

    /// What kube-apiserver answers to a change of a Job's template.
    fn refused(template: &str) -> Status {
        let why = format!("Invalid value: {template}: field is immutable");
        let status = json!({
            "code": 422, "reason": "Invalid", "message": format!("Job.batch \"train\" is invalid: spec.template: {why}"),
            "details": {"kind": "Job", "group": "batch", "name": "train",
                "causes": [{"reason": "FieldValueInvalid", "message": why, "field": "spec.template"}]},
        });
        serde_json::from_value(status).expect("a status")
    }

    #[test]
    fn a_refusal_is_said_once_and_without_the_object() {
        let template = format!("{{\"Containers\": \"{}\"}}", "ü".repeat(4000));
        let error = kube::Error::Api(Box::new(refused(&template)));
        assert!(error.to_string().len() > 20_000, "kube says the value several times");
        let said = brief(&error);
        assert!(said.len() < 700, "{} bytes: {said}", said.len());
        assert!(said.starts_with("Job \"train\" is refused: spec.template: Invalid value: {\"Containers\""), "{said}");
        assert!(said.ends_with(": field is immutable (422 Invalid)"), "{said}");
        assert_eq!(said.matches("field is immutable").count(), 1, "{said}");
    }

    #[test]
    fn a_short_refusal_is_said_whole_and_in_the_words_of_what_wraps_it() {
        let error = kube::Error::Api(Box::new(refused("1")));
        let whole = "Job.batch \"train\" is invalid: spec.template: Invalid value: 1: field is immutable (422 Invalid)";
        assert_eq!(brief(&error), whole);
        let watched = watcher::Error::InitialListFailed(error);
        assert_eq!(brief(&watched), format!("failed to perform initial object list: {whole}"));
    }

    #[test]
    fn other_errors_say_what_caused_them_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("the file cannot be read")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("no such device"));
        assert_eq!(brief(&error), "the file cannot be read: no such device");
        assert!(brief(&std::io::Error::other("x".repeat(100_000))).len() < 1000);
    }
}
