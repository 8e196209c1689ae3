//! Parses PTX text into a syntax tree.
//!
//! [`parse`] reads everything that nvcc and NVRTC emit, and returns each instruction as its opcode, modifiers and operands. It
//! knows the shape of PTX, but not which instructions exist. The decoder knows those, so a new opcode needs no change here. The
//! tree borrows its names from the text.
//!
//! The rule of the crate: no input makes the parser panic or recurse without bound. A damaged text fails with a [`ParseError`]
//! that has line and token.

pub mod ast;
mod constant;
mod error;
mod lexer;
mod parser;

pub use error::ParseError;
pub use parser::WARP_THREADS;

/// Parses one PTX text.
pub fn parse(text: &str) -> Result<ast::Module<'_>, ParseError> {
    parser::Parser::new(text).module()
}

/// Returns line and version of a text, and reads only its first directive; `None` if that is not `.version`.
pub fn version_of(text: &str) -> Option<(u32, (u32, u32))> {
    parser::Parser::new(text).first_version()
}
