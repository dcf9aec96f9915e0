//! Access to an endpoint: the API server authenticates the client's bearer token (TokenReview), and
//! authorizes the request (SubjectAccessReview of the path and the verb), as for Kueue's metrics.
//!
//! Verdicts are kept for a while, so that a scrape does not cost two requests to the API server. A
//! token that is revoked therefore works for up to [`ALLOWED_FOR`].
//!
//! Source: controller-runtime's filter `WithAuthenticationAndAuthorization`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::listen::{self, Handler};

/// Time for which a client that was allowed is not reviewed again.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// Time for which a client that was rejected is not reviewed again.
const REJECTED_FOR: Duration = Duration::from_secs(10);
/// Maximum number of kept verdicts.
const VERDICTS_MAX: usize = 256;

/// Answer of the API server about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// The token is not valid.
    Unknown,
    /// This user may not read the path.
    Forbidden(String),
}

/// Token, path and verb.
type Asked = (String, String, String);

/// Reviews requests at the API server. Clones share the verdicts.
#[derive(Clone)]
pub struct Guard {
    client: Client,
    verdicts: Arc<Mutex<BTreeMap<Asked, (Instant, Verdict)>>>,
}

impl Guard {
    /// A guard whose reviews this client requests.
    pub fn new(client: Client) -> Self {
        Self { client, verdicts: Arc::default() }
    }

    /// A handler that passes requests of allowed clients to `inner`.
    pub fn protect(self, inner: Handler) -> Handler {
        Arc::new(move |request| {
            let (guard, inner) = (self.clone(), inner.clone());
            Box::pin(async move {
                match guard.reject(&request).await {
                    None => inner(request).await,
                    Some(response) => response,
                }
            })
        })
    }

    /// The response to a request that is not allowed; `None` for an allowed one.
    async fn reject<B>(&self, request: &Request<B>) -> Option<Response<listen::Body>> {
        let Some(token) = bearer(request) else {
            return Some(unauthorized("a bearer token is required\n"));
        };
        let verb = match request.method().as_str() {
            // As Kubernetes' API server names requests for a path.
            "HEAD" => "head".to_owned(),
            method => method.to_ascii_lowercase(),
        };
        let path = request.uri().path().to_owned();
        match self.verdict((token, path.clone(), verb.clone())).await {
            Ok(Verdict::Allowed) => None,
            Ok(Verdict::Unknown) => Some(unauthorized("the bearer token is not valid\n")),
            Ok(Verdict::Forbidden(user)) => {
                let text = format!("user {user:?} cannot {verb} path {path:?}\n");
                Some(listen::text(StatusCode::FORBIDDEN, text))
            }
            Err(error) => {
                tracing::warn!("review of a request for {path}: {}", berth_runtime::brief(&error));
                let text = "the API server did not answer the review of this request\n";
                Some(listen::text(StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    }

    async fn verdict(&self, asked: Asked) -> Result<Verdict, kube::Error> {
        let now = Instant::now();
        if let Some((until, verdict)) = self.verdicts.lock().get(&asked)
            && *until > now
        {
            return Ok(verdict.clone());
        }
        let verdict = self.review(&asked).await?;
        let lasts = if verdict == Verdict::Allowed { ALLOWED_FOR } else { REJECTED_FOR };
        let mut verdicts = self.verdicts.lock();
        verdicts.retain(|_, (until, _)| *until > now);
        // Without room, the request is reviewed again the next time.
        if verdicts.len() < VERDICTS_MAX {
            verdicts.insert(asked, (now + lasts, verdict.clone()));
        }
        Ok(verdict)
    }

    async fn review(&self, (token, path, verb): &Asked) -> Result<Verdict, kube::Error> {
        let spec = TokenReviewSpec { token: Some(token.clone()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviewed = Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let status = reviewed.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Verdict::Unknown);
        };
        let UserInfo { username, uid, groups, extra } = user;
        let name = username.clone().unwrap_or_default();
        let attributes = NonResourceAttributes { path: Some(path.clone()), verb: Some(verb.clone()) };
        let spec = SubjectAccessReviewSpec {
            user: username,
            uid,
            groups,
            extra,
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviewed =
            Api::<SubjectAccessReview>::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed);
        Ok(if allowed { Verdict::Allowed } else { Verdict::Forbidden(name) })
    }
}

/// The token of header `Authorization`.
fn bearer<B>(request: &Request<B>) -> Option<String> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

fn unauthorized(text: &'static str) -> Response<listen::Body> {
    let mut response = listen::text(StatusCode::UNAUTHORIZED, text);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A guard, and the number of its reviews. Token `good` is of user `ann`, with the right to
    /// read `/metrics`.
    fn guard() -> (Guard, Arc<AtomicUsize>) {
        let reviews = Arc::new(AtomicUsize::new(0));
        let count = reviews.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                let bytes = request.into_body().collect().await.expect("a body").to_bytes();
                let review: Value = serde_json::from_slice(&bytes).expect("a review");
                let mut answer = review.clone();
                answer["status"] = match review["kind"].as_str() {
                    Some("TokenReview") => match review["spec"]["token"].as_str() {
                        Some("good") => json!({"authenticated": true, "user": {"username": "ann", "groups": ["g"]}}),
                        _ => json!({"authenticated": false}),
                    },
                    _ => {
                        assert_eq!(review["spec"]["groups"], json!(["g"]), "{review}");
                        let asked = &review["spec"]["nonResourceAttributes"];
                        json!({"allowed": *asked == json!({"path": "/metrics", "verb": "get"})})
                    }
                };
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        (Guard::new(Client::new(service, "default")), reviews)
    }

    async fn code(guard: &Guard, path: &str, authorization: Option<&str>) -> u16 {
        let mut request = Request::get(path);
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        let rejected = guard.reject(&request.body(()).expect("a request")).await;
        rejected.map_or(200, |response| response.status().as_u16())
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_decides_and_is_not_asked_again_for_a_minute() {
        let (guard, reviews) = guard();
        assert_eq!(code(&guard, "/metrics", None).await, 401);
        assert_eq!(code(&guard, "/metrics", Some("Basic good")).await, 401);
        assert_eq!(reviews.load(Ordering::SeqCst), 0);
        assert_eq!(code(&guard, "/metrics", Some("Bearer good")).await, 200);
        assert_eq!(code(&guard, "/metrics", Some("bearer good")).await, 200);
        assert_eq!(reviews.load(Ordering::SeqCst), 2);
        assert_eq!(code(&guard, "/explain/a/b", Some("Bearer good")).await, 403);
        assert_eq!(code(&guard, "/metrics", Some("Bearer bad")).await, 401);
        assert_eq!(reviews.load(Ordering::SeqCst), 5);
        tokio::time::sleep(ALLOWED_FOR).await;
        assert_eq!(code(&guard, "/metrics", Some("Bearer good")).await, 200);
        assert_eq!(reviews.load(Ordering::SeqCst), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_kept_verdicts_is_limited() {
        let (guard, _) = guard();
        for number in 0..VERDICTS_MAX + 9 {
            assert_eq!(code(&guard, "/metrics", Some(&format!("Bearer bad-{number}"))).await, 401);
        }
        assert_eq!(guard.verdicts.lock().len(), VERDICTS_MAX);
    }
}
