//! JSONPath templates as kubectl takes them: `{.items[*].job.name}`, text around paths, quoted text
//! such as `{"\n"}`, and `{range .items[*]}…{end}`.

use berth_apimachinery::jsonpath::JsonPath;
use serde_json::Value;

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// Text as it is.
    Text(String),
    /// The values of a path, separated by spaces.
    Path(JsonPath),
    /// Parts that are repeated for each value of a path.
    Range(JsonPath, Vec<Part>),
}

impl Template {
    /// Parses a template. A path without braces is a template of that path.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.contains('{') && text.starts_with(['.', '$', '[']) {
            return Ok(Self(vec![Part::Path(path(text)?)]));
        }
        // The parts of the template, then those of each range that is open.
        let mut open: Vec<(Option<JsonPath>, Vec<Part>)> = vec![(None, Vec::new())];
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            let action = &rest[start + 1..];
            let end = end_of_action(action).ok_or_else(|| format!("{}: the brace is not closed", &rest[start..]))?;
            let (before, inside) = (&rest[..start], action[..end].trim());
            rest = &action[end + 1..];
            let parts = &mut open.last_mut().expect("the template itself is never closed").1;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            if inside == "end" {
                match open.pop() {
                    Some((Some(range), body)) => {
                        let parts = &mut open.last_mut().expect("a range is within the template").1;
                        parts.push(Part::Range(range, body));
                    }
                    _ => return Err("{end} without {range}".to_owned()),
                }
            } else if let Some(range) = inside.strip_prefix("range").filter(|it| it.starts_with([' ', '.', '['])) {
                open.push((Some(path(range.trim())?), Vec::new()));
            } else if let Some(text) = quoted(inside) {
                parts.push(Part::Text(text?));
            } else {
                parts.push(Part::Path(path(inside)?));
            }
        }
        let (range, mut parts) = open.pop().expect("the template itself is never closed");
        if range.is_some() {
            return Err("{range} without {end}".to_owned());
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// The template with the values of an object. Paths without a value are empty.
    pub fn render(&self, value: &Value) -> String {
        let mut text = String::new();
        render(&self.0, value, &mut text);
        text
    }

    /// The values of all paths of the template, as kubectl's `jsonpath-as-json` prints them.
    pub fn values(&self, value: &Value) -> Vec<Value> {
        let mut found = Vec::new();
        collect(&self.0, value, &mut found);
        found
    }
}

fn path(text: &str) -> Result<JsonPath, String> {
    JsonPath::parse(text).map_err(|error| error.to_string())
}

/// The position of the brace that closes an action.
fn end_of_action(text: &str) -> Option<usize> {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, character) in text.char_indices() {
        match quote {
            _ if is_escaped => is_escaped = false,
            Some(_) if character == '\\' => is_escaped = true,
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if matches!(character, '"' | '\'') => quote = Some(character),
            None if character == '}' => return Some(at),
            None => {}
        }
    }
    None
}

/// The text of a quoted string; `None` without quotes.
fn quoted(text: &str) -> Option<Result<String, String>> {
    let quote = text.chars().next().filter(|it| matches!(it, '"' | '\''))?;
    let Some(inside) = text[1..].strip_suffix(quote) else {
        return Some(Err(format!("{text}: expected one quoted text")));
    };
    let (mut unescaped, mut characters) = (String::new(), inside.chars());
    while let Some(character) = characters.next() {
        match character {
            '\\' => unescaped.push(match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(other @ ('\\' | '"' | '\'')) => other,
                _ => return Some(Err(format!("{text}: expected \\n, \\t, \\r, \\\\ or a quote after a backslash"))),
            }),
            other => unescaped.push(other),
        }
    }
    Some(Ok(unescaped))
}

fn render(parts: &[Part], value: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Path(path) => {
                let values: Vec<String> = path.find(value).into_iter().map(shown).collect();
                text.push_str(&values.join(" "));
            }
            Part::Range(path, body) => path.find(value).into_iter().for_each(|each| render(body, each, text)),
        }
    }
}

fn collect(parts: &[Part], value: &Value, found: &mut Vec<Value>) {
    for part in parts {
        match part {
            Part::Text(_) => {}
            Part::Path(path) => found.extend(path.find(value).into_iter().cloned()),
            Part::Range(path, body) => path.find(value).into_iter().for_each(|each| collect(body, each, found)),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(template: &str) -> String {
        let value = json!({"kind": "List", "items": [
            {"name": "a", "labels": {"team/x": "}"}, "pods": 2}, {"name": "b", "pods": 3, "holds": [{"amount": "1"}]}]});
        match Template::parse(template) {
            Ok(template) => template.render(&value),
            Err(problem) => format!("error: {problem}"),
        }
    }

    #[test]
    fn templates_are_those_of_kubectl() {
        let cases = [
            ("{.items[*].name}", "a b"),
            ("{.items[0].pods}", "2"),
            ("{.items[?(@.pods>2)].name}", "b"),
            ("{.items[-1:].holds}", "[{\"amount\":\"1\"}]"),
            ("names: {.items[*].name}!", "names: a b!"),
            ("{range .items[*]}{.name}{\"\\t\"}{.pods}{\"\\n\"}{end}", "a\t2\nb\t3\n"),
            ("{range .items[*]}{range .holds[*]}{.amount}{end};{end}", ";1;"),
            ("{.items[0].labels['team/x']}{'}'}", "}}"),
            ("{.missing}", ""),
            ("{$.kind}", "List"),
            (".kind", "List"),
            ("kind", "kind"),
        ];
        for (template, expected) in cases {
            assert_eq!(rendered(template), expected, "{template}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let cases = [
            ("{.items", "error: {.items: the brace is not closed"),
            ("{range .items[*]}{.name}", "error: {range} without {end}"),
            ("{.name}{end}", "error: {end} without {range}"),
            ("{\"a\\x\"}", "error: \"a\\x\": expected \\n, \\t, \\r, \\\\ or a quote after a backslash"),
            ("{.a[}", "error: JSON path .a[: a bracket is not closed"),
        ];
        for (template, expected) in cases {
            assert_eq!(rendered(template), expected, "{template}");
        }
    }

    #[test]
    fn values_are_kept_as_json() {
        let template = Template::parse("{range .items[*]}{.name}{.pods}{end}").expect("a template");
        let values = template.values(&json!({"items": [{"name": "a", "pods": 2}]}));
        assert_eq!(values, [json!("a"), json!(2)]);
    }
}
