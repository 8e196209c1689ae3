//! Generates Rust from the API model: one module a product.
//!
//! | product | used by | holds |
//! |---|---|---|
//! | [`function`] | cuda-sys | names, classes, the table behind `cuGetProcAddress` |
//! | [`message`] | wire | one structure a message, with its codec |
//! | [`stub`] | shim-cuda | every exported symbol |
//! | [`dispatch`] | session | decoding, handles, the driver call, the reply |
//! | [`driver`] | driver | the table of functions of a driver library |
//! | [`soft`] | softcuda | every exported symbol of the software driver |
//! | [`opencl`] | opencl-sys, shim-opencl, session-opencl | the same of OpenCL: symbols, dispatch, the table of ICD loaders |
//! | [`coverage`] | documentation | `docs/reference/api-coverage.md` |
//!
//! Output is text with one rule: it is written for readers of compiler errors, so each function stands in
//! lines of its own under the vendor's names. Golden tests hold every product to kept output.

mod build_script;
pub mod coverage;
pub mod dispatch;
pub mod driver;
pub mod function;
pub mod implemented;
mod journal;
pub mod message;
pub mod opencl;
pub mod soft;
pub mod source;
pub mod stub;
mod text;

pub use build_script::build_script;
pub use source::{SourceError, SpecFiles};
