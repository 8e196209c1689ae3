//! The tokens of a text, with one lookahead, and small parts: names, numbers, skipped directives.

use crate::error::ParseError;
use crate::lexer::{Lexer, Token, TokenKind};

/// Deepest accepted nesting of braces; compilers nest two or three deep.
const MAX_BRACE_DEPTH: u32 = 64;

/// A parser over one text.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The token read ahead, if any.
    lookahead: Option<Token<'a>>,
    depth: u32,
}

/// Result of most parsing functions.
pub(super) type ParseResult<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    /// Returns a parser at the start of `text`.
    pub(crate) fn new(text: &'a str) -> Self {
        Self { lexer: Lexer::new(text), lookahead: None, depth: 0 }
    }

    /// Takes the next token.
    pub(super) fn next(&mut self) -> ParseResult<Token<'a>> {
        match self.lookahead.take() {
            Some(token) => Ok(token),
            None => self.lexer.next(),
        }
    }

    /// Looks at the next token without taking it.
    pub(super) fn peek(&mut self) -> ParseResult<Token<'a>> {
        let token = self.next()?;
        self.lookahead = Some(token);
        Ok(token)
    }

    /// Takes the next token if it is `punct`.
    pub(super) fn accept(&mut self, punct: u8) -> ParseResult<bool> {
        let found = self.peek()?.kind == TokenKind::Punct(punct);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    /// Takes the next token, which must be `punct`.
    pub(super) fn expect(&mut self, punct: u8) -> ParseResult<()> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Punct(found) if found == punct => Ok(()),
            _ => Err(error(&token, format!("expected '{}'", char::from(punct)))),
        }
    }

    /// Takes a name.
    pub(super) fn word(&mut self) -> ParseResult<&'a str> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Word(word) => Ok(word),
            _ => Err(error(&token, "expected a name")),
        }
    }

    /// Takes an integer.
    pub(super) fn int(&mut self) -> ParseResult<u64> {
        let token = self.next()?;
        match token.kind {
            TokenKind::Int(value) => Ok(value),
            _ => Err(error(&token, "expected an integer")),
        }
    }

    /// Enters one level of nesting; `ascend` leaves it.
    pub(super) fn descend(&mut self) -> ParseResult<()> {
        self.depth += 1;
        if self.depth > MAX_BRACE_DEPTH {
            let token = self.peek()?;
            return Err(error(&token, "nested too deeply"));
        }
        Ok(())
    }

    /// Leaves a level of nesting.
    pub(super) fn ascend(&mut self) {
        self.depth -= 1;
    }

    /// Puts back the token that `next` returned last.
    pub(super) fn put_back(&mut self, token: Token<'a>) {
        self.lookahead = Some(token);
    }

    /// Parses words with commas between them.
    pub(super) fn word_list(&mut self) -> ParseResult<Vec<&'a str>> {
        let mut words = vec![self.word()?];
        while self.accept(b',')? {
            words.push(self.word()?);
        }
        Ok(words)
    }

    /// Skips `.section .debug_info { ... }`, or `.section name` alone on its line.
    pub(super) fn skip_section(&mut self) -> ParseResult<()> {
        let name = self.next()?;
        let brace = self.peek()?;
        if brace.kind != TokenKind::Punct(b'{') {
            return self.skip_line(name.line);
        }
        let mut open = 0_u32;
        loop {
            let token = self.next()?;
            match token.kind {
                TokenKind::Punct(b'{') => open += 1,
                TokenKind::Punct(b'}') if open == 1 => return Ok(()),
                TokenKind::Punct(b'}') => open -= 1,
                TokenKind::End => return Err(error(&token, "section without end")),
                _ => {}
            }
        }
    }

    /// Skips the rest of line `line`: `.loc` and `.file` have no terminator.
    pub(super) fn skip_line(&mut self, line: u32) -> ParseResult<()> {
        while self.peek()?.line == line && self.peek()?.kind != TokenKind::End {
            self.next()?;
        }
        Ok(())
    }

    /// Skips up to and including the next `;`.
    pub(super) fn skip_statement(&mut self) -> ParseResult<()> {
        loop {
            let token = self.next()?;
            match token.kind {
                TokenKind::Punct(b';') => return Ok(()),
                TokenKind::End => return Err(error(&token, "expected ;")),
                _ => {}
            }
        }
    }
}

/// Returns an error at `token`.
pub(super) fn error(token: &Token<'_>, message: impl Into<String>) -> ParseError {
    ParseError::at(token.line, token.column, token.text, message)
}
