//! Objects of the program: handles, and one module per kind.

pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod discovery;
pub(crate) mod event;
pub(crate) mod handle;
pub(crate) mod image;
pub(crate) mod image_facts;
pub(crate) mod image_shape;
pub(crate) mod info;
pub(crate) mod kernel;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod pending_command;
pub(crate) mod platform;
pub(crate) mod program;
pub(crate) mod queue;
pub(crate) mod sampler;
pub(crate) mod svm;
