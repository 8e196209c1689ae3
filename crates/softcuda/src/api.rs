//! The implemented functions of the driver API, a few lines each over the core. The generated symbols call them. Each function
//! declared here is exported: `katydid_api_codegen` reads these modules.

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
