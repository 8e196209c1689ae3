//! Reads the API spec files (`spec/*.api`) into a checked model.
//!
//! The grammar is described in `spec/README.md`. Parsing is in [`mod@parse`], the model and its invariants in
//! [`model`]: what [`parse()`] returns has been checked, so that the generator never meets a line it cannot
//! turn into code. Errors name file and line, as compilers do: `cuda.api:212: ...`.

mod check;
mod error;
mod model;
mod parse;

pub use error::{LineError, SpecError};
pub use model::{
    Alias, Api, ApiVersion, Body, Class, Context, Function, JournalRule, Object, Param, ParameterKind, Sort, Type,
    Types,
};
pub use parse::{parse, parse_with};
