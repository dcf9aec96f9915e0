//! Regular expressions: the syntax is RE2's, which the regex crate shares but for its error texts.

/// What upstream would say about a pattern it cannot read.
pub(crate) fn go_error(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let reasons = [
        ("unopened group", "unexpected )"),
        ("unclosed group", "missing closing )"),
        ("unclosed character class", "missing closing ]"),
        ("repetition operator missing expression", "missing argument to repetition operator"),
        ("unrecognized escape sequence", "invalid escape sequence"),
        ("invalid character class range", "invalid character class range"),
    ];
    match reasons.iter().find(|(ours, _)| text.contains(ours)) {
        Some((_, reason)) => format!("{reason}: `{pattern}`"),
        None => format!("invalid pattern: `{pattern}`"),
    }
}
