//! A Sakkara group: what its ConfigMap declares, and the results that are written back.
//!
//! Source: Sakkara's KEP, "Group constraints" and "Placement results". `placement` is written as
//! JSON with lists of pods; the KEP's example is not JSON. `rank` has the KEP's form.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::constraints::{self, Constraints};
use super::member::Member;
use super::topology::Tree;

/// Maximum number of pods of a group: the search for a placement takes time in proportion.
pub const SIZE_MAX: usize = 4096;

/// Status of a group that waits for pods or room.
pub const PENDING: &str = "Pending";
/// Status of a group whose pods are bound.
pub const BOUND: &str = "Bound";

/// What a group's ConfigMap declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Number of pods.
    pub size: usize,
    /// Priority among groups.
    pub priority: i32,
    /// Constraints by the name of the level.
    pub constraints: Constraints,
}

impl Group {
    /// Reads the data of a group's ConfigMap.
    ///
    /// # Errors
    /// The text of an error names the data key, the observed value and the accepted ones.
    pub fn read(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let size = data.get("size").ok_or_else(|| format!("data.size: required, 1 to {SIZE_MAX}"))?;
        let size = size.trim().parse::<usize>().ok().filter(|it| (1..=SIZE_MAX).contains(it));
        let size = size.ok_or_else(|| format!("data.size: {:?} is not a number from 1 to {SIZE_MAX}", data["size"]))?;
        let priority = match data.get("priority").map(|text| text.trim()).filter(|text| !text.is_empty()) {
            None => 0,
            Some(text) => text.parse().map_err(|_| format!("data.priority: {text:?} is not an integer"))?,
        };
        let constraints = data.get("constraints").map_or("", String::as_str);
        let constraints = constraints::read(constraints).map_err(|error| format!("data.constraints: {error}"))?;
        Ok(Self { size, priority, constraints })
    }

    /// Constraints on levels that the topology does not have.
    pub fn unknown_levels(&self, levels: &[String]) -> Vec<&str> {
        self.constraints.keys().filter(|level| !levels.contains(level)).map(String::as_str).collect()
    }

    /// Checks that the topology has the levels of all hard constraints. Soft ones on other levels
    /// are given up.
    ///
    /// # Errors
    /// A hard constraint names an unknown level.
    pub fn check_levels(&self, levels: &[String]) -> Result<(), String> {
        match self.unknown_levels(levels).into_iter().find(|level| self.constraints[*level].hard) {
            None => Ok(()),
            Some(level) => Err(format!(
                "data.constraints: {level:?} is not a level of the topology: expected {}",
                levels.join(", ")
            )),
        }
    }
}

/// The value of `placement`: units from the root to the nodes, with the pods of each node.
pub fn placement(tree: &Tree, members: &[Member]) -> String {
    let mut root = Map::new();
    for member in members {
        let path = tree.path(member.node);
        let (node, units) = path.split_last().expect("a node has a name");
        let mut at = &mut root;
        for unit in units {
            let below = at.entry(*unit).or_insert_with(|| Value::Object(Map::new()));
            at = below.as_object_mut().expect("units above nodes are objects");
        }
        let pods = at.entry(*node).or_insert_with(|| Value::Array(Vec::new()));
        pods.as_array_mut().expect("the last level has lists").push(member.pod.clone().into());
    }
    Value::Object(Map::from_iter([("root".to_owned(), Value::Object(root))])).to_string()
}

/// The value of `rank`: pairs of pod and rank.
pub fn ranks(members: &[Member]) -> String {
    let mut text = String::from("[");
    for member in members {
        let _ = write!(text, "({:?},{}) ", member.pod, member.rank);
    }
    text.push(']');
    text
}
