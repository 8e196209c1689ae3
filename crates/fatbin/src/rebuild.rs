//! An image in memory of its own, with the pointers that a driver follows.

#![expect(unsafe_code, reason = "reads units of storage as the bytes they are")]

use crate::image::{ModuleImage, ModuleImageKind, WRAPPER_MAGIC};

/// Unit of storage, so that parts start where any loader could want them to.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl ModuleImage<'_> {
    /// A copy as a driver wants it, with wrapper and array built up again.
    #[must_use]
    pub fn rebuild(&self) -> OwnedImage {
        OwnedImage::new(self.kind, &self.parts)
    }
}

/// A copy of an image that can be handed to a driver. The pointer is valid as long as this value lives, wherever it
/// is moved; a driver that loads an image as "preserved" needs it as long as the library.
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

    /// What to pass as `image`: the wrapper, or the part itself. PTX ends with a NUL.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        if !self.wrapper.is_empty() {
            return self.wrapper.as_ptr().cast();
        }
        self.parts.first().map_or(std::ptr::null(), |part| part.as_ptr().cast())
    }

    /// The view that this is a copy of.
    #[must_use]
    pub fn image(&self) -> ModuleImage<'_> {
        let parts = self.parts.iter().zip(&self.lengths);
        ModuleImage::new(self.kind, parts.map(|(part, length)| bytes(part, *length)).collect())
    }

    /// Bytes of all parts.
    #[must_use]
    pub fn length(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Whether this is a copy of the same image.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.image() == other.image()
    }

    /// Number of objects in a linked wrapper's array.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.array.len().saturating_sub(1)
    }
}

fn magic_and_version(version: u64) -> u64 {
    u64::from(WRAPPER_MAGIC) | version << 32
}

/// The first `length` bytes of a part, which has as many.
fn bytes(part: &[Line], length: usize) -> &[u8] {
    let length = length.min(size_of_val(part));
    // SAFETY: a line is 64 bytes without padding, lines follow each other, and no more of them are lent than there are.
    unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), length) }
}

/// Copies a part; what is left of the last unit is zero, and `with_nul` makes sure that something is left.
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
