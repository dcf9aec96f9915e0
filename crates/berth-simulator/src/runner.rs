//! Executes a scenario step by step: actions, time to settle, expectations, tables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_embedded::{ApiFailure, Embedded, EmbeddedError, Options};
use berth_runtime::Clock;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::Value;

use crate::ahead::{Ahead, Combinations};
use crate::expectation::{Differences, Expectation};
use crate::explained;
use crate::manifest::{self, Manifest, ManifestError};
use crate::path::plain;
use crate::report::Report;
use crate::resource::{Changes, ResourceError, Resources};
use crate::scenario::{
    Action, DeleteAction, ManifestSet, PatchAction, RefusedAction, RememberAction, Scenario, ScenarioError, Show,
    Source, Step,
};
use crate::table;

/// Interval in cluster time at which an expectation is checked again if a related object has
/// changed.
const POLL: Duration = Duration::from_secs(1);
/// Interval for an expectation that has been false for [`PATIENCE`]. A wait of an hour needs no
/// precision of a second.
const POLL_SLOW: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(300);

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of expectations that were checked.
    pub checked: usize,
    /// Number of expectations that failed.
    pub failed: usize,
    /// Cluster time that passed.
    pub elapsed: Duration,
}

/// Why a run could not be completed. A failed expectation is not an error but part of the
/// [`Outcome`].
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The embedded cluster did not start.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// An action failed.
    #[error("step {step:?}")]
    Action {
        /// The step.
        step: String,
        /// The cause.
        #[source]
        source: Box<ActionError>,
    },
    /// The async runtime could not be created.
    #[error("cannot create the async runtime")]
    Runtime(#[source] std::io::Error),
}

/// Why one action failed.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// Manifests could not be read or applied.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A request to the API failed.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// An awaited expectation did not become true in time.
    #[error("waited {within} for {title}: {differences}")]
    NeverTrue {
        /// Title of the expectation.
        title: String,
        /// Time in which it had to become true.
        within: String,
        /// Differences at the deadline.
        differences: String,
    },
    /// A value that should become a variable does not exist.
    #[error("{object}: {path}: there is no value to remember")]
    NoValue {
        /// The object.
        object: String,
        /// The field.
        path: String,
    },
    /// An object that the API had to reject was accepted, or rejected for another reason.
    #[error("expected {what} to be rejected with {expected:?}, found: {found}")]
    NotRefused {
        /// The object.
        what: String,
        /// String that the rejection had to contain.
        expected: String,
        /// The actual response.
        found: String,
    },
}

/// Runs a scenario file on an in-memory embedded cluster in virtual time, and passes the report to
/// `sink` piece by piece. Blocks the calling thread. Must not be called from within a tokio
/// runtime.
pub fn run_in_virtual_time(
    path: &Path,
    given: &BTreeMap<String, String>,
    sink: &mut dyn FnMut(&str),
) -> Result<Outcome, RunError> {
    run_with(path, given, |_| {}, sink)
}

/// As [`run_in_virtual_time`], with the cluster's options modified by `change`.
pub fn run_with(
    path: &Path,
    given: &BTreeMap<String, String>,
    change: impl FnOnce(&mut Options),
    sink: &mut dyn FnMut(&str),
) -> Result<Outcome, RunError> {
    let scenario = Scenario::load(path)?;
    let base = path.parent().map(Path::to_owned).unwrap_or_default();
    let variables = scenario.resolve_variables(given)?;
    let cluster = value_of(&scenario.spec.cluster, &base)?;
    let configuration = scenario.spec.configuration.as_ref().map(|source| value_of(source, &base)).transpose()?;
    let manifests = scenario.spec.manifests.as_ref().map_or_else(|| base.clone(), |folder| base.join(folder));
    let ahead = Ahead::of(&scenario, &manifests, &variables);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(RunError::Runtime)?;
    runtime.block_on(async {
        let clock = Clock::scaled(scenario.spec.start, 1.0);
        let mut options = Options::in_memory(clock.clone(), scenario.spec.seed, Some(cluster), configuration);
        change(&mut options);
        let embedded = Embedded::start(options).await?;
        let client = embedded.observer();
        let outcome = Run::new(&scenario, manifests, variables, ahead, client, clock, sink).execute().await;
        embedded.stop().await;
        outcome
    })
}

/// An inline value, or that of a file relative to the scenario's folder.
fn value_of(source: &Source, base: &Path) -> Result<Value, ScenarioError> {
    match source {
        Source::Inline(value) => Ok(value.clone()),
        Source::File(file) => {
            let path = base.join(file);
            let text =
                std::fs::read_to_string(&path).map_err(|source| ScenarioError::Read { path: path.clone(), source })?;
            serde_saphyr::from_str(&text)
                .map_err(|error| ScenarioError::Invalid { path: path.clone(), problem: error.to_string() })
        }
    }
}

struct Run<'a> {
    scenario: &'a Scenario,
    manifests: PathBuf,
    variables: BTreeMap<String, String>,
    ahead: Arc<Ahead>,
    resources: Resources,
    clock: Clock,
    report: Report<'a>,
    /// The API's revision at the start of the current step.
    since: Option<String>,
}

impl<'a> Run<'a> {
    fn new(
        scenario: &'a Scenario,
        manifests: PathBuf,
        variables: BTreeMap<String, String>,
        ahead: Arc<Ahead>,
        client: Client,
        clock: Clock,
        sink: &'a mut dyn FnMut(&str),
    ) -> Self {
        let report = Report::new(clock.now(), sink);
        Self { scenario, manifests, variables, ahead, resources: Resources::new(client), clock, report, since: None }
    }

    async fn execute(mut self) -> Result<Outcome, RunError> {
        let start = self.clock.now();
        self.report.line(&format!("scenario {}, seed {}", self.scenario.metadata.name, self.scenario.spec.seed));
        if !self.scenario.spec.description.is_empty() {
            self.report.line(self.scenario.spec.description.trim());
        }
        for step in &self.scenario.spec.steps {
            let source = |error| RunError::Action { step: step.name.clone(), source: Box::new(error) };
            self.step(step).await.map_err(source)?;
        }
        let now = self.clock.now();
        let elapsed = Duration::try_from(now.duration_since(start)).unwrap_or_default();
        let (checked, failed) = (self.report.checked, self.report.failed);
        let took = self.report.elapsed(now);
        let writes = self.resources.revision().await.ok().flatten().unwrap_or_default();
        self.report.line(&format!(
            "\n{} passed, {failed} failed; {took} of cluster time, API revision {writes}",
            checked - failed
        ));
        Ok(Outcome { checked, failed, elapsed })
    }

    async fn step(&mut self, step: &Step) -> Result<(), ActionError> {
        self.report.heading(&step.name, self.clock.now());
        self.since = self.resources.revision().await?;
        let acting = match &step.as_user {
            Some(user) => Resources::new(manifest::impersonate(self.resources.client(), user)),
            None => self.resources.clone(),
        };
        for action in &step.actions {
            self.act(action, &acting).await?;
        }
        self.clock.sleep(step.settle).await;
        for expectation in &step.expect {
            let differences = self.evaluate(expectation).await?;
            self.report.verdict(&expectation.title(), self.clock.now(), &differences);
        }
        for show in step.show.as_ref().unwrap_or(&self.scenario.spec.show) {
            if show.explain.is_empty() {
                let table = table::fetch(&self.resources, show).await?;
                self.report.shown(&command(show), &table.render());
            } else {
                let namespace = show.namespace.as_deref();
                let explanation = explained::fetch(self.resources.client(), namespace, &show.explain).await?;
                let text = explanation.as_ref().map_or("The Workload does not exist.", explained::text);
                self.report.shown(&command(show), text);
            }
        }
        Ok(())
    }

    /// Checks the expectation until it holds or its time limit has elapsed. Returns the differences
    /// of the last check.
    async fn evaluate(&self, expectation: &Expectation) -> Result<Differences, ResourceError> {
        let expectation = &expectation.with(&self.variables);
        let deadline: Timestamp =
            self.clock.now().checked_add(expectation.within.unwrap_or_default()).unwrap_or(Timestamp::MAX);
        let started = self.clock.now();
        let seen = self.resources.revision().await?;
        let mut changes: Option<Changes> = None;
        loop {
            let differences = expectation.check(&self.resources, self.since.as_deref()).await?;
            if differences.is_empty() || self.clock.now() >= deadline {
                return Ok(differences);
            }
            let changes = match &mut changes {
                Some(changes) => changes,
                None => changes.insert(self.resources.changes(expectation.kinds(), seen.clone()).await?),
            };
            // Only a change to a related object can change the outcome.
            while self.clock.now() < deadline {
                let waited = Duration::try_from(self.clock.now().duration_since(started)).unwrap_or_default();
                self.clock.sleep(if waited < PATIENCE { POLL } else { POLL_SLOW }).await;
                if changes.any().await? {
                    break;
                }
            }
        }
    }

    async fn act(&mut self, action: &Action, acting: &Resources) -> Result<(), ActionError> {
        match action {
            Action::Apply(set) => self.manifests(set, acting, false).await,
            Action::Create(set) => self.manifests(set, acting, true).await,
            Action::Delete(delete) => self.delete(delete, acting).await,
            Action::Patch(patch) => self.patch(patch, acting).await,
            Action::Wait(duration) => {
                self.clock.sleep(*duration).await;
                Ok(())
            }
            Action::WaitUntil(expectation) => {
                let differences = self.evaluate(expectation).await?;
                if differences.is_empty() {
                    let now = self.clock.now();
                    let elapsed = self.report.elapsed(now);
                    self.report.line(&format!("  {} at {elapsed}", expectation.title()));
                    return Ok(());
                }
                Err(ActionError::NeverTrue {
                    title: expectation.title(),
                    within: format!("{}s", expectation.within.unwrap_or_default().as_secs()),
                    differences: differences.join("; "),
                })
            }
            Action::Remember(remember) => self.remember(remember).await,
            Action::Fault(fault) => {
                let line = fault.inject(&self.resources, self.clock.now()).await?;
                self.report.line(&format!("  fault: {line}"));
                Ok(())
            }
            Action::Refused(refused) => self.refused(refused, acting).await,
        }
    }

    /// Applies or creates the manifests of a set, once per combination of its loops' values.
    async fn manifests(&mut self, set: &ManifestSet, acting: &Resources, create: bool) -> Result<(), ActionError> {
        let mut done: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut combinations = Combinations::of(&set.for_each);
        if combinations.is_over() {
            return Ok(());
        }
        while let Some(variables) = combinations.values(&self.variables) {
            for manifest in self.read(set, &variables)? {
                let namespace = set.namespace.as_deref();
                let (verb, name) = if create {
                    manifest.create(acting, namespace).await?
                } else {
                    manifest.apply(acting, namespace).await?
                };
                *done.entry(verb).or_default() += 1;
                if let Some(variable) = &set.remember {
                    self.variables.insert(manifest::substitute(variable, &variables), name);
                }
            }
            self.clock.sleep(set.pause).await;
            for finished in combinations.advance() {
                self.clock.sleep(finished.pause).await;
            }
        }
        let summary: Vec<String> = done.iter().map(|(verb, n)| format!("{n} {verb}")).collect();
        let what = set.files.first().map_or("inline objects", String::as_str);
        let more = if set.files.len() > 1 { " ..." } else { "" };
        self.report.line(&format!("  {what}{more}: {}", summary.join(", ")));
        Ok(())
    }

    fn read(&self, set: &ManifestSet, variables: &BTreeMap<String, String>) -> Result<Vec<Manifest>, ManifestError> {
        let mut manifests = Vec::new();
        for file in &set.files {
            let path = self.manifests.join(manifest::substitute(file, variables));
            for file in manifest::expand(&path)? {
                manifests.extend(manifest::read(&file, variables, &self.ahead)?);
            }
        }
        let inline = set.objects.iter().map(|object| {
            // Substitution works on the object's text, so files and inline objects follow one
            // rule.
            let text = manifest::substitute(&object.to_string(), variables);
            let object = serde_json::from_str(&text).unwrap_or_else(|_| object.clone());
            Manifest { origin: "inline object".into(), object }
        });
        manifests.extend(inline);
        Ok(manifests)
    }

    async fn delete(&mut self, delete: &DeleteAction, acting: &Resources) -> Result<(), ActionError> {
        let set = ManifestSet { files: delete.files.clone(), ..ManifestSet::default() };
        for manifest in self.read(&set, &self.variables)? {
            let verb = manifest.delete(acting, None).await?;
            self.report.line(&format!("  {} {verb}", manifest.title()));
        }
        if let Some(reference) = &delete.object {
            let reference = &reference.with(&self.variables);
            let name = self.name_of(reference).await?;
            let found = acting.by_name(&reference.kind).await?;
            let api = found.api(acting.client(), reference.namespace.as_deref());
            api.delete(&name, &DeleteParams::background())
                .await
                .map_err(|source| ResourceError::api(reference.to_string(), source))?;
            self.report.line(&format!("  {reference} deleted"));
        }
        Ok(())
    }

    async fn patch(&mut self, patch: &PatchAction, acting: &Resources) -> Result<(), ActionError> {
        let object = &patch.object.with(&self.variables);
        let name = self.name_of(object).await?;
        let found = acting.by_name(&object.kind).await?;
        let api = found.api(acting.client(), object.namespace.as_deref());
        let (params, body) = (PatchParams::default(), Patch::Merge(&patch.merge));
        let answer = match &patch.subresource {
            Some(subresource) => api.patch_subresource(subresource, &name, &params, &body).await,
            None => api.patch(&name, &params, &body).await,
        };
        let object = answer.map_err(|source| ResourceError::api(patch.object.to_string(), source))?;
        self.report.line(&format!("  {} {} patched", patch.object.kind, object.name_any()));
        Ok(())
    }

    /// Stores the value of a field as a variable.
    async fn remember(&mut self, remember: &RememberAction) -> Result<(), ActionError> {
        let of = remember.of.with(&self.variables);
        let object = self.resources.get(&of).await?;
        let values = object.as_ref().map(|object| remember.path.find(object)).unwrap_or_default();
        let value = values
            .first()
            .map(|value| plain(value))
            .ok_or_else(|| ActionError::NoValue { object: of.to_string(), path: remember.path.to_string() })?;
        self.report.line(&format!("  {} is {value}", remember.name));
        self.variables.insert(remember.name.clone(), value);
        Ok(())
    }

    async fn name_of(&self, reference: &crate::resource::Reference) -> Result<String, ResourceError> {
        if let Some(name) = &reference.name {
            return Ok(name.clone());
        }
        let object = self.resources.get(reference).await?;
        let name = object.as_ref().and_then(|object| object["metadata"]["name"].as_str());
        name.map(str::to_owned).ok_or_else(|| ResourceError::Unnamed(Box::new(reference.clone())))
    }

    async fn refused(&mut self, refused: &RefusedAction, acting: &Resources) -> Result<(), ActionError> {
        let manifest = Manifest { origin: "inline object".into(), object: refused.create.clone() };
        let title = manifest.title();
        let not_refused =
            |found: String| ActionError::NotRefused { what: title.clone(), expected: refused.message.clone(), found };
        let error = match manifest.create(acting, refused.namespace.as_deref()).await {
            Ok(_) => return Err(not_refused("it was accepted".into())),
            Err(error) => error,
        };
        let ManifestError::Api {
            source: ResourceError::Api { source: ApiFailure(kube::Error::Api(status)), .. }, ..
        } = &error
        else {
            return Err(error.into());
        };
        let reason_differs = refused.reason.as_ref().is_some_and(|reason| *reason != status.reason);
        if reason_differs || !status.message.contains(&refused.message) {
            return Err(not_refused(format!("{} {}", status.reason, status.message)));
        }
        self.report.checked += 1;
        self.report.line(&format!("  ok    {title} rejected: {}", status.message));
        Ok(())
    }
}

fn command(show: &Show) -> String {
    if !show.explain.is_empty() {
        let namespace = show.namespace.as_ref().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
        return format!("berth explain {}{namespace}", show.explain);
    }
    let scope = show.namespace.as_ref().map_or_else(|| " -A".to_owned(), |namespace| format!(" -n {namespace}"));
    let wide = if show.wide { " -o wide" } else { "" };
    let selector = show.selector.as_ref().map(|selector| format!(" -l {selector}")).unwrap_or_default();
    let grouped = show.group_by.as_ref().map(|path| format!("  (by {path})")).unwrap_or_default();
    format!("kubectl get {}{scope}{selector}{wide}{grouped}", show.resource)
}
