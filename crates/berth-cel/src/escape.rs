//! Escaping of field names that are not CEL identifiers.
//!
//! Source: Kubernetes documentation, "Custom Resources: Validation rules", the table of escape
//! sequences.

const KEYWORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub(crate) fn is_keyword(name: &str) -> bool {
    KEYWORDS.contains(&name)
}

/// The identifier of a field; `None` if expressions cannot access the field.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if is_keyword(name) {
        return Some(format!("__{name}__"));
    }
    let mut escaped = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            escaped.push_str("__underscores__");
            rest = after;
            continue;
        }
        match c {
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            c if c == '_' || c.is_ascii_alphanumeric() => escaped.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    Some(escaped)
}

/// The field of an identifier; `None` if [`escape`] does not produce the identifier.
pub fn unescape(escaped: &str) -> Option<String> {
    if let Some(word) = escaped.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"))
        && is_keyword(word)
    {
        return Some(word.to_owned());
    }
    let mut name = String::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some(at) = rest.find("__") {
        name.push_str(&rest[..at]);
        let after = &rest[at + 2..];
        let sequences = [("underscores__", "__"), ("dot__", "."), ("dash__", "-"), ("slash__", "/")];
        let (sequence, text) = sequences.iter().find(|(sequence, _)| after.starts_with(sequence))?;
        name.push_str(text);
        rest = &after[sequence.len()..];
    }
    name.push_str(rest);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_survive_a_round_trip() {
        for name in ["a", "a.b", "a-b/c", "a__b", "if", "_x", "x_"] {
            assert_eq!(escape(name).as_deref().and_then(unescape).as_deref(), Some(name), "{name}");
        }
        assert_eq!(escape("a b"), None);
        assert_eq!(escape("1a"), None);
        assert_eq!(unescape("a__b"), None);
    }
}
