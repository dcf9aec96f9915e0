//! Messages are renderings: only `text` composes them, from the records of the deciding modules.

use std::fs;
use std::path::{Path, PathBuf};

/// Code that composes or copies a string.
const COMPOSES: [&str; 5] = ["format!(", "write!(", ".to_string()", "push_str(", "\".to_owned()"];

/// Files outside `text` that may compose strings, with the reason.
const EXEMPT: [(&str, &str); 3] = [
    ("lab/", "names for tests, and tests of messages"),
    ("model/mod.rs", "`Display` of a workload's key"),
    ("quota/properties.rs", "names in generated trees, for tests only"),
];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn no_module_but_text_composes_messages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    files.sort();
    let mut found = Vec::new();
    for path in &files {
        let name = path.strip_prefix(&root).expect("the file is below the root").to_string_lossy().into_owned();
        if name.starts_with("text/") || EXEMPT.iter().any(|(exempt, _)| name.starts_with(exempt)) {
            continue;
        }
        let text = fs::read_to_string(path).expect("a source");
        // Unit tests are at the end of a file.
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in product.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if COMPOSES.iter().any(|it| code.contains(it)) {
                found.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(files.len() > 30, "the sources were not found");
    assert!(found.is_empty(), "messages are composed outside `text`:\n{}", found.join("\n"));
}
