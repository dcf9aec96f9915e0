//! Answers that readers with the same rights share, until a job or queue changes.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::find::Answer;
use super::question::Question;

/// Maximum number of kept answers: each is at most as large as a page.
const ANSWERS_MAX: usize = 256;

/// What an answer depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Versions of the jobs and of the local queues.
    pub(super) versions: (u64, u64),
    pub(super) question: Question,
    /// The only namespace; empty for all.
    pub(super) only: String,
    /// The namespaces of jobs that the reader may read; `None` if it may read all.
    pub(super) readable: Option<Vec<String>>,
}

/// The answers to the last questions.
#[derive(Default)]
pub(super) struct Shared(Mutex<VecDeque<(Asked, Arc<Answer>)>>);

impl Shared {
    /// The answer to the same question by a reader with the same rights.
    pub(super) fn get(&self, asked: &Asked) -> Option<Arc<Answer>> {
        self.0.lock().iter().find(|(known, _)| known == asked).map(|(_, answer)| answer.clone())
    }

    /// Keeps an answer, and drops those before a change.
    pub(super) fn keep(&self, asked: Asked, answer: Arc<Answer>) {
        let mut answers = self.0.lock();
        answers.retain(|(known, _)| known.versions >= asked.versions);
        if answers.len() >= ANSWERS_MAX {
            answers.pop_front();
        }
        answers.push_back((asked, answer));
    }
}
