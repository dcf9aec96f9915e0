//! Writing a log: records, and rotation by size.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use berth_pod_runtime::StreamName;
use jiff::Timestamp;

use super::{FILES_MAX, LINE_BYTES_MAX, format, rotated};

/// The log of one run of a container.
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    size_bytes_max: u64,
}

impl LogFile {
    /// Opens or creates a log that is rotated when it exceeds `size_bytes_max`.
    pub fn open(path: &Path, size_bytes_max: u64) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let size_bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size_bytes, size_bytes_max })
    }

    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        if self.size_bytes > self.size_bytes_max {
            self.rotate()?;
        }
        self.file.write_all(records)?;
        self.size_bytes += records.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..FILES_MAX - 1).rev() {
            match std::fs::rename(rotated(&self.path, number), rotated(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, rotated(&self.path, 1))?;
        self.file = File::options().create(true).append(true).open(&self.path)?;
        self.size_bytes = 0;
        Ok(())
    }
}

/// Turns the bytes of one stream into records of a log.
pub(crate) struct StreamWriter {
    stream: StreamName,
    /// The start of a line whose end has not been read yet.
    pending: Vec<u8>,
}

impl StreamWriter {
    pub fn new(stream: StreamName) -> Self {
        Self { stream, pending: Vec::new() }
    }

    /// Logs bytes that the container wrote.
    pub fn write(&mut self, log: &mut LogFile, at: Timestamp, mut bytes: &[u8]) -> io::Result<()> {
        let mut records = Vec::with_capacity(bytes.len() + 64);
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.add(&mut records, at, &bytes[..end]);
            format(&mut records, at, self.stream, false, &self.pending);
            self.pending.clear();
            bytes = &bytes[end + 1..];
        }
        self.add(&mut records, at, bytes);
        if records.is_empty() { Ok(()) } else { log.append(&records) }
    }

    /// Logs the last line if it does not end with a line feed.
    pub fn finish(&mut self, log: &mut LogFile, at: Timestamp) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut records = Vec::new();
        // No record continues the line, but readers must not add a line feed that was never
        // written.
        format(&mut records, at, self.stream, true, &self.pending);
        self.pending.clear();
        log.append(&records)
    }

    /// Adds text without a line feed to the current line. Writes a record for each full part.
    fn add(&mut self, records: &mut Vec<u8>, at: Timestamp, mut text: &[u8]) {
        while self.pending.len() + text.len() > LINE_BYTES_MAX {
            let (part, rest) = text.split_at(LINE_BYTES_MAX - self.pending.len());
            self.pending.extend_from_slice(part);
            format(records, at, self.stream, true, &self.pending);
            self.pending.clear();
            text = rest;
        }
        self.pending.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(chunks: &[&[u8]]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = LogFile::open(&path, 1 << 20).unwrap();
        let mut stream = StreamWriter::new(StreamName::Stdout);
        for chunk in chunks {
            stream.write(&mut log, Timestamp::UNIX_EPOCH, chunk).unwrap();
        }
        stream.finish(&mut log, Timestamp::UNIX_EPOCH).unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn lines_are_records_wherever_the_reads_end() {
        let expected = "1970-01-01T00:00:00.000000000Z stdout F one\n\
                        1970-01-01T00:00:00.000000000Z stdout F \n\
                        1970-01-01T00:00:00.000000000Z stdout F two\n\
                        1970-01-01T00:00:00.000000000Z stdout P end\n";
        assert_eq!(write(&[b"one\n\ntwo\nend"]), expected);
        assert_eq!(write(&[b"o", b"ne\n", b"\ntw", b"o\ne", b"nd"]), expected);
    }

    #[test]
    fn a_long_line_is_split() {
        let line = "x".repeat(LINE_BYTES_MAX + 5) + "\n";
        let text = write(&[line.as_bytes()]);
        let marks: Vec<(&str, usize)> = text
            .lines()
            .map(|record| record[38..].split_once(' ').map(|(mark, text)| (mark, text.len())).unwrap())
            .collect();
        assert_eq!(marks, [("P", LINE_BYTES_MAX), ("F", 5)]);
    }

    #[test]
    fn a_log_keeps_a_bounded_number_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = LogFile::open(&path, 1000).unwrap();
        let mut stream = StreamWriter::new(StreamName::Stderr);
        for _ in 0..100 {
            stream.write(&mut log, Timestamp::UNIX_EPOCH, &[b'x'; 500]).unwrap();
            stream.write(&mut log, Timestamp::UNIX_EPOCH, b"\n").unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), FILES_MAX as usize);
        assert_eq!(super::super::files(&path).len(), FILES_MAX as usize);
    }
}
