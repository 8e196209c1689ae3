//! Batches of copies: the arguments for all of them.
//!
//! All are checked before the first is queued, and the error names the first wrong one, as on driver 580.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUarray, CUdeviceptr, CUmemcpyAttributes, CUresult, access_order,
};

use crate::caller::{self, Runs};
use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Most copies of one call: more make no sense.
const MAX_COPIES: usize = 1 << 20;
/// The index in an error that is about no single copy.
pub const NO_INDEX: usize = usize::MAX;

/// A result, or a code and the index of the copy that it is about.
pub type BatchOutcome<T> = Result<T, (CUresult, usize)>;

/// The arrays of a call.
#[derive(Debug, Clone, Copy)]
pub struct Arrays {
    /// Target address of each copy.
    pub targets: *const CUdeviceptr,
    /// Source address of each copy.
    pub sources: *const CUdeviceptr,
    /// Length of each copy in bytes.
    pub sizes: *const usize,
    /// Number of copies.
    pub count: usize,
    /// Attributes, each for several copies.
    pub attributes: *const CUmemcpyAttributes,
    /// The first copy of each attribute.
    pub firsts: *const usize,
    /// Number of attributes.
    pub kinds: usize,
}

/// A single copy of a batch, with its checked arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchCopy {
    /// Address that is written.
    pub to: CUdeviceptr,
    /// Address that is read.
    pub from: CUdeviceptr,
    /// Length in bytes.
    pub size: usize,
    /// The source may be read during the call only (`CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL`).
    pub is_now: bool,
}

impl Arrays {
    /// Reads the arrays, and checks everything that is not about a single copy. Refuses missing arrays, and invalid
    /// attributes.
    ///
    /// # Safety
    ///
    /// The first three are null or have `count` entries, the others `kinds`.
    pub unsafe fn read(&self) -> Outcome<Vec<BatchCopy>> {
        // SAFETY: by the contract.
        let (targets, sources, sizes, kinds) = unsafe {
            (
                caller::array(self.targets, self.count, MAX_COPIES)?,
                caller::array(self.sources, self.count, MAX_COPIES)?,
                caller::array(self.sizes, self.count, MAX_COPIES)?,
                Runs::read(self.attributes, self.firsts, self.kinds, self.count)?,
            )
        };
        let orders = access_order::STREAM..=access_order::ANY;
        check(kinds.values().all(|kind| orders.contains(&kind.srcAccessOrder) && kind.flags <= 1))?;
        let check_entry = |(at, ((to, from), size)): (usize, ((u64, u64), usize))| {
            Ok(BatchCopy { to, from, size, is_now: kinds.of(at)?.srcAccessOrder == access_order::DURING_API_CALL })
        };
        targets.into_iter().zip(sources).zip(sizes).enumerate().map(check_entry).collect()
    }
}

/// Checks that each entry has bytes and that `is_there` accepts it; the error names a wrong one by its index. Refuses 0
/// bytes, and entries that `is_there` refuses.
pub fn check_entries(entries: &[BatchCopy], is_there: impl Fn(&BatchCopy) -> Outcome) -> BatchOutcome<()> {
    let check_entry = |(at, entry): (usize, &BatchCopy)| {
        check(entry.size > 0).and_then(|()| is_there(entry)).map_err(|code| (code, at))
    };
    entries.iter().enumerate().try_for_each(check_entry)
}

/// Reads copies of boxes, each with whether its source may be read during the call only. `texel` returns the bytes of an
/// array's elements, `check` checks a valid copy. Refuses a missing list, invalid operations, and copies that `check`
/// refuses.
///
/// # Safety
///
/// `operations` is null or has `count` entries.
pub unsafe fn boxes(
    operations: *const CUDA_MEMCPY3D_BATCH_OP,
    count: usize,
    texel: impl Fn(CUarray) -> Option<usize>,
    check: impl Fn(&CUDA_MEMCPY3D_BATCH_OP, &CUDA_MEMCPY3D) -> Outcome,
) -> BatchOutcome<Vec<(CUDA_MEMCPY3D, bool)>> {
    // SAFETY: handed on.
    let operations = unsafe { caller::array(operations, count, MAX_COPIES) }.map_err(|code| (code, NO_INDEX))?;
    let check_entry = |(at, operation): (usize, CUDA_MEMCPY3D_BATCH_OP)| {
        let copy = operation.as_copy(&texel).ok_or((INVALID_VALUE, at))?;
        check(&operation, &copy).map_err(|code| (code, at))?;
        Ok((copy, operation.srcAccessOrder == access_order::DURING_API_CALL))
    };
    operations.into_iter().enumerate().map(check_entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: [u64; 3] = [0x1000, 0x2000, 0x3000];

    fn read(count: usize, orders: [u32; 2], firsts: [usize; 2], kinds: usize) -> Outcome<Vec<BatchCopy>> {
        let attributes =
            orders.map(|order| CUmemcpyAttributes { srcAccessOrder: order, ..CUmemcpyAttributes::default() });
        let (targets, sources, sizes) = (ADDRESSES.as_ptr(), ADDRESSES.as_ptr(), [1_usize, 0, 3]);
        let (sizes, attributes, firsts) = (sizes.as_ptr(), attributes.as_ptr(), firsts.as_ptr());
        // SAFETY: three entries and two attributes, of which no test names more.
        unsafe { Arrays { targets, sources, sizes, count, attributes, firsts, kinds }.read() }
    }

    #[test]
    fn attributes_hold_from_their_first_copy_on() {
        let entries = read(3, [1, 2], [0, 2], 2).unwrap();
        assert_eq!(
            entries.iter().map(|entry| (entry.size, entry.is_now)).collect::<Vec<_>>(),
            [(1, false), (0, false), (3, true)]
        );
        assert_eq!(check_entries(&entries, |_| Ok(())), Err((INVALID_VALUE, 1)));
        let refuse = |entry: &BatchCopy| if entry.to == 0x3000 { Err(CUresult::ERROR_UNKNOWN) } else { Ok(()) };
        assert_eq!(check_entries(&[entries[0], entries[2]], refuse), Err((CUresult::ERROR_UNKNOWN, 1)));
    }

    #[test]
    fn attributes_that_are_none_are_refused() {
        for wrong in [read(3, [0, 1], [0, 1], 2), read(3, [1, 4], [0, 1], 2), read(3, [1, 1], [1, 2], 2)] {
            assert_eq!(wrong, Err(INVALID_VALUE));
        }
        assert_eq!((read(1, [1, 1], [0, 1], 2), read(0, [1, 1], [0, 1], 0)), (Err(INVALID_VALUE), Err(INVALID_VALUE)));
    }

    #[test]
    fn a_wrong_box_is_told_by_its_index() {
        let side = katydid_cuda_sys::CUmemcpy3DOperand { type_: 1, op: [0x1000, 0, 0, 0] };
        let right = CUDA_MEMCPY3D_BATCH_OP { src: side, dst: side, extent: [4, 1, 1], srcAccessOrder: 2, flags: 0 };
        let list = [right, CUDA_MEMCPY3D_BATCH_OP { flags: 2, ..right }];
        // SAFETY: two entries.
        let boxes = |count| unsafe { boxes(list.as_ptr(), count, |_| None, |_, _| Ok(())) };
        assert!(boxes(1).is_ok_and(|copies| copies[0].1 && copies[0].0.WidthInBytes == 4));
        assert_eq!((boxes(2).err(), boxes(0).err()), (Some((INVALID_VALUE, 1)), Some((INVALID_VALUE, NO_INDEX))));
    }
}
