//! From the program's handles to objects and wire ids.
//!
//! A handle is the address of a record in the table of its kind, so anything else is recognised. Each module has the table
//! of its objects. The codes are those of NVIDIA's driver: 201 for a wrong context, 400 for nearly every other kind.

use std::io;
use std::sync::{Arc, OnceLock};

use katydid_client::slab::{HandlePeek, Slab};
use katydid_cuda_sys::CUresult;

/// The records of one kind; `cuInit` makes room for them.
pub(crate) struct HandleTable<T>(OnceLock<Slab<T>>);

impl<T> HandleTable<T> {
    /// A table without room for a record.
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Makes room for `capacity` records, unless an earlier attempt to start has done so.
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

    /// Takes over records that were made before, unless there are some.
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
    /// What the handle stands for.
    type Object: 'static;

    /// The code for a handle that is none.
    const INVALID_CODE: CUresult = CUresult::ERROR_INVALID_HANDLE;

    /// The table of its kind.
    fn table() -> &'static HandleTable<Self::Object>;

    /// The handle as a number.
    fn value(self) -> usize;
}

/// The object behind a handle.
///
/// # Errors
///
/// The code of its kind, for null too.
pub(crate) fn object<H: Handle>(handle: H) -> Result<Arc<H::Object>, CUresult> {
    H::table().get()?.get(handle.value()).ok_or(H::INVALID_CODE)
}

/// A glance at the object behind a handle, without a share in it: what is queued often needs no more.
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
    /// The code of its kind, when it is no handle.
    fn wire(self) -> Result<u32, CUresult>;
}

/// A handle whose object belongs to a context.
pub(crate) trait OwningContext {
    /// Wire id of the context.
    ///
    /// # Errors
    ///
    /// The code of its kind, when it is no handle.
    fn owning_context(self) -> Result<u32, CUresult>;
}

/// As [`OwningContext::owning_context`]; what generated bodies call.
pub(crate) fn owning_context<H: OwningContext>(handle: H) -> Result<u32, CUresult> {
    handle.owning_context()
}

/// As [`Wire::wire`]; what generated bodies call.
pub(crate) fn wire<H: Wire>(handle: H) -> Result<u32, CUresult> {
    handle.wire()
}
