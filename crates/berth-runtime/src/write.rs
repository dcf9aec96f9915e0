//! Writes that decode the response like a watched object: without `managedFields`, which no
//! controller uses and which are half of a typical response. Otherwise they equal the methods of
//! [`kube::Api`] with the same names.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Error, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire;

async fn send<K: Resource + Clone + DeserializeOwned>(
    api: &Api<K>,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> kube::Result<K> {
    let request = request.map_err(Error::BuildRequest)?;
    let text = api.clone().into_client().request_text(request).await?;
    wire::decode(&text).map_err(Error::SerdeError)
}

fn body<K: Serialize>(object: &K) -> kube::Result<Vec<u8>> {
    serde_json::to_vec(object).map_err(Error::SerdeError)
}

/// Creates an object.
pub async fn create<K>(api: &Api<K>, params: &PostParams, object: &K) -> kube::Result<K>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    send(api, Request::new(api.resource_url()).create(params, body(object)?)).await
}

/// Creates an object without decoding a successful response.
pub async fn create_unread<K>(api: &Api<K>, params: &PostParams, object: &K) -> kube::Result<()>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    let request = Request::new(api.resource_url()).create(params, body(object)?).map_err(Error::BuildRequest)?;
    api.clone().into_client().request_text(request).await.map(drop)
}

/// Replaces an object.
pub async fn replace<K>(api: &Api<K>, name: &str, params: &PostParams, object: &K) -> kube::Result<K>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    send(api, Request::new(api.resource_url()).replace(name, params, body(object)?)).await
}

/// Replaces an object's status.
pub async fn replace_status<K>(api: &Api<K>, name: &str, params: &PostParams, object: &K) -> kube::Result<K>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    send(api, Request::new(api.resource_url()).replace_subresource("status", name, params, body(object)?)).await
}

/// Patches an object.
pub async fn patch<K, P>(api: &Api<K>, name: &str, params: &PatchParams, patch: &Patch<P>) -> kube::Result<K>
where
    K: Resource + DeserializeOwned + Clone + Debug,
    P: Serialize + Debug,
{
    send(api, Request::new(api.resource_url()).patch(name, params, patch)).await
}

/// Patches an object's status.
pub async fn patch_status<K, P>(api: &Api<K>, name: &str, params: &PatchParams, patch: &Patch<P>) -> kube::Result<K>
where
    K: Resource + DeserializeOwned + Clone + Debug,
    P: Serialize + Debug,
{
    send(api, Request::new(api.resource_url()).patch_subresource("status", name, params, patch)).await
}
