//! Images of code that programs load: pieces that arrive, images of live modules, the store of the server.

pub(crate) mod module_images;
pub(crate) mod store;
