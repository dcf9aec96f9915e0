//! Reads SQLite's write-ahead log from its bytes (<https://sqlite.org/fileformat2.html#walformat>),
//! to find damage that SQLite ignores.
//!
//! SQLite ends the log at the first frame with a wrong checksum and ignores all later frames. Such
//! a frame is normal if the machine stopped during a commit. Each commit is synced before the next
//! one begins, so only the last commit can be torn. If whole commits follow a bad frame, the log is
//! damaged, and those commits were acknowledged.

/// Bytes of the log header.
const HEADER: usize = 32;
/// Bytes of a frame header, which precedes the page.
const FRAME: usize = 24;
/// Magic number of a log. The last bit states the byte order of the checksums.
const MAGIC: u32 = 0x377f_0682;

/// A cumulative checksum.
type Checksum = (u32, u32);

/// A frame: one version of a page.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Page number, from 1.
    pub(crate) page: u32,
    /// Offset of the page in the log.
    pub(crate) at: usize,
    /// True if the checksum is correct.
    pub(crate) is_valid: bool,
    /// True for the last frame of a commit.
    pub(crate) ends_commit: bool,
}

/// A parsed write-ahead log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Page size in bytes.
    pub(crate) page_size: usize,
    /// The frames since the log was last restarted, up to the last valid commit.
    pub(crate) frames: Vec<Frame>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Adds bytes to a cumulative checksum. Their number must be a multiple of eight.
fn extend_checksum(mut sum: Checksum, bytes: &[u8], is_big_endian: bool) -> Checksum {
    let number = |word: &[u8]| {
        let word = word.try_into().unwrap_or_default();
        if is_big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    };
    for pair in bytes.chunks_exact(8) {
        sum.0 = sum.0.wrapping_add(number(&pair[..4])).wrapping_add(sum.1);
        sum.1 = sum.1.wrapping_add(number(&pair[4..])).wrapping_add(sum.0);
    }
    sum
}

/// Returns the frames up to the end of the last commit. `from` has the two possible checksums
/// before the first frame: the stored one and the computed one.
fn frames(bytes: &[u8], has_header: bool, from: [Checksum; 2], is_big_endian: bool, page_size: usize) -> Vec<Frame> {
    let salts_of = |frame: &[u8]| (word(frame, 8), word(frame, 12));
    let parts = bytes[HEADER..].chunks_exact(FRAME + page_size);
    // If the header is damaged, the salts of the second frame are used, because the first frame may
    // be damaged too.
    let salts = match has_header {
        true => (word(bytes, 16), word(bytes, 20)),
        false => parts.clone().take(2).map(salts_of).next_back().unwrap_or_default(),
    };
    let (mut found, mut before) = (Vec::new(), from);
    for (index, part) in parts.enumerate() {
        let stored = (word(part, 16), word(part, 20));
        // The checksum of a frame extends that of the frame before. The stored checksum of that
        // frame may be the damaged part, so the computed one is accepted as well.
        let computed = before.map(|sum| {
            let sum = extend_checksum(sum, &part[..8], is_big_endian);
            extend_checksum(sum, &part[FRAME..], is_big_endian)
        });
        let is_valid = salts_of(part) == salts && computed.contains(&stored) && word(part, 0) > 0;
        before = [stored, computed[0]];
        let at = HEADER + index * (FRAME + page_size) + FRAME;
        found.push(Frame { page: word(part, 0), at, is_valid, ends_commit: word(part, 4) > 0 });
    }
    while found.last().is_some_and(|frame| !(frame.is_valid && frame.ends_commit)) {
        found.pop();
    }
    found
}

impl Log {
    /// Parses a log. `page_size` is the page size of the database, for a log with a damaged header.
    pub(crate) fn read(bytes: &[u8], page_size: usize) -> Log {
        let Some(header) = bytes.get(..HEADER) else { return Log::default() };
        let is_big_endian = word(header, 0) == MAGIC | 1;
        let stored = (word(header, 24), word(header, 28));
        let header_is_valid =
            word(header, 0) | 1 == MAGIC | 1 && extend_checksum((0, 0), &header[..24], is_big_endian) == stored;
        let page_size = if header_is_valid { word(header, 8) as usize } else { page_size };
        if !page_size.is_power_of_two() || !(512..=65_536).contains(&page_size) {
            return Log::default();
        }
        let log = |is_big_endian| {
            let from = [stored, extend_checksum((0, 0), &header[..24], is_big_endian)];
            Log { page_size, frames: frames(bytes, header_is_valid, from, is_big_endian, page_size) }
        };
        if header_is_valid {
            return log(is_big_endian);
        }
        // The header is damaged: use the byte order that gives more valid frames.
        let valid = |log: &Log| log.frames.iter().filter(|frame| frame.is_valid).count();
        let mut log = [log(true), log(false)].into_iter().max_by_key(valid).unwrap_or_default();
        if !log.frames.is_empty() {
            // SQLite ignores the whole log, so the header counts as a bad frame.
            log.frames.insert(0, Frame { page: 0, at: HEADER, is_valid: false, ends_commit: false });
        }
        log
    }

    /// Returns the number of the first bad frame, from 1, if more than one commit follows it.
    /// SQLite would ignore those commits.
    pub(crate) fn damage(&self) -> Option<usize> {
        let bad = self.frames.iter().position(|frame| !frame.is_valid)?;
        let commits = self.frames[bad..].iter().filter(|frame| frame.is_valid && frame.ends_commit).count();
        (commits > 1).then_some(bad + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a log of many commits as a killed process leaves it, and the page size of its file.
    fn log() -> (Vec<u8>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.pragma_update(None, "page_size", 1024).unwrap();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        connection.execute_batch("CREATE TABLE t (v)").unwrap();
        for _ in 0..20 {
            connection.execute("INSERT INTO t VALUES (randomblob(1500))", ()).unwrap();
        }
        (std::fs::read(folder.path().join("x.db-wal")).unwrap(), 1024)
    }

    #[test]
    fn a_truncated_log_is_not_damaged_and_a_log_with_a_flipped_bit_is() {
        let (intact, page) = log();
        let frames = Log::read(&intact, page).frames;
        assert!(frames.len() > 40 && frames.iter().all(|frame| frame.is_valid));
        assert_eq!(Log::read(&intact, page).damage(), None);
        for end in (0..intact.len()).step_by(97) {
            assert_eq!(Log::read(&intact[..end], page).damage(), None, "truncated at {end}");
        }
        // Damage in the last two commits cannot be distinguished from a torn commit.
        let ends: Vec<usize> = frames.iter().filter(|frame| frame.ends_commit).map(|frame| frame.at).collect();
        let known = ends[ends.len() - 3] + page;
        for at in (0..known).step_by(11) {
            let mut flipped = intact.clone();
            flipped[at] ^= 4;
            let log = Log::read(&flipped, page);
            let expected = at.checked_sub(HEADER).map_or(1, |at| at / (FRAME + page) + 1);
            assert_eq!(log.damage(), Some(expected), "at {at}");
            let bad = log.frames.iter().filter(|frame| !frame.is_valid).count();
            assert_eq!(bad, 1, "only the flipped frame is invalid, at {at}");
        }
    }

    #[test]
    fn frames_of_an_earlier_log_are_ignored() {
        let (earlier, page) = log();
        let (mut later, _) = log();
        let length = later.len() / 2;
        later.truncate(length - (length - HEADER) % (FRAME + page));
        later.extend_from_slice(&earlier[later.len()..]);
        assert_eq!(Log::read(&later, page).damage(), None);
    }
}
