//! The namespaces in which a reader may list workloads, asked of the API server: one SubjectAccessReview for each, kept for a
//! short while. Workloads of other namespaces are not named, nor are those of namespaces it was not found out about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_api::berth::explanation::Withheld;
use berth_api::kueue::constants::GROUP as KUEUE;
use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;

/// How long an answer is believed: a right that is taken away ends this much later.
const LIFETIME: Duration = Duration::from_secs(10);
/// Namespaces asked about for one reading, beyond those that are known.
const NAMESPACES_MAX: usize = 64;
/// Reviews under way at once for one reading.
const AT_ONCE: usize = 8;
/// Time for all reviews of one reading.
const PATIENCE: Duration = Duration::from_secs(5);
/// Readers that answers are kept of.
const READERS_MAX: usize = 1000;
/// What stands for all namespaces in a review.
const EVERYWHERE: &str = "";

/// The user that reads an answer, as the API server has authenticated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reader {
    /// Its name.
    pub name: String,
    /// Its identifier; empty where it has none.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// What else is known of it.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Asks about readers; clones share what is known.
#[derive(Clone)]
pub(super) struct Readers {
    client: Client,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// Answers per reader and namespace, until when they are believed.
    answers: BTreeMap<Reader, BTreeMap<String, (bool, Instant)>>,
    /// What failed last, and is in the log.
    logged: Option<String>,
}

/// The namespaces in which a reader may list workloads, of those that were asked about.
#[derive(Debug, Default)]
pub(super) struct Listable {
    everywhere: bool,
    namespaces: BTreeSet<String>,
    /// Why the answer is not complete.
    failed: Option<String>,
    /// There were more namespaces than are asked about.
    has_more: bool,
}

impl Readers {
    pub(super) fn new(client: Client) -> Self {
        Readers { client, known: Arc::default() }
    }

    /// In which of these namespaces the reader may list workloads. They are asked about in this order, after all namespaces at
    /// once: for a reader that may list all workloads that is the only question.
    pub(super) async fn listable(&self, reader: &Reader, namespaces: &[String]) -> Listable {
        let mut listable = Listable::default();
        if namespaces.is_empty() {
            return listable;
        }
        // Within bounds of time as a request waits for it, at the API server perhaps beside the reviews.
        match tokio::time::timeout(PATIENCE, self.ask(reader, namespaces, &mut listable)).await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => listable.failed = Some(problem),
            Err(_) => listable.failed = Some(format!("no answer within {} seconds", PATIENCE.as_secs())),
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

    /// The answer about one namespace, or about all. The error says what the API server answered instead, and of no namespace.
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
                return Err("the API server could not be asked for an access review".to_owned());
            }
        };
        let allowed = status.ok_or("the API server answered an access review without a status")?.allowed;
        self.lock().keep(reader, namespace, allowed, Instant::now());
        Ok(allowed)
    }

    /// Once, until a review is answered again: readers may ask often.
    fn log(&self, problem: &str) {
        let mut known = self.lock();
        if known.logged.as_deref() != Some(problem) {
            tracing::warn!("access reviews fail, so explanations name no workloads: {problem}");
            known.logged = Some(problem.to_owned());
        }
    }

    fn known(&self, reader: &Reader, namespace: &str) -> Option<bool> {
        self.lock().get(reader, namespace, Instant::now())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// May workloads of this namespace be named?
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.everywhere || self.namespaces.contains(namespace)
    }

    /// Why some are not.
    pub(super) fn why(&self) -> Withheld {
        let (reason, message) = match (&self.failed, self.has_more) {
            (Some(problem), _) => (
                "ReviewFailed",
                format!(
                    "Workloads are counted here, not named, as it was not found out whether you may list those of their \
                     namespaces: {problem}. Ask again later."
                ),
            ),
            (None, true) => (
                "TooManyNamespaces",
                format!(
                    "Workloads are counted here, not named, where you may not list those of their namespace, or where that was \
                     not found out yet: {NAMESPACES_MAX} namespaces are asked about at once. Ask again for further ones."
                ),
            ),
            (None, false) => (
                "NotAllowed",
                "Workloads are counted here, not named, where you may not list those of their namespace.".to_owned(),
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

    /// An API server that knows of two namespaces the reader may list, and counts what it is asked.
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
    async fn an_answer_is_believed_for_a_while_and_asked_for_again() {
        let (readers, count) = asked(|namespace| reviewed(["a", "b"].contains(&namespace)));
        let listable = readers.listable(&ann(), &names(&["a", "c"])).await;
        assert!(listable.has("a") && !listable.has("c") && !listable.has("b"), "{listable:?}");
        assert_eq!((listable.why().reason.as_str(), count.load(Ordering::SeqCst)), ("NotAllowed", 3));
        assert!(readers.listable(&ann(), &names(&["c", "b"])).await.has("b"));
        assert_eq!(count.load(Ordering::SeqCst), 4, "only of b nothing is known");
        tokio::time::advance(LIFETIME).await;
        readers.listable(&ann(), &names(&["a"])).await;
        assert_eq!(count.load(Ordering::SeqCst), 6);
        assert!(!readers.listable(&ann(), &[]).await.has("a"));
        assert_eq!(count.load(Ordering::SeqCst), 6, "nothing is asked where nothing is named");
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_thousand_namespaces_a_bounded_number_is_asked_about() {
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
    async fn what_is_not_found_out_is_not_allowed_and_not_kept() {
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
        // One that fails after others: those are known.
        let (readers, _) = asked(|namespace| match namespace {
            "b" => (500, json!({"code": 500, "reason": "InternalError", "message": "", "status": "Failure"})),
            namespace => reviewed(!namespace.is_empty()),
        });
        let listable = readers.listable(&ann(), &names(&["a", "b", "c"])).await;
        assert!(listable.has("a") && !listable.has("b"), "{listable:?}");
        assert_eq!(listable.why().reason, "ReviewFailed");
        // An API server that does not answer.
        let silent = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
        let readers = Readers::new(Client::new(silent, "default"));
        let listable = readers.listable(&ann(), &names(&["a"])).await;
        assert!(!listable.has("a") && listable.why().message.contains("no answer within 5 seconds"));
    }

    #[test]
    fn readers_are_kept_in_bounds_and_apart() {
        let mut known = Known::default();
        let now = tokio::time::Instant::now();
        let reader =
            |groups: &[&str], at: usize| Reader { name: format!("r{at}"), groups: names(groups), ..Reader::default() };
        known.keep(&reader(&["a"], 0), "ns", true, now);
        assert_eq!(known.get(&reader(&["b"], 0), "ns", now), None, "in other groups it has other rights");
        for at in 0..3 * READERS_MAX {
            known.keep(&reader(&[], at), "ns", true, now);
        }
        assert!(known.answers.len() <= READERS_MAX);
        assert_eq!(known.get(&reader(&[], 3 * READERS_MAX - 1), "ns", now), Some(true));
    }
}
