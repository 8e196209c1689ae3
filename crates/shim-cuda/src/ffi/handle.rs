//! From the program's handles to objects and wire ids.
//!
//! A handle is the address of a record in the slab of its kind, so anything else is recognised. The codes are those
//! of NVIDIA's driver: 201 for a wrong context, 400 for every other kind.

use std::sync::Arc;

use katydid_client::slab::{Glance, Slab};
use katydid_cuda_sys::{
    CUarray, CUcontext, CUdevResourceDesc, CUevent, CUfunction, CUkernel, CUlibrary, CUlinkState, CUmemoryPool,
    CUmipmappedArray, CUmodule, CUresult, CUstream, CUsurfref, CUtexref,
};

use crate::code::function::Function;
use crate::code::kernel::Kernel;
use crate::code::library::Library;
use crate::code::link::Link;
use crate::code::module::Module;
use crate::context::contexts::Context;
use crate::context::green::Description;
use crate::memory::pool::Pool;
use crate::process::session::{Shim, shim};
use crate::sync::event::Event;
use crate::sync::stream::{self, Stream};
use crate::texture::array::{Array, Mipmap};
use crate::texture::reference::TextureReference;
use crate::texture::surface_reference::SurfaceReference;

/// A handle type: which slab holds its objects, and what its null means in a message.
pub(crate) trait Handle: Copy {
    /// What the handle stands for.
    type Object: 'static;

    /// The slab of its kind.
    fn slab(shim: &Shim) -> &Slab<Self::Object>;

    /// The handle as a number.
    fn value(self) -> usize;

    /// The id that travels.
    fn id(object: &Self::Object) -> u32;

    /// The code for a handle that is none.
    const WRONG: CUresult = CUresult::ERROR_INVALID_HANDLE;
}

macro_rules! handles {
    ($($handle:ident $object:ident $slab:ident)*) => {$(
        impl Handle for $handle {
            type Object = $object;

            fn slab(shim: &Shim) -> &Slab<$object> {
                &shim.$slab
            }

            fn value(self) -> usize {
                self.0.addr()
            }

            fn id(object: &$object) -> u32 {
                object.wire()
            }
        }
    )*};
}

handles! {
    CUarray Array arrays
    CUevent Event events
    CUfunction Function functions
    CUkernel Kernel kernels
    CUlibrary Library libraries
    CUmipmappedArray Mipmap mipmaps
    CUmodule Module modules
    CUstream Stream streams
    CUsurfref SurfaceReference surface_references
    CUtexref TextureReference texture_references
}

impl Handle for CUlinkState {
    type Object = Link;

    fn slab(shim: &Shim) -> &Slab<Link> {
        &shim.links
    }

    fn value(self) -> usize {
        self.0.addr()
    }

    /// Linkings are this side's alone: none travels.
    fn id(_: &Link) -> u32 {
        0
    }
}

impl Handle for CUdevResourceDesc {
    type Object = Description;

    const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

    fn slab(shim: &Shim) -> &Slab<Description> {
        &shim.descriptions
    }

    fn value(self) -> usize {
        self.0.addr()
    }

    /// Descriptions are this side's alone: none travels.
    fn id(_: &Description) -> u32 {
        0
    }
}

impl Handle for CUmemoryPool {
    type Object = Pool;

    fn slab(shim: &Shim) -> &Slab<Pool> {
        &shim.pools
    }

    fn value(self) -> usize {
        self.0.addr()
    }

    /// Pools are this side's alone: none travels.
    fn id(_: &Pool) -> u32 {
        0
    }
}

impl Handle for CUcontext {
    type Object = Context;

    const WRONG: CUresult = CUresult::ERROR_INVALID_CONTEXT;

    fn slab(shim: &Shim) -> &Slab<Context> {
        &shim.contexts
    }

    fn value(self) -> usize {
        self.0.addr()
    }

    fn id(object: &Context) -> u32 {
        object.wire()
    }
}

/// The object behind a handle.
///
/// # Errors
///
/// The code of its kind, for null too.
pub(crate) fn object<H: Handle>(handle: H) -> Result<Arc<H::Object>, CUresult> {
    H::slab(shim()?).get(handle.value()).ok_or(H::WRONG)
}

/// What can be told of the object behind a handle without taking a share in it: what is queued often needs no more.
///
/// # Errors
///
/// As [`object`].
pub(crate) fn glance<H: Handle>(handle: H) -> Result<Glance, CUresult> {
    H::slab(shim()?).glance(handle.value()).ok_or(H::WRONG)
}

/// A handle that a message carries.
pub(crate) trait Wire {
    /// Its wire id.
    ///
    /// # Errors
    ///
    /// The code of its kind, when it is no handle.
    fn wire(self) -> Result<u32, CUresult>;
}

macro_rules! wires {
    ($($handle:ident)*) => {$(
        impl Wire for $handle {
            fn wire(self) -> Result<u32, CUresult> {
                object(self).map(|object| <$handle as Handle>::id(&object))
            }
        }
    )*};
}

wires! { CUcontext CUevent CUfunction CUkernel CUlibrary CUmodule }

impl Wire for CUstream {
    fn wire(self) -> Result<u32, CUresult> {
        stream::wire(self)
    }
}

/// As [`Wire::wire`]; what generated bodies call.
pub(crate) fn wire<H: Wire>(handle: H) -> Result<u32, CUresult> {
    handle.wire()
}
