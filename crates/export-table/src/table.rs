//! The shape of a table: words of 8 bytes, word 0 the size in bytes, then function pointers or nulls.

use std::ffi::c_void;
use std::ptr;

/// A word of a table.
pub(crate) type Word = *const c_void;

/// A table of `N` words that lives as long as the process.
#[repr(transparent)]
pub(crate) struct Table<const N: usize>([Word; N]);

#[expect(unsafe_code, reason = "raw pointers are not Sync by themselves")]
// SAFETY: the words are addresses of functions and a size, written at compile time and never changed.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    /// A table whose word 0 is its size and whose slots are null except those given as (slot, function).
    pub(crate) const fn sized(slots: &[(usize, Word)]) -> Self {
        let table = Self::unsized_(slots);
        let mut words = table.0;
        words[0] = ptr::without_provenance(N * size_of::<Word>());
        Self(words)
    }

    /// A table without a size word, as the context-local storage is.
    pub(crate) const fn unsized_(slots: &[(usize, Word)]) -> Self {
        let mut words = [ptr::null(); N];
        let mut at = 0;
        while at < slots.len() {
            words[slots[at].0] = slots[at].1;
            at += 1;
        }
        Self(words)
    }

    /// The address that `cuGetExportTable` hands out.
    pub(crate) const fn address(&'static self) -> *const c_void {
        self.0.as_ptr().cast()
    }

    /// Word `slot`; 0 beyond the end.
    pub(crate) fn word(&self, slot: usize) -> usize {
        self.0.get(slot).map_or(0, |word| word.addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_zero_is_the_size_in_bytes() {
        const ENTRY: Word = ptr::without_provenance(64);
        static SIZED: Table<4> = Table::sized(&[(2, ENTRY)]);
        assert_eq!([0, 1, 2, 3, 4].map(|slot| SIZED.word(slot)), [32, 0, 64, 0, 0]);
        static BARE: Table<2> = Table::unsized_(&[(0, ENTRY)]);
        assert_eq!([BARE.word(0), BARE.word(1)], [64, 0]);
    }
}
