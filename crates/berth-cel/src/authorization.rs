//! Authorization checks: their attributes, and the trait that performs them.

/// The attributes of an authorization check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The user to check instead of the user of the request.
    pub user: Option<User>,
    /// The verb.
    pub verb: String,
    /// The path, for checks of non-resource URLs.
    pub path: Option<String>,
    /// Group of the resource; the version is always `*`.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name, or empty.
    pub name: String,
    /// The field selector as written.
    pub field_selector: Option<String>,
    /// The label selector as written.
    pub label_selector: Option<String>,
}

/// A user, with UID and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The identifier, or empty.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// An authorizer's verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// True if the attributes are allowed.
    pub allowed: bool,
    /// The reason of the verdict.
    pub reason: String,
    /// The error that occurred during the check, if any.
    pub error: Option<String>,
}

/// Performs authorization checks.
pub trait Authorizer {
    /// Returns whether the attributes are allowed.
    fn authorize(&self, attributes: &Attributes) -> Verdict;
}

/// An authorization check that an expression builds step by step.
#[derive(Clone, Debug)]
pub struct Check {
    pub(crate) kind: Kind,
    pub(crate) attributes: Attributes,
}

/// The parts of a check that are set so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Authorizer,
    Path,
    Group,
    Resource,
}

impl Check {
    /// The value of the variable `authorizer`.
    pub fn authorizer() -> Check {
        Check { kind: Kind::Authorizer, attributes: Attributes::default() }
    }

    /// The value of `authorizer.requestResource` for a request with these attributes.
    pub fn request_resource(attributes: Attributes) -> Check {
        Check { kind: Kind::Resource, attributes }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Authorizer => "kubernetes.authorization.Authorizer",
            Kind::Path => "kubernetes.authorization.PathCheck",
            Kind::Group => "kubernetes.authorization.GroupCheck",
            Kind::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }
}
