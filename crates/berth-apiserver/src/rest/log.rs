//! `pods/log`: the log of a container, complete or followed.

use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_pod_runtime::{LogQuery, LogStream, StreamName};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{HeaderValue, Response, header};
use serde_json::Value;

use super::Options;
use super::call::Call;
use crate::connect::{Container, selected_container};
use crate::logs::{LogPart, PodLogs};
use crate::{ApiServer, Body};

/// Interval of reads of a followed log.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// GET on a pod's log.
pub(crate) async fn read(call: &Call) -> Result<Response<Body>, Status> {
    let record = call.stored()?;
    let pod = record.value();
    let container = selected_container(&pod, &call.options.container)?;
    check(&call.options)?;
    if let Some(log) = stream(call, &pod, &container) {
        // The headers are sent before the log is read, so an error only ends the body.
        let chunks =
            log.await?.map(|chunk| chunk.inspect_err(|error| tracing::debug!(%error, "a log ended with an error")));
        let chunks = chunks.take_while(|chunk| std::future::ready(chunk.is_ok()));
        return Ok(text_response(Body::stream(chunks.filter_map(|chunk| std::future::ready(chunk.ok())))));
    }
    let source = call.server.inner.config.pod_logs.clone();
    let source = source.ok_or_else(|| Status::service_unavailable("this server has no source of pod logs"))?;
    let mut part = call.options.log.clone();
    // The seconds are counted back from now, also while the log is followed.
    if let Some(seconds) = part.since_seconds.take() {
        part.since_time = call.server.now().checked_sub(jiff::SignedDuration::from_secs(seconds)).ok();
    }
    if part.previous && !has_previous_run(&pod, &container) {
        let name = meta::name(&pod);
        let text = format!("previous terminated container {container:?} in pod {name:?} not found");
        return Err(Status::bad_request(text));
    }
    let mut text =
        source.read(meta::namespace(&pod), meta::name(&pod), &container, &part).map_err(Status::bad_request)?;
    if call.options.stream == Some(StreamName::Stderr) {
        // A container of this source writes to its standard output only.
        text.clear();
        return Ok(text_response(Body::from(text)));
    }
    let written = text.len();
    let text = cut(text, call.options.tail_lines, call.options.limit_bytes);
    let body = if call.options.follow {
        let follow = Follow { server: call.server.clone(), source, pod, container, part, written, ended: false };
        let first = futures::stream::iter((!text.is_empty()).then(|| Bytes::from(text)));
        let rest = futures::stream::unfold(follow, |mut follow| async move {
            let chunk = follow.next().await?;
            Some((chunk, follow))
        });
        Body::stream(first.chain(rest))
    } else {
        Body::from(text)
    };
    Ok(text_response(body))
}

fn text_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Checks options that exclude each other.
fn check(options: &Options) -> Result<(), Status> {
    if options.log.since_seconds.is_some() && options.log.since_time.is_some() {
        return Err(Status::bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified"));
    }
    if options.stream.is_some() && options.tail_lines.is_some() {
        return Err(Status::bad_request("`tailLines` and a specific `stream` are mutually exclusive"));
    }
    Ok(())
}

/// The log from the node that runs the pod; `None` for a pod whose log has another source.
fn stream(call: &Call, pod: &Arc<Value>, container: &str) -> Option<BoxFuture<'static, Result<LogStream, Status>>> {
    let streams = call.server.inner.config.pod_streams.clone()?;
    let options = &call.options;
    let seconds = options.log.since_seconds.map(jiff::SignedDuration::from_secs);
    let query = LogQuery {
        follow: options.follow,
        since: options.log.since_time.or_else(|| call.server.now().checked_sub(seconds?).ok()),
        timestamps: options.log.timestamps,
        tail_lines: options.tail_lines.map(|lines| lines as u64),
        limit_bytes: options.limit_bytes.map(|bytes| bytes as u64),
        stream: options.stream,
    };
    let container = Container { pod: pod.clone(), name: container.to_owned() };
    streams.logs(&container, options.log.previous, query)
}

fn has_previous_run(pod: &Value, container: &str) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists.iter().flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    all.any(|status| status["name"] == container && status["lastState"]["terminated"].is_object())
}

/// The last lines, cut to a number of bytes.
fn cut(mut text: String, tail_lines: Option<usize>, limit_bytes: Option<usize>) -> String {
    if let Some(lines) = tail_lines {
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        text = all[all.len().saturating_sub(lines)..].concat();
    }
    if let Some(limit) = limit_bytes {
        let mut end = limit.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

/// A log that is read repeatedly until its pod is finished or deleted.
struct Follow {
    server: ApiServer,
    source: Arc<dyn PodLogs>,
    pod: Arc<Value>,
    container: String,
    part: LogPart,
    /// Length in bytes of the log as it was last read.
    written: usize,
    ended: bool,
}

impl Follow {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            // Checked before reading, so that everything written until the end is still sent.
            self.ended = self.is_finished();
            let (namespace, name) = (meta::namespace(&self.pod), meta::name(&self.pod));
            let text = self.source.read(namespace, name, &self.container, &self.part).ok()?;
            if let Some(new) = text.get(self.written..).filter(|new| !new.is_empty()) {
                self.written = text.len();
                return Some(Bytes::copy_from_slice(new.as_bytes()));
            }
            if !self.ended {
                tokio::time::sleep(FOLLOW_EVERY).await;
            }
        }
        None
    }

    fn is_finished(&self) -> bool {
        let now = self.server.inner.objects.get("", "pods", meta::namespace(&self.pod), meta::name(&self.pod));
        now.is_none_or(|pod| {
            meta::uid(&pod) != meta::uid(&self.pod)
                || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        })
    }
}
