//! AppWrapper (workload.codeflare.dev/v1beta2): objects of any kind that are queued, deployed,
//! watched and retried together.
//!
//! The controller reads caches and components, plans a step ([`mod@plan`]), applies it and plans
//! again until there is nothing to do. Pods, Jobs and nodes that change wake it, so a fault is
//! noticed at once; the checks at intervals find the rest.

pub mod admission;
mod components;
pub mod config;
pub mod inject;
pub mod metrics;
mod names;
pub mod parameters;
pub mod plan;
pub mod pods;
pub mod rights;
pub mod types;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::frameworks::{AppWrapper, PyTorchJob};
use berth_runtime::{
    Action, Cache, Clock, Delta, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer,
    is_controlled_by, owned_by,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use self::components::{Components, has_failed};
use self::config::AppWrapperConfiguration;
use self::metrics::Transitions;
use self::parameters::Parameters;
use self::plan::{Act, Decision, Facts, Look, Next, Observed, Outcome, Presence, plan};
use self::pods::PodSummary;
use self::types::{AppWrapperSpec, AppWrapperStatus, ComponentStatus, FINALIZER, LABEL, MANAGER, Phase};
use crate::health::{self, NodeHealth};

/// Maximum number of steps of one reconcile. The others follow at once, after other AppWrappers.
const STEPS_MAX: usize = 40;

/// Options of the controller.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Configuration.
    pub configuration: AppWrapperConfiguration,
    /// Counts the transitions of all controllers with these options.
    pub transitions: Transitions,
}

impl Options {
    /// Options with a configuration.
    pub fn new(configuration: AppWrapperConfiguration) -> Self {
        Self { configuration, transitions: Transitions::default() }
    }
}

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager, options: &Options) {
    let configuration = &options.configuration;
    let wrappers = manager.cache_if_served::<AppWrapper>();
    let pods = manager.cache::<Pod>();
    let nodes = manager.nodes();
    let jobs = manager.cache::<Job>();
    let torch_jobs = manager.cache_if_served::<PyTorchJob>();
    let on_node = pods.index(|pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if wrapper_of(pod).is_some() { node.into_iter().collect() } else { Vec::new() }
    });
    let controller = Controller {
        clock: manager.clock(),
        recorder: manager.recorder("appwrapper"),
        client: manager.client(),
        components: Components::new(manager.client()),
        configuration: configuration.clone(),
        transitions: options.transitions.clone(),
        writer: Writer::new(manager, &wrappers),
        pods: pods.clone(),
        nodes: nodes.clone(),
        jobs: jobs.clone(),
        torch_jobs: torch_jobs.clone(),
        of_wrapper: pods.index(|pod: &Pod| wrapper_of(pod).map(|key| key.to_string()).into_iter().collect()),
        wrappers: wrappers.clone(),
    };
    let health = configuration.autopilot.clone();
    manager
        .controller("appwrapper")
        .watch_self(&wrappers)
        .watch(&pods, |delta| if is_of_interest(delta) { wrapper_of(delta.latest()) } else { None })
        .watch(&nodes, move |delta| {
            let of = |node: &Option<Arc<Node>>| node.as_ref().map(|node| NodeHealth::of(node, &health));
            let changed = health.monitor_nodes && of(&delta.old) != of(&delta.new);
            let pods = if changed { on_node.get(&delta.latest().name_any()) } else { Vec::new() };
            pods.iter().filter_map(|pod| wrapper_of(pod)).collect::<BTreeSet<_>>()
        })
        .watch_owned::<AppWrapper, _>(&jobs)
        .watch_owned::<AppWrapper, _>(&torch_jobs)
        .run(controller);
}

/// Key of the AppWrapper that a pod's label names.
fn wrapper_of(pod: &Pod) -> Option<ObjectKey> {
    let name = pod.metadata.labels.as_ref()?.get(LABEL)?;
    Some(ObjectKey::namespaced(pod.metadata.namespace.clone().unwrap_or_default(), name))
}

/// True if the change of a pod may change a decision.
fn is_of_interest(delta: &Delta<Pod>) -> bool {
    let state = |pod: &Option<Arc<Pod>>| {
        pod.as_ref().map(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            (phase, pod.metadata.deletion_timestamp.is_some())
        })
    };
    state(&delta.old) != state(&delta.new)
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    components: Components,
    configuration: AppWrapperConfiguration,
    transitions: Transitions,
    wrappers: Cache<AppWrapper>,
    writer: Writer<AppWrapper>,
    pods: Cache<Pod>,
    of_wrapper: Index<Pod>,
    nodes: Cache<Node>,
    jobs: Cache<Job>,
    torch_jobs: Cache<PyTorchJob>,
}

/// State of a component that exists and has no problem.
const WELL: Presence = Presence::Present { is_deleting: false, has_failed: false };

/// True if the AppWrapper of this UID controls the object, which is not being deleted.
fn is_steady<K: Resource>(object: &K, uid: &str) -> bool {
    is_controlled_by(object, uid) && object.meta().deletion_timestamp.is_none()
}

/// An AppWrapper while it is reconciled.
struct Current {
    object: AppWrapper,
    spec: AppWrapperSpec,
    status: AppWrapperStatus,
    parameters: Parameters,
    observed: Observed,
}

impl Current {
    fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.object.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn facts(&self, clock: &Clock) -> Facts<'_> {
        Facts {
            uid: self.uid(),
            spec: &self.spec,
            status: &self.status,
            is_deleting: self.object.metadata.deletion_timestamp.is_some(),
            has_finalizer: self.object.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
            parameters: &self.parameters,
            observed: &self.observed,
            now: clock.now(),
        }
    }
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(object) = self.wrappers.get(&key) else { return Ok(Action::Wait) };
        let Some(mut current) = self.read(&object)? else { return Ok(Action::Wait) };
        for _ in 0..STEPS_MAX {
            self.observe(&mut current).await?;
            let decision = plan(&current.facts(&self.clock));
            match self.apply(&mut current, decision).await? {
                Next::Wait => return Ok(Action::Wait),
                Next::After(delay) => return Ok(Action::After(delay)),
                Next::Again => {}
            }
        }
        Ok(Action::After(Duration::from_millis(1)))
    }
}

impl Controller {
    /// The AppWrapper with its parameters; `None` if another controller manages it.
    fn read(&self, object: &Arc<AppWrapper>) -> Result<Option<Current>, Error> {
        let object = object.as_ref().clone();
        let spec = AppWrapperSpec::read(&object.spec).map_err(|error| format!("spec cannot be read: {error}"))?;
        if spec.managed_by.as_deref().is_some_and(|manager| manager != MANAGER) {
            return Ok(None);
        }
        let status = AppWrapperStatus::read(object.status.as_ref());
        let status = status.map_err(|error| format!("status cannot be read: {error}"))?;
        let annotations = object.metadata.annotations.as_ref();
        let (parameters, malformed) = Parameters::of(annotations, &self.configuration.fault_tolerance);
        if status.phase == Phase::Empty {
            for problem in malformed {
                let message = format!("The configured default applies: {problem}");
                self.recorder.event(&object, EventType::Warning, "MalformedAnnotation", &message);
            }
        }
        Ok(Some(Current { object, spec, status, parameters, observed: Observed::default() }))
    }

    /// Reads what the next step needs.
    async fn observe(&self, current: &mut Current) -> Result<(), Error> {
        let look = plan::observes(&current.facts(&self.clock));
        if look == Look::Nothing {
            return Ok(());
        }
        let mut components = Vec::new();
        for component in &current.status.component_status {
            let (namespace, uid) = (current.namespace(), current.uid());
            components.push(match look {
                Look::Cached if self.is_well(namespace, component, uid) => WELL,
                _ => self.components.presence(namespace, component, uid).await?,
            });
        }
        let mut pods = self.of_wrapper.get(&ObjectKey::of(&current.object).to_string());
        if look == Look::Current && pods.is_empty() {
            pods = self.current_pods(&current.object).await?;
        }
        let pods = PodSummary::of(&pods, &self.health(&pods), &current.parameters);
        current.observed = Observed { components, pods };
        Ok(())
    }

    /// True if a cache shows that the component exists and has no problem. A cache may still have
    /// an earlier object of the same name, so everything else is read from the API.
    fn is_well(&self, namespace: &str, component: &ComponentStatus, uid: &str) -> bool {
        let key = ObjectKey::namespaced(namespace, &component.name);
        let status = match (component.api_version.as_str(), component.kind.as_str()) {
            ("batch/v1", "Job") => {
                self.jobs.get(&key).filter(|job| is_steady(job.as_ref(), uid)).map(|job| json!(job.status))
            }
            ("kubeflow.org/v1", "PyTorchJob") => {
                self.torch_jobs.get(&key).filter(|job| is_steady(job.as_ref(), uid)).map(|job| json!(job.status))
            }
            _ => None,
        };
        status.is_some_and(|status| !has_failed(component, &status))
    }

    /// The AppWrapper's pods in the API. The cache may lack a pod that was just created.
    async fn current_pods(&self, wrapper: &AppWrapper) -> Result<Vec<Arc<Pod>>, Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &wrapper.namespace().unwrap_or_default());
        let selector = format!("{LABEL}={}", wrapper.name_any());
        let found = berth_runtime::write::list(&pods, &ListParams::default().labels(&selector)).await?;
        Ok(found.items.into_iter().map(Arc::new).collect())
    }

    /// The health of the nodes of these pods.
    fn health(&self, pods: &[Arc<Pod>]) -> BTreeMap<String, NodeHealth> {
        if !self.configuration.autopilot.monitor_nodes {
            return BTreeMap::new();
        }
        let names: BTreeSet<&String> = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_ref()).collect();
        let nodes: Vec<Arc<Node>> =
            names.into_iter().filter_map(|name| self.nodes.get(&ObjectKey::cluster(name))).collect();
        health::by_node(&nodes, &self.configuration.autopilot)
    }

    /// Applies a decision: the status, then the other writes.
    async fn apply(&self, current: &mut Current, decision: Decision) -> Result<Next, Error> {
        let Decision { status, acts, events, next } = decision;
        self.write_status(current, status).await?;
        for event in events {
            event.record(&self.recorder, &current.object);
        }
        for act in acts {
            match act {
                Act::AddFinalizer => {
                    current.object.finalizers_mut().push(FINALIZER.to_owned());
                    current.object = self.writer.replace(&current.object).await?;
                }
                Act::RemoveFinalizer => {
                    current.object.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
                    self.writer.replace(&current.object).await?;
                }
                Act::Create(index) => return Box::pin(self.create(current, index)).await,
                Act::Delete { index, is_forced } => {
                    let component = &current.status.component_status[index];
                    self.components.delete(current.namespace(), component, current.uid(), is_forced).await?;
                }
                Act::DeletePods => self.delete_pods(&current.object).await?,
            }
        }
        Ok(next)
    }

    async fn write_status(&self, current: &mut Current, status: AppWrapperStatus) -> Result<(), Error> {
        if status == current.status {
            return Ok(());
        }
        let mut changed = current.object.clone();
        changed.status = Some(json!(status));
        current.object = self.writer.replace_status(&changed).await?;
        if status.phase != current.status.phase {
            self.transitions.count(current.namespace(), status.phase);
        }
        current.status = status;
        Ok(())
    }

    /// Creates a component, and applies what follows.
    async fn create(&self, current: &mut Current, index: usize) -> Result<Next, Error> {
        let (component, status) = (&current.spec.components[index], &current.status.component_status[index]);
        let wrapper = inject::Wrapper {
            name: &current.object.name_any(),
            namespace: current.namespace(),
            owner: owned_by(&current.object),
            configuration: &self.configuration,
        };
        let outcome = match inject::object(&wrapper, component, &status.pod_sets, &status.name) {
            Ok(object) => self.components.create(object, &component.template, current.uid(), status).await,
            Err(message) => Outcome::Rejected { message, is_fatal: true },
        };
        let decision = plan::created(&current.facts(&self.clock), index, &outcome);
        self.apply(current, decision).await
    }

    /// Deletes all pods of the AppWrapper without their grace period.
    async fn delete_pods(&self, wrapper: &AppWrapper) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &wrapper.namespace().unwrap_or_default());
        for pod in self.current_pods(wrapper).await? {
            let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }.grace_period(0);
            match berth_runtime::write::delete(&pods, &pod.name_any(), &params).await {
                Ok(answer) => match answer {
                    Some(left) => self.pods.observe(left),
                    None => self.pods.observe_deleted(&pod),
                },
                Err(error) if berth_runtime::is_not_found(&error) => self.pods.observe_deleted(&pod),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
