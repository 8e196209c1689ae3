//! Plain structures as bytes: how they travel and how unaligned memory of a program is read.

#![expect(unsafe_code, reason = "reads structures as bytes")]

/// A structure without padding-dependent meaning, references or invalid bit patterns.
///
/// # Safety
///
/// Every bit pattern must be a valid value, and the type must hold no reference that Rust would rely on.
pub unsafe trait Pod: Copy + Default + 'static {
    /// The bytes of the value, padding as it happens to be written by `Default`.
    fn to_bytes(&self) -> Vec<u8> {
        let start = std::ptr::from_ref(self).cast::<u8>();
        // SAFETY: `self` is a live value of `size_of::<Self>()` bytes; `Pod` types are made from zeroed memory
        // (`Default`) and plain fields, so that all bytes are initialised.
        unsafe { std::slice::from_raw_parts(start, size_of::<Self>()) }.to_vec()
    }

    /// A value from bytes; `None` unless there are exactly as many as the type has.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the length is checked first, the read is unaligned, and every bit pattern is valid for `Pod`.
        (bytes.len() == size_of::<Self>()).then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}
