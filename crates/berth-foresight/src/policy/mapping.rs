//! Decides the LocalQueue of a job by its tenant, user, group, queue and partition.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::Name;

use crate::trace::{ATTRIBUTES, Owner};

/// A LocalQueue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueRef {
    /// Namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
}

impl std::fmt::Display for QueueRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Rules in order; the first that matches a job decides.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mapping {
    /// The rules. Without any, a job goes to the only LocalQueue of the namespace that is named
    /// like its tenant, or else to the only LocalQueue of the policy.
    pub rules: Vec<Rule>,
    /// The LocalQueues of the policy.
    pub queues: BTreeSet<QueueRef>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rule {
    /// Accepted values per attribute; empty: every job.
    pub conditions: BTreeMap<String, BTreeSet<String>>,
    /// `NAMESPACE/NAME` of the LocalQueue, in which `{tenant}` and the other attributes stand for
    /// the job's.
    pub queue: String,
    /// The priority class of the jobs, unless the trace names one.
    pub priority_class: Option<Name>,
}

impl Rule {
    /// The problem of a rule, if it has one.
    pub fn problem(&self) -> Option<String> {
        if let Some(wrong) = self.conditions.keys().find(|name| !ATTRIBUTES.contains(&name.as_str())) {
            return Some(format!("match.{wrong}: is not an attribute of a job: use {}", ATTRIBUTES.join(", ")));
        }
        if self.queue.split('/').filter(|part| !part.is_empty()).count() != 2 {
            return Some(format!("localQueue: \"{}\" is not NAMESPACE/NAME", self.queue));
        }
        let placeholder = self.queue.split('{').skip(1).map(|rest| rest.split('}').next().unwrap_or_default());
        let wrong = placeholder.into_iter().find(|name| !ATTRIBUTES.contains(name));
        wrong.map(|name| format!("localQueue: {{{name}}} is not an attribute of a job: use {}", ATTRIBUTES.join(", ")))
    }

    fn matches(&self, owner: &Owner) -> bool {
        self.conditions.iter().all(|(attribute, values)| {
            owner.attribute(attribute).flatten().is_some_and(|value| values.contains(&**value))
        })
    }

    /// The queue for a job, if it has every attribute that the name needs.
    fn queue_of(&self, owner: &Owner) -> Result<QueueRef, String> {
        let mut text = self.queue.clone();
        for attribute in ATTRIBUTES {
            let placeholder = format!("{{{attribute}}}");
            if text.contains(&placeholder) {
                let value = owner.attribute(attribute).flatten();
                let value =
                    value.ok_or_else(|| format!("it has no {attribute}, which localQueue {} needs", self.queue))?;
                text = text.replace(&placeholder, value);
            }
        }
        let (namespace, name) = text.split_once('/').unwrap_or((&text, ""));
        Ok(QueueRef { namespace: Name::from(namespace), name: Name::from(name) })
    }
}

impl Mapping {
    /// The LocalQueue and the priority class of a job with these attributes. The error says why
    /// there is none.
    pub fn target(&self, owner: &Owner) -> Result<(QueueRef, Option<Name>), String> {
        if self.rules.is_empty() {
            return Ok((self.default_queue(owner)?, None));
        }
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(owner)) else {
            return Err(format!(
                "no rule of the policy matches it (tenant {}): add a rule without match",
                owner.tenant
            ));
        };
        let queue = rule.queue_of(owner)?;
        if !self.queues.contains(&queue) {
            return Err(format!("LocalQueue {queue} is not in the policy, which has {}", self.listed()));
        }
        Ok((queue, rule.priority_class.clone()))
    }

    fn default_queue(&self, owner: &Owner) -> Result<QueueRef, String> {
        let mut of_tenant = self.queues.iter().filter(|queue| queue.namespace == owner.tenant);
        if let (Some(only), None) = (of_tenant.next(), of_tenant.next()) {
            return Ok(only.clone());
        }
        let mut all = self.queues.iter();
        if let (Some(only), None) = (all.next(), all.next()) {
            return Ok(only.clone());
        }
        Err(format!(
            "there is no single LocalQueue in namespace {}, the job's tenant, and the policy has {}: map jobs to queues \
             with a ReplayPolicy",
            owner.tenant,
            self.listed()
        ))
    }

    /// The LocalQueues of the policy, for errors.
    fn listed(&self) -> String {
        const SHOWN_MAX: usize = 8;
        let names: Vec<String> = self.queues.iter().take(SHOWN_MAX).map(QueueRef::to_string).collect();
        match self.queues.len() {
            0 => "no LocalQueue".to_owned(),
            count if count > SHOWN_MAX => format!("{} and {} more", names.join(", "), count - SHOWN_MAX),
            _ => names.join(", "),
        }
    }
}
