//! The model of `berth top`: the open pages, what is selected and typed, and how keys change that.
//! It knows no terminal and no cluster. Keys are those of k9s where k9s has them.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::help::{HELP_TITLE, SORTS, help, view_names};
use super::sheet::{Filter, Sheet, Sort, Target};
use super::state::State;
use super::views::{self, Scope, View};

/// Maximum number of open pages. Beyond it, the oldest is closed.
const PAGES_MAX: usize = 32;

/// A text about an object, which the cluster is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Why a workload waits, runs or was evicted.
    Explain { namespace: String, name: String },
    /// What happened to a workload.
    History { namespace: String, name: String },
    /// The workloads that hold a ClusterQueue's quota.
    Holders(String),
}

impl Question {
    /// The title of the page with the text.
    pub fn title(&self) -> String {
        match self {
            Self::Explain { namespace, name } => format!("explain {namespace}/{name}"),
            Self::History { namespace, name } => format!("history {namespace}/{name}"),
            Self::Holders(queue) => format!("holders of {queue}"),
        }
    }
}

/// What the program does after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Draw again.
    Draw,
    /// Read the state of the cluster for the open page, and draw.
    Read,
    /// Ask the cluster.
    Ask(Question),
    /// End.
    Quit,
}

/// A page that shows the sheet of a view.
#[derive(Clone, Debug, Default)]
pub struct TablePage {
    /// The view; `None` is the first one.
    pub view: Option<View>,
    /// The objects to which it is limited.
    pub scope: Scope,
    /// The sheet.
    pub sheet: Sheet,
    /// The rows to show.
    pub filter: Filter,
    /// The order of the rows; `None` is that of the sheet.
    pub sort: Option<Sort>,
    /// Indices of the shown rows of the sheet.
    pub shown: Vec<usize>,
    /// Position of the selected row among the shown ones.
    pub selected: usize,
    /// Position of the first row on the screen.
    pub top: usize,
    /// True if all columns are shown, however narrow.
    pub is_wide: bool,
}

impl TablePage {
    fn new(view: View, scope: Scope) -> Self {
        Self { view: Some(view), scope, ..Self::default() }
    }

    /// The view.
    pub fn view(&self) -> View {
        self.view.unwrap_or(View::Queues)
    }

    /// Replaces the sheet. The same object stays selected.
    fn show(&mut self, sheet: Sheet) {
        let selected = self.shown.get(self.selected).map(|at| self.sheet.rows[*at].id.clone());
        self.sheet = sheet;
        self.arrange(selected);
    }

    /// Applies filter and order.
    fn arrange(&mut self, selected: Option<String>) {
        self.shown = self.sheet.select(&self.filter, self.sort);
        let found = selected.and_then(|id| self.shown.iter().position(|at| self.sheet.rows[*at].id == id));
        let last = self.shown.len().saturating_sub(1);
        self.selected = found.unwrap_or(self.selected).min(last);
    }

    fn rearrange(&mut self) {
        let selected = self.shown.get(self.selected).map(|at| self.sheet.rows[*at].id.clone());
        self.arrange(selected);
    }

    fn target(&self) -> Target {
        self.shown.get(self.selected).map_or(Target::None, |at| self.sheet.rows[*at].target.clone())
    }

    /// Sorts by the column of a letter: largest first, then smallest first, then as it was.
    fn sort_by(&mut self, letter: char) -> bool {
        let columns = SORTS.iter().find(|(it, _)| *it == letter).map(|(_, columns)| *columns).unwrap_or_default();
        let has = |title: &&&str| self.sheet.columns.iter().any(|column| column.name() == **title);
        // The queues are a tree, which has its own order.
        let Some(column) = columns.iter().find(has).copied().filter(|_| self.view() != View::Queues) else {
            return false;
        };
        self.sort = match self.sort {
            Some(Sort { column: before, is_descending: false }) if before == column => {
                Some(Sort { column, is_descending: true })
            }
            Some(Sort { column: before, is_descending: true }) if before == column => None,
            _ => Some(Sort { column, is_descending: false }),
        };
        self.rearrange();
        true
    }
}

/// A page that shows a text.
#[derive(Clone, Debug, Default)]
pub struct TextPage {
    /// The title.
    pub title: String,
    /// The question whose answer is shown, if any.
    pub question: Option<Question>,
    /// The text; `None` until the cluster has answered.
    pub text: Option<String>,
    /// Number of lines above the screen.
    pub top: usize,
}

/// A page.
#[derive(Clone, Debug)]
pub enum Page {
    /// A table.
    Table(TablePage),
    /// A text.
    Text(TextPage),
}

/// What typed characters do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are keys.
    Keys,
    /// They are the name of a view.
    Command(String),
    /// They are the filter of the page.
    Filter(String),
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Address of the API server.
    pub cluster: String,
    /// Counts of the whole cluster.
    pub summary: String,
    /// Time on the cluster's clock.
    pub time: String,
    /// The open pages; the last one is on the screen.
    pages: Vec<Page>,
    /// What typed characters do.
    pub mode: Mode,
    /// A message about the last key.
    pub message: String,
    /// Rows of the body of the last drawn screen, for keys that move by a page.
    pub height: usize,
}

impl Model {
    /// A model whose first page shows a view.
    pub fn new(cluster: String, view: View) -> Self {
        Self {
            cluster,
            summary: String::new(),
            time: String::new(),
            pages: vec![Page::Table(TablePage::new(view, Scope::All))],
            mode: Mode::Keys,
            message: String::new(),
            height: 10,
        }
    }

    /// The page on the screen.
    pub fn page(&self) -> &Page {
        self.pages.last().expect("the first page is never closed")
    }

    /// The page on the screen, to change it.
    pub fn page_mut(&mut self) -> &mut Page {
        self.pages.last_mut().expect("the first page is never closed")
    }

    /// The view on the screen, or the last one under a text.
    pub fn view(&self) -> View {
        let tables = self.pages.iter().rev().filter_map(|page| match page {
            Page::Table(table) => Some(table.view()),
            Page::Text(_) => None,
        });
        tables.into_iter().next().unwrap_or(View::Queues)
    }

    /// The question whose answer is on the screen.
    pub fn question(&self) -> Option<&Question> {
        match self.page() {
            Page::Text(text) => text.question.as_ref(),
            Page::Table(_) => None,
        }
    }

    /// Shows the state of the cluster.
    pub fn read(&mut self, state: &State) {
        self.summary = views::summary(state);
        self.time = berth_apimachinery::times::time(state.now);
        if let Page::Table(table) = self.page_mut() {
            let sheet = views::sheet(table.view(), &table.scope, state);
            table.show(sheet);
        }
    }

    /// Shows the answer to a question on its page, if that is still open.
    pub fn answer(&mut self, question: &Question, text: String) {
        for page in &mut self.pages {
            if let Page::Text(page) = page
                && page.question.as_ref() == Some(question)
            {
                page.text = Some(text.clone());
            }
        }
    }

    fn open(&mut self, page: Page) {
        if self.pages.len() >= PAGES_MAX {
            self.pages.remove(0);
        }
        self.pages.push(page);
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) -> Effect {
        self.message.clear();
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Effect::Quit;
        }
        match self.mode.clone() {
            Mode::Keys => self.browse(key.code, control),
            Mode::Command(text) => self.type_command(text, key.code, control),
            Mode::Filter(text) => self.type_filter(text, key.code, control),
        }
    }

    fn browse(&mut self, code: KeyCode, control: bool) -> Effect {
        match code {
            KeyCode::Char('q') if !control => return Effect::Quit,
            KeyCode::Char(':') => self.mode = Mode::Command(String::new()),
            KeyCode::Char('/') => match self.page() {
                Page::Table(table) => self.mode = Mode::Filter(table.filter.text.clone()),
                Page::Text(_) => self.message = "a text has no filter".to_owned(),
            },
            KeyCode::Char('?') => self.open_help(),
            KeyCode::Esc => return self.back(),
            KeyCode::Enter => return self.enter(),
            KeyCode::Char('e') if !control => return self.explain(),
            KeyCode::Char('t') if !control => return self.history(),
            KeyCode::Char('w') if control => {
                if let Page::Table(table) = self.page_mut() {
                    table.is_wide = !table.is_wide;
                }
            }
            KeyCode::Char(letter) if letter.is_ascii_uppercase() && letter != 'G' => {
                if let Page::Table(table) = self.page_mut()
                    && !table.sort_by(letter)
                {
                    self.message = format!("{letter} sorts no column of this view; ? lists the keys");
                }
            }
            code => self.scroll(code, control),
        }
        Effect::Draw
    }

    /// Moves the selection of a table, or the text.
    fn scroll(&mut self, code: KeyCode, control: bool) {
        let page = self.height.max(1) as isize;
        let by = match (code, control) {
            (KeyCode::Down | KeyCode::Char('j'), false) => 1,
            (KeyCode::Up | KeyCode::Char('k'), false) => -1,
            (KeyCode::PageDown, _) | (KeyCode::Char('f'), true) => page,
            (KeyCode::PageUp, _) | (KeyCode::Char('b'), true) => -page,
            (KeyCode::Char('d'), true) => page / 2,
            (KeyCode::Char('u'), true) => -(page / 2),
            (KeyCode::Home | KeyCode::Char('g'), false) => isize::MIN / 2,
            (KeyCode::End | KeyCode::Char('G'), false) => isize::MAX / 2,
            _ => return,
        };
        match self.page_mut() {
            Page::Table(table) => {
                let last = table.shown.len().saturating_sub(1);
                table.selected = table.selected.saturating_add_signed(by).min(last);
            }
            // The end of a text depends on the width of the screen, so drawing limits it.
            Page::Text(text) => text.top = text.top.saturating_add_signed(by),
        }
    }

    fn back(&mut self) -> Effect {
        if let Page::Table(table) = self.page_mut()
            && !table.filter.text.is_empty()
        {
            table.filter = Filter::default();
            table.rearrange();
        } else if self.pages.len() > 1 {
            self.pages.pop();
            return Effect::Read;
        }
        Effect::Draw
    }

    fn target(&self) -> Target {
        match self.page() {
            Page::Table(table) => table.target(),
            Page::Text(_) => Target::None,
        }
    }

    /// Opens the object of the selected row.
    fn enter(&mut self) -> Effect {
        match self.target() {
            Target::None => return Effect::Draw,
            Target::Queues { names, title, .. } => {
                self.open(Page::Table(TablePage::new(View::Jobs, Scope::Queues { names, title })));
            }
            Target::LocalQueue { namespace, name } => {
                self.open(Page::Table(TablePage::new(View::Jobs, Scope::LocalQueue { namespace, name })));
            }
            Target::Node(name) => self.open(Page::Table(TablePage::new(View::Pods, Scope::Node(name)))),
            Target::Workload { .. } | Target::Pod { .. } => return self.explain(),
            Target::Text { title, text } => {
                self.open(Page::Text(TextPage { title, text: Some(text), ..TextPage::default() }));
            }
        }
        Effect::Read
    }

    /// Asks why the selected object waits, or for the holders of a queue's quota.
    fn explain(&mut self) -> Effect {
        match self.target() {
            Target::Workload { namespace, name } | Target::Pod { namespace, name } => {
                self.ask(Question::Explain { namespace, name })
            }
            Target::Queues { names, is_cohort: false, .. } => match names.into_iter().next() {
                Some(name) => self.ask(Question::Holders(name)),
                None => Effect::Draw,
            },
            Target::None => Effect::Draw,
            _ => self.has_no("explanation"),
        }
    }

    fn history(&mut self) -> Effect {
        match self.target() {
            Target::Workload { namespace, name } => self.ask(Question::History { namespace, name }),
            Target::None => Effect::Draw,
            _ => self.has_no("history"),
        }
    }

    fn has_no(&mut self, what: &str) -> Effect {
        self.message = format!("this row has no {what}");
        Effect::Draw
    }

    fn ask(&mut self, question: Question) -> Effect {
        let page = TextPage { title: question.title(), question: Some(question.clone()), ..TextPage::default() };
        self.open(Page::Text(page));
        Effect::Ask(question)
    }

    fn type_command(&mut self, mut text: String, code: KeyCode, control: bool) -> Effect {
        match code {
            KeyCode::Enter => {
                self.mode = Mode::Keys;
                return self.command(&text);
            }
            KeyCode::Esc => self.mode = Mode::Keys,
            code => {
                let is_left = code == KeyCode::Backspace && text.is_empty();
                edit(&mut text, code, control);
                self.mode = if is_left { Mode::Keys } else { Mode::Command(text) };
            }
        }
        Effect::Draw
    }

    fn command(&mut self, text: &str) -> Effect {
        match text.trim() {
            "" => Effect::Draw,
            "q" | "q!" | "quit" | "exit" => Effect::Quit,
            "?" | "h" | "help" => {
                self.open_help();
                Effect::Draw
            }
            name => match View::of(name) {
                Some(view) => {
                    self.open(Page::Table(TablePage::new(view, Scope::All)));
                    Effect::Read
                }
                None => {
                    self.message = format!("no view {name}; there are {}", view_names());
                    Effect::Draw
                }
            },
        }
    }

    fn type_filter(&mut self, mut text: String, code: KeyCode, control: bool) -> Effect {
        match code {
            KeyCode::Enter => {
                self.mode = Mode::Keys;
                return Effect::Draw;
            }
            KeyCode::Esc => {
                text.clear();
                self.mode = Mode::Keys;
            }
            KeyCode::Backspace if text.is_empty() => self.mode = Mode::Keys,
            code => {
                edit(&mut text, code, control);
                self.mode = Mode::Filter(text.clone());
            }
        }
        if let Page::Table(table) = self.page_mut() {
            table.filter = Filter::new(&text);
            table.rearrange();
        }
        Effect::Draw
    }

    fn open_help(&mut self) {
        let is_open = matches!(self.page(), Page::Text(text) if text.title == HELP_TITLE);
        if !is_open {
            let page = TextPage { title: HELP_TITLE.to_owned(), text: Some(help()), ..TextPage::default() };
            self.open(Page::Text(page));
        }
    }
}

/// Changes a typed text.
fn edit(text: &mut String, code: KeyCode, control: bool) {
    match (code, control) {
        (KeyCode::Backspace, _) | (KeyCode::Char('h'), true) => drop(text.pop()),
        (KeyCode::Char('u' | 'w'), true) => text.clear(),
        (KeyCode::Char(character), false) => text.push(character),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
