//! Values of `fieldRef` and `resourceFieldRef`.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, PodIP, ResourceFieldSelector};
use kube::ResourceExt;

use super::Context;

/// The value of a pod's field.
///
/// Source: Kubernetes documentation, "Downward API".
pub fn field(context: &Context<'_>, path: &str) -> Result<String, String> {
    let (pod, status) = (context.pod, context.status);
    let spec = pod.spec.as_ref();
    let of_map = |map: &BTreeMap<String, String>, key: &str| map.get(key).cloned().unwrap_or_default();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        return match map {
            "metadata.labels" => Ok(of_map(pod.labels(), key)),
            "metadata.annotations" => Ok(of_map(pod.annotations(), key)),
            _ => Err(format!("invalid fieldPath {path:?}: only metadata.labels and metadata.annotations have keys")),
        };
    }
    let ips = |ips: &Option<Vec<PodIP>>| -> String {
        let ips: Vec<&str> = ips.iter().flatten().map(|it| it.ip.as_str()).collect();
        ips.join(",")
    };
    Ok(match path {
        "metadata.name" => pod.name_any(),
        "metadata.namespace" => context.namespace().to_owned(),
        "metadata.uid" => pod.uid().unwrap_or_default(),
        "metadata.labels" => map_text(pod.labels()),
        "metadata.annotations" => map_text(pod.annotations()),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default(),
        "status.podIP" => status.pod_ip.clone().unwrap_or_default(),
        "status.podIPs" => ips(&status.pod_ips),
        "status.hostIP" => status.host_ip.clone().unwrap_or_default(),
        "status.hostIPs" => match &status.host_ips {
            Some(ips) => ips.iter().map(|it| it.ip.as_str()).collect::<Vec<_>>().join(","),
            None => status.host_ip.clone().unwrap_or_default(),
        },
        _ => return Err(format!("unsupported fieldPath {path:?}")),
    })
}

/// Labels or annotations in the format of the downward API: sorted lines `key="value"`.
fn map_text(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n")
}

/// The value of a container's resource. `container` is the container with the reference, if any.
pub fn resource(
    context: &Context<'_>,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
) -> Result<String, String> {
    let spec = context.pod.spec.as_ref();
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty()).map(|name| {
        let all = spec.into_iter().flat_map(|it| it.containers.iter().chain(it.init_containers.iter().flatten()));
        all.into_iter().find(|it| it.name == name).ok_or_else(|| format!("container {name} not found"))
    });
    let container = match (named, container) {
        (Some(named), _) => named?,
        (None, Some(container)) => container,
        (None, None) => return Err("resourceFieldRef: containerName is required in a volume".to_owned()),
    };
    let (list, name) = selector.resource.split_once('.').unwrap_or_default();
    let resources = container.resources.as_ref();
    let limit = || resources.and_then(|it| it.limits.as_ref()?.get(name));
    let amount = match list {
        "limits" => limit().or_else(|| context.allocatable.get(name)),
        "requests" => resources.and_then(|it| it.requests.as_ref()?.get(name)).or_else(limit),
        _ => return Err(format!("unsupported container resource: {}", selector.resource)),
    };
    let parse = |text: &str| Quantity::parse(text).map_err(|error| format!("{}: {error}", selector.resource));
    let amount = parse(amount.map_or("0", |amount| amount.0.as_str()))?;
    let divisor = selector.divisor.as_ref().map(|it| it.0.as_str()).filter(|text| !matches!(*text, "" | "0"));
    let divisor = parse(divisor.unwrap_or("1"))?;
    let (amount, divisor) = match name {
        "cpu" => (amount.milli_value(), divisor.milli_value()),
        _ => (amount.value(), divisor.value()),
    };
    // Rounded up, like the value of a quantity.
    let divisor = divisor.max(1);
    let is_exact = amount.rem_euclid(divisor) == 0;
    Ok((amount.div_euclid(divisor).saturating_add(i64::from(!is_exact))).to_string())
}
