//! The table INTEGRITY (3 words): a digest that the runtime also computes, and compares.
//!
//! It hashes the process id, the calling thread and addresses of the tables, so it can only be answered here, in the
//! program's process, on the calling thread.

#![expect(unsafe_code, reason = "the slot writes through the raw pointer of a C caller")]

use crate::catalogue;
use crate::cudart;
use crate::digest::{Header, digest};
use crate::facts::facts;
use crate::ffi::{Status, guard, status};
use crate::table::{Word, WordTable};

/// Slot 2 exists in the real driver; no known program calls it.
pub(crate) static TABLE: WordTable<3> =
    WordTable::sized::<{ catalogue::INTEGRITY_INDEX }>(&[(1, prove as *const () as Word)], &[]);

unsafe extern "C" fn prove(version: u32, unix_seconds: u64, out: *mut [u64; 2]) -> Status {
    guard(|| {
        // SAFETY: null or writable, which is what the runtime passes.
        let out = unsafe { out.as_mut() }.ok_or(status::INVALID_VALUE)?;
        let facts = facts()?;
        // The slot's own address comes from the table: a cast of the function could differ from what the runtime reads.
        let header = Header {
            driver_version: facts.driver_version(),
            version,
            process: std::process::id(),
            thread: calling_thread(),
            cudart_table: cudart::TABLE.address().addr() as u64,
            integrity_table: TABLE.address().addr() as u64,
            integrity_slot: TABLE.word(1) as u64,
            unix_seconds,
        };
        *out = digest(&header, &facts.devices());
        Ok(())
    })
}

/// Returns the low half of `pthread_self()`.
fn calling_thread() -> u32 {
    // SAFETY: has no preconditions.
    let thread = unsafe { libc::pthread_self() };
    (thread as u64 & u64::from(u32::MAX)) as u32
}
