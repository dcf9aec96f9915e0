//! The web pages: cohorts and queues, jobs, nodes, preemptions, usage and what-if, as a reader may see
//! them.
//!
//! A [`Dashboard`] reads the API with a [`kube::Client`] and writes nothing. It shows what the
//! client's user may read, in any cluster. Pages are rendered here and work without scripts; a small
//! script keeps them up to date ([`live`]) and adds keys. The number of rows of a page is limited,
//! regardless of the size of the cluster.
//!
//! Requests with another host name or from another origin are rejected ([`Hosts`]): the pages are for
//! clients that may reach the port, not for other web sites in the same browser.

#![forbid(unsafe_code)]

mod dashboard;
mod decisions;
mod explained;
mod forecast;
pub mod gpu_use;
mod guard;
mod html;
mod jobs;
mod layout;
pub mod live;
mod login;
mod logs;
pub mod node_health;
mod node_pods;
pub mod node_use;
mod nodes;
mod overview;
mod pods;
mod preemptions;
mod prices;
mod provisioning;
mod queue;
mod read;
mod request;
mod state;
mod timeline;
pub mod tree;
mod usage;
mod what_if;
mod workload;
mod yaml;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};

pub use dashboard::Dashboard;
pub use guard::Hosts;
pub use layout::Session;
pub use login::login;
pub use prices::{FindPrices, Prices};
pub use request::routes;

use html::Href;
use layout::{Frame, SCRIPT, STYLE, TEXT, answer};
use request::{Asked, Page, is_name};

impl Dashboard {
    /// Responds to a request; the body is that of a form.
    pub async fn answer(&self, request: &Request<String>) -> Response<String> {
        let mut response = match self.hosts.reject(request) {
            Some(rejected) => rejected,
            None => self.page(request).await,
        };
        if request.method() == Method::HEAD {
            response.body_mut().clear();
        }
        response
    }

    async fn page(&self, request: &Request<String>) -> Response<String> {
        let Some(asked) = Asked::read(request.uri()) else {
            return self.no_such_page();
        };
        let accepts_form = asked.page == Page::WhatIf && request.method() == Method::POST;
        if !accepts_form && !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response =
                answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "The page accepts GET and HEAD only.\n".to_owned());
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match &asked.page {
            Page::Style | Page::Script => asset(request.uri().path()),
            Page::Find { what } => self.find(what),
            Page::WhatIf => what_if::page(self, &asked, accepts_form.then(|| request.body().as_str())).await,
            _ => self.show(&asked).await,
        }
    }

    /// A page that shows the cluster, without a form.
    async fn show(&self, asked: &Asked) -> Response<String> {
        match &asked.page {
            Page::Overview { from } => overview::page(self, asked, *from).await,
            Page::Queue { name, from, held_from } => {
                queue::page(self, asked, &queue::Part { name, from: *from, held_from: *held_from }).await
            }
            Page::Jobs => jobs::page(self, asked).await,
            Page::Workload { namespace, name } => workload::page(self, asked, (namespace, name)).await,
            Page::Yaml { namespace, name } => yaml::page(self, asked, (namespace, name)).await,
            Page::Logs { namespace, pod } => logs::page(self, asked, (namespace, pod)).await,
            Page::Nodes => nodes::page(self, asked).await,
            Page::Provisioning => provisioning::page(self, asked).await,
            Page::Preemptions => preemptions::page(self, asked).await,
            Page::Usage => usage::page(self, asked).await,
            Page::WhatIf => what_if::page(self, asked, None).await,
            Page::Find { .. } | Page::Style | Page::Script => self.no_such_page(),
        }
    }

    /// Redirects to the page of the workload that the user typed.
    fn find(&self, what: &str) -> Response<String> {
        let what = what.trim();
        let (namespace, name) = what.split_once('/').unwrap_or(("default", what));
        if !is_name(namespace) || !is_name(name) {
            return self.no_such_page();
        }
        redirect(&Href::path(&["workloads", namespace, name]).to_string())
    }

    fn no_such_page(&self) -> Response<String> {
        let frame = Frame { title: "Not found", here: Href::path(&[]), refresh: None, session: &self.session };
        layout::page(StatusCode::NOT_FOUND, &frame, |html| {
            html.line("h1", "", "There is no such page");
            html.class("p", "", |html| {
                html.text("Enter a workload or job as namespace/name. ");
                html.link(&Href::path(&[]), "All queues");
            });
        })
    }
}

/// The style sheet or the script, which need no reader.
pub fn asset(path: &str) -> Response<String> {
    match path {
        "/style.css" => answer(StatusCode::OK, "text/css; charset=utf-8", STYLE.to_owned()),
        "/script.js" => answer(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT.to_owned()),
        _ => answer(StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()),
    }
}

/// Redirects to a page.
pub fn redirect(to: &str) -> Response<String> {
    let mut response = answer(StatusCode::SEE_OTHER, TEXT, String::new());
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}
