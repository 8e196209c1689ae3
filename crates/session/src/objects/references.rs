//! The session's texture and surface references, by the ids that the program gave them.
//!
//! A driver's reference must not be used once its module is gone. So references end with their module and their context,
//! whatever the program still does with the ids.

use std::collections::HashMap;

use katydid_cuda_sys::{CUresult, CUsurfref, CUtexref};

use crate::calls::fault::Fault;

/// Most references of a session at a time.
const MAX_REFERENCES: usize = 1 << 16;

/// The reference of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A texture reference (`CUtexref`).
    Texture(CUtexref),
    /// A surface reference (`CUsurfref`).
    Surface(CUsurfref),
}

/// A reference, with the module and context that it belongs to.
#[derive(Debug, Clone, Copy)]
struct ReferenceEntry {
    reference: Reference,
    /// Wire id of the module that declares it; 0 for one that the program created.
    module: u32,
    /// Wire id of the context with which it ends.
    context: u32,
}

/// Texture and surface references of the session, by wire id.
#[derive(Debug, Default)]
pub(crate) struct References {
    entries: HashMap<u32, ReferenceEntry>,
}

impl References {
    /// Checks an id for a new reference.
    ///
    /// # Errors
    ///
    /// `OUT_OF_MEMORY` if there are too many, `INVALID_VALUE` for an id that is taken or 0.
    pub(crate) fn check_new(&self, id: u32) -> Result<(), Fault> {
        if self.entries.len() >= MAX_REFERENCES {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        let free = id != 0 && !self.entries.contains_key(&id);
        if free { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE.into()) }
    }

    /// Gives an id to a reference.
    pub(crate) fn add(&mut self, id: u32, reference: Reference, module: u32, context: u32) {
        self.entries.insert(id, ReferenceEntry { reference, module, context });
    }

    /// Returns the texture reference of an id.
    ///
    /// # Errors
    ///
    /// `INVALID_HANDLE`.
    pub(crate) fn texture(&self, id: u32) -> Result<CUtexref, Fault> {
        match self.entries.get(&id).map(|entry| entry.reference) {
            Some(Reference::Texture(reference)) => Ok(reference),
            _ => Err(CUresult::ERROR_INVALID_HANDLE.into()),
        }
    }

    /// Returns the surface reference of an id.
    ///
    /// # Errors
    ///
    /// `INVALID_HANDLE`.
    pub(crate) fn surface(&self, id: u32) -> Result<CUsurfref, Fault> {
        match self.entries.get(&id).map(|entry| entry.reference) {
            Some(Reference::Surface(reference)) => Ok(reference),
            _ => Err(CUresult::ERROR_INVALID_HANDLE.into()),
        }
    }

    /// Removes a reference that the program created; one of a module stays.
    ///
    /// # Errors
    ///
    /// `INVALID_HANDLE`.
    pub(crate) fn take(&mut self, id: u32) -> Result<CUtexref, Fault> {
        let reference = self.texture(id)?;
        let is_own = self.entries.get(&id).is_some_and(|entry| entry.module == 0);
        if !is_own {
            return Err(CUresult::ERROR_INVALID_HANDLE.into());
        }
        self.entries.remove(&id);
        Ok(reference)
    }

    /// Forgets the references of a module.
    pub(crate) fn forget_module(&mut self, module: u32) {
        self.entries.retain(|_, entry| entry.module != module);
    }

    /// Forgets the references of a context that ended.
    pub(crate) fn forget_context(&mut self, context: u32) {
        self.entries.retain(|_, entry| entry.context != context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_go_with_their_module_and_their_context() {
        let texture = CUtexref(std::ptr::without_provenance_mut(16));
        let surface = CUsurfref(std::ptr::without_provenance_mut(32));
        let mut references = References::default();
        references.add(1, Reference::Texture(texture), 7, 1);
        references.add(2, Reference::Surface(surface), 8, 1);
        references.add(3, Reference::Texture(texture), 0, 2);
        assert_eq!((references.texture(1).ok(), references.surface(2).ok()), (Some(texture), Some(surface)));
        assert!(references.texture(2).is_err() && references.surface(1).is_err());
        assert!(references.check_new(3).is_err() && references.check_new(0).is_err());
        assert!(references.take(1).is_err() && references.take(3).is_ok() && references.take(3).is_err());
        references.forget_module(7);
        assert!(references.texture(1).is_err() && references.surface(2).is_ok());
        references.forget_context(1);
        assert!(references.surface(2).is_err());
    }
}
