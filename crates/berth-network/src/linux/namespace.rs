//! Configures the network namespace of a pod from outside.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use rtnetlink::packet_core::ErrorMessage;
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use rustix::thread::LinkNameSpaceType;
use tokio::sync::oneshot;

use super::{LOOPBACK, LinkError, connect, errno, index_of};

/// Name of the interface of a pod.
pub(super) const INTERFACE: &str = "eth0";

/// Configuration of a pod's namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) address: Ipv4Addr,
    pub(super) range: Ipv4Net,
    pub(super) gateway: Ipv4Addr,
}

/// Sets the address and routes of the existing interface in a namespace, and brings the loopback
/// interface up. Returns false if the interface does not exist.
///
/// A separate thread enters the namespace and then ends, so that no other task runs in the
/// namespace.
pub(super) async fn configure(namespace: Arc<File>, settings: Settings) -> Result<bool, LinkError> {
    let (answer, answered) = oneshot::channel();
    std::thread::Builder::new()
        .name("pod-network".to_owned())
        .spawn(move || {
            let outcome = enter(&namespace).and_then(|runtime| runtime.block_on(apply(settings)));
            // The caller may have stopped waiting.
            let _ = answer.send(outcome);
        })
        .map_err(|source| LinkError::Io { what: "starting a thread".to_owned(), source })?;
    answered.await.unwrap_or_else(|_| {
        let source = std::io::Error::other("the thread panicked");
        Err(LinkError::Io { what: "configuring a pod's network namespace".to_owned(), source })
    })
}

fn enter(namespace: &File) -> Result<tokio::runtime::Runtime, LinkError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| LinkError::Io { what, source }
    };
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| io("entering a pod's network namespace")(error.into()))?;
    tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(io("starting an event loop"))
}

async fn apply(settings: Settings) -> Result<bool, LinkError> {
    let (connection, handle) = connect()?;
    let connection = tokio::spawn(connection);
    let outcome = apply_with(&handle, settings).await;
    connection.abort();
    outcome
}

async fn apply_with(handle: &Handle, settings: Settings) -> Result<bool, LinkError> {
    let up = async |name: &str| {
        let message = LinkUnspec::new_with_name(name).up().build();
        handle.link().set(message).execute().await.map_err(LinkError::of(format!("setting {name} up in a pod")))
    };
    up(LOOPBACK).await?;
    let Some(index) = index_of(handle, INTERFACE).await? else { return Ok(false) };
    let add = handle.address().add(index, settings.address.into(), settings.range.prefix_len());
    ignore_existing(add.execute().await).map_err(LinkError::of("setting a pod's address"))?;
    up(INTERFACE).await?;
    let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(settings.gateway).output_interface(index).build();
    ignore_existing(handle.route().add(route).execute().await).map_err(LinkError::of("setting a pod's route"))?;
    Ok(true)
}

/// Ignores the kernel's error for an address or route that exists already.
pub(super) fn ignore_existing(outcome: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match outcome {
        Err(rtnetlink::Error::NetlinkError(ErrorMessage { code: Some(code), .. })) if code.get() == -errno::EXIST => {
            Ok(())
        }
        other => other,
    }
}

/// The interfaces in a namespace, with index and name.
pub(super) async fn links(handle: &Handle) -> Result<Vec<rtnetlink::packet_route::link::LinkMessage>, LinkError> {
    handle.link().get().execute().try_collect().await.map_err(LinkError::of("listing network interfaces"))
}
