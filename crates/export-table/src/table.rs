//! The layout of a table: words of 8 bytes, word 0 the size in bytes, then function pointers, or nulls where the real one
//! has them.

use std::ffi::c_void;
use std::ptr;

use crate::unimplemented;
pub(crate) use crate::unimplemented::Word;

/// A table of `N` words that lives as long as the process.
#[repr(transparent)]
pub(crate) struct WordTable<const N: usize>([Word; N]);

#[expect(unsafe_code, reason = "raw pointers are not Sync by themselves")]
// SAFETY: the words are addresses of functions and a size, written at compile time and never changed.
unsafe impl<const N: usize> Sync for WordTable<N> {}

impl<const N: usize> WordTable<N> {
    /// Makes a table whose word 0 is its size, with functions at `slots`, nulls at `nulls`, and the `unimplemented` function
    /// everywhere else. `TABLE` is the table's index in the catalogue.
    pub(crate) const fn sized<const TABLE: usize>(slots: &[(usize, Word)], nulls: &[usize]) -> Self {
        let unimplemented = unimplemented::all::<TABLE>();
        let mut words = [ptr::null(); N];
        let mut at = 1;
        while at < N {
            words[at] = unimplemented[at / 8][at % 8];
            at += 1;
        }
        let mut implemented = 0;
        while implemented < slots.len() {
            words[slots[implemented].0] = slots[implemented].1;
            implemented += 1;
        }
        let mut null = 0;
        while null < nulls.len() {
            words[nulls[null]] = ptr::null();
            null += 1;
        }
        words[0] = ptr::without_provenance(N * size_of::<Word>());
        Self(words)
    }

    /// Makes a table without a size word, like that of context-local storage; every other slot is null.
    pub(crate) const fn unsized_(slots: &[(usize, Word)]) -> Self {
        let mut words = [ptr::null(); N];
        let mut at = 0;
        while at < slots.len() {
            words[slots[at].0] = slots[at].1;
            at += 1;
        }
        Self(words)
    }

    /// Returns the address for `cuGetExportTable`.
    pub(crate) const fn address(&'static self) -> *const c_void {
        self.0.as_ptr().cast()
    }

    /// Returns word `slot`; 0 beyond the end.
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
        static SIZED: WordTable<4> = WordTable::sized::<0>(&[(2, ENTRY)], &[3]);
        assert_eq!([0, 2, 3, 4].map(|slot| SIZED.word(slot)), [32, 64, 0, 0]);
        assert!(SIZED.word(1) != 0, "a slot that is not built is null");
        static BARE: WordTable<2> = WordTable::unsized_(&[(0, ENTRY)]);
        assert_eq!([BARE.word(0), BARE.word(1)], [64, 0]);
    }
}
