//! Screens, drawn on ratatui's test backend.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::top::fixture;
use crate::top::views::View;

const PLAIN: Look = Look { has_color: false, has_unicode: true };

fn model(view: View, keys: &str) -> Model {
    let mut model = Model::new("https://cluster".to_owned(), view);
    model.read(&fixture::state());
    for key in keys.chars() {
        let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
        model.key(KeyEvent::from(code));
        model.read(&fixture::state());
    }
    model
}

fn buffer(model: &mut Model, look: Look, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let drawn = terminal.draw(|frame| {
        draw(model, look, frame.area(), frame.buffer_mut());
    });
    drawn.expect("drawn");
    terminal.backend().buffer().clone()
}

/// The lines of the screen, without spaces at their ends.
fn lines(model: &mut Model, look: Look, width: u16, height: u16) -> Vec<String> {
    let buffer = buffer(model, look, width, height);
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// The lines of a screen of 80 columns and 10 lines without the head and the foot.
fn body(view: View, keys: &str) -> Vec<String> {
    let all = lines(&mut model(view, keys), PLAIN, 80, 10);
    let body = &all[2..9];
    body.iter().filter(|line| !line.is_empty()).cloned().collect()
}

#[test]
fn the_screen_has_a_head_a_table_and_the_main_keys() {
    let expected = [
        "berth top  https://cluster                                  2026-01-05T09:10:00Z",
        "2 queues: 1 waiting, 2 running   1 of 2 nodes ready   1 of 4 nvidia.com/gpu",
        "queues(all)[3]                                                               1/3",
        "NAME     FLAVOR  RESOURCE USE          USED/QUOTA BORROW WAIT RUN MAY BORROW",
        "research default cpu      ████████████ 8/8               1    2",
        "  blue   default cpu      ██████▒▒▒▒▒▒ 8/4        4      1    2   8",
        "  green  default cpu      ············ 0/4               0    0   8",
        "",
        "",
        ": view   / filter   enter open   e explain   t history   ? help   q quit",
    ];
    assert_eq!(lines(&mut model(View::Queues, ""), PLAIN, 80, 10), expected);
}

#[test]
fn each_view_fits_in_80_columns() {
    let jobs = [
        "jobs(all)[2] /bob                                                            1/2",
        "NAMESPACE JOB     QUEUE USER STATE   TIME PODS PRIORITY REASON",
        "team-blue train-2 main  bob  Running 10m  2    0",
        "team-blue train-3 main  bob  Waiting 10m  2    0        WaitingForQuota",
    ];
    assert_eq!(body(View::Jobs, "/bob\n"), jobs);
    let nodes = [
        "nodes(all)[2] by state down                                                  1/2",
        "NODE  STATE POOL CPU   GPU HEALTH PODS REASON         AGE MEMORY ACCELERATOR",
        "gpu-1 mixed l4   0.5/8 1/2 <none> 1                   70m -      nvidia.com/gpu",
        "gpu-2 down  l4   0/8   0/2 <none> 0    KubeletStopped 70m -      nvidia.com/gpu",
    ];
    assert_eq!(body(View::Nodes, "SS"), nodes);
    let gpus = [
        "gpus(all)[2]                                                                 1/2",
        "NODE  MODEL     USE            USED/ALL BUSY   PODS                   POOL",
        "gpu-1 nvidia-l4 ███████······· 1/2      35% 0% team-blue/train-1-0: 1 l4",
        "gpu-2 nvidia-l4 ·············· 0/2      <none>                        l4",
    ];
    assert_eq!(body(View::Gpus, ""), gpus);
    let pods = [
        "pods(gpu-1)[1]                                                               1/1",
        "NAMESPACE POD       PHASE   NODE  CPU  MEMORY ACCELERATORS     AGE",
        "team-blue train-1-0 Running gpu-1 500m -      1 nvidia.com/gpu 10m",
    ];
    assert_eq!(body(View::Gpus, "\n"), pods);
    let local_queues = [
        "local-queues(all)[1]                                                         1/1",
        "NAMESPACE NAME CLUSTER QUEUE WAIT RESERVING RUN USED",
        "team-blue main blue          1    0         2   <none>",
    ];
    assert_eq!(body(View::LocalQueues, ""), local_queues);
}

#[test]
fn control_characters_of_the_cluster_do_not_reach_the_terminal() {
    let events = [
        "events(all)[2]                                                               1/2",
        "LAST SEEN TYPE    REASON  OBJECT               MESSAGE",
        "60s       Warning Pending workload/job-train-3 newer:  [31mred second line",
        "9m        Normal  Pending workload/job-train-3 older",
    ];
    assert_eq!(body(View::Events, ""), events);
}

#[test]
fn a_narrow_screen_cuts_the_widest_columns_and_then_the_last_ones() {
    let narrow = lines(&mut model(View::Jobs, ""), PLAIN, 40, 8);
    assert!(narrow[3].starts_with("NAMES… JOB"), "{narrow:#?}");
    assert!(narrow[4].starts_with("team-… tr…n-1"), "{narrow:#?}");
    let pool = "gke-reserved-np-8c638bfe-blbf";
    assert_eq!(shortened_within(pool, 11, 5, '…'), "gke-r…-blbf");
    assert_eq!(shortened_within(pool, 40, 5, '…'), pool);
    for (width, height) in [(0, 0), (1, 1), (3, 2), (7, 3), (12, 4)] {
        for view in [View::Queues, View::Jobs, View::Events] {
            lines(&mut model(view, ""), PLAIN, width, height);
            lines(&mut model(view, "?"), PLAIN, width, height);
            lines(&mut model(view, "/train"), PLAIN, width, height);
        }
    }
}

#[test]
fn a_wide_screen_has_the_wide_columns() {
    let wide = lines(&mut model(View::Queues, ""), PLAIN, 160, 8);
    assert!(wide[3].ends_with("BORROW  WAIT  RUN  MAY BORROW  MAY LEND  PROBLEM"), "{wide:#?}");
    let jobs = lines(&mut model(View::Jobs, ""), PLAIN, 160, 8);
    assert!(jobs[3].ends_with("REASON           CLUSTER QUEUE  HOLDS             WORKLOAD"), "{jobs:#?}");
}

#[test]
fn colors_are_used_only_if_the_user_wants_them() {
    let colors = |look: Look| {
        let buffer = buffer(&mut model(View::Jobs, ""), look, 80, 10);
        buffer.content().iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(colors(PLAIN), 0);
    assert!(colors(Look { has_color: true, has_unicode: true }) > 100);
    let plain = buffer(&mut model(View::Jobs, "j"), PLAIN, 80, 10);
    let reversed = |y: u16| plain[(0, y)].modifier.contains(Modifier::REVERSED);
    assert_eq!([reversed(4), reversed(5), reversed(6)], [false, true, false]);
    let ascii = lines(&mut model(View::Queues, ""), Look { has_color: false, has_unicode: false }, 80, 10);
    assert!(ascii[5].contains("######++++++"), "{ascii:#?}");
    assert!(ascii.iter().all(|line| line.is_ascii()), "{ascii:#?}");
}

#[test]
fn the_selected_row_is_on_the_screen_and_the_last_screen_is_full() {
    let mut long = model(View::Jobs, "");
    let mut state = fixture::state();
    let first = state.workloads.objects[0].clone();
    state.workloads.objects = (0..100)
        .map(|at| {
            let mut workload = (*first).clone();
            workload.metadata.name = Some(format!("w-{at:03}"));
            workload.metadata.owner_references = None;
            std::sync::Arc::new(workload)
        })
        .collect();
    long.read(&state);
    let rows = |model: &mut Model| {
        let all = lines(model, PLAIN, 80, 10);
        all[4..9].iter().map(|line| line[10..15].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(rows(&mut long), ["w-000", "w-001", "w-002", "w-003", "w-004"]);
    long.key(KeyEvent::from(KeyCode::Char('G')));
    assert_eq!(rows(&mut long), ["w-095", "w-096", "w-097", "w-098", "w-099"]);
    long.key(KeyEvent::from(KeyCode::PageUp));
    assert_eq!(rows(&mut long)[0], "w-094");
    long.key(KeyEvent::from(KeyCode::Char('g')));
    assert_eq!(rows(&mut long)[0], "w-000");
}

#[test]
fn a_text_is_wrapped_between_words_and_scrolled_to_its_end() {
    assert_eq!(wrapped("  Held by: a long name of a job", 16), ["  Held by: a", "  long name of a", "  job"]);
    assert_eq!(wrapped("abcdefghijklmnopqrst", 8), ["abcdefgh", "ijklmnop", "qrst"]);
    assert_eq!(wrapped("key    does  a thing here", 16), ["key    does  a", "thing here"]);
    assert_eq!(wrapped("", 10), [""]);
    let mut help = model(View::Queues, "?G");
    let end = lines(&mut help, PLAIN, 80, 12);
    assert!(end[10].starts_with("Bars: "), "{end:#?}");
    // Back from the end, for any number of lines.
    help.key(KeyEvent::from(KeyCode::Char('k')));
    assert!(!lines(&mut help, PLAIN, 80, 12)[10].starts_with("Bars: "));
}

#[test]
fn typed_text_has_the_cursor_at_its_end() {
    let mut model = model(View::Queues, ":jo");
    let mut buffer = Buffer::empty(Rect::new(0, 0, 20, 6));
    let cursor = draw(&mut model, PLAIN, buffer.area, &mut buffer);
    assert_eq!(cursor, Some(Position { x: 3, y: 5 }));
    let cursor = draw(&mut model, PLAIN, Rect::new(0, 0, 3, 6), &mut buffer);
    assert_eq!(cursor, Some(Position { x: 2, y: 5 }));
}
