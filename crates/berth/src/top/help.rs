//! The help page of `berth top`: its views and keys.

use clap::ValueEnum;

use super::views::View;

/// Columns by which a capital letter sorts. The first one that the sheet has is used.
pub const SORTS: [(char, &[&str]); 9] = [
    ('N', &["JOB", "NODE", "POD", "NAME", "OBJECT"]),
    ('A', &["TIME", "AGE", "LAST SEEN"]),
    ('S', &["STATE", "PHASE", "TYPE"]),
    ('Q', &["QUEUE", "CLUSTER QUEUE", "POOL"]),
    ('U', &["USER", "USE", "GPU", "USED"]),
    ('P', &["PRIORITY", "PODS"]),
    ('R', &["REASON", "RUN"]),
    ('C', &["CPU", "COUNT"]),
    ('W', &["WAIT"]),
];

/// Title of the page.
pub const HELP_TITLE: &str = "help";

/// Names of the views.
pub fn view_names() -> String {
    View::value_variants().iter().map(|view| view.name()).collect::<Vec<_>>().join(", ")
}

/// The text of the page.
pub fn help() -> String {
    let keys = [
        (":NAME", "open a view; the beginning of its name is enough"),
        ("/TEXT", "show rows with this text or regular expression; !TEXT shows the others"),
        ("enter", "queue: its jobs; job or pod: why it waits or runs; node: its pods; event: its message"),
        ("e", "explain a job; list the holders of a queue's quota"),
        ("t", "history of a job"),
        ("esc", "clear the filter; back to the page before"),
        ("j k, arrows", "down, up"),
        ("g G", "first, last row"),
        ("ctrl-f ctrl-b", "next, previous page; ctrl-d and ctrl-u half a page"),
        ("ctrl-w", "all columns"),
        ("q, ctrl-c", "quit"),
    ];
    let mut text = format!("Views: {}.\n\n", view_names());
    for (key, does) in keys {
        text.push_str(&format!("{key:<15} {does}\n"));
    }
    text.push_str("\nA capital letter sorts by a column, again in reverse, again not:\n");
    for (letter, columns) in SORTS {
        text.push_str(&format!("{letter:<15} {}\n", columns.join(", ").to_lowercase()));
    }
    text.push_str("\nBars: use within the quota, then borrowed use, then free quota.\n");
    text
}
