//! The check `pvc`: a claim of the configured storage class can be created, is bound, and can be
//! deleted.

use std::time::Duration;

use berth_apimachinery::well_known::DEFAULT_STORAGE_CLASS;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use berth_runtime::{is_already_exists, is_not_found, message};

use super::checks::{Check, Context, by_probe};
use super::probe::{Measurement, Unavailable};

/// Time in which the claim must be bound.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which the claim is read.
const POLL: Duration = Duration::from_secs(2);

/// The check.
pub(super) struct VolumeCheck;

impl Check for VolumeCheck {
    fn name(&self) -> &'static str {
        "pvc"
    }

    fn failure(&self) -> &'static str {
        "PVC Failed"
    }

    fn measure<'a>(&'a self, context: &'a Context<'a>) -> BoxFuture<'a, Result<Vec<Measurement>, Unavailable>> {
        async {
            // A probe may know of a fault. One without an opinion leaves the decision to the claim.
            if let Ok(known) = by_probe(context).await
                && known.iter().any(|measurement| measurement.value != 0.0)
            {
                return Ok(known);
            }
            let failed = claim(context).await?.err();
            Ok(vec![Measurement::verdict("", failed.is_some(), &failed.unwrap_or_default())])
        }
        .boxed()
    }
}

/// Creates a claim, waits until it is bound and deletes it. The inner error says why that failed.
///
/// A claim of a class that binds with the first pod counts as usable once it exists.
async fn claim(context: &Context<'_>) -> Result<Result<(), String>, Unavailable> {
    let unreadable = |what: &str| {
        let what = what.to_owned();
        move |error: kube::Error| Unavailable(format!("{what} cannot be read: {}", message(&error)))
    };
    let classes: Api<StorageClass> = Api::all(context.client.clone());
    let all =
        berth_runtime::write::list(&classes, &Default::default()).await.map_err(unreadable("StorageClasses"))?.items;
    let is_default =
        |class: &&StorageClass| class.annotations().get(DEFAULT_STORAGE_CLASS).is_some_and(|it| it == "true");
    let class = match context.configuration.storage_class() {
        Some(name) => all.iter().find(|class| class.name_any() == name).ok_or_else(|| name.to_owned()),
        None => all.iter().find(is_default).ok_or_else(|| "(default)".to_owned()),
    };
    let class = match class {
        Ok(class) => class,
        Err(name) => return Ok(Err(format!("StorageClass {name} does not exist"))),
    };
    let waits_for_pod = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &context.configuration.namespace);
    let name = format!("autopilot-pvc-{}", context.node.name_any());
    let wanted = json!({
        "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class.name_any(),
            "resources": { "requests": { "storage": "100Mi" } } },
    });
    let wanted = berth_api::json::from_value(wanted).expect("the literal has the form of a claim");
    match berth_runtime::write::create(&claims, &PostParams::default(), &wanted).await {
        Ok(_) => {}
        // Left by an earlier check that was interrupted.
        Err(error) if is_already_exists(&error) => {}
        Err(error) => return Ok(Err(format!("PersistentVolumeClaim {name}: {}", message(&error)))),
    }
    let mut waited = Duration::ZERO;
    let bound = loop {
        let claim = berth_runtime::write::get(&claims, &name).await.map_err(unreadable("the claim"))?;
        let phase = claim.status.and_then(|status| status.phase).unwrap_or_default();
        if phase == "Bound" || waits_for_pod {
            break Ok(());
        }
        if waited >= TIMEOUT {
            break Err(format!("PersistentVolumeClaim {name} was not bound within {} s", TIMEOUT.as_secs()));
        }
        context.clock.sleep(POLL).await;
        waited += POLL;
    };
    match berth_runtime::write::delete(&claims, &name, &DeleteParams::default()).await {
        Ok(_) => Ok(bound),
        Err(error) if is_not_found(&error) => Ok(bound),
        Err(error) => Ok(Err(format!("PersistentVolumeClaim {name}: {}", message(&error)))),
    }
}
