//! `cuGetExportTable`: returns the address of a table by its id.
//!
//! An unknown id gives 1 and writes NULL, as the real driver does: a caller that ignores the code tests the pointer. The id
//! is reported once on stderr, so that a missing table does not look like a bug. Ids that callers are known to live without
//! are only reported with `KATYDID_LOG`.

#![expect(unsafe_code, reason = "reads the id and writes the pointer of a C caller")]

use std::collections::HashSet;
use std::ffi::c_void;
use std::io::Write;
use std::ptr;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::catalogue::{Id, KNOWN_TABLES, name_of, spelled};
use crate::ffi::{Status, guard, status};
use crate::{
    checks, context_storage, cudart, hooks, integrity, nvrtc_cache, sm_map, thread_context, tools_context, tools_module,
};

/// Returns the address of one table.
type Address = fn() -> *const c_void;

/// The served tables, by their index in the catalogue.
static SERVED_TABLES: [Address; 10] = [
    || cudart::TABLE.address(),
    || hooks::TABLE.address(),
    || thread_context::TABLE.address(),
    || context_storage::TABLE.address(),
    || checks::TABLE.address(),
    || integrity::TABLE.address(),
    || tools_context::TABLE.address(),
    || tools_module::TABLE.address(),
    || sm_map::TABLE.address(),
    || nvrtc_cache::TABLE.address(),
];

/// Returns the table with this id, or `None` if it is unknown or refused. Works before `cuInit`.
pub fn lookup(id: &Id) -> Option<*const c_void> {
    let index = KNOWN_TABLES.iter().position(|entry| entry.id.to_be_bytes() == *id)?;
    SERVED_TABLES.get(index).map(|address| address())
}

/// Answers `cuGetExportTable`: 0 and the table, or 1 and NULL.
///
/// # Safety
///
/// `out` must be null, or valid for writing one pointer; `id` null, or valid for reading 16 bytes.
pub unsafe fn get(out: *mut *const c_void, id: *const Id) -> Status {
    guard(|| {
        if out.is_null() || id.is_null() {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: readable, as the caller promises; null was refused above. Bytes have no alignment.
        let id = unsafe { id.read() };
        let table = lookup(&id);
        // SAFETY: writable, as the caller promises; null was refused above.
        unsafe { out.write(table.unwrap_or(ptr::null())) };
        table.map(drop).ok_or_else(|| {
            if let Some(line) = refusal(&id, *LOG_IS_ON) {
                let _ = writeln!(std::io::stderr(), "katydid: {line}");
            }
            status::INVALID_VALUE
        })
    })
}

/// Whether the user asked for a log.
static LOG_IS_ON: LazyLock<bool> = LazyLock::new(|| std::env::var_os("KATYDID_LOG").is_some_and(|it| !it.is_empty()));

/// Returns the report about a refused id: once, and for a known one only in a log.
fn refusal(id: &Id, is_logged: bool) -> Option<String> {
    static REPORTED_TABLES: Mutex<Option<HashSet<Id>>> = Mutex::new(None);
    let is_known = KNOWN_TABLES.iter().any(|entry| entry.id.to_be_bytes() == *id);
    if is_known && !is_logged {
        return None;
    }
    let mut reported = REPORTED_TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = reported.get_or_insert_default().insert(*id);
    is_first.then(|| format!("cuGetExportTable: no table {} ({})", name_of(id), spelled(id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{
        CHECKS_INDEX, CUDART_INDEX, HOOKS_INDEX, INTEGRITY_INDEX, NVRTC_CACHE_INDEX, SM_MAP_INDEX,
        THREAD_CONTEXT_INDEX, TOOLS_CONTEXT_INDEX, TOOLS_MODULE_INDEX,
    };

    fn id(number: u128) -> Id {
        number.to_be_bytes()
    }

    #[test]
    fn an_unknown_id_gives_one_and_null() {
        let mut out = ptr::dangling();
        // SAFETY: both point to locals.
        let code = unsafe { get(&mut out, &id(7)) };
        assert_eq!((code, out), (status::INVALID_VALUE, ptr::null()));
        // SAFETY: a null output is allowed and refused.
        assert_eq!(unsafe { get(ptr::null_mut(), &id(7)) }, status::INVALID_VALUE);
    }

    #[test]
    fn a_known_id_gives_the_same_pointer_every_time_and_its_size_first() {
        for (entry, words) in KNOWN_TABLES.iter().zip([13, 7, 3, 0, 15, 3, 93, 99, 17, 7]) {
            let (mut first, mut second) = (ptr::null(), ptr::null());
            // SAFETY: all four point to locals.
            let codes = unsafe { [get(&mut first, &id(entry.id)), get(&mut second, &id(entry.id))] };
            assert_eq!((codes, first), ([0, 0], second), "{}", entry.name);
            // SAFETY: a served table has at least one word.
            let size = unsafe { first.cast::<usize>().read() };
            assert!(words == 0 || size == words * 8, "{}: {size}", entry.name);
        }
    }

    #[test]
    fn slots_name_the_tables_that_they_are_in() {
        let names = [
            CUDART_INDEX,
            HOOKS_INDEX,
            THREAD_CONTEXT_INDEX,
            CHECKS_INDEX,
            INTEGRITY_INDEX,
            TOOLS_CONTEXT_INDEX,
            TOOLS_MODULE_INDEX,
            SM_MAP_INDEX,
            NVRTC_CACHE_INDEX,
        ];
        let names = names.map(|index| KNOWN_TABLES[index].name);
        assert_eq!(
            names,
            ["CUDART", "HOOKS", "TLS", "CHECKS", "INTEGRITY", "TOOLS_CONTEXT", "TOOLS_MODULE", "SM_MAP", "NVRTC_CACHE"]
        );
    }

    #[test]
    fn unknown_tables_are_named_once_and_known_ones_only_in_a_log() {
        let error_log = id(0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9);
        let unknown = "cuGetExportTable: no table of an unknown name (00000000-0000-0000-0000-000000000009)";
        assert_eq!((refusal(&id(9), false).as_deref(), refusal(&id(9), true)), (Some(unknown), None));
        assert_eq!(refusal(&error_log, false), None);
        assert!(refusal(&error_log, true).is_some_and(|line| line.contains("no table ERROR_LOG")));
    }

    #[test]
    fn refused_tables_have_names() {
        let error_log = id(0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9);
        assert_eq!(lookup(&error_log), None);
        assert_eq!(name_of(&error_log), "ERROR_LOG");
        assert_eq!(spelled(&error_log), "f8cff951-2146-8b4e-b9e2-fb469e7c0dd9");
    }
}
