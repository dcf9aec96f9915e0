//! The tree of a cluster: units such as racks in levels from the top to the nodes.
//!
//! Source: Sakkara's KEP, "Cluster topology": a ConfigMap with `level-names` and a `tree` nested by
//! level, whose leaves are nodes. The KEP does not say what happens to nodes that the tree does not
//! list. Here such a node is a unit of its own at every level, after the listed ones, so that no
//! capacity is lost.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Name of the only level of a cluster without a topology.
pub const NODE_LEVEL: &str = "node";

/// A topology as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Names of the levels from top to bottom, without the root. The last is that of nodes.
    pub levels: Vec<String>,
    /// The units above each listed node, from top to bottom.
    paths: BTreeMap<String, Vec<String>>,
}

impl Default for Topology {
    /// One level with all nodes.
    fn default() -> Self {
        Self { levels: vec![NODE_LEVEL.to_owned()], paths: BTreeMap::new() }
    }
}

impl Topology {
    /// Reads the data of a topology's ConfigMap.
    ///
    /// # Errors
    /// The text of an error names the data key, the observed value and the accepted ones.
    pub fn read(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let text = |key: &str| data.get(key).ok_or_else(|| format!("data.{key}: required"));
        let levels: Vec<String> = serde_json::from_str(text("level-names")?).map_err(|error| {
            format!("data.level-names: expected a JSON list of names such as [\"rack\", \"node\"]: {error}")
        })?;
        if levels.is_empty() {
            return Err("data.level-names: expected at least one level".into());
        }
        if levels.iter().collect::<BTreeSet<_>>().len() < levels.len() {
            return Err("data.level-names: a name is listed twice".into());
        }
        let tree: Map<String, Value> = serde_json::from_str(text("tree")?)
            .map_err(|error| format!("data.tree: expected a JSON object of units, nested by level: {error}"))?;
        let mut topology = Self { levels, paths: BTreeMap::new() };
        topology.read_units(&tree, &mut Vec::new())?;
        Ok(topology)
    }

    fn read_units(&mut self, units: &Map<String, Value>, above: &mut Vec<String>) -> Result<(), String> {
        for (name, below) in units {
            let at = || [&above[..], std::slice::from_ref(name)].concat().join("/");
            let level = &self.levels[above.len()];
            let Value::Object(below) = below else {
                return Err(format!("data.tree: {level} {}: expected an object", at()));
            };
            if above.len() + 1 < self.levels.len() {
                above.push(name.clone());
                self.read_units(below, above)?;
                above.pop();
            } else if !below.is_empty() {
                return Err(format!("data.tree: {level} {}: has units below the last level", at()));
            } else if self.paths.insert(name.clone(), above.clone()).is_some() {
                return Err(format!("data.tree: {level} {name}: is listed twice"));
            }
        }
        Ok(())
    }

    /// The tree of these nodes. Units without nodes are left out.
    pub fn tree<'a>(&self, nodes: impl Iterator<Item = &'a str>) -> Tree {
        let mut tree = Tree { levels: self.levels.clone(), units: vec![Unit::default()] };
        let (listed, others): (Vec<_>, Vec<_>) = nodes.partition(|node| self.paths.contains_key(*node));
        let mut listed: Vec<(&Vec<String>, &str)> = listed.into_iter().map(|node| (&self.paths[node], node)).collect();
        listed.sort();
        for (path, node) in listed {
            tree.add(path.iter().map(String::as_str), node);
        }
        for node in others {
            tree.add(std::iter::repeat_n(node, self.levels.len() - 1), node);
        }
        tree
    }
}

/// A unit of a tree: a rack, a node, or the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Name; empty for the root.
    pub name: String,
    /// Number of levels above it; 0 for the root.
    pub depth: usize,
    /// Index of the unit that contains it; its own for the root.
    pub parent: usize,
    /// Indexes of the units that it contains, in order; none for a node.
    pub children: Vec<usize>,
}

/// The units of the existing nodes. Unit 0 is the root; a unit comes after the unit that contains
/// it, and the nodes of a unit are adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Names of the levels from top to bottom, without the root.
    pub levels: Vec<String>,
    units: Vec<Unit>,
}

impl Tree {
    fn add<'a>(&mut self, path: impl Iterator<Item = &'a str>, node: &'a str) {
        let mut at = 0;
        for name in path.chain([node]) {
            let last = self.units[at].children.last().copied().filter(|last| self.units[*last].name == name);
            at = last.unwrap_or_else(|| {
                let unit =
                    Unit { name: name.to_owned(), depth: self.units[at].depth + 1, parent: at, children: Vec::new() };
                self.units.push(unit);
                let added = self.units.len() - 1;
                self.units[at].children.push(added);
                added
            });
        }
    }

    /// The unit with this index.
    pub fn unit(&self, index: usize) -> &Unit {
        &self.units[index]
    }

    /// Number of units, with the root.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// True if the tree has no nodes.
    pub fn is_empty(&self) -> bool {
        self.units.len() == 1
    }

    /// Indexes of the nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        let depth = self.levels.len();
        (0..self.units.len()).filter(move |index| self.units[*index].depth == depth)
    }

    /// Names of the units from the top down to this one, without the root.
    pub fn path(&self, index: usize) -> Vec<&str> {
        let mut path = Vec::new();
        let mut at = index;
        while at != 0 {
            path.push(self.units[at].name.as_str());
            at = self.units[at].parent;
        }
        path.reverse();
        path
    }

    /// Number of edges between two nodes.
    pub fn distance(&self, one: usize, other: usize) -> usize {
        let (mut one, mut other, mut edges) = (one, other, 0);
        while one != other {
            // Both are nodes, so both are equally deep.
            (one, other) = (self.units[one].parent, self.units[other].parent);
            edges += 2;
        }
        edges
    }
}
