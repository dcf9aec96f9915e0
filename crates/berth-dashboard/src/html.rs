//! HTML that is safe by construction: only literals of this program are markup; all other text is
//! escaped.

use std::fmt::{self, Display, Write};

use berth_apimachinery::percent;

/// HTML under construction.
#[derive(Debug, Default)]
pub struct Html(String);

impl Html {
    /// Adds markup unchanged. The type admits only literals of this program.
    pub fn markup(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Adds text.
    pub fn text(&mut self, text: impl Display) {
        // Writing to a string cannot fail. A value whose formatting fails is omitted.
        let _ = write!(Escaped(&mut self.0), "{text}");
    }

    /// Adds an element with attributes.
    pub fn element(
        &mut self,
        tag: &'static str,
        attributes: &[(&'static str, &dyn Display)],
        inside: impl FnOnce(&mut Html),
    ) {
        self.open(tag, attributes);
        inside(self);
        self.markup("</");
        self.markup(tag);
        self.markup(">");
    }

    /// Adds a start tag; the whole element for elements without an end tag.
    pub fn open(&mut self, tag: &'static str, attributes: &[(&'static str, &dyn Display)]) {
        self.markup("<");
        self.markup(tag);
        for (name, value) in attributes {
            self.markup(" ");
            self.markup(name);
            self.markup("=\"");
            self.text(value);
            self.markup("\"");
        }
        self.markup(">");
    }

    /// Adds an element with a CSS class, or without one if the class is empty.
    pub fn class(&mut self, tag: &'static str, class: &'static str, inside: impl FnOnce(&mut Html)) {
        if class.is_empty() {
            self.element(tag, &[], inside);
        } else {
            self.element(tag, &[("class", &class)], inside);
        }
    }

    /// Adds an element with a CSS class that contains only text.
    pub fn line(&mut self, tag: &'static str, class: &'static str, text: impl Display) {
        self.class(tag, class, |html| html.text(text));
    }

    /// Adds a link to another page of the dashboard.
    pub fn link(&mut self, to: &Href, text: impl Display) {
        self.element("a", &[("href", to)], |html| html.text(text));
    }

    /// Adds HTML that was made apart.
    pub fn append(&mut self, made: &Html) {
        self.0.push_str(&made.0);
    }

    /// The HTML text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The HTML text.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Writes text escaped for elements and quoted attributes.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(character),
                control if control.is_control() => self.0.push(char::REPLACEMENT_CHARACTER),
                plain => self.0.push(plain),
            }
        }
        Ok(())
    }
}

/// A link to a page of the dashboard: a path whose segments and parameters may have any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Href(String);

impl Href {
    /// The path of these segments.
    pub fn path(segments: &[&str]) -> Self {
        let mut text = String::new();
        for segment in segments {
            text.push('/');
            text.push_str(&percent::segment(segment));
        }
        Href(if text.is_empty() { "/".to_owned() } else { text })
    }

    /// The link with these parameters, which are encoded already.
    pub fn with_query(mut self, query: &str) -> Self {
        if !query.is_empty() {
            self.0.push(if self.0.contains('?') { '&' } else { '?' });
            self.0.push_str(query);
        }
        self
    }

    /// The link with one more parameter.
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&percent::component(&value.to_string()));
        self
    }
}

impl Display for Href {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_escaped_in_elements_attributes_and_links() {
        let hostile = "\"><script>alert('x')</script>&\0\u{1b}";
        let mut html = Html::default();
        html.element("a", &[("title", &hostile)], |html| html.text(hostile));
        let escaped = "&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;\u{fffd}\u{fffd}";
        assert_eq!(html.into_string(), format!("<a title=\"{escaped}\">{escaped}</a>"));
    }

    #[test]
    fn a_link_has_the_path_of_its_segments() {
        let to = Href::path(&["queues", "a/../b?c=\"d\""]).with("page", "1&2");
        assert_eq!(to.to_string(), "/queues/a%2F..%2Fb%3Fc%3D%22d%22?page=1%262");
        assert_eq!(Href::path(&[]).to_string(), "/");
    }
}
