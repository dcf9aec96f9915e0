//! IPAddresses, which record the addresses of Services, and ServiceCIDRs, the ranges of such
//! addresses.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_apimachinery::validation::NameCheck;
use serde_json::Value;

use super::{Strategy, immutable};

/// IPAddresses. The name of the object is the address.
pub(crate) struct IpAddresses;

impl Strategy for IpAddresses {
    fn name_check(&self) -> NameCheck {
        names::is_ip
    }

    fn validate(&self, address: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let spec = Path::new("spec");
        let (parent, path) = (&address["spec"]["parentRef"], spec.child("parentRef"));
        if !parent.is_object() {
            errors.push(Error::required(&path, ""));
            return errors;
        }
        // The group of Services is the empty string.
        for (field, required, check) in [
            ("group", false, names::is_dns1123_subdomain as fn(&str) -> Vec<String>),
            ("resource", true, names::is_path_segment_name),
            ("name", true, names::is_path_segment_name),
            ("namespace", false, names::is_path_segment_name),
        ] {
            let (text, at) = (parent[field].as_str().unwrap_or_default(), path.child(field));
            if !text.is_empty() {
                errors.extend(check(text).into_iter().map(|message| Error::invalid(&at, text, message)));
            } else if required {
                errors.push(Error::required(&at, ""));
            }
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        immutable(new, old, &["spec", "parentRef"], &mut errors);
        errors
    }
}

/// ServiceCIDRs: one range, or one range of each address family.
pub(crate) struct ServiceCidrs;

impl Strategy for ServiceCidrs {
    fn validate(&self, object: &Value) -> Vec<Error> {
        let spec = Path::new("spec");
        let path = spec.child("cidrs");
        let given = cidrs(object);
        match given.as_slice() {
            [] => return vec![Error::required(&path, "at least one CIDR required")],
            [_] => {}
            [first, second] if first.contains(':') != second.contains(':') => {}
            [_, _] => {
                let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
                return vec![Error::invalid(&path, object["spec"].clone(), detail)];
            }
            _ => return vec![Error::invalid(&path, object["spec"].clone(), "may only hold up to 2 values")],
        }
        let mut errors = Vec::new();
        for (index, cidr) in given.iter().enumerate() {
            let at = path.index(index);
            errors.extend(names::is_cidr(cidr).into_iter().map(|message| Error::invalid(&at, *cidr, message)));
        }
        errors
    }

    /// Ranges are immutable, but a range of a second family may be added.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let (before, after) = (cidrs(old), cidrs(new));
        if before.len() == 1 && after.len() == 2 && before[0] == after[0] {
            return self.validate(new);
        }
        let mut errors = Vec::new();
        immutable(new, old, &["spec", "cidrs"], &mut errors);
        errors
    }
}

fn cidrs(object: &Value) -> Vec<&str> {
    object["spec"]["cidrs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
