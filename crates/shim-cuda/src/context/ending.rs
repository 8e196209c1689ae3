//! The end of a context, and of everything that was made in it.

use std::sync::{Arc, PoisonError};

use katydid_client::regions::RegionKind;
use katydid_cuda_sys::{CUdevice, CUresult};
use katydid_wire::codec::Message;

use crate::code::records::{FUNCTIONS, LIBRARIES, MODULES};
use crate::code::variable;
use crate::context::device;
use crate::context::record::{CONTEXTS, Context, GreenContext};
use crate::ffi::objects;
use crate::launch::registry;
use crate::memory::counts::REGISTERED_BLOCKS;
use crate::memory::{host_backing, idle, managed, pinned};
use crate::process::session::{Shim, shim};
use crate::sync::event::EVENTS;
use crate::sync::stream::STREAMS;
use crate::texture::reference::TEXTURE_REFERENCES;
use crate::texture::surface_reference::SURFACE_REFERENCES;

/// Ends a context: first the destructors of libraries' storage in it run, then everything that was made in it is forgotten,
/// then `message` tells the worker.
pub(crate) fn end<M: Message>(context: &Context, message: &M) -> Result<(), CUresult> {
    katydid_export_table::context_gone(context.slot.handle);
    context.set_ended();
    *context.facts.write().unwrap_or_else(PoisonError::into_inner) = None;
    let shim = shim()?;
    end_green_contexts(context)?;
    forget_objects(context)?;
    forget_memory(context, shim);
    shim.session.call(0, message)?;
    registry::upcalls().context_ended(context.wire());
    host_backing::register_again()
}

/// Ends the green contexts of a primary one.
fn end_green_contexts(primary: &Context) -> Result<(), CUresult> {
    let of_this = |green: &GreenContext| green.primary.slot == primary.slot;
    for green in CONTEXTS.get()?.live().iter().filter(|context| context.green().is_some_and(of_this)) {
        green.set_ended();
        forget_objects(green)?;
    }
    Ok(())
}

fn forget_objects(context: &Context) -> Result<(), CUresult> {
    objects::forget(context)?;
    let is_same = |other: &Arc<Context>| other.slot == context.slot;
    let streams = STREAMS.get()?;
    for stream in streams.live().iter().filter(|stream| is_same(&stream.context)) {
        streams.remove(stream.slot.handle);
    }
    let events = EVENTS.get()?;
    for event in events.live().iter().filter(|event| is_same(&event.context)) {
        events.remove(event.slot.handle);
    }
    let modules = MODULES.get()?;
    for module in modules.live().iter().filter(|module| is_same(&module.context)) {
        modules.remove(module.slot.handle);
    }
    let functions = FUNCTIONS.get()?;
    for function in functions.live().iter().filter(|function| is_same(&function.context)) {
        functions.remove(function.slot.handle);
    }
    let references = TEXTURE_REFERENCES.get()?;
    for reference in references.live().iter().filter(|it| is_same(&it.context)) {
        references.remove(reference.slot.handle);
    }
    let surfaces = SURFACE_REFERENCES.get()?;
    for reference in surfaces.live().iter().filter(|it| is_same(&it.context)) {
        surfaces.remove(reference.slot.handle);
    }
    let libraries = LIBRARIES.get()?;
    for library in libraries.live() {
        library.forget(context);
    }
    Ok(())
}

fn forget_memory(context: &Context, shim: &Shim) {
    for region in shim.regions.remove_all(|region| region.context == context.slot.handle) {
        // The worker ends the context before it sees any later message, so the memory is free at once.
        if region.kind == RegionKind::Device {
            let _ = device::device(context.device as CUdevice).and_then(|device| idle::free(device, region.start, 0));
        } else if region.is_host()
            && let Some(pinned) = pinned::get()
        {
            if region.kind == RegionKind::Managed {
                managed::forget(&region);
            }
            if region.is_registered() {
                REGISTERED_BLOCKS.end();
            }
            pinned.ended(&region, context.wire());
            variable::forget(&region);
        }
    }
    if let Some(pinned) = pinned::get() {
        pinned.context_ended(context.wire());
    }
}
