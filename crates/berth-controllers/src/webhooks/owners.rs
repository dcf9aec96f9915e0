//! Restricts the accounts that may make an object part of a queued owner.
//!
//! A part of a queued job is not queued itself, because its owner holds the quota. A controller
//! reference is enough to make an object a part. By default, as with Kueue, any account that may
//! write the object may set the reference. The configuration can restrict it to named accounts.
//! References from other accounts are rejected at admission, because only then does the API server
//! reveal the account: the managers in `managedFields` are names that clients choose.

use berth_apimachinery::field::{Error, Path};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde_json::Value;

use crate::configuration::{Accounts, Config};
use crate::jobs::ancestors::is_managed_kind;
use crate::rights;

/// Members of this group are authorized for everything.
const MASTERS: &str = "system:masters";

/// The account that sends a write.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// Its name.
    pub name: &'a str,
    /// The groups it is in.
    pub groups: &'a [String],
}

impl Account<'_> {
    fn is_among(self, accounts: &Accounts) -> bool {
        self.name == rights::USER
            || accounts.users.iter().any(|user| user == self.name)
            || self.groups.iter().any(|group| group == MASTERS || accounts.groups.contains(group))
    }
}

/// Validates the controller reference of a written object.
pub(super) fn validate(account: Account<'_>, object: &Value, old: Option<&Value>, config: &Config) -> Option<Error> {
    let accounts = config.integrations.owner_reference_writers.as_ref()?;
    let (index, reference) = controller_reference(object)?;
    let is_new = old.and_then(controller_reference).is_none_or(|(_, old)| !same_owner(&reference, &old));
    if !is_new || !is_managed_kind(config, &reference) || account.is_among(accounts) {
        return None;
    }
    let metadata = Path::new("metadata");
    let list = metadata.child("ownerReferences");
    let detail = format!(
        "{} may not make a {} the controller of an object (integrations.ownerReferenceWriters of the controllers' \
         configuration lists the accounts that may); remove the reference, or set its controller field to false",
        account.name, reference.kind
    );
    Some(Error::forbidden(&list.index(index), detail))
}

fn controller_reference(object: &Value) -> Option<(usize, OwnerReference)> {
    let references = object["metadata"]["ownerReferences"].as_array()?;
    let index = references.iter().position(|reference| reference["controller"] == true)?;
    Some((index, OwnerReference::deserialize(&references[index]).ok()?))
}

/// Compares owners without `apiVersion`, which does not identify an object.
fn same_owner(a: &OwnerReference, b: &OwnerReference) -> bool {
    (&a.uid, &a.kind, &a.name) == (&b.uid, &b.kind, &b.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owned(kind: &str, uid: &str, controller: bool) -> Value {
        let version = if kind == "Custom" { "example.com/v1" } else { "batch/v1" };
        let reference = json!({"apiVersion": version, "kind": kind, "name": "o", "uid": uid, "controller": controller});
        json!({"metadata": {"name": "child", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}, reference]}})
    }

    fn refused(config: &Config, name: &str, groups: &[&str], object: &Value, old: Option<&Value>) -> Option<String> {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        validate(Account { name, groups: &groups }, object, old, config).map(|error| error.to_string())
    }

    #[test]
    fn only_configured_accounts_may_set_a_controller_reference() {
        let mut config = Config::default();
        let child = owned("Job", "u", true);
        assert_eq!(refused(&config, "tenant", &[], &child, None), None, "the default is Kueue's: no restriction");
        config.integrations.owner_reference_writers =
            Some(Accounts { users: vec!["operator".to_owned()], groups: vec!["controllers".to_owned()] });
        let why = refused(&config, "tenant", &["tenants"], &child, None).expect("refused");
        assert!(why.starts_with("metadata.ownerReferences[1]: Forbidden: tenant may not make a "), "{why}");
        for (name, groups) in
            [("operator", &["x"][..]), ("c", &["controllers"]), ("a", &["system:masters"]), (rights::USER, &[])]
        {
            assert_eq!(refused(&config, name, groups, &child, None), None, "{name}");
        }
        // Existing references may be written back, and references that do not affect quota may be
        // set.
        assert_eq!(refused(&config, "tenant", &[], &child, Some(&child)), None);
        assert!(refused(&config, "tenant", &[], &child, Some(&owned("Job", "other", true))).is_some());
        assert!(refused(&config, "tenant", &[], &child, Some(&owned("Job", "u", false))).is_some());
        assert_eq!(refused(&config, "tenant", &[], &owned("Job", "u", false), Some(&child)), None);
        assert_eq!(refused(&config, "tenant", &[], &owned("Custom", "u", true), None), None, "an unmanaged kind");
        config.integrations.external_frameworks = vec!["Custom.v1.example.com".to_owned()];
        assert!(refused(&config, "tenant", &[], &owned("Custom", "u", true), None).is_some());
    }
}
