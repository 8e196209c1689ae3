//! Variables that images declare, looked up once: unpacking the code of a large library takes a second, for which no program
//! should be paused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use katydid_fatbin::{OwnedImage, Variables};

use super::error::SnapshotError;

/// Variables that the images of modules declare.
#[derive(Debug, Default)]
pub(super) struct DeclaredVariables {
    /// By the address of the image.
    images: Mutex<HashMap<usize, DeclaredImage>>,
}

#[derive(Debug)]
struct DeclaredImage {
    /// Distinguishes an image from an earlier one at the same address.
    image: Weak<OwnedImage>,
    sm: u32,
    variables: Arc<Variables<'static>>,
}

/// An image, and the name of its owner.
pub(super) struct NamedImage {
    pub(super) name: String,
    pub(super) image: Arc<OwnedImage>,
}

impl DeclaredVariables {
    /// Returns the variables of an image on a device of architecture `sm`.
    ///
    /// # Errors
    ///
    /// The image cannot be read: the driver has loaded a format that the worker does not know.
    pub(super) fn of(&self, it: &NamedImage, sm: u32, is_soft: bool) -> Result<Arc<Variables<'static>>, SnapshotError> {
        let image_address = Arc::as_ptr(&it.image) as usize;
        let fits = |entry: &&DeclaredImage| entry.sm == sm && Weak::as_ptr(&entry.image) == Arc::as_ptr(&it.image);
        if let Some(entry) = self.lock().get(&image_address).filter(fits) {
            return Ok(Arc::clone(&entry.variables));
        }
        // Without the lock: others are looked up meanwhile.
        let variables_found = it.image.image().variables(sm, is_soft).map_err(|error| {
            let (code, reason) = (it.name.clone(), error.to_string());
            SnapshotError::Code { code, reason }
        })?;
        let variables = Arc::new(variables_found);
        let entry = DeclaredImage { image: Arc::downgrade(&it.image), sm, variables: Arc::clone(&variables) };
        let mut images = self.lock();
        images.retain(|_, entry| entry.image.strong_count() > 0);
        images.insert(image_address, entry);
        Ok(variables)
    }

    /// Looks images up in a separate thread. The rest is looked up when it is needed.
    pub(super) fn prepare(self: &Arc<Self>, images: Vec<NamedImage>, sm: u32, is_soft: bool) {
        let declared = Arc::clone(self);
        let work = move || images.iter().for_each(|image| drop(declared.of(image, sm, is_soft)));
        drop(thread::Builder::new().name("declared".into()).spawn(work));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, DeclaredImage>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
