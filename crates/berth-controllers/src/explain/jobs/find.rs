//! Answers a question about the jobs from the index, within the rights of a reader.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use berth_api::berth::current_jobs::JobGroup;
use berth_api::berth::usage::StayState;
use berth_apimachinery::selector::Labels;
use berth_runtime::ObjectKey;

use super::index::{Index, Members, Place};
use super::question::{By, Question, Sort};
use super::queues::Queues;
use super::row::{Own, Shape};

/// The jobs that match.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Their number.
    pub(super) total: usize,
    /// Their number per state, regardless of the states of the question.
    pub(super) states: BTreeMap<String, usize>,
    /// The groups, the largest first.
    pub(super) groups: Vec<JobGroup>,
    /// The jobs of the page.
    pub(super) page: Vec<Arc<ObjectKey>>,
    /// Jobs of namespaces that the reader may not read.
    pub(super) withheld: u64,
}

/// The matching rows of one shape.
struct Section<'a> {
    shape: &'a Shape,
    /// Its cluster queue.
    queue: &'a str,
    rows: Matches<'a>,
}

enum Matches<'a> {
    All(&'a Members),
    Some(Vec<(&'a Place, &'a Own)>),
}

impl<'a> Matches<'a> {
    fn len(&self) -> usize {
        match self {
            Matches::All(members) => members.len(),
            Matches::Some(rows) => rows.len(),
        }
    }

    fn iter(&self) -> Box<dyn Iterator<Item = (&'a Place, &'a Own)> + '_> {
        match self {
            Matches::All(members) => Box::new(members.iter()),
            Matches::Some(rows) => Box::new(rows.iter().copied()),
        }
    }

    fn places(&self, descending: bool) -> Box<dyn Iterator<Item = &'a Place> + '_> {
        match (self, descending) {
            (Matches::All(members), false) => Box::new(members.keys()),
            (Matches::All(members), true) => Box::new(members.keys().rev()),
            (Matches::Some(rows), false) => Box::new(rows.iter().map(|(place, _)| *place)),
            (Matches::Some(rows), true) => Box::new(rows.iter().rev().map(|(place, _)| *place)),
        }
    }
}

/// The answer for a reader that may read the jobs of some namespaces; `only` is empty for all.
pub(super) fn find(
    index: &Index,
    question: &Question,
    only: &str,
    queues: &Queues,
    may_read: &dyn Fn(&str) -> bool,
) -> Answer {
    let mut answer = Answer::default();
    let mut groups: HashMap<&str, JobGroup> = HashMap::new();
    let mut sections: Vec<Section<'_>> = Vec::new();
    // Shapes are ordered by namespace: the right of the one before is known.
    let mut last: Option<(&str, bool)> = None;
    for (shape, members) in index.shapes(only) {
        let namespace = &*shape.namespace;
        let readable = match last {
            Some((known, readable)) if known == namespace => readable,
            _ => may_read(namespace),
        };
        last = Some((namespace, readable));
        if !readable {
            answer.withheld += members.len() as u64;
            continue;
        }
        let queue = shape.held_in.as_deref().unwrap_or_else(|| queues.of(namespace, &shape.queue));
        let Some(section) = section(shape, queue, members, question) else { continue };
        *answer.states.entry(shape.state.name().to_owned()).or_default() += section.rows.len();
        if !question.states.is_empty() && !question.states.contains(&shape.state) {
            continue;
        }
        if let Some(section) = grouped(section, question, &mut groups) {
            answer.total += section.rows.len();
            sections.push(section);
        }
    }
    answer.groups = groups.into_iter().map(|(value, group)| JobGroup { value: value.to_owned(), ..group }).collect();
    answer.groups.sort_by(|a, b| b.jobs.cmp(&a.jobs).then_with(|| a.value.cmp(&b.value)));
    answer.page = page(sections, question, answer.total);
    answer
}

/// The rows of a shape that match the filters, except that of states; `None` if there are none.
fn section<'a>(shape: &'a Shape, queue: &'a str, members: &'a Members, question: &Question) -> Option<Section<'a>> {
    let of_shape = question.queue.as_ref().is_none_or(|it| it == queue || **it == *shape.queue)
        && question.user.as_ref().is_none_or(|user| **user == *shape.user);
    if !of_shape {
        return None;
    }
    // Names of objects are in lower case; those of users need not be.
    let user = if question.words.is_empty() { String::new() } else { shape.user.to_lowercase() };
    let shared = [&*shape.namespace, &*shape.queue, queue, user.as_str()];
    let words: Vec<&str> = question.words.iter().map(String::as_str).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !shared.iter().any(|it| it.contains(word))).collect();
    if words.is_empty() && question.labels.is_empty() {
        return Some(Section { shape, queue, rows: Matches::All(members) });
    }
    let matches = |((_, key), own): &(&Place, &Own)| {
        words.iter().all(|word| key.name.contains(word) || own.job.contains(word)) && question.labels.matches(*own)
    };
    let rows: Vec<_> = members.iter().filter(matches).collect();
    (!rows.is_empty()).then_some(Section { shape, queue, rows: Matches::Some(rows) })
}

/// Adds a section to the groups. Returns its rows of the listed group, if any.
fn grouped<'a>(
    section: Section<'a>,
    question: &Question,
    groups: &mut HashMap<&'a str, JobGroup>,
) -> Option<Section<'a>> {
    let Some(by) = &question.group else { return Some(section) };
    let mut add = |value: &'a str, jobs: usize| {
        let group = groups.entry(value).or_default();
        group.jobs += jobs;
        group.waiting += if section.shape.state == StayState::Waiting { jobs } else { 0 };
        group.running += if section.shape.state == StayState::Running { jobs } else { 0 };
        group.pods += i64::from(section.shape.pods) * i64::try_from(jobs).unwrap_or(i64::MAX);
    };
    let value = match by {
        By::Namespace => &*section.shape.namespace,
        By::User => &*section.shape.user,
        By::Queue => section.queue,
        By::LocalQueue => &*section.shape.queue,
        By::State => section.shape.state.name(),
        By::Reason => &*section.shape.reason,
        By::Label(key) => {
            let mut listed = Vec::new();
            for (place, own) in section.rows.iter() {
                let value = own.label(key).unwrap_or_default();
                add(value, 1);
                if question.value.as_ref().is_none_or(|wanted| wanted == value) {
                    listed.push((place, own));
                }
            }
            return (!listed.is_empty()).then_some(Section { rows: Matches::Some(listed), ..section });
        }
    };
    add(value, section.rows.len());
    question.value.as_ref().is_none_or(|wanted| wanted == value).then_some(section)
}

/// The keys of the asked part of the rows, in order.
fn page(mut sections: Vec<Section<'_>>, question: &Question, total: usize) -> Vec<Arc<ObjectKey>> {
    if question.offset >= total || question.limit == 0 {
        return Vec::new();
    }
    if question.sort == Sort::Name {
        return by_name(&sections, question);
    }
    let order = |a: &Section<'_>, b: &Section<'_>| {
        let order = rank(a, b, question.sort);
        if question.descending { order.reverse() } else { order }
    };
    sections.sort_by(order);
    let (mut skip, mut page) = (question.offset, Vec::new());
    for part in sections.chunk_by(|a, b| rank(a, b, question.sort).is_eq()) {
        let count: usize = part.iter().map(|section| section.rows.len()).sum();
        if skip >= count {
            skip -= count;
            continue;
        }
        let limit = question.limit - page.len();
        page.extend(merged(part, question.descending).skip(skip).take(limit).map(|(_, key)| key.clone()));
        skip = 0;
        if page.len() >= question.limit {
            break;
        }
    }
    page
}

/// The order of sections, before the order by creation.
fn rank(a: &Section<'_>, b: &Section<'_>, sort: Sort) -> Ordering {
    match sort {
        Sort::Queued | Sort::Name => Ordering::Equal,
        Sort::Priority => a.shape.priority.cmp(&b.shape.priority),
        Sort::Pods => a.shape.pods.cmp(&b.shape.pods),
        Sort::State => a.shape.state.cmp(&b.shape.state),
        Sort::Queue => a.queue.cmp(b.queue),
        Sort::User => a.shape.user.cmp(&b.shape.user),
    }
}

/// A part of the rows by key. Only the part before its end is sorted.
fn by_name(sections: &[Section<'_>], question: &Question) -> Vec<Arc<ObjectKey>> {
    let rows = sections.iter().flat_map(|section| section.rows.places(false));
    let mut keys: Vec<&Arc<ObjectKey>> = rows.map(|(_, key)| key).collect();
    let order = |a: &&Arc<ObjectKey>, b: &&Arc<ObjectKey>| if question.descending { b.cmp(a) } else { a.cmp(b) };
    let end = question.offset.saturating_add(question.limit).min(keys.len());
    if end < keys.len() {
        keys.select_nth_unstable_by(end, order);
        keys.truncate(end);
    }
    keys.sort_unstable_by(order);
    keys.into_iter().skip(question.offset).cloned().collect()
}

/// The next row of a section.
struct Head<'a, I> {
    place: &'a Place,
    descending: bool,
    rest: I,
}

impl<I> Ord for Head<'_, I> {
    /// The largest one is the next of the merged rows.
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.place.cmp(other.place);
        if self.descending { order } else { order.reverse() }
    }
}

impl<I> PartialOrd for Head<'_, I> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<I> PartialEq for Head<'_, I> {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl<I> Eq for Head<'_, I> {}

/// The rows of several sections by creation.
fn merged<'a>(sections: &'a [Section<'_>], descending: bool) -> impl Iterator<Item = &'a Place> {
    let mut heads = BinaryHeap::new();
    for section in sections {
        let mut rest = section.rows.places(descending);
        if let Some(place) = rest.next() {
            heads.push(Head { place, descending, rest });
        }
    }
    std::iter::from_fn(move || {
        let Head { place, mut rest, .. } = heads.pop()?;
        if let Some(next) = rest.next() {
            heads.push(Head { place: next, descending, rest });
        }
        Some(place)
    })
}
