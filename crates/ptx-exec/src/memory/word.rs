//! Type of the value that a load or store moves for one lane.

use crate::alu::convert::IntoFloat;

/// Type of the value that a load or store moves for one lane: an integer of 1 to 8 bytes, whose sign tells how it is extended.
pub(crate) trait Word: IntoFloat {
    /// Its size in memory.
    const BYTES: u64;
    /// Returns the low bytes of a register.
    fn cut(value: u64) -> Self;
}

macro_rules! words {
    ($($ty:ident)*) => {$(
        impl Word for $ty {
            const BYTES: u64 = size_of::<$ty>() as u64;

            #[inline(always)]
            fn cut(value: u64) -> Self {
                value as Self
            }
        }
    )*};
}

words! { u8 i8 u16 i16 u32 i32 u64 }
