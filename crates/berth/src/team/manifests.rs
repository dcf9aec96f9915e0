//! The manifests of a team's objects, in the order in which they are created.

use berth_api::kueue::v1beta2::{
    BorrowWithinCohort, BorrowWithinCohortPolicy, ClusterQueuePreemption, ReclaimWithinCohort, ResourceGroup,
    WithinClusterQueue,
};
use serde_json::{Value, json};

/// The label of team namespaces that MLBatch uses.
pub const NAMESPACE_LABEL: &str = "mlbatch-team-namespace=true";
/// The ClusterRole that is bound to users, and created if it does not exist.
pub const EDIT_ROLE: &str = "mlbatch-edit";
/// Name of the LocalQueue. AppWrappers without a queue get the queue of this name.
pub const LOCAL_QUEUE: &str = "default-queue";
/// Label of a team's ClusterQueue; its value is the team's name.
pub const TEAM_LABEL: &str = "berth.dev/team";

/// A user or group that works in a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A user.
    User(String),
    /// A group of users.
    Group(String),
}

impl Subject {
    /// Name of the subject's RoleBinding.
    pub fn binding_name(&self) -> String {
        match self {
            Self::User(name) => name.clone(),
            Self::Group(name) => format!("group:{name}"),
        }
    }
}

/// A team, as the command line describes it.
pub struct Team {
    /// Name of the team and its namespace.
    pub name: String,
    /// Label of its namespace.
    pub label: (String, String),
    /// Cohort of its ClusterQueue.
    pub cohort: String,
    /// Quota; empty to leave the ClusterQueue unchanged.
    pub groups: Vec<ResourceGroup>,
    /// Users and groups.
    pub subjects: Vec<Subject>,
    /// ClusterRole of the users.
    pub role: String,
}

impl Team {
    /// Name of the team's ClusterQueue.
    pub fn cluster_queue(&self) -> String {
        cluster_queue(&self.name)
    }

    /// The team's objects. `role` and `flavors` are created, too, because they do not exist.
    pub fn objects(&self, role: bool, flavors: &[String]) -> Vec<Value> {
        let mut objects = Vec::new();
        if role {
            objects.push(edit_role());
        }
        objects.extend(flavors.iter().map(|name| {
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}})
        }));
        objects.push(json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.name, "labels": {&self.label.0: &self.label.1}},
        }));
        if !self.groups.is_empty() {
            objects.push(self.cluster_queue_object());
        }
        objects.push(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": LOCAL_QUEUE, "namespace": self.name},
            "spec": {"clusterQueue": self.cluster_queue()},
        }));
        objects.extend(self.subjects.iter().map(|subject| self.binding(subject)));
        objects
    }

    fn cluster_queue_object(&self) -> Value {
        let preemption = ClusterQueuePreemption {
            within_cluster_queue: Some(WithinClusterQueue::LowerOrNewerEqualPriority),
            reclaim_within_cohort: Some(ReclaimWithinCohort::Any),
            borrow_within_cohort: Some(BorrowWithinCohort {
                policy: Some(BorrowWithinCohortPolicy::Never),
                ..BorrowWithinCohort::default()
            }),
        };
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": self.cluster_queue(), "labels": {TEAM_LABEL: self.name}},
            "spec": {
                "cohortName": self.cohort,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.name}},
                "preemption": preemption,
                "resourceGroups": self.groups,
            },
        })
    }

    fn binding(&self, subject: &Subject) -> Value {
        let (kind, name) = match subject {
            Subject::User(name) => ("User", name),
            Subject::Group(name) => ("Group", name),
        };
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": subject.binding_name(), "namespace": self.name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}],
        })
    }
}

/// Name of the ClusterQueue of the team with this name.
pub fn cluster_queue(team: &str) -> String {
    format!("{team}-cluster-queue")
}

/// The ClusterRole of users.
fn edit_role() -> Value {
    serde_saphyr::from_str(include_str!("edit-role.yaml")).expect("the file in this folder is valid; a test reads it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> Team {
        Team {
            name: "blue".into(),
            label: ("mlbatch-team-namespace".into(), "true".into()),
            cohort: "default-cohort".into(),
            groups: vec![ResourceGroup::default()],
            subjects: vec![Subject::User("alice".into()), Subject::Group("blue".into())],
            role: EDIT_ROLE.into(),
        }
    }

    fn names(objects: &[Value]) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        objects
            .iter()
            .map(|object| format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"])))
            .collect()
    }

    #[test]
    fn objects_follow_those_that_they_refer_to() {
        let objects = team().objects(true, &["default-flavor".to_owned()]);
        assert_eq!(
            names(&objects),
            [
                "ClusterRole/mlbatch-edit",
                "ResourceFlavor/default-flavor",
                "Namespace/blue",
                "ClusterQueue/blue-cluster-queue",
                "LocalQueue/default-queue",
                "RoleBinding/alice",
                "RoleBinding/group:blue"
            ]
        );
        assert_eq!(objects[2]["metadata"]["labels"]["mlbatch-team-namespace"], "true");
        assert_eq!(objects[4]["spec"]["clusterQueue"], "blue-cluster-queue");
        assert_eq!(objects[6]["subjects"][0]["kind"], "Group");
    }

    #[test]
    fn without_quota_the_cluster_queue_stays_unchanged() {
        let objects = Team { groups: Vec::new(), ..team() }.objects(false, &[]);
        let expected = ["Namespace/blue", "LocalQueue/default-queue", "RoleBinding/alice", "RoleBinding/group:blue"];
        assert_eq!(names(&objects), expected);
    }

    #[test]
    fn users_create_no_pods_and_no_jobs_that_quota_does_not_cover() {
        let role = edit_role();
        let rules = role["rules"].as_array().expect("rules");
        let may = |verb: &str, resource: &str| {
            let has = |list: &Value, item: &str| list.as_array().is_some_and(|list| list.contains(&json!(item)));
            rules.iter().any(|rule| has(&rule["resources"], resource) && has(&rule["verbs"], verb))
        };
        for resource in ["pods", "jobs", "deployments", "statefulsets", "jobsets", "appwrappers/status"] {
            assert!(!may("create", resource) && !may("patch", resource), "{resource}");
        }
        assert!(may("create", "appwrappers") && may("delete", "pods") && may("get", "pods/log"));
    }
}
