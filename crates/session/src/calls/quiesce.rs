//! Brings a session of CUDA to rest, for a checkpoint by the worker ([`Checkpointable`], [`Restorable`]).
//!
//! At rest, every stream is empty, and no call waits, except on the program's upcall thread (`upcalls`). The error names a
//! stream that does not become empty.

#![expect(unsafe_code, reason = "asks the driver about its streams")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use katydid_cuda_sys::{CU_STREAM_LEGACY, CUresult, CUstream};
use katydid_image::{ImageSource, Session as SessionPart, Sink};
use katydid_session_core::{
    AddressMismatch, CaptureOptions, Checkpointable, Control, Failure, OutOfMemory, PendingSnapshot, Precopy, Progress,
    QuiesceError, Restorable, RestoreOptions, check_calls,
};
use katydid_transport::{LinkControl, WorkerLink};
use katydid_wire::companion::MovedVariable;

use crate::journal::RebuildError;
use crate::snapshot::SnapshotError;
use crate::state::Session;

impl Checkpointable for Session {
    /// Checks that nothing is in flight at this moment.
    fn check_idle(&mut self) -> Result<(), QuiesceError> {
        for (context, stream, handle) in self.all_streams() {
            let handle = self.in_context(context, handle)?;
            // SAFETY: the driver made the handle, or it is the default stream's, and the context is current.
            match unsafe { self.driver().cuStreamQuery(handle) } {
                CUresult::SUCCESS => {}
                CUresult::ERROR_NOT_READY => return Err(busy(context, stream)),
                code => return Err(ruined(context, code)),
            }
        }
        // After the streams: a call that does not end waits for one of them, and the error names that one.
        check_calls(self, 0)?;
        // A program that has announced functions asks for the next one, if not at once. That message is awaited here:
        // otherwise it would be a frame in flight.
        let is_awaited = self.is_relayed && self.shared.upcalls.waiting().is_none();
        if is_awaited || self.shared.upcalls.is_busy() { Err(QuiesceError::Upcall) } else { Ok(()) }
    }

    /// Checks what streams do not show: errors of a context, and text that the device printed.
    fn synchronize(&mut self) -> Result<(), QuiesceError> {
        let contexts: Vec<u32> = self.tables.contexts.iter().map(|(context, _, _)| context).collect();
        for context in contexts {
            self.in_context(context, CUstream::NULL)?;
            // SAFETY: no argument; the context is current, and its streams are empty.
            let code = unsafe { self.driver().cuCtxSynchronize() };
            if code != CUresult::SUCCESS {
                return Err(ruined(context, code));
            }
        }
        Ok(())
    }

    fn note_frames(&mut self, frames: u64) {
        self.main_loop.frames = frames;
    }

    fn prepare_snapshot(&mut self) {
        Self::prepare_snapshot(self);
    }

    fn release_snapshot(&mut self) -> bool {
        // A snapshot that is being written will release more.
        self.make_way().is_ok() && !self.snapshots.hold_some()
    }

    fn precopy(&mut self, full: bool) -> Option<Box<dyn Precopy>> {
        let ahead = Self::precopy_job(self, full);
        self.reenter();
        Some(Box::new(ahead?))
    }

    fn snapshot(
        &mut self,
        name: &str,
        options: CaptureOptions,
        sink: &dyn Sink,
        progress: &Arc<Progress>,
    ) -> Result<Box<dyn PendingSnapshot>, Failure> {
        if options.outline {
            return Err("a session of CUDA has no outline: it can only be kept as a whole".into());
        }
        Ok(Box::new(Self::snapshot(self, name, options, sink, progress)?))
    }

    fn suspend(&mut self) -> Result<(), Failure> {
        Ok(Self::suspend(self)?)
    }

    fn refill(&mut self, part: &SessionPart, source: &dyn ImageSource, progress: &Progress) -> Result<(), Failure> {
        Ok(Self::refill(self, part, source, progress)?)
    }

    fn rejoin(&mut self, pinned: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        Ok(Self::rejoin(self, pinned)?)
    }

    fn control(&mut self, link_control: LinkControl) -> Control {
        self.main_loop.control(link_control)
    }

    fn serve(&'static mut self, link: &'static mut dyn WorkerLink) -> Result<(), Failure> {
        Ok(Self::serve(self, link)?)
    }
}

impl Restorable for Session {
    fn restore(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
        options: RestoreOptions,
    ) -> Result<(), Failure> {
        Self::restore(self, part, source, progress, options).map_err(|error| match error {
            SnapshotError::Moved { .. }
            | SnapshotError::Pointed { .. }
            | SnapshotError::MovedFunctions { .. }
            | SnapshotError::Rebuild(RebuildError::Moved { .. }) => AddressMismatch(error.to_string()).into(),
            SnapshotError::Rebuild(RebuildError::NoMemory { .. }) => OutOfMemory(error.to_string()).into(),
            other => other.into(),
        })
    }

    fn moved(&self) -> &[MovedVariable] {
        &self.snapshots.moved
    }

    fn restore_host(
        &mut self,
        pinned: Option<BorrowedFd<'_>>,
        part: &SessionPart,
        source: &dyn ImageSource,
    ) -> Result<(), Failure> {
        self.join_host(pinned)?;
        Ok(Self::restore_host(self, part, source, &Progress::default())?)
    }

    fn connect(&mut self, link: &dyn WorkerLink) {
        Self::connect(self, link);
    }

    fn frames(&self) -> u64 {
        self.main_loop.frames
    }

    fn begin(&'static mut self) -> &'static mut dyn Checkpointable {
        self
    }
}

impl Session {
    /// Returns device memory of snapshots to a program that needs it; false if there is none. It does so only while the GPU
    /// is idle. A driver that unmaps waits for all streams. Some may wait for a later write of the program, whose frame
    /// would not be executed meanwhile.
    ///
    /// # Errors
    ///
    /// `ERROR_NOT_READY`: memory will be returned, so that asking again makes sense.
    pub(crate) fn make_way(&mut self) -> Result<bool, CUresult> {
        if !self.snapshots.hold_some() {
            return Ok(false);
        }
        let is_at_rest = Checkpointable::check_idle(self).is_ok();
        self.reenter();
        if is_at_rest && self.snapshots.give_back() { Ok(true) } else { Err(CUresult::ERROR_NOT_READY) }
    }

    /// Returns every stream of every context: context, id, the driver's handle.
    fn all_streams(&self) -> Vec<(u32, u32, CUstream)> {
        let legacy = self.tables.contexts.iter().map(|(context, _, _)| (context, 1, CU_STREAM_LEGACY));
        let of_threads = self.thread_streams.iter().map(|((_, context), stream)| (*context, 2, *stream));
        let named = self.tables.streams.iter().map(|(id, stream, context)| (context, id, stream));
        let mut all: Vec<_> = legacy.chain(of_threads).chain(named).collect();
        // Sorted by context, because changing the context is expensive. Default streams may wait for named ones, whose ids
        // the error then names.
        all.sort_by_key(|(context, id, _)| (*context, *id <= 2, *id));
        all
    }

    /// Makes a context current and returns `handle`.
    fn in_context(&mut self, context: u32, handle: CUstream) -> Result<CUstream, QuiesceError> {
        self.enter_context(context).map(|()| handle).map_err(|fault| match fault {
            crate::calls::fault::Fault::Cuda(code) => ruined(context, code),
            crate::calls::fault::Fault::Fatal(_) => QuiesceError::Ended,
        })
    }
}

/// The error for a context that is in error.
fn ruined(context: u32, code: CUresult) -> QuiesceError {
    QuiesceError::Ruined { what: format!("context {context}"), error: code.0.to_string() }
}

/// The error for a stream that is not empty; 1 is the default stream, 2 the default streams of threads.
fn busy(context: u32, stream: u32) -> QuiesceError {
    let why = "a kernel in it runs on, or it waits for a value that is never written";
    QuiesceError::Busy { what: format!("stream {stream} of context {context}"), why }
}
