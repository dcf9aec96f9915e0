//! `docs/kueue-features.md` answers which of Kueue's features are supported. What it names exists.

use std::path::Path;

use berth_controllers::Gate;
use berth_controllers::gates::Support;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn page() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("docs/kueue-features.md")).expect("the page is in the repository")
}

/// The words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_page_about_features_names_existing_files() {
    let page = page();
    let places: Vec<&str> = quoted(&page).filter(|word| word.starts_with("crates/")).collect();
    assert!(places.len() > 50, "{} places", places.len());
    let missing: Vec<&&str> = places.iter().filter(|place| !Path::new(ROOT).join(place).exists()).collect();
    assert!(missing.is_empty(), "no such file: {missing:?}");
    let links =
        page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()).filter(|link| !link.is_empty());
    let broken: Vec<&str> = links.filter(|link| !Path::new(ROOT).join("docs").join(link).exists()).collect();
    assert!(broken.is_empty(), "no such page: {broken:?}");
}

#[test]
fn the_page_about_features_names_each_gate_that_differs_from_kueue() {
    let page = page();
    let (_, rest) = page.split_once("## Not supported").expect("a section");
    let (missing, rest) = rest.split_once("## Different").expect("a section");
    let (different, _) = rest.split_once("## Where each feature is").expect("a section");
    for gate in Gate::ALL {
        let is_named = |section: &str| quoted(section).any(|word| word == gate.name());
        match gate.support() {
            Support::Missing => assert!(is_named(missing), "{gate} is not supported"),
            Support::Always | Support::Inside => assert!(is_named(different), "{gate} cannot be switched"),
            Support::Full => {}
        }
    }
    // A gate that the page names after the word `gate` or in a list of gates is one of Kueue's.
    for list in page.split("gate").skip(1) {
        let names = list.strip_prefix('s').unwrap_or(list).strip_prefix(" `").into_iter();
        for name in names.filter_map(|rest| rest.split('`').next()) {
            assert!(Gate::named(name).is_some() || Gate::of_stage(name).is_some(), "no gate is named {name}");
        }
    }
}
