//! The functions of the driver API that are implemented, as the generated symbols call them: a few lines each, over the
//! core. A function that is declared here is exported: `katydid_api_codegen` reads these modules.

mod code;
mod context;
mod memory;
mod sync;
mod texture;

pub(crate) use code::*;
pub(crate) use context::*;
pub(crate) use memory::*;
pub(crate) use sync::*;
pub(crate) use texture::*;
