//! Sessions of browsers, which send a cookie instead of a token. They live in memory, for at most
//! twelve hours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::COOKIE;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::process;

/// Time after which a reader must log in again.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions; the oldest ends first.
const SESSIONS_MAX: usize = 1_000;

/// The reader of a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// The owner of the process.
    Owner,
    /// A bearer token of the cluster.
    Token(String),
}

#[derive(Clone)]
struct Session {
    identity: Identity,
    user: String,
    until: Instant,
}

/// The sessions of a server; clones share them.
#[derive(Clone)]
pub struct Sessions {
    /// Name of the cookie. Servers on other ports of the machine get the same cookies.
    cookie: Arc<str>,
    is_secure: bool,
    known: Arc<Mutex<BTreeMap<String, Session>>>,
}

/// A random text that cannot be guessed.
pub fn secret() -> anyhow::Result<String> {
    let mut text = String::new();
    for _ in 0..4 {
        text.push_str(&format!("{:016x}", process::entropy()?));
    }
    Ok(text)
}

impl Sessions {
    /// Sessions of a server on this port; `is_secure` if it speaks TLS.
    pub fn new(port: u16, is_secure: bool) -> Self {
        Self { cookie: format!("berth-{port}").into(), is_secure, known: Arc::default() }
    }

    /// Begins a session, and returns its cookie.
    pub fn begin(&self, identity: Identity, user: String) -> anyhow::Result<String> {
        let id = secret()?;
        let now = Instant::now();
        let mut known = self.known.lock();
        known.retain(|_, session| session.until > now);
        if known.len() >= SESSIONS_MAX {
            let oldest = known.iter().min_by_key(|(_, session)| session.until).map(|(id, _)| id.clone());
            oldest.map(|id| known.remove(&id));
        }
        known.insert(id.clone(), Session { identity, user, until: now + LIFETIME });
        Ok(self.set(&id, LIFETIME.as_secs()))
    }

    /// Ends the session of a request, and returns the cookie that removes it from the browser.
    pub fn end(&self, headers: &HeaderMap) -> String {
        if let Some(id) = self.id(headers) {
            self.known.lock().remove(&id);
        }
        self.set("", 0)
    }

    /// The reader of a request, and its name.
    pub fn of(&self, headers: &HeaderMap) -> Option<(Identity, String)> {
        self.get(&self.id(headers)?)
    }

    /// True until the session of a request ends.
    pub fn is_open(&self, headers: &HeaderMap) -> impl Fn() -> bool + Send + 'static + use<> {
        let (sessions, id) = (self.clone(), self.id(headers));
        move || id.as_ref().is_none_or(|id| sessions.get(id).is_some())
    }

    fn get(&self, id: &str) -> Option<(Identity, String)> {
        let known = self.known.lock();
        let session = known.get(id).filter(|session| session.until > Instant::now())?;
        Some((session.identity.clone(), session.user.clone()))
    }

    fn id(&self, headers: &HeaderMap) -> Option<String> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, value)| *name == &*self.cookie && !value.is_empty()).map(|(_, value)| value.to_owned())
    }

    fn set(&self, id: &str, seconds: u64) -> String {
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!("{}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}", self.cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(cookie: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, cookie.split(';').next().expect("a pair").parse().expect("a header"));
        headers
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_by_log_out_and_after_its_lifetime() {
        let sessions = Sessions::new(8080, true);
        let first = sessions.begin(Identity::Owner, "ann".to_owned()).expect("a session");
        let second = sessions.begin(Identity::Token("t".to_owned()), "bob".to_owned()).expect("a session");
        assert!(first.ends_with("; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200; Secure"), "{first}");
        let is_open = sessions.is_open(&with(&first));
        assert_eq!(sessions.of(&with(&first)), Some((Identity::Owner, "ann".to_owned())));
        assert!(is_open());
        assert!(sessions.end(&with(&first)).starts_with("berth-8080=; "));
        assert_eq!((sessions.of(&with(&first)), is_open()), (None, false));
        tokio::time::sleep(LIFETIME).await;
        assert_eq!(sessions.of(&with(&second)), None);
        assert_eq!(sessions.of(&with("berth-8080=guess")), None);
    }
}
