//! Circles of files: files of a crate that need each other, directly or through others. Such files
//! can only be read and changed together, so their number is limited.
//!
//! A file needs another if it names an item of the other by a path that starts with `crate` or
//! `super`, in a `use` or elsewhere, also through an imported module (`use crate::a; a::f()`). A
//! path to a re-exported item leads to the file that defines the item, so a `mod.rs` or `lib.rs`
//! that only re-exports is part of no circle. The use that a module makes of its own child modules
//! does not count: a folder is one module with parts. Comments, strings and test modules do not
//! count either.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::dependencies::sources;
use crate::workspace_root;

/// Maximum number of files in a circle.
const FILES_MAX: usize = 10;

/// A path in code: `crate::a::b` is `["crate", "a", "b"]`.
type Segments = Vec<String>;

/// References of a source file to other files.
#[derive(Default)]
struct Source {
    /// Names that `use` brings into scope, with their paths.
    imports: BTreeMap<String, Segments>,
    /// Paths of `use` declarations.
    used: Vec<Segments>,
    /// Paths of several segments elsewhere.
    paths: Vec<Segments>,
}

/// Replaces comments and the contents of strings and character literals by spaces.
fn without_text(code: &str) -> String {
    let chars: Vec<char> = code.chars().collect();
    let mut out = String::with_capacity(code.len());
    let starts = |at: usize, text: &str| text.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    let mut at = 0;
    while at < chars.len() {
        let is_in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
        let end = match chars[at] {
            '/' if starts(at, "//") => (at..chars.len()).find(|i| chars[*i] == '\n').unwrap_or(chars.len()),
            '/' if starts(at, "/*") => (at + 2..chars.len()).find(|i| starts(*i, "*/")).map_or(chars.len(), |i| i + 2),
            '"' => end_of_string(&chars, at),
            'r' if !is_in_word => end_of_raw_string(&chars, at).unwrap_or(at),
            '\'' if starts(at, "'\\") => end_of_literal(&chars, at + 3),
            '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
            _ => at,
        };
        if end > at {
            out.push(' ');
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of an escaped character literal. `from` is the position after the escaped character.
fn end_of_literal(chars: &[char], from: usize) -> usize {
    (from..chars.len()).find(|i| chars[*i] == '\'').map_or(chars.len(), |i| i + 1)
}

/// The end of the raw string that begins at an `r`; `None` if no raw string begins there.
fn end_of_raw_string(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    let quote = start + 1 + hashes;
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let is_end =
        |i: &usize| chars[*i] == '"' && chars[*i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    Some((quote + 1..chars.len()).find(is_end).map_or(chars.len(), |i| i + 1 + hashes))
}

/// Words, `::`, and single characters of code without strings and comments.
fn tokens(code: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_alphanumeric() || c == '_' {
            let mut word = String::from(c);
            while let Some(next) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                word.push(next);
            }
            found.push(word);
        } else if c == ':' && chars.next_if_eq(&':').is_some() {
            found.push("::".to_owned());
        } else if !c.is_whitespace() {
            found.push(c.to_string());
        }
    }
    found
}

/// Removes modules with `#[cfg(test)]`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TEST_MODULE: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let is_test = tokens[at..].iter().zip(TEST_MODULE).filter(|(token, wanted)| token == wanted).count() == 8;
        if is_test && tokens.get(at + 9).is_some_and(|token| token == "{") {
            let mut depth = 0;
            at += 9;
            loop {
                match tokens.get(at).map(String::as_str) {
                    Some("{") => depth += 1,
                    Some("}") => depth -= 1,
                    Some(_) => {}
                    None => return kept,
                }
                at += 1;
                if depth == 0 {
                    break;
                }
            }
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

impl Source {
    fn read(code: &str) -> Source {
        let tokens = without_tests(tokens(&without_text(code)));
        let mut source = Source::default();
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at] == "use" && tokens.get(at + 1).is_some_and(|next| next != "<") {
                let end = (at..tokens.len()).find(|i| tokens[*i] == ";").unwrap_or(tokens.len());
                source.add_use(&mut Vec::new(), &tokens[at + 1..end]);
                at = end + 1;
                continue;
            }
            let starts_path = is_word(&tokens[at]) && (at == 0 || tokens[at - 1] != "::");
            let mut path = vec![tokens[at].clone()];
            at += 1;
            if starts_path {
                while at + 1 < tokens.len() && tokens[at] == "::" && is_word(&tokens[at + 1]) {
                    path.push(tokens[at + 1].clone());
                    at += 2;
                }
                if path.len() > 1 {
                    source.paths.push(path);
                }
            }
        }
        source
    }

    /// Adds the paths of a tree such as `a::{b, c as d}` below `prefix`.
    fn add_use(&mut self, prefix: &mut Segments, tree: &[String]) {
        let before = prefix.len();
        let mut at = 0;
        while at < tree.len() {
            match tree[at].as_str() {
                "::" => {}
                "{" => {
                    let (mut depth, mut start) = (0, at + 1);
                    for i in at..tree.len() {
                        match tree[i].as_str() {
                            "{" => depth += 1,
                            "}" => depth -= 1,
                            _ => {}
                        }
                        if (depth == 1 && tree[i] == ",") || depth == 0 {
                            if i > start {
                                self.add_use(prefix, &tree[start..i]);
                            }
                            start = i + 1;
                        }
                    }
                    prefix.truncate(before);
                    return;
                }
                "as" => break,
                segment => prefix.push(segment.to_owned()),
            }
            at += 1;
        }
        let mut path = prefix.clone();
        prefix.truncate(before);
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = if at < tree.len() { tree.get(at + 1) } else { path.last() };
        if let Some(name) = name {
            self.imports.insert(name.clone(), path.clone());
        }
        self.used.push(path);
    }
}

/// The source files of a crate by their modules.
struct Files(BTreeMap<Segments, (String, Source)>);

impl Files {
    /// Creates the map from paths below `src` and the contents of the files.
    fn new(files: impl IntoIterator<Item = (String, String)>) -> Files {
        let module = |path: &str| -> Segments {
            let path = path.trim_end_matches(".rs");
            let path = path.strip_suffix("/mod").unwrap_or(path);
            if matches!(path, "lib" | "main") { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
        };
        let files: BTreeMap<String, String> = files.into_iter().collect();
        let has_library = files.contains_key("lib.rs");
        let files = files.into_iter().filter(|(path, _)| path != "main.rs" || !has_library);
        Files(files.map(|(path, code)| (module(&path), (path, Source::read(&code)))).collect())
    }

    fn of_crate(source: &Path) -> Files {
        let files = sources(source).into_iter().filter(|path| path.extension().is_some_and(|it| it == "rs"));
        Files::new(files.map(|path| {
            let name = path.strip_prefix(source).expect("it is below the folder").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("the file is readable"))
        }))
    }

    fn child(&self, module: &[String], name: &str) -> Option<Segments> {
        let child = [module, &[name.to_owned()]].concat();
        self.0.contains_key(&child).then_some(child)
    }

    /// The module that defines the item that `path` names in `module`, and whether the path names
    /// that module itself. `None` for items of other crates.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<(Segments, bool)> {
        let (mut current, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (module.to_vec(), &path[1..]),
            "super" => {
                let up = path.iter().take_while(|segment| *segment == "super").count();
                (module[..module.len().checked_sub(up)?].to_vec(), &path[up..])
            }
            first => (self.child(module, first)?, &path[1..]),
        };
        while let Some(child) = rest.first().and_then(|name| self.child(&current, name)) {
            (current, rest) = (child, &rest[1..]);
        }
        let Some(name) = rest.first() else { return Some((current, true)) };
        match self.0.get(&current).and_then(|(_, source)| source.imports.get(name)) {
            Some(import) if depth > 0 => self.resolve(&current, &[import.as_slice(), &rest[1..]].concat(), depth - 1),
            _ => Some((current, false)),
        }
    }

    /// The files that each file needs.
    fn needs(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        const REEXPORTS_MAX: usize = 16;
        let is_upward = |path: &Segments| matches!(path[0].as_str(), "crate" | "super");
        let mut needs = BTreeMap::new();
        for (module, (name, source)) in &self.0 {
            let through_imports = source.paths.iter().filter_map(|path| {
                let import = source.imports.get(&path[0])?;
                Some([import.as_slice(), &path[1..]].concat())
            });
            let direct = source.used.iter().chain(&source.paths).cloned();
            let mut found = BTreeSet::new();
            for path in direct.chain(through_imports).filter(is_upward) {
                // Items of an imported module count by their own paths.
                let Some((target, false)) = self.resolve(module, &path, REEXPORTS_MAX) else { continue };
                if let Some((other, _)) = self.0.get(&target).filter(|_| target != *module) {
                    found.insert(other.as_str());
                }
            }
            needs.insert(name.as_str(), found);
        }
        needs
    }

    /// The circles of more than one file, the largest first.
    fn circles(&self) -> Vec<Vec<&str>> {
        let needs = self.needs();
        let reach: BTreeMap<&str, BTreeSet<&str>> = needs.keys().map(|file| (*file, reachable(&needs, file))).collect();
        let mut circles: BTreeSet<Vec<&str>> = BTreeSet::new();
        for (file, others) in &reach {
            circles.insert(others.iter().copied().filter(|other| reach[other].contains(file)).collect());
        }
        let mut circles: Vec<Vec<&str>> = circles.into_iter().filter(|circle| circle.len() > 1).collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// The files that a file needs, directly or through others.
fn reachable<'a>(needs: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        open.extend(needs[file].iter().copied().filter(|next| seen.insert(*next)));
    }
    seen
}

#[test]
fn no_circle_of_files_is_large() {
    let root = workspace_root();
    let crates = std::fs::read_dir(root.join("crates")).expect("the folder is readable");
    let mut folders: Vec<_> = crates.map(|entry| entry.expect("the folder is readable").path()).collect();
    folders.push(root.join("xtask"));
    folders.sort();
    let mut large = Vec::new();
    for folder in &folders {
        let files = Files::of_crate(&folder.join("src"));
        assert!(!files.0.is_empty(), "{} has no source: adapt this test", folder.display());
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        for circle in files.circles().into_iter().filter(|circle| circle.len() > FILES_MAX) {
            large.push(format!("{name}: {} files need each other: {}", circle.len(), circle.join(", ")));
        }
    }
    assert!(large.is_empty(), "at most {FILES_MAX} files may need each other.\n{}", large.join("\n"));
    assert!(folders.len() > 15, "found {} crates only: adapt this test", folders.len());
}

fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files = Files::new(files.iter().map(|(name, code)| (name.to_string(), code.to_string())));
    files.circles().into_iter().map(|circle| circle.into_iter().map(str::to_owned).collect()).collect()
}

#[test]
fn files_that_need_each_other_are_a_circle() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b; fn f() { b::g() }"),
        ("b.rs", "use crate::{c::{self, T as U}, d};"),
        ("c/mod.rs", "fn f(x: &crate::a::A) -> char { '\"' }"),
        ("d.rs", "use super::a::A;"),
    ];
    assert_eq!(circles_of(&files), [["a.rs", "b.rs", "c/mod.rs"]], "b.rs uses nothing of the module d");
}

#[test]
fn a_path_to_a_reexported_item_leads_to_the_file_that_defines_it() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A; pub use other_crate::O;"),
        ("a.rs", "use crate::O; pub struct A;"),
        ("b/mod.rs", "mod inner; mod user; pub use inner::B;"),
        ("b/inner.rs", "use crate::A; pub struct B;"),
        ("b/user.rs", "use super::B; use crate::b::user::Own;"),
    ];
    assert!(circles_of(&files).is_empty());
    let mut files = files;
    files[1].1 = "fn f() -> crate::b::B {}";
    assert_eq!(circles_of(&files), [["a.rs", "b/inner.rs"]]);
}

#[test]
fn comments_strings_tests_and_own_children_do_not_count() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use super::b::B;"),
        (
            "b/mod.rs",
            "mod part; fn f() { part::f() } // crate::a::A\n const T: &str = r#\"crate::a::A \"\"#;
             #[cfg(test)] mod tests { use crate::a::A; fn g() { { } } } fn h() -> &'static str { \"crate::a::A\\\"\" }",
        ),
        ("b/part.rs", "use super::B;"),
    ];
    assert!(circles_of(&files).is_empty());
    let mut files = files;
    files[2].1 = "#[cfg(test)] mod tests { } fn f(a: crate::a::A) {}";
    assert_eq!(circles_of(&files), [["a.rs", "b/mod.rs"]]);
}
