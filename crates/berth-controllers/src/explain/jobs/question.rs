//! The parameters of a request for the current jobs.

use std::str::FromStr;

use berth_api::berth::usage::{Stay, StayState};
use berth_apimachinery::selector::LabelSelector;

use super::queues::Queues;
use super::row::Shape;
use crate::usage::parameter;

/// Default and maximum number of jobs in a response.
const LIMIT_DEFAULT: usize = 100;
pub(super) const LIMIT_MAX: usize = 10_000;
/// Maximum number of jobs to skip.
const OFFSET_MAX: usize = 10_000_000;
/// Maximum number of words of a filter, so that a request cannot cost much.
const WORDS_MAX: usize = 16;

/// What a reader asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Question {
    /// Words that must all occur in the names of the job, in lower case.
    pub(super) words: Vec<String>,
    /// States; all if empty.
    pub(super) states: Vec<StayState>,
    /// Local queue or cluster queue.
    pub(super) queue: Option<String>,
    /// User that created the job.
    pub(super) user: Option<String>,
    /// Labels that the Workload must have.
    pub(super) labels: LabelSelector,
    /// Order of the jobs.
    pub(super) sort: Sort,
    /// True for the reverse order.
    pub(super) descending: bool,
    /// Groups to count.
    pub(super) group: Option<By>,
    /// Value of the group whose jobs are listed; all jobs without it.
    pub(super) value: Option<String>,
    /// Maximum number of jobs in the response.
    pub(super) limit: usize,
    /// Number of jobs to skip.
    pub(super) offset: usize,
}

/// An order of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// By creation.
    #[default]
    Queued,
    /// By namespace and name.
    Name,
    /// By priority.
    Priority,
    /// By number of pods.
    Pods,
    /// By state.
    State,
    /// By cluster queue.
    Queue,
    /// By user.
    User,
}

/// What the groups are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Namespaces.
    Namespace,
    /// Users.
    User,
    /// Cluster queues.
    Queue,
    /// Local queues.
    LocalQueue,
    /// States.
    State,
    /// Reasons.
    Reason,
    /// Values of a label.
    Label(String),
}

impl Question {
    /// Parses a query string.
    ///
    /// # Errors
    /// A parameter is invalid; the text names it and the accepted values.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let some = |name: &str| parameter(query, name).filter(|text| !text.is_empty());
        let words = some("q").unwrap_or_default();
        let words = words.split_whitespace().take(WORDS_MAX).map(str::to_lowercase).collect();
        let states = some("state").unwrap_or_default();
        let states = states.split(',').filter(|text| !text.is_empty());
        let states = states.map(|text| state(text, &StayState::OF_CURRENT)).collect::<Result<_, _>>()?;
        let sort = some("sort").unwrap_or_default();
        let (sort, descending) = match sort.strip_prefix('-') {
            Some(sort) => (sort.to_owned(), true),
            None => (sort, false),
        };
        let number = |name: &str, default: usize, max: usize| match some(name) {
            None => Ok(default),
            Some(text) => text
                .parse::<usize>()
                .map(|number| number.min(max))
                .map_err(|_| format!("{name}: invalid value {text:?}, expected an integer of at least 0")),
        };
        Ok(Question {
            words,
            states,
            queue: some("queue"),
            user: some("user"),
            labels: labels(query)?,
            sort: sort.parse()?,
            descending,
            group: some("group").map(|text| text.parse()).transpose()?,
            // The value may be empty: jobs without a value.
            value: parameter(query, "value"),
            limit: number("limit", LIMIT_DEFAULT, LIMIT_MAX)?,
            offset: number("offset", 0, OFFSET_MAX)?,
        })
    }
}

/// The jobs that a list of stays asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::explain) struct Chosen {
    /// States; all if empty.
    pub(in crate::explain) states: Vec<StayState>,
    /// Local queue or cluster queue.
    pub(in crate::explain) queue: Option<String>,
    /// User that created the job.
    pub(in crate::explain) user: Option<String>,
    /// Labels that the Workload must have.
    pub(in crate::explain) labels: LabelSelector,
}

impl Chosen {
    /// Parses the parameters `state`, `queue`, `user` and `labels` of a query string.
    ///
    /// # Errors
    /// A parameter is invalid; the text names it and the accepted values.
    pub(in crate::explain) fn parse(query: &str) -> Result<Self, String> {
        let some = |name: &str| parameter(query, name).filter(|text| !text.is_empty());
        let states = some("state").unwrap_or_default();
        let states = states.split(',').filter(|text| !text.is_empty());
        let states = states.map(|text| state(text, &StayState::ALL)).collect::<Result<_, _>>()?;
        Ok(Chosen { states, queue: some("queue"), user: some("user"), labels: labels(query)? })
    }

    /// True if it asks for jobs in this state.
    pub(in crate::explain) fn has_state(&self, state: StayState) -> bool {
        self.states.is_empty() || self.states.contains(&state)
    }

    /// True if it asks for this stay.
    pub(in crate::explain) fn has(&self, stay: &Stay) -> bool {
        self.has_state(stay.state)
            && self.user.as_ref().is_none_or(|user| *user == stay.user)
            && self.queue.as_ref().is_none_or(|queue| *queue == stay.queue || *queue == stay.cluster_queue)
            && self.labels.matches(&stay.labels)
    }

    /// True if it asks for jobs of this shape, which may have other labels.
    pub(super) fn has_shape(&self, shape: &Shape, queues: &Queues) -> bool {
        let cluster_queue = || shape.held_in.as_deref().unwrap_or_else(|| queues.of(&shape.namespace, &shape.queue));
        self.has_state(shape.state)
            && self.user.as_ref().is_none_or(|user| **user == *shape.user)
            && self.queue.as_ref().is_none_or(|queue| **queue == *shape.queue || queue == cluster_queue())
    }
}

/// The label selector of a query string.
fn labels(query: &str) -> Result<LabelSelector, String> {
    let text = parameter(query, "labels").unwrap_or_default();
    LabelSelector::parse(text.trim_matches([',', ' '])).map_err(|error| {
        format!("labels: invalid value {text:?}, expected a label selector such as team=a,tier!=test: {error}")
    })
}

fn state(text: &str, accepted: &[StayState]) -> Result<StayState, String> {
    StayState::named(text, accepted).ok_or_else(|| {
        let names: Vec<&str> = accepted.iter().map(|state| state.name()).collect();
        format!("state: invalid value {text:?}, expected one of {}", names.join(", "))
    })
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "" | "queued" => Sort::Queued,
            "name" => Sort::Name,
            "priority" => Sort::Priority,
            "pods" => Sort::Pods,
            "state" => Sort::State,
            "queue" => Sort::Queue,
            "user" => Sort::User,
            other => {
                return Err(format!(
                    "sort: invalid value {other:?}, expected queued, name, priority, pods, state, queue or user, with a \
                     minus for the reverse order"
                ));
            }
        })
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "namespace" => By::Namespace,
            "user" => By::User,
            "queue" => By::Queue,
            "localqueue" => By::LocalQueue,
            "state" => By::State,
            "reason" => By::Reason,
            other => match other.strip_prefix("label:").filter(|key| !key.is_empty()) {
                Some(key) => By::Label(key.to_owned()),
                None => {
                    return Err(format!(
                        "group: invalid value {other:?}, expected namespace, user, queue, localqueue, state, reason or \
                         label:KEY"
                    ));
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_selects_sorts_and_groups() {
        let query = "q=Train+GPU&state=waiting,Running&queue=blue&sort=-priority&group=label%3Ateam&value=&limit=99999";
        let question = Question::parse(query).expect("a question");
        assert_eq!(question.words, ["train", "gpu"]);
        assert_eq!(question.states, [StayState::Waiting, StayState::Running]);
        assert_eq!((question.sort, question.descending), (Sort::Priority, true));
        assert_eq!((question.group, question.value), (Some(By::Label("team".to_owned())), Some(String::new())));
        assert_eq!((question.limit, question.offset), (LIMIT_MAX, 0));
    }

    #[test]
    fn states_of_stays_are_chosen_by_name() {
        let states = |query: &str| Chosen::parse(query).map(|chosen| chosen.states);
        assert_eq!(states("since=x&state=preempted,Running"), Ok(vec![StayState::Preempted, StayState::Running]));
        assert_eq!(states("limit=5"), Ok(Vec::new()));
        let error = states("state=lost").expect_err("no such state");
        assert!(error.starts_with("state: invalid value \"lost\", expected one of Waiting, Held, "), "{error}");
    }

    #[test]
    fn stays_are_chosen_by_their_labels() {
        let chosen = |query: &str| Chosen::parse(query).expect("a choice");
        let labels = [("project".to_owned(), "train".to_owned())];
        let stay = Stay { labels: labels.into(), ..Stay::default() };
        assert!(chosen("").has(&stay) && chosen("labels=project%3Dtrain").has(&stay));
        assert!(!chosen("labels=project%3Deval").has(&stay) && !chosen("labels=%21project").has(&stay));
        let error = Chosen::parse("labels=a%20b").expect_err("no selector");
        assert!(error.starts_with("labels: invalid value \"a b\", expected a label selector such as "), "{error}");
    }

    #[test]
    fn an_invalid_parameter_is_named_with_the_accepted_values() {
        for (query, expected) in [
            ("state=asleep", "state: invalid value \"asleep\", expected one of Waiting, "),
            ("sort=color", "sort: invalid value \"color\", expected queued, "),
            ("group=label:", "group: invalid value \"label:\", expected namespace, "),
            ("labels=team%20is%20a", "labels: invalid value \"team is a\", expected a label selector such as "),
            ("limit=-1", "limit: invalid value \"-1\", expected an integer"),
        ] {
            let error = Question::parse(query).expect_err(query);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
