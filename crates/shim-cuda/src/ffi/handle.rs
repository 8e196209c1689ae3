//! Maps the program's handles to objects and wire ids.
//!
//! A handle is the address of a record in the table of its kind, so anything else is recognized. Each module has the table
//! of its objects. The codes are those of NVIDIA's driver: 201 for a wrong context, 400 for nearly every other kind.

use std::io;
use std::sync::{Arc, OnceLock};

use katydid_client::slab::{HandlePeek, Slab};
use katydid_cuda_sys::CUresult;

/// The records of one kind; `cuInit` reserves their memory.
pub(crate) struct HandleTable<T>(OnceLock<Slab<T>>);

impl<T> HandleTable<T> {
    /// Makes a table without room for a record.
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Reserves room for `capacity` records, unless an earlier attempt to start has done so.
    ///
    /// # Errors
    ///
    /// When there is no address space left.
    pub(crate) fn reserve(&self, capacity: u32) -> io::Result<()> {
        if self.0.get().is_none() {
            self.fill(Slab::reserve(capacity)?);
        }
        Ok(())
    }

    /// Takes over records that were made before, unless the table has some.
    pub(crate) fn fill(&self, records: Slab<T>) {
        let _ = self.0.set(records);
    }

    /// The slab with the records of this kind.
    ///
    /// # Errors
    ///
    /// `ERROR_NOT_INITIALIZED` before `cuInit`.
    #[inline]
    pub(crate) fn get(&self) -> Result<&Slab<T>, CUresult> {
        self.0.get().ok_or(CUresult::ERROR_NOT_INITIALIZED)
    }
}

/// A type of handles, with the table of its objects.
pub(crate) trait Handle: Copy {
    /// The type of the object behind the handle.
    type Object: 'static;

    /// The code for an invalid handle.
    const INVALID_CODE: CUresult = CUresult::ERROR_INVALID_HANDLE;

    /// The table of its kind.
    fn table() -> &'static HandleTable<Self::Object>;

    /// The handle as a number.
    fn value(self) -> usize;
}

/// Returns the object behind a handle.
///
/// # Errors
///
/// The code of its kind, also for null.
pub(crate) fn object<H: Handle>(handle: H) -> Result<Arc<H::Object>, CUresult> {
    H::table().get()?.get(handle.value()).ok_or(H::INVALID_CODE)
}

/// Looks at the object behind a handle without taking a reference: queued calls often need no more.
///
/// # Errors
///
/// As [`object`].
pub(crate) fn peek<H: Handle>(handle: H) -> Result<HandlePeek, CUresult> {
    H::table().get()?.peek(handle.value()).ok_or(H::INVALID_CODE)
}

/// A handle that a message carries.
pub(crate) trait Wire {
    /// The number that messages carry for it.
    ///
    /// # Errors
    ///
    /// The code of its kind, for an invalid handle.
    fn wire(self) -> Result<u32, CUresult>;
}

/// A handle whose object belongs to a context.
pub(crate) trait OwningContext {
    /// Wire id of the context.
    ///
    /// # Errors
    ///
    /// The code of its kind, for an invalid handle.
    fn owning_context(self) -> Result<u32, CUresult>;
}

/// As [`OwningContext::owning_context`], for generated bodies.
pub(crate) fn owning_context<H: OwningContext>(handle: H) -> Result<u32, CUresult> {
    handle.owning_context()
}

/// As [`Wire::wire`], for generated bodies.
pub(crate) fn wire<H: Wire>(handle: H) -> Result<u32, CUresult> {
    handle.wire()
}
