//! Code that programs load, and the options of its compilation: pieces that arrive, images of live modules, and the
//! server's module cache.

pub(crate) mod jit_options;
pub(crate) mod module_cache;
pub(crate) mod module_images;
