//! Draws the model of `berth top` into a buffer of cells. Meaning is never carried by a color
//! alone: states are words, bars have a character for each part, and the selected row is reversed.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::model::{Mode, Model, Page, TablePage, TextPage};
use super::sheet::{Bar, Cell, Tone};
use crate::listing::Column;

/// Minimum width of a shrunk column.
const COLUMN_MIN: usize = 6;
/// Minimum and maximum width of a bar.
const BAR_WIDTH: (usize, usize) = (8, 32);
/// Maximum number of lines for notices above a table.
const NOTICE_LINES_MAX: usize = 4;

/// Characters and colors that the terminal has.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// False if the user asked for no colors (NO_COLOR).
    pub has_color: bool,
    /// False if the terminal shows ASCII only.
    pub has_unicode: bool,
}

impl Look {
    fn tone(self, tone: Tone) -> Style {
        let style = Style::new();
        match (tone, self.has_color) {
            (Tone::Plain, _) => style,
            (Tone::Good, true) => style.fg(Color::Green),
            (Tone::Wait, true) => style.fg(Color::Yellow),
            (Tone::Bad, true) => style.fg(Color::Red),
            (Tone::Quiet, true) => style.fg(Color::DarkGray),
            (Tone::Group, true) => style.fg(Color::Cyan).add_modifier(Modifier::BOLD),
            (Tone::Bad | Tone::Group, false) => style.add_modifier(Modifier::BOLD),
            (Tone::Quiet, false) => style.add_modifier(Modifier::DIM),
            (Tone::Good | Tone::Wait, false) => style,
        }
    }

    fn heading(self) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        if self.has_color { bold.fg(Color::Cyan) } else { bold }
    }

    fn warning(self) -> Style {
        self.tone(Tone::Bad)
    }

    /// A bar: own use, borrowed use, and the rest.
    fn bar(self, bar: Bar, width: usize) -> String {
        let [own, borrowed, rest] = if self.has_unicode { ["█", "▒", "·"] } else { ["#", "+", "."] };
        let (owns, borrows) = bar.parts(width);
        let rests = width.saturating_sub(owns + borrows);
        format!("{}{}{}", own.repeat(owns), borrowed.repeat(borrows), rest.repeat(rests))
    }

    fn dots(self) -> char {
        if self.has_unicode { '…' } else { '~' }
    }
}

/// Draws the model. Returns the position of the cursor while a text is typed.
pub fn draw(model: &mut Model, look: Look, area: Rect, buffer: &mut Buffer) -> Option<Position> {
    if area.width == 0 || area.height == 0 {
        return None;
    }
    let mut screen = Screen { look, area, buffer, line: 0 };
    screen.head(model);
    let body = usize::from(area.height).saturating_sub(usize::from(screen.line) + 1);
    let height = match model.page_mut() {
        Page::Table(table) => screen.table(table, body),
        Page::Text(text) => screen.text(text, body),
    };
    model.height = height;
    screen.foot(model)
}

/// The screen, and the next line to draw.
struct Screen<'a> {
    look: Look,
    area: Rect,
    buffer: &'a mut Buffer,
    line: u16,
}

impl Screen<'_> {
    fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    /// Draws a line, cut at the width of the screen.
    fn put(&mut self, text: &str, style: Style) {
        if self.line < self.area.height {
            let y = self.area.y + self.line;
            self.buffer.set_stringn(self.area.x, y, clean(text), self.width(), style);
        }
        self.line += 1;
    }

    /// Two texts at both ends of a line. The second one is left out if there is no room.
    fn put_both(&mut self, left: &str, right: &str, style: Style) {
        let (used, room) = (width_of(left) + width_of(right) + 2, self.width());
        let line = match used <= room {
            true => format!("{left}{}{right}", " ".repeat(room - used + 2)),
            false => left.to_owned(),
        };
        self.put(&line, style);
    }

    fn head(&mut self, model: &Model) {
        let heading = self.look.heading();
        self.put_both(&format!("berth top  {}", model.cluster), &model.time, heading);
        let summary = shortened(&model.summary, self.width(), self.look.dots());
        self.put(&summary, Style::new());
    }

    /// Draws a table. Returns the number of its rows on the screen.
    fn table(&mut self, table: &mut TablePage, lines: usize) -> usize {
        let position = if table.shown.is_empty() { 0 } else { table.selected + 1 };
        let mut title = format!("{}({})[{}]", table.view().name(), table.scope.title(), table.shown.len());
        if !table.filter.text.is_empty() {
            title.push_str(&format!(" /{}", table.filter.text));
        }
        if let Some(sort) = table.sort {
            let order = if sort.is_descending { "down" } else { "up" };
            title.push_str(&format!(" by {} {order}", sort.column.to_lowercase()));
        }
        self.put_both(&title, &format!("{position}/{}", table.shown.len()), self.look.heading());
        let notices = table.sheet.notices.iter().flat_map(|notice| wrapped(notice, self.width()));
        let notices: Vec<String> = notices.take(NOTICE_LINES_MAX).collect();
        for notice in &notices {
            self.put(notice, self.look.warning());
        }
        if table.shown.is_empty() {
            let is_filtered = !table.sheet.rows.is_empty();
            // A notice says why there are no rows.
            if is_filtered {
                self.put("No row matches the filter; esc clears it.", Style::new());
            } else if notices.is_empty() {
                self.put(&table.sheet.if_empty.clone(), Style::new());
            }
            return 1;
        }
        let height = lines.saturating_sub(notices.len() + 2).max(1);
        table.top = table.top.min(table.selected).max((table.selected + 1).saturating_sub(height));
        // Without gaps at the end: the last screen is full.
        table.top = table.top.min(table.shown.len().saturating_sub(height));
        let layout = Layout::of(table, self.width(), self.look);
        self.put(&layout.titles(), self.look.heading());
        for (place, at) in table.shown.iter().enumerate().skip(table.top).take(height) {
            let row = &table.sheet.rows[*at];
            let mut style = self.look.tone(row.tone);
            if place == table.selected {
                style = style.add_modifier(Modifier::REVERSED);
            }
            let line = layout.line(&row.cells);
            // The selection is as wide as the screen.
            let line = if place == table.selected { padded(&line, self.width()) } else { line };
            self.put(&line, style);
        }
        height
    }

    /// Draws a text. Returns the number of its lines on the screen.
    fn text(&mut self, page: &mut TextPage, lines: usize) -> usize {
        let text = page.text.as_deref().unwrap_or("Loading…");
        let wrapped: Vec<String> = text.lines().flat_map(|line| wrapped(line, self.width())).collect();
        let height = lines.saturating_sub(1).max(1);
        page.top = page.top.min(wrapped.len().saturating_sub(height));
        let last = (page.top + height).min(wrapped.len());
        let place = format!("{}-{last}/{}", (page.top + 1).min(wrapped.len()), wrapped.len());
        self.put_both(&page.title, &place, self.look.heading());
        for line in wrapped.iter().skip(page.top).take(height) {
            self.put(line, Style::new());
        }
        height
    }

    /// Draws the last line: what is typed, a message, or the main keys.
    fn foot(&mut self, model: &Model) -> Option<Position> {
        self.line = self.area.height - 1;
        let prompt = match &model.mode {
            Mode::Keys => None,
            Mode::Command(text) => Some(format!(":{text}")),
            Mode::Filter(text) => Some(format!("/{text}")),
        };
        if let Some(prompt) = prompt {
            // The end of a long text is shown, with the cursor.
            let skipped = prompt.chars().count().saturating_sub(self.width().saturating_sub(1));
            let shown: String = prompt.chars().skip(skipped).collect();
            let x = self.area.x + u16::try_from(width_of(&shown)).unwrap_or(0).min(self.area.width - 1);
            let position = Position { x, y: self.area.y + self.line };
            self.put(&shown, Style::new().add_modifier(Modifier::BOLD));
            return Some(position);
        }
        if !model.message.is_empty() {
            self.put(&model.message, self.look.warning());
            return None;
        }
        let keys = match model.page() {
            Page::Table(_) => ": view   / filter   enter open   e explain   t history   ? help   q quit",
            Page::Text(_) => "esc back   j k scroll   : view   ? help   q quit",
        };
        self.put(keys, self.look.tone(Tone::Quiet));
        None
    }
}

/// Widths of the shown columns of a table.
struct Layout {
    /// Index, title and width of each column.
    columns: Vec<(usize, &'static str, usize)>,
    gap: usize,
    look: Look,
}

impl Layout {
    /// Chooses columns and widths. Usual columns are shown, and further ones while there is room.
    /// Columns are shrunk, the widest first; the last ones are left out if that does not suffice.
    fn of(table: &TablePage, width: usize, look: Look) -> Self {
        let sheet = &table.sheet;
        let natural = |at: usize, title: &str| {
            let cells = table.shown.iter().filter_map(|row| sheet.rows[*row].cells.get(at));
            let widths = cells.map(|cell| match cell {
                Cell::Text(text) => width_of(text),
                Cell::Bar(_) => BAR_WIDTH.0,
            });
            widths.max().unwrap_or(0).max(width_of(title))
        };
        let gap = if width < 100 { 1 } else { 2 };
        let total = |columns: &[(usize, &str, usize)]| {
            columns.iter().map(|(_, _, width)| width + gap).sum::<usize>().saturating_sub(gap)
        };
        let mut columns = Vec::new();
        for (at, column) in sheet.columns.iter().enumerate() {
            let next = (at, column.name(), natural(at, column.name()));
            columns.push(next);
            if matches!(column, Column::Wide(_)) && !table.is_wide && total(&columns) > width {
                columns.pop();
                break;
            }
        }
        let bar = sheet.rows.first().and_then(|row| row.cells.iter().position(|cell| matches!(cell, Cell::Bar(_))));
        while total(&columns) > width {
            let shrinkable = (0..columns.len()).filter(|at| Some(columns[*at].0) != bar && columns[*at].2 > COLUMN_MIN);
            match shrinkable.max_by_key(|at| columns[*at].2) {
                Some(widest) => columns[widest].2 -= 1,
                None if columns.len() > 1 => drop(columns.pop()),
                None => break,
            }
        }
        // A bar takes a part of the room that is left.
        let room = width.saturating_sub(total(&columns)) / 2;
        if let Some((_, _, width)) = columns.iter_mut().find(|(at, _, _)| Some(*at) == bar) {
            *width = (*width + room).min(BAR_WIDTH.1);
        }
        Self { columns, gap, look }
    }

    fn titles(&self) -> String {
        self.join(
            self.columns.iter().map(|(_, title, width)| padded(&shortened(title, *width, self.look.dots()), *width)),
        )
    }

    fn line(&self, cells: &[Cell]) -> String {
        let look = self.look;
        self.join(self.columns.iter().map(|(at, title, width)| match cells.get(*at) {
            Some(Cell::Text(text)) => {
                let tail = if is_name(title) { *width / 2 } else { 0 };
                padded(&shortened_within(&clean(text), *width, tail, look.dots()), *width)
            }
            Some(Cell::Bar(bar)) => look.bar(*bar, *width),
            None => " ".repeat(*width),
        }))
    }

    fn join(&self, cells: impl Iterator<Item = String>) -> String {
        let cells: Vec<String> = cells.collect();
        cells.join(&" ".repeat(self.gap)).trim_end().to_owned()
    }
}

/// Width of a text on the screen.
fn width_of(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// A text with spaces up to a width.
fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(width_of(text))))
}

/// A text, cut to a width. The last character shows that it was cut.
fn shortened(text: &str, width: usize, dots: char) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.chars() {
        if width_of(&kept) + width_of(character.encode_utf8(&mut [0; 4])) + 1 > width {
            break;
        }
        kept.push(character);
    }
    if width > 0 {
        kept.push(dots);
    }
    kept
}

/// True for columns with generated names, which differ at their ends.
fn is_name(title: &str) -> bool {
    matches!(title, "NODE" | "POD" | "JOB" | "WORKLOAD" | "OBJECT" | "PODS")
}

/// A text, cut to a width so that `tail` positions at its end are kept.
fn shortened_within(text: &str, width: usize, tail: usize, dots: char) -> String {
    if tail == 0 || width_of(text) <= width || !text.is_ascii() {
        return shortened(text, width, dots);
    }
    format!("{}{dots}{}", &text[..width.saturating_sub(tail + 1)], &text[text.len() - tail..])
}

/// A text with spaces in place of control characters, which have no width.
fn clean(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// A line, wrapped between words. Wrapped parts keep the indentation.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let indent: String = line.chars().take_while(|it| *it == ' ').take(width / 2).collect();
    let (mut lines, mut rest) = (Vec::new(), clean(line));
    while width_of(&rest) > width {
        let mut end = 0;
        for (at, character) in rest.char_indices() {
            let next = at + character.len_utf8();
            if width_of(&rest[..next]) > width {
                break;
            }
            end = next;
        }
        // At the last space, if text is left of it; within a word that is longer than a line.
        let is_between = rest[end..].starts_with(' ');
        let space = if is_between { Some(end) } else { rest[..end].rfind(' ') };
        let space = space.filter(|at| !rest[..*at].trim().is_empty());
        let tail = rest.split_off(space.unwrap_or(end.max(1)));
        lines.push(rest.trim_end().to_owned());
        rest = format!("{indent}{}", tail.trim_start());
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests;
