//! The ProvisioningRequests: the capacity that admitted jobs wait for.

use std::collections::BTreeMap;

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

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// The request failed.
    Failed,
    /// The machines were taken back.
    Revoked,
    /// No provider has answered.
    Pending,
    /// A provider works on it.
    Accepted,
    /// There is no capacity yet.
    Waiting,
    /// The capacity is there.
    Provisioned,
    /// The capacity was there, and is not reserved any more for pods that do not exist yet.
    BookingExpired,
}

impl Standing {
    fn name(self) -> &'static str {
        match self {
            Standing::Failed => "Failed",
            Standing::Revoked => "Revoked",
            Standing::Pending => "Pending",
            Standing::Accepted => "Accepted",
            Standing::Waiting => "Waiting",
            Standing::Provisioned => "Provisioned",
            Standing::BookingExpired => "Booking expired",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Standing::Failed | Standing::Revoked => "nowrap bad",
            Standing::Pending | Standing::Accepted | Standing::Waiting => "nowrap wait",
            Standing::Provisioned => "nowrap good",
            // The pods of most requests run on the machines long before.
            Standing::BookingExpired => "nowrap quiet",
        }
    }
}

/// State of a request, and the message of the condition that decides it.
fn standing(request: &ProvisioningRequest) -> (Standing, &str) {
    let conditions = request.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let with = |type_: &str, status: &str| {
        let found = conditions.iter().find(|it| it.type_ == type_ && it.status == status)?;
        Some(if found.message.is_empty() { found.reason.as_str() } else { found.message.as_str() })
    };
    let order = [
        ("CapacityRevoked", "True", Standing::Revoked),
        ("Failed", "True", Standing::Failed),
        ("BookingExpired", "True", Standing::BookingExpired),
        ("Provisioned", "True", Standing::Provisioned),
        // It says what is missing; Accepted says only that the request is known.
        ("Provisioned", "False", Standing::Waiting),
        ("ResourcesRequested", "True", Standing::Accepted),
        ("Accepted", "True", Standing::Accepted),
    ];
    let found = order.into_iter().find_map(|(type_, status, standing)| Some((standing, with(type_, status)?)));
    found.unwrap_or((Standing::Pending, "No provider of this class has answered."))
}

fn show(html: &mut Html, requests: &[ProvisioningRequest], has_more: bool, now: Timestamp) {
    if requests.is_empty() {
        html.line("p", "quiet", "There is no ProvisioningRequest.");
        return;
    }
    if has_more {
        layout::notice(html, format_args!("Only {} requests are shown.", requests.len()));
    }
    html.line("p", "quiet", counts(requests));
    layout::rows(html, &["Request", "State", "Message", "Workload", "Class", "#Pods", "#Age"], |html| {
        requests.iter().for_each(|request| html.class("tr", "", |html| row(html, request, now)));
    });
    html.line("p", "quiet", LEGEND);
}

/// What is not evident from the names of the states.
const LEGEND: &str = "Waiting: the provider has no capacity for the request yet. Booking expired: the capacity was \
                      provisioned, and is not kept any more for pods that do not exist yet; pods that run continue.";

/// The number of requests in each state: `3 requests: 1 failed, 2 provisioned.`
fn counts(requests: &[ProvisioningRequest]) -> String {
    let mut counts: BTreeMap<Standing, usize> = BTreeMap::new();
    for request in requests {
        *counts.entry(standing(request).0).or_default() += 1;
    }
    let each = counts.iter().map(|(standing, count)| format!("{count} {}", standing.name().to_lowercase()));
    let noun = if requests.len() == 1 { "request" } else { "requests" };
    format!("{} {noun}: {}.", requests.len(), each.collect::<Vec<_>>().join(", "))
}

fn row(html: &mut Html, request: &ProvisioningRequest, now: Timestamp) {
    let (standing, message) = standing(request);
    let namespace = request.namespace().unwrap_or_default();
    html.line("td", "name host", format_args!("{namespace}/{}", request.name_any()));
    html.line("td", standing.class(), standing.name());
    html.element("td", &[("class", &"long"), ("title", &message)], |html| {
        html.line("div", "message", state::shortened(message));
    });
    let owner = request.owner_references().iter().find(|owner| owner.kind == "Workload");
    html.class("td", "nowrap", |html| {
        if let Some(owner) = owner {
            html.link(&Href::path(&["workloads", &namespace, &owner.name]), &owner.name);
        }
    });
    html.line("td", "nowrap", &request.spec.provisioning_class_name);
    let pods: i64 = request.spec.pod_sets.iter().map(|set| i64::from(set.count)).sum();
    html.line("td", "number", pods);
    html.line("td", "number", state::age(&request.metadata, now));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn request(conditions: &[(&str, &str, &str)]) -> ProvisioningRequest {
        let condition = |(type_, status, message): &(&str, &str, &str)| -> Value {
            json!({"type": type_, "status": status, "reason": "Reason", "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "team"},
            "spec": {"provisioningClassName": "queued", "podSets": [{"count": 2, "podTemplateRef": {"name": "t"}}]},
            "status": {"conditions": conditions}}))
        .expect("a request")
    }

    #[test]
    fn a_request_that_waits_for_capacity_says_what_is_missing() {
        let accepted = ("Accepted", "True", "The request is queued.");
        let waits = request(&[accepted, ("Provisioned", "False", "No machines in zone a.")]);
        assert_eq!(standing(&waits), (Standing::Waiting, "No machines in zone a."));
        assert_eq!(standing(&request(&[accepted])), (Standing::Accepted, "The request is queued."));
        assert_eq!(standing(&request(&[])).0, Standing::Pending);
        assert_eq!(standing(&request(&[("Failed", "True", "")])), (Standing::Failed, "Reason"));
        assert_eq!(standing(&request(&[("Failed", "False", ""), accepted])).0, Standing::Accepted);
    }

    #[test]
    fn provisioned_capacity_whose_booking_expired_is_no_failure() {
        let provisioned = ("Provisioned", "True", "Provisioned.");
        let expired = request(&[provisioned, ("BookingExpired", "True", "The booking expired.")]);
        let (state, message) = standing(&expired);
        assert_eq!((state, message), (Standing::BookingExpired, "The booking expired."));
        assert!(!state.class().contains("bad"));
        let revoked =
            request(&[provisioned, ("CapacityRevoked", "True", "Taken back."), ("BookingExpired", "True", "")]);
        assert_eq!(standing(&revoked), (Standing::Revoked, "Taken back."));
    }

    #[test]
    fn requests_are_counted_by_state() {
        let provisioned = request(&[("Provisioned", "True", "")]);
        let all = [provisioned.clone(), request(&[("Failed", "True", "")]), provisioned];
        assert_eq!(counts(&all), "3 requests: 1 failed, 2 provisioned.");
        assert_eq!(counts(&all[1..2]), "1 request: 1 failed.");
    }

    #[test]
    fn a_long_message_is_cut_within_its_cell() {
        let mut html = Html::default();
        row(&mut html, &request(&[("Failed", "True", "why")]), Timestamp::UNIX_EPOCH);
        assert!(html.as_str().contains("<td class=\"long\" title=\"why\"><div class=\"message\">why</div></td>"));
    }
}
