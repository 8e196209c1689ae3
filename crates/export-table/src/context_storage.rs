//! The table CONTEXT_LOCAL_STORAGE: three functions and a null, without a size word.
//!
//! Context 0 means the current one. Without a current context, or with one that is not active, the answer is 201. For an
//! explicit handle only the key is checked.

#![expect(unsafe_code, reason = "slots take the raw pointers of C callers")]

use crate::facts::{ContextState, Handle, facts};
use crate::ffi::{Status, guard, status};
use crate::storage::{CONTEXT_STORAGE, Destructor};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<4> = WordTable::unsized_(&[
    (0, put as *const () as Word),
    (1, delete as *const () as Word),
    (2, get as *const () as Word),
]);

extern "C" fn put(context: Handle, key: usize, value: usize, destructor: Option<Destructor>) -> Status {
    guard(|| CONTEXT_STORAGE.put(resolve(context)?, key, value, destructor))
}

extern "C" fn delete(context: Handle, key: usize) -> Status {
    guard(|| CONTEXT_STORAGE.delete(resolve(context)?, key))
}

unsafe extern "C" fn get(out: *mut usize, context: Handle, key: usize) -> Status {
    guard(|| {
        // SAFETY: null or writable, which is what callers of the slot pass.
        let out = unsafe { out.as_mut() }.ok_or(status::INVALID_VALUE)?;
        *out = CONTEXT_STORAGE.get(resolve(context)?, key)?;
        Ok(())
    })
}

/// Returns the context that a slot means.
fn resolve(context: Handle) -> Result<Handle, Status> {
    let facts = facts()?;
    facts.alive()?;
    if context != 0 {
        return Ok(context);
    }
    let current = facts.current_context();
    match facts.context_state(current) {
        ContextState::Active => Ok(current),
        ContextState::Inactive | ContextState::Unknown => Err(status::INVALID_CONTEXT),
    }
}
