//! Code that programs load, and the options of its compilation: pieces that arrive, images of live modules, the store of the server.

pub(crate) mod jit_options;
pub(crate) mod module_images;
pub(crate) mod store;
