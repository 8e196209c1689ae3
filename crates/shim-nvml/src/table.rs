//! The private table that `nvidia-smi` gets from the library before anything else.
//!
//! `nvidia-smi` gets it through `nvmlInternalGetExportTable`; without one it reports that its version and the library's do
//! not match. A table begins with its size in bytes; each word after it is a function. Some of them are known from NVIDIA's
//! own mock of the library (`NVIDIA/k8s-test-infra`, `pkg/gpu/mocknvml/bridge/internal.go`, seen with `nvidia-smi`
//! 580.65.06). The others are not supported, reported once with `KATYDID_LOG`; `nvidia-smi` shows them as "N/A".

#![expect(unsafe_code, reason = "exports a C symbol, and writes what C callers point to")]

use std::sync::atomic::{AtomicBool, Ordering};

use katydid_client::output::report;
use katydid_wire::nvml::{code, function, opcode};

use crate::call;

/// The table's id: `6c3efec4-8fc9-4e6c-a327-ee696e12f7c4`, its first three groups lowest byte first.
const TABLE_ID: [u8; 16] =
    [0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4];
/// Words of the table, including its size.
const TABLE_WORDS: usize = 256;
/// The slot that takes an index and an output for a handle.
const HANDLE_BY_INDEX_SLOT: usize = 81;
/// The slots that take a device, a count and entries: compute processes, graphics processes, and those under MPS.
const PROCESS_SLOTS: [(usize, &str); 3] = [
    (213, "nvmlDeviceGetComputeRunningProcesses_v3"),
    (214, "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    (215, "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
];
/// Drivers with known process lists. Of other drivers neither slots nor layout are certain.
const KNOWN_DRIVER: &[u8] = b"580.";
/// An entry is a process's id, memory, instances and protected memory, as in `nvmlProcessDetail_v1_t`, and its name.
const PROCESS_ENTRY_BYTES: usize = PROCESS_NAME_OFFSET + PROCESS_NAME_BYTES;
const PROCESS_NAME_OFFSET: usize = 32;
const PROCESS_NAME_BYTES: usize = 4096;
/// `nvmlProcessInfo_t`, the start of an entry.
const PROCESS_INFO_BYTES: usize = 24;
/// Most entries of a list.
const MAX_PROCESS_ENTRIES: u32 = 4096;

type TableFunction = unsafe extern "C" fn(usize, usize, usize, usize) -> u32;

/// The table as programs see it.
#[repr(C)]
struct FunctionTable {
    bytes: usize,
    first: [TableFunction; 15],
    rows: [[TableFunction; 16]; 15],
}

macro_rules! row {
    ($at:literal) => {
        [
            slot::<{ $at }>,
            slot::<{ $at + 1 }>,
            slot::<{ $at + 2 }>,
            slot::<{ $at + 3 }>,
            slot::<{ $at + 4 }>,
            slot::<{ $at + 5 }>,
            slot::<{ $at + 6 }>,
            slot::<{ $at + 7 }>,
            slot::<{ $at + 8 }>,
            slot::<{ $at + 9 }>,
            slot::<{ $at + 10 }>,
            slot::<{ $at + 11 }>,
            slot::<{ $at + 12 }>,
            slot::<{ $at + 13 }>,
            slot::<{ $at + 14 }>,
            slot::<{ $at + 15 }>,
        ]
    };
}

const FIRST_SLOTS: [TableFunction; 16] = row!(0);

static FUNCTION_TABLE: FunctionTable = FunctionTable {
    bytes: TABLE_WORDS * size_of::<usize>(),
    first: {
        let [_, first @ ..] = FIRST_SLOTS;
        first
    },
    rows: [
        row!(16),
        row!(32),
        row!(48),
        row!(64),
        row!(80),
        row!(96),
        row!(112),
        row!(128),
        row!(144),
        row!(160),
        row!(176),
        row!(192),
        row!(208),
        row!(224),
        row!(240),
    ],
};

/// Returns the table.
///
/// # Safety
///
/// `id` is null or has 16 bytes; `table` is null or an output for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInternalGetExportTable(table: *mut *const u8, id: *const [u8; 16]) -> u32 {
    if table.is_null() || id.is_null() {
        return code::INVALID_ARGUMENT;
    }
    // SAFETY: not null, so 16 bytes of the caller.
    let requested_id = unsafe { id.read_unaligned() };
    if requested_id != TABLE_ID {
        report(format_args!("NVML's private table {requested_id:02x?} is not supported"));
        return code::NOT_SUPPORTED;
    }
    // SAFETY: not null, so the caller's output for a pointer.
    unsafe { table.write(std::ptr::from_ref(&FUNCTION_TABLE).cast()) };
    code::SUCCESS
}

/// The function in a slot of the table.
///
/// # Safety
///
/// The words are those that `nvidia-smi` passes there.
unsafe extern "C" fn slot<const AT: usize>(a: usize, b: usize, c: usize, _d: usize) -> u32 {
    static IS_REPORTED: [AtomicBool; TABLE_WORDS] = [const { AtomicBool::new(false) }; TABLE_WORDS];
    if AT == HANDLE_BY_INDEX_SLOT {
        // SAFETY: a number and an output for a handle, as this function takes.
        return unsafe { ask("nvmlDeviceGetHandleByIndex_v2", [a, b, 0, 0, 0, 0]) };
    }
    if let Some((_, list)) = PROCESS_SLOTS.iter().find(|(at, _)| *at == AT)
        && is_known_driver()
    {
        // SAFETY: handed on.
        return unsafe { processes(list, a, std::ptr::with_exposed_provenance_mut(b), c) };
    }
    // `nvidia-smi` goes on without most of them.
    if is_logging() && !IS_REPORTED[AT].swap(true, Ordering::Relaxed) {
        report(format_args!("slot {AT} of NVML's private table is not supported"));
    }
    code::NOT_SUPPORTED
}

/// Returns whether the user wants to see refused queries.
fn is_logging() -> bool {
    std::env::var_os("KATYDID_LOG").is_some_and(|it| !it.is_empty())
}

/// Calls a function by its public name.
///
/// # Safety
///
/// As [`call::pass_on`].
unsafe fn ask(name: &str, arguments: [usize; 6]) -> u32 {
    let entry = opcode(name).and_then(|opcode| function(opcode).map(|function| (opcode, function)));
    // SAFETY: handed on.
    entry.map_or(code::UNKNOWN, |(opcode, function)| unsafe { call::pass_on(opcode, function, arguments) })
}

/// Returns whether the server's driver has known lists.
fn is_known_driver() -> bool {
    let mut version = [0_u8; 80];
    // SAFETY: the buffer is as long as said.
    let status = unsafe {
        ask("nvmlSystemGetDriverVersion", [version.as_mut_ptr().expose_provenance(), version.len(), 0, 0, 0, 0])
    };
    status == code::SUCCESS && version.starts_with(KNOWN_DRIVER)
}

/// Writes the entries of a list.
///
/// # Safety
///
/// `count` is null or the number of entries that fit at `entries`.
unsafe fn processes(list: &str, device: usize, count: *mut u32, entries: usize) -> u32 {
    if count.is_null() || entries == 0 {
        return code::INVALID_ARGUMENT;
    }
    // SAFETY: not null, so the caller's count.
    let mut listed = unsafe { count.read_unaligned() }.min(MAX_PROCESS_ENTRIES);
    let mut processes = vec![0_u8; listed as usize * PROCESS_INFO_BYTES];
    let (count_at, list_at) =
        (std::ptr::from_mut(&mut listed).expose_provenance(), processes.as_mut_ptr().expose_provenance());
    // SAFETY: the list holds as many as `listed` says.
    let status = unsafe { ask(list, [device, count_at, list_at, 0, 0, 0]) };
    if status != code::SUCCESS {
        return status;
    }
    let (processes, _) = processes.as_chunks::<PROCESS_INFO_BYTES>();
    let target = std::ptr::with_exposed_provenance_mut::<u8>(entries);
    for (at, process) in processes.iter().take(listed as usize).enumerate() {
        let entry = entry(process, &name_of(process));
        // SAFETY: the caller's list has as many entries as it said, and no more were found.
        unsafe { target.add(at * PROCESS_ENTRY_BYTES).copy_from_nonoverlapping(entry.as_ptr(), PROCESS_ENTRY_BYTES) };
    }
    // SAFETY: as above.
    unsafe { count.write_unaligned(listed) };
    code::SUCCESS
}

/// Returns a process's name on its server; empty if it has ended.
fn name_of(process: &[u8; PROCESS_INFO_BYTES]) -> Vec<u8> {
    let number = process.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let mut name = vec![0; PROCESS_NAME_BYTES];
    // SAFETY: the buffer is as long as said.
    let status = unsafe {
        let arguments = [number as usize, name.as_mut_ptr().expose_provenance(), name.len(), 0, 0, 0];
        ask("nvmlSystemGetProcessName", arguments)
    };
    let length = if status == code::SUCCESS { name.iter().position(|byte| *byte == 0) } else { None };
    name.truncate(length.unwrap_or(0));
    name
}

/// Makes an entry: the process in the public list, no protected memory, and its name.
fn entry(process: &[u8; PROCESS_INFO_BYTES], name: &[u8]) -> Vec<u8> {
    let mut entry = process.to_vec();
    entry.resize(PROCESS_NAME_OFFSET, 0);
    entry.extend(name.iter().take(PROCESS_NAME_BYTES - 1));
    entry.resize(PROCESS_ENTRY_BYTES, 0);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_found_by_its_id_alone() {
        let (mut table, id, other) = (std::ptr::null(), TABLE_ID, [0_u8; 16]);
        // SAFETY: locals.
        unsafe {
            assert_eq!(nvmlInternalGetExportTable(&raw mut table, &raw const other), code::NOT_SUPPORTED);
            assert!(table.is_null());
            assert_eq!(nvmlInternalGetExportTable(&raw mut table, &raw const id), code::SUCCESS);
            assert_eq!(nvmlInternalGetExportTable(&raw mut table, std::ptr::null()), code::INVALID_ARGUMENT);
            assert_eq!(table.cast::<usize>().read(), size_of::<FunctionTable>());
        }
        assert_eq!(size_of::<FunctionTable>(), TABLE_WORDS * size_of::<usize>());
    }

    #[test]
    fn slots_stand_at_their_places() {
        let mut handle = 0_usize;
        let address = std::ptr::from_mut(&mut handle).expose_provenance();
        // SAFETY: a number and an output for a handle; the other slot takes nothing. Row 5 begins with slot 80, and nothing
        // starts without a server.
        let answers = unsafe {
            [
                FUNCTION_TABLE.rows[4][1](0, address, 0x22, 0),
                FUNCTION_TABLE.rows[4][2](0, 0, 0, 0),
                FUNCTION_TABLE.first[0](0, 0, 0, 0),
            ]
        };
        assert_eq!(answers, [code::UNINITIALIZED, code::NOT_SUPPORTED, code::NOT_SUPPORTED]);
    }

    #[test]
    fn entries_hold_their_names_whole_or_cut() {
        let process = [7; PROCESS_INFO_BYTES];
        let whole = entry(&process, b"worker");
        assert_eq!((whole.len(), &whole[..24], &whole[32..39]), (4128, &process[..], &b"worker\0"[..]));
        assert_eq!((whole[24..32].to_vec(), entry(&process, &[b'a'; 5000])[4127]), (vec![0; 8], 0));
    }
}
