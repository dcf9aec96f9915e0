//! The lexer: splits the text of an expression into tokens.

use crate::ast::Literal;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Literal(Literal),
    Ident(String),
    /// A name in backticks, which may contain characters that identifiers may not.
    Quoted(String),
    /// Operators and punctuation.
    Symbol(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Spanned {
    pub token: Token,
    /// Offset of the first character.
    pub at: u32,
    /// The token as written.
    pub text: String,
}

const SYMBOLS: [&str; 27] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", "(", ")", "[", "]", "{", "}",
    ".", ",", "=", "&", "|",
];

/// The tokens of a string, and the lexical errors (offset and message).
pub(crate) fn lex(text: &str) -> (Vec<Spanned>, Vec<(u32, String)>) {
    let mut lexer = Lexer { chars: text.chars().collect(), at: 0, tokens: Vec::new(), errors: Vec::new() };
    lexer.run();
    (lexer.tokens, lexer.errors)
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    tokens: Vec<Spanned>,
    errors: Vec<(u32, String)>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn push(&mut self, token: Token, start: usize) {
        let text = self.chars[start..self.at].iter().collect();
        self.tokens.push(Spanned { token, at: start as u32, text });
    }

    fn run(&mut self) {
        while self.at < self.chars.len() {
            let start = self.at;
            let c = self.peek(0);
            if matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}') {
                self.at += 1;
            } else if c == '/' && self.peek(1) == '/' {
                while self.at < self.chars.len() && self.peek(0) != '\n' {
                    self.at += 1;
                }
            } else if c.is_ascii_digit() || (c == '.' && self.peek(1).is_ascii_digit()) {
                self.number();
            } else if c == '_' || c.is_ascii_alphabetic() {
                if !self.string_literal() {
                    while self.peek(0) == '_' || self.peek(0).is_ascii_alphanumeric() {
                        self.at += 1;
                    }
                    let word: String = self.chars[start..self.at].iter().collect();
                    let token = match word.as_str() {
                        "true" => Token::Literal(Literal::Bool(true)),
                        "false" => Token::Literal(Literal::Bool(false)),
                        "null" => Token::Literal(Literal::Null),
                        "in" => Token::Symbol("in"),
                        _ => Token::Ident(word),
                    };
                    self.push(token, start);
                }
            } else if c == '"' || c == '\'' {
                self.string_literal();
            } else if c == '`' && self.chars[start + 1..].contains(&'`') {
                self.at += 1;
                while self.peek(0) != '`' {
                    self.at += 1;
                }
                let name = self.chars[start + 1..self.at].iter().collect();
                self.at += 1;
                self.push(Token::Quoted(name), start);
            } else {
                let rest: String = self.chars[start..self.chars.len().min(start + 2)].iter().collect();
                match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                    Some(symbol) if !matches!(*symbol, "=" | "&" | "|") => {
                        self.at += symbol.len();
                        self.push(Token::Symbol(symbol), start);
                    }
                    _ => {
                        self.at += 1;
                        self.unrecognized(start);
                    }
                }
            }
        }
        let end = self.chars.len();
        self.tokens.push(Spanned { token: Token::End, at: end as u32, text: "<EOF>".to_owned() });
    }

    fn unrecognized(&mut self, start: usize) {
        let text: String = self.chars[start..self.at].iter().collect();
        self.errors.push((start as u32, format!("Syntax error: token recognition error at: '{text}'")));
    }

    fn number(&mut self) {
        let start = self.at;
        let mut is_float = false;
        if self.peek(0) == '0' && self.peek(1) == 'x' && self.peek(2).is_ascii_hexdigit() {
            self.at += 2;
            while self.peek(0).is_ascii_hexdigit() {
                self.at += 1;
            }
        } else {
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
            if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
                is_float = true;
                self.at += 1;
                while self.peek(0).is_ascii_digit() {
                    self.at += 1;
                }
            }
            if matches!(self.peek(0), 'e' | 'E') {
                let sign = usize::from(matches!(self.peek(1), '+' | '-'));
                if self.peek(1 + sign).is_ascii_digit() {
                    is_float = true;
                    self.at += 1 + sign;
                    while self.peek(0).is_ascii_digit() {
                        self.at += 1;
                    }
                }
            }
        }
        let text: String = self.chars[start..self.at].iter().collect();
        let is_uint = !is_float && matches!(self.peek(0), 'u' | 'U');
        if is_uint {
            self.at += 1;
        }
        let whole = || match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse::<u64>().ok(),
        };
        // The sign of a literal is a separate token, so the smallest integer is only valid after a
        // minus.
        let after_minus = matches!(self.tokens.last(), Some(Spanned { token: Token::Symbol("-"), at, .. }) if *at + 1 == start as u32);
        let literal = if is_float {
            text.parse().ok().filter(|float: &f64| float.is_finite()).map(Literal::Double)
        } else if is_uint {
            whole().map(Literal::Uint)
        } else {
            match whole() {
                Some(value) if after_minus && value == i64::MIN.unsigned_abs() => Some(Literal::Int(i64::MIN)),
                Some(value) => i64::try_from(value).ok().map(Literal::Int),
                None => None,
            }
        };
        match literal {
            Some(literal) => self.push(Token::Literal(literal), start),
            None => {
                let kind = if is_float {
                    "double"
                } else if is_uint {
                    "uint"
                } else {
                    "int"
                };
                self.errors.push((start as u32, format!("invalid {kind} literal")));
                self.push(Token::Literal(Literal::Int(0)), start);
            }
        }
    }

    /// Reads a string or bytes literal at the current position; returns `false`, without advancing,
    /// if there is none.
    fn string_literal(&mut self) -> bool {
        let start = self.at;
        let (mut raw, mut bytes, mut prefix) = (false, false, 0);
        loop {
            match self.peek(prefix) {
                'r' | 'R' if !raw => raw = true,
                'b' | 'B' if !bytes && !raw => bytes = true,
                '"' | '\'' => break,
                _ => return false,
            }
            prefix += 1;
        }
        let quote = self.peek(prefix);
        let triple = self.peek(prefix + 1) == quote && self.peek(prefix + 2) == quote;
        let width = if triple { 3 } else { 1 };
        self.at += prefix + width;
        let body = self.at;
        loop {
            let c = self.peek(0);
            if self.at >= self.chars.len() || (!triple && (c == '\n' || c == '\r')) {
                self.unrecognized(start);
                return true;
            }
            let closes = (0..width).all(|ahead| self.peek(ahead) == quote);
            if closes {
                break;
            }
            self.at = (self.at + if c == '\\' && !raw { 2 } else { 1 }).min(self.chars.len());
        }
        let end = self.at;
        self.at += width;
        match unescape(&self.chars[body..end], raw, bytes) {
            Ok(data) if bytes => self.push(Token::Literal(Literal::Bytes(data)), start),
            Ok(data) => {
                // Escapes in strings only produce whole characters.
                let text = String::from_utf8_lossy(&data).into_owned();
                self.push(Token::Literal(Literal::String(text)), start);
            }
            Err(()) => {
                self.unrecognized(start);
                self.push(Token::Literal(Literal::Null), start);
            }
        }
        true
    }
}

/// Resolves the escapes of a literal's body. In bytes, `\\x41` and `\\101` are octets; in strings
/// they are characters.
fn unescape(body: &[char], raw: bool, bytes: bool) -> Result<Vec<u8>, ()> {
    let mut out = Vec::with_capacity(body.len());
    let mut at = 0;
    while let Some(&c) = body.get(at) {
        at += 1;
        let escape = match c {
            '\\' if !raw => *body.get(at).ok_or(())?,
            // Line ends are normalized to `\n`.
            '\r' if body.get(at) == Some(&'\n') => continue,
            '\r' => {
                out.push(b'\n');
                continue;
            }
            _ => {
                push_char(&mut out, c);
                continue;
            }
        };
        let (from, width, radix) = match escape {
            'x' | 'X' => (at + 1, 2, 16),
            'u' => (at + 1, 4, 16),
            'U' => (at + 1, 8, 16),
            '0'..='3' => (at, 3, 8),
            _ => {
                at += 1;
                push_char(&mut out, simple_escape(escape).ok_or(())?);
                continue;
            }
        };
        let digits: String = body.get(from..from + width).ok_or(())?.iter().collect();
        let code = u32::from_str_radix(&digits, radix).map_err(|_| ())?;
        at = from + width;
        if bytes && width <= 3 {
            out.push(u8::try_from(code).map_err(|_| ())?);
        } else {
            push_char(&mut out, char::from_u32(code).ok_or(())?);
        }
    }
    Ok(out)
}

fn push_char(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// The character of a one-letter escape.
pub(crate) fn simple_escape(escape: char) -> Option<char> {
    Some(match escape {
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        '\\' | '\'' | '"' | '`' | '?' => escape,
        _ => return None,
    })
}
