//! Every table id we know of: those we serve, and the names of those we refuse.
//!
//! An unknown id gives 1 and writes NULL, as the real driver does: a caller that ignores the code tests the pointer.
//! It is named once on stderr, so that a missing table can be told from a bug; those that callers are known to live without only
//! with `KATYDID_LOG`.

#![expect(unsafe_code, reason = "reads the id and writes the pointer of a C caller")]

use std::collections::HashSet;
use std::ffi::c_void;
use std::io::Write;
use std::ptr;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::border::{Status, guard, status};
use crate::{
    checks, context_storage, cudart, hooks, integrity, nvrtc_cache, sm_map, thread_context, tools_context, tools_module,
};

/// The 16 bytes of a table id, in memory order.
pub type Id = [u8; 16];

/// What we do when an id is asked for.
#[derive(Clone, Copy)]
enum Served {
    /// Hand out the table at this address.
    Table(fn() -> *const c_void),
    /// Say no: callers live without it.
    Refused,
}

/// One known id. The name is that of the public sources, or our own where there is none.
struct Entry {
    id: u128,
    name: &'static str,
    served: Served,
}

const fn table(id: u128, name: &'static str, address: fn() -> *const c_void) -> Entry {
    Entry { id, name, served: Served::Table(address) }
}

const fn refused(id: u128, name: &'static str) -> Entry {
    Entry { id, name, served: Served::Refused }
}

/// Places in the catalogue of the tables that are served, as slots name them that are called and not built.
pub(crate) const CUDART: usize = 0;
pub(crate) const HOOKS: usize = 1;
pub(crate) const THREAD_CONTEXT: usize = 2;
pub(crate) const CHECKS: usize = 4;
pub(crate) const INTEGRITY: usize = 5;
pub(crate) const TOOLS_CONTEXT: usize = 6;
pub(crate) const TOOLS_MODULE: usize = 7;
pub(crate) const SM_MAP: usize = 8;
pub(crate) const NVRTC_CACHE: usize = 9;

/// Ids are written as one number whose most significant byte is byte 0 of the id.
static CATALOGUE: [Entry; 24] = [
    table(0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9, "CUDART", || cudart::TABLE.address()),
    table(0xa094798c_2e74_2e74_93f2_0800200c0a66, "HOOKS", || hooks::TABLE.address()),
    table(0x42d85a81_23f6_cb47_8298_f6e78a3aecdc, "TLS", || thread_context::TABLE.address()),
    table(0xc693336e_1121_df11_a8c3_68f355d89593, "CONTEXT_LOCAL_STORAGE", || context_storage::TABLE.address()),
    table(0x263e8860_7cd2_6143_92f6_bbd5006dfa7e, "CHECKS", || checks::TABLE.address()),
    table(0xd4082055_bde6_704b_8d34_ba123c66e1f2, "INTEGRITY", || integrity::TABLE.address()),
    table(0x21318c60_9714_3248_8ca6_41ff7324c8f2, "TOOLS_CONTEXT", || tools_context::TABLE.address()),
    table(0x6e163fbe_b958_444d_835c_e182aff1991e, "TOOLS_MODULE", || tools_module::TABLE.address()),
    table(0x1734dc26_800d_4745_8726_c0f1e7dd8bca, "SM_MAP", || sm_map::TABLE.address()),
    table(0xda9151d3_3ae6_cc41_a5c0_4f26d533e328, "NVRTC_CACHE", || nvrtc_cache::TABLE.address()),
    refused(0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9, "ERROR_LOG"),
    refused(0x69a28e9f_2449_8b47_b030_c5da330ea4e9, "NVML_SIDE"),
    refused(0xb10541e1_f7c7_c74a_9f64_f223be99f1e2, "DEVICE_EXTENDED_RT"),
    refused(0x195bcbf4_d67d_024a_acc5_1d29cea631ae, "HEAP_ACCESS"),
    refused(0x0ca50b8c_1004_929a_89a7_d0df10e77286, "CTX_CREATE_BYPASS"),
    refused(0xdd9e98a4_f410_4844_99b0_e2aeb7b432b5, "HYBRID_CUDART"),
    refused(0xbfdb432d_bf3c_5a4a_945e_b34029e81e75, "TOOLS_MEMORY"),
    refused(0xa6b1ff99_ecc4_c94f_92f9_1928663d5585, "TOOLS_PUSH_BUFFER"),
    refused(0xcc529e94_5c4e_9d46_837c_9625868334e4, "TOOLS_TRAP_HANDLER"),
    refused(0x7cb63f9b_9ca4_8e42_a484_beb66e6aed7f, "CUPTI"),
    refused(0x127d4831_ee33_5744_9742_b8447b7a2364, "TOOLS_127D4831"),
    refused(0x2c8e0ad8_0710_ab4e_90dd_54719fe5f74b, "TOOLS_2C8E0AD8"),
    refused(0xd7bd8af8_e7ac_ca4a_bdbc_fb1f1b3fcf33, "TOOLS_D7BD8AF8"),
    refused(0xa31746d1_5475_ef4e_aeb6_dfb1476add6c, "TOOLS_A31746D1"),
];

/// The table with this id, or `None` if it is unknown or refused. Works before `cuInit`.
pub fn lookup(id: &Id) -> Option<*const c_void> {
    match CATALOGUE.iter().find(|entry| entry.id.to_be_bytes() == *id)?.served {
        Served::Table(address) => Some(address()),
        Served::Refused => None,
    }
}

/// The whole of `cuGetExportTable`: 0 and the table, or 1 and NULL.
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
            if let Some(line) = refusal(&id, *LOGGED) {
                let _ = writeln!(std::io::stderr(), "katydid: {line}");
            }
            status::INVALID_VALUE
        })
    })
}

/// Whether the user asked for a log.
static LOGGED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("KATYDID_LOG").is_some_and(|it| !it.is_empty()));

/// What is said of an id that is not served: once, and of a known one only in a log.
fn refusal(id: &Id, is_logged: bool) -> Option<String> {
    static SEEN: Mutex<Option<HashSet<Id>>> = Mutex::new(None);
    let is_known = CATALOGUE.iter().any(|entry| entry.id.to_be_bytes() == *id);
    if is_known && !is_logged {
        return None;
    }
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = seen.get_or_insert_default().insert(*id);
    is_first.then(|| format!("cuGetExportTable: no table {} ({})", name_of(id), spelled(id)))
}

/// The table at a place in the catalogue, for messages.
pub(crate) fn named(place: usize) -> String {
    CATALOGUE.get(place).map_or_else(String::new, |entry| {
        format!("the private table {} ({})", entry.name, spelled(&entry.id.to_be_bytes()))
    })
}

/// The name of an id, as far as it has one.
fn name_of(id: &Id) -> &'static str {
    CATALOGUE.iter().find(|entry| entry.id.to_be_bytes() == *id).map_or("of an unknown name", |entry| entry.name)
}

/// The id in 8-4-4-4-12 groups.
fn spelled(id: &Id) -> String {
    let group = |range: std::ops::Range<usize>| id[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [group(0..4), group(4..6), group(6..8), group(8..10), group(10..16)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (entry, words) in CATALOGUE.iter().zip([13, 7, 3, 0, 15, 3, 93, 99, 17, 7]) {
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
        let names =
            [CUDART, HOOKS, THREAD_CONTEXT, CHECKS, INTEGRITY, TOOLS_CONTEXT, TOOLS_MODULE, SM_MAP, NVRTC_CACHE];
        let names = names.map(|place| CATALOGUE[place].name);
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
