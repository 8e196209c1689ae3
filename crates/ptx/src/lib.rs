//! PTX text to a syntax tree.
//!
//! [`parse`] reads everything that nvcc and NVRTC emit, and gives each instruction as its opcode, modifiers and
//! operands: it knows the shape of PTX, not which instructions exist. That is the decoder's business, so a new opcode
//! needs no change here. The tree borrows its names from the text.
//!
//! The rule of the crate: no input makes the parser panic or recurse without bound; damage is a [`ParseError`] with line
//! and token.

pub mod ast;
mod constant;
mod error;
mod lexer;
mod parser;

pub use error::ParseError;

/// Parses one PTX text.
pub fn parse(text: &str) -> Result<ast::Module<'_>, ParseError> {
    parser::Parser::new(text).module()
}

/// Line and version of a text, without reading more of it than its first directive; `None` if that is not `.version`.
pub fn version_of(text: &str) -> Option<(u32, (u32, u32))> {
    parser::Parser::new(text).first_version()
}
