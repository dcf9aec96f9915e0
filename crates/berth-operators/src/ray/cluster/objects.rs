//! Creates the objects of a cluster that are not pods: the rights of the autoscaler, the Ingress,
//! the token, the Services, and the claim of the embedded store. An existing object is not changed.

use berth_api::json::Json;
use std::fmt::Debug;

use berth_api::frameworks::RayCluster;
use berth_runtime::{Error, ObjectKey, PlannedEvent};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, Secret, Service, ServiceAccount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};

use super::facts::Facts;
use super::{ClusterController, access, ingress, services};
use crate::ray::constants::{CLUSTER, ENABLE_SERVE_SERVICE};
use crate::ray::types::GcsStorage;

/// Number of random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Reasons of the events about one kind of object, and the name of the kind in their messages.
struct Words {
    created: &'static str,
    failed: &'static str,
    kind: &'static str,
}

const ACCOUNT: Words =
    Words { created: "CreatedServiceAccount", failed: "FailedToCreateServiceAccount", kind: "service account" };
const ROLE: Words = Words { created: "CreatedRole", failed: "FailedToCreateRole", kind: "role" };
const BINDING: Words =
    Words { created: "CreatedRoleBinding", failed: "FailedToCreateRoleBinding", kind: "role binding" };
const INGRESS: Words = Words { created: "CreatedIngress", failed: "FailedToCreateIngress", kind: "ingress" };
const SERVICE: Words = Words { created: "CreatedService", failed: "FailedToCreateService", kind: "service" };
const CLAIM: Words = Words { created: "CreatedPVC", failed: "FailedToCreatePVC", kind: "GCS storage PVC" };
const SECRET: Words = Words { created: "CreatedSecret", failed: "FailedToCreateSecret", kind: "secret" };

impl ClusterController {
    /// Creates all objects that the cluster lacks. Stops at the first that cannot be created.
    pub(super) async fn make_objects(&self, cluster: &RayCluster, facts: &Facts<'_>) -> Result<(), Error> {
        if facts.spec.is_autoscaled() {
            self.make_account(cluster, facts).await?;
            self.make_missing(cluster, &access::role(facts), &ROLE).await?;
            self.make_missing(cluster, &access::binding(facts), &BINDING).await?;
        }
        if let Some(ingress) = ingress::dashboard(facts) {
            self.make_missing(cluster, &ingress, &INGRESS).await?;
        }
        self.make_token(cluster, facts).await?;
        self.make_service(cluster, &services::head(facts)).await?;
        if let Some(service) = services::headless(facts) {
            self.make_service(cluster, &service).await?;
        }
        if facts.annotations.get(ENABLE_SERVE_SERVICE).is_some_and(|value| value == "true") {
            match services::serve(facts) {
                Some(service) => self.make_service(cluster, &service).await?,
                None => {
                    let message = "Please specify a port named 'serve' (or with the prefix 'serve-', e.g. \
                                   'serve-grpc') in the Ray head container; otherwise, the Kubernetes service for Ray \
                                   Serve will not be created.";
                    self.record(cluster, &PlannedEvent::warning(SERVICE.failed, message.to_owned()));
                }
            }
        }
        self.make_claim(cluster, facts).await
    }

    /// Creates the object unless an object of its kind and name exists.
    async fn make_missing<K>(&self, cluster: &RayCluster, object: &K, words: &Words) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Json + Clone + Debug,
    {
        let api: Api<K> = self.api(cluster);
        let name = object.meta().name.as_deref().unwrap_or_default();
        if api.get_metadata_opt(name).await?.is_some() {
            return Ok(());
        }
        self.create(cluster, &api, object, words).await.map(drop)
    }

    async fn create<K>(&self, cluster: &RayCluster, api: &Api<K>, object: &K, words: &Words) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = ()> + Json + Clone + Debug,
    {
        let key = ObjectKey::of(object);
        match berth_runtime::write::create(api, &PostParams::default(), object).await {
            Ok(created) => {
                self.record(cluster, &PlannedEvent::normal(words.created, format!("Created {} {key}", words.kind)));
                Ok(Some(created))
            }
            Err(error) if berth_runtime::is_already_exists(&error) => Ok(None),
            Err(error) => {
                let message = format!("Failed creating {} {key}, {}", words.kind, berth_runtime::message(&error));
                self.record(cluster, &PlannedEvent::warning(words.failed, message));
                Err(error.into())
            }
        }
    }

    /// Creates the service account of the head pod. If the pod template names one, the user must
    /// create it.
    async fn make_account(&self, cluster: &RayCluster, facts: &Facts<'_>) -> Result<(), Error> {
        let account = access::account(facts);
        let given = facts.spec.head_group_spec.template.spec.as_ref();
        let is_users = given.and_then(|spec| spec.service_account_name.as_deref()).is_some_and(|name| !name.is_empty());
        if !is_users {
            return self.make_missing(cluster, &account, &ACCOUNT).await;
        }
        let name = facts.autoscaler_account();
        let accounts: Api<ServiceAccount> = self.api(cluster);
        if accounts.get_metadata_opt(&name).await?.is_some() {
            return Ok(());
        }
        let message = format!(
            "Failed to reconcile RayCluster {}. The head's pod template names ServiceAccount {name}, which does not \
             exist. Create it, or leave serviceAccountName empty to have one created.",
            facts.key()
        );
        self.record(cluster, &PlannedEvent::warning("AutoscalerServiceAccountNotFound", message.clone()));
        Err(message.into())
    }

    async fn make_service(&self, cluster: &RayCluster, service: &Service) -> Result<(), Error> {
        if self.services.get(&ObjectKey::of(service)).is_some() {
            return Ok(());
        }
        if let Some(created) = self.create(cluster, &self.api(cluster), service, &SERVICE).await? {
            self.services.observe(created);
        }
        Ok(())
    }

    /// Creates the Secret with the token of Ray's clients, unless the spec names a Secret or the
    /// API server authenticates the clients.
    async fn make_token(&self, cluster: &RayCluster, facts: &Facts<'_>) -> Result<(), Error> {
        let Some(options) = facts.spec.auth_options.as_ref().filter(|_| facts.spec.needs_token()) else {
            return Ok(());
        };
        let is_given = options.secret_name.as_deref().is_some_and(|name| !name.is_empty());
        if is_given || options.enable_k8s_token_auth == Some(true) {
            return Ok(());
        }
        let secrets: Api<Secret> = self.api(cluster);
        if secrets.get_metadata_opt(&facts.token_secret()).await?.is_some() {
            return Ok(());
        }
        let mut bytes = [0; TOKEN_BYTES];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
            .map_err(|_| "cannot create the token of the Ray cluster: the system provides no random numbers")?;
        let token = ByteString(hex::encode(bytes).into_bytes());
        let secret = Secret {
            metadata: metadata(facts, facts.token_secret()),
            data: Some([(super::pod::TOKEN_KEY.to_owned(), token)].into()),
            ..Secret::default()
        };
        self.create(cluster, &secrets, &secret, &SECRET).await.map(drop)
    }

    /// Creates the claim of the embedded store, unless the spec names one. If the named claim does
    /// not exist, records an event.
    async fn make_claim(&self, cluster: &RayCluster, facts: &Facts<'_>) -> Result<(), Error> {
        let Some(options) = facts.embedded_store() else { return Ok(()) };
        let storage = options.storage.clone().unwrap_or_default();
        if storage.claim_name.is_empty() {
            return self.make_missing(cluster, &claim(facts, storage), &CLAIM).await;
        }
        let claims: Api<PersistentVolumeClaim> = self.api(cluster);
        if claims.get_metadata_opt(&storage.claim_name).await?.is_none() {
            let message = format!(
                "GcsFaultToleranceOptions.Storage.ClaimName {:?} not found in namespace {}; the head Pod will not \
                 start until it exists",
                storage.claim_name, facts.namespace
            );
            self.record(cluster, &PlannedEvent::warning(CLAIM.failed, message));
        }
        Ok(())
    }
}

fn metadata(facts: &Facts<'_>, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(facts.namespace.to_owned()),
        labels: Some([(CLUSTER.to_owned(), facts.name.to_owned())].into()),
        owner_references: Some(vec![facts.owner()]),
        ..ObjectMeta::default()
    }
}

/// The claim of the embedded store. With the deletion policy `Retain` it has no owner, so it is
/// kept when the cluster is deleted.
fn claim(facts: &Facts<'_>, storage: GcsStorage) -> PersistentVolumeClaim {
    let mut metadata = metadata(facts, facts.store_claim());
    if storage.deletion_policy.as_deref() == Some("Retain") {
        metadata.owner_references = None;
    }
    let size = storage.size.unwrap_or_else(|| Quantity("1Gi".to_owned()));
    let modes = Some(storage.access_modes).filter(|modes| !modes.is_empty());
    let spec = PersistentVolumeClaimSpec {
        access_modes: modes.or_else(|| Some(vec!["ReadWriteOnce".to_owned()])),
        storage_class_name: storage.storage_class_name,
        resources: Some(VolumeResourceRequirements {
            requests: Some([("storage".to_owned(), size)].into()),
            limits: None,
        }),
        ..PersistentVolumeClaimSpec::default()
    };
    PersistentVolumeClaim { metadata, spec: Some(spec), status: None }
}
