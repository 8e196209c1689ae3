//! Finds what lies at a bare pointer: the only place that has to trust a program's memory.

#![expect(unsafe_code, reason = "the CUDA API passes images by pointer without a length")]

use std::slice;

use crate::container::{CONTAINER_HEADER_BYTES, CONTAINER_MAGIC, container_length};
use crate::elf::{ELF_MAGIC, elf_length};
use crate::error::{ModuleImageError, check_limit};
use crate::image::{ANCIENT_MAGIC, MAX_IMAGE_PARTS, ModuleImage, ModuleImageKind, WRAPPER_MAGIC};

/// Longest PTX text looked at.
const MAX_CODE_BYTES: usize = 1 << 30;

/// The image at `pointer`, as `cuModuleLoadData` and the other functions that load modules get it.
///
/// Reads only what the image's own headers say belongs to it, and of text nothing behind its NUL.
///
/// # Safety
///
/// `pointer` is null, or points to what the CUDA API calls an image: a wrapper, a container, a cubin, or text that ends
/// with a NUL; and all of it stays there unchanged for `'a`.
///
/// # Errors
/// Why it is none.
pub unsafe fn image_at<'a>(pointer: *const u8) -> Result<ModuleImage<'a>, ModuleImageError> {
    if pointer.is_null() {
        return Err(ModuleImageError::Null);
    }
    // SAFETY: the caller vouches for an image at `pointer`, so its first bytes are there.
    match unsafe { first_word(pointer) } {
        // SAFETY: the caller vouches for an image, and these bytes announce a wrapper.
        Some(WRAPPER_MAGIC) => unsafe { wrapper_at(pointer) },
        // SAFETY: as above, a container.
        Some(CONTAINER_MAGIC) => unsafe { container_at(pointer) }.map(|part| alone(ModuleImageKind::Container, part)),
        // SAFETY: as above, a cubin.
        Some(ELF_MAGIC) => unsafe { elf_at(pointer) }.map(|part| alone(ModuleImageKind::Elf, part)),
        Some(ANCIENT_MAGIC) => Err(ModuleImageError::Ancient),
        // SAFETY: as above; what is none of the others is text with a NUL.
        _ => unsafe { text_at(pointer) }.map(|part| alone(ModuleImageKind::Ptx, part)),
    }
}

fn alone(kind: ModuleImageKind, part: &[u8]) -> ModuleImage<'_> {
    ModuleImage::new(kind, vec![part])
}

/// The first word; none if a NUL comes before its end, because then a text of less than four bytes ends there.
///
/// # Safety
/// As [`image_at`], not null.
unsafe fn first_word(pointer: *const u8) -> Option<u32> {
    let mut word = [0; 4];
    for (at, byte) in word.iter_mut().enumerate() {
        // SAFETY: no byte before this one was a NUL, so by the caller's promise the image goes on.
        *byte = unsafe { pointer.add(at).read() };
        if *byte == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(word))
}

/// # Safety
/// A wrapper lies at `pointer`, 24 bytes, with what it points to.
unsafe fn wrapper_at<'a>(pointer: *const u8) -> Result<ModuleImage<'a>, ModuleImageError> {
    // SAFETY: a wrapper has 24 bytes; the caller vouches for them. It may be unaligned in damaged programs.
    let [head, data, array] = unsafe { pointer.cast::<[u64; 3]>().read_unaligned() };
    let version = head >> 32;
    if !(1..=2).contains(&version) {
        return Err(ModuleImageError::Field { field: "the version of a wrapper", value: version });
    }
    // SAFETY: the second field points to a container, by the caller's promise.
    let mut parts = vec![unsafe { container_at(pointer_to(data)) }?];
    if version == 1 {
        return Ok(ModuleImage::new(ModuleImageKind::Wrapper, parts));
    }
    let array = pointer_to(array).cast::<u64>();
    // SAFETY: the third field of a version 2 wrapper is null or such an array, by the caller's promise.
    while let Some(object) = unsafe { object_at(array, parts.len() - 1) } {
        check_limit("the array of a wrapper", parts.len() as u64, MAX_IMAGE_PARTS as u64 - 1)?;
        // SAFETY: members of the array before its end point to containers.
        parts.push(unsafe { container_at(object) }?);
    }
    Ok(ModuleImage::new(ModuleImageKind::LinkedWrapper, parts))
}

/// Member `index` of a NULL-ended array; none at its end, or if there is no array.
///
/// # Safety
/// `array` is null or points to a NULL-ended array whose members before `index` are not NULL.
unsafe fn object_at(array: *const u64, index: usize) -> Option<*const u8> {
    if array.is_null() {
        return None;
    }
    // SAFETY: the array goes on up to its NULL, which did not come before `index`.
    let address = unsafe { array.add(index).read_unaligned() };
    (address != 0).then(|| pointer_to(address))
}

fn pointer_to(address: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(address as usize)
}

/// # Safety
/// `pointer` is null, or a container lies there for `'a`.
unsafe fn container_at<'a>(pointer: *const u8) -> Result<&'a [u8], ModuleImageError> {
    if pointer.is_null() {
        return Err(ModuleImageError::Null);
    }
    // SAFETY: a container starts with a header of this size; the caller vouches for it.
    let header = unsafe { pointer.cast::<[u8; CONTAINER_HEADER_BYTES]>().read_unaligned() };
    let length = container_length(&header)?;
    // SAFETY: the header that the caller vouches for says that the container is this long, and stays for `'a`.
    Ok(unsafe { slice::from_raw_parts(pointer, length as usize) })
}

/// # Safety
/// A cubin lies at `pointer` for `'a`.
unsafe fn elf_at<'a>(pointer: *const u8) -> Result<&'a [u8], ModuleImageError> {
    let length = elf_length(|offset, length| {
        // SAFETY: `elf_length` asks for the header, and for entries of tables that the header says are there.
        Ok(unsafe { slice::from_raw_parts(pointer.add(offset as usize), length as usize) })
    })?;
    // SAFETY: header and tables that the caller vouches for say that the file is this long.
    Ok(unsafe { slice::from_raw_parts(pointer, length as usize) })
}

/// # Safety
/// Text lies at `pointer` for `'a` and ends with a NUL.
unsafe fn text_at<'a>(pointer: *const u8) -> Result<&'a [u8], ModuleImageError> {
    // SAFETY: reads up to the NUL that the caller vouches for (whole words, but only within its page).
    let length = unsafe { libc::strnlen(pointer.cast(), MAX_CODE_BYTES) };
    check_limit("PTX text", length as u64, MAX_CODE_BYTES as u64 - 1)?;
    // SAFETY: these bytes lie before the NUL.
    Ok(unsafe { slice::from_raw_parts(pointer, length) })
}
