//! What SQLite's write-ahead log holds, read from its bytes (<https://sqlite.org/fileformat2.html#walformat>).
//!
//! SQLite takes the log to end at the first frame that does not have its checksum: such a frame is what is left of a commit
//! that was under way when the machine stopped. It does not look at what comes after. Each commit waits until it is on disk
//! before the next one is begun, so at most the last one can be torn: where whole commits follow a bad frame, the log is
//! damaged, and what follows was acknowledged.

/// Bytes before the first frame.
const HEADER: usize = 32;
/// Bytes of a frame before its page.
const FRAME: usize = 24;
/// How a log begins; the last bit says in which order octets are summed up.
const MAGIC: u32 = 0x377f_0682;

/// A running checksum.
type Sum = (u32, u32);

/// A page in the log.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Number of the page.
    pub(crate) page: u32,
    /// Where its bytes begin in the log.
    pub(crate) at: usize,
    /// Whether it has its checksum.
    pub(crate) is_sound: bool,
    /// Whether it is the last one of a commit.
    pub(crate) ends_commit: bool,
}

/// A log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Bytes of a page.
    pub(crate) page_size: usize,
    /// The frames that were written since it last began anew.
    pub(crate) frames: Vec<Frame>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Goes on with a checksum over some eights of octets.
fn summed(mut sum: Sum, bytes: &[u8], is_big_endian: bool) -> Sum {
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

/// The frames up to the end of the last commit. `from`: what the first one goes on with, as it is written and as it is worked out.
fn frames(bytes: &[u8], has_header: bool, from: [Sum; 2], is_big_endian: bool, page_size: usize) -> Vec<Frame> {
    let salts_of = |frame: &[u8]| (word(frame, 8), word(frame, 12));
    let parts = bytes[HEADER..].chunks_exact(FRAME + page_size);
    // Without a header: what the second frame has.
    let salts = match has_header {
        true => (word(bytes, 16), word(bytes, 20)),
        false => parts.clone().take(2).map(salts_of).next_back().unwrap_or_default(),
    };
    let (mut found, mut before) = (Vec::new(), from);
    for (index, part) in parts.enumerate() {
        let stored = (word(part, 16), word(part, 20));
        // A frame goes on with the checksum of the one before: that is looked up there, and worked out anew in case it is what
        // was damaged.
        let worked_out = before.map(|sum| {
            let sum = summed(sum, &part[..8], is_big_endian);
            summed(sum, &part[FRAME..], is_big_endian)
        });
        let is_sound = salts_of(part) == salts && worked_out.contains(&stored) && word(part, 0) > 0;
        before = [stored, worked_out[0]];
        let at = HEADER + index * (FRAME + page_size) + FRAME;
        found.push(Frame { page: word(part, 0), at, is_sound, ends_commit: word(part, 4) > 0 });
    }
    while found.last().is_some_and(|frame| !(frame.is_sound && frame.ends_commit)) {
        found.pop();
    }
    found
}

impl Log {
    /// Reads a log. `page_size` is that of the file, for a log whose own header is damaged.
    pub(crate) fn read(bytes: &[u8], page_size: usize) -> Log {
        let Some(header) = bytes.get(..HEADER) else { return Log::default() };
        let is_big_endian = word(header, 0) == MAGIC | 1;
        let stored = (word(header, 24), word(header, 28));
        let is_whole = word(header, 0) | 1 == MAGIC | 1 && summed((0, 0), &header[..24], is_big_endian) == stored;
        let page_size = if is_whole { word(header, 8) as usize } else { page_size };
        if !page_size.is_power_of_two() || !(512..=65_536).contains(&page_size) {
            return Log::default();
        }
        let log = |is_big_endian| {
            let from = [stored, summed((0, 0), &header[..24], is_big_endian)];
            Log { page_size, frames: frames(bytes, is_whole, from, is_big_endian, page_size) }
        };
        if is_whole {
            return log(is_big_endian);
        }
        // Which order it is in is known by what comes of it.
        let sound = |log: &Log| log.frames.iter().filter(|frame| frame.is_sound).count();
        let mut log = [log(true), log(false)].into_iter().max_by_key(sound).unwrap_or_default();
        if !log.frames.is_empty() {
            // SQLite does not take any of it.
            log.frames.insert(0, Frame { page: 0, at: HEADER, is_sound: false, ends_commit: false });
        }
        log
    }

    /// The first frame that is damaged, counted from 1: more than one commit follows it, of which SQLite would know nothing.
    pub(crate) fn damage(&self) -> Option<usize> {
        let bad = self.frames.iter().position(|frame| !frame.is_sound)?;
        let commits = self.frames[bad..].iter().filter(|frame| frame.is_sound && frame.ends_commit).count();
        (commits > 1).then_some(bad + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of many commits, as it is after a kill, and its file's page size.
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
    fn a_log_that_was_cut_off_is_torn_and_one_with_a_flipped_bit_is_damaged() {
        let (whole, page) = log();
        let frames = Log::read(&whole, page).frames;
        assert!(frames.len() > 40 && frames.iter().all(|frame| frame.is_sound));
        assert_eq!(Log::read(&whole, page).damage(), None);
        for end in (0..whole.len()).step_by(97) {
            assert_eq!(Log::read(&whole[..end], page).damage(), None, "cut off at {end}");
        }
        // In what follows the last two commits there is nothing that shows it.
        let ends: Vec<usize> = frames.iter().filter(|frame| frame.ends_commit).map(|frame| frame.at).collect();
        let known = ends[ends.len() - 3] + page;
        for at in (0..known).step_by(11) {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            let log = Log::read(&flipped, page);
            let expected = at.checked_sub(HEADER).map_or(1, |at| at / (FRAME + page) + 1);
            assert_eq!(log.damage(), Some(expected), "at {at}");
            let bad = log.frames.iter().filter(|frame| !frame.is_sound).count();
            assert_eq!(bad, 1, "the others are known to be sound, at {at}");
        }
    }

    #[test]
    fn what_is_left_of_an_earlier_log_is_not_read() {
        let (earlier, page) = log();
        let (mut later, _) = log();
        let length = later.len() / 2;
        later.truncate(length - (length - HEADER) % (FRAME + page));
        later.extend_from_slice(&earlier[later.len()..]);
        assert_eq!(Log::read(&later, page).damage(), None);
    }
}
