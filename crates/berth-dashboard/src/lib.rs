//! The web pages: cohorts and queues with their usage; a queue with its waiting workloads in order
//! and their reasons; a workload with its whole explanation.
//!
//! A [`Dashboard`] reads the API with a [`kube::Client`] and writes nothing. It shows what the
//! client's user may read, in any cluster. Pages are rendered here without scripts and external
//! resources, and reload themselves by a response header. The number of rows of a page is limited,
//! regardless of the size of the cluster.
//!
//! Requests with another host name are rejected ([`Hosts`]): the pages are for clients that may
//! reach the port, not for other web sites in the same browser.

#![forbid(unsafe_code)]

mod decisions;
mod explained;
mod guard;
mod html;
mod layout;
mod overview;
mod queue;
mod read;
mod request;
mod state;
pub mod tree;
mod workload;

use std::time::Duration;

use berth_runtime::Clock;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use jiff::Timestamp;
use kube::Client;

pub use guard::Hosts;

use html::Href;
use layout::{Frame, STYLE, answer};
use request::{Asked, Page, is_name};

/// The pages of one cluster, with one user's permissions.
#[derive(Clone)]
pub struct Dashboard {
    /// Reads the cluster.
    pub client: Client,
    /// Accepted host names.
    pub hosts: Hosts,
    /// Clock for ages, if the API server does not return its time.
    pub clock: Clock,
}

impl Dashboard {
    /// Responds to a request. No page reads a body.
    pub async fn answer(&self, request: &Request<()>) -> Response<String> {
        let mut response = self.page(request).await;
        if request.method() == Method::HEAD {
            response.body_mut().clear();
        }
        response
    }

    async fn page(&self, request: &Request<()>) -> Response<String> {
        if !self.hosts.accept(request.uri(), request.headers()) {
            let message = "The dashboard does not accept this host name. Use localhost or an IP address, or allow the name with --host.\n";
            return answer(StatusCode::MISDIRECTED_REQUEST, TEXT, message.to_owned());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response =
                answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "The dashboard accepts GET and HEAD only.\n".to_owned());
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let Some(Asked { page, refresh }) = Asked::read(request.uri()) else {
            return no_such_page();
        };
        match page {
            Page::Style => answer(StatusCode::OK, "text/css; charset=utf-8", STYLE.to_owned()),
            Page::Overview { from } => overview::page(&self.client, from, refresh).await,
            Page::Queue { name, from, held_from } => {
                let asked = queue::Asked { name: &name, from, held_from, refresh };
                queue::page(&self.client, &asked, self.now().await).await
            }
            Page::Workload { namespace, name } => {
                workload::page(&self.client, (&namespace, &name), refresh, self.now().await).await
            }
            Page::Find { what } => find(&what),
        }
    }
}

impl Dashboard {
    /// The API server's time, to the second. Objects contain its times, this machine's clock may
    /// differ, and the clock of an embedded cluster may run many times faster.
    async fn now(&self) -> Timestamp {
        let date = async {
            let request = Request::get("/version").body(kube::client::Body::empty()).ok()?;
            let answer = self.client.send(request).await.ok()?;
            let date = answer.headers().get(header::DATE)?.to_str().ok()?.to_owned();
            jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
        };
        let date = tokio::time::timeout(CLOCK_WAIT, date).await.ok().flatten();
        date.unwrap_or_else(|| self.clock.now())
    }
}

/// Time limit for the request of the API server's time.
const CLOCK_WAIT: Duration = Duration::from_secs(2);

const TEXT: &str = "text/plain; charset=utf-8";

/// Redirects to the page of the workload that the user typed.
fn find(what: &str) -> Response<String> {
    let what = what.trim();
    let (namespace, name) = what.split_once('/').unwrap_or(("default", what));
    if !is_name(namespace) || !is_name(name) {
        return no_such_page();
    }
    let mut response = answer(StatusCode::SEE_OTHER, TEXT, String::new());
    let to = Href::path(&["workloads", namespace, name]).to_string();
    if let Ok(to) = HeaderValue::from_str(&to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

fn no_such_page() -> Response<String> {
    let frame = Frame { title: "Not found", here: Href::path(&[]), refresh: false };
    layout::page(StatusCode::NOT_FOUND, &frame, |html| {
        html.line("h1", "", "There is no such page");
        html.class("p", "", |html| {
            html.text("Enter a workload or job as namespace/name. ");
            html.link(&Href::path(&[]), "All queues");
        });
    })
}
