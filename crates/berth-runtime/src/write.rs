//! Reads and writes that decode the response like a watched object: without `managedFields`, which
//! no controller uses and which are half of a typical response. Otherwise they equal the methods of
//! [`kube::Api`] with the same names.
//!
//! Controllers call these functions and not those methods also because the methods decode in the
//! calling crate: the decoder of each kind would be compiled once per crate ([`Json`]).

use std::fmt::Debug;

use berth_api::json::Json;
use futures::future::{BoxFuture, FutureExt};
use kube::api::{DeleteParams, GetParams, ListParams, ObjectList, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Client, Error, Resource};
use serde::{Deserialize, Serialize};

use crate::wire::{self, Undecoded};

type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

async fn send<K: Resource + Json + Clone>(api: &Api<K>, request: Built) -> kube::Result<K> {
    let text = text_of(api, request).await?;
    wire::decode(&text).map_err(Error::SerdeError)
}

/// The response to a request.
fn text_of<K: Resource + Clone>(api: &Api<K>, request: Built) -> BoxFuture<'static, kube::Result<String>> {
    respond(api.clone().into_client(), request)
}

/// The future is boxed, so that it is compiled in this crate and not in each of its callers.
#[inline(never)]
fn respond(client: Client, request: Built) -> BoxFuture<'static, kube::Result<String>> {
    async move { client.request_text(request.map_err(Error::BuildRequest)?).await }.boxed()
}

fn body(object: &impl Json) -> kube::Result<Vec<u8>> {
    object.to_json_text().map_err(Error::SerdeError)
}

/// Reads an object.
pub async fn get<K>(api: &Api<K>, name: &str) -> kube::Result<K>
where
    K: Resource + Json + Clone,
{
    send(api, Request::new(api.resource_url()).get(name, &GetParams::default())).await
}

/// Reads an object, or returns `None` if it does not exist.
pub async fn get_opt<K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    K: Resource + Json + Clone,
{
    match get(api, name).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if crate::is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists objects.
pub async fn list<K>(api: &Api<K>, params: &ListParams) -> kube::Result<ObjectList<K>>
where
    K: Resource + Json + Clone,
{
    let text = text_of(api, Request::new(api.resource_url()).list(params)).await?;
    let ObjectList { types, metadata, items } = undecoded(&text).map_err(Error::SerdeError)?;
    let items = items.iter().map(Undecoded::decode).collect::<Result<_, _>>().map_err(Error::SerdeError)?;
    Ok(ObjectList { types, metadata, items })
}

fn undecoded(list: &str) -> serde_json::Result<ObjectList<Undecoded>> {
    serde_json::from_str(list)
}

/// Deletes an object. Returns the object while it terminates, or `None` once it is gone.
pub async fn delete<K>(api: &Api<K>, name: &str, params: &DeleteParams) -> kube::Result<Option<K>>
where
    K: Resource + Json + Clone,
{
    let text = text_of(api, Request::new(api.resource_url()).delete(name, params)).await?;
    match is_status(&text).map_err(Error::SerdeError)? {
        true => Ok(None),
        false => wire::decode(&text).map(Some).map_err(Error::SerdeError),
    }
}

/// True if a response is a `Status` and not an object.
fn is_status(response: &str) -> serde_json::Result<bool> {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(default)]
        kind: String,
    }
    serde_json::from_str::<Kind>(response).map(|response| response.kind == "Status")
}

/// Creates an object.
pub async fn create<K>(api: &Api<K>, params: &PostParams, object: &K) -> kube::Result<K>
where
    K: Resource + Json + Clone,
{
    send(api, Request::new(api.resource_url()).create(params, body(object)?)).await
}

/// Creates an object without decoding a successful response.
pub async fn create_unread<K>(api: &Api<K>, params: &PostParams, object: &K) -> kube::Result<()>
where
    K: Resource + Json + Clone,
{
    text_of(api, Request::new(api.resource_url()).create(params, body(object)?)).await.map(drop)
}

/// Replaces an object.
pub async fn replace<K>(api: &Api<K>, name: &str, params: &PostParams, object: &K) -> kube::Result<K>
where
    K: Resource + Json + Clone,
{
    send(api, Request::new(api.resource_url()).replace(name, params, body(object)?)).await
}

/// Replaces an object's status.
pub async fn replace_status<K>(api: &Api<K>, name: &str, params: &PostParams, object: &K) -> kube::Result<K>
where
    K: Resource + Json + Clone,
{
    send(api, Request::new(api.resource_url()).replace_subresource("status", name, params, body(object)?)).await
}

/// Patches an object.
pub async fn patch<K, P>(api: &Api<K>, name: &str, params: &PatchParams, patch: &Patch<P>) -> kube::Result<K>
where
    K: Resource + Json + Clone,
    P: Serialize + Debug,
{
    send(api, Request::new(api.resource_url()).patch(name, params, patch)).await
}

/// Patches an object's status.
pub async fn patch_status<K, P>(api: &Api<K>, name: &str, params: &PatchParams, patch: &Patch<P>) -> kube::Result<K>
where
    K: Resource + Json + Clone,
    P: Serialize + Debug,
{
    send(api, Request::new(api.resource_url()).patch_subresource("status", name, params, patch)).await
}
