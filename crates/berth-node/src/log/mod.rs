//! The logs of containers, in the format of the Container Runtime Interface:
//! `2026-01-01T00:00:00.000000001Z stdout F text`. A line that is longer than [`LINE_BYTES_MAX`] is
//! split: all parts but the last are marked `P`.

mod read;
mod write;

pub(crate) use read::{Follow, read, tail_text};
pub(crate) use write::{LogFile, StreamWriter};

use std::path::{Path, PathBuf};

use berth_pod_runtime::StreamName;
use jiff::Timestamp;

/// Maximum length of the text of one record in bytes, as in other container runtimes.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Size at which a log file is rotated.
pub(crate) const FILE_BYTES_MAX: u64 = 10 << 20;

/// Maximum number of files of a log, including the current one.
const FILES_MAX: u32 = 5;

/// Older part `number` of a log; 1 is the newest of them.
fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Existing files of a log, oldest first.
fn files(path: &Path) -> Vec<PathBuf> {
    let older = (1..FILES_MAX).rev().map(|number| rotated(path, number));
    older.chain([path.to_owned()]).filter(|file| file.exists()).collect()
}

/// A parsed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record<'a> {
    time: &'a str,
    stream: StreamName,
    is_partial: bool,
    text: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses a line without its line feed.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(fields.next()?).ok()?;
        let stream = match fields.next()? {
            b"stdout" => StreamName::Stdout,
            b"stderr" => StreamName::Stderr,
            _ => return None,
        };
        let is_partial = fields.next()?.starts_with(b"P");
        Some(Self { time, stream, is_partial, text: fields.next()? })
    }

    fn timestamp(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

/// Appends a record.
fn format(out: &mut Vec<u8>, at: Timestamp, stream: StreamName, is_partial: bool, text: &[u8]) {
    let name: &[u8] = match stream {
        StreamName::Stdout => b"stdout",
        StreamName::Stderr => b"stderr",
    };
    out.extend_from_slice(std::format!("{at:.9}").as_bytes());
    out.push(b' ');
    out.extend_from_slice(name);
    out.extend_from_slice(if is_partial { b" P " } else { b" F " });
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// Removes a log with its older parts.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    files(path).iter().try_for_each(std::fs::remove_file)
}

/// Disk space of a log with its older parts, in bytes.
pub(crate) fn disk_bytes(path: &Path) -> u64 {
    files(path).iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).sum()
}
