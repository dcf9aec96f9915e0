//! Notifications about pods whose state has changed.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use berth_pod_runtime::PodUid;
use futures::stream::{BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The subscribers. Each has the set of pods that changed since its last read. A slow reader
/// therefore needs no more memory than there are pods, and it misses no pod's last change.
#[derive(Default)]
pub(super) struct Changes(Mutex<Vec<Weak<Subscriber>>>);

#[derive(Default)]
struct Subscriber {
    changed: Mutex<BTreeSet<PodUid>>,
    notify: Notify,
}

impl Changes {
    pub fn notify(&self, pod: &PodUid) {
        self.0.lock().retain(|subscriber| {
            let Some(subscriber) = subscriber.upgrade() else { return false };
            subscriber.changed.lock().insert(pod.clone());
            subscriber.notify.notify_one();
            true
        });
    }

    pub fn subscribe(&self) -> BoxStream<'static, PodUid> {
        let subscriber = Arc::new(Subscriber::default());
        self.0.lock().push(Arc::downgrade(&subscriber));
        futures::stream::unfold(subscriber, |subscriber| async move {
            loop {
                let next = subscriber.changed.lock().pop_first();
                match next {
                    Some(pod) => return Some((pod, subscriber)),
                    None => subscriber.notify.notified().await,
                }
            }
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_reader_gets_each_changed_pod_once() {
        let changes = Changes::default();
        let mut stream = changes.subscribe();
        let uid = |text: &str| PodUid(text.to_owned());
        for pod in ["b", "a", "b"] {
            changes.notify(&uid(pod));
        }
        assert_eq!(stream.next().await, Some(uid("a")));
        assert_eq!(stream.next().await, Some(uid("b")));
        changes.notify(&uid("a"));
        assert_eq!(stream.next().await, Some(uid("a")));
    }
}
