//! The server of the web pages: identities of readers, forms, and streams of updates. The pages
//! themselves are in berth-dashboard.

pub mod options;
pub mod readers;
pub mod sessions;

use std::sync::Arc;
use std::time::Duration;

use berth_dashboard::{Dashboard, Hosts, Session, asset, live, login, redirect};
use berth_runtime::Clock;
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::net::TcpListener;

use crate::accounting;
use crate::component::listen::{self, Body, Handler};
use readers::{Access, Reader, Unknown};
use sessions::Identity;

/// Maximum size of a form: as for objects.
const FORM_BYTES_MAX: usize = 3 << 20;
/// Time limit for a form to arrive.
const FORM_WAIT: Duration = Duration::from_secs(30);

/// What a server of pages needs.
#[derive(Clone)]
pub struct Pages {
    /// How readers are authenticated.
    pub access: Access,
    /// Accepted host names.
    pub hosts: Hosts,
    /// Clock for ages, if the API server does not return its time.
    pub clock: Clock,
}

impl Pages {
    /// Serves until dropped.
    pub async fn serve(self, listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>) {
        let handler: Handler = Arc::new(move |request| {
            let pages = self.clone();
            Box::pin(async move { pages.answer(request).await })
        });
        listen::serve(listener, tls, handler).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        // The form is read even if the request is rejected. Otherwise the connection would be
        // closed with unread data, and the reset could reach the client before the response.
        let (parts, body) = request.into_parts();
        let form = form(&parts.method, body).await;
        let request = Request::from_parts(parts, ());
        if let Some(rejected) = self.hosts.reject(&request) {
            return whole(rejected);
        }
        let request = match form {
            Ok(form) => request.map(|()| form),
            Err(problem) => return whole(plain(StatusCode::BAD_REQUEST, problem)),
        };
        let path = request.uri().path().to_owned();
        // What a browser needs for the log-in page.
        if matches!(path.as_str(), "/style.css" | "/script.js") {
            return whole(asset(&path));
        }
        if let Access::Readers(readers) = &self.access {
            let readers = readers.clone();
            match path.as_str() {
                "/login" if request.method() == Method::POST => return whole(log_in(&readers, &request).await),
                "/login" => return whole(login(None)),
                "/logout" if request.method() == Method::POST => {
                    return whole(with_cookie(redirect("/login"), &readers.sessions.end(request.headers())));
                }
                _ => {}
            }
            if let Some(opened) = opened(&readers, &request) {
                return whole(opened);
            }
        }
        let reader = match self.reader(&request) {
            Ok(reader) => reader,
            Err(Unknown::Anonymous) => return whole(login(None)),
            Err(Unknown::Failed(error)) => {
                tracing::warn!("pages: {error:#}");
                return whole(plain(StatusCode::BAD_GATEWAY, "The API server cannot be reached.\n"));
            }
        };
        if path == "/live" {
            return self.live(&request, reader);
        }
        let has_session = reader.has_session;
        let response = self.dashboard(reader).answer(&request).await;
        match (&self.access, response.status()) {
            // The token of the session has expired.
            (Access::Readers(readers), StatusCode::UNAUTHORIZED) if has_session => {
                let cookie = readers.sessions.end(request.headers());
                let problem = "The API server does not accept your token any more. Log in again.";
                whole(with_cookie(login(Some(problem)), &cookie))
            }
            _ => whole(response),
        }
    }

    fn reader<B>(&self, request: &Request<B>) -> Result<Reader, Unknown> {
        match &self.access {
            Access::Everyone(client) => Ok(Reader { client: client.clone(), user: None, has_session: false }),
            Access::Readers(readers) => readers.of(request),
        }
    }

    fn dashboard(&self, reader: Reader) -> Dashboard {
        let session = Session { user: reader.user, can_log_out: reader.has_session };
        let (client, hosts, clock) = (reader.client, self.hosts.clone(), self.clock.clone());
        Dashboard { client, hosts, clock, session, prices: accounting::prices::of_page }
    }

    /// The updates of an open page, until the reader's session ends.
    fn live<B>(&self, request: &Request<B>, reader: Reader) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        // A browser that connects again sends the identifier of the last event that it got.
        let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok().map(str::to_owned));
        let shown = last.or_else(|| live::parameter(query, "shown"));
        let updates = live::address(query).and_then(|page| live::updates(self.dashboard(reader), &page, shown));
        let Some(updates) = updates else {
            return whole(plain(StatusCode::NOT_FOUND, "There is no such page.\n"));
        };
        let is_open: Box<dyn Fn() -> bool + Send> = match &self.access {
            Access::Readers(readers) => Box::new(readers.sessions.is_open(request.headers())),
            Access::Everyone(_) => Box::new(|| true),
        };
        let frames = updates
            .take_while(move |_| std::future::ready(is_open()))
            .map(|event| event.map(|text| Frame::data(Bytes::from(text))));
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// The session that a printed address with the owner's key opens. The key is not part of later
/// addresses.
fn opened(readers: &readers::Readers, request: &Request<String>) -> Option<Response<String>> {
    let (_, key) = readers.owner.as_ref()?;
    let given = request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix("key="))?;
    if given != key {
        return Some(login(Some("The key in the address is not valid. The process prints it when it starts.")));
    }
    Some(match readers.sessions.begin(Identity::Owner, "owner".to_owned()) {
        Ok(cookie) => with_cookie(redirect(request.uri().path()), &cookie),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    })
}

async fn log_in(readers: &readers::Readers, request: &Request<String>) -> Response<String> {
    let token = live::parameter(request.body(), "token").unwrap_or_default();
    let token = token.trim();
    if token.is_empty() {
        return login(Some("Enter a token."));
    }
    match readers.name(token).await {
        Ok(user) => match readers.sessions.begin(Identity::Token(token.to_owned()), user) {
            Ok(cookie) => with_cookie(redirect("/"), &cookie),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
        },
        Err(error) => {
            tracing::debug!("log in: {error:#}");
            login(Some("The API server does not accept this token."))
        }
    }
}

/// The body of a form.
async fn form(method: &Method, body: Incoming) -> Result<String, &'static str> {
    if *method != Method::POST {
        return Ok(String::new());
    }
    let read = tokio::time::timeout(FORM_WAIT, Limited::new(body, FORM_BYTES_MAX).collect()).await;
    let read = read.map_err(|_| "The form did not arrive in time.\n")?;
    let bytes = read.map_err(|_| "The form is larger than 3 MiB, or ended early.\n")?.to_bytes();
    String::from_utf8(bytes.to_vec()).map_err(|_| "The form is not UTF-8.\n")
}

fn with_cookie(mut response: Response<String>, cookie: &str) -> Response<String> {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

fn plain(code: StatusCode, text: impl Into<String>) -> Response<String> {
    let mut response = Response::new(text.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn whole(response: Response<String>) -> Response<Body> {
    response.map(|text| Full::new(Bytes::from(text)).boxed_unsync())
}
