//! Starts a container: volumes, sandbox, image, devices, configuration, program.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_pod_runtime::{
    ContainerStatus, Device, Image, ImageRequest, PodState, PodUid, RuntimeError, SandboxConfig, Volume,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, PodIP, PodStatus, ResourceRequirements, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::memory::{Obstacle, Token};
use super::node::Node;
use crate::kubelet::lifecycle::{Member, PodEvent, Start};
use crate::kubelet::resolve::{
    Context, TokenSource, config, image_request, image_volumes, pull_secrets, sandbox, token_sources, volumes,
    wanted_devices,
};

/// Reason of a container that its runtime could not create.
const CREATE_ERROR: &str = "CreateContainerError";

/// Input of a start.
pub struct StartJob {
    /// The node.
    pub node: Arc<Node>,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its status, with its host's address.
    pub status: PodStatus,
    /// The container.
    pub member: Member<'static>,
    /// The run.
    pub start: Start,
    /// The service account tokens that are known for the pod's volumes.
    pub tokens: BTreeMap<TokenSource, Token>,
    /// Number of failed pulls of the container's image in a row.
    pub pull_failures: i32,
    /// True while the runtime creates the sandbox or starts the container. Such a call is not
    /// dropped, because its effect would be unknown.
    pub is_in_runtime: Arc<AtomicBool>,
}

/// Result of a start.
pub struct StartResult {
    /// The container.
    pub start: Start,
    /// What happened.
    pub outcome: StartOutcome,
    /// Volumes of the sandbox, if this start created it.
    pub volumes: Option<BTreeMap<String, Volume>>,
    /// Tokens of the pod's volumes.
    pub tokens: BTreeMap<TokenSource, Token>,
    /// The image; `None` if it is not available.
    pub image: Option<Image>,
    /// Time that the pull of the image took; `None` if the image was available already.
    pub pull_time: Option<SignedDuration>,
    /// The resources of the container.
    pub resources: ResourceRequirements,
}

/// Outcome of a start.
pub enum StartOutcome {
    /// The container runs, or has already ended.
    Started(ContainerStatus),
    /// The program could not be started.
    Rejected {
        /// Exit code.
        exit_code: i32,
        /// Reason of the failure.
        message: String,
    },
    /// The container cannot start now.
    Blocked(Obstacle),
    /// No container of the pod can start now.
    Held(PodEvent),
}

impl StartJob {
    /// Starts the container.
    pub async fn run(mut self) -> StartResult {
        let mut made = None;
        let mut image = None;
        let mut pull_time = None;
        let outcome = match self.start(&mut made, &mut image, &mut pull_time).await {
            Ok(started) => StartOutcome::Started(started),
            Err(outcome) => outcome,
        };
        let resources = self.member.spec.resources.clone().unwrap_or_default();
        StartResult { start: self.start, outcome, volumes: made, tokens: self.tokens, image, pull_time, resources }
    }

    async fn start(
        &mut self,
        made: &mut Option<BTreeMap<String, Volume>>,
        image: &mut Option<Image>,
        pull_time: &mut Option<SignedDuration>,
    ) -> Result<ContainerStatus, StartOutcome> {
        let sandbox = self.sandbox(made).await?;
        set_addresses(&self.pod, &mut self.status, &sandbox.ips);
        let found = self.image(pull_time).await.map_err(StartOutcome::Blocked)?;
        *image = Some(found.clone());
        let devices = self.devices().map_err(StartOutcome::Blocked)?;
        let allocatable = self.node.allocatable();
        let context = self.node.context(&self.pod, &self.status, &allocatable);
        let config = config(&context, &self.member, self.start.attempt, found, devices);
        let mut config = config.map_err(|error| StartOutcome::Blocked(Obstacle::Configuration(error)))?;
        add_variables(&mut config.env, self.node.devices.environment(&config.devices));
        self.is_in_runtime.store(true, Ordering::Relaxed);
        let result = self.node.runtime.start_container(&config).await;
        self.is_in_runtime.store(false, Ordering::Relaxed);
        result.map_err(|error| match error {
            RuntimeError::Start { exit_code, message } => StartOutcome::Rejected { exit_code, message },
            // The image may be replaced, so another attempt can succeed.
            RuntimeError::Config(message) => StartOutcome::Blocked(Obstacle::runtime(
                crate::kubelet::lifecycle::CONFIG_ERROR,
                message,
                self.node.clock.now(),
            )),
            error => StartOutcome::Blocked(Obstacle::runtime(CREATE_ERROR, error.to_string(), self.node.clock.now())),
        })
    }

    /// The pod's sandbox. It is created if it does not exist. A sandbox whose supervisor has ended
    /// is removed first.
    async fn sandbox(&mut self, made: &mut Option<BTreeMap<String, Volume>>) -> Result<Arc<PodState>, StartOutcome> {
        let uid = PodUid(self.pod.uid().unwrap_or_default());
        let runtime = self.node.runtime.clone();
        // A sandbox whose creation failed is removed here too, so each attempt starts from scratch.
        match runtime.pod(&uid) {
            Some(state) if state.is_ready => return Ok(state),
            Some(_) => {
                let failed = |error: RuntimeError| held("FailedKillPod", error.to_string());
                runtime.stop_sandbox(&uid).await.map_err(failed)?;
                runtime.remove_sandbox(&uid).await.map_err(failed)?;
            }
            None => {}
        }
        let config = self.sandbox_config().await?;
        self.is_in_runtime.store(true, Ordering::Relaxed);
        let state = runtime.run_sandbox(&config).await;
        self.is_in_runtime.store(false, Ordering::Relaxed);
        let state =
            state.map_err(|error| held("FailedCreatePodSandBox", format!("Failed to create pod sandbox: {error}")))?;
        *made = Some(config.volumes);
        Ok(Arc::new(state))
    }

    async fn sandbox_config(&mut self) -> Result<SandboxConfig, StartOutcome> {
        let tokens = request_tokens(&self.node, &self.pod, &mut self.tokens).await;
        tokens.map_err(|error| held("FailedMount", error))?;
        let allocatable = self.node.allocatable();
        let context = self.node.context(&self.pod, &self.status, &allocatable);
        let mut volumes = volumes(&context, &texts(&self.tokens)).map_err(|error| held("FailedMount", error))?;
        volumes.extend(self.image_volumes(&context).await?);
        sandbox(&self.pod, &self.node.name, &self.node.options, volumes)
            .map_err(|error| held("FailedCreatePodSandBox", error))
    }

    /// The volumes that are images.
    async fn image_volumes(&self, context: &Context<'_>) -> Result<BTreeMap<String, Volume>, StartOutcome> {
        let (credentials, missing) = pull_secrets(context);
        let mut volumes = BTreeMap::new();
        for (name, request) in image_volumes(&self.pod, &credentials) {
            let image = self.ensure(&request, &missing, &mut None).await.map_err(StartOutcome::Blocked)?;
            let Some(root) = image.root else {
                let message = format!(
                    "MountVolume.SetUp failed for volume {name:?} : image {:?} is mapped to this machine's own files; \
                     a volume needs an image that was imported or pulled, or that is mapped to a folder",
                    request.reference
                );
                return Err(held("FailedMount", message));
            };
            volumes.insert(name, Volume::Image { root });
        }
        Ok(volumes)
    }

    /// The image of the container. `pull_time` is set if it was pulled.
    async fn image(&self, pull_time: &mut Option<SignedDuration>) -> Result<Image, Obstacle> {
        let allocatable = Default::default();
        let context = self.node.context(&self.pod, &self.status, &allocatable);
        let (credentials, missing) = pull_secrets(&context);
        self.ensure(&image_request(&self.member.spec, credentials), &missing, pull_time).await
    }

    /// Makes an image available. `missing` has the names of pull secrets without credentials.
    async fn ensure(
        &self,
        request: &ImageRequest,
        missing: &[String],
        pull_time: &mut Option<SignedDuration>,
    ) -> Result<Image, Obstacle> {
        let started = self.node.clock.now();
        let is_pulled = self.node.runtime.needs_pull(request).await;
        if is_pulled {
            let message = format!("Pulling image {:?}", request.reference);
            self.node.record(&self.pod, &PodEvent::normal("Pulling", message).about(&self.member.spec.name));
        }
        let result = self.node.runtime.ensure_image(request).await;
        if is_pulled && result.is_ok() {
            *pull_time = Some(self.node.clock.now().duration_since(started));
        }
        if result.is_err() {
            for name in missing {
                let message = format!("Unable to retrieve image pull secret {name}; the image may not be accessible");
                self.node.record(&self.pod, &PodEvent::warning("FailedToRetrieveImagePullSecret", message));
            }
        }
        let now = self.node.clock.now();
        result.map_err(|error| match error {
            RuntimeError::Image { reason, message } => Obstacle::Image {
                reason: reason.to_owned(),
                message,
                image: request.reference.clone(),
                failures: self.pull_failures.saturating_add(1),
                failed_at: now,
            },
            error => Obstacle::runtime("ImageInspectError", error.to_string(), now),
        })
    }

    fn devices(&self) -> Result<Vec<Device>, Obstacle> {
        let uid = PodUid(self.pod.uid().unwrap_or_default());
        let mut devices = Vec::new();
        for (resource, count) in wanted_devices(&self.member.spec, &self.node.devices.capacity()) {
            let assigned = self.node.devices.assign(&uid, &self.member.spec.name, &resource, count);
            match assigned {
                Ok(mut assigned) => devices.append(&mut assigned),
                Err(error) => {
                    return Err(Obstacle::runtime(CREATE_ERROR, error.to_string(), self.node.clock.now()));
                }
            }
        }
        Ok(devices)
    }
}

/// Adds variables that the container does not set itself.
fn add_variables(env: &mut Vec<(String, String)>, variables: Vec<(String, String)>) {
    let missing: Vec<_> =
        variables.into_iter().filter(|(name, _)| env.iter().all(|(known, _)| known != name)).collect();
    env.extend(missing);
}

fn held(reason: &'static str, message: String) -> StartOutcome {
    StartOutcome::Held(PodEvent::warning(reason, message))
}

/// Sets a pod's addresses in its status. For a pod on the host's network, these are the host's
/// addresses.
pub fn set_addresses(pod: &Pod, status: &mut PodStatus, ips: &[String]) {
    let is_on_host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    let host: Vec<String> = status.host_ip.clone().filter(|_| is_on_host).into_iter().collect();
    let ips = if ips.is_empty() { &host } else { ips };
    if let Some(first) = ips.first() {
        status.pod_ip = Some(first.clone());
        status.pod_ips = Some(ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect());
    }
}

/// The tokens without their refresh times.
pub fn texts(tokens: &BTreeMap<TokenSource, Token>) -> BTreeMap<TokenSource, String> {
    tokens.iter().map(|(source, token)| (source.clone(), token.token.clone())).collect()
}

/// Requests the tokens that a pod's volumes lack or that are due for a refresh.
///
/// Tokens are refreshed after 80 % of their lifetime, or after a day if that is earlier.
pub async fn request_tokens(node: &Node, pod: &Pod, tokens: &mut BTreeMap<TokenSource, Token>) -> Result<(), String> {
    let now = node.clock.now();
    for source in token_sources(pod) {
        if tokens.get(&source).is_some_and(|token| now < token.refresh_at) {
            continue;
        }
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let account = account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned());
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<ServiceAccount> = Api::namespaced(node.writer.client.clone(), namespace);
        let request = token_request(pod, &source);
        let failed = |error: String| {
            format!(
                "MountVolume.SetUp failed for volume {:?} : failed to fetch token of service account {account:?}: {error}",
                source.volume
            )
        };
        let response = api.create_token_request(&account, &PostParams::default(), &request).await;
        let response = response.map_err(|error| failed(berth_runtime::message(&error)))?;
        let Some(status) = response.status else { return Err(failed("the response has no token".to_owned())) };
        let refresh_at = refresh_at(now, status.expiration_timestamp.0);
        tokens.insert(source, Token { token: status.token, refresh_at });
    }
    Ok(())
}

fn refresh_at(now: Timestamp, expires: Timestamp) -> Timestamp {
    let lifetime = expires.duration_since(now).as_secs().max(0);
    let after = SignedDuration::from_secs((lifetime * 4 / 5).clamp(1, 24 * 3600));
    now.checked_add(after).unwrap_or(Timestamp::MAX)
}

fn token_request(pod: &Pod, source: &TokenSource) -> TokenRequest {
    TokenRequest {
        spec: TokenRequestSpec {
            audiences: if source.audience.is_empty() { Vec::new() } else { vec![source.audience.clone()] },
            expiration_seconds: Some(source.expiration_seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        },
        ..TokenRequest::default()
    }
}
