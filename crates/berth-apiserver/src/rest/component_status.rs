//! ComponentStatuses: the health of the control plane's components, determined on request. Nothing
//! is stored.
//!
//! Deprecated, but `kubectl get cs` and old dashboards still read it. The server knows the store's
//! health itself. Scheduler and controllers do not report theirs: they have no condition, which
//! tables show as Unknown. (`Healthy: Unknown` would show as Unhealthy, and running components
//! would look broken.)

use berth_apimachinery::status::Status;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::call::Call;
use super::encode::partial;
use super::list::Selection;
use super::negotiate::Form;
use crate::{Body, health};

/// The components, in the order in which kube-apiserver lists them.
const COMPONENTS: [&str; 3] = ["scheduler", "controller-manager", "etcd-0"];

/// GET of one ComponentStatus or of all.
pub(crate) fn response(call: &Call, verb: &str) -> Result<Response<Body>, Status> {
    if verb == "get" {
        let name = COMPONENTS.into_iter().find(|name| *name == call.info.name).ok_or_else(|| call.not_found())?;
        return call.object_response(StatusCode::OK, &status(call, name));
    }
    let selection = Selection::new(call)?;
    let items: Vec<Value> =
        COMPONENTS.iter().map(|name| status(call, name)).filter(|status| selection.matches(status)).collect();
    let answer = match &call.negotiated.form {
        Form::Object => {
            json!({"kind": call.row.list_kind, "apiVersion": call.api_version(), "metadata": {}, "items": items})
        }
        Form::Metadata(version) => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": {},
            "items": items.iter().map(|item| partial(item, version)).collect::<Vec<_>>(),
        }),
        Form::Table(version) => call.table(&items, version, true),
    };
    call.value_response(StatusCode::OK, &answer)
}

fn status(call: &Call, name: &str) -> Value {
    let mut status = json!({"kind": call.row.kind, "apiVersion": call.api_version(), "metadata": {"name": name}});
    if name == "etcd-0" {
        let (healthy, message) = match health::of_store(call.server.store().as_ref(), false) {
            Ok(()) => ("True", "ok".into()),
            Err(why) => ("False", why),
        };
        status["conditions"] = json!([{"type": "Healthy", "status": healthy, "message": message}]);
    }
    status
}
