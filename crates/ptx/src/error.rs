//! What is wrong with a text, said the way ptxas says it: line, token, what was expected.

/// Why a text is not PTX. Nothing of the text has been used when this is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message} near '{token}'")]
pub struct ParseError {
    /// Line in the text, from 1.
    pub line: u32,
    /// Byte column in the line, from 1.
    pub column: u32,
    /// The token at that place, shortened; empty at the end of the text.
    pub token: String,
    /// What was expected, or what is wrong with the token.
    pub message: String,
}

/// Longest piece of a token that a message quotes, in characters.
const MAX_QUOTED_CHARS: usize = 40;

impl ParseError {
    /// An error at a place of `text`; a long token is cut.
    pub(crate) fn at(line: u32, column: u32, token: &str, message: impl Into<String>) -> Self {
        let token = token.chars().take(MAX_QUOTED_CHARS).collect();
        Self { line, column, token, message: message.into() }
    }
}
