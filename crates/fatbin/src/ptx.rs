//! PTX text as images hold it.

use std::borrow::Cow;

use crate::compilation::Compilation;

/// PTX text out of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptx<'a> {
    /// The architecture it was made for; 0 if only the text itself has it.
    pub sm: u32,
    /// PTX text, decompressed.
    pub text: Cow<'a, str>,
    /// The options of its compilation.
    pub compilation: Compilation,
}
