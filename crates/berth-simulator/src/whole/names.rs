//! Names of tenants as names of Kubernetes' objects.

use std::collections::{BTreeMap, BTreeSet};

use berth_apimachinery::names::is_dns1123_label;

/// Most characters of a name that was changed; a number may follow.
const CHANGED_MAX: usize = 40;

/// Distinct valid names. A name that is valid stays as it is.
#[derive(Debug, Default)]
pub struct Names {
    known: BTreeMap<String, String>,
    used: BTreeSet<String>,
}

impl Names {
    /// Remembers a name.
    pub fn add(&mut self, name: &str) {
        if self.known.contains_key(name) {
            return;
        }
        let valid = if is_dns1123_label(name).is_empty() { name.to_owned() } else { changed(name) };
        let mut given = valid.clone();
        for number in 2.. {
            if self.used.insert(given.clone()) {
                break;
            }
            given = format!("{valid}-{number}");
        }
        self.known.insert(name.to_owned(), given);
    }

    /// The valid name; the name itself if it was not added.
    pub fn of<'a>(&'a self, name: &'a str) -> &'a str {
        self.known.get(name).map_or(name, String::as_str)
    }

    /// The original names by the valid ones.
    pub fn originals(&self) -> BTreeMap<String, String> {
        self.known.iter().map(|(name, valid)| (valid.clone(), name.clone())).collect()
    }
}

/// The name with every character that a name cannot have replaced.
fn changed(name: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().take(CHANGED_MAX).map(letter).collect();
    let text = text.trim_matches('-');
    if text.is_empty() { "tenant".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_distinct_when_they_become_valid() {
        let mut names = Names::default();
        ["team-a", "Team_A", "team a", "?", "team-a"].iter().for_each(|name| names.add(name));
        let valid: Vec<&str> = ["team-a", "Team_A", "team a", "?"].iter().map(|name| names.of(name)).collect();
        assert_eq!(valid, ["team-a", "team-a-2", "team-a-3", "tenant"]);
        assert_eq!(names.originals()["team-a-2"], "Team_A");
    }
}
