//! Tables from wire ids to the driver's handles: one bounded vector a kind.
//!
//! The program assigns ids densely from 1, and may assign many before the first message that uses one arrives. So an id may
//! lie [`MAX_ID_GAP`] beyond those seen; a larger one comes from no correct program and ends the session. An id whose
//! creation failed, or whose object or context is gone, gives `CUDA_ERROR_INVALID_HANDLE`.

use katydid_cuda_sys::{CUcontext, CUevent, CUfunction, CUkernel, CUlibrary, CUmodule, CUresult, CUstream};

use crate::calls::fault::{Fault, SessionError};

/// Ids beyond this are refused whatever came before.
const MAX_HANDLE_ID: usize = 1 << 24;
/// How far a new id may lie beyond the known ids.
const MAX_ID_GAP: usize = 1 << 16;

/// A handle type and its null value.
pub(crate) trait Handle: Copy {
    /// Its name in error texts.
    const KIND: &'static str;
    /// The handle of id 0.
    const NULL: Self;
}

macro_rules! handles {
    ($($ty:ident $kind:expr),* $(,)?) => {$(
        impl Handle for $ty {
            const KIND: &'static str = $kind;
            const NULL: Self = $ty::NULL;
        }
    )*};
}

handles!(
    CUcontext "context",
    CUstream "stream",
    CUevent "event",
    CUmodule "module",
    CUlibrary "library",
    CUfunction "function",
    CUkernel "kernel",
);

macro_rules! objects {
    ($($ty:ident)*) => {
        $(
            use katydid_cuda_sys::$ty;
            handles!($ty stringify!($ty));
        )*

        /// The tables of the handle types with an `object` line in the spec.
        #[derive(Debug, Default)]
        #[allow(non_snake_case, reason = "fields carry the names of their types")]
        pub(crate) struct ObjectTables {
            $(pub(crate) $ty: Handles<$ty>,)*
        }

        impl ObjectTables {
            /// Forgets the objects of a context that ended.
            pub(crate) fn forget_context(&mut self, context: u32) {
                $(self.$ty.forget_context(context);)*
                let _ = context;
            }
        }
    };
}

katydid_cuda_sys::for_each_object!(objects);

/// A live object's handle, and the context that it belongs to.
#[derive(Debug, Clone, Copy)]
struct HandleEntry<H> {
    handle: H,
    /// Wire id of the context with which it ends; 0 for none.
    context: u32,
}

/// All objects of one kind.
#[derive(Debug)]
pub(crate) struct Handles<H> {
    entries: Vec<Option<HandleEntry<H>>>,
}

impl<H> Default for Handles<H> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<H: Handle> Handles<H> {
    /// Returns the handle of `id`; null for id 0.
    ///
    /// # Errors
    ///
    /// [`SessionError::BadId`] for an impossible id, `CUDA_ERROR_INVALID_HANDLE` for one without an object.
    pub(crate) fn get(&self, id: u32) -> Result<H, Fault> {
        if id == 0 {
            return Ok(H::NULL);
        }
        match self.entries.get(self.index(id)?) {
            Some(Some(entry)) => Ok(entry.handle),
            _ => Err(CUresult::ERROR_INVALID_HANDLE.into()),
        }
    }

    /// Returns the context with which an object ends; 0 for none.
    ///
    /// # Errors
    ///
    /// As [`Handles::get`]; id 0 has no object.
    pub(crate) fn context(&self, id: u32) -> Result<u32, Fault> {
        let entry = self.entries.get(self.index(id)?).copied().flatten();
        entry.map(|entry| entry.context).ok_or_else(|| CUresult::ERROR_INVALID_HANDLE.into())
    }

    /// Returns the id of any object; 0 without one.
    pub(crate) fn any(&self) -> u32 {
        self.entries.iter().position(Option::is_some).map_or(0, |index| index as u32 + 1)
    }

    /// Checks an id for a new object, before the driver makes it.
    ///
    /// # Errors
    ///
    /// [`SessionError::BadId`]; id 0 is impossible too.
    pub(crate) fn check_new(&self, id: u32) -> Result<(), Fault> {
        self.index(id).map(|_| ())
    }

    /// Gives `id` to `handle`, which ends with `context`. An older object of the id is forgotten: the program ended it.
    ///
    /// # Errors
    ///
    /// [`SessionError::BadId`].
    pub(crate) fn set(&mut self, id: u32, handle: H, context: u32) -> Result<(), Fault> {
        let index = self.index(id)?;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, None);
        }
        self.entries[index] = Some(HandleEntry { handle, context });
        Ok(())
    }

    /// Every object: id, handle, id of its context.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, H, u32)> {
        let numbered = (1..).zip(&self.entries);
        numbered.filter_map(|(id, entry)| entry.as_ref().map(|entry| (id, entry.handle, entry.context)))
    }

    /// Removes the object of an id.
    ///
    /// # Errors
    ///
    /// As [`Handles::get`]; id 0 has no object.
    pub(crate) fn take(&mut self, id: u32) -> Result<H, Fault> {
        let index = self.index(id)?;
        let entry = self.entries.get_mut(index).and_then(Option::take);
        entry.map(|entry| entry.handle).ok_or_else(|| CUresult::ERROR_INVALID_HANDLE.into())
    }

    /// Returns the number of ids seen so far.
    pub(crate) fn id_count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Continues after another table that has seen `id_count` ids.
    pub(crate) fn resume(&mut self, id_count: u32) {
        let id_count = (id_count as usize).min(MAX_HANDLE_ID);
        if id_count > self.entries.len() {
            self.entries.resize(id_count, None);
        }
    }

    /// Every live object: its id, the driver's handle, its context.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, H, u32)> {
        // Ids are bounded far below the limits of their type.
        (1..).zip(&self.entries).filter_map(|(id, slot)| slot.map(|entry| (id, entry.handle, entry.context)))
    }

    /// Forgets every object of a context that ended.
    pub(crate) fn forget_context(&mut self, context: u32) {
        for slot in &mut self.entries {
            if slot.is_some_and(|entry| entry.context == context) {
                *slot = None;
            }
        }
    }

    fn index(&self, id: u32) -> Result<usize, Fault> {
        let issued_ids = self.entries.len();
        let index = (id as usize).checked_sub(1);
        let bad = SessionError::BadId { kind: H::KIND, id, issued_ids };
        index.filter(|index| *index < MAX_HANDLE_ID && *index < issued_ids + MAX_ID_GAP).ok_or(bad.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(value: usize) -> CUstream {
        CUstream(std::ptr::without_provenance_mut(value))
    }

    #[test]
    fn an_id_leads_to_its_handle_until_it_is_taken() {
        let mut streams = Handles::default();
        streams.set(3, stream(0x30), 1).unwrap();
        assert_eq!(streams.get(3).unwrap(), stream(0x30));
        assert_eq!(streams.get(0).unwrap(), CUstream::NULL);
        assert_eq!(streams.take(3).unwrap(), stream(0x30));
        assert!(matches!(streams.get(3), Err(Fault::Cuda(CUresult::ERROR_INVALID_HANDLE))));
        assert!(matches!(streams.take(3), Err(Fault::Cuda(CUresult::ERROR_INVALID_HANDLE))));
    }

    #[test]
    fn an_impossible_id_ends_the_session() {
        let mut streams = Handles::default();
        for id in [MAX_ID_GAP as u32 + 1, u32::MAX] {
            assert!(matches!(streams.get(id), Err(Fault::Fatal(SessionError::BadId { .. }))));
            assert!(matches!(streams.set(id, stream(1), 0), Err(Fault::Fatal(_))));
        }
        assert!(matches!(streams.set(0, stream(1), 0), Err(Fault::Fatal(_))));
        assert!(matches!(streams.take(0), Err(Fault::Fatal(_))));
        streams.set(MAX_ID_GAP as u32, stream(1), 0).unwrap();
        assert!(streams.check_new(2 * MAX_ID_GAP as u32).is_ok());
    }

    #[test]
    fn objects_die_with_their_context() {
        let mut streams = Handles::default();
        streams.set(3, stream(1), 1).unwrap();
        streams.set(4, stream(2), 2).unwrap();
        streams.forget_context(1);
        assert!(streams.get(3).is_err());
        assert_eq!(streams.get(4).unwrap(), stream(2));
    }
}
