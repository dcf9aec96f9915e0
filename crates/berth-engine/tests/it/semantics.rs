//! Every section (§) that code or documents cite is a heading of `docs/semantics`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PAGES: &str = "docs/semantics";
/// Files and folders that may cite sections.
const CITING: [&str; 7] = ["crates", "xtask", "fuzz", "docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
const CITING_EXTENSIONS: [&str; 3] = ["rs", "md", "yaml"];

/// A section number with its parts in order: §8.12 is `[8, 12]`.
type Section = Vec<u32>;

/// A heading of the pages.
#[derive(Debug)]
struct Heading {
    page: String,
    /// The fragment with which a rendered page links to it.
    anchor: String,
    /// Numbers of the steps that its text lists.
    steps: BTreeSet<u32>,
}

/// A citation of a section, and of a step if it names one.
#[derive(Debug, PartialEq)]
struct Citation {
    section: Section,
    step: Option<u32>,
}

/// All files below a path that may cite sections. Build outputs and hidden folders are omitted.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        let extension = path.extension().and_then(|it| it.to_str());
        if extension.is_some_and(|it| CITING_EXTENSIONS.contains(&it)) {
            found.push(path.to_owned());
        }
        return;
    }
    let entries = std::fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for entry in entries {
        let entry = entry.expect("an entry of a readable folder").path();
        let name = entry.file_name().and_then(|it| it.to_str()).unwrap_or_default();
        if !name.starts_with('.') && name != "target" {
            files(&entry, found);
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The number at the start of a string, and the rest.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// The section number at the start of a string (`8.12`), and the rest. A full stop that ends the
/// sentence belongs to the rest.
fn section(text: &str) -> Option<(Section, &str)> {
    let (first, mut rest) = number(text)?;
    let mut section = vec![first];
    while let Some((next, after)) = rest.strip_prefix('.').and_then(number) {
        section.push(next);
        rest = after;
    }
    Some((section, rest))
}

/// Sections from one to another, both included. If they differ in more than their last number, only
/// the two sections.
fn range(from: &Section, to: &Section) -> Vec<Section> {
    let (Some((first, parent)), Some((last, other))) = (from.split_last(), to.split_last()) else { return Vec::new() };
    if parent != other {
        return vec![from.clone(), to.clone()];
    }
    (*first..=*last).map(|it| parent.iter().copied().chain([it]).collect()).collect()
}

/// Every section that a string cites: `§8.12`, `§5.6 step 1`, `§5.6 steps 7 and 8`, `§9–§11`,
/// `§14.5 to §14.9`.
fn citations(text: &str) -> Vec<Citation> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('§') {
        rest = after;
        let Some((first, after)) = section(after.strip_prefix('§').unwrap_or(after)) else { continue };
        let end = ["–", " to "].iter().find_map(|between| {
            let after = after.strip_prefix(between)?;
            section(after.strip_prefix('§').unwrap_or(after))
        });
        if let Some((last, after)) = end {
            found.extend(range(&first, &last).into_iter().map(|section| Citation { section, step: None }));
            rest = after;
            continue;
        }
        let steps = after.strip_prefix(" step ").or_else(|| after.strip_prefix(" steps ")).and_then(number);
        if let Some((step, after)) = steps {
            let second = after.strip_prefix(" and ").and_then(number).map(|(step, _)| step);
            let steps = [Some(step), second].into_iter().flatten();
            found.extend(steps.map(|step| Citation { section: first.clone(), step: Some(step) }));
        } else {
            found.push(Citation { section: first, step: None });
        }
    }
    found
}

/// The section and the title of a heading line.
fn heading(line: &str) -> Option<(Section, &str)> {
    let text = line.strip_prefix("## ").or_else(|| line.strip_prefix("### "))?;
    section(text.strip_prefix('§')?).map(|(section, _)| (section, text))
}

/// The fragment that GitHub makes of a heading: lower case, hyphens for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|it| it.is_alphanumeric() || matches!(it, '-' | '_')).collect()
}

/// The headings of all pages by section. Fails if two headings have the same number.
fn headings() -> BTreeMap<Section, Heading> {
    let mut pages = Vec::new();
    files(&Path::new(ROOT).join(PAGES), &mut pages);
    let mut found: BTreeMap<Section, Heading> = BTreeMap::new();
    for page in pages {
        let name = page.file_name().and_then(|it| it.to_str()).expect("a page has a name").to_owned();
        let mut current = None;
        for line in read(&page).lines() {
            if line.starts_with('#') {
                current = heading(line).map(|(section, text)| {
                    let heading = Heading { page: name.clone(), anchor: anchor(text), steps: BTreeSet::new() };
                    assert!(found.insert(section.clone(), heading).is_none(), "{name}: two headings: {line}");
                    section
                });
            } else if let Some((step, _)) = number(line).filter(|(_, rest)| rest.starts_with(". "))
                && let Some(heading) = current.as_ref().and_then(|section| found.get_mut(section))
            {
                heading.steps.insert(step);
            }
        }
    }
    found
}

#[test]
fn every_section_that_is_cited_is_a_heading() {
    let headings = headings();
    let mut citing = Vec::new();
    for path in CITING {
        files(&Path::new(ROOT).join(path), &mut citing);
    }
    let mut missing = BTreeSet::new();
    let mut cited = 0;
    for path in &citing {
        // The examples in this file's own tests are not citations.
        if path.ends_with("tests/it/semantics.rs") {
            continue;
        }
        for (at, line) in read(path).lines().enumerate() {
            for citation in citations(line) {
                cited += 1;
                let heading = headings.get(&citation.section);
                if !heading.is_some_and(|it| citation.step.is_none_or(|step| it.steps.contains(&step))) {
                    let path = path.strip_prefix(ROOT).expect("a path below the root").display();
                    missing.insert(format!("{path}:{}: {citation:?}", at + 1));
                }
            }
        }
    }
    assert!(cited > 400, "only {cited} citations were found: where are the sources?");
    let missing: Vec<String> = missing.into_iter().collect();
    assert!(missing.is_empty(), "cited but not in {PAGES}:\n{}", missing.join("\n"));
}

#[test]
fn every_section_is_linked_from_the_index_and_from_the_map() {
    let headings = headings();
    let links = [("docs/semantics/README.md", ""), ("docs/queueing-map.md", "semantics/")];
    for (page, folder) in links {
        let text = read(&Path::new(ROOT).join(page));
        for (section, heading) in headings.iter().filter(|(section, _)| section.len() == 1) {
            let link = format!("({folder}{}#{})", heading.page, heading.anchor);
            assert!(text.contains(&link), "{page} does not link to §{} by {link}", section[0]);
        }
    }
}

#[test]
fn subsections_are_numbered_without_gaps_within_their_section() {
    let headings = headings();
    let mut subsections: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for section in headings.keys() {
        let (&first, rest) = section.split_first().expect("a section has a number");
        subsections.entry(first).or_default().extend(rest.first());
    }
    for (section, numbers) in subsections {
        assert!(headings.contains_key(&vec![section]), "§{section} has no heading of its own");
        let expected: Vec<u32> = (1..).take(numbers.len()).collect();
        assert_eq!(numbers, expected, "subsections of §{section}");
    }
}

#[test]
fn citations_are_read_in_all_their_forms() {
    let check = |text: &str, expected: &[(&[u32], Option<u32>)]| {
        let expected: Vec<Citation> =
            expected.iter().map(|(section, step)| Citation { section: section.to_vec(), step: *step }).collect();
        assert_eq!(citations(text), expected, "{text}");
    };
    check("as in §8.12.", &[(&[8, 12], None)]);
    check("(§17, §19–§22)", &[(&[17], None), (&[19], None), (&[20], None), (&[21], None), (&[22], None)]);
    check("§14.5 to §14.7", &[(&[14, 5], None), (&[14, 6], None), (&[14, 7], None)]);
    check("§9.3–9.4", &[(&[9, 3], None), (&[9, 4], None)]);
    check("(§5.6 step 2)", &[(&[5, 6], Some(2))]);
    check("§5.6 steps 7 and 8", &[(&[5, 6], Some(7)), (&[5, 6], Some(8))]);
    check("the sign § alone", &[]);
}
