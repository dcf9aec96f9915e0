//! `fieldPath` of a rule: `.spec.name`, `.metadata['a.b']`.

use berth_apimachinery::schema::{AdditionalProperties, Schema};

use crate::lex::simple_escape;

/// One step of a path, unquoted.
enum Step {
    Field(String),
    Key(String),
}

const NO_FIELD: &str = "does not refer to a valid field";

/// Whether a field path may contain steps in brackets (`.labels['a.b']`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayNotation {
    /// Brackets are allowed, as in the `fieldPath` of a rule.
    Allowed,
    /// Brackets are rejected, as in the `jsonPath` of a selectable field.
    Refused,
}

/// The normalized path (`spec.name`, `labels[a]`) and the schema at a field path, or an error
/// message.
pub fn valid_field_path<'s>(
    path: &str,
    schema: &'s Schema,
    notation: ArrayNotation,
) -> Result<(String, &'s Schema), String> {
    let mut tokens = Tokens { rest: path };
    let mut normal = String::new();
    let mut node = schema;
    let mut is_first = true;
    loop {
        let Some(token) = tokens.next() else {
            return if is_first { Err("unexpected end of JSON path".to_owned()) } else { Ok((normal, node)) };
        };
        is_first = false;
        let name = match token {
            "." => tokens.next().ok_or("unexpected end of JSON path")?.to_owned(),
            "[" if notation == ArrayNotation::Refused => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let token = tokens.next().ok_or("unexpected end of JSON path")?;
                let Some(quoted) = token.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) else {
                    return Err(format!("expected single quoted string but got {token}"));
                };
                let name = unquote(quoted).ok_or_else(|| format!("invalid string literal: {token}"))?;
                match tokens.next() {
                    None => return Err("unexpected end of JSON path".to_owned()),
                    Some("]") => {}
                    Some(other) => return Err(format!("expected ] but got {other}")),
                }
                name
            }
            other => {
                let shown = if other.trim().is_empty() { path } else { other };
                return Err(format!("expected [ or . but got: {shown}"));
            }
        };
        match step(node, &name) {
            Some((Step::Field(name), below)) => {
                if !normal.is_empty() {
                    normal.push('.');
                }
                normal.push_str(&name);
                node = below;
            }
            Some((Step::Key(key), below)) => {
                normal.push_str(&format!("[{key}]"));
                node = below;
            }
            None => return Err(NO_FIELD.to_owned()),
        }
    }
}

/// The normalized path of a field path.
pub(super) fn steps(path: &str, schema: &Schema) -> Result<String, String> {
    valid_field_path(path, schema, ArrayNotation::Allowed).map(|(path, _)| path)
}

fn step<'s>(schema: &'s Schema, name: &str) -> Option<(Step, &'s Schema)> {
    if let Some(property) = schema.properties.get(name) {
        return Some((Step::Field(name.to_owned()), property));
    }
    match &schema.additional_properties {
        Some(AdditionalProperties::Schema(values)) => Some((Step::Key(name.to_owned()), values)),
        _ => None,
    }
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.rest;
        let first = rest.chars().next()?;
        let end = match first {
            '.' | '[' | ']' => 1,
            '\'' => {
                let mut escaped = false;
                let close = rest.char_indices().skip(1).find(|(_, c)| {
                    let closes = *c == '\'' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    closes
                });
                close.map_or(rest.len(), |(at, _)| at + 1)
            }
            _ => rest.find(['.', '[', ']']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(end);
        self.rest = after;
        Some(token)
    }
}

fn unquote(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next()? {
            'x' => {
                let digits: String = chars.by_ref().take(2).collect();
                char::from(u8::from_str_radix(&digits, 16).ok()?)
            }
            'u' => {
                let digits: String = chars.by_ref().take(4).collect();
                char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
            }
            '`' | '?' => return None,
            simple => simple_escape(simple)?,
        });
    }
    Some(out)
}
