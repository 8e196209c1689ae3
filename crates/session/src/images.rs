//! Images of live libraries: a driver that was told that an image stays reads it as long as the library lives.

use std::collections::HashMap;

use katydid_fatbin::OwnedImage;

/// Images by the wire id of their library.
#[derive(Debug, Default)]
pub(crate) struct Images {
    held: HashMap<u32, OwnedImage>,
}

impl Images {
    /// Keeps `image` until [`Images::forget`].
    pub(crate) fn keep(&mut self, library: u32, image: OwnedImage) {
        self.held.insert(library, image);
    }

    /// The library was unloaded.
    pub(crate) fn forget(&mut self, library: u32) {
        self.held.remove(&library);
    }
}
