//! The section `provisioningClasses`: how the cloud handles ProvisioningRequests.

use std::collections::BTreeSet;

use serde::Serialize;

use super::super::provisioning_class::{PROVISIONING_CLASSES, ProvisioningClassSpec, provisioning_class_name_problem};
use super::super::{Problem, problem::join};

/// A provisioning class of the configuration: its name and the spec of a ProvisioningClass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedProvisioningClass {
    /// Name.
    pub name: String,
    /// The other fields.
    #[serde(flatten)]
    pub spec: ProvisioningClassSpec,
}

/// All classes, with the default timing.
pub(super) fn default_classes() -> Vec<NamedProvisioningClass> {
    let named = |name: &str| NamedProvisioningClass { name: name.to_owned(), spec: ProvisioningClassSpec::default() };
    PROVISIONING_CLASSES.iter().map(|name| named(name)).collect()
}

/// Problems of a list of classes: unknown ones, classes listed twice, and long waits.
pub(super) fn problems(classes: &[NamedProvisioningClass], path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (i, class) in classes.iter().enumerate() {
        let here = format!("{path}[{i}]");
        if let Some(why) = provisioning_class_name_problem(&class.name) {
            problems.push(Problem::new(join(&here, "name"), why));
        } else if !names.insert(&class.name) {
            problems.push(Problem::new(join(&here, "name"), format!("{:?} is listed twice", class.name)));
        }
        problems.extend(class.spec.problems(&here));
    }
    problems
}
