//! The program's part of its graphs: it gathers, scatters, moves or fills rows of its own memory.
//!
//! It runs on the upcall thread when the graph reaches it, so that memory is read and written when the driver would do it:
//! at each launch, in the graph's order.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUresult;
use katydid_wire::message::{kdUpcallBytes, kdUpcallData};

use crate::copy::pattern::CheckedMemset;
use crate::process::session::shim;

/// Bytes of one message.
const HOST_WORK_MESSAGE_BYTES: u64 = 512 << 10;

/// Rows in slices, in memory of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Address of the first byte.
    pub(crate) start: u64,
    /// Bytes from the start of a row to that of the next.
    pub(crate) pitch: u64,
    /// Bytes from the start of a slice to that of the next.
    pub(crate) slice: u64,
}

/// Number of bytes, rows and slices.
pub(crate) type RowsExtent = [u64; 3];

/// An operation that a graph asks the program for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostOperation {
    /// Calls a function with its data.
    Call(usize, usize),
    /// Sends rows to the worker.
    Gather(Rows, RowsExtent),
    /// Writes rows that came from the worker.
    Scatter(Rows, RowsExtent),
    /// Copies rows within the program's memory: target, then source.
    Move(Rows, Rows, RowsExtent),
    /// Fills the program's memory.
    Fill(CheckedMemset),
}

/// Operations by token; they stay until their graph is gone and the worker is done with it.
#[derive(Debug, Default)]
pub(crate) struct HostOperations {
    state: Mutex<HostWorkState>,
    /// Number of operations that are expected once: calls check it first.
    once_count: AtomicUsize,
}

#[derive(Debug, Default)]
struct HostWorkState {
    operations: HashMap<u64, HostOperation>,
    /// Tokens of dead graphs, and the count of messages after which the worker no longer asks for them.
    leaving: Vec<(u64, u64)>,
    /// Tokens of graphs that are launched once, with the count of messages, until the worker has asked for them.
    once: HashMap<u64, u64>,
}

static HOST_OPERATIONS: LazyLock<HostOperations> = LazyLock::new(HostOperations::default);

/// Returns the program's operations in its graphs, by token.
pub(crate) fn operations() -> &'static HostOperations {
    &HOST_OPERATIONS
}

impl HostOperations {
    fn state(&self) -> MutexGuard<'_, HostWorkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation under a new token.
    pub(crate) fn add(&self, token: u64, operation: HostOperation) {
        self.state().operations.insert(token, operation);
    }

    pub(crate) fn get(&self, token: u64) -> Option<HostOperation> {
        self.state().operations.get(&token).copied()
    }

    /// Notes that a graph with these tokens is about to be launched, for the first and last time.
    pub(crate) fn expect_once(&self, tokens: &[u64]) {
        self.change_once(|state| state.once.extend(tokens.iter().map(|token| (*token, u64::MAX))));
    }

    /// Notes that an operation is done: one that was expected once is removed.
    pub(crate) fn complete(&self, token: u64) {
        if self.are_expected() {
            self.change_once(|state| {
                if state.once.remove(&token).is_some() {
                    state.operations.remove(&token);
                }
            });
        }
    }

    /// Returns whether the worker may still ask for an operation that is expected once.
    pub(crate) fn are_expected(&self) -> bool {
        self.once_count.load(Ordering::Acquire) > 0
    }

    fn change_once(&self, change: impl FnOnce(&mut HostWorkState)) {
        let mut state = self.state();
        change(&mut state);
        self.once_count.store(state.once.len(), Ordering::Release);
    }

    /// Notes that the graph of these tokens is gone; launches up to `epoch` may still run.
    pub(crate) fn leave(&self, tokens: impl IntoIterator<Item = u64>, epoch: u64) {
        let HostWorkState { operations, leaving, once } = &mut *self.state();
        for token in tokens.into_iter().filter(|token| operations.contains_key(token)) {
            match once.get_mut(&token) {
                Some(last) => *last = epoch,
                None => leaving.push((token, epoch)),
            }
        }
    }

    /// Notes that everything sent up to `epoch` is done.
    pub(crate) fn completed(&self, epoch: u64) {
        self.change_once(|HostWorkState { operations, leaving, once }| {
            let left = leaving.extract_if(.., |(_, last)| *last <= epoch);
            for (token, _) in left.chain(once.extract_if(|_, last| *last <= epoch)) {
                operations.remove(&token);
            }
        });
    }
}

impl HostOperation {
    /// Runs the operation. A failed send means that the session has ended.
    ///
    /// # Safety
    ///
    /// The program's function may be called, and its rows are valid, as it promised when it made the node.
    pub(crate) unsafe fn run(self, token: u64) -> Result<(), CUresult> {
        // SAFETY: handed on, in each arm.
        unsafe {
            match self {
                Self::Call(function, data) => {
                    let function = std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(function);
                    function(std::ptr::with_exposed_provenance_mut(data));
                }
                Self::Gather(rows, extent) => each(&rows, extent, |address, offset, size| {
                    let start = std::ptr::with_exposed_provenance::<u8>(address as usize);
                    let data = std::slice::from_raw_parts(start, size as usize);
                    shim()?.session.enqueue(0, &kdUpcallData { token, offset, data })
                })?,
                Self::Scatter(rows, extent) => each(&rows, extent, |address, offset, size| {
                    let data = shim()?.session.ask(0, &kdUpcallBytes { token, offset, size: size as u32 })?.data;
                    let target = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
                    target.copy_from_nonoverlapping(data.as_ptr(), data.len().min(size as usize));
                    Ok(())
                })?,
                Self::Move(target, source, extent) => move_rows(&target, &source, extent),
                Self::Fill(fill) => fill.write(),
            }
        }
        Ok(())
    }
}

/// Runs `step` with address, offset in the packed rows, and length of each piece.
fn each(
    rows: &Rows,
    [width, height, depth]: RowsExtent,
    mut step: impl FnMut(u64, u64, u64) -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    // Rows without gaps are one row.
    let dense = rows.pitch == width && (depth == 1 || rows.slice == width * height);
    let (width, height, depth) = if dense { (width * height * depth, 1, 1) } else { (width, height, depth) };
    for slice in 0..depth {
        for row in 0..height {
            let (address, offset) =
                (rows.start + slice * rows.slice + row * rows.pitch, (slice * height + row) * width);
            for at in (0..width).step_by(HOST_WORK_MESSAGE_BYTES as usize) {
                step(address + at, offset + at, HOST_WORK_MESSAGE_BYTES.min(width - at))?;
            }
        }
    }
    Ok(())
}

/// # Safety
///
/// Both are valid for the extent; they may overlap.
unsafe fn move_rows(target: &Rows, source: &Rows, [width, height, depth]: RowsExtent) {
    for slice in 0..depth {
        for row in 0..height {
            let at = |rows: &Rows| (rows.start + slice * rows.slice + row * rows.pitch) as usize;
            let to = std::ptr::with_exposed_provenance_mut::<u8>(at(target));
            // SAFETY: a row of each, by the contract.
            unsafe { to.copy_from(std::ptr::with_exposed_provenance(at(source)), width as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_packed_one_after_the_other() {
        let mut sizes = Vec::new();
        let rows = Rows { start: 1000, pitch: 10, slice: 100 };
        each(&rows, [4, 2, 2], |address, offset, size| {
            sizes.push((address, offset, size));
            Ok(())
        })
        .unwrap();
        assert_eq!(sizes, [(1000, 0, 4), (1010, 4, 4), (1100, 8, 4), (1110, 12, 4)]);
        sizes.clear();
        each(&Rows { start: 1000, pitch: 4, slice: 8 }, [4, 2, 2], |address, offset, size| {
            sizes.push((address, offset, size));
            Ok(())
        })
        .unwrap();
        assert_eq!(sizes, [(1000, 0, 16)]);
    }

    #[test]
    fn operations_stay_until_the_worker_is_done_with_their_graph() {
        let operations = HostOperations::default();
        operations.add(7, HostOperation::Call(1, 2));
        operations.leave([7], 10);
        operations.completed(9);
        assert!(operations.get(7).is_some());
        operations.completed(10);
        assert!(operations.get(7).is_none());
    }

    #[test]
    fn an_operation_that_is_expected_once_goes_when_it_is_done_or_will_not_be() {
        let operations = HostOperations::default();
        (7..10).for_each(|token| operations.add(token, HostOperation::Call(1, 2)));
        operations.expect_once(&[7, 8]);
        operations.complete(7);
        operations.complete(9);
        operations.leave([7, 8, 9], 10);
        assert!(operations.get(7).is_none() && operations.get(8).is_some() && operations.get(9).is_some());
        assert!(operations.are_expected() && operations.state().leaving == [(9, 10)]);
        operations.completed(9);
        assert!(operations.are_expected());
        operations.completed(10);
        assert!(!operations.are_expected() && operations.state().operations.is_empty());
    }

    #[test]
    fn memory_of_the_program_is_moved_by_rows() {
        let source: Vec<u8> = (0..12).collect();
        let mut target = [0_u8; 6];
        let address = |bytes: *const u8| bytes.expose_provenance() as u64;
        let from = Rows { start: address(source.as_ptr()), pitch: 6, slice: 12 };
        let to = Rows { start: address(target.as_mut_ptr()), pitch: 3, slice: 6 };
        // SAFETY: two rows of three bytes in both.
        unsafe { move_rows(&to, &from, [3, 2, 1]) };
        assert_eq!(target, [0, 1, 2, 6, 7, 8]);
    }
}
