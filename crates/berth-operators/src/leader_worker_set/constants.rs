//! Labels, annotations and environment variables of LeaderWorkerSets, as upstream names them.

/// Label: name of the LeaderWorkerSet.
pub const NAME: &str = "leaderworkerset.sigs.k8s.io/name";
/// Label: index of the pod's group in the set.
pub const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// Label: index of the pod in its group; the leader has 0.
pub const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// Label: hash of the leader's namespace and name, which identifies the group in the cluster.
pub const GROUP_KEY: &str = "leaderworkerset.sigs.k8s.io/group-key";
/// Label: key of the revision of the templates.
pub const REVISION: &str = "leaderworkerset.sigs.k8s.io/template-revision-hash";
/// Label: index of the pod's subgroup in its group.
pub const SUBGROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/subgroup-index";
/// Label: hash that identifies the subgroup in the cluster.
pub const SUBGROUP_KEY: &str = "leaderworkerset.sigs.k8s.io/subgroup-key";

/// Annotation: pods per group.
pub const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
/// Annotation of the leaders' StatefulSet: wanted groups, without surge.
pub const REPLICAS: &str = "leaderworkerset.sigs.k8s.io/replicas";
/// Annotation of a worker: name of its leader.
pub const LEADER_NAME: &str = "leaderworkerset.sigs.k8s.io/leader-name";
/// Annotation: key of the node label whose values each hold one group.
pub const EXCLUSIVE_TOPOLOGY: &str = "leaderworkerset.sigs.k8s.io/exclusive-topology";
/// Annotation: key of the node label whose values each hold one subgroup.
pub const SUBGROUP_EXCLUSIVE_TOPOLOGY: &str = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology";
/// Annotation: pods per subgroup.
pub const SUBGROUP_SIZE: &str = "leaderworkerset.sigs.k8s.io/subgroup-size";
/// Annotation: whether the leader belongs to a subgroup.
pub const SUBGROUP_POLICY_TYPE: &str = "leaderworkerset.sigs.k8s.io/subgroup-policy-type";
/// Annotation: which Services the groups have.
pub const SUBDOMAIN_POLICY: &str = "leaderworkerset.sigs.k8s.io/subdomainPolicy";
/// Annotation of the set: a group is recreated only once all of its pods have started.
pub const RECREATE_AFTER_START: &str = "leaderworkerset.sigs.k8s.io/experimental-recreate-group-after-start";
/// Annotation of a worker: its leader requests TPUs.
pub const LEADER_REQUESTS_TPUS: &str = "leaderworkerset.sigs.k8s.io/leader-requests-tpus";

/// Environment variable: DNS name of the leader.
pub const ENV_LEADER_ADDRESS: &str = "LWS_LEADER_ADDRESS";
/// Environment variable: pods per group.
pub const ENV_GROUP_SIZE: &str = "LWS_GROUP_SIZE";
/// Environment variable: index of the pod in its group.
pub const ENV_WORKER_INDEX: &str = "LWS_WORKER_INDEX";

/// Field manager of the leaders' StatefulSet.
pub const FIELD_MANAGER: &str = "lws";
