//! ControllerRevisions: the pod templates that a DaemonSet or StatefulSet has had. `kubectl rollout
//! history` lists them, and `kubectl rollout undo` goes back to one.
//!
//! A revision's name is the owner's name and the hash of the template, so each template has one
//! revision. The current template has the highest number: a rollback gives an old revision a new
//! number.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_apimachinery::well_known;
use berth_runtime::{Cache, Error, Index, Manager, ObjectKey, Writer, is_controlled_by, owned_by};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::claims::{Orphans, claim};

/// Default of `revisionHistoryLimit`.
const LIMIT_DEFAULT: i32 = 10;

/// A set's current template, and the properties of the revision for it.
pub struct Wanted<'a> {
    /// Template.
    pub template: &'a PodTemplateSpec,
    /// Hash of the template.
    pub hash: &'a str,
    /// Key of the revision's label that holds the hash.
    pub hash_label: &'static str,
    /// `spec.revisionHistoryLimit`.
    pub limit: Option<i32>,
}

/// The next writes of revisions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The revision of a new template.
    pub create: Option<ControllerRevision>,
    /// An old revision that gets a new number.
    pub renumber: Option<ControllerRevision>,
    /// Old revisions beyond the limit.
    pub delete: Vec<Arc<ControllerRevision>>,
}

/// Name of the revision with this hash.
pub fn revision_name<K: Resource>(owner: &K, hash: &str) -> String {
    format!("{}-{hash}", owner.name_any())
}

/// Plans the revisions of a set. `known` has the revisions that the set controls. `live` has the
/// names of the revisions that its pods still use.
pub fn history<K>(owner: &K, wanted: &Wanted<'_>, known: &[Arc<ControllerRevision>], live: &BTreeSet<String>) -> History
where
    K: Resource<DynamicType = ()>,
{
    let name = revision_name(owner, wanted.hash);
    let mut plan = History::default();
    let newest = known.iter().map(|revision| revision.revision).max().unwrap_or(0);
    match known.iter().find(|revision| revision.name_any() == name) {
        None => plan.create = Some(revision(owner, wanted, newest + 1)),
        Some(current) if current.revision < newest => {
            let mut renumbered = (**current).clone();
            renumbered.revision = newest + 1;
            plan.renumber = Some(renumbered);
        }
        Some(_) => {}
    }
    let mut old: Vec<_> = known.iter().filter(|revision| revision.name_any() != name).collect();
    old.sort_by_key(|revision| (revision.revision, revision.name_any()));
    let limit = usize::try_from(wanted.limit.unwrap_or(LIMIT_DEFAULT)).unwrap_or(0);
    let surplus = old.len().saturating_sub(limit);
    let idle = old.into_iter().filter(|revision| !live.contains(&revision.name_any()));
    plan.delete = idle.take(surplus).cloned().collect();
    plan
}

fn revision<K>(owner: &K, wanted: &Wanted<'_>, number: i64) -> ControllerRevision
where
    K: Resource<DynamicType = ()>,
{
    let mut labels = wanted.template.metadata.as_ref().and_then(|it| it.labels.clone()).unwrap_or_default();
    labels.insert(wanted.hash_label.to_owned(), wanted.hash.to_owned());
    let mut annotations = owner.annotations().clone();
    annotations.remove(well_known::LAST_APPLIED);
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(revision_name(owner, wanted.hash)),
            namespace: owner.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owned_by(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data_of(wanted.template))),
        revision: number,
    }
}

/// The data of a revision: a strategic merge patch of the set that restores the template.
fn data_of(template: &PodTemplateSpec) -> Value {
    let mut template = json!(template);
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The template of a revision; `None` if the revision has other data.
pub fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    berth_api::json::from_value(template).ok()
}

/// Reads and writes the revisions of sets of kind `K`.
pub(crate) struct Revisions {
    of_owner: Index<ControllerRevision>,
    orphans: Orphans<ControllerRevision>,
    writer: Writer<ControllerRevision>,
}

impl Revisions {
    pub(crate) fn new<K>(manager: &Manager, revisions: &Cache<ControllerRevision>) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + 'static,
    {
        Self {
            of_owner: revisions.index(|revision| {
                ObjectKey::of_controller_owner::<K>(revision).map(|key| key.to_string()).into_iter().collect()
            }),
            orphans: Orphans::new(revisions),
            writer: Writer::new(manager, revisions),
        }
    }

    /// The revisions that a set controls. Adopts those that a deleted set with the same labels
    /// left, for example by `kubectl delete --cascade=orphan`.
    pub(crate) async fn of<K>(&self, owner: &K, selector: &LabelSelector) -> Result<Vec<Arc<ControllerRevision>>, Error>
    where
        K: Resource<DynamicType = ()>,
    {
        let key = ObjectKey::of(owner);
        let orphans = self.orphans.candidates(&key.namespace, selector);
        let claims = claim(owner, selector, self.of_owner.get(&key.to_string()), orphans);
        claims.apply(owner, &self.writer).await
    }

    /// Creates or renumbers the current revision. Call it before pods of the revision are created.
    pub(crate) async fn record<K>(&self, owner: &K, plan: &History) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()>,
    {
        if let Some(revision) = &plan.create {
            match self.writer.create(revision).await {
                Err(error) if berth_runtime::is_already_exists(&error) => {
                    // A deleted set of the same name and template left the revision, or the cache
                    // does not have it yet.
                    let known = berth_runtime::write::get(&self.writer.api(revision), &revision.name_any()).await?;
                    let uid = owner.uid().unwrap_or_default();
                    if !is_controlled_by(&known, &uid) {
                        let adopted = ControllerRevision {
                            metadata: ObjectMeta {
                                owner_references: revision.metadata.owner_references.clone(),
                                ..known.metadata.clone()
                            },
                            revision: revision.revision,
                            ..known
                        };
                        self.writer.replace(&adopted).await?;
                    }
                }
                created => _ = created?,
            }
        }
        if let Some(revision) = &plan.renumber {
            self.writer.replace(revision).await?;
        }
        Ok(())
    }

    /// Deletes old revisions.
    pub(crate) async fn prune(&self, plan: &History) -> Result<(), Error> {
        for revision in &plan.delete {
            self.writer.delete(revision).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;

    fn template(version: &str) -> PodTemplateSpec {
        serde_json::from_value(json!({"metadata": {"labels": {"v": version}}, "spec": {"containers": []}})).unwrap()
    }

    /// The revisions after a set has had these versions, with a limit of 2.
    fn after(versions: &[&str], live: &[&str]) -> Vec<(String, i64)> {
        let owner: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "d", "uid": "u"}})).unwrap();
        let live = live.iter().map(|version| format!("d-{version}")).collect();
        let mut known: Vec<Arc<ControllerRevision>> = Vec::new();
        for version in versions {
            let template = template(version);
            let wanted = Wanted { template: &template, hash: version, hash_label: "hash", limit: Some(2) };
            let plan = history(&owner, &wanted, &known, &live);
            known.retain(|it| {
                !plan.delete.contains(it)
                    && plan.renumber.as_ref().is_none_or(|new| new.metadata.name != it.metadata.name)
            });
            known.extend(plan.create.into_iter().chain(plan.renumber).map(Arc::new));
        }
        known.iter().map(|it| (it.name_any(), it.revision)).collect()
    }

    fn named(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
        expected.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
    }

    #[test]
    fn each_template_has_one_revision_and_a_rollback_gets_a_new_number() {
        assert_eq!(after(&["1"], &[]), named(&[("d-1", 1)]));
        assert_eq!(after(&["1", "2", "1", "1"], &[]), named(&[("d-2", 2), ("d-1", 3)]));
    }

    #[test]
    fn the_oldest_revisions_beyond_the_limit_are_deleted_unless_pods_have_them() {
        assert_eq!(after(&["1", "2", "3", "4", "4"], &[]), named(&[("d-2", 2), ("d-3", 3), ("d-4", 4)]));
        assert_eq!(after(&["1", "2", "3", "4", "4"], &["1"]), named(&[("d-1", 1), ("d-3", 3), ("d-4", 4)]));
    }

    #[test]
    fn a_revision_restores_its_template() {
        let template = template("1");
        let owner: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "d", "uid": "u"}})).unwrap();
        let wanted = Wanted { template: &template, hash: "h", hash_label: "controller-revision-hash", limit: None };
        let revision = revision(&owner, &wanted, 1);
        assert_eq!(template_of(&revision), Some(template));
        assert_eq!(revision.data.as_ref().unwrap().0["spec"]["template"]["$patch"], "replace");
        assert_eq!(json!(revision.metadata.labels), json!({"v": "1", "controller-revision-hash": "h"}));
    }
}
