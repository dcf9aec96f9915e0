//! The controllers of a manager that run.
//!
//! A controller that does not run keeps its watches, so that controllers that depend on them see
//! the same state, but it reconciles nothing and writes nothing.

use std::fmt;
use std::str::FromStr;

/// A selection of controllers by name, written as kube-controller-manager's `--controllers`: `*`
/// selects all, `name` selects one, `-name` excludes one. The first item that names a controller
/// decides about it; `*` decides about the controllers that no item names. The empty selection runs
/// none. By default all run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<Item>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    All,
    Run(String),
    Exclude(String),
}

/// An item of a selection that is none of `*`, `name` and `-name`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is none of *, NAME and -NAME")]
pub struct InvalidItem(String);

impl Default for Selection {
    fn default() -> Self {
        Self(vec![Item::All])
    }
}

impl Selection {
    /// True if the controller of this name runs.
    pub fn runs(&self, name: &str) -> bool {
        for item in &self.0 {
            match item {
                Item::Run(named) if named == name => return true,
                Item::Exclude(named) if named == name => return false,
                _ => {}
            }
        }
        self.0.contains(&Item::All)
    }

    /// The names in the selection, in its order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|item| match item {
            Item::All => None,
            Item::Run(name) | Item::Exclude(name) => Some(name.as_str()),
        })
    }
}

impl FromStr for Selection {
    type Err = InvalidItem;

    /// Reads a list of items with commas between them.
    fn from_str(text: &str) -> Result<Self, InvalidItem> {
        let items = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        let read = |item: &str| match (item, item.strip_prefix('-')) {
            ("*", _) => Ok(Item::All),
            ("", _) | (_, Some("" | "*")) => Err(InvalidItem(item.to_owned())),
            (_, Some(name)) => Ok(Item::Exclude(name.to_owned())),
            (name, None) => Ok(Item::Run(name.to_owned())),
        };
        items.map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match item {
                Item::All => f.write_str("*")?,
                Item::Run(name) => f.write_str(name)?,
                Item::Exclude(name) => write!(f, "-{name}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(text: &str) -> Vec<&'static str> {
        let selection: Selection = text.parse().expect("a selection");
        assert_eq!(selection.to_string().parse::<Selection>().expect("a selection"), selection);
        ["scheduler", "workload", "job-pod"].into_iter().filter(|name| selection.runs(name)).collect()
    }

    #[test]
    fn the_first_item_that_names_a_controller_decides() {
        assert_eq!(running("*"), ["scheduler", "workload", "job-pod"]);
        assert_eq!(running("*,-scheduler"), ["workload", "job-pod"]);
        assert_eq!(running("-scheduler,*"), ["workload", "job-pod"]);
        assert_eq!(running("workload, job-pod"), ["workload", "job-pod"]);
        assert_eq!(running("workload,-workload"), ["workload"]);
        assert_eq!(running("-workload,workload"), [""; 0]);
        assert_eq!(running("-scheduler"), [""; 0]);
        assert_eq!(running(""), [""; 0]);
        assert!(Selection::default().runs("scheduler"));
    }

    #[test]
    fn items_without_a_name_are_rejected() {
        for text in ["*,", ",", "-", "-*", "scheduler,,workload"] {
            assert!(text.parse::<Selection>().is_err(), "{text}");
        }
    }
}
