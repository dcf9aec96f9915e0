//! The end of a pod's log.

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;

use crate::dashboard::Dashboard;
use crate::html::{Href, Html};
use crate::layout::{self, cannot};
use crate::read::{self, Unread};
use crate::request::Asked;

/// Number of lines from the end of the log, and their maximum size.
const LINES: i64 = 500;
const BYTES_MAX: i64 = 256 * 1024;

/// The page.
pub async fn page(dashboard: &Dashboard, asked: &Asked, (namespace, name): (&str, &str)) -> Response<String> {
    let frame = dashboard.frame(asked, name, &["logs", namespace, name]);
    let api: Api<Pod> = Api::namespaced(dashboard.client.clone(), namespace);
    let given = &asked.parameters;
    let wanted = given.get("container");
    let params = LogParams {
        container: wanted.map(str::to_owned),
        previous: given.get("previous").is_some(),
        tail_lines: Some(LINES),
        limit_bytes: Some(BYTES_MAX),
        timestamps: given.get("times").is_some(),
        ..LogParams::default()
    };
    let pod = read::within(api.get(name)).await;
    let containers: Vec<String> = pod.as_ref().map(containers).unwrap_or_default();
    // A pod with several containers has no log of its own.
    let params = LogParams { container: params.container.or_else(|| containers.first().cloned()), ..params };
    let log = read::within(api.logs(name, &params)).await;
    let code = log.as_ref().map_or_else(Unread::code, |_| StatusCode::OK);
    layout::page(code, &frame, |html| {
        html.class("h1", "", |html| {
            html.text(format_args!("{namespace}/{name}"));
            html.line("span", "kind", " Pod");
        });
        choices(html, asked, &containers, params.container.as_deref(), (namespace, name));
        match &log {
            Ok(log) if log.is_empty() => html.line("p", "quiet", "The log is empty."),
            Ok(log) => {
                html.line("p", "quiet", format_args!("The last {LINES} lines at most."));
                html.element("pre", &[("class", &"log"), ("tabindex", &"0")], |html| html.text(log));
            }
            Err(unread) => cannot(html, unread),
        }
    })
}

fn containers(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(init).map(|container| container.name.clone()).collect()
}

/// Links to the logs of the containers, and to other forms of the log.
fn choices(
    html: &mut Html,
    asked: &Asked,
    containers: &[String],
    shown: Option<&str>,
    (namespace, name): (&str, &str),
) {
    let given = asked.parameters.without("refresh");
    let to = |query: String| Href::path(&["logs", namespace, name]).with_query(&query);
    html.class("p", "tabs", |html| {
        let mut tab = |text: &str, query: String, is_on: bool| {
            let (to, is_on) = (to(query), if is_on { "true" } else { "false" });
            html.element("a", &[("href", &to), ("aria-current", &is_on)], |html| html.text(text));
        };
        for container in containers {
            tab(container, given.with("container", container).query(), shown == Some(container));
        }
        for (name, text) in [("times", "Times"), ("previous", "Before the last restart")] {
            let is_on = given.get(name).is_some();
            tab(text, given.with(name, if is_on { "" } else { "1" }).query(), is_on);
        }
    });
}
