//! One untrusted module image: as a file, in its flat form, rebuilt, and with every entry unpacked.
//!
//! Shared by the fuzz target `image` and by the test of kept and damaged images. An accepted image must be the same when it is
//! written and read again.

use katydid_fatbin::ModuleImage;

/// Reads the bytes in every form; returns how many forms were accepted.
pub(crate) fn parse_all(bytes: &[u8]) -> usize {
    let images: Vec<ModuleImage<'_>> =
        [ModuleImage::from_bytes(bytes), ModuleImage::decode(bytes)].into_iter().flatten().collect();
    for image in &images {
        assert_eq!(ModuleImage::decode(&image.encode()).as_ref(), Ok(image));
        let _ = (image.ptx(None), image.ptx(Some(90)));
        for container in image.containers().unwrap_or_default() {
            for entry in container.entries().flatten() {
                let _ = (entry.name(), entry.contents());
            }
        }
        assert!(!image.rebuild().as_ptr().is_null() || image.parts().is_empty());
    }
    images.len()
}
