//! The script and the style sheet in headless Chromium. The test answers the browser's requests, so
//! it decides when a response arrives, and no port is used.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_dashboard::{Dashboard, live};
use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::hostile::{client, clock, refusal};
use crate::{ask, dashboard};

/// Longest wait for a message of the browser, on a machine that compiles at the same time.
const PATIENCE: Duration = Duration::from_secs(60);
const ORIGIN: &str = "http://localhost:8080";

/// A page in headless Chromium, driven by the DevTools protocol. The browser ends when this is dropped.
struct Browser {
    chromium: Child,
    commands: ChildStdin,
    messages: mpsc::Receiver<Value>,
    last: u64,
    session: Option<String>,
    /// Requests that are not answered yet, in order.
    requests: VecDeque<Paused>,
    _profile: TempDir,
}

/// A request of the browser that waits for its response.
struct Paused {
    id: String,
    path: String,
}

impl Browser {
    /// Skips the running test if Chromium is not installed.
    fn start() -> Option<Self> {
        if !Command::new("chromium").arg("--version").output().is_ok_and(|output| output.status.success()) {
            berth_testing::skip("chromium is not installed");
            return None;
        }
        let profile = tempfile::tempdir().expect("a folder");
        // Chromium reads commands at descriptor 3 and writes messages at descriptor 4. The sandbox does
        // not work for root and in containers; the pages under test are ours.
        let run = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                   --user-data-dir=\"$0\" --remote-debugging-pipe about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut chromium = Command::new("sh")
            .args(["-c", run])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let (commands, answers) = (chromium.stdin.take().expect("a pipe"), chromium.stdout.take().expect("a pipe"));
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Ok(message) = message else { return };
                let message = serde_json::from_slice(&message).expect("a message is JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Self { chromium, commands, messages, last: 0, session: None, requests: VecDeque::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser.call("Fetch.enable", json!({"patterns": [{"urlPattern": "*"}]}));
        browser.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        let screen = json!({"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        browser.call("Emulation.setDeviceMetricsOverride", screen);
        Some(browser)
    }

    fn message(&mut self) -> Value {
        self.messages.recv_timeout(PATIENCE).expect("Chromium sends a message in time")
    }

    /// Sends a command and returns its result.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.send(method, parameters);
        loop {
            let message = self.message();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.keep(&message);
        }
    }

    /// Sends a command without waiting for its result.
    fn send(&mut self, method: &str, parameters: Value) -> u64 {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("Chromium reads commands");
        self.last
    }

    /// Keeps a request that the browser makes.
    fn keep(&mut self, message: &Value) {
        if message["method"] == "Fetch.requestPaused" {
            let (id, url) = (&message["params"]["requestId"], &message["params"]["request"]["url"]);
            let path = url.as_str().and_then(|url| url.strip_prefix(ORIGIN)).unwrap_or_default();
            let id = id.as_str().expect("an identifier").to_owned();
            self.requests.push_back(Paused { id, path: path.to_owned() });
        }
    }

    /// The next request whose path begins like this.
    fn request(&mut self, begin: &str) -> Paused {
        loop {
            if let Some(at) = self.requests.iter().position(|request| request.path.starts_with(begin)) {
                return self.requests.remove(at).expect("it was found");
            }
            let message = self.message();
            self.keep(&message);
        }
    }

    fn respond(&mut self, request: &Paused, media: &str, body: &str) {
        self.call(
            "Fetch.fulfillRequest",
            json!({"requestId": request.id, "responseCode": 200, "body": BASE64_STANDARD.encode(body),
                "responseHeaders": [{"name": "Content-Type", "value": media}]}),
        );
    }

    /// Responds as the pages do.
    async fn serve(&mut self, pages: &Dashboard, request: &Paused) {
        let response = ask(pages, Method::GET, &request.path, "localhost:8080").await;
        let media = response.headers()["Content-Type"].to_str().expect("a media type").to_owned();
        self.respond(request, &media, response.body());
    }

    /// Opens a page with its style sheet and script.
    async fn open(&mut self, pages: &Dashboard, path: &str) {
        self.send("Page.navigate", json!({"url": format!("{ORIGIN}{path}")}));
        for begin in [path, "/style.css", "/script.js"] {
            let request = self.request(begin);
            self.serve(pages, &request).await;
        }
        self.wait_for("document.readyState === 'complete'");
    }

    /// The value of an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until a condition is true, and for the frame after that.
    fn wait_for(&mut self, condition: &str) {
        let seconds = PATIENCE.as_secs();
        let wait = format!(
            "new Promise((done, failed) => {{ const end = performance.now() + {seconds}000; const look = () => {{ \
             if ({condition}) requestAnimationFrame(() => setTimeout(done, 0)); \
             else if (performance.now() > end) failed(new Error('it does not become true')); \
             else setTimeout(look, 5); }}; look(); }})"
        );
        self.value(&wait);
    }

    /// Presses keys one after the other.
    fn press(&mut self, keys: &str) {
        for key in keys.chars() {
            let key = key.to_string();
            self.call("Input.dispatchKeyEvent", json!({"type": "keyDown", "key": key, "text": key}));
            self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key}));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.chromium.kill();
        let _ = self.chromium.wait();
    }
}

/// The pages of a cluster with these waiting jobs, each with a reason, and with so many groups.
fn pages(jobs: &[(&str, &str)], groups: usize) -> Dashboard {
    let job = |(name, reason): &(&str, &str)| {
        json!({"workload": {"namespace": "team", "name": name}, "state": "Waiting", "reason": reason,
            "clusterQueue": "main", "user": "ann"})
    };
    let jobs: Vec<Value> = jobs.iter().map(job).collect();
    let groups: Vec<Value> = (0..groups).map(|at| json!({"value": format!("user-{at}"), "jobs": 1})).collect();
    let list = json!({"total": jobs.len(), "states": {"Waiting": jobs.len()}, "items": jobs, "groups": groups});
    let answer = move |path: &str| if path.ends_with("/currentjobs") { list.clone() } else { refusal(404, "none") };
    dashboard(client(answer), clock())
}

#[tokio::test]
async fn a_list_is_filtered_by_the_first_letter_and_then_by_what_was_typed_meanwhile() {
    let Some(mut browser) = Browser::start() else { return };
    let pages = pages(&[("a", "NoFit")], 0);
    browser.open(&pages, "/jobs").await;
    browser.press("/a");
    let first = browser.request("/jobs");
    assert_eq!(first.path, "/jobs?q=a");
    browser.value("window.field = document.activeElement");
    browser.press("bc");
    browser.value("new Promise((done) => setTimeout(done, 200))");
    assert!(!browser.requests.iter().any(|it| it.path.starts_with("/jobs")), "the first one is not answered yet");
    browser.serve(&pages, &first).await;
    let second = browser.request("/jobs");
    assert_eq!(second.path, "/jobs?q=abc");
    browser.serve(&pages, &second).await;
    browser.wait_for("location.search === '?q=abc'");
    // The reader types on in the same field.
    assert_eq!(browser.value("window.field === document.activeElement && window.field.value"), "abc");
    assert!(!browser.requests.iter().any(|it| it.path.starts_with("/jobs")), "there is nothing more to ask for");
}

#[tokio::test]
async fn a_page_that_is_opened_meanwhile_comes_in_place_of_a_filter() {
    let Some(mut browser) = Browser::start() else { return };
    let pages = pages(&[("a", "NoFit")], 0);
    browser.open(&pages, "/jobs").await;
    browser.press("/a");
    let filter = browser.request("/jobs");
    browser.press("b");
    browser.value("document.activeElement.blur()");
    browser.press("gj");
    let page = browser.request("/jobs");
    assert_eq!(page.path, "/jobs");
    browser.serve(&pages, &page).await;
    browser.serve(&pages, &filter).await;
    browser.value("new Promise((done) => setTimeout(done, 200))");
    assert_eq!(browser.value("location.search + document.querySelector('input[name=q]').value"), "");
    assert!(!browser.requests.iter().any(|it| it.path.starts_with("/jobs")), "the filter is dropped");
}

#[tokio::test]
async fn an_update_changes_only_what_is_different() {
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&pages(&[("a", "NoFit"), ("b", "NoFit"), ("c", "NoFit")], 0), "/jobs").await;
    browser.press("jj");
    browser.value(
        "window.before = [...document.querySelectorAll('tbody tr')]; document.querySelector('details').open = true",
    );
    let changed = pages(&[("new", "NoFit"), ("a", "NoFit"), ("b", "NoQuota")], 0);
    let updates = live::updates(changed, "/jobs", None).expect("a page");
    let update = std::pin::pin!(updates).next().await.expect("an update").expect("a text");
    let stream = browser.request("/live");
    browser.respond(&stream, "text/event-stream", &update);
    browser.wait_for("document.querySelector('tbody a').textContent === 'team/new'");
    let rows = "[...document.querySelectorAll('tbody tr')]";
    let kept = browser.value(&format!("{rows}.map((row) => window.before.indexOf(row))"));
    assert_eq!(kept, json!([-1, 0, 1]), "the rows of a and b are those from before");
    let shown = browser.value(&format!("{rows}.map((row) => row.lastElementChild.textContent)"));
    assert_eq!(shown, json!(["NoFit", "NoFit", "NoQuota"]));
    // What the reader has chosen and opened stays.
    assert_eq!(browser.value("document.querySelector('tr.selected a').textContent"), "team/b");
    assert_eq!(browser.value("document.activeElement.textContent"), "team/b");
    assert_eq!(browser.value("document.querySelector('details').open"), true);
}

#[tokio::test]
async fn a_table_below_a_long_list_is_laid_out_when_the_reader_comes_near() {
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&pages(&[("a", "NoFit")], 200), "/jobs?group=user").await;
    let is_laid_out = "document.querySelector('table.rows').checkVisibility({contentVisibilityAuto: true})";
    browser.wait_for("document.querySelector('table.rows')");
    assert_eq!(browser.value(is_laid_out), false);
    browser.value("scrollTo(0, document.body.scrollHeight)");
    browser.wait_for(is_laid_out);
    browser.open(&pages(&[("a", "NoFit")], 2), "/jobs?group=user&sort=name").await;
    browser.wait_for(is_laid_out);
}
