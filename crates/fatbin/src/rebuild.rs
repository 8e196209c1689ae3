//! An image in its own memory, with the pointers that a driver follows.

#![expect(unsafe_code, reason = "reads units of storage as the bytes they are")]

use crate::image::{ModuleImage, ModuleImageKind, WRAPPER_MAGIC};

/// Unit of storage; its alignment suits any loader.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl ModuleImage<'_> {
    /// Returns a copy as a driver expects it, with wrapper and array rebuilt.
    #[must_use]
    pub fn rebuild(&self) -> OwnedImage {
        OwnedImage::new(self.kind, &self.parts)
    }
}

/// A copy of an image for a driver. The pointer is valid for as long as this value lives, even if it is moved. A driver that
/// loads an image as "preserved" needs it for as long as the library exists.
#[derive(Debug)]
pub struct OwnedImage {
    kind: ModuleImageKind,
    /// Bytes of each part.
    lengths: Vec<usize>,
    /// Bytes of each part, in aligned lines.
    parts: Vec<Vec<Line>>,
    /// Addresses of the array's containers, ended by 0; empty without a wrapper.
    array: Vec<u64>,
    /// Magic and version, container, array; empty without a wrapper.
    wrapper: Vec<u64>,
}

impl OwnedImage {
    pub(crate) fn new(kind: ModuleImageKind, parts: &[&[u8]]) -> Self {
        let lengths = parts.iter().map(|part| part.len()).collect();
        let parts: Vec<Vec<Line>> = parts.iter().map(|part| copy(part, kind == ModuleImageKind::Ptx)).collect();
        let address = |part: &Vec<Line>| part.as_ptr().expose_provenance() as u64;
        let mut addresses = parts.iter().map(address);
        let (array, wrapper) = match (kind, addresses.next()) {
            (ModuleImageKind::Wrapper, Some(container)) => (Vec::new(), vec![magic_and_version(1), container, 0]),
            (ModuleImageKind::LinkedWrapper, Some(container)) => {
                let array: Vec<u64> = addresses.chain([0]).collect();
                let array_address = array.as_ptr().expose_provenance() as u64;
                (array, vec![magic_and_version(2), container, array_address])
            }
            _ => (Vec::new(), Vec::new()),
        };
        Self { kind, lengths, parts, array, wrapper }
    }

    /// Returns the pointer to pass as `image`: to the wrapper, or to the part itself. PTX ends with a NUL.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        if !self.wrapper.is_empty() {
            return self.wrapper.as_ptr().cast();
        }
        self.parts.first().map_or(std::ptr::null(), |part| part.as_ptr().cast())
    }

    /// Returns a view of this copy.
    #[must_use]
    pub fn image(&self) -> ModuleImage<'_> {
        let parts = self.parts.iter().zip(&self.lengths);
        ModuleImage::new(self.kind, parts.map(|(part, length)| bytes(part, *length)).collect())
    }

    /// Returns the bytes of all parts.
    #[must_use]
    pub fn length(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Returns whether this is a copy of the same image.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.image() == other.image()
    }

    /// Returns the number of objects in a linked wrapper's array.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.array.len().saturating_sub(1)
    }
}

fn magic_and_version(version: u64) -> u64 {
    u64::from(WRAPPER_MAGIC) | version << 32
}

/// Returns the first `length` bytes of a part, which has at least as many.
fn bytes(part: &[Line], length: usize) -> &[u8] {
    let length = length.min(size_of_val(part));
    // SAFETY: a line is 64 bytes without padding, lines are contiguous, and the length is at most theirs.
    unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), length) }
}

/// Copies a part. The rest of the last unit is zero; `with_nul` ensures that there is a rest.
fn copy(part: &[u8], with_nul: bool) -> Vec<Line> {
    let (whole, rest) = part.as_chunks::<64>();
    let mut lines: Vec<Line> = Vec::with_capacity(whole.len() + 1);
    lines.extend(whole.iter().map(|chunk| Line(*chunk)));
    if with_nul || !rest.is_empty() {
        let mut last = [0; 64];
        last[..rest.len()].copy_from_slice(rest);
        lines.push(Line(last));
    }
    lines
}
