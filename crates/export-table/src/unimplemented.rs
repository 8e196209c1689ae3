//! Slots of the real table that this one does not implement: the first call of each is reported, and each call gives 801.
//!
//! A null would crash the program without a message. Slots that are null in the real table stay null, since callers test
//! them.

use std::collections::HashSet;
use std::ffi::c_void;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use crate::catalogue;
use crate::ffi::{Status, guard, status};

/// A word of a table.
pub(crate) type Word = *const c_void;

/// Words of the longest table.
pub(crate) const MAX_TABLE_WORDS: usize = 112;

/// The function in slot `SLOT` of the table with index `TABLE` in the catalogue. It reads none of its arguments.
extern "C" fn unimplemented<const TABLE: usize, const SLOT: usize>() -> Status {
    guard(|| {
        if let Some(line) = first_call(TABLE, SLOT) {
            let _ = writeln!(std::io::stderr(), "katydid: {line}");
        }
        Err(status::NOT_SUPPORTED)
    })
}

/// Returns the report of a slot's first call.
fn first_call(table: usize, slot: usize) -> Option<String> {
    static REPORTED_CALLS: Mutex<Option<HashSet<(usize, usize)>>> = Mutex::new(None);
    let mut reported = REPORTED_CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = reported.get_or_insert_default().insert((table, slot));
    is_first.then(|| format!("slot {slot} of {} is not supported yet", catalogue::named(table)))
}

/// Makes eight slots from `$first` on.
macro_rules! eight {
    ($table:ident, $first:literal) => {
        [
            unimplemented::<$table, { $first }> as *const () as Word,
            unimplemented::<$table, { $first + 1 }> as *const () as Word,
            unimplemented::<$table, { $first + 2 }> as *const () as Word,
            unimplemented::<$table, { $first + 3 }> as *const () as Word,
            unimplemented::<$table, { $first + 4 }> as *const () as Word,
            unimplemented::<$table, { $first + 5 }> as *const () as Word,
            unimplemented::<$table, { $first + 6 }> as *const () as Word,
            unimplemented::<$table, { $first + 7 }> as *const () as Word,
        ]
    };
}

/// Makes a function for each slot of a table, in groups of eight.
pub(crate) const fn all<const TABLE: usize>() -> [[Word; 8]; MAX_TABLE_WORDS / 8] {
    [
        eight!(TABLE, 0),
        eight!(TABLE, 8),
        eight!(TABLE, 16),
        eight!(TABLE, 24),
        eight!(TABLE, 32),
        eight!(TABLE, 40),
        eight!(TABLE, 48),
        eight!(TABLE, 56),
        eight!(TABLE, 64),
        eight!(TABLE, 72),
        eight!(TABLE, 80),
        eight!(TABLE, 88),
        eight!(TABLE, 96),
        eight!(TABLE, 104),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_named_with_its_table_and_once() {
        assert_eq!(
            first_call(7, 33).as_deref(),
            Some(
                "slot 33 of the private table TOOLS_MODULE (6e163fbe-b958-444d-835c-e182aff1991e) is not supported yet"
            )
        );
        assert_eq!(first_call(7, 33), None);
        assert!(first_call(6, 33).is_some_and(|line| line.contains("TOOLS_CONTEXT")));
    }

    #[test]
    fn every_slot_is_a_function_of_its_own() {
        let words: HashSet<usize> = all::<0>().as_flattened().iter().map(|word| word.addr()).collect();
        assert_eq!(words.len(), MAX_TABLE_WORDS);
        assert_eq!(unimplemented::<0, 3>(), status::NOT_SUPPORTED);
    }
}
