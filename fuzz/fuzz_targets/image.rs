//! Module images as files and in their flat form.

#![no_main]

use katydid_fatbin::Image;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for image in [Image::from_bytes(bytes), Image::decode(bytes)].into_iter().flatten() {
        assert_eq!(Image::decode(&image.encode()).as_ref(), Ok(&image));
        let _ = (image.ptx(None), image.ptx(Some(90)));
        for container in image.containers().unwrap_or_default() {
            for entry in container.entries().flatten() {
                let _ = (entry.name(), entry.contents());
            }
        }
        assert!(!image.rebuild().as_ptr().is_null() || image.parts().is_empty());
    }
});
