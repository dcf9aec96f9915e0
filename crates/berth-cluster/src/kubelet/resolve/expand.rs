//! Expansion of `$(VAR)` in commands, arguments, values and paths.

/// Replaces each `$(NAME)` with the variable's value. `$$` stands for a dollar sign. References to
/// unknown variables and all other text remain unchanged.
///
/// Source: Kubernetes documentation, "Define Dependent Environment Variables".
pub fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    expand_all(text, |name| Ok(value(name).unwrap_or_else(|| format!("$({name})")))).unwrap_or_else(|error| error)
}

/// Like [`expand`], but fails at the first variable whose value is an error.
pub fn expand_all(text: &str, value: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            expanded.push('$');
            rest = escaped;
        } else if let Some((name, left)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            expanded.push_str(&value(name)?);
            rest = left;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_escaped_ones_are_not() {
        let value = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("$(A)-$(B)", "1-$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A ${A} $(A", "$A ${A} $(A"),
            ("cost: 5$", "cost: 5$"),
            ("", ""),
        ] {
            assert_eq!(expand(text, value), expected, "{text}");
        }
    }
}
