//! Errors of a text, in the style of ptxas: line, token, what was expected.

/// Why a text is not PTX. No part of the text is used then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message} near '{token}'")]
pub struct ParseError {
    /// Line in the text, from 1.
    pub line: u32,
    /// Byte column in the line, from 1.
    pub column: u32,
    /// The token at that position, shortened; empty at the end of the text.
    pub token: String,
    /// What was expected, or what is wrong with the token.
    pub message: String,
}

/// Longest piece of a token that a message quotes, in characters.
const MAX_QUOTED_CHARS: usize = 40;

impl ParseError {
    /// Returns an error at a position of `text`. Cuts a long token.
    pub(crate) fn at(line: u32, column: u32, token: &str, message: impl Into<String>) -> Self {
        let token = token.chars().take(MAX_QUOTED_CHARS).collect();
        Self { line, column, token, message: message.into() }
    }
}
