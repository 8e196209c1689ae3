//! Finds the variables of loaded code, wherever a compiler or a linker has placed them.
//!
//! A driver returns the address of a variable by its name, and the image has all the names. If the driver does not know a
//! variable of machine code, other variables of its section show its address. If it could be written and cannot be found,
//! the snapshot is refused; nothing is left out.

#![expect(unsafe_code, reason = "asks the driver")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;

use katydid_cuda_sys::{CUdeviceptr, CUlibrary, CUmodule, CUresult};
use katydid_driver::Driver;
use katydid_fatbin::{MachineCode, Variable, Variables};
use serde::{Deserialize, Serialize};

use super::error::SnapshotError;
use crate::device::ask::ask;

/// Kind of the regions with code.
pub(super) const CODE_KIND: &str = "code";

/// Code in a context.
#[derive(Debug, Clone, Copy)]
pub(super) enum LoadedCode {
    Module(CUmodule),
    Library(CUlibrary),
}

/// A variable in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FoundVariable {
    pub(super) name: String,
    pub(super) address: u64,
    pub(super) size: u64,
}

/// Finds variables in the current context, each once.
///
/// # Errors
///
/// [`SnapshotError::Hidden`].
pub(super) fn find(
    driver: &Driver,
    loaded: LoadedCode,
    declared: &Variables<'_>,
    code: &str,
) -> Result<Vec<FoundVariable>, SnapshotError> {
    let mut variables = BTreeMap::new();
    let mut hidden = Vec::new();
    // For each section, the address of its first byte.
    let mut sections = HashMap::new();
    for variable in &declared.all {
        match address_of(driver, loaded, &variable.name) {
            Ok((address, size)) => {
                if let Some(location) = variable.location {
                    sections.insert(location.section, address.wrapping_sub(location.offset));
                }
                variables.insert(address, entry(variable, address, size));
            }
            Err(_) => hidden.push(variable),
        }
    }
    for variable in hidden {
        // In a PTX text, variables that the driver does not know were dropped by its compiler.
        let Some(location) = variable.location.filter(|location| location.size > 0) else { continue };
        match sections.get(&location.section) {
            Some(start) => {
                let address = start.wrapping_add(location.offset);
                variables.entry(address).or_insert_with(|| entry(variable, address, location.size));
            }
            None if variable.is_literal() => {}
            None => {
                let (code, variable) = (code.to_owned(), variable.name.clone().into_owned());
                return Err(SnapshotError::Hidden { code, variable });
            }
        }
    }
    Ok(variables.into_values().filter(|variable| variable.size > 0).collect())
}

fn entry(variable: &Variable<'_>, address: u64, size: u64) -> FoundVariable {
    FoundVariable { name: variable.name.clone().into_owned(), address, size }
}

/// Returns address and size of the variable `name`.
fn address_of(driver: &Driver, loaded: LoadedCode, name: &str) -> Result<(CUdeviceptr, u64), CUresult> {
    let name = CString::new(name).map_err(|_| CUresult::ERROR_NOT_FOUND)?;
    let (mut address, mut size) = (0, 0_usize);
    let (to_address, to_size) = (&raw mut address, &raw mut size);
    // SAFETY: the outputs are locals, the name ends with a NUL, the handle is one of the session's.
    let status = unsafe {
        match loaded {
            LoadedCode::Module(module) => driver.cuModuleGetGlobal_v2(to_address, to_size, module, name.as_ptr()),
            LoadedCode::Library(library) => driver.cuLibraryGetGlobal(to_address, to_size, library, name.as_ptr()),
        }
    };
    status.ok().map(|()| (address, size as u64))
}

/// Describes, for the user, which code a device of architecture `sm` runs.
pub(super) fn runs(driver: &Driver, code: MachineCode, sm: u32) -> String {
    match code {
        _ if driver.is_soft() => "softcuda's".to_owned(),
        MachineCode::Image => "its machine code".to_owned(),
        MachineCode::For(sm) => format!("machine code for sm_{sm}"),
        MachineCode::OfText => {
            // SAFETY: the output is a local.
            let version = ask(|out| unsafe { driver.cuDriverGetVersion(out) }).unwrap_or(0);
            format!("what driver {}.{} makes of its text for sm_{sm}", version / 1000, version % 1000 / 10)
        }
    }
}

/// Refuses code whose functions have moved, if memory may hold pointers to them, which `by_pointer` tells.
///
/// # Errors
///
/// [`SnapshotError::Pointers`].
pub(super) fn same_functions(
    code: &str,
    (saved_code, current_code): (Option<&str>, Option<&str>),
    by_pointer: impl FnOnce() -> bool,
) -> Result<(), SnapshotError> {
    match (saved_code, current_code) {
        (Some(saved_code), Some(current_code)) if saved_code != current_code && by_pointer() => {
            let (code, saved_code, current_code) = (code.to_owned(), saved_code.to_owned(), current_code.to_owned());
            Err(SnapshotError::Pointers { code, saved_code, current_code })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_to_functions_hold_for_one_code_only() {
        let (soft, h200) = (Some("softcuda's"), Some("machine code for sm_90"));
        assert!(same_functions("module 1", (soft, soft), || true).is_ok());
        assert!(same_functions("module 1", (soft, h200), || false).is_ok());
        assert!(same_functions("module 1", (None, h200), || true).is_ok());
        let refused = same_functions("module 1", (soft, h200), || true).unwrap_err().to_string();
        assert!(
            refused.contains("module 1") && refused.contains("softcuda's") && refused.contains("sm_90"),
            "{refused}"
        );
    }
}
