//! The terminal after a panic, seen by tmux.

use std::io::IsTerminal;

use berth_testing::tmux::Tmux;

use super::*;

/// Not a test by itself: the program that the other test runs in a terminal.
#[test]
#[ignore = "runs in a terminal of a_panic_restores_the_terminal"]
fn panics_on_the_screen() {
    if !io::stdout().is_terminal() {
        return;
    }
    let mut screen = Screen::enter().expect("a terminal");
    screen.terminal.draw(|frame| frame.render_widget("the screen is taken", frame.area())).expect("drawn");
    let task = std::thread::spawn(|| panic!("a failure of a task"));
    assert!(task.join().is_err());
    assert!(!Screen::is_entered(), "the panic has restored the terminal");
}

#[test]
fn a_panic_restores_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("the path of this test");
    let command = format!(
        "stty -g > {0}/before; {1} --ignored --exact top::screen::tests::panics_on_the_screen --nocapture; \
         stty -g > {0}/after; echo 'status'' printed'; sleep 1000",
        folder.path().display(),
        program.display()
    );
    let Some(tmux) = Tmux::start(folder.path(), 80, 24, &command) else { return };
    let screen = tmux.wait_for(&["status printed"]);
    assert!(screen.contains("a failure of a task"), "the message is on the screen of the shell: {screen}");
    assert!(screen.contains("1 passed"), "{screen}");
    assert!(!screen.contains("the screen is taken"), "{screen}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("written");
    assert_eq!(read("before"), read("after"), "the modes of the terminal");
    assert_eq!([tmux.value("#{alternate_on}"), tmux.value("#{cursor_flag}")], ["0", "1"]);
}
