//! The namespaces in which a reader may list workloads, by one SubjectAccessReview per namespace,
//! cached for a short time. Workloads of other namespaces are not named, nor are those of
//! namespaces whose review failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::explanation::Withheld;
use berth_api::kueue::constants::GROUP as KUEUE;
use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Time for which a review is cached: a revoked permission ends this much later.
const LIFETIME: Duration = Duration::from_secs(10);
/// Maximum number of reviews for one request, not counting cached ones.
const NAMESPACES_MAX: usize = 64;
/// Maximum number of concurrent reviews for one request.
const AT_ONCE: usize = 8;
/// Time limit of all reviews for one request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of readers with cached reviews.
const READERS_MAX: usize = 1000;
/// The namespace that means all namespaces in a review.
const EVERYWHERE: &str = "";

/// The user that requests an explanation, as authenticated by the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reader {
    /// Its name.
    pub name: String,
    /// Its UID; empty if it has none.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// Extra attributes of the authenticated user.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Reviews the permissions of readers; clones share the cache.
#[derive(Clone)]
pub(super) struct Readers {
    client: Client,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// Reviews per reader and namespace, with the end of their validity.
    answers: BTreeMap<Reader, BTreeMap<String, (bool, Instant)>>,
    /// The last failure that was logged.
    logged: Option<String>,
}

/// The namespaces in which a reader may list workloads, of those that were reviewed.
#[derive(Debug, Default)]
pub(super) struct Listable {
    everywhere: bool,
    namespaces: BTreeSet<String>,
    /// Why not all namespaces were reviewed.
    failed: Option<String>,
    /// True if there were more namespaces than [`NAMESPACES_MAX`].
    has_more: bool,
}

impl Readers {
    pub(super) fn new(client: Client) -> Self {
        Readers { client, known: Arc::default() }
    }

    /// Returns those of `namespaces` in which the reader may list workloads. They are reviewed in
    /// their order, after one review of all namespaces together: a reader that may list all
    /// workloads needs only that one.
    pub(super) async fn listable(&self, reader: &Reader, namespaces: &[String]) -> Listable {
        let mut listable = Listable::default();
        if namespaces.is_empty() {
            return listable;
        }
        // The reviews are limited in time, because a request waits for them; the API server may
        // count that request against the same limit as the reviews.
        match tokio::time::timeout(PATIENCE, self.ask(reader, namespaces, &mut listable)).await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => listable.failed = Some(problem),
            Err(_) => listable.failed = Some(format!("no response within {} seconds", PATIENCE.as_secs())),
        }
        if let Some(problem) = &listable.failed {
            self.log(problem);
        }
        listable
    }

    async fn ask(&self, reader: &Reader, namespaces: &[String], listable: &mut Listable) -> Result<(), String> {
        listable.everywhere = self.may_list(reader, EVERYWHERE).await?;
        if listable.everywhere {
            return Ok(());
        }
        let mut unknown = Vec::new();
        for namespace in namespaces {
            match self.known(reader, namespace) {
                Some(true) => drop(listable.namespaces.insert(namespace.clone())),
                Some(false) => {}
                None => unknown.push(namespace.clone()),
            }
        }
        listable.has_more = unknown.len() > NAMESPACES_MAX;
        unknown.truncate(NAMESPACES_MAX);
        let reviews = futures::stream::iter(unknown).map(|namespace| async move {
            let allowed = self.may_list(reader, &namespace).await;
            (namespace, allowed)
        });
        let mut reviews = reviews.buffered(AT_ONCE);
        while let Some((namespace, allowed)) = reviews.next().await {
            if allowed? {
                listable.namespaces.insert(namespace);
            }
        }
        Ok(())
    }

    /// True if the reader may list the workloads of a namespace, or of all namespaces. The error
    /// describes the API server's response without naming a namespace.
    async fn may_list(&self, reader: &Reader, namespace: &str) -> Result<bool, String> {
        if let Some(known) = self.known(reader, namespace) {
            return Ok(known);
        }
        let Reader { name, uid, groups, extra } = reader.clone();
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: some(name),
                uid: some(uid),
                groups: Some(groups),
                extra: Some(extra),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some("list".to_owned()),
                    group: Some(KUEUE.to_owned()),
                    resource: Some("workloads".to_owned()),
                    namespace: some(namespace.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answered =
            Api::<SubjectAccessReview>::all(self.client.clone()).create(&PostParams::default(), &review).await;
        let status = match answered {
            Ok(answered) => answered.status,
            Err(kube::Error::Api(status)) => {
                return Err(format!("the API server answered an access review with {} {}", status.code, status.reason));
            }
            Err(error) => {
                tracing::debug!(%error, "access review");
                return Err("the access review could not be sent to the API server".to_owned());
            }
        };
        let allowed = status.ok_or("the API server answered an access review without a status")?.allowed;
        self.lock().keep(reader, namespace, allowed, Instant::now());
        Ok(allowed)
    }

    /// Logs a failure once, until a review succeeds again.
    fn log(&self, problem: &str) {
        let mut known = self.lock();
        if known.logged.as_deref() != Some(problem) {
            tracing::warn!("access reviews fail, so explanations do not name workloads: {problem}");
            known.logged = Some(problem.to_owned());
        }
    }

    fn known(&self, reader: &Reader, namespace: &str) -> Option<bool> {
        self.lock().get(reader, namespace, Instant::now())
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Known> {
        self.known.lock()
    }
}

impl Known {
    fn get(&self, reader: &Reader, namespace: &str, now: Instant) -> Option<bool> {
        let (allowed, until) = self.answers.get(reader)?.get(namespace)?;
        (*until > now).then_some(*allowed)
    }

    fn keep(&mut self, reader: &Reader, namespace: &str, allowed: bool, now: Instant) {
        if !self.answers.contains_key(reader) && self.answers.len() >= READERS_MAX {
            self.answers.retain(|_, answers| answers.values().any(|(_, until)| *until > now));
            if self.answers.len() >= READERS_MAX {
                self.answers.clear();
            }
        }
        self.logged = None;
        let answers = self.answers.entry(reader.clone()).or_default();
        answers.retain(|_, (_, until)| *until > now);
        answers.insert(namespace.to_owned(), (allowed, now + LIFETIME));
    }
}

impl Listable {
    /// True if workloads of this namespace may be named.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.everywhere || self.namespaces.contains(namespace)
    }

    /// True if workloads of all namespaces may be named, also of those that were not reviewed.
    pub(super) fn is_everywhere(&self) -> bool {
        self.everywhere
    }

    /// Why some workloads are not named.
    pub(super) fn why(&self) -> Withheld {
        let (reason, message) = match (&self.failed, self.has_more) {
            (Some(problem), _) => (
                "ReviewFailed",
                format!(
                    "Some workloads are only counted, because Berth could not check whether you may list workloads in \
                     their namespaces: {problem}. Try again later."
                ),
            ),
            (None, true) => (
                "TooManyNamespaces",
                format!(
                    "Some workloads are only counted, because you may not list workloads in their namespaces, or because \
                     that was not checked yet. One request checks {NAMESPACES_MAX} namespaces; repeat it to check more."
                ),
            ),
            (None, false) => (
                "NotAllowed",
                "Some workloads are only counted, because you may not list workloads in their namespaces.".to_owned(),
            ),
        };
        Withheld { reason: reason.to_owned(), message }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Readers of an API server that responds to reviews with `answer`, and the number of its
    /// reviews.
    fn asked(answer: fn(&str) -> (u16, Value)) -> (Readers, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let counted = counted.clone();
            async move {
                counted.fetch_add(1, Ordering::SeqCst);
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                let review: Value = serde_json::from_slice(&body).expect("JSON");
                assert_eq!(review["spec"]["user"], "ann");
                let attributes = &review["spec"]["resourceAttributes"];
                assert_eq!((&attributes["verb"], &attributes["resource"]), (&json!("list"), &json!("workloads")));
                let (code, answer) = answer(attributes["namespace"].as_str().unwrap_or_default());
                let response = Response::builder().status(StatusCode::from_u16(code).expect("a code"));
                Ok::<_, Infallible>(response.body(Body::from(answer.to_string().into_bytes())).expect("a response"))
            }
        });
        (Readers::new(Client::new(service, "default")), count)
    }

    fn reviewed(allowed: bool) -> (u16, Value) {
        (
            201,
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": {},
            "status": {"allowed": allowed}}),
        )
    }

    fn ann() -> Reader {
        Reader { name: "ann".to_owned(), ..Reader::default() }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_is_cached_for_a_while_and_then_repeated() {
        let (readers, count) = asked(|namespace| reviewed(["a", "b"].contains(&namespace)));
        let listable = readers.listable(&ann(), &names(&["a", "c"])).await;
        assert!(listable.has("a") && !listable.has("c") && !listable.has("b"), "{listable:?}");
        assert_eq!((listable.why().reason.as_str(), count.load(Ordering::SeqCst)), ("NotAllowed", 3));
        assert!(readers.listable(&ann(), &names(&["c", "b"])).await.has("b"));
        assert_eq!(count.load(Ordering::SeqCst), 4, "only b was not reviewed yet");
        tokio::time::advance(LIFETIME).await;
        readers.listable(&ann(), &names(&["a"])).await;
        assert_eq!(count.load(Ordering::SeqCst), 6);
        assert!(!readers.listable(&ann(), &[]).await.has("a"));
        assert_eq!(count.load(Ordering::SeqCst), 6, "no namespace needs no review");
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_reviews_a_bounded_number_of_namespaces() {
        let (readers, count) = asked(|_| reviewed(true));
        let thousand: Vec<String> = (0..1000).map(|at| format!("team-{at}")).collect();
        assert!(readers.listable(&ann(), &thousand).await.has("team-999"));
        assert_eq!(count.load(Ordering::SeqCst), 1, "a reader that may list all workloads");
        let (readers, count) = asked(|namespace| reviewed(!namespace.is_empty()));
        let listable = readers.listable(&ann(), &thousand).await;
        assert!(listable.has("team-63") && !listable.has("team-64"));
        assert_eq!((listable.why().reason.as_str(), count.load(Ordering::SeqCst)), ("TooManyNamespaces", 65));
        assert!(readers.listable(&ann(), &thousand).await.has("team-127"), "the next ones");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_review_allows_nothing_and_is_not_cached() {
        let refused = |_: &str| {
            (
                403,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "secret"}),
            )
        };
        let (readers, count) = asked(refused);
        for asked in 1..=2 {
            let listable = readers.listable(&ann(), &names(&["a"])).await;
            assert!(!listable.has("a"));
            let why = listable.why();
            assert_eq!((why.reason.as_str(), count.load(Ordering::SeqCst)), ("ReviewFailed", asked));
            assert!(why.message.contains("403 Forbidden") && !why.message.contains("secret"), "{}", why.message);
        }
        // If a review fails after others succeeded, their results are used.
        let (readers, _) = asked(|namespace| match namespace {
            "b" => (500, json!({"code": 500, "reason": "InternalError", "message": "", "status": "Failure"})),
            namespace => reviewed(!namespace.is_empty()),
        });
        let listable = readers.listable(&ann(), &names(&["a", "b", "c"])).await;
        assert!(listable.has("a") && !listable.has("b"), "{listable:?}");
        assert_eq!(listable.why().reason, "ReviewFailed");
        // An API server that does not respond.
        let silent = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
        let readers = Readers::new(Client::new(silent, "default"));
        let listable = readers.listable(&ann(), &names(&["a"])).await;
        assert!(!listable.has("a") && listable.why().message.contains("no response within 5 seconds"));
    }

    #[test]
    fn cached_reviews_are_bounded_and_separate_per_reader() {
        let mut known = Known::default();
        let now = tokio::time::Instant::now();
        let reader =
            |groups: &[&str], at: usize| Reader { name: format!("r{at}"), groups: names(groups), ..Reader::default() };
        known.keep(&reader(&["a"], 0), "ns", true, now);
        assert_eq!(known.get(&reader(&["b"], 0), "ns", now), None, "other groups have other permissions");
        for at in 0..3 * READERS_MAX {
            known.keep(&reader(&[], at), "ns", true, now);
        }
        assert!(known.answers.len() <= READERS_MAX);
        assert_eq!(known.get(&reader(&[], 3 * READERS_MAX - 1), "ns", now), Some(true));
    }
}
