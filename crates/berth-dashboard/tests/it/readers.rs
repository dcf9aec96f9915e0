//! Two users with different rights on every page and on the streams of updates.

use std::time::Duration;

use berth_apiserver::UserInfo;
use berth_dashboard::{Dashboard, live};
use berth_embedded::Embedded;
use berth_runtime::Clock;
use futures::StreamExt;
use http::{Method, Request, StatusCode};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::json;

use crate::cluster::{cluster, create, create_team, job, without_markup};
use crate::{ask, dashboard};

/// A cluster in which `ann` may read everything of namespace `team` and no other namespace.
async fn with_ann() -> (Embedded, Clock, Dashboard, Dashboard) {
    let (embedded, clock) = cluster().await;
    let admin = embedded.admin_client();
    create_team(&admin).await;
    submit(&admin, "wanted").await;
    let rbac = "rbac.authorization.k8s.io";
    for role in ["kueue-workload-viewer-role", "berth-explanation-viewer-role", "view"] {
        let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": "team"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ann"}]});
        create(&admin, binding).await;
    }
    clock.sleep(Duration::from_secs(2)).await;
    let ann = Client::new(embedded.server().in_process(UserInfo::new("ann", &[])), "default");
    let (hers, whole) = (dashboard(ann, clock.clone()), dashboard(admin, clock.clone()));
    (embedded, clock, hers, whole)
}

/// Creates a job in namespace `team`.
async fn submit(admin: &Client, name: &str) {
    let mut object = job(name, 2);
    object["metadata"]["namespace"] = json!("team");
    create(admin, object).await;
}

async fn code(pages: &Dashboard, path: &str) -> (u16, String) {
    let page = ask(pages, Method::GET, path, "localhost").await;
    (page.status().as_u16(), page.into_body())
}

async fn question(pages: &Dashboard, form: &str) -> (u16, String) {
    let request = Request::post("/what-if").header("Host", "localhost").header("Origin", "http://localhost");
    let page = pages.answer(&request.body(form.to_owned()).expect("a request")).await;
    (page.status().as_u16(), page.into_body())
}

/// Texts that only readers of namespace `default` may see.
const OF_OTHERS: [&str; 4] = ["default/one", "default/two", "job-one", "job-two"];

#[tokio::test(start_paused = true)]
async fn every_page_shows_what_its_reader_may_read() {
    let (embedded, _, hers, whole) = with_ann().await;
    // Path, status for the user of one namespace, status for the administrator.
    for (path, of_ann, of_admin) in [
        ("/", 403, 200),
        ("/queues/blue", 403, 200),
        ("/jobs", 403, 200),
        ("/jobs?ns=team", 200, 200),
        ("/jobs?ns=default", 403, 200),
        ("/jobs?ns=team&group=user&sort=-priority&q=wanted", 200, 200),
        ("/workloads/team/wanted", 200, 200),
        ("/workloads/default/one", 403, 200),
        ("/workloads/default/one/yaml", 403, 200),
        ("/logs/team/none", 404, 404),
        ("/logs/default/none", 403, 404),
        ("/nodes", 403, 200),
        ("/provisioning", 403, 200),
        ("/preemptions", 403, 200),
        ("/preemptions?ns=team", 200, 200),
        ("/preemptions?ns=default", 403, 200),
        ("/usage", 403, 200),
        ("/usage?ns=team&by=user", 200, 200),
        ("/usage?ns=default", 403, 200),
        ("/what-if", 200, 200),
    ] {
        let (code_of_ann, page) = code(&hers, path).await;
        assert_eq!(code_of_ann, of_ann, "{path} of ann: {page}");
        // A refusal repeats the name that the reader asked for.
        let named = OF_OTHERS.iter().find(|text| page.contains(*text) && !path.contains("default"));
        assert_eq!(named, None, "{path} of ann: {page}");
        let (code_of_admin, page) = code(&whole, path).await;
        assert_eq!(code_of_admin, of_admin, "{path} of the administrator: {page}");
    }
    let (_, page) = code(&whole, "/jobs").await;
    for shown in ["default/one", "default/two", "team/wanted"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let (_, page) = code(&hers, "/jobs?ns=team").await;
    assert!(page.contains("team/wanted") && without_markup(&page).contains("All 1"), "{page}");
    embedded.stop().await;
}

/// An address of each page about objects of namespace `default`.
fn of_default() -> Vec<String> {
    let filled = |form: &str| {
        let path = form.replace("{namespace}", "default").replace("{workload}", "one").replace("{queue}", "blue");
        path.replace("{pod}", "one-0")
    };
    berth_dashboard::routes().map(filled).collect()
}

#[tokio::test(start_paused = true)]
async fn no_page_and_no_stream_shows_a_reader_what_it_may_not_read() {
    let (embedded, clock, hers, whole) = with_ann().await;
    let eve = Client::new(embedded.server().in_process(UserInfo::new("eve", &[])), "default");
    let eves = dashboard(eve, clock);
    // Pages without content of the cluster, and their status.
    let open = [("/style.css", 200), ("/script.js", 200), ("/find", 404), ("/what-if", 200)];
    for path in of_default() {
        for (name, pages) in [("ann", &hers), ("eve", &eves)] {
            let (code, page) = code(pages, &path).await;
            let expected = open.iter().find(|(open, _)| *open == path).map_or(403, |(_, code)| *code);
            assert_eq!(code, expected, "{path} of {name}: {page}");
            let asked: Vec<&str> = OF_OTHERS.into_iter().filter(|text| path.contains(text)).collect();
            let named = OF_OTHERS.iter().find(|text| page.contains(*text) && !asked.contains(text));
            assert_eq!(named, None, "{path} of {name}: {page}");
            // The stream of the page ends at once, without content.
            let Some(updates) = live::updates(pages.clone(), &path, None) else { continue };
            let updates: Vec<_> = Box::pin(updates).take(2).collect().await;
            if expected == 403 {
                let [Ok(last)] = updates.as_slice() else { panic!("{path} of {name}: {updates:?}") };
                assert!(last.starts_with("event: end\n"), "{path} of {name}: {last}");
                let named = OF_OTHERS.iter().find(|text| last.contains(*text) && !asked.contains(text));
                assert_eq!(named, None, "{path} of {name}: {last}");
            }
        }
        let (code, page) = code(&whole, &path).await;
        assert_ne!(code, 403, "{path} of the administrator: {page}");
    }
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_is_answered_with_the_rights_of_the_reader_and_creates_nothing() {
    let (embedded, _, hers, whole) = with_ann().await;
    let manifest = "manifests=apiVersion: batch/v1%0Akind: Job%0Ametadata: {name: new, labels: {kueue.x-k8s.io/queue-name: \
                    main}}%0Aspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: \
                    {requests: {cpu: 1}}}]}}}";
    let (code, page) = question(&hers, &format!("ns=team&{manifest}")).await;
    let shown = without_markup(&page);
    assert!(code == 200 && shown.contains("team/new : It would "), "{code} {shown}");
    assert_eq!(OF_OTHERS.iter().find(|text| page.contains(*text)), None, "{page}");
    assert!(!shown.contains("Mean time to their start"), "figures of the cluster need rights to it: {shown}");
    for scope in ["ns=default", "ns="] {
        let (code, page) = question(&hers, &format!("{scope}&{manifest}")).await;
        assert!(code == 403 && page.contains("You may not read this"), "{scope}: {code} {page}");
    }
    let (code, page) = question(&whole, "ns=&quotas=blue/default/cpu%3D%2B8").await;
    let shown = without_markup(&page);
    assert!(code == 200 && shown.contains("default/two"), "{code} {shown}");
    let (code, page) = question(&whole, "ns=team&manifests=kind: Pod%0Ametadata: {name: a}").await;
    assert!(code == 502 && page.contains("no job that would be queued"), "{code} {page}");
    let (_, page) = crate::readers::code(&whole, "/jobs?ns=team").await;
    assert!(!page.contains("team/new"), "nothing is created: {page}");
    // Another web site cannot ask in the reader's name.
    let request = Request::post("/what-if").header("Host", "localhost").header("Origin", "http://evil.example");
    let refused = whole.answer(&request.body(manifest.to_owned()).expect("a request")).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn updates_follow_changes_and_end_soon_after_a_lost_right() {
    let (embedded, clock, hers, _) = with_ann().await;
    let admin = embedded.admin_client();
    assert!(
        live::updates(hers.clone(), "/script.js", None).is_none()
            && live::updates(hers.clone(), "none", None).is_none()
    );
    let refused = live::updates(hers.clone(), "/jobs", None).expect("a page");
    let first = Box::pin(refused).next().await.expect("an event").expect("no failure");
    assert!(first.starts_with("event: end\n") && !first.contains("team/wanted"), "{first}");

    let mut updates = Box::pin(live::updates(hers, "/jobs?ns=team", None).expect("a page"));
    let mut next = async || updates.next().await.map(|event| event.expect("no failure"));
    let first = next().await.expect("an event");
    assert!(first.contains("\nevent: page\n") && first.contains("team/wanted"), "{first}");
    submit(&admin, "further").await;
    let begin = clock.now();
    loop {
        let event = next().await.expect("an event");
        assert!(clock.now().duration_since(begin).as_secs() <= 5, "{event}");
        if event.contains("team/further") {
            break;
        }
    }
    let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), "team");
    bindings.delete("berth-explanation-viewer-role", &DeleteParams::default()).await.expect("deleted");
    let begin = clock.now();
    loop {
        let event = next().await.expect("an event");
        if event.starts_with("event: end\n") {
            assert!(!event.contains("team/wanted"), "{event}");
            break;
        }
    }
    let seconds = clock.now().duration_since(begin).as_secs();
    assert!(seconds <= 30, "the stream went on for {seconds} s");
    assert_eq!(next().await, None);
    embedded.stop().await;
}

/// The fingerprint of the content of a page.
fn print_of(page: &str) -> String {
    let after = page.split_once("data-shown=\"").expect("a fingerprint").1;
    after.split_once('"').expect("its end").0.to_owned()
}

#[tokio::test(start_paused = true)]
async fn content_that_the_reader_has_is_not_sent_again() {
    let (embedded, _, hers, _) = with_ann().await;
    // A page without ages: its content changes only with the queue.
    let address = "/jobs?ns=team&columns=job";
    let (_, page) = code(&hers, address).await;
    let shown = print_of(&page);
    let mut updates = Box::pin(live::updates(hers.clone(), address, Some(shown.clone())).expect("a page"));
    let mut next = async || updates.next().await.expect("an event").expect("no failure");
    assert_eq!((next().await, next().await), (":\n\n".to_owned(), ":\n\n".to_owned()));
    submit(&embedded.admin_client(), "further").await;
    let mut event = next().await;
    while event == ":\n\n" {
        event = next().await;
    }
    assert!(event.starts_with("id: ") && event.contains("team/further"), "{event}");
    // With the identifier of this event, a connection begins without content; with an older one, with it.
    let id = event[4..].split_once('\n').expect("its end").0.to_owned();
    for (shown, has_content) in [(id, false), (shown, true)] {
        let updates = live::updates(hers.clone(), address, Some(shown)).expect("a page");
        let first: Vec<_> = Box::pin(updates).take(2).map(|it| it.expect("no failure")).collect().await;
        assert_eq!((first[0].as_str(), first[1].contains("team/further")), (":\n\n", has_content), "{first:?}");
    }
    embedded.stop().await;
}
