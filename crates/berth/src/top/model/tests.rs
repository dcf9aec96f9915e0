//! Keys and what they change.

use berth_runtime::Sight;

use super::*;
use crate::top::fixture;

fn model(view: View) -> Model {
    let mut model = Model::new("https://cluster".to_owned(), view);
    model.read(&fixture::state());
    model
}

/// Types keys: characters, and `<esc>`, `<enter>`, `<back>`, `<down>`, `<ctrl-X>`. Reads the state
/// after keys that ask for that. Returns the last effect.
fn typed(model: &mut Model, keys: &str) -> Effect {
    let mut effect = Effect::Draw;
    let mut rest = keys;
    while let Some(first) = rest.chars().next() {
        let (name, after) = match rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
            Some((name, after)) => (name.to_owned(), after),
            None => (first.to_string(), &rest[first.len_utf8()..]),
        };
        rest = after;
        let (code, modifiers) = match name.as_str() {
            "esc" => (KeyCode::Esc, KeyModifiers::NONE),
            "enter" => (KeyCode::Enter, KeyModifiers::NONE),
            "back" => (KeyCode::Backspace, KeyModifiers::NONE),
            "down" => (KeyCode::Down, KeyModifiers::NONE),
            name => match name.strip_prefix("ctrl-").and_then(|key| key.chars().next()) {
                Some(key) => (KeyCode::Char(key), KeyModifiers::CONTROL),
                None => (KeyCode::Char(first), KeyModifiers::NONE),
            },
        };
        effect = model.key(KeyEvent::new(code, modifiers));
        if effect == Effect::Read {
            model.read(&fixture::state());
        }
    }
    effect
}

fn table(model: &Model) -> &TablePage {
    match model.page() {
        Page::Table(table) => table,
        Page::Text(text) => panic!("a text is open: {}", text.title),
    }
}

/// Identifiers of the shown rows.
fn ids(model: &Model) -> Vec<&str> {
    let table = table(model);
    table.shown.iter().map(|at| table.sheet.rows[*at].id.as_str()).collect()
}

fn selected(model: &Model) -> &str {
    ids(model)[table(model).selected]
}

#[test]
fn a_view_is_opened_by_its_name_an_alias_or_the_beginning_of_its_name() {
    let mut model = model(View::Queues);
    for (typed_name, view) in
        [("jobs", View::Jobs), ("no", View::Nodes), ("wl", View::Jobs), ("ev", View::Events), ("lo", View::LocalQueues)]
    {
        assert_eq!(typed(&mut model, &format!(":{typed_name}<enter>")), Effect::Read);
        assert_eq!(table(&model).view(), view, "{typed_name}");
    }
    assert_eq!(typed(&mut model, ":nothing<enter>"), Effect::Draw);
    assert!(model.message.starts_with("no view nothing; there are queues, "), "{}", model.message);
    assert_eq!(table(&model).view(), View::LocalQueues);
    assert_eq!(typed(&mut model, ":q<enter>"), Effect::Quit);
    assert_eq!(typed(&mut model, ":<back>q"), Effect::Quit, "an empty command is left by backspace");
}

#[test]
fn the_same_row_stays_selected_when_the_rows_change() {
    let mut model = model(View::Jobs);
    assert_eq!(ids(&model), ["team-blue/job-train-1", "team-blue/job-train-2", "team-blue/job-train-3"]);
    typed(&mut model, "j<down>");
    assert_eq!(selected(&model), "team-blue/job-train-3");
    let mut state = fixture::state();
    state.workloads.objects.remove(0);
    model.read(&state);
    assert_eq!((selected(&model), table(&model).selected), ("team-blue/job-train-3", 1));
    state.workloads.objects.truncate(1);
    model.read(&state);
    assert_eq!(selected(&model), "team-blue/job-train-2", "the selected row is gone");
    state.workloads.objects.clear();
    model.read(&state);
    assert_eq!(typed(&mut model, "jkGg<ctrl-d><enter>e"), Effect::Draw, "without rows, keys do nothing");
}

#[test]
fn a_filter_applies_while_it_is_typed_and_esc_clears_it() {
    let mut model = model(View::Jobs);
    typed(&mut model, "/bob");
    assert_eq!(ids(&model), ["team-blue/job-train-2", "team-blue/job-train-3"]);
    typed(&mut model, "<enter>");
    assert_eq!((model.mode.clone(), ids(&model).len()), (Mode::Keys, 2));
    assert_eq!(typed(&mut model, "<esc>"), Effect::Draw);
    assert_eq!(ids(&model).len(), 3);
    typed(&mut model, "/!bob<enter>");
    assert_eq!(ids(&model), ["team-blue/job-train-1"]);
    assert_eq!(typed(&mut model, "/<ctrl-u>zq<enter>"), Effect::Draw, "q is part of the filter");
    assert!(ids(&model).is_empty());
}

#[test]
fn capital_letters_sort_up_and_down_and_not() {
    let mut model = model(View::Jobs);
    let order = |model: &Model| ids(model).iter().map(|id| id.replace("team-blue/job-train-", "")).collect::<String>();
    typed(&mut model, "U");
    assert_eq!(order(&model), "123");
    typed(&mut model, "U");
    assert_eq!(order(&model), "231", "rows with the same value keep their order");
    typed(&mut model, "U");
    assert_eq!((order(&model).as_str(), table(&model).sort), ("123", None));
    typed(&mut model, "S");
    assert_eq!(order(&model), "123");
    typed(&mut model, "Z");
    assert!(model.message.starts_with("Z sorts no column"), "{}", model.message);
}

#[test]
fn enter_opens_the_jobs_of_a_queue_and_of_a_cohort() {
    let mut model = model(View::Queues);
    assert_eq!(ids(&model), ["cohort/research/default/cpu", "queue/blue/default/cpu", "queue/green/default/cpu"]);
    typed(&mut model, "<enter>");
    assert_eq!(table(&model).scope.title(), "cohort research");
    assert_eq!(ids(&model).len(), 3, "a waiting job is found by its LocalQueue");
    assert_eq!(typed(&mut model, "<esc>"), Effect::Read);
    typed(&mut model, "G<enter>");
    assert_eq!((table(&model).scope.title().as_str(), ids(&model).len()), ("green", 0));
    typed(&mut model, "<esc>k");
    assert_eq!(typed(&mut model, "e"), Effect::Ask(Question::Holders("blue".to_owned())));
}

#[test]
fn enter_on_a_job_asks_why_and_shows_the_answer_on_its_page() {
    let mut model = model(View::Jobs);
    let Effect::Ask(question) = typed(&mut model, "G<enter>") else { panic!("a question") };
    let (namespace, name) = ("team-blue".to_owned(), "job-train-3".to_owned());
    assert_eq!(question, Question::Explain { namespace: namespace.clone(), name: name.clone() });
    assert_eq!(model.question(), Some(&question));
    model.answer(&question, "it waits".to_owned());
    assert!(matches!(model.page(), Page::Text(page) if page.text.as_deref() == Some("it waits")));
    model.answer(&Question::History { namespace: namespace.clone(), name: name.clone() }, "late".to_owned());
    assert!(matches!(model.page(), Page::Text(page) if page.text.as_deref() == Some("it waits")));
    typed(&mut model, "<esc>");
    assert_eq!(selected(&model), "team-blue/job-train-3");
    assert_eq!(typed(&mut model, "t"), Effect::Ask(Question::History { namespace, name }));
}

#[test]
fn a_node_opens_its_pods_and_an_event_its_message() {
    let mut model = model(View::Gpus);
    assert_eq!(ids(&model), ["gpu-1", "gpu-2"]);
    typed(&mut model, "<enter>");
    assert_eq!((table(&model).view(), ids(&model)), (View::Pods, vec!["team-blue/train-1-0"]));
    typed(&mut model, "<esc>j<enter>");
    assert_eq!(ids(&model).len(), 0);
    typed(&mut model, ":events<enter><enter>");
    assert!(
        matches!(model.page(), Page::Text(page) if page.text.as_deref().is_some_and(|text| text.contains("newer")))
    );
}

#[test]
fn a_kind_that_is_forbidden_is_reported() {
    let mut state = fixture::state();
    state.workloads.objects.clear();
    state.workloads.sight = Some(Sight::Forbidden("workloads is forbidden".to_owned()));
    state.pods.sight = Some(Sight::Live(Some("team-blue".to_owned())));
    let mut jobs = model(View::Jobs);
    jobs.read(&state);
    assert_eq!(table(&jobs).sheet.notices, ["You may not list workloads: workloads is forbidden"]);
    let mut nodes = model(View::Nodes);
    nodes.read(&state);
    let notices = &table(&nodes).sheet.notices;
    assert!(notices[0].starts_with("The use of nodes is not shown"), "{notices:?}");
    assert!(nodes.summary.ends_with("4 nvidia.com/gpu"), "{}", nodes.summary);
    let mut pods = model(View::Pods);
    pods.read(&state);
    assert!(table(&pods).sheet.notices[0].starts_with("Only the pods of namespace team-blue"));
}

#[test]
fn pages_are_limited_and_the_first_one_is_never_closed() {
    let mut model = model(View::Queues);
    for _ in 0..PAGES_MAX * 2 {
        typed(&mut model, ":jobs<enter>");
    }
    assert_eq!(model.pages.len(), PAGES_MAX);
    for _ in 0..PAGES_MAX * 2 {
        typed(&mut model, "<esc>");
    }
    assert_eq!(model.pages.len(), 1);
    assert_eq!(typed(&mut model, "?"), Effect::Draw);
    assert!(
        matches!(model.page(), Page::Text(page) if page.text.as_deref().is_some_and(|text| text.contains("ctrl-w")))
    );
    assert_eq!(typed(&mut model, "<ctrl-c>"), Effect::Quit);
}
