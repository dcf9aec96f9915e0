//! Small text files of the system, and conversions of strings to Kubernetes' formats.

use std::fs;
use std::io;
use std::path::Path;

/// Maximum length of a label value.
const LABEL_MAX: usize = 63;

/// Reads a file below the root folder. The error contains the path.
pub(crate) fn read(root: &Path, path: &str) -> io::Result<String> {
    let path = root.join(path);
    fs::read_to_string(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// The trimmed content of a file; `None` if it is missing, unreadable or empty.
pub(crate) fn line(root: &Path, path: &str) -> Option<String> {
    read(root, path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The number in a file.
pub(crate) fn number(root: &Path, path: &str) -> Option<u64> {
    line(root, path)?.parse().ok()
}

/// A string in the format of a label value: other characters are replaced with `-`.
pub(crate) fn label(text: &str) -> String {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let replaced: String = text.chars().map(|c| if is_legal(c) { c } else { '-' }).take(LABEL_MAX).collect();
    replaced.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// A host name in the format of a Node's name.
pub(crate) fn node_name(host: &str) -> String {
    let lower = host.to_lowercase();
    let replaced: String =
        lower.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).take(LABEL_MAX).collect();
    // Each part between dots starts and ends with a letter or digit.
    let parts = replaced.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_become_names_of_nodes() {
        assert_eq!(node_name("Rack3_GPU-7.Lab.example.com"), "rack3-gpu-7.lab.example.com");
        assert_eq!(node_name("-a.-b-..c"), "a.b.c");
        assert_eq!(node_name("ä"), "");
    }

    #[test]
    fn product_names_become_values_of_labels() {
        assert_eq!(label("NVIDIA H100 80GB HBM3"), "NVIDIA-H100-80GB-HBM3");
        assert_eq!(label("  Super Server (X13) "), "Super-Server--X13");
        assert_eq!(label(&"x".repeat(80)).len(), 63);
    }
}
