//! Common parts of all pages: frame, notices, tables, bars.

use berth_apimachinery::quantity::Quantity;
use http::{HeaderValue, Response, StatusCode, header};

use crate::html::{Href, Html};
use crate::tree::Figures;

/// Interval in seconds at which a page reloads itself.
const REFRESH_SECONDS: u32 = 10;

/// The style sheet. It is a separate file, because the content security policy allows no inline
/// styles.
pub const STYLE: &str = include_str!("style.css");

/// Allows the style sheet, and forms that lead to these pages. No page has a script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; \
                                       frame-ancestors 'none'";

/// Title and address of a page.
pub struct Frame<'a> {
    /// Title.
    pub title: &'a str,
    /// Address of the page, for reloads.
    pub here: Href,
    /// True if the page reloads itself.
    pub refresh: bool,
}

/// A page around its content.
pub fn page(code: StatusCode, frame: &Frame<'_>, content: impl FnOnce(&mut Html)) -> Response<String> {
    let mut html = Html::default();
    html.markup("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.markup("<meta name=\"color-scheme\" content=\"light dark\">");
    if frame.refresh {
        html.open("meta", &[("http-equiv", &"refresh"), ("content", &REFRESH_SECONDS)]);
    }
    html.line("title", "", format_args!("{} · Berth", frame.title));
    html.markup("<link rel=\"stylesheet\" href=\"/style.css\"></head><body>");
    html.class("header", "", |html| {
        html.markup("<a class=\"brand\" href=\"/\">Berth</a>");
        html.markup("<form action=\"/find\"><input name=\"what\" aria-label=\"Job or workload\" ");
        html.markup("placeholder=\"namespace/job\" autocomplete=\"off\" spellcheck=\"false\">");
        html.markup("<button>Explain</button></form>");
        if frame.refresh {
            html.element("a", &[("class", &"quiet"), ("href", &frame.here.clone().with("refresh", "off"))], |html| {
                html.text("Pause");
            });
        } else {
            html.element("a", &[("class", &"quiet"), ("href", &frame.here)], |html| html.text("Resume"));
        }
    });
    html.class("main", "", content);
    html.markup("</body></html>\n");
    answer(code, "text/html; charset=utf-8", html.into_string())
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

/// A notice about a failure or a missing permission, in addition to the rest of the page.
pub fn notice(html: &mut Html, text: impl std::fmt::Display) {
    html.element("p", &[("class", &"notice"), ("role", &"note")], |html| html.text(text));
}

/// A table with its columns and rows. Columns with the prefix `#` are right-aligned.
pub fn table(html: &mut Html, columns: &[&'static str], rows: impl FnOnce(&mut Html)) {
    html.class("div", "scroll", |html| {
        html.class("table", "", |html| {
            html.class("thead", "", |html| {
                html.class("tr", "", |html| {
                    for column in columns {
                        match column.strip_prefix('#') {
                            Some(number) => html.line("th", "number", number),
                            None => html.line("th", "", column),
                        }
                    }
                });
            });
            rows(html);
        });
    });
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
            for (class, at, width) in [("track", 0.0, WIDTH), ("own", 0.0, own), ("over", own, over)] {
                let (at, width) = (format!("{at:.1}"), format!("{width:.1}"));
                let place: [(&str, &dyn std::fmt::Display); 4] =
                    [("class", &class), ("x", &at), ("width", &width), ("height", &"8")];
                html.element("rect", &place, |_| {});
            }
        },
    );
    html.class("span", "amount", |html| {
        html.line("b", "", figures.used);
        html.text(format_args!(" / {}", quota(&figures.nominal)));
    });
}

/// An amount of quota in its usual notation.
pub fn quota(quantity: &Quantity) -> String {
    // An amount beyond the integers of the engine counts as unlimited.
    if quantity.value() == i64::MAX { "unlimited".to_owned() } else { quantity.to_string() }
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
            html.link(&to(from.saturating_sub(per_page)), "← Previous");
        }
        let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
        html.line("span", "", format_args!(" {}–{}{of} ", from + 1, from + shown));
        if more {
            html.link(&to(from + per_page), "Next →");
        }
    });
}
