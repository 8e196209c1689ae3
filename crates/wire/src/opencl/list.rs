//! Lists inside the bytes of messages: a count (`u32`) and as many elements. A count sizes nothing before the bytes are known to
//! hold that many.

use crate::codec::Field;

/// Appends a list to `out`: its length, then each element.
pub fn put<T: Field>(out: &mut Vec<u8>, list: &[T]) {
    // A list is an argument of one call: far below 2^32 elements.
    (list.len() as u32).put(out);
    list.iter().for_each(|element| element.put(out));
}

/// Takes a list from the front of `bytes`; none if they do not hold it.
pub fn take<T: Field>(bytes: &mut &[u8]) -> Option<Vec<T>> {
    let count = u32::take(bytes)?;
    // Every element takes at least a byte.
    if count as usize > bytes.len() {
        return None;
    }
    (0..count).map(|_| T::take(bytes)).collect()
}

/// Takes `count` elements, without a count in front.
pub fn take_exact<T: Field>(bytes: &mut &[u8], count: usize) -> Option<Vec<T>> {
    if count > bytes.len() {
        return None;
    }
    (0..count).map(|_| T::take(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_leave_the_rest() {
        let mut bytes = Vec::new();
        put(&mut bytes, &[1u32, 2, 3]);
        put(&mut bytes, &["a".to_owned(), String::new()]);
        bytes.push(7);
        let mut left = &bytes[..];
        assert_eq!(take::<u32>(&mut left), Some(vec![1, 2, 3]));
        assert_eq!(take::<String>(&mut left), Some(vec!["a".to_owned(), String::new()]));
        assert_eq!(left, [7]);
    }

    #[test]
    fn counts_beyond_the_bytes_take_nothing() {
        for bytes in [&[255u8, 255, 255, 255, 0][..], &[2, 0, 0, 0, 1, 0, 0, 0], &[1, 0]] {
            assert_eq!(take::<u32>(&mut &bytes[..]), None);
        }
        assert_eq!(take_exact::<u64>(&mut &[0u8; 9][..], usize::MAX), None);
    }
}
