//! The hook of Services: cluster IPs and node ports are assigned once, and released with their
//! Service.

use std::sync::Arc;

use berth_apimachinery::status::Status;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::kind_hooks::{Commit, KindHook, KindWrite};
use crate::own_requests::OwnRequests;
use crate::registry::ResourceInfo;
use crate::service_addresses;
use crate::service_ports::{self, Drawn};
use crate::state::State;

/// The hook of Services.
pub(crate) struct ServiceHook {
    state: Arc<State>,
    /// Held by a write of a Service that has or had addresses, from before the addresses are
    /// claimed until the follow-up of the stored object. Without it, a Service that is created
    /// while a Service of the same name is deleted would lose its address to that deletion.
    lock: Arc<Mutex<()>>,
}

impl ServiceHook {
    pub(crate) fn new(state: Arc<State>) -> ServiceHook {
        ServiceHook { state, lock: Arc::default() }
    }
}

impl KindHook for ServiceHook {
    fn is_about(&self, row: &ResourceInfo) -> bool {
        row.group.is_empty() && row.plural == "services"
    }

    fn begin(&self, requested: &Value) -> Option<Box<dyn KindWrite>> {
        let is_chosen = requested["spec"]["clusterIP"].as_str().is_some_and(|address| !address.is_empty());
        let (state, lock) = (self.state.clone(), self.lock.clone());
        Some(Box::new(ServiceWrite { state, lock, is_chosen, drawn: None, held: None, claimed: Vec::new() }))
    }

    fn after_commit<'a>(&'a self, _requests: &'a dyn OwnRequests, commit: Commit<'a>) -> BoxFuture<'a, ()> {
        service_addresses::follow(&self.state, commit.object, commit.gone).boxed()
    }

    fn repair<'a>(&'a self, _requests: &'a dyn OwnRequests) -> BoxFuture<'a, ()> {
        service_addresses::repair(&self.state).boxed()
    }
}

/// One write of a Service.
struct ServiceWrite {
    state: Arc<State>,
    lock: Arc<Mutex<()>>,
    /// True if the client chose the cluster IP.
    is_chosen: bool,
    /// The allocated node ports, if the write may change node ports.
    drawn: Option<Drawn>,
    /// `None` for a write of a Service without addresses, which needs no lock.
    held: Option<OwnedMutexGuard<()>>,
    /// Addresses that were claimed for this write.
    claimed: Vec<String>,
}

impl KindWrite for ServiceWrite {
    fn assign(&mut self, service: &mut Value, old: Option<&Value>) -> Result<(), Status> {
        self.drawn = Some(service_ports::draw(&self.state.objects, service, old)?);
        Ok(())
    }

    fn before_commit<'a>(
        &'a mut self,
        service: &'a mut Value,
        old: Option<&'a Value>,
        gone: bool,
    ) -> BoxFuture<'a, Result<(), Status>> {
        async move {
            if service_addresses::concerns(service, old) {
                self.held = Some(self.lock.clone().lock_owned().await);
            }
            if gone {
                return Ok(());
            }
            if let Some(drawn) = &self.drawn {
                service_ports::settle(&self.state.objects, service, old, drawn)?;
            }
            self.claimed = service_addresses::claim(&self.state, service, old, self.is_chosen).await?;
            Ok(())
        }
        .boxed()
    }

    /// Other Services wait for a write under the lock. So it must not wait for its user's other
    /// writes.
    fn queue(&self) -> Option<&'static str> {
        self.held.as_ref().map(|_| service_addresses::QUEUE)
    }

    fn failed(&mut self) -> BoxFuture<'_, ()> {
        let claimed = std::mem::take(&mut self.claimed);
        async move { service_addresses::release(&self.state, &claimed).await }.boxed()
    }
}
