//! Facts that travel as opaque bytes inside messages: the driver is asked once, and the program's side answers from then on.
//!
//! | type | message |
//! |---|---|
//! | [`Facts`] | reply of `kdFacts` |
//! | [`ContextFacts`] | replies of `kdContextRetain`, `kdContextCreate` |
//! | [`FunctionFacts`] | replies of `kdModuleFunction`, `kdLibraryKernel`, `kdKernelFunction`, `kdFunctionFacts` |
//! | names ([`encode_names`]) | replies of `kdModuleFunctionNames`, `kdLibraryKernelNames` |
//! | [`GraphFacts`], [`StepFacts`] | `kdGraphInstantiate` (sent in pieces), `kdGraphChange`, `kdGraphArguments` |
//! | [`JitOption`] list | `kdModuleLoad`, `kdLibraryLoad` |
//!
//! All are little-endian without padding; a text is a u32 length and its bytes. Each file begins with its layouts. A reader
//! accepts counts only within their bounds, so hostile bytes cause an error, and never cost memory.

mod bytes;
mod context;
mod device;
mod function;
mod graph;
mod jit;

pub use context::ContextFacts;
pub use device::{DeviceFacts, Facts, P2P_ATTRIBUTE_COUNT, PeerFacts};
pub use function::{FunctionFacts, ParameterFacts, decode_names, encode_names};
pub use graph::{EdgeFacts, GraphFacts, StepFacts, StepWork};
pub use jit::{JitOption, decode_options, encode_options};

/// Why a block of facts could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// The bytes end inside a field.
    #[error("facts end {missing} bytes too early")]
    Truncated {
        /// Bytes that the field needs beyond those of the block.
        missing: usize,
    },
    /// A count is beyond its bound.
    #[error("facts name {count} {what}, more than {limit}")]
    TooMany {
        /// Name of the counted entries, in the plural.
        what: &'static str,
        /// Number of entries that the block announces.
        count: u32,
        /// Most entries that the format allows.
        limit: u32,
    },
    /// Bytes are left after the last field.
    #[error("facts carry {left} bytes too many")]
    Trailing {
        /// Bytes behind the last field.
        left: usize,
    },
}

/// The driver's answer to one query: its code, and the value, which is valid only when the code is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DriverAnswer<T> {
    /// `CUresult` of the query.
    pub code: u32,
    /// The answer; 0 when `code` is not.
    pub value: T,
}
