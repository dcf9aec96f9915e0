//! The rows in a damaged file, read from its pages and those of SQLite's log without SQLite, which gives up at the first page
//! that does not hang together with the others (<https://sqlite.org/fileformat2.html>).
//!
//! Rows are in the leaves of a table's tree, and each can be checked by itself: so neither the inner pages of the tree are
//! needed nor the order of the leaves. Leaves that were given back hold rows that are gone; SQLite lists them.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{Totals, check_object, check_unsummed, sum_of};
use crate::wal::Log;

/// Type of a page with rows of a table.
const LEAF: u8 = 13;
/// Bytes of the file's header, before the first page's own.
const FILE_HEADER: usize = 100;
/// Bytes of a leaf's header.
const LEAF_HEADER: usize = 8;
/// Largest row that is believed: far above what a request may bring.
const ROW_MAX: usize = 256 * 1024 * 1024;

/// A write that was found whole.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) key: String,
    pub(crate) value: Option<Vec<u8>>,
}

/// A row that is not what was written.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    /// Its key, if that can be read.
    pub(crate) key: Option<String>,
    pub(crate) what: String,
}

/// What is left of a file.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    /// By revision.
    pub(crate) sound: BTreeMap<u64, Found>,
    pub(crate) broken: BTreeMap<u64, Broken>,
    /// What the rows must add up to, as the latest place says that was found.
    pub(crate) totals: Option<Totals>,
    /// Pages with rows of which not all could be found.
    pub(crate) torn_pages: usize,
}

/// The pages of a file and of its log.
struct Pages<'a> {
    file: &'a [u8],
    log_bytes: &'a [u8],
    size: usize,
    /// Bytes of a page that are used.
    usable: usize,
    /// Where in the log the last sound version of a page is.
    newest: BTreeMap<u32, usize>,
    /// Where in the log a damaged version of a page is that is newer than all others.
    suspect: BTreeMap<u32, usize>,
    count: u32,
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + length)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// A number of one to nine octets; with how many it took.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0u64;
    for (index, byte) in bytes.iter().take(9).enumerate() {
        if index == 8 {
            return Some((number << 8 | u64::from(*byte), 9));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

/// A value of a row.
enum Cell<'a> {
    Null,
    Number(u64),
    Text(&'a [u8]),
    Blob(&'a [u8]),
}

/// The values of a row.
fn cells(record: &[u8]) -> Option<Vec<Cell<'_>>> {
    let (header, mut at) = varint(record)?;
    let header = usize::try_from(header).ok().filter(|header| *header <= record.len())?;
    let (mut body, mut cells) = (header, Vec::new());
    while at < header {
        let (kind, length) = varint(&record[at..header])?;
        at += length;
        let length = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => usize::try_from((kind - 12) / 2).ok()?,
        };
        let bytes = record.get(body..body.checked_add(length)?)?;
        body += length;
        cells.push(match kind {
            0 => Cell::Null,
            1..=6 => Cell::Number(number(bytes, 0, length)? as u64),
            8 => Cell::Number(0),
            9 => Cell::Number(1),
            7 => return None,
            _ if kind % 2 == 0 => Cell::Blob(bytes),
            _ => Cell::Text(bytes),
        });
    }
    Some(cells)
}

/// Finds the rows in the bytes of a file and of its log.
pub(crate) fn remains(file: &[u8], log_bytes: &[u8], page_size_else: usize) -> Remains {
    let stated = match number(file, 16, 2) {
        Some(1) => 65_536,
        size => size.unwrap_or_default(),
    };
    let is_size = |size: usize| size.is_power_of_two() && (512..=65_536).contains(&size);
    let guess = if is_size(stated) { stated } else { page_size_else };
    let log = Log::read(log_bytes, guess);
    // Its own checksum vouches for what the log says.
    let size = if is_size(log.page_size) { log.page_size } else { guess };
    let mut pages = Pages {
        file,
        log_bytes,
        size,
        usable: size,
        newest: BTreeMap::new(),
        suspect: BTreeMap::new(),
        count: u32::try_from(file.len().div_ceil(size)).unwrap_or(u32::MAX),
    };
    for frame in log.frames.iter().filter(|frame| frame.page > 0) {
        if frame.is_sound {
            pages.suspect.remove(&frame.page);
            pages.newest.insert(frame.page, frame.at);
            pages.count = pages.count.max(frame.page);
        } else {
            pages.suspect.insert(frame.page, frame.at);
        }
    }
    if let Some(reserved) = pages.page(1).and_then(|page| page.get(20)) {
        pages.usable = size.saturating_sub(usize::from(*reserved)).max(480);
    }
    pages.read()
}

impl<'a> Pages<'a> {
    fn in_log(&self, at: usize) -> Option<&'a [u8]> {
        self.log_bytes.get(at..at + self.size)
    }

    /// The last sound version of a page.
    fn page(&self, page: u32) -> Option<&'a [u8]> {
        match self.newest.get(&page) {
            Some(at) => self.in_log(*at),
            None => {
                let at = (page as usize).checked_sub(1)? * self.size;
                self.file.get(at..at + self.size)
            }
        }
    }

    fn read(&self) -> Remains {
        let mut remains = Remains::default();
        let unused = self.unused();
        for page in (1..=self.count).filter(|page| !unused.contains(page)) {
            let suspect = self.suspect.get(&page).and_then(|at| self.in_log(*at));
            // A row that the newer version no longer has was removed; one that is broken there may be sound in the older.
            let wanted = suspect.and_then(|bytes| self.leaf(page, bytes, None, &mut remains));
            if let Some(bytes) = self.page(page) {
                self.leaf(page, bytes, wanted.as_ref(), &mut remains);
            }
        }
        let sound = &remains.sound;
        remains.broken.retain(|revision, _| !sound.contains_key(revision));
        remains
    }

    /// Pages that are not in use.
    fn unused(&self) -> BTreeSet<u32> {
        let mut unused = BTreeSet::new();
        let Some(first) = self.page(1) else { return unused };
        let mut trunk = number(first, 32, 4).unwrap_or_default() as u32;
        while trunk > 0 && trunk <= self.count && unused.insert(trunk) {
            let Some(page) = self.page(trunk) else { break };
            let leaves = number(page, 4, 4).unwrap_or_default().min(self.usable / 4 - 2);
            let leaves = (0..leaves).filter_map(|leaf| number(page, 8 + 4 * leaf, 4));
            unused.extend(leaves.map(|leaf| leaf as u32));
            trunk = number(page, 0, 4).unwrap_or_default() as u32;
        }
        unused
    }

    /// Takes the rows of a page, if it is one with rows: all, or those wanted. Returns which it has.
    fn leaf(
        &self,
        page: u32,
        bytes: &'a [u8],
        wanted: Option<&BTreeSet<u64>>,
        remains: &mut Remains,
    ) -> Option<BTreeSet<u64>> {
        let start = if page == 1 { FILE_HEADER } else { 0 };
        if bytes.get(start) != Some(&LEAF) {
            return None;
        }
        let (mut had, mut is_torn) = (BTreeSet::new(), false);
        for index in 0..number(bytes, start + 3, 2)?.min(self.usable / 2) {
            let row = number(bytes, start + LEAF_HEADER + 2 * index, 2).and_then(|at| self.row(bytes, at));
            let Some((revision, record)) = row else {
                is_torn = true;
                continue;
            };
            had.insert(revision);
            if wanted.is_none_or(|wanted| wanted.contains(&revision)) {
                remains.take(revision, &record);
            }
        }
        remains.torn_pages += usize::from(is_torn);
        (!is_torn).then_some(had)
    }

    /// The row at a place of a page: its number, and its values in one piece, some of which may be on other pages.
    fn row(&self, bytes: &'a [u8], at: usize) -> Option<(u64, Vec<u8>)> {
        let (length, taken) = varint(bytes.get(at..)?)?;
        let (revision, taken_too) = varint(bytes.get(at + taken..)?)?;
        let (length, from) = (usize::try_from(length).ok().filter(|length| *length < ROW_MAX)?, at + taken + taken_too);
        let most = self.usable - 35;
        let least = (self.usable - 12) * 32 / 255 - 23;
        if length <= most {
            return Some((revision, bytes.get(from..from + length)?.to_vec()));
        }
        let here = least + (length - least) % (self.usable - 4);
        let here = if here <= most { here } else { least };
        let mut record = bytes.get(from..from + here)?.to_vec();
        let mut next = number(bytes, from + here, 4)?;
        while record.len() < length {
            // What is missing is noticed by what is left.
            let Some(page) = u32::try_from(next).ok().and_then(|next| self.overflow(next)) else { break };
            let part = (length - record.len()).min(self.usable - 4);
            record.extend_from_slice(page.get(4..4 + part)?);
            next = number(page, 0, 4)?;
        }
        Some((revision, record))
    }

    /// A page with more of a row: the damaged version, if that is the newest. Whether it fits shows by the row's checksum.
    fn overflow(&self, page: u32) -> Option<&'a [u8]> {
        match self.suspect.get(&page) {
            Some(at) => self.in_log(*at),
            None => self.page(page),
        }
    }
}

/// What a row says, if it is of one of the tables.
enum Said<'a> {
    Write { key: &'a [u8], value: Option<&'a [u8]>, sum: Option<u64>, totals: Option<&'a [u8]> },
    Base(&'a [u8]),
}

fn said(record: &[u8]) -> Option<Said<'_>> {
    let blob = |cell: &Cell<'_>| matches!(cell, Cell::Blob(_) | Cell::Null);
    match cells(record)?.as_slice() {
        [Cell::Null, Cell::Text(key), value, Cell::Number(sum), totals] if blob(value) && blob(totals) => {
            Some(Said::Write { key, value: as_blob(value), sum: Some(*sum), totals: as_blob(totals) })
        }
        [Cell::Null, Cell::Text(key), value] if blob(value) => {
            Some(Said::Write { key, value: as_blob(value), sum: None, totals: None })
        }
        [Cell::Null, Cell::Blob(totals)] => Some(Said::Base(totals)),
        _ => None,
    }
}

fn as_blob<'a>(cell: &Cell<'a>) -> Option<&'a [u8]> {
    match cell {
        Cell::Blob(bytes) => Some(bytes),
        _ => None,
    }
}

impl Remains {
    /// Takes a row if it is what was written; returns what is wrong with it if not. A row of another table is neither.
    fn take_sound(&mut self, revision: u64, record: &[u8]) -> Option<Broken> {
        let (key, value, sum, totals) = match said(record)? {
            Said::Base(totals) => {
                self.add_up_to(Totals::decode(totals), true);
                return None;
            }
            Said::Write { key, value, sum, totals } => (key, value, sum, totals),
        };
        let broken = |key: Option<&str>, what: String| Some(Broken { key: key.map(str::to_owned), what });
        let Ok(key) = std::str::from_utf8(key) else { return broken(None, "its key is not a text".to_owned()) };
        if i64::try_from(revision).is_err() || revision == 0 {
            return broken(Some(key), "its revision is none".to_owned());
        }
        if sum.is_some_and(|sum| sum != u64::from(sum_of(revision, key, value))) {
            return broken(Some(key), "it does not have its checksum".to_owned());
        }
        let check = if sum.is_some() { check_object } else { check_unsummed };
        if let Some(Err(what)) = value.map(|value| check(key, revision, value)) {
            return broken(Some(key), format!("it {what}"));
        }
        if let Some(totals) = totals {
            self.add_up_to(Totals::decode(totals).filter(|totals| totals.revision == revision), false);
        }
        self.sound.insert(revision, Found { key: key.to_owned(), value: value.map(<[u8]>::to_vec) });
        None
    }

    fn take(&mut self, revision: u64, record: &[u8]) {
        if let Some(broken) = self.take_sound(revision, record) {
            self.broken.insert(revision, broken);
        }
    }

    /// The latest counts; the base of a file where no row is later.
    fn add_up_to(&mut self, totals: Option<Totals>, is_base: bool) {
        let known = self.totals.map(|known| known.revision);
        let counts = |totals: &Totals| known.is_none_or(|known| known < totals.revision + u64::from(is_base));
        if let Some(totals) = totals.filter(counts) {
            self.totals = Some(totals);
        }
    }
}
