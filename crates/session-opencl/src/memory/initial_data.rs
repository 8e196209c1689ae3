//! The bytes that a memory object begins with.

use std::borrow::Cow;

use katydid_opencl_sys::void;

/// The bytes that a memory object begins with, for as long as the driver makes it.
pub(crate) enum InitialData<'a> {
    /// Bytes in memory of this process.
    Own(Cow<'a, [u8]>),
    /// In memory that the program has too, which may change them meanwhile: address and length.
    Shared(*mut void, usize),
}

impl InitialData<'_> {
    /// How many there are; 0: the object begins with none.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(_, length) => *length,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For the driver, which only reads them.
    pub(crate) fn pointer(&self) -> *mut void {
        match self {
            Self::Own(bytes) => bytes.as_ptr().cast_mut().cast(),
            Self::Shared(pointer, _) => *pointer,
        }
    }
}
