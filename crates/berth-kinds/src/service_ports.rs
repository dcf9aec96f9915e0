//! Assigns node ports to Services: the `nodePort` of each port of a Service that is reachable from
//! outside, and the health check port of a load balancer. No two Services share a node port.
//!
//! The stored Services are the record of assigned ports. A free port is drawn while the object is
//! prepared, so that later steps see it. The draw is repeated once the write holds the lock that
//! all such writes need.

use std::collections::{BTreeMap, BTreeSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, GroupKind};
use berth_apimachinery::status::Status;
use serde_json::Value;

use crate::strategy::StoredObjects;

/// kube-apiserver's default range.
const RANGE: std::ops::RangeInclusive<i64> = 30_000..=32_767;
/// Ports below this one are drawn last: they are reserved for Services that request a port.
const FIRST_DRAWN: i64 = 30_086;
const TAKEN: &str = "provided port is already allocated";

/// The node ports of a Service that were drawn, not requested: indexes in `spec.ports`, and the
/// health check port.
#[derive(Debug, Default, PartialEq)]
pub struct Drawn {
    ports: Vec<usize>,
    health_check: bool,
}

/// True if a Service may have node ports.
fn may_have(service: &Value) -> bool {
    matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer"))
}

/// True if the ports of a Service get node ports.
pub fn needs(service: &Value) -> bool {
    may_have(service)
        && (service["spec"]["type"] == "NodePort" || service["spec"]["allocateLoadBalancerNodePorts"] != false)
}

/// True if the load balancer of a Service checks which nodes have an endpoint.
pub fn needs_health_check(service: &Value) -> bool {
    service["spec"]["type"] == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local"
}

/// The node port in `value`, if it is set.
fn set(value: &Value) -> Option<i64> {
    value.as_i64().filter(|port| *port != 0)
}

/// The node ports of a Service's ports.
pub fn of(service: &Value) -> BTreeSet<i64> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    ports.filter_map(|port| set(&port["nodePort"])).collect()
}

/// The health check node port of a Service, if any.
pub fn health_check(service: &Value) -> Option<i64> {
    set(&service["spec"]["healthCheckNodePort"])
}

/// The free node ports: those that no Service has.
struct Free {
    /// The ports of other Services.
    taken: BTreeSet<i64>,
    /// The ports that this Service already has.
    own: BTreeSet<i64>,
}

impl Free {
    fn read(objects: &dyn StoredObjects, service: &Value, before: Option<&Value>) -> Free {
        let is_other = |other: &Value| {
            before.is_none()
                || meta::name(other) != meta::name(service)
                || meta::namespace(other) != meta::namespace(service)
        };
        let services = objects.list("", "services", None);
        let others = services.iter().filter(|other| is_other(other));
        let taken = others.flat_map(|other| of(other).into_iter().chain(health_check(other))).collect();
        let own = before.map(|before| of(before).into_iter().chain(health_check(before)).collect());
        Free { taken, own: own.unwrap_or_default() }
    }

    fn is_taken(&self, port: i64) -> bool {
        self.taken.contains(&port) || self.own.contains(&port)
    }

    /// Takes a requested port; the error is the reason why it is not available.
    fn take(&mut self, port: i64) -> Result<(), String> {
        if !RANGE.contains(&port) {
            let (first, last) = (RANGE.start(), RANGE.end());
            return Err(format!("provided port is not in the valid range. The range of valid ports is {first}-{last}"));
        }
        if self.is_taken(port) {
            return Err(TAKEN.to_owned());
        }
        self.own.insert(port);
        Ok(())
    }

    /// Takes a free port.
    fn draw(&mut self) -> Result<i64, String> {
        let last = (FIRST_DRAWN..=*RANGE.end()).chain(*RANGE.start()..FIRST_DRAWN);
        let port = last.into_iter().find(|port| !self.is_taken(*port)).ok_or("range is full")?;
        self.own.insert(port);
        Ok(port)
    }
}

/// Assigns the ports that a Service needs and does not specify. Rejects a port that is not
/// available.
pub fn draw(objects: &dyn StoredObjects, service: &mut Value, before: Option<&Value>) -> Result<Drawn, Status> {
    if !may_have(service) {
        return Ok(Drawn::default());
    }
    let mut free = Free::read(objects, service, before);
    let kept = before.map(of).unwrap_or_default();
    let needs = needs(service);
    let name = meta::name(service).to_owned();
    let invalid = |index: usize, port: i64, why: String| {
        let (spec, kind) = (Path::new("spec"), GroupKind::new("", "Service"));
        let (ports, field) = (spec.child("ports"), "nodePort");
        Status::invalid(&kind, &name, &[Error::invalid(&ports.index(index).child(field), port, why)])
    };
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    // A new Service has the same node port for all protocols of a port.
    let mut of_port: BTreeMap<i64, i64> = BTreeMap::new();
    if before.is_none() {
        for port in &ports {
            if let (Some(number), Some(given)) = (port["port"].as_i64(), set(&port["nodePort"])) {
                of_port.entry(number).or_insert(given);
            }
        }
    }
    // The Service port of each node port.
    let mut has: BTreeMap<i64, i64> = BTreeMap::new();
    let mut drawn = Drawn::default();
    for (index, port) in ports.iter().enumerate() {
        let number = port["port"].as_i64().unwrap_or(0);
        let given = set(&port["nodePort"]);
        let wanted = given.or_else(|| of_port.get(&number).copied().filter(|_| needs));
        let node_port = match wanted {
            Some(wanted) => {
                let is_shared = match before {
                    Some(_) => kept.contains(&wanted) || has.contains_key(&wanted),
                    None => has.get(&wanted) == Some(&number),
                };
                if !is_shared {
                    free.take(wanted).map_err(|why| invalid(index, wanted, why))?;
                }
                wanted
            }
            None if needs => {
                let failed = |why: String| Status::internal(format!("failed to allocate a nodePort: {why}"));
                let port = free.draw().map_err(failed)?;
                if before.is_none() {
                    of_port.insert(number, port);
                }
                port
            }
            None => continue,
        };
        has.insert(node_port, number);
        if given.is_none() {
            drawn.ports.push(index);
            service["spec"]["ports"][index]["nodePort"] = node_port.into();
        }
    }
    if needs_health_check(service) {
        match health_check(service) {
            // Validation rejects a change to the port.
            Some(_) if before.is_some_and(|before| needs_health_check(before) && health_check(before).is_some()) => {}
            Some(given) => free.take(given).map_err(|why| {
                Status::internal(format!("failed to allocate requested HealthCheck NodePort {given}: {why}"))
            })?,
            None => {
                let port = free
                    .draw()
                    .map_err(|why| Status::internal(format!("failed to allocate a HealthCheck NodePort: {why}")))?;
                service["spec"]["healthCheckNodePort"] = port.into();
                drawn.health_check = true;
            }
        }
    }
    Ok(drawn)
}

/// Repeats the draw under the lock: another Service may have taken a drawn port in the meantime.
pub fn settle(
    objects: &dyn StoredObjects,
    service: &mut Value,
    before: Option<&Value>,
    drawn: &Drawn,
) -> Result<(), Status> {
    let spec = &mut service["spec"];
    for index in &drawn.ports {
        remove(&mut spec["ports"][*index], "nodePort");
    }
    if drawn.health_check {
        remove(spec, "healthCheckNodePort");
    }
    draw(objects, service, before).map(drop)
}

fn remove(object: &mut Value, field: &str) {
    meta::map_mut(object).remove(field);
}

/// Copies node ports that an update omits from the old Service. Removes node ports if the new type
/// has none and the client did not change them.
pub fn keep(new: &mut Value, old: &Value) {
    if needs(old) && needs(new) {
        let before = of(old);
        let used: BTreeSet<i64> = of(new).intersection(&before).copied().collect();
        let named: BTreeMap<String, i64> = old["spec"]["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|port| Some((name_of(port), set(&port["nodePort"])?)))
            .collect();
        for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
            if set(&port["nodePort"]).is_none()
                && let Some(had) = named.get(&name_of(port)).filter(|had| !used.contains(had))
            {
                port["nodePort"] = (*had).into();
            }
        }
    } else if may_have(old) && !may_have(new) && of(old).is_superset(&of(new)) {
        for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
            remove(port, "nodePort");
        }
    }
    match (needs_health_check(old), needs_health_check(new)) {
        (true, true) if health_check(new).is_none() => {
            // A Service stored by a version without these ports has none, and gets one like a new
            // Service.
            if let Some(port) = health_check(old) {
                new["spec"]["healthCheckNodePort"] = port.into();
            }
        }
        (true, false) if health_check(old) == health_check(new) => remove(&mut new["spec"], "healthCheckNodePort"),
        _ => {}
    }
}

fn name_of(port: &Value) -> String {
    port["name"].as_str().unwrap_or_default().to_owned()
}
