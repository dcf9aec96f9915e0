//! Validates the defaults in a schema: only known fields, the right type, and valid metadata in
//! embedded objects.

use serde_json::{Map, Value};

use super::{AdditionalProperties, CoerceOptions, Root, Schema, coerce_metadata};
use crate::field::{Error, Path};

impl Schema {
    /// The errors of all defaults at and below this node. CEL rules are not evaluated. With
    /// `pruned`, unknown fields in a default are errors.
    pub fn validate_defaults(&self, root: Root, pruned: bool, path: &Path<'_>) -> Vec<Error> {
        let mut checker = Checker { pruned, errors: Vec::new() };
        // The metadata of the root is never defaulted, so nothing below it is checked here.
        let resource = (root == Root::Resource).then(Vec::new);
        checker.node(self, resource, path);
        checker.errors
    }
}

struct Checker {
    pruned: bool,
    errors: Vec<Error>,
}

impl Checker {
    /// Checks the defaults of a node and of the nodes below it. `resource` is the path from the
    /// enclosing resource to this node; `None` outside the resource's apiVersion, kind and
    /// metadata.
    fn node(&mut self, node: &Schema, resource: Option<Vec<&str>>, path: &Path<'_>) {
        if let Some(default) = &node.default {
            let at = path.child("default");
            match resource.as_deref() {
                Some(way @ [first, ..]) if is_meta(first) => self.meta_default(node, default, way, &at),
                _ => self.plain_default(node, default, &at),
            }
        }
        let resource = if node.embedded_resource { Some(Vec::new()) } else { resource };
        let properties = path.child("properties");
        for (name, property) in &node.properties {
            let way = resource.as_ref().and_then(|way| {
                let inside = !way.is_empty() || is_meta(name);
                inside.then(|| way.iter().copied().chain([name.as_str()]).collect())
            });
            self.node(property, way, &properties.key(name));
        }
        if let Some(AdditionalProperties::Schema(entry)) = &node.additional_properties {
            self.node(entry, None, &path.child("additionalProperties"));
        }
        if let Some(items) = &node.items {
            self.node(items, None, &path.child("items"));
        }
    }

    fn plain_default(&mut self, node: &Schema, default: &Value, at: &Path<'_>) {
        let mut value = default.clone();
        if self.pruned && !node.prune(&mut value, Root::Value).is_empty() {
            self.errors.push(Error::invalid(at, default.clone(), "must not have unknown fields"));
        }
        let mut value = default.clone();
        match coerce_metadata(Some(node), &mut value, CoerceOptions::default()) {
            Ok(_) => {
                self.errors.extend(node.validate(&value, at));
                self.errors.extend(node.validate_lists(&value, at));
                self.errors.extend(node.validate_embedded(&value, Root::Value, at));
            }
            Err(error) => {
                let field = at.child(&error.field).to_string();
                self.errors.push(Error { field, ..error });
            }
        }
    }

    /// Validates a default inside the apiVersion, kind or metadata of a resource: validates the
    /// resource that the default would create.
    fn meta_default(&mut self, node: &Schema, default: &Value, way: &[&str], at: &Path<'_>) {
        let mut object = way.iter().rev().fold(default.clone(), |value, name| {
            let mut map = Map::new();
            map.insert((*name).to_owned(), value);
            Value::Object(map)
        });
        let resource = Schema { embedded_resource: true, preserve_unknown_fields: true, ..Schema::default() };
        let problem = match coerce_metadata(Some(&resource), &mut object, CoerceOptions::default()) {
            Err(error) => Some(error),
            // Fields that the default alone omits are not errors of the default.
            Ok(_) => resource
                .validate_embedded(&object, Root::Value, &Path::root())
                .into_iter()
                .find(|error| error.kind != crate::field::ErrorKind::Required),
        };
        match problem {
            Some(error) => {
                let detail = format!("must result in valid metadata: {error}");
                self.errors.push(Error::invalid(at, default.clone(), detail));
            }
            None => self.errors.extend(node.validate(default, at)),
        }
    }
}

fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_default_must_fit_its_schema() {
        let schema = Schema::parse_crd(&json!({"type": "object", "properties": {
            "good": {"type": "integer", "default": 1}, "typed": {"type": "integer", "default": "x"},
            "unknown": {"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": 1}}}}))
        .expect("parses");
        let errors = schema.validate_defaults(Root::Resource, true, &Path::new("s"));
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["s.properties[typed].default", "s.properties[unknown].default"]);
    }
}
