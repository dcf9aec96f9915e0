//! Every place that `docs/queueing-map.md` names for a rule exists.

use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/queueing-map.md");
/// Folders to which the paths of the two columns are relative.
const FOLDERS: [&str; 2] =
    [concat!(env!("CARGO_MANIFEST_DIR"), "/src"), concat!(env!("CARGO_MANIFEST_DIR"), "/../berth-controllers/src")];

/// Rows of the page's table: the section, and the places that each of the two columns names.
fn rows(page: &str) -> Vec<(u32, [Vec<&str>; 2])> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.split('|').collect();
        let section = cells.first()?.trim().parse().ok()?;
        let places = |cell: usize| cells.get(cell).map_or_else(Vec::new, |cell| quoted(cell));
        Some((section, [places(2), places(3)]))
    });
    rows.collect()
}

fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Why a place does not exist; `None` if it exists.
fn missing(folder: &str, place: &str) -> Option<String> {
    let (file, name) = place.split_once("::").map_or((place, None), |(file, name)| (file, Some(name)));
    let Ok(source) = std::fs::read_to_string(Path::new(folder).join(file)) else {
        return Some(format!("{place}: no such file"));
    };
    let name = name?;
    let defines = |keyword: &str| {
        let definition = format!("{keyword} {name}");
        let mut found = source.match_indices(&definition).map(|(at, it)| &source[at + it.len()..]);
        found.any(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    };
    let defined = ["fn", "struct", "enum", "trait"].into_iter().any(defines);
    (!defined).then(|| format!("{place}: not defined there"))
}

#[test]
fn every_place_that_the_map_names_exists() {
    let page = std::fs::read_to_string(PAGE).expect("the page is in the repository");
    let rows = rows(&page);
    let sections: Vec<u32> = rows.iter().map(|(section, _)| *section).collect();
    assert_eq!(sections, (1..=24).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (section, columns) in &rows {
        assert!(!columns[0].is_empty(), "the map names no place in the engine for §{section}");
        for (folder, places) in FOLDERS.iter().zip(columns) {
            wrong.extend(places.iter().filter_map(|place| missing(folder, place)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
