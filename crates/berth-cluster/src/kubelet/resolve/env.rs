//! The environment of a container.

use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{Container, EnvVarSource};

use super::Context;
use super::expand::expand;
use super::fields::{field, resource};
use super::services;

/// The variables of a container, in order: services, `envFrom`, `env`. A later value replaces an
/// earlier one of the same name.
pub fn environment(context: &Context<'_>, container: &Container) -> Result<Vec<(String, String)>, String> {
    let mut variables = Variables(services::variables(context));
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let is_optional = reference.optional.unwrap_or(false);
            if let Some(map) = config_map(context, &reference.name, is_optional)? {
                for (key, value) in map.data.iter().flatten() {
                    variables.set(format!("{prefix}{key}"), value.clone());
                }
            }
        }
        if let Some(reference) = &source.secret_ref {
            let is_optional = reference.optional.unwrap_or(false);
            if let Some(secret) = secret(context, &reference.name, is_optional)? {
                for (key, value) in secret.data.iter().flatten() {
                    variables.set(format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned());
                }
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            Some(source) => from_source(context, container, source)?,
            None => {
                let text = variable.value.as_deref().unwrap_or_default();
                Some(expand(text, |name| variables.get(name).map(str::to_owned)))
            }
        };
        if let Some(value) = value {
            variables.set(variable.name.clone(), value);
        }
    }
    Ok(variables.0)
}

/// The value of a reference; `None` if an optional one does not exist.
fn from_source(context: &Context<'_>, container: &Container, source: &EnvVarSource) -> Result<Option<String>, String> {
    if let Some(reference) = &source.field_ref {
        return field(context, &reference.field_path).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource(context, Some(container), selector).map(Some);
    }
    let namespace = context.namespace();
    if let Some(reference) = &source.config_map_key_ref {
        let is_optional = reference.optional.unwrap_or(false);
        let Some(map) = config_map(context, &reference.name, is_optional)? else { return Ok(None) };
        return match map.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if is_optional => Ok(None),
            None => Err(format!("couldn't find key {} in ConfigMap {namespace}/{}", reference.key, reference.name)),
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let is_optional = reference.optional.unwrap_or(false);
        let Some(secret) = secret(context, &reference.name, is_optional)? else { return Ok(None) };
        return match secret.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None if is_optional => Ok(None),
            None => Err(format!("couldn't find key {} in Secret {namespace}/{}", reference.key, reference.name)),
        };
    }
    if source.file_key_ref.is_some() {
        return Err("env.valueFrom.fileKeyRef is not supported; use configMapKeyRef or secretKeyRef".to_owned());
    }
    Ok(None)
}

/// A ConfigMap of the pod's namespace; `None` if it does not exist and is optional.
pub fn config_map(
    context: &Context<'_>,
    name: &str,
    is_optional: bool,
) -> Result<Option<std::sync::Arc<k8s_openapi::api::core::v1::ConfigMap>>, String> {
    let found = context.objects.config_maps.get(&ObjectKey::namespaced(context.namespace(), name));
    if found.is_none() && !is_optional { Err(format!("configmap {name:?} not found")) } else { Ok(found) }
}

/// A Secret of the pod's namespace; `None` if it does not exist and is optional.
pub fn secret(
    context: &Context<'_>,
    name: &str,
    is_optional: bool,
) -> Result<Option<std::sync::Arc<k8s_openapi::api::core::v1::Secret>>, String> {
    let found = context.objects.secrets.get(&ObjectKey::namespaced(context.namespace(), name));
    if found.is_none() && !is_optional { Err(format!("secret {name:?} not found")) } else { Ok(found) }
}

/// Variables in order. Names are unique.
struct Variables(Vec<(String, String)>);

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: String, value: String) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }
}
