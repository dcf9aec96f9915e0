//! Options of overlay mounts.

use std::path::{Path, PathBuf};

/// Maximum length of the options of a mount in bytes: the kernel copies one page.
const OPTIONS_BYTES_MAX: usize = 4000;

/// Folders that take the changes of an overlay. Without them an overlay is read-only.
pub(crate) struct Changes<'a> {
    /// Folder of the changed files.
    pub upper: &'a Path,
    /// Folder that the kernel works in, on the same file system.
    pub work: &'a Path,
}

/// The options of an overlay over `lower`, the lowest folder first. `is_user` for a mount in a user
/// namespace.
///
/// # Errors
/// The options are longer than the kernel accepts.
pub(crate) fn options(lower: &[PathBuf], changes: Option<&Changes<'_>>, is_user: bool) -> Result<String, String> {
    let folders: Vec<String> = lower.iter().rev().map(|folder| escape(folder)).collect();
    let mut options = format!("lowerdir={}", folders.join(":"));
    if let Some(changes) = changes {
        options += &format!(",upperdir={},workdir={}", escape(changes.upper), escape(changes.work));
    }
    if is_user {
        options += ",userxattr";
    }
    if options.len() > OPTIONS_BYTES_MAX {
        return Err(format!("the image has too many layers for one mount: {} of them", lower.len()));
    }
    Ok(options)
}

fn escape(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_layer_comes_first_and_separators_are_escaped() {
        let lower = [PathBuf::from("/a:1"), PathBuf::from("/b,2")];
        let changes = Changes { upper: Path::new("/up"), work: Path::new("/work") };
        assert_eq!(options(&lower, None, true).unwrap(), r"lowerdir=/b\,2:/a\:1,userxattr");
        assert_eq!(options(&lower, Some(&changes), false).unwrap(), r"lowerdir=/b\,2:/a\:1,upperdir=/up,workdir=/work");
    }

    #[test]
    fn options_that_the_kernel_would_cut_off_are_an_error() {
        let lower = vec![PathBuf::from("/layers/0123456789abcdef"); 200];
        assert_eq!(
            options(&lower, None, false).unwrap_err(),
            "the image has too many layers for one mount: 200 of them"
        );
    }
}
