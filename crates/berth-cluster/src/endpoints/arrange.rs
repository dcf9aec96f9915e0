//! Puts endpoints into EndpointSlices, so that a change is written to as few slices as possible.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;

/// Maximum number of endpoints in a slice, upstream's default.
pub const ENDPOINTS_MAX: usize = 100;
/// Address type of IPv4 addresses.
pub const IPV4: &str = "IPv4";

/// The next writes for the slices of a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Slices to create; the API server completes their names.
    pub create: Vec<EndpointSlice>,
    /// Slices to replace.
    pub update: Vec<EndpointSlice>,
    /// Slices to delete.
    pub delete: Vec<Arc<EndpointSlice>>,
}

/// Metadata that the slices of a Service share.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name of the Service.
    pub name: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// The object from which the slices are made.
    pub owner: OwnerReference,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations; `None` if this controller does not manage them.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Endpoints with the same address type and ports.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Address type of the slices.
    pub address_type: &'static str,
    /// Ports.
    pub ports: Vec<EndpointPort>,
    /// Endpoints. A group without endpoints has one empty slice.
    pub endpoints: Vec<Endpoint>,
}

/// Plans the next writes. `slices` are the current slices.
pub fn arrange(family: &Family, groups: Vec<Group>, slices: &[Arc<EndpointSlice>]) -> Plan {
    let mut plan = Plan::default();
    let mut unused: Vec<Arc<EndpointSlice>> = Vec::new();
    let mut of_group: Vec<Vec<&Arc<EndpointSlice>>> = vec![Vec::new(); groups.len()];
    for slice in slices.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()) {
        let ports = slice.ports.clone().unwrap_or_default();
        match groups.iter().position(|it| it.ports == ports && it.address_type == slice.address_type) {
            Some(index) => of_group[index].push(slice),
            None => unused.push(slice.clone()),
        }
    }
    for (group, slices) in groups.into_iter().zip(of_group) {
        distribute(family, group, &slices, &mut plan, &mut unused);
    }
    // A slice that is no longer needed is reused in place of a new one. Address types are
    // immutable.
    let mut create = Vec::new();
    while let Some(new) = plan.create.pop() {
        let Some(index) = unused.iter().rposition(|slice| slice.address_type == new.address_type) else {
            create.insert(0, new);
            continue;
        };
        let old = unused.remove(index);
        let metadata = family.metadata_of(&old);
        plan.update.push(EndpointSlice { metadata, ..new });
    }
    plan.create = create;
    plan.delete = unused;
    plan
}

/// Puts the endpoints of one group into its slices.
fn distribute(
    family: &Family,
    group: Group,
    slices: &[&Arc<EndpointSlice>],
    plan: &mut Plan,
    unused: &mut Vec<Arc<EndpointSlice>>,
) {
    let Group { address_type, ports, endpoints } = group;
    let is_placeholder = endpoints.is_empty();
    let mut wanted: BTreeMap<String, Endpoint> = endpoints.into_iter().map(|it| (identity(&it), it)).collect();
    let mut kept: Vec<(&EndpointSlice, Vec<Endpoint>, bool)> = Vec::new();
    for slice in slices {
        // An endpoint keeps its slice and its position.
        let next: Vec<Endpoint> = slice.endpoints.iter().filter_map(|it| wanted.remove(&identity(it))).collect();
        let differs = next != slice.endpoints || family.metadata_of(slice) != slice.metadata;
        kept.push((slice, next, differs));
    }
    let mut left: Vec<Endpoint> = wanted.into_values().collect();
    // New endpoints go to slices that are written in any case, then to other slices with room.
    for only_written in [true, false] {
        for (_, endpoints, differs) in &mut kept {
            let room = ENDPOINTS_MAX.saturating_sub(endpoints.len()).min(left.len());
            if room > 0 && (*differs || !only_written) {
                endpoints.extend(left.drain(..room));
                *differs = true;
            }
        }
    }
    let mut has_slice = false;
    for (slice, endpoints, differs) in kept {
        let is_needed = !endpoints.is_empty() || (is_placeholder && !has_slice);
        has_slice |= is_needed;
        if !is_needed {
            unused.push(Arc::new(slice.clone()));
        } else if differs {
            plan.update.push(EndpointSlice { metadata: family.metadata_of(slice), endpoints, ..slice.clone() });
        }
    }
    if left.is_empty() && !has_slice {
        plan.create.push(family.slice(address_type, &ports, Vec::new()));
    }
    for chunk in left.chunks(ENDPOINTS_MAX) {
        plan.create.push(family.slice(address_type, &ports, chunk.to_vec()));
    }
}

/// Identifies an endpoint. A pod that was created again is a different endpoint.
fn identity(endpoint: &Endpoint) -> String {
    let target = endpoint.target_ref.as_ref();
    let of = |text: Option<&String>| text.cloned().unwrap_or_default();
    let name = of(target.and_then(|target| target.name.as_ref()));
    let uid = of(target.and_then(|target| target.uid.as_ref()));
    format!("{name} {uid} {}", endpoint.addresses.join(","))
}

impl Family {
    /// The metadata that a current slice must have.
    fn metadata_of(&self, slice: &EndpointSlice) -> ObjectMeta {
        let mut metadata = ObjectMeta { labels: Some(self.labels.clone()), ..slice.metadata.clone() };
        if let Some(annotations) = &self.annotations
            && slice.annotations() != annotations
        {
            metadata.annotations = Some(annotations.clone());
        }
        metadata
    }

    fn slice(&self, address_type: &str, ports: &[EndpointPort], endpoints: Vec<Endpoint>) -> EndpointSlice {
        EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", self.name)),
                namespace: self.namespace.clone(),
                labels: Some(self.labels.clone()),
                annotations: self.annotations.clone().filter(|annotations| !annotations.is_empty()),
                owner_references: Some(vec![self.owner.clone()]),
                ..ObjectMeta::default()
            },
            address_type: address_type.to_owned(),
            ports: (!ports.is_empty()).then(|| ports.to_vec()),
            endpoints,
        }
    }
}
