//! Advice about managed memory: checked against the space, and stored.

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::mem_advise::Book;
pub(crate) use katydid_driver_rules::mem_advise::{Advice, AdviceTarget};

use crate::ffi::Outcome;
use crate::memory::space::{self, Region};

static ADVICE_BOOK: Book = Book::new();

/// Refuses ranges that are not entirely in one managed allocation.
pub(crate) fn check(start: u64, size: u64) -> Outcome {
    let region = space::find(start).filter(Region::is_managed);
    let inside = region.is_some_and(|region| size > 0 && size <= region.end() - start);
    if inside { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// `cuMemAdvise`.
pub(crate) fn advise(start: u64, size: u64, advice: Advice) -> Outcome {
    check(start, size)?;
    ADVICE_BOOK.advise(start, size, advice);
    Ok(())
}

/// `cuMemPrefetchAsync`: stores the target for queries. The memory is there already.
pub(crate) fn prefetch(start: u64, size: u64, target: AdviceTarget) -> Outcome {
    check(start, size)?;
    ADVICE_BOOK.prefetch(start, size, target);
    Ok(())
}

/// Forgets the advice about freed memory.
pub(crate) fn forget(start: u64, size: u64) {
    ADVICE_BOOK.forget(start, size);
}

/// `cuMemRangeGetAttribute`: returns the numbers of the answer, at most `capacity` of them.
pub(crate) fn attribute(start: u64, size: u64, attribute: u32, capacity: usize) -> Outcome<Vec<i32>> {
    check(start, size)?;
    ADVICE_BOOK.attribute(start, size, attribute, capacity)
}
