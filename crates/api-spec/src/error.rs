//! Why a spec was refused: one error type that carries file and line, one variant per cause.

/// A fault of one line, as `file:line: fault`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {fault}")]
pub struct SpecError {
    /// Name of the spec file, as given to [`crate::parse()`].
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with the line.
    pub fault: LineError,
}

/// What can be wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line has no parameter list in parentheses.
    #[error("expected `name (parameters) class journal version`")]
    Shape,
    /// The parameter list is not closed.
    #[error("`(` is never closed")]
    Unclosed,
    /// A name is not an identifier, or is a word that Rust reserves.
    #[error("`{0}` cannot be a name")]
    Name(String),
    /// A parameter lacks its kind.
    #[error("parameter `{0}` has no kind: write `name: kind`")]
    ParamWithoutKind(String),
    /// A kind is not in the grammar.
    #[error("`{0}` is not a kind")]
    Kind(String),
    /// A call class is not in the grammar.
    #[error("`{0}` is not a class (local, enqueue, call, blocking, upcall, refused)")]
    Class(String),
    /// What stands behind `always` is no result code.
    #[error("`{0}` is not a result code (a number)")]
    Code(String),
    /// A journal class is not in the grammar.
    #[error("`{0}` is not a journal class (none, create(x), destroy(x), set(x), answer(x), data)")]
    Journal(String),
    /// The journal class names a parameter that the function lacks.
    #[error("the journal class names `{0}`, which is not a parameter")]
    JournalParam(String),
    /// A version is not `major.minor` or `-`.
    #[error("`{0}` is not a version (write 12.8, or - for none)")]
    Version(String),
    /// A function stands twice.
    #[error("`{name}` is defined on line {first}")]
    Twice {
        /// Name of the function.
        name: String,
        /// Number of the line that names it first.
        first: usize,
    },
    /// A parameter stands twice.
    #[error("parameter `{0}` is defined twice")]
    ParamTwice(String),
    /// A type is declared twice.
    #[error("the type `{0}` is declared twice")]
    TypeTwice(String),
    /// What stands behind `in` has no context.
    #[error("`{0}` has no context: write `in any`, `in none`, or a parameter that is a handle")]
    NoContext(String),
    /// The base of a per-thread variant is missing, or is itself a variant.
    #[error("`{0}` is not a function of this file that a variant could be of")]
    Base(String),
    /// A pointer, or a handle to be minted, that the generator cannot handle in a function without a hand-written body.
    #[error("`{0}` is something that only hand-written code understands: add `by path` or `via path`")]
    NeedsHand(String),
    /// A local or upcall function without a hand-written body.
    #[error("class `{0}` needs `by path`")]
    NeedsPath(Class),
    /// `in bytes` before the last parameter.
    #[error("`{0}: in bytes` must be the last parameter")]
    BytesNotLast(String),
}

use crate::model::Class;
