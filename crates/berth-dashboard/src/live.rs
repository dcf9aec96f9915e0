//! Updates of an open page: server-sent events with its changed content.
//!
//! The objects of the page are watched with the reader's rights, so nothing is requested while
//! nothing changes. The page is rendered again after a change, and at least every [`TICK`]; each
//! time the API server checks the reader's rights anew. An update stream therefore ends soon after
//! the reader has lost them, at most [`TICK`] and the ten seconds for which the controllers keep
//! reviews of access later.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, Workload};
use futures::io::AsyncBufReadExt;
use futures::{Stream, StreamExt, TryStreamExt};
use http::{StatusCode, Uri};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams, LogParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::dashboard::Dashboard;
use crate::layout;
use crate::request::{Asked, Page, Parameters};

/// Longest time between two renderings of an open page.
pub const TICK: Duration = Duration::from_secs(15);
/// Shortest time between two renderings of an open page.
const PAUSE: Duration = Duration::from_secs(1);
/// Time before a watch that failed begins again.
const RETRY: Duration = Duration::from_secs(5);

/// A comment, which shows both sides that the connection is alive.
const ALIVE: &str = ":\n\n";

/// Objects whose changes may change a page.
struct Source {
    resource: ApiResource,
    namespace: Option<String>,
    name: Option<String>,
}

/// An open page.
struct Open {
    dashboard: Dashboard,
    asked: Asked,
    changed: Arc<Notify>,
    /// Watches of the page's objects; they end with the page.
    watches: JoinSet<()>,
    /// What the reader has: the fingerprint of the content.
    shown: Option<String>,
    rendered: Option<(Instant, Duration)>,
    ended: bool,
}

/// The events of a page at this address; `None` if there is no such page. `shown` is the fingerprint
/// of the content that the reader has: `data-shown` of the page, or the identifier of the last event. The
/// first event is a comment then, and content follows when it differs.
pub fn updates(
    dashboard: Dashboard,
    address: &str,
    shown: Option<String>,
) -> Option<impl Stream<Item = Result<String, Infallible>> + use<>> {
    let uri: Uri = address.parse().ok()?;
    let asked = Asked::read(&uri)?;
    if matches!(asked.page, Page::Style | Page::Script | Page::Find { .. } | Page::WhatIf) {
        return None;
    }
    let (changed, watches) = (Arc::new(Notify::new()), JoinSet::new());
    let open = Open { dashboard, asked, changed, watches, shown, rendered: None, ended: false };
    Some(futures::stream::unfold(open, |mut open| async move {
        let event = open.next().await?;
        Some((Ok(event), open))
    }))
}

/// The address of the page whose updates a query asks for.
pub fn address(query: &str) -> Option<String> {
    parameter(query, "page").filter(|page| page.starts_with('/'))
}

/// A parameter of a query or form.
pub fn parameter(query: &str, name: &str) -> Option<String> {
    Parameters::parse(query).get(name).map(str::to_owned)
}

impl Open {
    /// The next event; `None` after the last one.
    async fn next(&mut self) -> Option<String> {
        if self.ended {
            return None;
        }
        if let Some((at, took)) = self.rendered {
            // A page that is expensive to render is rendered less often.
            tokio::time::sleep_until(at + PAUSE.max(took * 4)).await;
            let _ = tokio::time::timeout_at(at + TICK, self.changed.notified()).await;
        } else {
            self.watch();
            if self.shown.is_some() {
                // What changed between the view and the begin of the watches is rendered after a pause:
                // the reader has content, and may be on the way to another page.
                self.changed.notify_one();
                self.rendered = Some((Instant::now(), Duration::ZERO));
                return Some(ALIVE.to_owned());
            }
        }
        let begin = Instant::now();
        let response = self.dashboard.show(&self.asked).await;
        self.rendered = Some((begin, begin.elapsed()));
        let (code, content) = (response.status(), layout::content(response.body()));
        if matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            self.ended = true;
            return Some(event("end", content));
        }
        let print = layout::print(content);
        if self.shown.as_ref() == Some(&print) {
            return Some(ALIVE.to_owned());
        }
        let event = format!("id: {print}\n{}", event("page", content));
        self.shown = Some(print);
        Some(event)
    }

    fn watch(&mut self) {
        for source in sources(&self.asked) {
            let (client, changed) = (self.dashboard.client.clone(), self.changed.clone());
            self.watches.spawn(async move { follow(&client, &source, &changed).await });
        }
        if let Page::Logs { namespace, pod } = &self.asked.page {
            let api: Api<Pod> = Api::namespaced(self.dashboard.client.clone(), namespace);
            let container = self.asked.parameters.get("container").map(str::to_owned);
            let (pod, changed) = (pod.clone(), self.changed.clone());
            self.watches.spawn(async move { follow_log(&api, &pod, container, &changed).await });
        }
    }
}

/// The objects of a page.
fn sources(asked: &Asked) -> Vec<Source> {
    fn all<K: kube::Resource<DynamicType = ()>>() -> Source {
        Source { resource: ApiResource::erase::<K>(&()), namespace: None, name: None }
    }
    let in_namespace = |mut source: Source, namespace: &str| {
        source.namespace = Some(namespace.to_owned());
        source
    };
    let chosen = asked.parameters.get("ns");
    let of_chosen = |source: Source| match chosen {
        Some(namespace) => in_namespace(source, namespace),
        None => source,
    };
    match &asked.page {
        Page::Overview { .. } => vec![all::<ClusterQueue>(), all::<Cohort>()],
        Page::Queue { name, .. } => vec![Source { name: Some(name.clone()), ..all::<ClusterQueue>() }],
        // Ages change by themselves, and usage by the end of jobs, which changes queues too.
        Page::Jobs => vec![of_chosen(all::<Workload>())],
        Page::Preemptions | Page::Usage => vec![of_chosen(all::<Workload>())],
        Page::Workload { namespace, .. } | Page::Yaml { namespace, .. } => vec![
            in_namespace(all::<Workload>(), namespace),
            in_namespace(all::<Pod>(), namespace),
            in_namespace(all::<Event>(), namespace),
        ],
        Page::Nodes => vec![all::<Node>()],
        Page::Provisioning => vec![of_chosen(all::<ProvisioningRequest>())],
        Page::Logs { .. } | Page::WhatIf | Page::Find { .. } | Page::Style | Page::Script => Vec::new(),
    }
}

/// Notifies of every change, until dropped. A reader that may not watch gets an update per tick.
async fn follow(client: &Client, source: &Source, changed: &Notify) {
    let api: Api<DynamicObject> = match &source.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &source.resource),
        None => Api::all_with(client.clone(), &source.resource),
    };
    let fields = source.name.as_ref().map(|name| format!("metadata.name={name}"));
    loop {
        let mut list = ListParams::default().limit(1);
        let mut params = WatchParams::default();
        if let Some(fields) = &fields {
            (list, params) = (list.fields(fields), params.fields(fields));
        }
        if let Ok(listed) = api.list_metadata(&list).await {
            let version = listed.metadata.resource_version.unwrap_or_default();
            if let Ok(events) = api.watch_metadata(&params, &version).await {
                let mut events = std::pin::pin!(events);
                while let Ok(Some(event)) = events.try_next().await {
                    match event {
                        WatchEvent::Bookmark(_) => {}
                        WatchEvent::Error(_) => break,
                        _ => changed.notify_one(),
                    }
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Notifies of every new line of a log, until dropped.
async fn follow_log(api: &Api<Pod>, pod: &str, container: Option<String>, changed: &Notify) {
    loop {
        let params =
            LogParams { follow: true, tail_lines: Some(0), container: container.clone(), ..LogParams::default() };
        if let Ok(log) = api.log_stream(pod, &params).await {
            let mut lines = log.lines();
            while let Some(Ok(_)) = lines.next().await {
                changed.notify_one();
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A server-sent event.
fn event(name: &str, data: &str) -> String {
    let mut text = format!("event: {name}\n");
    for line in data.split('\n') {
        text.push_str("data: ");
        // A carriage return would end the line.
        text.push_str(&line.replace('\r', ""));
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_an_event_is_data() {
        assert_eq!(event("page", "a\r\nid: 1\n"), "event: page\ndata: a\ndata: id: 1\ndata: \n\n");
    }
}
