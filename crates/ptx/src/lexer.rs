//! Splits text into tokens, one at a time, with line and column.
//!
//! A word after a dot is one token together with its dot (`.f32`, `.L2::128B`, `.1d`), because PTX reads it that way. So `%tid.x`
//! is a word and a dotted word. The lexer drops comments and white space.

use crate::error::ParseError;

/// A token and where it starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Token<'a> {
    /// Kind of the token.
    pub(crate) kind: TokenKind<'a>,
    /// Line, from 1.
    pub(crate) line: u32,
    /// Byte column, from 1.
    pub(crate) column: u32,
    /// The source text; empty at the end.
    pub(crate) text: &'a str,
}

/// Kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TokenKind<'a> {
    /// `name`, `%r1`, `$L__BB0`
    Word(&'a str),
    /// `.name`, without the dot.
    Dotted(&'a str),
    /// An integer; the `U` suffix is dropped.
    Int(u64),
    /// Bits of `0f...`
    F32(u32),
    /// Bits of `0d...` or of a decimal number.
    F64(u64),
    /// `"..."` without the quotes.
    Text(&'a str),
    /// Any single punctuation character.
    Punct(u8),
    /// The end of the text.
    End,
}

/// Reads tokens from a text.
#[derive(Debug, Clone)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    line_start: usize,
}

impl<'a> Lexer<'a> {
    /// Returns a lexer at the start of `text`.
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1, line_start: 0 }
    }

    /// Returns the next token; after the last, always `End`.
    pub(crate) fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let (start, line, column) = (self.at, self.line, self.column());
        let kind = self.kind()?;
        let text = self.text.get(start..self.at).unwrap_or_default();
        Ok(Token { kind, line, column, text })
    }

    /// Returns the column of the current byte, from 1.
    fn column(&self) -> u32 {
        (self.at - self.line_start) as u32 + 1
    }

    /// Returns the byte `ahead` of the current one; 0 past the end.
    fn peek(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Advances by one byte, and counts lines.
    fn bump(&mut self) {
        if self.peek(0) == b'\n' {
            self.line += 1;
            self.line_start = self.at + 1;
        }
        self.at += 1;
    }

    /// Returns an error at the current position, with the text up to the next blank.
    fn error(&self, message: &str) -> ParseError {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let token = rest.split_whitespace().next().unwrap_or_default();
        ParseError::at(self.line, self.column(), token, message)
    }

    /// Skips white space and comments.
    fn skip_blank(&mut self) -> Result<(), ParseError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b' ' | b'\t' | b'\r' | b'\n' | 0x0c, _) => self.bump(),
                // Images are NUL-padded. As for the driver, a NUL ends the text.
                (0, _) if self.at < self.text.len() => self.text = self.text.get(..self.at).unwrap_or_default(),
                (b'/', b'/') => self.skip_while(|byte| byte != b'\n'),
                (b'/', b'*') => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    /// Skips `/* ... */`; comments do not nest.
    fn skip_comment(&mut self) -> Result<(), ParseError> {
        let unclosed = self.error("comment without end");
        self.at += 2;
        while (self.peek(0), self.peek(1)) != (b'*', b'/') {
            if self.at >= self.text.len() {
                return Err(unclosed);
            }
            self.bump();
        }
        self.at += 2;
        Ok(())
    }

    /// Skips bytes that satisfy `keep`.
    fn skip_while(&mut self, keep: impl Fn(u8) -> bool) {
        while self.at < self.text.len() && keep(self.peek(0)) {
            self.bump();
        }
    }

    /// Reads one token, whose first byte decides its kind.
    fn kind(&mut self) -> Result<TokenKind<'a>, ParseError> {
        match self.peek(0) {
            0 => Ok(TokenKind::End),
            b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'.' if is_word(self.peek(1)) => {
                self.at += 1;
                Ok(TokenKind::Dotted(self.dotted()))
            }
            first if is_word(first) || first == b'%' => {
                self.at += 1;
                let start = self.at - 1;
                self.skip_while(is_word);
                Ok(TokenKind::Word(self.text.get(start..self.at).unwrap_or_default()))
            }
            punct if punct.is_ascii_graphic() => {
                self.at += 1;
                Ok(TokenKind::Punct(punct))
            }
            _ => Err(self.error("character that is not part of PTX")),
        }
    }

    /// Reads a word with `::` inside, as in `.L1::no_allocate`.
    fn dotted(&mut self) -> &'a str {
        let start = self.at;
        loop {
            self.skip_while(is_word);
            if (self.peek(0), self.peek(1)) != (b':', b':') || !is_word(self.peek(2)) {
                return self.text.get(start..self.at).unwrap_or_default();
            }
            self.at += 2;
        }
    }

    /// Reads `"..."` without unescaping: only file names and debug sections have strings.
    fn string(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let unclosed = self.error("string without end");
        self.at += 1;
        let start = self.at;
        while self.peek(0) != b'"' {
            if self.at >= self.text.len() || self.peek(0) == b'\n' {
                return Err(unclosed);
            }
            self.at += if self.peek(0) == b'\\' && self.peek(1) == b'"' { 2 } else { 1 };
        }
        let inside = self.text.get(start..self.at).unwrap_or_default();
        self.at += 1;
        Ok(TokenKind::Text(inside))
    }

    /// Reads a number in any notation, with a decimal point and an exponent.
    ///
    /// A point ends a number that is written as bits, so `0f3F800000.x` is no decimal fraction.
    fn number(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let (start, begin) = (self.at, self.clone());
        self.skip_while(is_word);
        if self.peek(0) == b'.' && self.peek(1).is_ascii_digit() && !self.radix_prefix(start) {
            self.at += 1;
            self.skip_while(is_word);
        }
        let exponent_sign =
            matches!(self.peek(0), b'+' | b'-') && matches!(self.text.as_bytes()[self.at - 1], b'e' | b'E');
        if exponent_sign && !self.radix_prefix(start) && self.peek(1).is_ascii_digit() {
            self.at += 1;
            self.skip_while(is_word);
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        number_value(text).ok_or_else(|| begin.error("number that cannot be read"))
    }

    /// Returns whether the number at `start` is written as bits: `0x`, `0f`, `0d`, `0b`.
    fn radix_prefix(&self, start: usize) -> bool {
        let bytes = self.text.as_bytes();
        bytes.get(start) == Some(&b'0') && bytes.get(start + 1).is_some_and(|byte| byte.is_ascii_alphabetic())
    }
}

/// Returns whether a byte belongs to a name. Bytes above 127 belong to UTF-8 names that nvcc passes through.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// Returns the value of a PTX number; `None` when it is malformed or too large.
fn number_value(text: &str) -> Option<TokenKind<'static>> {
    let prefix = text.get(..2).unwrap_or_default();
    let rest = text.get(2..).unwrap_or_default();
    match prefix {
        "0f" | "0F" if rest.len() == 8 => return u32::from_str_radix(rest, 16).ok().map(TokenKind::F32),
        "0d" | "0D" if rest.len() == 16 => return u64::from_str_radix(rest, 16).ok().map(TokenKind::F64),
        _ => {}
    }
    let digits = text.strip_suffix('U').unwrap_or(text);
    let integer = match prefix {
        "0x" | "0X" => u64::from_str_radix(digits.get(2..)?, 16),
        "0b" | "0B" => u64::from_str_radix(digits.get(2..)?, 2),
        _ if digits.len() > 1 && digits.starts_with('0') && !digits.contains(['.', 'e', 'E']) => {
            u64::from_str_radix(digits, 8)
        }
        _ => digits.parse(),
    };
    match integer {
        Ok(value) => Some(TokenKind::Int(value)),
        Err(_) if text.contains(['.', 'e', 'E']) => {
            text.parse::<f64>().ok().map(|value| TokenKind::F64(value.to_bits()))
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind<'_>> {
        let mut lexer = Lexer::new(text);
        let mut kinds = Vec::new();
        loop {
            match lexer.next().unwrap().kind {
                TokenKind::End => return kinds,
                kind => kinds.push(kind),
            }
        }
    }

    #[test]
    fn words_keep_their_sigils_and_dots_split_them() {
        use TokenKind::{Dotted, Word};
        assert_eq!(
            kinds("mov.u32 %r1 %tid.x $L__1"),
            [Word("mov"), Dotted("u32"), Word("%r1"), Word("%tid"), Dotted("x"), Word("$L__1")]
        );
        assert_eq!(kinds(".L1::no_allocate .1d"), [Dotted("L1::no_allocate"), Dotted("1d")]);
    }

    #[test]
    fn numbers_come_in_every_base_and_as_float_bits() {
        use TokenKind::{F32, F64, Int};
        assert_eq!(
            kinds("7 0x1F 0b101 017 12U 0f3F800000"),
            [Int(7), Int(31), Int(5), Int(15), Int(12), F32(0x3f80_0000)]
        );
        assert_eq!(
            kinds("0d3FF0000000000000 1.5 2e-1"),
            [F64(0x3ff0_0000_0000_0000), F64(1.5_f64.to_bits()), F64(0.2_f64.to_bits())]
        );
    }

    #[test]
    fn comments_strings_and_a_trailing_nul_are_handled() {
        assert_eq!(
            kinds("a /* b\n c */ d // e\n\"f g\"\0junk"),
            [TokenKind::Word("a"), TokenKind::Word("d"), TokenKind::Text("f g")]
        );
    }

    #[test]
    fn places_count_lines_and_columns_from_one() {
        let mut lexer = Lexer::new("a\n  /* x\n */ b");
        let first = lexer.next().unwrap();
        let second = lexer.next().unwrap();
        assert_eq!((first.line, first.column, second.line, second.column), (1, 1, 3, 5));
    }

    #[test]
    fn unfinished_things_are_errors() {
        for text in ["/* a", "\"a", "\"a\n\"", "0x", "0xfffffffffffffffff", "09", "\u{1}"] {
            assert!(Lexer::new(text).next().is_err(), "{text:?}");
        }
    }
}
