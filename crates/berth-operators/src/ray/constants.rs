//! Labels, annotations, finalizers, ports and environment variables of Ray on Kubernetes.

/// API version of all kinds of Ray.
pub const API_VERSION: &str = "ray.io/v1";
/// Value of `spec.managedBy` of objects that this operator reconciles. It also reconciles objects
/// without the field.
pub const CONTROLLER_NAME: &str = "ray.io/kuberay-operator";

/// Label: name of the RayCluster of a pod or Service.
pub const CLUSTER: &str = "ray.io/cluster";
/// Label: `head` or `worker`.
pub const NODE_TYPE: &str = "ray.io/node-type";
/// Label: name of the worker group; [`HEAD_GROUP`] on the head pod.
pub const GROUP: &str = "ray.io/group";
/// Label: `yes` on every pod of a Ray cluster.
pub const IS_RAY_NODE: &str = "ray.io/is-ray-node";
/// Label: `<cluster>-<node type>`.
pub const IDENTIFIER: &str = "ray.io/identifier";
/// Label: `true` on pods that serve the requests of Ray Serve. Services of Ray Serve have the label
/// with another value.
pub const SERVE: &str = "ray.io/serve";
/// Label of the headless Service of the workers.
pub const HEADLESS_SERVICE: &str = "ray.io/headless-worker-svc";
/// Label: name of the replica of a group with several hosts per replica.
pub const REPLICA_NAME: &str = "ray.io/worker-group-replica-name";
/// Label: index of the replica in its group.
pub const REPLICA_INDEX: &str = "ray.io/worker-group-replica-index";
/// Label: index of the host in its replica.
pub const HOST_INDEX: &str = "ray.io/replica-host-index";
/// Label: kind of the object for which a cluster, pod or Service was created.
pub const ORIGIN_KIND: &str = "ray.io/originated-from-crd";
/// Label: name of the object for which a cluster, pod or Service was created.
pub const ORIGIN_NAME: &str = "ray.io/originated-from-cr-name";
/// Label: submission mode of the RayJob of a cluster.
pub const SUBMISSION_MODE: &str = "ray.io/job-submission-mode";
/// Label `app.kubernetes.io/name`.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Label `app.kubernetes.io/created-by`.
pub const CREATED_BY: &str = "app.kubernetes.io/created-by";
/// Value of [`APP_NAME`].
pub const APPLICATION: &str = "kuberay";
/// Value of [`CREATED_BY`].
pub const COMPONENT: &str = "kuberay-operator";
/// Group of the head pod.
pub const HEAD_GROUP: &str = "headgroup";

/// Annotation of a RayCluster: do not recreate the head pod once the cluster was provisioned.
pub const NO_HEAD_RESTART: &str = "ray.io/disable-provisioned-head-restart";
/// Annotation of a head pod: hash of the spec from which it was made.
pub const RECREATE_HASH: &str = "ray.io/upgrade-strategy-recreate-hash";
/// Annotation of a RayCluster: seconds after which the finalizer of a deleted cluster is removed
/// even if its data in Redis has not been deleted.
pub const DELETION_TIMEOUT: &str = "ray.io/gcs-ft-deletion-timeout";
/// Annotation of a RayCluster: `true` keeps the command of the Ray containers.
pub const OVERWRITE_COMMAND: &str = "ray.io/overwrite-container-cmd";
/// Annotation of a RayCluster: `true` adds a Service for Ray Serve.
pub const ENABLE_SERVE_SERVICE: &str = "ray.io/enable-serve-service";
/// Annotation: `true` keeps the state of the head in a persistent store.
pub const FT_ENABLED: &str = "ray.io/ft-enabled";
/// Annotation: namespace of the cluster's data in Redis.
pub const STORAGE_NAMESPACE: &str = "ray.io/external-storage-namespace";

/// Finalizer of a RayCluster whose data in Redis must be deleted.
pub const REDIS_FINALIZER: &str = "ray.io/gcs-ft-redis-cleanup-finalizer";

/// Port of the head's GCS (Global Control Store).
pub const GCS_PORT: i32 = 6379;
/// Port of the dashboard.
pub const DASHBOARD_PORT: i32 = 8265;
/// Port for Ray clients.
pub const CLIENT_PORT: i32 = 10001;
/// Port of the metrics of every node.
pub const METRICS_PORT: i32 = 8080;
/// Port of Ray Serve.
pub const SERVE_PORT: i32 = 8000;
/// Port of the agent of every node.
pub const AGENT_PORT: i32 = 52365;

/// Name of the dashboard's port in Services and containers.
pub const DASHBOARD_PORT_NAME: &str = "dashboard";
/// Name of Ray Serve's port in Services and containers.
pub const SERVE_PORT_NAME: &str = "serve";

/// Maximum length of a RayCluster's name. The longest name of its Services then has 63 characters,
/// which Kubernetes allows.
pub const CLUSTER_NAME_MAX: usize = 53;
