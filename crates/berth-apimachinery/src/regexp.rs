//! Regular expressions in the syntax of Kubernetes' API server: Go's RE2, compiled by the `regex`
//! crate.
//!
//! A few spellings differ and are translated. In Go `\d`, `\w`, `\s` and `\b` match ASCII only. A
//! brace that begins no repetition count is literal. A bracket or `&&` within a class is literal.
//! The size limit also differs: Go rejects nested repetitions beyond a thousand in total, which
//! bounds the compiled expression.

use regex::Regex;
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, RepetitionKind, RepetitionOp, RepetitionRange};

/// Maximum product of nested repetition counts.
const REPEAT_MAX: u32 = 1000;

/// Compiles an expression. The error has Go's message if Go rejects the expression too.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    let translated = translate(pattern);
    let refused = |why: String| format!("error parsing regexp: {why}");
    let ast = Parser::new().parse(&translated).map_err(|error| refused(syntax_error(pattern, &error.to_string())))?;
    repeats(&ast, &translated).map_err(refused)?;
    Regex::new(&translated).map_err(|error| {
        refused(match error {
            regex::Error::CompiledTooBig(limit) => format!("the expression takes more than {limit} bytes: `{pattern}`"),
            error => syntax_error(pattern, &error.to_string()),
        })
    })
}

/// Upstream's message for an expression that cannot be parsed.
fn syntax_error(pattern: &str, text: &str) -> String {
    let reasons = [
        ("unopened group", "unexpected )"),
        ("unclosed group", "missing closing )"),
        ("unclosed character class", "missing closing ]"),
        ("repetition operator missing expression", "missing argument to repetition operator"),
        ("unrecognized escape sequence", "invalid escape sequence"),
        ("backreferences are not supported", "invalid escape sequence"),
        ("look-around", "invalid or unsupported Perl syntax"),
        ("invalid repetition count range", "invalid repeat count"),
        ("decimal literal", "invalid repeat count"),
        ("invalid character class range", "invalid character class range"),
        ("maximum number of nested", "expression nests too deeply"),
    ];
    match reasons.iter().find(|(ours, _)| text.contains(ours)) {
        Some((_, reason)) => format!("{reason}: `{pattern}`"),
        None => format!("invalid pattern: `{pattern}`"),
    }
}

/// The maximum repetition count of the innermost part. Rejects counts beyond Go's limit, and
/// operators that repeat an operator. The parser bounds the depth.
fn repeats(ast: &Ast, pattern: &str) -> Result<u32, String> {
    let most = |asts: &[Ast]| asts.iter().try_fold(1, |most: u32, ast| Ok(most.max(repeats(ast, pattern)?)));
    match ast {
        Ast::Repetition(repetition) => {
            let text = |op: &RepetitionOp| pattern.get(op.span.start.offset..op.span.end.offset).unwrap_or_default();
            let operator = text(&repetition.op);
            if let Ast::Repetition(inner) = repetition.ast.as_ref() {
                let inner = text(&inner.op);
                return Err(format!("invalid nested repetition operator: `{inner}{operator}`"));
            }
            let count = match &repetition.op.kind {
                RepetitionKind::Range(RepetitionRange::Exactly(count) | RepetitionRange::AtLeast(count)) => *count,
                RepetitionKind::Range(RepetitionRange::Bounded(_, most)) => *most,
                _ => 1,
            };
            let all = repeats(&repetition.ast, pattern)?.saturating_mul(count);
            if all > REPEAT_MAX { Err(format!("invalid repeat count: `{operator}`")) } else { Ok(all.max(1)) }
        }
        Ast::Group(group) => repeats(&group.ast, pattern),
        Ast::Concat(concat) => most(&concat.asts),
        Ast::Alternation(either) => most(&either.asts),
        _ => Ok(1),
    }
}

/// The expression in the syntax of the `regex` crate.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '\\' => escape(rest, false, &mut out),
            '[' => class(rest, &mut out),
            '{' if counted(rest).is_none() => {
                out.push_str("\\{");
                1
            }
            first => {
                out.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    out
}

/// The length of `{n}`, `{n,}` or `{n,m}` at the start of the text.
fn counted(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('{')?;
    let end = inside.find('}')?;
    let (least, most) = inside[..end].split_once(',').unwrap_or((&inside[..end], ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (!least.is_empty() && is_number(least) && is_number(most)).then_some(end + 2)
}

/// Translates an escape, inside a class if `within` is set. Returns its length.
fn escape(text: &str, within: bool, out: &mut String) -> usize {
    let Some(kind) = text[1..].chars().next() else {
        out.push('\\');
        return 1;
    };
    let taken = 1 + kind.len_utf8();
    let set = match kind {
        'd' | 'D' => Some("0-9"),
        'w' | 'W' => Some("0-9A-Za-z_"),
        's' | 'S' => Some("\\t\\n\\f\\r "),
        _ => None,
    };
    match (kind, set) {
        (_, Some(set)) if kind.is_ascii_uppercase() => out.push_str(&format!("[^{set}]")),
        (_, Some(set)) if within => out.push_str(set),
        (_, Some(set)) => out.push_str(&format!("[{set}]")),
        ('b', None) if !within => out.push_str("(?-u:\\b)"),
        ('Q', None) if !within => {
            let literal = &text[taken..];
            let end = literal.find("\\E");
            out.push_str(&regex::escape(&literal[..end.unwrap_or(literal.len())]));
            return taken + end.map_or(literal.len(), |end| end + 2);
        }
        ('p' | 'P' | 'x', None) if text[taken..].starts_with('{') => {
            let end = text[taken..].find('}').map_or(text.len(), |end| taken + end + 1);
            out.push_str(&text[..end]);
            return end;
        }
        _ => out.push_str(&text[..taken]),
    }
    taken
}

/// Translates a class. Returns its length.
fn class(text: &str, out: &mut String) -> usize {
    let mut at = 1;
    out.push('[');
    if text[at..].starts_with('^') {
        out.push('^');
        at += 1;
    }
    let start = at;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        at += match first {
            ']' if at > start => {
                out.push(']');
                return at + 1;
            }
            '\\' => escape(rest, true, out),
            '[' if rest.starts_with("[:") && rest.contains(":]") => {
                let end = rest.find(":]").map_or(1, |end| end + 2);
                out.push_str(&rest[..end]);
                end
            }
            // These characters are special in classes of the `regex` crate only.
            ']' | '[' | '&' | '~' => {
                out.push('\\');
                out.push(first);
                1
            }
            first => {
                out.push(first);
                first.len_utf8()
            }
        };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(pattern: &str) -> String {
        compile(pattern).expect_err(pattern)
    }

    #[test]
    fn repetitions_of_repetitions_are_bounded() {
        let bomb = "((((a{1,100}){1,100}){1,100}){1,100})";
        assert_eq!(refusal(bomb), "error parsing regexp: invalid repeat count: `{1,100}`");
        for (pattern, operator) in [
            ("a{1001}", "{1001}"),
            ("(a{32}){32}", "{32}"),
            ("((a{10}){10}){11}", "{11}"),
            ("(a{500,})b{3}|(c{2}){501}", "{501}"),
        ] {
            assert_eq!(refusal(pattern), format!("error parsing regexp: invalid repeat count: `{operator}`"));
        }
        for pattern in
            ["a{1000}", "(a{31}){32}", "((a{10}){10}){10}", "((((x*)*)*)*)*", ".{0,253}", "(\\w{500}){2}", "a{0}"]
        {
            assert!(compile(pattern).is_ok(), "{pattern}");
        }
        assert_eq!(refusal("a**"), "error parsing regexp: invalid nested repetition operator: `**`");
        assert!(refusal("(x{10}){10}{10}").ends_with("invalid nested repetition operator: `{10}{10}`"));
        assert!(compile("a+?b*?c??").is_ok(), "a lazy operator does not count as a second operator");
    }

    #[test]
    fn expressions_that_go_rejects_get_gos_error() {
        for (pattern, why) in [
            ("(", "missing closing )"),
            (")", "unexpected )"),
            ("[a", "missing closing ]"),
            ("*", "missing argument to repetition operator"),
            ("(?=a)", "invalid or unsupported Perl syntax"),
            ("\\1", "invalid escape sequence"),
            ("\\Z", "invalid escape sequence"),
            ("a{2,1}", "invalid repeat count"),
            ("[b-a]", "invalid character class range"),
        ] {
            let refusal = refusal(pattern);
            assert_eq!(refusal, format!("error parsing regexp: {why}: `{pattern}`"));
        }
        let deep = format!("{}a{}", "(".repeat(1001), ")".repeat(1001));
        assert!(refusal(&deep).contains("expression nests too deeply"), "{}", refusal("("));
        assert!(refusal("(\\pL{100}){10}(\\pL{100}){10}(\\pL{100}){10}").contains("takes more than"));
    }

    #[test]
    fn expressions_that_go_accepts_match_as_in_go() {
        for (pattern, matching, other) in [
            ("^\\d+$", "12", "\u{663}"),
            ("^[\\d-]+$", "1-2", "\u{663}"),
            ("^\\D$", "\u{663}", "1"),
            ("^[^\\w]$", "\u{e9}", "e"),
            ("^[\\W]$", "\u{e9}", "e"),
            ("^\\s$", " ", "\u{a0}"),
            ("\\bx", "\u{e9}x", "ax"),
            ("^a{,5}$", "a{,5}", "aaa"),
            ("^{}$", "{}", ""),
            ("^${x}|^a{1,2}$", "aa", "aaa"),
            ("^[[]$", "[", "x"),
            ("^[]a]+$", "]a", "b"),
            ("^[a&&b]+$", "a&b", "c"),
            ("^[[:alpha:]_]+$", "ab_", "1"),
            ("^\\Qa.b{\\E+$", "a.b{{", "axb{"),
            ("^\\p{Lu}\\x{41}$", "BA", "bA"),
            ("^(?P<n>a)(?i:B)$", "ab", "b"),
            ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", "a-b.c", "-a"),
        ] {
            let regex = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert!(regex.is_match(matching), "{pattern} and {matching}");
            assert!(!regex.is_match(other), "{pattern} and {other}");
        }
        for odd in ["\\", "[\\", "[[:", "[^", "\\Q", "\\p{", "{", "{1", "[]", "\u{e9}{2}", "\\\u{e9}"] {
            let _ = compile(odd);
        }
    }
}
