//! OpenAPI of paths that belong to no version of a group: the roots of discovery, `/version`, and
//! the OpenID paths for the verification of tokens. In v3 each path has its own document, named
//! after the path.

use serde_json::{Map, Value, json};

use super::definitions::{Definitions, reference};
use super::paths::{MEDIA_TYPES, capitalized, group_id, response};
use super::{Style, info, security, text};
use crate::Registry;
use crate::discovery::groups;
use crate::registry::Origin;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const VERSION: &str = "io.k8s.apimachinery.pkg.version.Info";

/// One read-only path.
pub(super) struct Root {
    /// The path without leading and trailing slash: `apis/batch`.
    pub(super) name: String,
    tag: String,
    description: &'static str,
    operation: String,
    /// Published definition of the response; `None` for a text response.
    pub(super) definition: Option<String>,
    media_types: &'static [&'static str],
}

/// All roots, in no particular order. With `issues_tokens`, these include the OpenID paths.
pub(super) fn of(registry: &Registry, issues_tokens: bool) -> Vec<Root> {
    let discovery = |name: String, tag: String, description, operation: String, kind: &str| Root {
        name,
        tag,
        description,
        operation,
        definition: Some(format!("{META}.{kind}")),
        media_types: &MEDIA_TYPES,
    };
    const VERSIONS: &str = "get available API versions";
    let core = "getCoreAPIVersions".to_owned();
    let mut roots = vec![
        discovery("api".to_owned(), "core".to_owned(), VERSIONS, core, "APIVersions"),
        discovery("apis".to_owned(), "apis".to_owned(), VERSIONS, "getAPIVersions".to_owned(), "APIGroupList"),
        Root {
            name: "version".to_owned(),
            tag: "version".to_owned(),
            description: "get the version information for this server",
            operation: "getCodeVersion".to_owned(),
            definition: Some(VERSION.to_owned()),
            media_types: &["application/json"],
        },
    ];
    // Kubernetes does not document groups that consist of CustomResourceDefinitions only.
    let is_builtin =
        |group: &str| registry.rows().any(|row| row.group == group && !matches!(row.origin, Origin::Custom(_)));
    for (group, _) in groups(registry).into_iter().filter(|(group, _)| !group.is_empty() && is_builtin(group)) {
        let id = group_id(group);
        let operation = format!("get{}APIGroup", capitalized(&id));
        roots.push(discovery(format!("apis/{group}"), id, "get information of a group", operation, "APIGroup"));
    }
    if issues_tokens {
        let document = |name: &str, tag: &str, description, operation: &str, media_types| Root {
            name: name.to_owned(),
            tag: tag.to_owned(),
            description,
            operation: operation.to_owned(),
            definition: None,
            media_types,
        };
        roots.push(document(
            ".well-known/openid-configuration",
            "WellKnown",
            "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
            "getServiceAccountIssuerOpenIDConfiguration",
            &["application/json"],
        ));
        roots.push(document(
            "openid/v1/jwks",
            "openid",
            "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
            "getServiceAccountIssuerOpenIDKeyset",
            &["application/jwk-set+json"],
        ));
    }
    roots
}

impl Root {
    pub(super) fn path(&self) -> String {
        format!("/{}/", self.name)
    }

    /// The path item.
    pub(super) fn item(&self, style: Style) -> Value {
        let mut operation = json!({
            "tags": [self.tag], "description": self.description, "operationId": self.operation,
            "responses": {"401": {"description": "Unauthorized"}},
        });
        let schema = self.definition.as_ref().map_or_else(|| json!({"type": "string"}), |it| reference(style, it));
        operation["responses"]["200"] = response(style, "OK", &schema, self.media_types.iter().copied());
        if style == Style::V2 {
            if self.definition.is_some() {
                operation["consumes"] = json!(self.media_types);
            }
            operation["produces"] = json!(self.media_types);
            operation["schemes"] = json!(["https"]);
        }
        json!({"get": operation})
    }

    /// The v3 document of this path.
    pub(super) fn document(&self) -> Vec<u8> {
        let mut schemas = Definitions::empty(Style::V3);
        if let Some(name) = &self.definition {
            schemas.add_published(name);
        }
        let mut components = Map::from_iter([("securitySchemes".to_owned(), security())]);
        let schemas = schemas.finish();
        if !schemas.is_empty() {
            components.insert("schemas".to_owned(), schemas.into());
        }
        text(&json!({
            "openapi": "3.0.0", "info": info(), "paths": {self.path(): self.item(Style::V3)}, "components": components,
        }))
    }
}
