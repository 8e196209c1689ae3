//! The end of a context: it finishes its work, then everything made in it ends too.

use crate::code::{library, module};
use crate::context::contexts;
use crate::context::state::Context;
use crate::memory::{allocation, host, ipc, space};
use crate::sync::stream::LiveContext;
use crate::sync::{event, streams};
use crate::texture::{array, reference};

/// Ends a context and everything in it. Destructors of context-local storage run before.
pub(crate) fn destroy(context: &LiveContext) {
    // If two threads destroy the same context, the second has nothing left to do.
    if !context.close() {
        return;
    }
    katydid_export_table::context_gone(context.handle);
    contexts::end(context.handle);
    context.drain();
    context.output.flush();
    streams::forget(context.id);
    event::forget(context.id);
    library::forget(context.id);
    module::forget(context.id);
    array::forget(context.id);
    reference::forget(context.id);
    release_memory(context);
}

/// Frees every allocation of an ended context.
fn release_memory(context: &Context) {
    let regions = space::read().of_context(context.handle);
    for region in &regions {
        space::write().remove(region.start);
    }
    space::quiet();
    ipc::forget(context.handle);
    for region in &regions {
        if region.is_host() {
            host::give_back(region);
        } else {
            let _ = allocation::give_back(region);
        }
    }
}
