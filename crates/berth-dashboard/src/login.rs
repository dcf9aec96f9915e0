//! The page on which a reader logs in with a token.

use http::{Response, StatusCode};

use crate::html::Href;
use crate::layout::{self, Frame, Session, notice};

/// The page, after `problem` if there was one.
pub fn login(problem: Option<&str>) -> Response<String> {
    let frame = Frame { title: "Log in", here: Href::path(&["login"]), refresh: None, session: &Session::default() };
    let code = if problem.is_some() { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED };
    layout::page(code, &frame, |html| {
        html.line("h1", "", "Log in");
        if let Some(problem) = problem {
            notice(html, problem);
        }
        html.line("p", "", "The pages show what you may read in the cluster. Enter a bearer token of the cluster:");
        html.markup("<form class=\"fields\" action=\"/login\" method=\"post\"><label>Token ");
        html.markup("<input name=\"token\" type=\"password\" autocomplete=\"off\" required autofocus></label>");
        html.markup("<button>Log in</button></form>");
        html.markup("<p class=\"quiet\">A token of a ServiceAccount: <code>kubectl create token NAME</code>. ");
        html.markup("It is kept in the memory of this server until you log out, for at most twelve hours.</p>");
    })
}
