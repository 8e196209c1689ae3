//! Pointers of C callers, checked and copied.

#![expect(unsafe_code, reason = "reads and writes through pointers of C callers")]

use katydid_cuda_sys::{CUgraphEdgeData, CUgraphNode, CUresult, Pod};

use crate::graph::GraphState;
use crate::handles::NodeId;
use crate::outcome::Outcome;

/// Most elements of a list: more are a caller's mistake.
const MAX_LIST_ELEMENTS: usize = 1 << 24;

/// Copies a structure of the caller.
///
/// # Safety
///
/// `pointer` is null or readable.
pub(super) unsafe fn read<T: Pod>(pointer: *const T) -> Outcome<T> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract; any bits are a value of a `Pod`.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Refuses a missing output, before anything is done.
pub(super) fn require_output<T>(pointer: *mut T) -> Outcome {
    if pointer.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Writes an output unless it is null.
///
/// # Safety
///
/// `pointer` is null or writable.
pub(super) unsafe fn write<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: not null, so writable by the contract.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// Copies `count` values of the caller.
///
/// # Safety
///
/// `pointer` is null or readable for `count` values.
pub(super) unsafe fn values<T: Copy>(pointer: *const T, count: usize) -> Outcome<Vec<T>> {
    if count > 0 && (pointer.is_null() || count > MAX_LIST_ELEMENTS) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: below `count`, so readable by the contract.
    Ok((0..count).map(|at| unsafe { pointer.add(at).read_unaligned() }).collect())
}

/// Fills the caller's list and writes the number of entries; without a list, only the number. Unused entries are cleared.
///
/// # Safety
///
/// `count` is null or the capacity of `list`, which is null or has that.
pub(super) unsafe fn list<T: Copy + Default>(values: &[T], list: *mut T, count: *mut usize) -> Outcome {
    require_output(count)?;
    // SAFETY: not null, so readable by the contract.
    let capacity = unsafe { count.read_unaligned() };
    if list.is_null() {
        // SAFETY: as above, and writable.
        unsafe { count.write_unaligned(values.len()) };
        return Ok(());
    }
    if capacity > MAX_LIST_ELEMENTS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for at in 0..capacity {
        // SAFETY: inside the room, by the contract.
        unsafe { list.add(at).write_unaligned(values.get(at).copied().unwrap_or_default()) };
    }
    // SAFETY: as above.
    unsafe { count.write_unaligned(capacity.min(values.len())) };
    Ok(())
}

/// Reads the caller's dependencies, with or without data.
///
/// # Safety
///
/// Both are null or readable for `count` values.
pub(super) unsafe fn dependencies(
    state: &GraphState,
    nodes: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Outcome<Vec<(NodeId, CUgraphEdgeData)>> {
    // SAFETY: handed on.
    let nodes = unsafe { values(nodes, count) }?;
    let data = match data.is_null() {
        true => vec![CUgraphEdgeData::default(); count],
        // SAFETY: not null, so readable for `count` values by the contract.
        false => unsafe { values(data, count) }?,
    };
    nodes.into_iter().zip(data).map(|(node, data)| Ok((state.node_id(node)?, data))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_filled_up_to_its_capacity() {
        let (mut target, mut count) = ([7_u32; 4], 0);
        // SAFETY: locals with the room that `count` says.
        unsafe {
            list(&[1, 2], std::ptr::null_mut(), &mut count).unwrap();
            assert_eq!(count, 2);
            count = 4;
            list(&[1, 2], target.as_mut_ptr(), &mut count).unwrap();
            assert_eq!((target, count), ([1, 2, 0, 0], 2));
            count = 1;
            list(&[8, 9], target.as_mut_ptr(), &mut count).unwrap();
            assert_eq!((target[0], target[1], count), (8, 2, 1));
            assert!(list::<u32>(&[], std::ptr::null_mut(), std::ptr::null_mut()).is_err());
        }
    }
}
