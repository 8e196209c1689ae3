//! Arguments of C callers: missing arrays and structures are refused, others are copied.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Copies a structure of the caller.
/// Refuses null.
///
/// # Safety
///
/// `pointer` is null or readable.
#[inline]
pub unsafe fn read<T: Copy>(pointer: *const T) -> Outcome<T> {
    check(!pointer.is_null())?;
    // SAFETY: not null, so readable by the contract.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Refuses flags of a call that has none yet.
#[inline]
pub const fn check_no_flags(flags: u64) -> Outcome {
    check(flags == 0)
}

/// Copies an array of at least one entry and at most `most`.
/// Refuses null, an empty array and too many entries.
///
/// # Safety
///
/// `pointer` is null or has `count` entries.
pub unsafe fn array<T: Copy>(pointer: *const T, count: usize, most: usize) -> Outcome<Vec<T>> {
    check(!pointer.is_null() && (1..=most).contains(&count))?;
    // SAFETY: below `count`, by the contract.
    Ok((0..count).map(|at| unsafe { pointer.add(at).read_unaligned() }).collect())
}

/// Copies the first `count` entries of an array, which may be missing if `count` is 0; the rest is default. Refuses null if
/// an entry is needed.
///
/// # Safety
///
/// `pointer` is null or has `count` entries.
pub unsafe fn filled<T: Copy + Default, const N: usize>(pointer: *const T, count: usize) -> Outcome<[T; N]> {
    check(count == 0 || !pointer.is_null())?;
    let mut entries = [T::default(); N];
    for (index, entry) in entries.iter_mut().enumerate().take(count) {
        // SAFETY: below `count`, by the contract.
        *entry = unsafe { pointer.add(index).read_unaligned() };
    }
    Ok(entries)
}

/// Values for the entries of a call, each valid from the entry of its index on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs<T>(Vec<(usize, T)>);

impl<T: Copy> Runs<T> {
    /// Reads `count` values for `entries` entries.
    /// Refuses indices that do not begin with 0 or do not ascend, and more values than entries.
    ///
    /// # Safety
    ///
    /// The arrays are null or have `count` entries.
    pub unsafe fn read(values: *const T, firsts: *const usize, count: usize, entries: usize) -> Outcome<Self> {
        // SAFETY: handed on.
        let (values, firsts) = unsafe { (array(values, count, entries)?, array(firsts, count, entries)?) };
        let runs: Vec<(usize, T)> = firsts.into_iter().zip(values).collect();
        let ascends = runs.first().is_some_and(|(first, _)| *first == 0) && runs.is_sorted_by(|a, b| a.0 < b.0);
        check(ascends)?;
        Ok(Self(runs))
    }

    /// Returns the value of an entry.
    pub fn of(&self, entry: usize) -> Outcome<T> {
        let run = self.0.partition_point(|(first, _)| *first <= entry).checked_sub(1);
        run.and_then(|run| self.0.get(run)).map(|(_, value)| *value).ok_or(INVALID_VALUE)
    }

    /// Iterates over the values, in the order of their entries.
    pub fn values(&self) -> impl Iterator<Item = T> {
        self.0.iter().map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(firsts: &[usize], entries: usize) -> Outcome<Runs<char>> {
        let values = ['a', 'b', 'c'];
        // SAFETY: no test has more indices than there are values.
        unsafe { Runs::read(values.as_ptr(), firsts.as_ptr(), firsts.len(), entries) }
    }

    #[test]
    fn a_value_holds_until_the_next_one_begins() {
        let runs = runs(&[0, 2], 4).unwrap();
        assert_eq!([0, 1, 2, 3].map(|entry| runs.of(entry)), ['a', 'a', 'b', 'b'].map(Ok));
        assert_eq!(runs.values().collect::<String>(), "ab");
    }

    #[test]
    fn values_begin_with_the_first_entry_and_ascend() {
        for firsts in [&[][..], &[1], &[0, 0], &[0, 2, 1]] {
            assert_eq!(runs(firsts, 4), Err(INVALID_VALUE), "{firsts:?}");
        }
        assert_eq!(runs(&[0, 1], 1), Err(INVALID_VALUE));
    }

    #[test]
    fn arrays_must_be_there_and_have_entries() {
        let three = [1_u8, 2, 3];
        // SAFETY: three entries, and null.
        unsafe {
            assert_eq!(array(three.as_ptr(), 3, 3), Ok(vec![1, 2, 3]));
            assert_eq!(
                (array(three.as_ptr(), 0, 3), array(three.as_ptr(), 3, 2)),
                (Err(INVALID_VALUE), Err(INVALID_VALUE))
            );
            assert_eq!(array(std::ptr::null::<u8>(), 1, 3), Err(INVALID_VALUE));
            assert_eq!(filled::<u8, 4>(three.as_ptr(), 2), Ok([1, 2, 0, 0]));
            assert_eq!(filled::<u8, 4>(std::ptr::null(), 0), Ok([0; 4]));
            assert_eq!(
                (filled::<u8, 4>(std::ptr::null(), 1), read(std::ptr::null::<u8>())),
                (Err(INVALID_VALUE), Err(INVALID_VALUE))
            );
        }
    }
}
