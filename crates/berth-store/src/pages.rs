//! Reads the rows of a damaged file from its pages and from those of SQLite's log, without SQLite,
//! which stops at the first inconsistent page (<https://sqlite.org/fileformat2.html>).
//!
//! Rows are in the leaf pages of a table's B-tree, and each row can be checked by itself. So
//! neither the interior pages nor the order of the leaves is needed. Free leaf pages have deleted
//! rows; SQLite lists these pages.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{Totals, check_object, check_unsummed, sum_of};
use crate::wal::Log;

/// Page type of a table leaf.
const LEAF: u8 = 13;
/// Bytes of the file header, which precedes the page header on the first page.
const FILE_HEADER: usize = 100;
/// Bytes of a leaf page's header.
const LEAF_HEADER: usize = 8;
/// Maximum plausible size of a row, far above the limit of a request.
const ROW_MAX: usize = 256 * 1024 * 1024;

/// An intact row.
#[derive(Clone, Debug)]
pub(crate) struct IntactRow {
    pub(crate) key: String,
    pub(crate) value: Option<Vec<u8>>,
}

/// A damaged row.
#[derive(Clone, Debug)]
pub(crate) struct DamagedRow {
    /// The key, if it can be read.
    pub(crate) key: Option<String>,
    pub(crate) problem: String,
}

/// The rows that were found in a file.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    /// Intact rows by revision.
    pub(crate) intact: BTreeMap<u64, IntactRow>,
    pub(crate) damaged_rows: BTreeMap<u64, DamagedRow>,
    /// The totals of the latest revision that were found.
    pub(crate) totals: Option<Totals>,
    /// Number of leaf pages of which some rows could not be read.
    pub(crate) torn_pages: usize,
}

/// The pages of a file and of its log.
struct Pages<'a> {
    file: &'a [u8],
    log_bytes: &'a [u8],
    size: usize,
    /// Usable bytes of a page.
    usable: usize,
    /// Offset in the log of the last valid version of a page.
    newest: BTreeMap<u32, usize>,
    /// Offset in the log of a damaged version of a page that is newer than all valid ones.
    suspect: BTreeMap<u32, usize>,
    count: u32,
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + length)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// Parses a SQLite varint of one to nine bytes. Returns the number and its length.
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

/// A column value of a row.
enum Cell<'a> {
    Null,
    Number(u64),
    Text(&'a [u8]),
    Blob(&'a [u8]),
}

/// Returns the column values of a record; `None` if it is malformed.
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

/// Finds the rows in the bytes of a file and of its log. `default_page_size` is for a file whose
/// header is damaged.
pub(crate) fn salvage(file: &[u8], log_bytes: &[u8], default_page_size: usize) -> Salvaged {
    let stated = match number(file, 16, 2) {
        Some(1) => 65_536,
        size => size.unwrap_or_default(),
    };
    let is_size = |size: usize| size.is_power_of_two() && (512..=65_536).contains(&size);
    let guess = if is_size(stated) { stated } else { default_page_size };
    let log = Log::read(log_bytes, guess);
    // The page size in the log is protected by a checksum, unlike that of the file.
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
        if frame.is_valid {
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

    /// Returns the last valid version of a page.
    fn page(&self, page: u32) -> Option<&'a [u8]> {
        match self.newest.get(&page) {
            Some(at) => self.in_log(*at),
            None => {
                let at = (page as usize).checked_sub(1)? * self.size;
                self.file.get(at..at + self.size)
            }
        }
    }

    fn read(&self) -> Salvaged {
        let mut salvaged = Salvaged::default();
        let free = self.free();
        for page in (1..=self.count).filter(|page| !free.contains(page)) {
            let suspect = self.suspect.get(&page).and_then(|at| self.in_log(*at));
            // Rows that the newer version lacks were deleted. Rows that are damaged in the newer
            // version may be intact in the older.
            let wanted = suspect.and_then(|bytes| self.leaf(page, bytes, None, &mut salvaged));
            if let Some(bytes) = self.page(page) {
                self.leaf(page, bytes, wanted.as_ref(), &mut salvaged);
            }
        }
        let intact = &salvaged.intact;
        salvaged.damaged_rows.retain(|revision, _| !intact.contains_key(revision));
        salvaged
    }

    /// Returns the free pages.
    fn free(&self) -> BTreeSet<u32> {
        let mut free = BTreeSet::new();
        let Some(first) = self.page(1) else { return free };
        let mut trunk = number(first, 32, 4).unwrap_or_default() as u32;
        while trunk > 0 && trunk <= self.count && free.insert(trunk) {
            let Some(page) = self.page(trunk) else { break };
            let leaves = number(page, 4, 4).unwrap_or_default().min(self.usable / 4 - 2);
            let leaves = (0..leaves).filter_map(|leaf| number(page, 8 + 4 * leaf, 4));
            free.extend(leaves.map(|leaf| leaf as u32));
            trunk = number(page, 0, 4).unwrap_or_default() as u32;
        }
        free
    }

    /// Collects the rows of a page if it is a leaf: all rows, or the `wanted` ones. Returns the
    /// revisions of its rows, or `None` if it is no leaf or incomplete.
    fn leaf(
        &self,
        page: u32,
        bytes: &'a [u8],
        wanted: Option<&BTreeSet<u64>>,
        salvaged: &mut Salvaged,
    ) -> Option<BTreeSet<u64>> {
        let start = if page == 1 { FILE_HEADER } else { 0 };
        if bytes.get(start) != Some(&LEAF) {
            return None;
        }
        let (mut revisions, mut is_torn) = (BTreeSet::new(), false);
        for index in 0..number(bytes, start + 3, 2)?.min(self.usable / 2) {
            let row = number(bytes, start + LEAF_HEADER + 2 * index, 2).and_then(|at| self.row(bytes, at));
            let Some((revision, record)) = row else {
                is_torn = true;
                continue;
            };
            revisions.insert(revision);
            if wanted.is_none_or(|wanted| wanted.contains(&revision)) {
                salvaged.add(revision, &record);
            }
        }
        salvaged.torn_pages += usize::from(is_torn);
        (!is_torn).then_some(revisions)
    }

    /// Returns the rowid and the record of the row at an offset of a page. Long records continue on
    /// overflow pages.
    fn row(&self, bytes: &'a [u8], at: usize) -> Option<(u64, Vec<u8>)> {
        let (length, taken) = varint(bytes.get(at..)?)?;
        let (revision, taken_by_revision) = varint(bytes.get(at + taken..)?)?;
        let (length, from) =
            (usize::try_from(length).ok().filter(|length| *length < ROW_MAX)?, at + taken + taken_by_revision);
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
            // A truncated record fails its checksum.
            let Some(page) = u32::try_from(next).ok().and_then(|next| self.overflow(next)) else { break };
            let part = (length - record.len()).min(self.usable - 4);
            record.extend_from_slice(page.get(4..4 + part)?);
            next = number(page, 0, 4)?;
        }
        Some((revision, record))
    }

    /// Returns an overflow page: the damaged version if that is the newest. The checksum of the row
    /// shows whether it is intact.
    fn overflow(&self, page: u32) -> Option<&'a [u8]> {
        match self.suspect.get(&page) {
            Some(at) => self.in_log(*at),
            None => self.page(page),
        }
    }
}

/// The content of a row, by table.
enum RowContent<'a> {
    Write { key: &'a [u8], value: Option<&'a [u8]>, sum: Option<u64>, totals: Option<&'a [u8]> },
    Base(&'a [u8]),
}

/// Parses a record; `None` if it does not belong to a table of the store.
fn row_content(record: &[u8]) -> Option<RowContent<'_>> {
    let blob = |cell: &Cell<'_>| matches!(cell, Cell::Blob(_) | Cell::Null);
    match cells(record)?.as_slice() {
        [Cell::Null, Cell::Text(key), value, Cell::Number(sum), totals] if blob(value) && blob(totals) => {
            Some(RowContent::Write { key, value: as_blob(value), sum: Some(*sum), totals: as_blob(totals) })
        }
        [Cell::Null, Cell::Text(key), value] if blob(value) => {
            Some(RowContent::Write { key, value: as_blob(value), sum: None, totals: None })
        }
        [Cell::Null, Cell::Blob(totals)] => Some(RowContent::Base(totals)),
        _ => None,
    }
}

fn as_blob<'a>(cell: &Cell<'a>) -> Option<&'a [u8]> {
    match cell {
        Cell::Blob(bytes) => Some(bytes),
        _ => None,
    }
}

impl Salvaged {
    /// Adds a row if it is intact. Returns a description of the damage otherwise. Rows of other
    /// tables are ignored.
    fn add_intact(&mut self, revision: u64, record: &[u8]) -> Option<DamagedRow> {
        let (key, value, sum, totals) = match row_content(record)? {
            RowContent::Base(totals) => {
                self.update_totals(Totals::decode(totals), true);
                return None;
            }
            RowContent::Write { key, value, sum, totals } => (key, value, sum, totals),
        };
        let damaged_row =
            |key: Option<&str>, problem: String| Some(DamagedRow { key: key.map(str::to_owned), problem });
        let Ok(key) = std::str::from_utf8(key) else { return damaged_row(None, "its key is not text".to_owned()) };
        if i64::try_from(revision).is_err() || revision == 0 {
            return damaged_row(Some(key), "its revision is invalid".to_owned());
        }
        if sum.is_some_and(|sum| sum != u64::from(sum_of(revision, key, value))) {
            return damaged_row(Some(key), "it has a wrong checksum".to_owned());
        }
        let check = if sum.is_some() { check_object } else { check_unsummed };
        if let Some(Err(problem)) = value.map(|value| check(key, revision, value)) {
            return damaged_row(Some(key), format!("it {problem}"));
        }
        if let Some(totals) = totals {
            self.update_totals(Totals::decode(totals).filter(|totals| totals.revision == revision), false);
        }
        self.intact.insert(revision, IntactRow { key: key.to_owned(), value: value.map(<[u8]>::to_vec) });
        None
    }

    fn add(&mut self, revision: u64, record: &[u8]) {
        if let Some(damaged_rows) = self.add_intact(revision, record) {
            self.damaged_rows.insert(revision, damaged_rows);
        }
    }

    /// Keeps the totals of the latest revision. At the same revision those of table `base` take
    /// precedence.
    fn update_totals(&mut self, totals: Option<Totals>, is_base: bool) {
        let known = self.totals.map(|known| known.revision);
        let is_newer = |totals: &Totals| known.is_none_or(|known| known < totals.revision + u64::from(is_base));
        if let Some(totals) = totals.filter(is_newer) {
            self.totals = Some(totals);
        }
    }
}
