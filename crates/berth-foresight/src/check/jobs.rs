//! Jobs that can never run: the engine decides on each of them alone, with every queue empty.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::devices::Charges;
use berth_controllers::translate;
use berth_engine::model::{
    Admission, AdmissionCheck, LabelSelector, Labels, PodTemplate, SelectorTerm, Time, Toleration, Workload,
};
use berth_engine::{Engine, Event, Name, Standing, Verdict};
use jiff::Timestamp;

use super::facts::{Facts, shown};
use super::{Findings, Severity, text};
use crate::objects::{Machines, ObjectRef, Source, machines};

/// Maximum number of cycles in which a job alone must be admitted.
const CYCLES_MAX: usize = 64;

/// A job, and its workload in the engine's form.
pub(super) struct Job {
    pub object: ObjectRef,
    pub workload: Workload,
    /// The cluster queue that its LocalQueue names.
    pub cluster_queue: Option<Name>,
}

/// Checks the jobs and the unfinished workloads of the set, and returns those that have a queue.
pub(super) fn check(facts: &Facts<'_>, now: Timestamp, findings: &mut Findings) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut lone = Lone::new(facts, now);
    let mut skipped = 0;
    for made in facts.objects.workloads_of_jobs(now) {
        match &made.workload {
            Ok(workload) => {
                judge(facts, &mut lone, (&made.job, workload, made.source.as_ref()), &mut jobs, &mut skipped, findings);
            }
            Err(problem) => {
                let message = format!("the job gets no Workload, so it never starts: {problem}");
                let help = "create what the message names, or correct the job";
                findings.add("job-has-no-workload", made.job.clone(), made.source.as_ref(), text("", message, help));
            }
        }
    }
    for ((namespace, name), workload) in &facts.objects.workloads {
        let object = ObjectRef::namespaced("Workload", namespace, name);
        let (state, _) = facts.translator.translate(&workload.object);
        if !state.finished && state.admission.is_none() {
            let source = workload.source.as_ref();
            judge(facts, &mut lone, (&object, &workload.object, source), &mut jobs, &mut skipped, findings);
        }
    }
    if skipped > 0 {
        findings.unchecked.push(format!("{skipped} jobs of LocalQueues that are not in the set"));
    }
    jobs
}

fn judge(
    facts: &Facts<'_>,
    lone: &mut Lone,
    (object, written, source): (&ObjectRef, &api::Workload, Option<&Source>),
    jobs: &mut Vec<Job>,
    skipped: &mut usize,
    findings: &mut Findings,
) {
    let (mut workload, devices) = facts.translator.translate(written);
    let route = (workload.key.namespace.to_string(), workload.queue.to_string());
    let Some(local) = facts.objects.local_queues.get(&route) else {
        *skipped += 1;
        return;
    };
    let cluster_queue = Name::from(local.object.spec.cluster_queue.as_str());
    workload.created = lone.now;
    workload.evicted = None;
    workload.requeue_at = None;
    if !lone.has_topology {
        workload.pod_sets.iter_mut().for_each(|set| set.topology = None);
    }
    // As in the controllers, a job is in no queue while its devices cannot be counted.
    if let (Some(problem), Some(false)) = (&workload.inadmissible, workload.requeued) {
        let message = format!("the devices of the job cannot be counted, so it never starts: {problem}");
        let help = "create or correct what the message names; the mappings are those of the Configuration of the set";
        findings.add("job-never-fits", object.clone(), source, text("", message, help));
        return;
    }
    workload.requeued = None;
    match lone.decide(&workload) {
        Fate::Admitted(admission) => {
            fits_nodes(facts, object, (&workload, &devices), &admission, source, findings);
        }
        Fate::Never(message) => {
            let message = format!("the job never starts, even with every queue empty: {message}");
            let help = "lower the requests or the number of pods, raise the quota, or use another queue";
            findings.add("job-never-fits", object.clone(), source, text("", message, help));
        }
        Fate::Unknown => {}
    }
    let cluster_queue = facts.queues.iter().any(|it| it.name == cluster_queue).then_some(cluster_queue);
    jobs.push(Job { object: object.clone(), workload, cluster_queue });
}

/// What happens to a job alone.
enum Fate {
    Admitted(Admission),
    Never(String),
    /// Another finding is the reason, or the set does not show it.
    Unknown,
}

/// An engine without any other job.
struct Lone {
    engine: Engine,
    now: Time,
    has_topology: bool,
}

impl Lone {
    fn new(facts: &Facts<'_>, now: Timestamp) -> Lone {
        let mut config = facts.objects.config.engine();
        config.flush_delay = Duration::ZERO;
        let now = translate::time(now);
        let mut engine = Engine::new(config);
        for event in configuration(facts) {
            engine.apply(event, now);
        }
        Lone { engine, now, has_topology: !facts.objects.nodes.is_empty() }
    }

    fn decide(&mut self, workload: &Workload) -> Fate {
        let key = workload.key.clone();
        self.engine.apply(Event::WorkloadUpserted(Box::new(workload.clone())), self.now);
        let mut admitted = None;
        for _ in 0..CYCLES_MAX {
            let outcome = self.engine.cycle(self.now);
            admitted = outcome.decisions.into_iter().find_map(|decision| match decision.verdict {
                Verdict::Admit(admit) if decision.workload == key => Some(admit.admission),
                _ => None,
            });
            if admitted.is_some() || !outcome.more {
                break;
            }
        }
        let fate = match admitted {
            Some(admission) => Fate::Admitted(admission),
            None => self.why(&key),
        };
        self.engine.apply(Event::WorkloadRemoved(key), self.now);
        fate
    }

    fn why(&mut self, key: &berth_engine::model::WorkloadKey) -> Fate {
        let Some(explanation) = self.engine.explain(key, self.now) else { return Fate::Unknown };
        // An inactive queue has a finding of its own.
        if explanation.queue_inactive.is_some() || !matches!(explanation.standing, Standing::Waiting { .. }) {
            return Fate::Unknown;
        }
        explanation.verdict.map_or(Fate::Unknown, |outlook| Fate::Never(outlook.message()))
    }
}

/// The configuration in which a job is judged alone: checks pass, namespaces that the set does not
/// have are selected, and without nodes, topologies are left out.
pub(super) fn configuration(facts: &Facts<'_>) -> Vec<Event> {
    let has_nodes = !facts.objects.nodes.is_empty();
    let has_namespaces = !facts.objects.namespaces.is_empty();
    let adapt = |event: Event| match event {
        Event::NodePodUpserted(_) => None,
        Event::TopologyUpserted(_) if !has_nodes => None,
        Event::FlavorUpserted(mut flavor) if !has_nodes => {
            flavor.topology = None;
            Some(Event::FlavorUpserted(flavor))
        }
        Event::AdmissionCheckUpserted(check) => {
            Some(Event::AdmissionCheckUpserted(AdmissionCheck { active: true, ..check }))
        }
        Event::ClusterQueueUpserted(mut queue) if !has_namespaces => {
            queue.namespace_selector = Some(LabelSelector::default());
            Some(Event::ClusterQueueUpserted(queue))
        }
        other => Some(other),
    };
    facts.objects.events().into_iter().filter_map(adapt).collect()
}

/// Reports pods that fit on no machine of the flavors that they would get.
fn fits_nodes(
    facts: &Facts<'_>,
    object: &ObjectRef,
    (workload, devices): (&Workload, &Charges),
    admission: &Admission,
    source: Option<&Source>,
    findings: &mut Findings,
) {
    if facts.machines.is_empty() || facts.objects.has_auto_provisioning {
        return;
    }
    for (number, (set, assigned)) in workload.pod_sets.iter().zip(&admission.pod_sets).enumerate() {
        let mut pod = PodTemplate::clone(&set.template);
        devices.apply_to(number, &mut pod.requests);
        pod.requests.retain(|resource, _| !facts.translator.devices().unmeasured().contains(&**resource));
        let flavors: Vec<_> = assigned.flavors.values().filter_map(|name| facts.flavors.get(name)).collect();
        let mut labels = set.template.node_selector.clone();
        labels.extend(flavors.iter().flat_map(|flavor| flavor.node_labels.clone()));
        let tolerations = machines::tolerations(&set.template, &flavors, facts.adds_tolerations);
        let mut reasons = Vec::new();
        let fits = facts.machines.iter().any(|machines| match obstacle(machines, &labels, &tolerations, &pod) {
            None => true,
            Some(reason) => {
                reasons.extend(reason.map(|reason| format!("{}: {reason}", machines.title)));
                false
            }
        });
        if fits {
            continue;
        }
        // Most resources of a pod have the same flavor.
        let names: BTreeSet<&str> = flavors.iter().map(|flavor| &*flavor.name).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let why = match reasons.as_slice() {
            [] => "no machine has the labels that the pods and the flavors select".to_owned(),
            some => some.iter().take(3).cloned().collect::<Vec<_>>().join("; "),
        };
        let message = format!(
            "the job is admitted with flavor {}, and then its pods of pod set {} wait: {why}",
            names.join(", "),
            set.name
        );
        let help = "adapt the requests, the node selector or the tolerations to the machines";
        findings.add_as(Severity::Warning, "pod-fits-no-node", object.clone(), source, text("", message, help));
    }
}

/// Why a pod does not fit on a machine; `Some(None)` if the machine does not have the labels.
fn obstacle(
    machines: &Machines,
    labels: &Labels,
    tolerations: &[Toleration],
    pod: &PodTemplate,
) -> Option<Option<String>> {
    let selects = |term: &SelectorTerm| {
        machines.labels.iter().any(|labels| term.expressions.iter().all(|requirement| requirement.matches(labels)))
    };
    let is_selected = pod.affinity.required.as_ref().is_none_or(|terms| terms.iter().any(selects));
    if !machines.have(labels) || !is_selected {
        return Some(None);
    }
    if let Some(taint) = machines.taints.iter().find(|taint| !tolerations.iter().any(|it| it.tolerates(taint))) {
        let effect = taint.effect.as_str();
        return Some(Some(format!("the pods do not tolerate {}={}:{effect}", taint.key, taint.value)));
    }
    let has = |name: &Name| machines.allocatable.get(name).copied().unwrap_or(0);
    let larger = pod.requests.iter().find(|(name, amount)| **amount > has(name));
    larger.map(|(name, amount)| {
        let (wanted, has) = (shown(name, *amount), shown(name, has(name)));
        Some(format!("a pod requests {wanted} {name}, and a machine has {has}"))
    })
}
