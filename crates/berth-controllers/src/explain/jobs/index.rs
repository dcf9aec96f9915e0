//! The rows of all jobs, kept up to date with each change: jobs with the same [`Shape`] are
//! together, in the order of their creation. A question about shapes costs the number of shapes,
//! and a page the rows that it shows. Only words that no shape has, and labels, need the rows
//! themselves.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use berth_api::berth::usage::{Stay, StayState};
use berth_apimachinery::selector::LabelSelector;
use berth_runtime::{ObjectKey, Rows};

use super::row::{Own, Row, Shape};

/// The place of a job among those of its shape: creation in seconds since 1970, and key.
pub(super) type Place = (i64, Arc<ObjectKey>);

/// The rows of one shape.
pub(super) type Members = BTreeMap<Place, Own>;

/// The rows.
#[derive(Default)]
pub(crate) struct Index {
    /// Number of changes so far.
    version: u64,
    places: HashMap<Arc<ObjectKey>, (Arc<Shape>, i64)>,
    shapes: BTreeMap<Arc<Shape>, Members>,
    /// Number of jobs per namespace.
    namespaces: BTreeMap<Arc<str>, usize>,
}

impl Rows<Row> for Index {
    fn put(&mut self, key: &Arc<ObjectKey>, row: Row) {
        self.take(key);
        let known = self.shapes.get_key_value(&row.shape).map(|(known, _)| known.clone());
        let shape = known.unwrap_or_else(|| Arc::new(row.shape));
        *self.namespaces.entry(shape.namespace.clone()).or_default() += 1;
        self.places.insert(key.clone(), (shape.clone(), row.created));
        self.shapes.entry(shape).or_default().insert((row.created, key.clone()), row.own);
    }

    fn take(&mut self, key: &Arc<ObjectKey>) {
        self.version += 1;
        let Some((shape, created)) = self.places.remove(key) else { return };
        if let Some(count) = self.namespaces.get_mut(&shape.namespace) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(&shape.namespace);
            }
        }
        if let Some(members) = self.shapes.get_mut(&shape) {
            members.remove(&(created, key.clone()));
            if members.is_empty() {
                self.shapes.remove(&shape);
            }
        }
    }
}

impl Index {
    /// A number that every change increases.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Number of jobs.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The namespaces of the jobs; only `only` unless it is empty.
    pub(crate) fn namespaces(&self, only: &str) -> Vec<String> {
        self.namespaces.keys().filter(|it| only.is_empty() || ***it == *only).map(|it| it.to_string()).collect()
    }

    /// Shapes and their rows, ordered by namespace; only those of `only` unless it is empty.
    pub(super) fn shapes<'a>(&'a self, only: &'a str) -> impl Iterator<Item = (&'a Shape, &'a Members)> {
        let of_namespace = move |shape: &Shape| only.is_empty() || *shape.namespace == *only;
        self.shapes.iter().filter(move |(shape, _)| of_namespace(shape)).map(|(shape, members)| (&**shape, members))
    }

    /// The stays of running jobs of a namespace, or of all if it is empty.
    pub(crate) fn running<'a>(&'a self, only: &'a str) -> impl Iterator<Item = &'a Stay> {
        let running = self.shapes(only).filter(|(shape, _)| shape.state == StayState::Running);
        running.flat_map(|(_, members)| members.values()).filter_map(|own| own.running.as_deref())
    }

    /// The number of jobs per namespace that are in one of the states and were created before a
    /// second.
    pub(crate) fn count(&self, only: &str, states: &[StayState], before: i64) -> BTreeMap<String, u64> {
        self.count_of(only, &|shape| states.contains(&shape.state), &LabelSelector::default(), before)
    }

    /// Like [`Index::count`], of the wanted shapes and labels.
    pub(super) fn count_of(
        &self,
        only: &str,
        is_wanted: &dyn Fn(&Shape) -> bool,
        labels: &LabelSelector,
        before: i64,
    ) -> BTreeMap<String, u64> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for (shape, members) in self.shapes(only).filter(|(shape, _)| is_wanted(shape)) {
            let count = if labels.is_empty() {
                // Usually all, so those created later are counted.
                members.len() - members.keys().rev().take_while(|(created, _)| *created >= before).count()
            } else {
                members.iter().filter(|((created, _), own)| *created < before && labels.matches(*own)).count()
            };
            *counts.entry(shape.namespace.to_string()).or_default() += count as u64;
        }
        counts
    }

    /// The keys of at most `limit` jobs per namespace of the wanted shapes and labels, the newest
    /// ones.
    pub(super) fn newest(
        &self,
        only: &str,
        is_wanted: &dyn Fn(&Shape) -> bool,
        labels: &LabelSelector,
        limit: usize,
    ) -> Vec<Arc<ObjectKey>> {
        let mut by_namespace: BTreeMap<&str, Vec<&Place>> = BTreeMap::new();
        for (shape, members) in self.shapes(only).filter(|(shape, _)| is_wanted(shape)) {
            let newest = members.iter().rev().filter(|(_, own)| labels.matches(*own)).map(|(place, _)| place);
            by_namespace.entry(&*shape.namespace).or_default().extend(newest.take(limit));
        }
        let mut found = Vec::new();
        for mut places in by_namespace.into_values() {
            places.sort_unstable_by(|a, b| b.cmp(a));
            found.extend(places.into_iter().take(limit).map(|(_, key)| key.clone()));
        }
        found
    }
}
