//! The initial bytes of a memory object.

use std::borrow::Cow;

use katydid_opencl_sys::void;

/// The initial bytes of a memory object, for as long as the driver makes it.
pub(crate) enum InitialData<'a> {
    /// Bytes in memory of this process.
    Own(Cow<'a, [u8]>),
    /// In memory shared with the program, which may change them meanwhile: address and length.
    Shared(*mut void, usize),
}

impl InitialData<'_> {
    /// Returns the number of bytes; 0: the object has no initial contents.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(_, length) => *length,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pointer for the driver, which only reads.
    pub(crate) fn pointer(&self) -> *mut void {
        match self {
            Self::Own(bytes) => bytes.as_ptr().cast_mut().cast(),
            Self::Shared(pointer, _) => *pointer,
        }
    }
}
