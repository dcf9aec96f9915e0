//! Errors of the image store.

use std::path::{Path, PathBuf};

/// Failure to import, pull, find or remove an image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The string is not an image reference.
    #[error("{reference:?} is not an image reference ({source}): expected NAME, NAME:TAG or NAME@sha256:DIGEST")]
    Reference {
        /// The string.
        reference: String,
        /// The syntax error.
        source: oci_client::ParseError,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// An archive or image has content that cannot be used.
    #[error("{image}: {problem}")]
    Invalid {
        /// File or reference of the image.
        image: String,
        /// The problem, and the expected content.
        problem: String,
    },
    /// Content does not have the digest by which it was requested.
    #[error("{image}: {part} has the digest {found}, expected {expected}: the image is damaged")]
    Digest {
        /// File or reference of the image.
        image: String,
        /// The part that is damaged.
        part: String,
        /// Digest of the content.
        found: String,
        /// Expected digest.
        expected: String,
    },
    /// The disk has too little free space.
    #[error(
        "{}: {free_bytes} bytes and {free_files} files are free, images stop at {limit_bytes} bytes and {limit_files} files: remove images \
         (berth image rm) or make room",
        path.display()
    )]
    DiskFull {
        /// Folder of the store.
        path: PathBuf,
        /// Free bytes of the disk.
        free_bytes: u64,
        /// Free inodes of the disk.
        free_files: u64,
        /// Bytes that must stay free.
        limit_bytes: u64,
        /// Inodes that must stay free.
        limit_files: u64,
    },
    /// The registry rejected the request or could not be reached.
    #[error("cannot pull {reference}: {source}")]
    Registry {
        /// Reference of the image.
        reference: String,
        /// The cause.
        source: oci_client::errors::OciDistributionError,
    },
}

impl Error {
    /// Adds the file to an I/O error.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.downcast::<Self>() {
            // The error of a nested reader, such as for a full disk, keeps its own message.
            Ok(inner) => inner,
            Err(source) => Self::Io { path, source },
        }
    }

    /// Adds the file to an error of a system call.
    pub(crate) fn os(path: &Path) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source: source.into() }
    }

    pub(crate) fn invalid(image: &str, problem: impl Into<String>) -> Self {
        Self::Invalid { image: image.to_owned(), problem: problem.into() }
    }
}
