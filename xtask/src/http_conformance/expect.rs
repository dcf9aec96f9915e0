//! Comparison of responses with expectations. An object may have more fields than expected. A list
//! must have the expected length. Some expected values are patterns:
//!
//! | expected | matches |
//! |---|---|
//! | `$any` | any value |
//! | `$absent` | a field that is missing, null or empty |
//! | `$text` | a string that is not empty |
//! | `$number` | a number |
//! | `$contains TEXT` | a string that contains TEXT |
//! | `{$has: [...]}` | a list that contains these items, or a string that contains these strings |
//! | `{$count: N}` | a list of N items |
//! | `{$not: X}` | a value that does not match X |
//! | `{$all: [...]}` | a value that matches all of these |
//! | `{$jwt: {...}}` | a JSON Web Token whose claims match |
//! | `{$json: {...}}` | a string that is JSON and matches |

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

/// The first difference, with the path of the field. `None` if the value matches.
pub fn difference(expected: &Value, got: &Value) -> Option<String> {
    compare(expected, Some(got), "")
}

fn compare(expected: &Value, got: Option<&Value>, at: &str) -> Option<String> {
    let shown = || got.map_or("nothing".to_owned(), ToString::to_string);
    let differs = || {
        let at = if at.is_empty() { "response" } else { at.trim_start_matches('.') };
        Some(format!("{at}: expected {expected}, got {}", shown()))
    };
    let holds = |holds: bool| if holds { None } else { differs() };
    match expected {
        Value::String(text) if text == "$any" => holds(got.is_some()),
        Value::String(text) if text == "$absent" => holds(got.is_none_or(is_empty)),
        Value::String(text) if text == "$text" => {
            holds(got.and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
        }
        Value::String(text) if text == "$number" => holds(got.is_some_and(Value::is_number)),
        Value::String(text) if text.starts_with("$contains ") => {
            let part = &text["$contains ".len()..];
            holds(got.and_then(Value::as_str).is_some_and(|text| text.contains(part)))
        }
        Value::Object(fields) => {
            if let Some(Value::Array(wanted)) = fields.get("$has") {
                let has = |wanted: &Value| match got {
                    Some(Value::Array(items)) => items.iter().any(|item| compare(wanted, Some(item), at).is_none()),
                    Some(Value::String(text)) => wanted.as_str().is_some_and(|part| text.contains(part)),
                    _ => false,
                };
                return wanted
                    .iter()
                    .find(|wanted| !has(wanted))
                    .map(|wanted| format!("{}: no item matches {wanted} in {}", at.trim_start_matches('.'), shown()));
            }
            if let Some(count) = fields.get("$count").and_then(Value::as_u64) {
                return holds(got.and_then(Value::as_array).is_some_and(|items| items.len() as u64 == count));
            }
            if let Some(unwanted) = fields.get("$not") {
                return holds(compare(unwanted, got, at).is_some());
            }
            if let Some(Value::Array(wanted)) = fields.get("$all") {
                return wanted.iter().find_map(|wanted| compare(wanted, got, at));
            }
            if let Some(wanted) = fields.get("$json") {
                let read = got.and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
                return read.map_or_else(differs, |read| compare(wanted, Some(&read), at));
            }
            if let Some(wanted) = fields.get("$jwt") {
                let claims = got.and_then(Value::as_str).and_then(claims);
                return claims.map_or_else(differs, |claims| compare(wanted, Some(&claims), at));
            }
            let Some(Value::Object(got)) = got else { return differs() };
            fields.iter().find_map(|(name, expected)| compare(expected, got.get(name), &format!("{at}.{name}")))
        }
        Value::Array(wanted) => {
            let Some(Value::Array(items)) = got else { return differs() };
            if items.len() != wanted.len() {
                return differs();
            }
            let mut pairs = wanted.iter().zip(items).enumerate();
            pairs.find_map(|(index, (wanted, item))| compare(wanted, Some(item), &format!("{at}[{index}]")))
        }
        expected => holds(got == Some(expected)),
    }
}

/// The claims of a token. The signature is not verified.
fn claims(token: &str) -> Option<Value> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_may_have_more_fields_and_lists_must_not() {
        let got = json!({"a": 1, "list": [{"n": "x", "v": 1}, {"n": "y"}], "text": "one two", "json": "{\"b\":1}",
            "token": "e30.eyJhdWQiOlsieCJdfQ.sig"});
        for agrees in [
            json!({"a": 1}),
            json!({"list": [{"n": "x"}, {"n": "y"}]}),
            json!({"list": {"$has": [{"n": "y"}]}, "gone": "$absent"}),
            json!({"list": {"$count": 2}, "text": "$contains two"}),
            json!({"a": {"$not": 2}, "text": "$text"}),
            json!({"token": {"$jwt": {"aud": ["x"]}}, "json": {"$json": {"b": 1}}}),
            json!({"text": {"$all": ["$contains one", "$contains two"]}}),
        ] {
            assert_eq!(difference(&agrees, &got), None, "{agrees}");
        }
        for (differs, at) in [
            (json!({"a": 2}), "a: expected 2, got 1"),
            (json!({"list": [{"n": "x"}]}), "list: expected"),
            (json!({"list": [{"n": "x"}, {"n": "z"}]}), "list[1].n: expected \"z\", got \"y\""),
            (json!({"text": "$absent"}), "text: expected"),
            (json!({"token": {"$jwt": {"aud": ["y"]}}}), "token.aud[0]: expected"),
            (json!({"json": {"$json": {"b": 2}}}), "json.b: expected"),
            (json!({"text": {"$all": ["$contains three"]}}), "text: expected"),
            (json!({"missing": "$any"}), "missing: expected \"$any\", got nothing"),
            (json!({"list": {"$has": [{"n": "z"}]}}), "list: no item matches"),
        ] {
            let found = difference(&differs, &got).unwrap_or_default();
            assert!(found.starts_with(at), "{found}");
        }
    }
}
