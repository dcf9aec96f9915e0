//! Go templates as kubectl takes them: `-o go-template=TEMPLATE`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gotmpl::{MissingKey, Template, TemplateError, Value as Operand};
use serde_json::Value;

/// A Go template.
#[derive(Clone, Debug, PartialEq)]
pub struct GoTemplate {
    text: String,
    /// True if it is an error that an object lacks a field of the template.
    needs_fields: bool,
}

impl GoTemplate {
    /// Parses a template. Fields that an object lacks are `<no value>`.
    ///
    /// # Errors
    /// The text says where the template is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let template = Self { text: text.to_owned(), needs_fields: false };
        template.parsed().map_err(|error| error.to_string())?;
        check_blocks(text)?;
        Ok(template)
    }

    /// The template with the rule that fields that an object lacks are errors.
    #[must_use]
    pub fn needing_fields(self) -> Self {
        Self { needs_fields: true, ..self }
    }

    fn parsed(&self) -> Result<Template, TemplateError> {
        let missing = if self.needs_fields { MissingKey::Error } else { MissingKey::Invalid };
        let template = Template::new("output").missing_key(missing);
        template.func("exists", exists).func("base64decode", base64decode).parse(&self.text)
    }

    /// The template with the values of an object.
    ///
    /// # Errors
    /// The object does not have what the template needs.
    pub fn render(&self, object: &Value) -> anyhow::Result<String> {
        Ok(self.parsed()?.execute_to_string(&operand(object))?)
    }
}

/// Checks that each block has its `{{end}}`. The parser takes the end of the text for an end that
/// is missing, and ignores what follows one too many.
fn check_blocks(text: &str) -> Result<(), String> {
    let (mut open, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find("{{") {
        let inside = &rest[start + 2..];
        let inside = inside.strip_prefix('-').unwrap_or(inside).trim_start();
        if let Some(comment) = inside.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
            continue;
        }
        let word = inside.split(|it: char| !it.is_alphanumeric() && it != '_').next().unwrap_or_default();
        match word {
            "if" | "range" | "with" | "define" | "block" => open.push(word),
            "end" => drop(open.pop().ok_or("{{end}} without a block that it ends")?),
            _ => {}
        }
        rest = after_action(inside);
    }
    open.pop().map_or(Ok(()), |word| Err(format!("{{{{{word}}}}} without {{{{end}}}}")))
}

/// The text after the action that it begins with. Braces within quotes do not end an action.
fn after_action(text: &str) -> &str {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, character) in text.char_indices() {
        match quote {
            _ if is_escaped => is_escaped = false,
            Some(open) if character == open => quote = None,
            Some(open) => is_escaped = open != '`' && character == '\\',
            None if matches!(character, '"' | '\'' | '`') => quote = Some(character),
            None if text[at..].starts_with("}}") => return &text[at + 2..],
            None => {}
        }
    }
    ""
}

/// An object of the API for a template. As for kubectl, whole numbers are integers.
fn operand(value: &Value) -> Operand {
    match value {
        Value::Null => Operand::Nil,
        Value::Bool(value) => Operand::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Operand::Int(number),
            None => Operand::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Operand::String(text.as_str().into()),
        Value::Array(items) => Operand::List(items.iter().map(operand).collect()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (Arc::from(key.as_str()), operand(value)));
            Operand::Map(Arc::new(fields.collect()))
        }
    }
}

/// kubectl's function `exists`: true if a value has what these keys and indices lead to.
fn exists(arguments: &[Operand]) -> Result<Operand, TemplateError> {
    let Some((value, path)) = arguments.split_first() else {
        return Err(TemplateError::Exec("exists: expected a value, and keys or indices".to_owned()));
    };
    let found = path.iter().try_fold(value.clone(), |value, key| match value.index(key) {
        Ok(Operand::Nil) | Err(_) => None,
        Ok(found) => Some(found),
    });
    Ok(Operand::Bool(found.is_some()))
}

/// kubectl's function `base64decode`.
fn base64decode(arguments: &[Operand]) -> Result<Operand, TemplateError> {
    let failed = |why: String| TemplateError::Exec(format!("base64decode: {why}"));
    let [Operand::String(text)] = arguments else { return Err(failed("expected one text".to_owned())) };
    let decoded = STANDARD.decode(text.as_bytes()).map_err(|error| failed(error.to_string()))?;
    let decoded = String::from_utf8(decoded).map_err(|error| failed(error.to_string()))?;
    Ok(Operand::String(decoded.as_str().into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(template: &str) -> String {
        let object = json!({"kind": "List", "items": [
            {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x"}}, "pods": 1_000_000, "share": 0.5},
            {"metadata": {"name": "b"}, "token": "aGVsbG8="},
        ]});
        match GoTemplate::parse(template).and_then(|it| it.render(&object).map_err(|error| error.to_string())) {
            Ok(text) => text,
            Err(problem) => format!("error: {problem}"),
        }
    }

    #[test]
    fn templates_are_those_of_kubectl() {
        let cases = [
            ("{{range .items}}{{.metadata.name}}{{\"\\n\"}}{{end}}", "a\nb\n"),
            ("{{range $i, $it := .items}}{{if $i}},{{end}}{{$it.metadata.name}}{{end}}", "a,b"),
            ("{{(index .items 0).pods}} {{(index .items 0).share}}", "1000000 0.5"),
            ("{{if eq (index .items 0).pods 1000000}}equal{{end}}", "equal"),
            ("{{index (index .items 0).metadata.labels \"app.kubernetes.io/name\"}}", "x"),
            ("{{range .items}}{{if exists . \"metadata\" \"labels\"}}yes{{else}}no{{end}} {{end}}", "yes no "),
            ("{{exists .items 1}} {{exists .items 2}} {{exists .kind 0 1}}", "true false false"),
            ("{{(index .items 1).token | base64decode}}", "hello"),
            ("{{len .items}} {{.kind | printf \"%q\"}} {{.missing}}", "2 \"List\" <no value>"),
        ];
        for (template, expected) in cases {
            assert_eq!(rendered(template), expected, "{template}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!(rendered("{{range .items}}{{.kind}}"), "error: {{range}} without {{end}}");
        assert_eq!(
            rendered("{{- /* {{end}} */ -}}{{with .kind}}{{end}}{{end}}"),
            "error: {{end}} without a block that it ends"
        );
        assert_eq!(rendered("{{if .kind}}{{print \"}}{{end\" `\\`}}{{else if .items}}{{end}}"), "}}{{end\\");
        assert!(rendered("{{.kind").contains("1:8: unclosed action"), "{}", rendered("{{.kind"));
        assert!(rendered("{{none}}").contains("none"), "{}", rendered("{{none}}"));
        assert!(rendered("{{base64decode 1}}").contains("expected one text"));
        let needs = GoTemplate::parse("{{.missing}}").expect("a template").needing_fields();
        assert!(needs.render(&json!({"a": 1})).expect_err("no field").to_string().contains("missing"));
    }
}
