//! The ended stays of a journal as entries in memory, so that a report of usage reads no file.

use std::collections::VecDeque;
use std::sync::Arc;

use berth_api::berth::usage::Stay;

use crate::usage::entry::{Entry, Shared};

/// Number of entries that are added, shared and dropped together.
const CHUNK: usize = 4_096;
/// Maximum number of entries in memory, about 100 MB. A journal of the default size has fewer.
pub const ENTRIES_MAX: usize = 1 << 20;

/// Entries in the order in which the stays ended, in parts.
pub type Parts = Vec<Arc<Vec<Entry>>>;

/// The newest ended stays.
#[derive(Debug)]
pub(super) struct Entries {
    shared: Shared,
    parts: VecDeque<Arc<Vec<Entry>>>,
    parts_max: usize,
    /// Last end, in seconds since 1970, of those that were dropped.
    dropped: Option<i64>,
}

impl Default for Entries {
    fn default() -> Self {
        Self { shared: Shared::default(), parts: VecDeque::new(), parts_max: ENTRIES_MAX / CHUNK, dropped: None }
    }
}

impl Entries {
    /// Adds a stay that has ended.
    pub(super) fn add(&mut self, stay: &Stay) {
        let entry = self.shared.entry(stay);
        match self.parts.back_mut().filter(|part| part.len() < CHUNK) {
            // A reader that still has the part keeps its own copy.
            Some(part) => Arc::make_mut(part).push(entry),
            None => {
                let mut part = Vec::with_capacity(CHUNK);
                part.push(entry);
                self.parts.push_back(Arc::new(part));
            }
        }
        if self.parts.len() > self.parts_max
            && let Some(oldest) = self.parts.pop_front()
        {
            self.dropped = self.dropped.max(oldest.iter().filter_map(|entry| entry.ended).max());
            drop(oldest);
            self.shared.tidy();
        }
    }

    /// All entries; `None` if stays that ended at `since` or later were dropped.
    pub(super) fn since(&self, since: i64) -> Option<Parts> {
        let has_all = self.dropped.is_none_or(|dropped| dropped < since);
        has_all.then(|| self.parts.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn stay(second: i64) -> Stay {
        let ended = Some(Time(Timestamp::from_second(second).expect("in range")));
        Stay { uid: second.to_string(), user: "amy".to_owned(), ended, ..Stay::default() }
    }

    #[test]
    fn entries_share_names_and_the_oldest_are_dropped() {
        let mut entries = Entries { parts_max: 2, ..Entries::default() };
        let chunk = i64::try_from(CHUNK).expect("small");
        for second in 0..3 * chunk {
            entries.add(&stay(second));
        }
        let parts = entries.since(chunk).expect("the last two parts");
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 2 * CHUNK);
        assert!(Arc::ptr_eq(&parts[0][0].names, &parts[1][7].names));
        assert!(entries.since(chunk - 1).is_none(), "the last end of the dropped part is missing");
        entries.add(&stay(3 * chunk));
        assert_eq!(parts[1].len(), CHUNK, "a reader's parts do not change");
    }
}
