//! The ProvisioningRequests: the capacity that admitted jobs wait for.

use berth_api::autoscaling::v1::ProvisioningRequest;
use http::{Response, StatusCode};
use jiff::Timestamp;
use kube::{Api, ResourceExt};

use crate::dashboard::Dashboard;
use crate::html::{Href, Html};
use crate::layout::{self, cannot};
use crate::read::{self, Unread};
use crate::request::Asked;
use crate::state;

/// Maximum number of rows.
const ROWS: usize = 500;

/// The page.
pub async fn page(dashboard: &Dashboard, asked: &Asked) -> Response<String> {
    let frame = dashboard.frame(asked, "Provisioning", &["provisioning"]);
    let given = &asked.parameters;
    let api: Api<ProvisioningRequest> = match given.get("ns") {
        Some(namespace) => Api::namespaced(dashboard.client.clone(), namespace),
        None => Api::all(dashboard.client.clone()),
    };
    let (listed, now) = futures::join!(read::list(&api, ROWS), dashboard.now());
    let code = listed.as_ref().map_or_else(Unread::code, |_| StatusCode::OK);
    let is_absent = matches!(&listed, Err(Unread::Refused { code: 404, .. }));
    layout::page(if is_absent { StatusCode::OK } else { code }, &frame, |html| {
        html.class("div", "bar-line", |html| {
            html.line("h1", "", "Provisioning requests");
            html.markup("<form class=\"filter\" action=\"/provisioning\">");
            let namespace = given.get("ns").unwrap_or_default();
            html.open(
                "input",
                &[
                    ("name", &"ns"),
                    ("aria-label", &"Namespace"),
                    ("placeholder", &"All namespaces"),
                    ("value", &namespace),
                ],
            );
            html.markup("<button>Show</button></form>");
        });
        match listed {
            Ok(mut listed) => {
                let created = |it: &ProvisioningRequest| it.metadata.creation_timestamp.as_ref().map(|at| at.0);
                listed.items.sort_by_key(|it| std::cmp::Reverse(created(it)));
                show(html, &listed.items, listed.has_more, now);
            }
            Err(_) if is_absent => html.line("p", "quiet", "The cluster has no ProvisioningRequests."),
            Err(unread) => cannot(html, &unread),
        }
    })
}

/// State and message: the last condition in the order in which they are set.
fn standing(request: &ProvisioningRequest) -> (&'static str, &'static str, String) {
    const ORDER: [(&str, &str, &str); 6] = [
        ("BookingExpired", "Expired", "nowrap bad"),
        ("CapacityRevoked", "Revoked", "nowrap bad"),
        ("Failed", "Failed", "nowrap bad"),
        ("Provisioned", "Provisioned", "nowrap good"),
        ("Accepted", "Accepted", "nowrap wait"),
        ("ResourcesRequested", "Requested", "nowrap wait"),
    ];
    let conditions = request.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    for (type_, name, class) in ORDER {
        if let Some(found) = conditions.iter().find(|it| it.type_ == type_ && it.status == "True") {
            return (name, class, found.message.clone());
        }
    }
    let message = conditions.iter().map(|it| it.message.clone()).find(|it| !it.is_empty());
    ("Pending", "nowrap wait", message.unwrap_or_default())
}

fn show(html: &mut Html, requests: &[ProvisioningRequest], has_more: bool, now: Timestamp) {
    if requests.is_empty() {
        html.line("p", "quiet", "There is no ProvisioningRequest.");
        return;
    }
    if has_more {
        layout::notice(html, format_args!("Only {} requests are shown.", requests.len()));
    }
    layout::rows(html, &["Request", "Workload", "Class", "State", "#Pods", "Message", "#Age"], |html| {
        for request in requests {
            let (state, class, message) = standing(request);
            let namespace = request.namespace().unwrap_or_default();
            html.class("tr", "", |html| {
                html.line("td", "nowrap", format_args!("{namespace}/{}", request.name_any()));
                let owner = request.owner_references().iter().find(|owner| owner.kind == "Workload");
                html.class("td", "name", |html| {
                    if let Some(owner) = owner {
                        html.link(&Href::path(&["workloads", &namespace, &owner.name]), &owner.name);
                    }
                });
                html.line("td", "nowrap", &request.spec.provisioning_class_name);
                html.line("td", class, state);
                let pods: i64 = request.spec.pod_sets.iter().map(|set| i64::from(set.count)).sum();
                html.line("td", "number", pods);
                html.line("td", "long message", state::shortened(&message));
                html.line("td", "number", state::age(&request.metadata, now));
            });
        }
    });
}
