//! The current context of the main loop, and what begins and ends with a context.
//!
//! Every frame names the context of its thread. The driver switches contexts only when that differs from the frame before. A
//! frame without a context runs in the current one, because it works in any.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUresult, CUstream, stream_flags};
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    cuCtxDestroy_v2, cuLibraryUnload, kdContextCreate, kdContextRelease, kdContextReset, kdContextRetain, kdDeviceGrow,
    kdDeviceShrink, kdEnvironment, kdFacts, kdGraphDestroy, kdGraphForget, kdGreenCreate, kdGreenDestroy,
    kdLibraryLoad, kdManagedCreate, kdManagedDestroy, kdModuleLookup, kdReclaimDevices, kdReclaimDone, kdReclaimWait,
    kdResource, kdResourceSplit, kdUpcallBytes, kdUpcallData, kdUpcallNext, kdUpcallsBegin, kdUpload,
};

use crate::calls::fault::Fault;
use crate::calls::session_shared::CudaSessionShared;
use crate::device::ask::ask;
use crate::device::gather::current_device;
use crate::journal::ObjectKind;
use crate::state::Session;

/// Returns whether a message needs a context.
fn needs_context(opcode: u16) -> bool {
    !matches!(
        opcode,
        kdFacts::OPCODE
            | kdEnvironment::OPCODE
            | kdContextRetain::OPCODE
            | kdContextRelease::OPCODE
            | kdContextReset::OPCODE
            | kdContextCreate::OPCODE
            | kdResource::OPCODE
            | kdResourceSplit::OPCODE
            | kdGreenCreate::OPCODE
            | kdGreenDestroy::OPCODE
            | kdDeviceGrow::OPCODE
            | kdDeviceShrink::OPCODE
            | kdReclaimDone::OPCODE
            | kdReclaimWait::OPCODE
            | kdUpload::OPCODE
            | kdModuleLookup::OPCODE
            | kdUpcallsBegin::OPCODE
            | kdUpcallData::OPCODE
            | kdUpcallBytes::OPCODE
            | kdGraphDestroy::OPCODE
            | kdGraphForget::OPCODE
            | kdLibraryLoad::OPCODE
            | kdManagedCreate::OPCODE
            | kdManagedDestroy::OPCODE
            | kdUpcallNext::OPCODE
            | kdReclaimDevices::OPCODE
            | cuCtxDestroy_v2::OPCODE
            | cuLibraryUnload::OPCODE
    )
}

impl Session {
    /// Makes the context of a frame current. A thread may still name a context that is gone, as its current one; messages
    /// without need of a context are executed nevertheless.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED` for one that is gone, or the driver's code.
    pub(crate) fn enter_for(&mut self, head: &FrameHead) -> Result<(), Fault> {
        match self.enter_context(head.context) {
            Err(Fault::Cuda(_)) if !needs_context(head.opcode) => Ok(()),
            other => other,
        }
    }

    /// Makes a context current; 0 changes nothing.
    pub(crate) fn enter_context(&mut self, context: u32) -> Result<(), Fault> {
        if context == self.entered || context == 0 {
            return Ok(());
        }
        let handle = self.tables.contexts.get(context).map_err(|fault| match fault {
            Fault::Cuda(_) => CUresult::ERROR_CONTEXT_IS_DESTROYED.into(),
            fatal => fatal,
        })?;
        // SAFETY: the driver made the handle and the table forgets it when it ends.
        unsafe { self.driver().cuCtxSetCurrent(handle) }.ok()?;
        self.entered = context;
        self.current = self.owner(context);
        if let Some(host) = &mut self.host {
            host.restore(&self.shared.driver, self.current);
        }
        Ok(())
    }

    /// Returns the program's contexts on a device in which a kernel's library is not in use, except green ones. A program
    /// may set a property before each launch: contexts that use the library are not checked again.
    pub(crate) fn contexts_without(&self, kernel: u32, device: i32) -> Vec<u32> {
        let driver = Arc::clone(&self.shared.driver);
        let is_there = |handle: CUcontext| {
            // SAFETY: the driver made the handle and the table forgets it when it ends.
            let entered = unsafe { driver.cuCtxSetCurrent(handle) };
            entered == CUresult::SUCCESS && current_device(&driver) == Ok(device)
        };
        let is_candidate = |id: &u32| !self.green_contexts.contains_key(id) && !self.journal.is_used(kernel, *id);
        let contexts: Vec<_> = self.tables.contexts.all().filter(|(id, ..)| is_candidate(id)).collect();
        if contexts.is_empty() {
            return Vec::new();
        }
        let found = contexts.into_iter().filter(|(_, handle, _)| is_there(*handle)).map(|(id, ..)| id).collect();
        self.reenter();
        found
    }

    /// Returns the context that owns what is made in one, except streams.
    pub(crate) fn owner(&self, context: u32) -> u32 {
        match context {
            0 => self.current,
            id => self.green_contexts.get(&id).map_or(id, |green| green.owner),
        }
    }

    /// Runs `make` in the context `owner`, whichever the frame runs in.
    ///
    /// # Errors
    ///
    /// As [`Session::enter_context`], or the error of `make`.
    pub(crate) fn make_in<T>(
        &mut self,
        owner: u32,
        make: impl FnOnce(&CudaSessionShared) -> Result<T, CUresult>,
    ) -> Result<T, Fault> {
        let previous_context = self.entered;
        if owner != self.current {
            self.enter_context(owner)?;
        }
        let result = make(&self.shared);
        self.enter_context(previous_context)?;
        Ok(result?)
    }

    /// Gives `id` to a new context and makes it current.
    pub(crate) fn begin_context(&mut self, id: u32, handle: CUcontext) -> Result<(), Fault> {
        self.tables.contexts.set(id, handle, 0)?;
        self.epoch += 1;
        (self.current, self.entered) = (0, 0);
        self.enter_context(id)
    }

    /// Forgets a green context and its streams. Other objects made in it belong to its primary context.
    pub(crate) fn end_green(&mut self, id: u32) {
        self.green_contexts.remove(&id);
        let _ = self.tables.contexts.take(id);
        self.tables.streams.forget_context(id);
        self.thread_streams.retain(|(_, context), _| *context != id);
        self.journal.end_context(id);
        self.epoch += 1;
        if self.entered == id {
            (self.current, self.entered) = (0, 0);
        }
    }

    /// Forgets a context and all its objects.
    pub(crate) fn end_context(&mut self, id: u32) {
        let green_contexts: Vec<u32> =
            self.green_contexts.iter().filter(|(_, it)| it.owner == id).map(|(green, _)| *green).collect();
        for green in green_contexts {
            self.end_green(green);
            self.journal.take(ObjectKind::Context, u64::from(green));
        }
        if let Ok(handle) = self.tables.contexts.take(id) {
            self.snapshots.end_context(handle);
        }
        self.tables.forget_context(id);
        self.shares.keep_events(|event| self.tables.events.get(event).is_ok());
        let bytes = self.tables.arrays.forget_context(id);
        self.refund(bytes);
        self.forget_context(id);
        self.thread_streams.retain(|(_, context), _| *context != id);
        self.graphs.end_context(id);
        self.shared.staging_blocks.end_context(id);
        self.shared.blocks.forget_variables(|owner| owner.context() == id);
        if let Some(host) = &mut self.host {
            host.forget_context(id);
        }
        for area in self.staging.iter_mut().chain(&mut self.buffered) {
            area.forget_context(id);
        }
        self.journal.end_context(id);
        if let Some(host) = &self.host {
            self.journal.keep_pinned_where(|address| host.is_registered(address));
        }
        self.journal.keep_managed_where(|address| self.holdings.is_managed(address));
        self.event_times.end_context(id);
        self.epoch += 1;
        if self.current == id {
            (self.current, self.entered) = (0, 0);
        }
    }

    /// Returns the default stream of a program thread in the current context: a stream that waits for the legacy default
    /// stream, as CUDA's own does. It is made when first named, by the frame with the number `order`.
    pub(crate) fn thread_stream(&mut self, thread: u32, order: u64) -> Result<CUstream, Fault> {
        let key = (thread, self.entered);
        if let Some(stream) = self.thread_streams.get(&key) {
            return Ok(*stream);
        }
        // SAFETY: the output is a local that outlives the call.
        let stream = ask(|out| unsafe { self.driver().cuStreamCreate(out, stream_flags::DEFAULT) })?;
        self.thread_streams.insert(key, stream);
        self.journal.pools.count_stream(self.entered, order);
        Ok(stream)
    }
}
