//! Secrets and ConfigMaps: defaults and validation. Their data may be marked immutable.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::{meta, names};
use serde_json::{Map, Value};

use super::{Context, Strategy, immutable, same, set_default_text};

/// Maximum size of an object's data in bytes.
const DATA_BYTES_MAX: usize = 1024 * 1024;

/// Type of Secrets that hold a token.
pub const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// Annotation that names a token Secret's service account.
pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

pub(crate) struct Secrets;

impl Strategy for Secrets {
    fn default(&self, secret: &mut Value) {
        let map = meta::map_mut(secret);
        set_default_text(map, "type", "Opaque");
        // `stringData` is write-only and becomes part of `data`.
        if let Some(Value::Object(texts)) = map.remove("stringData")
            && !texts.is_empty()
        {
            let data = meta::map_mut(map.entry("data").or_insert_with(|| Value::Object(Map::new())));
            for (key, text) in texts {
                data.insert(key, STANDARD.encode(text.as_str().unwrap_or_default()).into());
            }
        }
    }

    fn prepare_create(&self, secret: &mut Value, context: &Context<'_>) {
        if let Some(tokens) = context.tokens {
            tokens.fill_secret(secret);
        }
    }

    fn prepare_update(&self, secret: &mut Value, _old: &Value, context: &Context<'_>) {
        self.prepare_create(secret, context);
    }

    fn validate(&self, secret: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let path = Path::new("data");
        let mut total = 0;
        for (key, value) in secret["data"].as_object().into_iter().flatten() {
            check_key(key, &path, &mut errors);
            match STANDARD.decode(value.as_str().unwrap_or_default()) {
                Ok(bytes) => total += bytes.len(),
                Err(error) => {
                    errors.push(Error::invalid(&path.key(key), value.clone(), format!("illegal base64 data: {error}")))
                }
            }
        }
        if total > DATA_BYTES_MAX {
            errors.push(Error::too_long(&path, DATA_BYTES_MAX as i64));
        }
        if secret["type"] == TOKEN_TYPE {
            let account = &secret["metadata"]["annotations"][ACCOUNT_NAME];
            if account.as_str().unwrap_or_default().is_empty() {
                let path = Path::new("metadata.annotations");
                errors.push(Error::required(&path.key(ACCOUNT_NAME), ""));
            }
        }
        check_type(secret, &path, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["type"], &mut errors);
        check_immutable(new, old, &["data"], &mut errors);
        errors
    }
}

/// Validates that a secret of a known type has the keys of that type.
fn check_type(secret: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let data = &secret["data"];
    let is_missing = |key: &&str| data[*key].is_null();
    match secret["type"].as_str().unwrap_or_default() {
        "kubernetes.io/tls" => {
            let missing = ["tls.crt", "tls.key"].into_iter().filter(is_missing);
            errors.extend(missing.map(|key| Error::required(&path.key(key), "")));
        }
        // One of the two keys is enough.
        "kubernetes.io/basic-auth" if ["username", "password"].iter().all(&is_missing) => {
            errors.extend(["username", "password"].map(|key| Error::required(&path.key(key), "")));
        }
        "kubernetes.io/ssh-auth" if text_of(data, "ssh-privatekey").is_empty() => {
            errors.push(Error::required(&path.key("ssh-privatekey"), ""));
        }
        kind @ ("kubernetes.io/dockerconfigjson" | "kubernetes.io/dockercfg") => {
            let key = if kind.ends_with("json") { ".dockerconfigjson" } else { ".dockercfg" };
            if is_missing(&key) {
                errors.push(Error::required(&path.key(key), ""));
                return;
            }
            let text = STANDARD.decode(text_of(data, key)).unwrap_or_default();
            if let Err(error) = serde_json::from_slice::<Map<String, Value>>(&text) {
                errors.push(Error::invalid(&path.key(key), "<secret contents redacted>", error.to_string()));
            }
        }
        _ => {}
    }
}

fn text_of<'a>(data: &'a Value, key: &str) -> &'a str {
    data[key].as_str().unwrap_or_default()
}

pub(crate) struct ConfigMaps;

impl Strategy for ConfigMaps {
    fn creates_on_update(&self) -> bool {
        false
    }

    fn validate(&self, map: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let mut total = 0;
        for field in ["data", "binaryData"] {
            let path = Path::new(field);
            for (key, value) in map[field].as_object().into_iter().flatten() {
                check_key(key, &path, &mut errors);
                total += value.as_str().map_or(0, str::len);
                if field == "binaryData" && !map["data"][key.as_str()].is_null() {
                    errors.push(Error::invalid(&path.key(key), key.as_str(), "duplicate of key present in data"));
                }
            }
        }
        if total > DATA_BYTES_MAX {
            errors.push(Error::too_long(&Path::new(""), DATA_BYTES_MAX as i64));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        check_immutable(new, old, &["data", "binaryData"], &mut errors);
        errors
    }
}

fn check_key(key: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    for message in names::is_config_map_key(key) {
        errors.push(Error::invalid(&path.key(key), key, message));
    }
}

/// Validates that an immutable object keeps its data and remains immutable.
fn check_immutable(new: &Value, old: &Value, fields: &[&str], errors: &mut Vec<Error>) {
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        errors.push(Error::forbidden(&Path::new("immutable"), "field is immutable when `immutable` is set"));
    }
    for field in fields {
        if !same(&new[*field], &old[*field]) {
            errors.push(Error::forbidden(&Path::new(field), "field is immutable when `immutable` is set"));
        }
    }
}
