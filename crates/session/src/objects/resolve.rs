//! Resolves and ends each kind of handle.

use katydid_cuda_sys::{
    CU_STREAM_LEGACY, CUcontext, CUevent, CUfunction, CUkernel, CUlibrary, CUmodule, CUresult, CUstream,
};
use katydid_wire::frame::FrameHead;

use crate::calls::fault::Fault;
use crate::memory::holdings::CodeOrigin;
use crate::memory::host_memory::VariableOwner;
use crate::objects::handles::{Handle, Handles};
use crate::objects::tables::Tables;
use crate::state::Session;

/// Wire id of the legacy default stream.
const LEGACY_STREAM_ID: u32 = 1;
/// Wire id of the calling thread's default stream.
const PER_THREAD_STREAM_ID: u32 = 2;

/// A kind of handle that messages name.
pub(crate) trait Resolve: Handle {
    /// Whether it belongs to the current green context, not to its primary one.
    const IS_OF_GREEN: bool = false;

    /// Returns the table of its ids.
    fn table(tables: &mut Tables) -> &mut Handles<Self>;

    /// Returns the handle that a frame's thread means by `id`.
    fn resolve(session: &mut Session, _head: &FrameHead, id: u32) -> Result<Self, Fault> {
        Self::table(&mut session.tables).get(id)
    }

    /// Removes an ended object; an id without one is ignored.
    fn ended(session: &mut Session, id: u32) {
        let _ = Self::table(&mut session.tables).take(id);
    }
}

macro_rules! plain {
    ($($ty:ident $field:ident),* $(,)?) => {$(
        impl Resolve for $ty {
            fn table(tables: &mut Tables) -> &mut Handles<Self> {
                &mut tables.$field
            }
        }
    )*};
}

plain!(CUfunction functions, CUkernel kernels);

macro_rules! objects {
    ($($ty:ident)*) => {$(
        impl Resolve for katydid_cuda_sys::$ty {
            fn table(tables: &mut Tables) -> &mut Handles<Self> {
                &mut tables.objects.$ty
            }
        }
    )*};
}

katydid_cuda_sys::for_each_object!(objects);

impl Resolve for CUmodule {
    fn table(tables: &mut Tables) -> &mut Handles<Self> {
        &mut tables.modules
    }

    fn ended(session: &mut Session, id: u32) {
        let _ = session.tables.modules.take(id);
        session.tables.library_modules.remove(&id);
        session.forget_code(CodeOrigin::Module(id));
        session
            .shared
            .blocks
            .forget_variables(|owner| matches!(owner, VariableOwner::Module { module, .. } if module == id));
        session.tables.references.forget_module(id);
    }
}

impl Resolve for CUstream {
    const IS_OF_GREEN: bool = true;

    fn table(tables: &mut Tables) -> &mut Handles<Self> {
        &mut tables.streams
    }

    fn resolve(session: &mut Session, head: &FrameHead, id: u32) -> Result<Self, Fault> {
        match id {
            LEGACY_STREAM_ID => Ok(CU_STREAM_LEGACY),
            PER_THREAD_STREAM_ID => session.thread_stream(head.thread, head.sequence),
            id => session.tables.streams.get(id),
        }
    }
}

impl Session {
    /// Returns the context that owns what is made for a stream.
    pub(crate) fn owner_of_stream(&self, id: u32) -> Result<u32, Fault> {
        match id {
            0 | LEGACY_STREAM_ID | PER_THREAD_STREAM_ID => Ok(self.current),
            id => Ok(self.owner(self.tables.streams.context(id)?)),
        }
    }
}

impl Resolve for CUevent {
    fn table(tables: &mut Tables) -> &mut Handles<Self> {
        &mut tables.events
    }

    fn ended(session: &mut Session, id: u32) {
        let _ = session.tables.events.take(id);
        session.shares.end_event(id);
        if !session.event_times.is_empty() {
            session.event_times.forget(id);
        }
    }
}

impl Resolve for CUlibrary {
    fn table(tables: &mut Tables) -> &mut Handles<Self> {
        &mut tables.libraries
    }

    fn ended(session: &mut Session, id: u32) {
        let _ = session.tables.libraries.take(id);
        let of_it = session.tables.library_modules.iter().filter(|(_, library)| **library == id);
        let modules: Vec<u32> = of_it.map(|(module, _)| *module).collect();
        modules.into_iter().for_each(|module| CUmodule::ended(session, module));
        session
            .shared
            .blocks
            .forget_variables(|owner| matches!(owner, VariableOwner::Library { library, .. } if library == id));
        session.images.forget(id);
        session.forget_code(CodeOrigin::Library(id));
    }
}

impl Resolve for CUcontext {
    fn table(tables: &mut Tables) -> &mut Handles<Self> {
        &mut tables.contexts
    }

    fn resolve(session: &mut Session, _head: &FrameHead, id: u32) -> Result<Self, Fault> {
        session.tables.contexts.get(id).map_err(|fault| match fault {
            Fault::Cuda(_) => CUresult::ERROR_INVALID_CONTEXT.into(),
            fatal => fatal,
        })
    }

    fn ended(session: &mut Session, id: u32) {
        session.end_context(id);
    }
}
