//! The program's own memory that it registers for the GPU.
//!
//! The memory stays the program's, untouched. The pages cannot move into memory that both processes see, because other
//! threads may write to them at any moment. (A heap block shares its first and last page with its neighbors.) So on every
//! link the worker has its own pages at the same address, made when a launch first names the block. The program pushes their
//! contents before such launches. At synchronizations it pulls the GPU's changes, as [`crate::memory::pinned`] does for a
//! stream link. Copies need none of that: they take the program's bytes as they are.
//!
//! While a kernel runs, it cannot wait for writes of the program, nor of another process that maps the memory as well. So
//! memory whose only purpose is that is refused: shared mappings of files that are wanted for kernels.

use std::ffi::c_void;
use std::ops::Range;

use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::{CUresult, Function, host_register_flags as id};
use katydid_driver_rules::memory::Registration;

use crate::context::{completion, stack};
use crate::ffi::arguments::refuse;
use crate::graph::model;
use crate::launch::registry;
use crate::memory::counts::REGISTERED_BLOCKS;
use crate::memory::registration::{self, PAGE_BYTES};
use crate::memory::{pinned, system_atomics};
use crate::process::session::shim;

/// Registers memory of the program for the GPU (`cuMemHostRegister`).
pub(crate) fn register(pointer: *mut c_void, size: usize, flags: u32) -> Result<(), CUresult> {
    let context = stack::active()?.owner();
    model::forbid()?;
    let (start, size) = (pointer.expose_provenance() as u64, size as u64);
    let Registration { end, flags: wire_flags, is_read_only } = Registration::new(start, size, flags)?;
    registration::check(&(start / PAGE_BYTES * PAGE_BYTES..end.next_multiple_of(PAGE_BYTES)))?;
    // Memory that cannot be written needs the read-only flag.
    if !is_read_only && !is_writable(&(start..end)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if flags & id::DEVICEMAP != 0 && is_others_too(&(start..end)) {
        let why = "cannot map memory that other processes may have mapped too (a shared file of a name): kernels would see \
                   what they write only at launches, not while they wait for it. NCCL does without with NCCL_SHM_DISABLE=1";
        return Err(refuse(Function::cuMemHostRegister_v2, why));
    }
    let kind = RegionKind::Registered { flags: wire_flags };
    let shim = shim()?;
    if pinned::get().is_none() {
        return Err(refuse(Function::cuMemHostRegister_v2, "needs addresses that this program has in use"));
    }
    if shim.regions.insert(start, size, kind, context.device, context.slot.handle) {
        REGISTERED_BLOCKS.begin();
        system_atomics::warn();
        return Ok(());
    }
    let overlapping = shim.regions.matching(|other| other.start < end && start < other.start + other.size);
    let is_variable = |other: &Region| matches!(other.kind, RegionKind::Global { .. });
    Err(match () {
        () if overlapping.iter().all(Region::is_registered) => CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        () if overlapping.iter().any(is_variable) => registration::address_error(CUresult::ERROR_NOT_SUPPORTED),
        () => CUresult::ERROR_INVALID_VALUE,
    })
}

/// Answers `cuMemHostUnregister`: waits for the GPU and pulls its writes.
pub(crate) fn unregister(pointer: *mut c_void) -> Result<(), CUresult> {
    model::forbid()?;
    let shim = shim()?;
    let address = pointer.addr() as u64;
    if address == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let region = shim.regions.find(address).ok_or(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    let pinned = pinned::get().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if !region.is_registered() || region.start != address {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // Copies and fills in a stream behind a function of the program name no blocks.
    if pinned.is_in_use(&region) || registry::may_call_back() {
        completion::synchronize_all()?;
    }
    let region = shim.regions.remove(address, Region::is_registered).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let forgotten = pinned.forget(&region);
    REGISTERED_BLOCKS.end();
    forgotten
}

/// Returns whether the process may write everywhere in a range; also true if that cannot be found out.
fn is_writable(range: &Range<u64>) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    maps.lines().filter_map(|line| mapping_in(line, range)).all(|mapping| mapping.rights.get(1) == Some(&b'w'))
}

/// Returns whether another process may have opened and mapped a part of a range; memory that only children can share is
/// excluded.
fn is_others_too(range: &Range<u64>) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    maps.lines().filter_map(|line| mapping_in(line, range)).any(|mapping| mapping.is_file_of_many())
}

/// A mapping, as a line of `maps` describes it.
struct Mapping<'a> {
    /// `rwxp` or `rwxs`, with `-` for each missing right.
    rights: &'a [u8],
    /// A path, or the text in its place.
    path: &'a str,
}

impl Mapping<'_> {
    /// Returns whether it is shared, of a file with a path: shared memory without a file has the path `/dev/zero`.
    fn is_file_of_many(&self) -> bool {
        self.rights.get(3) == Some(&b's') && self.path.starts_with('/') && !self.path.starts_with("/dev/zero")
    }
}

/// Parses a line (`first-last rights offset device inode path`, the numbers hexadecimal), if its mapping overlaps a range.
fn mapping_in<'a>(line: &'a str, range: &Range<u64>) -> Option<Mapping<'a>> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut columns = line.split_whitespace();
    let (first, last) = columns.next()?.split_once('-')?;
    let (first, last) = (hexadecimal(first)?, hexadecimal(last)?);
    let rights = columns.next()?.as_bytes();
    (first < range.end && range.start < last).then(|| Mapping { rights, path: columns.nth(3).unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_speaks_of_its_own_range() {
        let line = "1000-3000 r--p 00000000 08:01 1234 /lib/x.so";
        assert_eq!(mapping_in(line, &(0x2000..0x4000)).unwrap().rights, b"r--p");
        assert!(mapping_in(line, &(0x3000..0x4000)).is_none() && mapping_in(line, &(0..0x1000)).is_none());
        assert!(mapping_in("nonsense", &(0x1000..0x3000)).is_none());
    }

    #[test]
    fn files_that_are_mapped_for_others_are_told_from_all_else() {
        let is_others = |line: &str| mapping_in(line, &(0x1000..0x2000)).unwrap().is_file_of_many();
        for line in
            ["1000-3000 rw-s 0 00:1a 7 /dev/shm/nccl-x (deleted)", "1000-3000 rw-s 0 00:01 8 /memfd:x (deleted)"]
        {
            assert!(is_others(line), "{line}");
        }
        for line in
            ["1000-3000 rw-s 0 00:01 9 /dev/zero (deleted)", "1000-3000 rw-p 0 08:01 4 /tmp/x", "1000-3000 rw-p 0 0 0"]
        {
            assert!(!is_others(line), "{line}");
        }
    }

    #[test]
    fn text_of_the_program_cannot_be_written() {
        let code_address = (text_of_the_program_cannot_be_written as fn()) as usize as u64;
        assert!(!is_writable(&(code_address..code_address + 1)));
        let local = 0_u8;
        let stack_address = (&raw const local).addr() as u64;
        assert!(is_writable(&(stack_address..stack_address + 1)));
    }
}
