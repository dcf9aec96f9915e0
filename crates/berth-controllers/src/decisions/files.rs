//! The numbered files of a journal: lines of JSON that are only appended.
//!
//! Files are named by a prefix and a number from 1. When a file reaches its share of the size
//! limit, the next file is started, and the oldest files are deleted. A crash can leave an
//! incomplete last line, which the next start removes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memchr::{memchr, memmem, memrchr};
use serde::de::DeserializeOwned;

/// Number of files that the size limit is divided into.
pub(super) const FILES: u64 = 8;
/// Smallest size of a file, in bytes: a limit below eight times this is raised to it.
const FILE_MIN: u64 = 1 << 20;
/// Number of bytes that are read at once when a file's last newline is searched from its end.
const TAIL: u64 = 64 * 1_024;
/// Number of bytes that are read at once when lines are searched.
const BLOCK: usize = 256 * 1_024;
const SUFFIX: &str = ".jsonl";

/// Options that only let the owner of a file read it.
pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// The files of one prefix in a folder.
#[derive(Clone, Copy)]
pub(super) struct Series<'a> {
    pub folder: &'a Path,
    pub prefix: &'a str,
    /// A text that the lines of wanted records contain; empty for all lines.
    pub text: &'a str,
}

impl Series<'_> {
    pub(super) fn path(self, number: u64) -> PathBuf {
        self.folder.join(format!("{}{number:010}{SUFFIX}", self.prefix))
    }

    /// Numbers of the existing files, in order.
    pub(super) fn numbers(self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(self.folder)? {
            let name = entry?.file_name();
            let number: Option<u64> =
                name.to_str().and_then(|name| name.strip_prefix(self.prefix)?.strip_suffix(SUFFIX)?.parse().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Passes the records of a file to `each`, oldest first. Lines that are not records are skipped
    /// and counted in the log.
    pub(super) fn read<T: DeserializeOwned>(self, number: u64, each: &mut dyn FnMut(T)) -> io::Result<()> {
        let path = self.path(number);
        let mut unreadable = 0_usize;
        lines_with(File::open(&path)?, self.text, BLOCK, &mut |line| match serde_json::from_slice(line) {
            Ok(record) => each(record),
            Err(_) => unreadable += 1,
        })?;
        if unreadable > 0 {
            let file = path.display();
            tracing::warn!(%file, lines = unreadable, "skipped lines of the decision journal that are not records");
        }
        Ok(())
    }

    /// Like [`Series::read`]. A file that cannot be read is reported in the log and skipped.
    pub(super) fn read_if_possible<T: DeserializeOwned>(self, number: u64, each: &mut dyn FnMut(T)) {
        if let Err(error) = self.read(number, each) {
            let path = self.path(number);
            tracing::warn!(file = %path.display(), %error, "a file of the decision journal cannot be read");
        }
    }
}

/// Passes the lines that contain a text to `each`; all lines if the text is empty. Blocks of at
/// least `block` bytes are searched as a whole: a line without the text costs no more than its
/// bytes.
fn lines_with(mut file: impl Read, text: &str, block: usize, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let finder = memmem::Finder::new(text);
    let mut bytes = vec![0; block];
    let mut filled = 0;
    loop {
        if filled == bytes.len() {
            // A line is longer than the block.
            bytes.resize(2 * filled, 0);
        }
        let read = match file.read(&mut bytes[filled..]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        filled += read;
        let is_last = read == 0;
        let whole = if is_last { filled } else { memrchr(b'\n', &bytes[..filled]).map_or(0, |at| at + 1) };
        search(&finder, &bytes[..whole], each);
        if is_last {
            return Ok(());
        }
        bytes.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// Passes the lines of a text in which something is found to `each`.
fn search(finder: &memmem::Finder<'_>, lines: &[u8], each: &mut dyn FnMut(&[u8])) {
    let mut from = 0;
    while from < lines.len()
        && let Some(at) = finder.find(&lines[from..]).map(|at| from + at)
    {
        let start = memrchr(b'\n', &lines[from..at]).map_or(from, |newline| from + newline + 1);
        let end = memchr(b'\n', &lines[at..]).map_or(lines.len(), |newline| at + newline);
        each(&lines[start..end]);
        from = end + 1;
    }
}

/// The files of one prefix, the newest of which is open for appending.
pub(super) struct Files {
    folder: PathBuf,
    prefix: &'static str,
    number: u64,
    file: File,
    length: u64,
    file_max: u64,
}

impl Files {
    /// Opens the newest file of a series, or its first one. `size_max`, in bytes, limits all its
    /// files together.
    pub(super) fn open(folder: &Path, prefix: &'static str, size_max: u64) -> io::Result<Self> {
        let series = Series { folder, prefix, text: "" };
        let number = series.numbers()?.last().copied().unwrap_or(1);
        let (file, length) = open_end(&series.path(number))?;
        let file_max = (size_max / FILES).max(FILE_MIN);
        Ok(Self { folder: folder.to_owned(), prefix, number, file, length, file_max })
    }

    /// Appends whole lines and syncs them. After an error, the file has its previous length.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if self.length > 0 && self.length + lines.len() as u64 > self.file_max {
            self.rotate()?;
        }
        let written = self.file.write_all(lines).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.length += lines.len() as u64,
            Err(_) => {
                self.file.set_len(self.length)?;
                self.file.seek(SeekFrom::Start(self.length))?;
            }
        }
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        let next = self.number + 1;
        let series = Series { folder: &self.folder, prefix: self.prefix, text: "" };
        (self.file, self.length) = open_end(&series.path(next))?;
        self.number = next;
        for number in series.numbers()?.into_iter().filter(|number| number + FILES <= next) {
            fs::remove_file(series.path(number))?;
        }
        Ok(())
    }
}

/// Opens a file to append to it, without an incomplete last line. Also returns its length.
fn open_end(path: &Path) -> io::Result<(File, u64)> {
    let mut file = private(OpenOptions::new().create(true).truncate(false).read(true).write(true)).open(path)?;
    let length = file.metadata()?.len();
    let whole = end_of_last_line(&mut file, length)?;
    if whole < length {
        tracing::warn!(file = %path.display(), bytes = length - whole, "removed an incomplete last line from the decision journal");
        file.set_len(whole)?;
    }
    file.seek(SeekFrom::Start(whole))?;
    Ok((file, whole))
}

/// Length of a file up to its last newline.
fn end_of_last_line(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(TAIL);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(file).take(end - start).read_to_end(&mut bytes)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn lines_with_a_text_are_those_that_contain_it() {
        let mut files = vec![String::new()];
        for at in 0.. {
            let Some(file) = files.get(at).filter(|file| file.len() < 6).cloned() else { break };
            files.extend(["a", "b", "\n"].map(|next| format!("{file}{next}")));
        }
        assert_eq!(files.len(), 1 + 3 + 9 + 27 + 81 + 243 + 729);
        for (file, text, block) in files.iter().flat_map(|file| {
            ["", "a", "ab"].into_iter().flat_map(move |text| [1, 2, 3, 9].map(|block| (file, text, block)))
        }) {
            let mut found = Vec::new();
            let mut each = |line: &[u8]| found.push(String::from_utf8_lossy(line).into_owned());
            lines_with(file.as_bytes(), text, block, &mut each).expect("memory can be read");
            let wanted: Vec<&str> = file.lines().filter(|line| line.contains(text)).collect();
            assert_eq!(found, wanted, "{text:?} in {file:?}, in blocks of {block}");
        }
    }

    #[test]
    fn files_are_rotated_and_the_oldest_are_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut files = Files { file_max: 20, ..Files::open(folder.path(), "a-", 0).expect("a file") };
        for number in 0..2 * FILES {
            files.append(format!("{}\n", json!({"number": number})).as_bytes()).expect("written");
        }
        let series = Series { folder: folder.path(), prefix: "a-", text: "" };
        let left = series.numbers().expect("files");
        assert_eq!(left, (FILES + 1..=2 * FILES).collect::<Vec<_>>());
        let mut last = Value::Null;
        series.read(2 * FILES, &mut |value| last = value).expect("the file");
        assert_eq!(last["number"], 2 * FILES - 1);
        assert!(Series { prefix: "b-", ..series }.numbers().expect("the folder").is_empty());
    }
}
