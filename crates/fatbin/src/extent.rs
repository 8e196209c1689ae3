//! Finds the image at a bare pointer: the only code here that must trust a program's memory.

#![expect(unsafe_code, reason = "the CUDA API passes images by pointer without a length")]

use std::slice;

use crate::container::{CONTAINER_HEADER_BYTES, CONTAINER_MAGIC, container_length};
use crate::elf::{ELF_MAGIC, elf_length};
use crate::error::{ModuleImageError, check_limit};
use crate::image::{ANCIENT_MAGIC, MAX_IMAGE_PARTS, ModuleImage, ModuleImageKind, WRAPPER_MAGIC};

/// Longest PTX text that is accepted, plus its NUL.
const MAX_CODE_BYTES: usize = 1 << 30;

/// Returns the image at `pointer`, as passed to `cuModuleLoadData` and the other functions that load modules.
///
/// It reads only what the image's own headers declare, and no text after its NUL.
///
/// # Safety
///
/// `pointer` is null, or points to an image as the CUDA API defines it: a wrapper, a container, a cubin, or text that ends with a
/// NUL. All of it stays there unchanged for `'a`.
///
/// # Errors
/// The reason why there is no valid image.
pub unsafe fn image_at<'a>(pointer: *const u8) -> Result<ModuleImage<'a>, ModuleImageError> {
    if pointer.is_null() {
        return Err(ModuleImageError::Null);
    }
    // SAFETY: the caller guarantees an image at `pointer`, so its first bytes exist.
    match unsafe { first_word(pointer) } {
        // SAFETY: the caller guarantees an image, and these bytes announce a wrapper.
        Some(WRAPPER_MAGIC) => unsafe { wrapper_at(pointer) },
        // SAFETY: as above, a container.
        Some(CONTAINER_MAGIC) => unsafe { container_at(pointer) }.map(|part| alone(ModuleImageKind::Container, part)),
        // SAFETY: as above, a cubin.
        Some(ELF_MAGIC) => unsafe { elf_at(pointer) }.map(|part| alone(ModuleImageKind::Elf, part)),
        Some(ANCIENT_MAGIC) => Err(ModuleImageError::Ancient),
        // SAFETY: as above; anything else is text with a NUL.
        _ => unsafe { text_at(pointer) }.map(|part| alone(ModuleImageKind::Ptx, part)),
    }
}

fn alone(kind: ModuleImageKind, part: &[u8]) -> ModuleImage<'_> {
    ModuleImage::new(kind, vec![part])
}

/// Returns the first word; `None` if a NUL comes earlier, because a text of less than four bytes ends there.
///
/// # Safety
/// As [`image_at`], not null.
unsafe fn first_word(pointer: *const u8) -> Option<u32> {
    let mut word = [0; 4];
    for (at, byte) in word.iter_mut().enumerate() {
        // SAFETY: no earlier byte was a NUL, so by the caller's guarantee the image continues.
        *byte = unsafe { pointer.add(at).read() };
        if *byte == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(word))
}

/// # Safety
/// There is a wrapper of 24 bytes at `pointer`, with the memory that it points to.
unsafe fn wrapper_at<'a>(pointer: *const u8) -> Result<ModuleImage<'a>, ModuleImageError> {
    // SAFETY: a wrapper has 24 bytes, which the caller guarantees. It may be unaligned in damaged programs.
    let [head, data, array] = unsafe { pointer.cast::<[u64; 3]>().read_unaligned() };
    let version = head >> 32;
    if !(1..=2).contains(&version) {
        return Err(ModuleImageError::Field { field: "the version of a wrapper", value: version });
    }
    // SAFETY: the second field points to a container, by the caller's guarantee.
    let mut parts = vec![unsafe { container_at(pointer_to(data)) }?];
    if version == 1 {
        return Ok(ModuleImage::new(ModuleImageKind::Wrapper, parts));
    }
    let array = pointer_to(array).cast::<u64>();
    // SAFETY: the third field of a version 2 wrapper is null or such an array, by the caller's guarantee.
    while let Some(object) = unsafe { object_at(array, parts.len() - 1) } {
        check_limit("the array of a wrapper", parts.len() as u64, MAX_IMAGE_PARTS as u64 - 1)?;
        // SAFETY: members of the array before its end point to containers.
        parts.push(unsafe { container_at(object) }?);
    }
    Ok(ModuleImage::new(ModuleImageKind::LinkedWrapper, parts))
}

/// Returns member `index` of a NULL-terminated array; `None` at its end, or without an array.
///
/// # Safety
/// `array` is null or points to a NULL-terminated array whose members before `index` are not NULL.
unsafe fn object_at(array: *const u64, index: usize) -> Option<*const u8> {
    if array.is_null() {
        return None;
    }
    // SAFETY: the array continues up to its NULL, which did not come before `index`.
    let address = unsafe { array.add(index).read_unaligned() };
    (address != 0).then(|| pointer_to(address))
}

fn pointer_to(address: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(address as usize)
}

/// # Safety
/// `pointer` is null, or points to a container for `'a`.
unsafe fn container_at<'a>(pointer: *const u8) -> Result<&'a [u8], ModuleImageError> {
    if pointer.is_null() {
        return Err(ModuleImageError::Null);
    }
    // SAFETY: a container starts with a header of this size, which the caller guarantees.
    let header = unsafe { pointer.cast::<[u8; CONTAINER_HEADER_BYTES]>().read_unaligned() };
    let length = container_length(&header)?;
    // SAFETY: by the header, which the caller guarantees, the container has this length, and it stays for `'a`.
    Ok(unsafe { slice::from_raw_parts(pointer, length as usize) })
}

/// # Safety
/// `pointer` points to a cubin for `'a`.
unsafe fn elf_at<'a>(pointer: *const u8) -> Result<&'a [u8], ModuleImageError> {
    let length = elf_length(|offset, length| {
        // SAFETY: `elf_length` reads the header, and entries of tables that the header declares.
        Ok(unsafe { slice::from_raw_parts(pointer.add(offset as usize), length as usize) })
    })?;
    // SAFETY: header and tables, which the caller guarantees, give this length.
    Ok(unsafe { slice::from_raw_parts(pointer, length as usize) })
}

/// # Safety
/// `pointer` points to text that ends with a NUL, for `'a`.
unsafe fn text_at<'a>(pointer: *const u8) -> Result<&'a [u8], ModuleImageError> {
    // SAFETY: reads up to the NUL that the caller guarantees (whole words, but only within its page).
    let length = unsafe { libc::strnlen(pointer.cast(), MAX_CODE_BYTES) };
    check_limit("PTX text", length as u64, MAX_CODE_BYTES as u64 - 1)?;
    // SAFETY: these bytes lie before the NUL.
    Ok(unsafe { slice::from_raw_parts(pointer, length) })
}
