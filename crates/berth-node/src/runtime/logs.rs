//! Container logs as streams.

use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{ContainerId, LogQuery, LogStream, Result, RuntimeError};
use bytes::Bytes;
use futures::stream::StreamExt;

use super::pod::Pod;
use crate::log::{Follow, read};

/// Interval at which a followed log is read again after its current end was reached.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

struct State {
    follow: Option<Follow>,
    pod: Arc<Pod>,
    id: ContainerId,
    is_following: bool,
}

/// Opens a log.
pub(super) async fn open(pod: Arc<Pod>, id: ContainerId, query: LogQuery) -> Result<LogStream> {
    let path = pod.folder.log(&id);
    if !path.exists() {
        return Err(RuntimeError::NotFound(format!("container {id} has no log: it was not started")));
    }
    let is_following = query.follow;
    let follow = blocking(move || read(&path, query))
        .await
        .map_err(|error| RuntimeError::Internal(format!("log of container {id}: {error}")))?;
    let state = State { follow: Some(follow), pod, id, is_following };
    Ok(futures::stream::unfold(state, next).boxed())
}

async fn next(mut state: State) -> Option<(std::io::Result<Bytes>, State)> {
    loop {
        // First check whether the container has ended, so that the following read is complete.
        let has_ended = !state.is_following || !is_running(&state);
        let mut follow = state.follow.take()?;
        let (follow, read) = match blocking(move || {
            let part = follow.next();
            Ok((follow, part))
        })
        .await
        {
            Ok(result) => result,
            Err(error) => return Some((Err(error), state)),
        };
        match read {
            Err(error) => return Some((Err(error), state)),
            Ok(part) if !part.is_empty() => {
                state.follow = Some(follow);
                return Some((Ok(Bytes::from(part)), state));
            }
            Ok(_) if has_ended || follow.is_complete() => return None,
            Ok(_) => state.follow = Some(follow),
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = state.pod.container_ended(&state.id) => {}
        }
    }
}

fn is_running(state: &State) -> bool {
    use berth_pod_runtime::ContainerState::Running;
    state.pod.container(&state.id).is_some_and(|container| matches!(container.state, Running { .. }))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
