//! Completions of shells and kubectl, and manual pages.

use std::process::Command;

#[test]
fn completions_and_manual_pages_are_of_all_commands() {
    let printed = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_berth")).args(arguments).output().expect("berth runs");
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (shell, mark) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef berth"),
        ("fish", "complete -c berth"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = printed(&["completion", shell]);
        assert!(script.contains(mark) && script.contains("why-preempted"), "{shell}");
    }
    // The shells accept their scripts.
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("completion");
    std::fs::write(&script, printed(&["completion", "bash"])).expect("written");
    let checked = Command::new("bash").arg("-n").arg(&script).status().expect("bash runs");
    assert!(checked.success());
    let pages = folder.path().join("man");
    printed(&["man", "--dir", &pages.display().to_string()]);
    for page in ["berth.1", "berth-top.1", "berth-list-workload.1"] {
        let text = std::fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains(".TH "), "{page}");
    }
    assert!(printed(&["man"]).contains(".SH NAME"));

    // kubectl asks a program of this name for the words of its plugin.
    let link = folder.path().join("kubectl_complete-berth");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), &link).expect("a link");
    let completed = |words: &[&str]| {
        let output = Command::new(&link).args(words).output().expect("berth runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(completed(&["why"]).starts_with("why-preempted\t"), "{}", completed(&["why"]));
    assert!(completed(&["top", "q"]).starts_with("queues"), "{}", completed(&["top", "q"]));
    let plugin = folder.path().join("kubectl-berth");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), &plugin).expect("a link");
    let help = Command::new(&plugin).args(["queue", "--help"]).output().expect("berth runs");
    assert!(String::from_utf8_lossy(&help.stdout).contains("Usage: kubectl berth queue"), "{help:?}");
}
