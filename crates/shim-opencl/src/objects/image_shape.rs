//! The shape of an image: its kind, its sizes, the layout of its rows.
#![expect(unsafe_code, reason = "reads through the pointers of C callers")]

use katydid_opencl_sys::Code;
use katydid_opencl_sys::constant::{MEM_OBJECT_IMAGE1D_ARRAY, MEM_OBJECT_IMAGE2D_ARRAY, MEM_OBJECT_IMAGE3D};

/// The shape of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageShape {
    /// The kind of image, a `CL_MEM_OBJECT_…`.
    pub(crate) kind: u32,
    /// Order and type of channels.
    pub(crate) format: (u32, u32),
    /// Elements in each direction, as regions count them: the last direction of an array counts its images.
    pub(crate) sizes: [usize; 3],
    /// Bytes of an element.
    pub(crate) element: usize,
    /// Bytes from row to row in the program's memory, if the image uses that.
    pub(crate) row: usize,
    /// Bytes from slice to slice in that memory.
    pub(crate) slice: usize,
    /// Whether the program gave the pitches.
    pub(crate) has_pitches: bool,
    /// Number of levels, of which the first is the whole image; 0 or 1: no other levels.
    pub(crate) levels: u32,
}

/// The kind of an image, a `CL_MEM_OBJECT_…`, with the order and type of its channels.
pub(crate) type OpenclImageKind = (u32, (u32, u32));

impl ImageShape {
    /// Returns the kind of the image, and its format.
    pub(crate) fn kind_and_format(&self) -> OpenclImageKind {
        (self.kind, self.format)
    }

    /// Returns whether a map reports a slice pitch.
    pub(crate) fn has_slices(&self) -> bool {
        matches!(self.kind, MEM_OBJECT_IMAGE3D | MEM_OBJECT_IMAGE2D_ARRAY | MEM_OBJECT_IMAGE1D_ARRAY)
    }

    /// Returns the fourth number of an origin, the level, for kinds whose position takes three numbers. Other kinds have the
    /// level directly after the position, and it is sent with that.
    ///
    /// # Safety
    ///
    /// `origin` holds four numbers if the image has levels.
    pub(crate) unsafe fn level(&self, origin: *const usize) -> usize {
        if self.levels < 2 || !matches!(self.kind, MEM_OBJECT_IMAGE3D | MEM_OBJECT_IMAGE2D_ARRAY) {
            return 0;
        }
        // SAFETY: by the contract; the read needs no alignment.
        unsafe { origin.add(3).read_unaligned() }
    }

    /// Checks that a region lies in the image. For an image with levels, only the driver can.
    pub(crate) fn check(&self, origin: [usize; 3], region: [usize; 3]) -> Result<(), Code> {
        let ends = origin.iter().zip(region).zip(self.sizes);
        let fits = |((from, size), all): ((&usize, usize), usize)| from.checked_add(size).is_some_and(|end| end <= all);
        if self.levels > 1 || ends.into_iter().all(fits) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// Returns the bytes of the program's memory that it uses or was copied from, with gaps.
    pub(crate) fn bytes_with_gaps(&self) -> usize {
        let [_, height, depth] = self.sizes;
        match self.kind {
            MEM_OBJECT_IMAGE1D_ARRAY => self.slice * height,
            MEM_OBJECT_IMAGE3D | MEM_OBJECT_IMAGE2D_ARRAY => self.slice * depth,
            _ => self.row * height,
        }
    }

    /// Returns the bytes from row to row; the lines of an array are a slice apart.
    pub(crate) fn line(&self) -> usize {
        if self.kind == MEM_OBJECT_IMAGE1D_ARRAY { self.slice } else { self.row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_lie_in_the_image_unless_it_has_levels() {
        let mut shape = ImageShape {
            kind: MEM_OBJECT_IMAGE1D_ARRAY,
            format: (0, 0),
            sizes: [4, 3, 1],
            element: 4,
            row: 16,
            slice: 16,
            has_pitches: false,
            levels: 1,
        };
        for (origin, region) in [([0; 3], [4, 3, 1]), ([3, 2, 0], [1, 1, 1])] {
            assert_eq!(shape.check(origin, region), Ok(()), "{origin:?} {region:?}");
        }
        for (origin, region) in
            [([1, 0, 0], [4, 3, 1]), ([0, 1, 0], [4, 3, 1]), ([0, 0, 1], [4, 3, 1]), ([usize::MAX, 0, 0], [2, 1, 1])]
        {
            assert_eq!(shape.check(origin, region), Err(Code::INVALID_VALUE), "{origin:?} {region:?}");
        }
        shape.levels = 2;
        assert_eq!(shape.check([0, 0, 1], [4, 3, 1]), Ok(()));
    }
}
