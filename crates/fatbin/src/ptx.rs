//! PTX text from images.

use std::borrow::Cow;

use crate::compilation::Compilation;

/// PTX text from an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptx<'a> {
    /// The architecture of the text; 0 if only the text itself names it.
    pub sm: u32,
    /// PTX text, decompressed.
    pub text: Cow<'a, str>,
    /// The options of its compilation.
    pub compilation: Compilation,
}
