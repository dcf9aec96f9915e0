//! Reading a log: selection by time, stream and number of lines, and following across rotations.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use berth_pod_runtime::LogQuery;

use super::{Record, files};

/// Bytes read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads the selected part of a log up to its current end. Can continue with records that are
/// appended later.
pub(crate) struct Follow {
    path: PathBuf,
    query: LogQuery,
    file: Option<File>,
    inode: u64,
    /// The start of a record that is not yet complete.
    pending: Vec<u8>,
    /// True if the next record starts a new line.
    at_line_start: bool,
    /// Lines to skip before the first selected one.
    skip_lines: u64,
    left_bytes: Option<u64>,
}

/// Starts to read a log.
pub(crate) fn read(path: &Path, query: LogQuery) -> io::Result<Follow> {
    let mut skip_lines = 0;
    if let Some(tail) = query.tail_lines {
        let mut lines = 0;
        for file in files(path) {
            lines += count_lines(&file, &query)?;
        }
        skip_lines = u64::saturating_sub(lines, tail);
    }
    let left_bytes = query.limit_bytes;
    Ok(Follow {
        path: path.to_owned(),
        query,
        file: None,
        inode: 0,
        pending: Vec::new(),
        at_line_start: true,
        skip_lines,
        left_bytes,
    })
}

impl Follow {
    /// The next part of the log. If nothing more has been written yet, the part is empty.
    pub fn next(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        while out.is_empty() && !self.is_complete() {
            let Some(read) = self.read_some(&mut buffer)? else { break };
            let mut bytes = &buffer[..read];
            while let Some(end) = memchr::memchr(b'\n', bytes) {
                self.pending.extend_from_slice(&bytes[..end]);
                let line = std::mem::take(&mut self.pending);
                self.select(&line, &mut out);
                bytes = &bytes[end + 1..];
            }
            self.pending.extend_from_slice(bytes);
        }
        Ok(out)
    }

    /// True once the limit on bytes is reached.
    pub fn is_complete(&self) -> bool {
        self.left_bytes == Some(0)
    }

    /// Reads from the current file or, at its end, from the next one. Returns `None` at the end of
    /// the log.
    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            if let Some(file) = &mut self.file {
                let read = file.read(buffer)?;
                if read > 0 {
                    return Ok(Some(read));
                }
            }
            let Some(newer) = self.newer()? else { return Ok(None) };
            // Records may have been appended to the current file since the last read.
            if let Some(file) = &mut self.file {
                let read = file.read(buffer)?;
                if read > 0 {
                    return Ok(Some(read));
                }
            }
            self.inode = newer.metadata()?.ino();
            self.file = Some(newer);
        }
    }

    /// Opens the file after the current one.
    fn newer(&self) -> io::Result<Option<File>> {
        let mut newer = None;
        // Newest first, because rotation renames the current file.
        for path in files(&self.path).into_iter().rev() {
            let Ok(file) = File::open(&path) else { continue };
            if self.file.is_some() && file.metadata()?.ino() == self.inode {
                break;
            }
            newer = Some(file);
        }
        Ok(newer)
    }

    fn select(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(record) = Record::parse(line) else { return };
        if !is_selected(&record, &self.query) {
            return;
        }
        let begins_line = self.at_line_start;
        self.at_line_start = !record.is_partial;
        if self.skip_lines > 0 {
            if !record.is_partial {
                self.skip_lines -= 1;
            }
            return;
        }
        let start = out.len();
        if self.query.timestamps && begins_line {
            out.extend_from_slice(record.time.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(record.text);
        if !record.is_partial {
            out.push(b'\n');
        }
        if let Some(left) = &mut self.left_bytes {
            let kept = ((out.len() - start) as u64).min(*left);
            *left -= kept;
            // `kept` is at most the length that was added.
            out.truncate(start + usize::try_from(kept).unwrap_or(usize::MAX));
        }
    }
}

fn is_selected(record: &Record<'_>, query: &LogQuery) -> bool {
    query.stream.is_none_or(|stream| stream == record.stream)
        && query.since.is_none_or(|since| record.timestamp().is_some_and(|time| time >= since))
}

/// Number of selected lines in a file. A last line without a line feed counts as well.
fn count_lines(path: &Path, query: &LogQuery) -> io::Result<u64> {
    let mut reader = io::BufReader::with_capacity(CHUNK_BYTES, File::open(path)?);
    let (mut lines, mut line, mut is_open) = (0, Vec::new(), false);
    // `tail` is counted before `since` selects lines.
    let query = LogQuery { since: None, ..query.clone() };
    while io::BufRead::read_until(&mut reader, b'\n', &mut line)? > 0 {
        if let Some(record) = Record::parse(line.trim_ascii_end_line()).filter(|record| is_selected(record, &query)) {
            is_open = record.is_partial;
            lines += u64::from(!record.is_partial);
        }
        line.clear();
    }
    Ok(lines + u64::from(is_open))
}

trait TrimLine {
    fn trim_ascii_end_line(&self) -> &[u8];
}

impl TrimLine for Vec<u8> {
    fn trim_ascii_end_line(&self) -> &[u8] {
        self.strip_suffix(b"\n").unwrap_or(self)
    }
}

/// The last lines of a log: at most `lines_max` lines and at most `bytes_max` bytes.
pub(crate) fn tail_text(path: &Path, lines_max: usize, bytes_max: usize) -> io::Result<String> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    // Each record has a prefix of 38 bytes. The window is large enough for short lines.
    let window = (bytes_max + lines_max * 64) as u64;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(window)))?;
    let mut bytes = Vec::new();
    file.take(window).read_to_end(&mut bytes)?;
    let mut lines: VecDeque<Vec<u8>> = VecDeque::new();
    let mut is_open = false;
    for record in bytes.split(|byte| *byte == b'\n').filter_map(Record::parse) {
        match lines.back_mut().filter(|_| is_open) {
            Some(line) => line.extend_from_slice(record.text),
            None => lines.push_back(record.text.to_owned()),
        }
        is_open = record.is_partial;
        if lines.len() > lines_max {
            lines.pop_front();
        }
    }
    let mut text: Vec<u8> = Vec::from(lines).join(&b'\n');
    // The container wrote a line feed after each line but an open one.
    if !text.is_empty() && !is_open {
        text.push(b'\n');
    }
    let start = text.len().saturating_sub(bytes_max);
    Ok(String::from_utf8_lossy(&text[start..]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{LogFile, StreamWriter};
    use super::*;
    use berth_pod_runtime::StreamName;
    use jiff::Timestamp;

    struct Log {
        _folder: tempfile::TempDir,
        path: PathBuf,
        file: LogFile,
    }

    impl Log {
        fn new(size_bytes_max: u64) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            let file = LogFile::open(&path, size_bytes_max).unwrap();
            Self { _folder: folder, path, file }
        }

        fn line(&mut self, stream: StreamName, second: i64, text: &str) {
            let at = Timestamp::from_second(second).unwrap();
            StreamWriter::new(stream).write(&mut self.file, at, format!("{text}\n").as_bytes()).unwrap();
        }

        fn read(&self, query: LogQuery) -> String {
            let mut follow = read(&self.path, query).unwrap();
            all(&mut follow)
        }
    }

    fn all(follow: &mut Follow) -> String {
        let mut text = Vec::new();
        loop {
            let part = follow.next().unwrap();
            if part.is_empty() {
                return String::from_utf8(text).unwrap();
            }
            text.extend(part);
        }
    }

    #[test]
    fn lines_are_selected_by_number_time_stream_and_bytes() {
        let mut log = Log::new(1 << 20);
        for second in 0..10 {
            log.line(StreamName::Stdout, second, &format!("line {second}"));
        }
        log.line(StreamName::Stderr, 10, "error");
        let since = Some(Timestamp::from_second(9).unwrap());
        assert_eq!(log.read(LogQuery { since, ..LogQuery::default() }), "line 9\nerror\n");
        assert_eq!(log.read(LogQuery { tail_lines: Some(2), ..LogQuery::default() }), "line 9\nerror\n");
        assert_eq!(log.read(LogQuery { tail_lines: Some(0), ..LogQuery::default() }), "");
        assert_eq!(log.read(LogQuery { limit_bytes: Some(9), ..LogQuery::default() }), "line 0\nli");
        let stderr = LogQuery { stream: Some(StreamName::Stderr), timestamps: true, ..LogQuery::default() };
        assert_eq!(log.read(stderr), "1970-01-01T00:00:10.000000000Z error\n");
    }

    #[test]
    fn a_reader_follows_the_log_across_rotations() {
        let mut log = Log::new(200);
        let mut follow = read(&log.path, LogQuery::default()).unwrap();
        let mut text = String::new();
        let mut expected = String::new();
        for number in 0..40 {
            log.line(StreamName::Stdout, number, &format!("line {number}"));
            expected += &format!("line {number}\n");
            text += &all(&mut follow);
        }
        assert_eq!(text, expected);
    }

    #[test]
    fn the_end_of_a_log_is_bounded_by_lines_and_bytes() {
        let mut log = Log::new(1 << 20);
        for second in 0..100 {
            log.line(StreamName::Stdout, second, &format!("line {second}"));
        }
        assert_eq!(tail_text(&log.path, 2, 2048).unwrap(), "line 98\nline 99\n");
        assert_eq!(tail_text(&log.path, 80, 5).unwrap(), "e 99\n");
        let mut open = StreamWriter::new(StreamName::Stdout);
        open.write(&mut log.file, Timestamp::UNIX_EPOCH, b"no line feed").unwrap();
        open.finish(&mut log.file, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(tail_text(&log.path, 2, 2048).unwrap(), "line 99\nno line feed");
    }
}
