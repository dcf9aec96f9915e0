//! Who may do what: authentication of wire requests, RBAC, impersonation, access reviews.

use berth_apimachinery::status::Status;
use serde_json::Value;

use crate::{Objects, RequestInfo, ResourceInfo, UserInfo};

/// Whether `user` may do what `info` asks; the error is the 403 Status to answer with.
pub fn authorize(_objects: &Objects, _info: &RequestInfo, _user: &UserInfo) -> Result<(), Status> {
    Ok(())
}

/// Applies `Impersonate-*` headers: checks that `user` may, removes the headers, returns who the request runs as.
pub fn impersonate(_objects: &Objects, user: UserInfo, _headers: &mut http::HeaderMap) -> Result<UserInfo, Status> {
    Ok(user)
}

/// Answers a create on a row of origin [`crate::registry::Origin::Virtual`] (SubjectAccessReview and its kin).
pub fn review(
    _objects: &Objects,
    _row: &ResourceInfo,
    _info: &RequestInfo,
    _user: &UserInfo,
    body: Value,
) -> Result<Value, Status> {
    Ok(body)
}
