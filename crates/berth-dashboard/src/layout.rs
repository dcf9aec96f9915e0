//! Common parts of all pages: frame, notices, tables, bars.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

use berth_apimachinery::quantity::Quantity;
use http::{HeaderValue, Response, StatusCode, header};

use crate::html::{Href, Html};
use crate::read::Unread;
use crate::request::Parameters;
use crate::tree::Figures;

/// Interval in seconds at which a page reloads itself in browsers without scripts.
const REFRESH_SECONDS: u32 = 10;

/// The style sheet. It is a separate file, because the content security policy allows no inline
/// styles.
pub const STYLE: &str = include_str!("style.css");

/// The script, which keeps pages up to date and reacts to keys. Every page works without it.
pub const SCRIPT: &str = include_str!("script.js");

/// Allows the style sheet, the script and its requests, and forms that lead to these pages.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                                       form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Number of rows that fill the first screen.
const SCREEN_ROWS: usize = 30;

/// Start and end of the part of a page that changes.
const CONTENT: (&str, &str) = ("<main id=\"content\" tabindex=\"-1\">", "</main>");

/// The sections: address, name, and the key that leads there after `g`.
const SECTIONS: [(&str, &str, &str); 7] = [
    ("/", "Queues", "q"),
    ("/jobs", "Jobs", "j"),
    ("/nodes", "Nodes", "n"),
    ("/preemptions", "Preemptions", "p"),
    ("/provisioning", "Provisioning", "r"),
    ("/usage", "Usage", "u"),
    ("/what-if", "What if", "w"),
];

/// Media type of plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// Title and address of a page.
pub struct Frame<'a> {
    /// Title.
    pub title: &'a str,
    /// Address of the page, for reloads.
    pub here: Href,
    /// True if the page updates itself, false if that is paused; `None` if it shows no live
    /// content.
    pub refresh: Option<bool>,
    /// Name of the reader, if it is known.
    pub session: &'a Session,
}

/// The reader of the pages.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// The name to show; `None` if the pages have one reader.
    pub user: Option<String>,
    /// True if the reader logged in on these pages.
    pub can_log_out: bool,
}

/// A page around its content.
pub fn page(code: StatusCode, frame: &Frame<'_>, content: impl FnOnce(&mut Html)) -> Response<String> {
    let mut html = Html::default();
    html.markup("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.markup("<meta name=\"color-scheme\" content=\"light dark\">");
    let is_live = frame.refresh == Some(true);
    if is_live {
        html.class("noscript", "", |html| {
            html.open("meta", &[("http-equiv", &"refresh"), ("content", &REFRESH_SECONDS)]);
        });
    }
    html.line("title", "", format_args!("{} · Berth", frame.title));
    html.markup("<link rel=\"stylesheet\" href=\"/style.css\">");
    html.markup("<script src=\"/script.js\" defer></script></head>");
    let mut inner = Html::default();
    content(&mut inner);
    html.element("body", &[("data-live", &is_live), ("data-shown", &print(inner.as_str()))], |html| {
        html.markup("<a class=\"skip\" href=\"#content\">Skip to content</a>");
        header(html, frame);
        html.markup(CONTENT.0);
        html.append(&inner);
        html.markup(CONTENT.1);
        keys(html);
    });
    html.markup("</html>\n");
    answer(code, "text/html; charset=utf-8", html.into_string())
}

fn header(html: &mut Html, frame: &Frame<'_>) {
    html.class("header", "", |html| {
        html.markup("<a class=\"brand\" href=\"/\">Berth</a>");
        html.element("nav", &[("aria-label", &"Sections")], |html| {
            let here = frame.here.to_string();
            let here = here.split('?').next().unwrap_or_default();
            for (path, name, key) in SECTIONS {
                let is_here = here == path || (path == "/jobs" && here.starts_with("/workloads/"));
                let is_here = is_here || (path == "/" && here.starts_with("/queues/"));
                let mut attributes: Vec<(&'static str, &dyn std::fmt::Display)> =
                    vec![("href", &path), ("data-key", &key)];
                if is_here {
                    attributes.push(("aria-current", &"page"));
                }
                html.element("a", &attributes, |html| html.text(name));
            }
        });
        html.markup("<form action=\"/find\" role=\"search\"><input name=\"what\" aria-label=\"Job or workload\" ");
        html.markup("placeholder=\"namespace/job\" autocomplete=\"off\" spellcheck=\"false\">");
        html.markup("<button>Open</button></form>");
        html.class("span", "tools", |html| {
            html.markup("<span id=\"live\" class=\"quiet\" role=\"status\"></span>");
            if let Some(is_live) = frame.refresh {
                let (text, to) = match is_live {
                    true => ("Pause", frame.here.clone().with("refresh", "off")),
                    false => ("Resume", frame.here.clone()),
                };
                html.element("a", &[("class", &"quiet"), ("id", &"pause"), ("href", &to)], |html| html.text(text));
            }
            if let Some(user) = &frame.session.user {
                html.line("span", "user", user);
            }
            if frame.session.can_log_out {
                html.markup("<form action=\"/logout\" method=\"post\"><button>Log out</button></form>");
            }
        });
    });
}

/// The keys, shown by `?`.
fn keys(html: &mut Html) {
    html.markup("<dialog id=\"keys\" aria-label=\"Keys\"><h2>Keys</h2><dl>");
    let mut entry = |key: &str, text: &str| {
        html.class("dt", "", |html| html.line("kbd", "", key));
        html.line("dd", "", text);
    };
    for (_, name, key) in SECTIONS {
        entry(&format!("g {key}"), name);
    }
    for (key, text) in [
        ("/", "Filter, or open a job"),
        ("j k", "Next and previous row"),
        ("Enter", "Open the row"),
        ("[ ]", "Previous and next page of a list"),
        ("p", "Pause and resume updates"),
        ("Esc", "Close, or leave the field"),
        ("?", "These keys"),
    ] {
        entry(key, text);
    }
    html.markup("</dl><form method=\"dialog\"><button>Close</button></form></dialog>");
}

/// The part of a page that changes, without the frame.
pub fn content(page: &str) -> &str {
    let start = page.find(CONTENT.0).map_or(0, |at| at + CONTENT.0.len());
    let end = page.rfind(CONTENT.1).unwrap_or(page.len());
    page.get(start..end).unwrap_or_default()
}

/// A fingerprint of the content of a page: the stream of its updates sends no content that the reader
/// has already.
pub fn print(content: &str) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// A response with the headers of all pages.
pub fn answer(code: StatusCode, media: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    let all = [
        (header::CONTENT_TYPE, media),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in all {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A page that shows a failure.
pub fn cannot(html: &mut Html, unread: &Unread) {
    html.line("h1", "", "The page cannot be shown");
    notice(html, unread);
}

/// A notice about a failure or a missing permission, in addition to the rest of the page.
pub fn notice(html: &mut Html, text: impl std::fmt::Display) {
    html.element("p", &[("class", &"notice"), ("role", &"note")], |html| html.text(text));
}

/// A table with its columns and rows. Columns with the prefix `#` are right-aligned.
pub fn table(html: &mut Html, columns: &[&'static str], rows: impl FnOnce(&mut Html)) {
    of_class(html, "", columns, rows);
}

fn of_class(html: &mut Html, class: &'static str, columns: &[&'static str], rows: impl FnOnce(&mut Html)) {
    html.class("div", "scroll", |html| {
        html.class("table", class, |html| {
            html.class("thead", "", |html| {
                html.class("tr", "", |html| {
                    for column in columns {
                        match column.strip_prefix('#') {
                            Some(number) => {
                                html.element("th", &[("scope", &"col"), ("class", &"number")], |html| html.text(number))
                            }
                            None => html.element("th", &[("scope", &"col")], |html| html.text(column)),
                        }
                    }
                });
            });
            rows(html);
        });
    });
}

/// A table whose rows can be chosen with the keyboard.
pub fn rows(html: &mut Html, columns: &[&'static str], rows: impl FnOnce(&mut Html)) {
    of_class(html, "rows", columns, |html| html.class("tbody", "", rows));
}

/// A table after a list of so many rows. Browsers lay it out when the reader comes near to it, if
/// the list fills the first screen.
pub fn after(html: &mut Html, rows: usize, table: impl FnOnce(&mut Html)) {
    if rows < SCREEN_ROWS {
        table(html);
    } else {
        html.class("div", "later", table);
    }
}

/// A bar that shows a part of a whole.
pub fn bar(html: &mut Html, used: f64, whole: f64, label: &str) {
    let part = if whole > 0.0 { (used / whole).clamp(0.0, 1.0) * 100.0 } else { 0.0 };
    parts(html, part, 0.0, label);
}

/// Usage of a quota, as a bar and in numbers.
pub fn usage(html: &mut Html, figures: &Figures) {
    const WIDTH: f64 = 100.0;
    let (nominal, used) = (figures.nominal.as_approximate_f64().max(0.0), figures.used.as_approximate_f64().max(0.0));
    let whole = nominal.max(used);
    let part = |of: f64| if whole > 0.0 { of / whole * WIDTH } else { 0.0 };
    let own = part(used.min(nominal));
    let over = part(used) - own;
    let label = format!("{} of {} in use", figures.used, quota(&figures.nominal));
    parts(html, own, over, &label);
    html.class("span", "amount", |html| {
        html.line("b", "", figures.used);
        html.text(format_args!(" / {}", quota(&figures.nominal)));
    });
}

/// A bar with the own part and the part beyond it, in percent.
fn parts(html: &mut Html, own: f64, over: f64, label: &str) {
    html.element(
        "svg",
        &[
            ("class", &"bar"),
            ("viewBox", &"0 0 100 8"),
            ("preserveAspectRatio", &"none"),
            ("role", &"img"),
            ("aria-label", &label),
        ],
        |html| {
            for (class, at, width) in [("track", 0.0, 100.0), ("own", 0.0, own), ("over", own, over)] {
                let (at, width) = (format!("{at:.1}"), format!("{width:.1}"));
                let place: [(&str, &dyn std::fmt::Display); 4] =
                    [("class", &class), ("x", &at), ("width", &width), ("height", &"8")];
                html.element("rect", &place, |_| {});
            }
        },
    );
}

/// An amount of quota in its usual notation.
pub fn quota(quantity: &Quantity) -> String {
    // An amount beyond the integers of the engine counts as unlimited.
    if quantity.value() == i64::MAX { "unlimited".to_owned() } else { quantity.to_string() }
}

/// Tabs that filter a table by state: one for all rows, and one for each state that has rows or is
/// chosen, with the number of its rows. `to` returns the page with a state, or with all for `""`.
pub fn state_tabs<'a>(
    html: &mut Html,
    given: &Parameters,
    all: usize,
    states: impl Iterator<Item = (&'a str, usize)>,
    to: impl Fn(&str) -> Href,
) {
    let chosen = given.get("state").unwrap_or_default();
    html.element("p", &[("class", &"tabs"), ("role", &"group"), ("aria-label", &"State")], |html| {
        let mut tab = |value: &str, text: &str, count: usize| {
            let to = to(value);
            let mut attributes: Vec<(&'static str, &dyn Display)> = vec![("href", &to)];
            if value == chosen {
                attributes.push(("aria-current", &"true"));
            }
            html.element("a", &attributes, |html| {
                html.text(text);
                html.line("b", "", format_args!(" {count}"));
            });
        };
        tab("", "All", all);
        for (state, count) in states.filter(|(state, count)| *count > 0 || *state == chosen) {
            tab(state, state, count);
        }
    });
}

/// Links to the previous and next page of a list.
pub fn pager(
    html: &mut Html,
    from: usize,
    shown: usize,
    total: Option<usize>,
    per_page: usize,
    to: impl Fn(usize) -> Href,
) {
    let more = total.map_or(shown == per_page, |total| from + shown < total);
    if from == 0 && !more {
        return;
    }
    html.class("p", "pager", |html| {
        if from > 0 {
            let to = to(from.saturating_sub(per_page));
            html.element("a", &[("href", &to), ("rel", &"prev")], |html| html.text("← Previous"));
        }
        let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
        html.line("span", "", format_args!(" {}–{}{of} ", from + 1, from + shown));
        if more {
            html.element("a", &[("href", &to(from + per_page)), ("rel", &"next")], |html| html.text("Next →"));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::STYLE;

    /// The colors of the light and of the dark scheme, by the name of their variable.
    fn schemes() -> [(&'static str, BTreeMap<&'static str, &'static str>); 2] {
        let colors = |block: &'static str| -> BTreeMap<&str, &str> {
            let declarations =
                block.split(['{', '}', ';']).filter_map(|it| it.trim().strip_prefix("--")?.split_once(": "));
            declarations.collect()
        };
        let mut blocks = STYLE.split(":root");
        let (_, light, dark) = (blocks.next(), blocks.next().expect("light"), blocks.next().expect("dark"));
        let light = colors(light);
        let mut both = light.clone();
        both.extend(colors(dark.split("* {").next().unwrap_or_default()));
        [("light", light), ("dark", both)]
    }

    /// The relative luminance of an sRGB color `#rrggbb`; source: WCAG 2.2.
    fn luminance(color: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&color[at..at + 2], 16).expect("a color")) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    #[test]
    fn text_and_bars_have_the_contrast_of_level_aa() {
        for (scheme, colors) in schemes() {
            let check = |fore: &str, back: &str, least: f64| {
                let (a, b) = (luminance(colors[fore]), luminance(colors[back]));
                let ratio = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(ratio >= least, "{fore} on {back} in the {scheme} scheme: {ratio:.2}");
            };
            for back in ["ground", "raised", "track", "notice"] {
                for fore in ["text", "quiet", "link", "good", "bad", "wait"] {
                    check(fore, back, 4.5);
                }
            }
            for back in ["ground", "raised", "track"] {
                for fore in ["own", "over", "hold"] {
                    check(fore, back, 3.0);
                }
            }
        }
    }

    #[test]
    fn the_print_style_replaces_every_color_of_the_dark_scheme() {
        let names = |start: &str| {
            let (_, block) = STYLE.split_once(start).expect("the block");
            let (_, block) = block.split_once(":root {").expect("its colors");
            let (block, _) = block.split_once('}').expect("its end");
            let names = block.split(';').filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
            names.filter(|name| name.starts_with("--")).collect::<std::collections::BTreeSet<_>>()
        };
        let dark = names("prefers-color-scheme: dark");
        assert!(dark.len() > 10 && dark.is_subset(&names("@media print")), "{dark:?}");
    }
}
