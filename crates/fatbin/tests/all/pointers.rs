//! Images by bare pointer, over the wire, and rebuilt.

#![expect(unsafe_code, reason = "images are passed by pointer")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{CUBIN, PTX, Stored, container, entry, entry_with_flags, ptx};
use katydid_fatbin::{ModuleImage, ModuleImageError, ModuleImageKind, OwnedImage, image_at};

/// Builds a cubin of 184 bytes whose last bytes belong to its program header.
fn cubin() -> Vec<u8> {
    let mut file = vec![0; 184];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0x7f, b'E', b'L', b'F', 2, 1]);
    put(32, &128_u64.to_le_bytes());
    put(40, &64_u64.to_le_bytes());
    for (at, value) in [(52, 64_u16), (54, 56), (56, 1), (58, 64), (60, 1)] {
        put(at, &value.to_le_bytes());
    }
    put(180, &[9, 9, 9, 9]);
    file
}

fn image_of(owned: &OwnedImage) -> ModuleImage<'_> {
    // SAFETY: `owned` holds an image at its pointer, for as long as it is borrowed.
    unsafe { image_at(owned.as_ptr()) }.unwrap()
}

/// Encodes an image, decodes it, rebuilds it, and finds it again by pointer.
fn carried(image: &ModuleImage<'_>) -> (ModuleImageKind, Vec<Vec<u8>>) {
    let flat = image.encode();
    let decoded = ModuleImage::decode(&flat).unwrap();
    assert_eq!(&decoded, image);
    let owned = decoded.rebuild();
    let moved = Box::new(owned);
    let found = image_of(&moved);
    (found.kind(), found.parts().iter().map(|part| part.to_vec()).collect())
}

fn wrapper(version: u64, container: &[u8], second: u64) -> [u64; 3] {
    [0x4662_43b1 | version << 32, container.as_ptr().expose_provenance() as u64, second]
}

#[test]
fn a_single_part_of_each_kind_arrives_whole() {
    let container = container(&[entry(PTX, 90, &ptx("x"), Stored::Zstd), entry(CUBIN, 90, &cubin(), Stored::Plain)]);
    for (bytes, kind) in [
        (cubin(), ModuleImageKind::Elf),
        (container, ModuleImageKind::Container),
        (b".version 9.0".to_vec(), ModuleImageKind::Ptx),
        (vec![b' '; 64], ModuleImageKind::Ptx),
        (b"".to_vec(), ModuleImageKind::Ptx),
    ] {
        assert_eq!(carried(&ModuleImage::from_bytes(&bytes).unwrap()), (kind, vec![bytes]));
    }
}

#[test]
fn a_wrapper_brings_its_container() {
    let container = container(&[entry(PTX, 90, &ptx("x"), Stored::Plain)]);
    let wrapper = wrapper(1, &container, 0);
    // SAFETY: `wrapper` is one, and it and the container outlive the image.
    let image = unsafe { image_at(wrapper.as_ptr().cast()) }.unwrap();
    assert_eq!(carried(&image), (ModuleImageKind::Wrapper, vec![container.clone()]));
}

#[test]
fn machine_code_is_built_in_behind_a_wrapper_and_for_its_architectures_alone() {
    let special = |sm| entry_with_flags(CUBIN, sm, &cubin(), Stored::Plain, 0x10_0011);
    for (image_entry, is_built_in) in [
        (entry(CUBIN, 90, &cubin(), Stored::Plain), true),
        (special(90), true),
        (special(100), false),
        (entry(CUBIN, 80, &cubin(), Stored::Plain), false),
        (entry(PTX, 90, &ptx("x"), Stored::Plain), false),
    ] {
        let container = container(&[image_entry]);
        let wrapper = wrapper(1, &container, 0);
        // SAFETY: `wrapper` is one, and it and the container outlive the image.
        let image = unsafe { image_at(wrapper.as_ptr().cast()) }.unwrap();
        assert_eq!(image.is_built_in_machine_code(90), is_built_in);
        assert!(!ModuleImage::from_bytes(&container).unwrap().is_built_in_machine_code(90), "loaded by hand");
    }
}

#[test]
fn a_linked_wrapper_brings_every_object_and_its_ptx() {
    let linked = container(&[]);
    let objects = ["a", "b"].map(|name| container(&[entry(PTX, 90, &ptx(name), Stored::Zstd)]));
    let array: Vec<u64> = objects.iter().map(|object| object.as_ptr().expose_provenance() as u64).chain([0]).collect();
    let wrapper = wrapper(2, &linked, array.as_ptr().expose_provenance() as u64);
    // SAFETY: wrapper, array and containers are well formed and outlive the image.
    let image = unsafe { image_at(wrapper.as_ptr().cast()) }.unwrap();
    let texts = image.ptx(Some(90)).unwrap();
    assert!(texts.len() == 2 && texts[0].text.contains(" a()") && texts[1].text.contains(" b()"));
    assert_eq!(image.rebuild().objects(), 2);
    let parts = vec![linked.clone(), objects[0].clone(), objects[1].clone()];
    assert_eq!(carried(&image), (ModuleImageKind::LinkedWrapper, parts));
}

#[test]
fn a_linked_wrapper_without_array_has_its_own_container() {
    let linked = container(&[entry(PTX, 90, &ptx("x"), Stored::Plain)]);
    let wrapper = wrapper(2, &linked, 0);
    // SAFETY: as above; the array is null.
    let image = unsafe { image_at(wrapper.as_ptr().cast()) }.unwrap();
    assert_eq!(image.ptx(None).unwrap().len(), 1);
}

#[test]
fn pointers_to_nothing_are_refused() {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { image_at(std::ptr::null()) }, Err(ModuleImageError::Null));
    let wrapper = [0x4662_43b1 | 1 << 32, 0, 0_u64];
    // SAFETY: a wrapper whose container is null.
    assert_eq!(unsafe { image_at(wrapper.as_ptr().cast()) }, Err(ModuleImageError::Null));
    let future = [0x4662_43b1 | 3 << 32, 0, 0_u64];
    // SAFETY: a wrapper of an unknown version, of which only the first word is read.
    assert!(matches!(unsafe { image_at(future.as_ptr().cast()) }, Err(ModuleImageError::Field { value: 3, .. })));
}

#[test]
fn short_text_is_not_read_past_its_nul() {
    for text in [&b"\0"[..], b"a\0", b"ab\0", b"abc\0", b"abcd\0"] {
        let exact = text.to_vec().into_boxed_slice();
        // SAFETY: text with its NUL.
        let image = unsafe { image_at(exact.as_ptr()) }.unwrap();
        assert_eq!(image.parts(), [&text[..text.len() - 1]]);
    }
}

#[test]
fn a_damaged_flat_form_is_refused() {
    let flat = ModuleImage::from_bytes(&cubin()).unwrap().encode();
    for end in 0..flat.len() {
        assert!(ModuleImage::decode(&flat[..end]).is_err(), "{end}");
    }
    let with_field = |at: usize, value: u32| {
        let mut copy = flat.clone();
        copy[at..at + 4].copy_from_slice(&value.to_le_bytes());
        ModuleImage::decode(&copy).map(|image| image.kind()).is_err()
    };
    assert!(with_field(0, 0) && with_field(0, 6) && with_field(4, 0) && with_field(4, 2) && with_field(4, u32::MAX));
    assert!(with_field(8, u32::MAX) && with_field(12, u32::MAX));
    let longer = [flat.clone(), vec![0]].concat();
    assert!(ModuleImage::decode(&longer).is_err());
}
