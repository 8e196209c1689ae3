//! Reads arguments of C callers: lists, texts, pointers.
#![expect(unsafe_code, reason = "reads through the pointers of C callers")]

use std::ffi::CStr;

use katydid_opencl_sys::{Code, char};

/// Returns the elements of a C list; empty for null.
///
/// # Safety
///
/// `list` is null, or holds `count` values until the call returns.
pub(crate) unsafe fn list<'a, T>(count: usize, list: *const T) -> &'a [T] {
    if list.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: not null, so by the contract there are `count` values.
    unsafe { std::slice::from_raw_parts(list, count) }
}

/// Returns the values of a list before its terminating 0; `None` for null.
///
/// # Safety
///
/// The list ends with 0.
pub(crate) unsafe fn terminated<'a, T: Default + PartialEq>(first: *const T) -> Option<&'a [T]> {
    if first.is_null() {
        return None;
    }
    let mut count = 0;
    // SAFETY: no value beyond the 0 is read.
    while unsafe { &*first.add(count) } != &T::default() {
        count += 1;
    }
    // SAFETY: this many values were read.
    Some(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Returns pairs up to the name 0, which is included: a value may be 0, but a name may not.
///
/// # Safety
///
/// The list is null, or ends with 0 at the position of a name.
pub(crate) unsafe fn pairs<T: Copy + Default + PartialEq>(first: *const T) -> Option<Vec<T>> {
    if first.is_null() {
        return None;
    }
    let mut list = Vec::new();
    loop {
        // SAFETY: names are read up to the first 0, each with its value.
        let name = unsafe { first.add(list.len()).read_unaligned() };
        list.push(name);
        if name == T::default() {
            return Some(list);
        }
        // SAFETY: a name that is not 0 has a value.
        list.push(unsafe { first.add(list.len()).read_unaligned() });
    }
}

/// Returns the bytes of a C string; empty for null.
///
/// # Safety
///
/// `text` is null or a C string.
pub(crate) unsafe fn text<'a>(text: *const char) -> &'a [u8] {
    // SAFETY: not null, so a C string by the contract.
    if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// Reads three numbers from a C caller.
///
/// # Safety
///
/// `pointer` is null or holds three numbers.
pub(crate) unsafe fn three(pointer: *const usize) -> Result<[usize; 3], Code> {
    if pointer.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, so three numbers by the contract.
    Ok(unsafe { pointer.cast::<[usize; 3]>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_list_is_an_empty_one() {
        // SAFETY: null.
        assert!(unsafe { list::<u8>(3, std::ptr::null()) }.is_empty());
    }

    #[test]
    fn lists_end_with_zero() {
        // SAFETY: a list that ends with 0, and null.
        unsafe {
            assert_eq!(terminated([4isize, 5, 0, 9].as_ptr()), Some(&[4isize, 5][..]));
            assert_eq!(terminated(std::ptr::null::<u64>()), None);
        }
    }

    #[test]
    fn a_value_of_zero_ends_no_list() {
        // SAFETY: lists that end with the name 0, and null.
        unsafe {
            assert_eq!(pairs([0x1093u64, 0, 0x1094, 7, 0].as_ptr()), Some(vec![0x1093, 0, 0x1094, 7, 0]));
            assert_eq!(pairs([0isize].as_ptr()), Some(vec![0]));
            assert_eq!(pairs(std::ptr::null::<u64>()), None);
        }
    }
}
