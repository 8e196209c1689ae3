//! Images of code that programs load: uploaded pieces, images of live modules, the server's store.

pub(crate) mod module_images;
pub(crate) mod store;
