//! Images of live modules and libraries.
//!
//! A driver reads an image as long as its library lives, if the load promises that the image stays. The journal keeps the
//! images of modules as well. Equal images are kept once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use katydid_fatbin::OwnedImage;

use crate::code::jit_options::JitOptions;

/// All images of a session.
#[derive(Debug, Default)]
pub(crate) struct ModuleImages {
    /// By the wire id of their library: what the driver reads, and what it may write to when it compiles.
    by_library: HashMap<u32, (Arc<OwnedImage>, JitOptions)>,
    /// By length: all that is still needed by any thread.
    by_length: HashMap<usize, Vec<Weak<OwnedImage>>>,
}

impl ModuleImages {
    /// Returns an equal image that is there already, or this one.
    pub(crate) fn share(&mut self, image: OwnedImage) -> Arc<OwnedImage> {
        let same_length = self.by_length.entry(image.length()).or_default();
        same_length.retain(|weak_image| weak_image.strong_count() > 0);
        let known = same_length.iter().filter_map(Weak::upgrade).find(|known_image| known_image.is_same(&image));
        known.unwrap_or_else(|| {
            let image = Arc::new(image);
            same_length.push(Arc::downgrade(&image));
            image
        })
    }

    /// Keeps `image`, and the options of its load, until [`ModuleImages::forget`].
    pub(crate) fn keep(&mut self, library: u32, image: Arc<OwnedImage>, options: JitOptions) {
        self.by_library.insert(library, (image, options));
    }

    /// Forgets the image of an unloaded library.
    pub(crate) fn forget(&mut self, library: u32) {
        self.by_library.remove(&library);
        // Otherwise lengths without images would accumulate in a program that keeps loading different code.
        if self.by_length.len() > 2 * self.by_library.len() + 64 {
            self.by_length.retain(|_, images| images.iter().any(|image| image.strong_count() > 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use katydid_fatbin::ModuleImage;

    use super::*;

    fn image(text: &[u8]) -> OwnedImage {
        ModuleImage::from_bytes(text).unwrap().rebuild()
    }

    #[test]
    fn the_same_image_is_kept_once_and_as_long_as_it_is_needed() {
        let mut images = ModuleImages::default();
        let (one, same) = (images.share(image(b".version 8.0")), images.share(image(b".version 8.0")));
        let other = images.share(image(b".version 9.0"));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!(one.image().encode(), image(b".version 8.0").image().encode());
        images.keep(7, one, JitOptions::default());
        drop((same, other));
        assert!(images.by_library.contains_key(&7));
        images.forget(7);
        assert!(images.by_length.values().flatten().all(|kept| kept.strong_count() == 0));
    }
}
