//! Primary contexts: one per device, counted, under one handle for the life of the process.

use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::device::{API_VERSION, check_context_flags};

use crate::context::contexts;
use crate::context::teardown;
use crate::ffi::Outcome;
use crate::process::device::{self, Device};
use crate::process::state;
use crate::sync::stream::LiveContext;

/// The primary context of one device. Its handle is the same before the first retain and after the last release.
pub(crate) struct Primary {
    /// Handle of the context, which outlives it.
    handle: usize,
    state: Mutex<PrimaryState>,
    ended: Condvar,
}

/// Users, flags, and the context while there are users.
#[derive(Default)]
struct PrimaryState {
    /// Retains without their release.
    holds: u32,
    /// Flags of the next context; an active one has its own.
    flags: u32,
    /// The context while it is active.
    context: Option<Arc<LiveContext>>,
    /// The thread that is ending the previous context. A new one under the same handle waits for that.
    ending: Option<ThreadId>,
}

impl Primary {
    /// A primary context that is not retained.
    fn new(handle: usize) -> Self {
        Self { handle, state: Mutex::default(), ended: Condvar::new() }
    }

    /// Locks the state. No thread may hold it while a context ends: destructors may need it.
    fn state(&self) -> MutexGuard<'_, PrimaryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one user; the first makes the context. A destructor cannot revive a context that is ending.
    pub(crate) fn retain(&self, device: &'static Device) -> Outcome<usize> {
        let mut state = self.state();
        if state.ending == Some(thread::current().id()) {
            return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED);
        }
        state = self.ended.wait_while(state, |state| state.ending.is_some()).unwrap_or_else(PoisonError::into_inner);
        if state.context.is_none() {
            state.context = Some(contexts::create_as(self.handle, device, state.flags, API_VERSION)?);
        }
        state.holds += 1;
        Ok(self.handle)
    }

    /// Drops one user; the last ends the context. One release too many fails with `INVALID_CONTEXT`.
    pub(crate) fn release(&self) -> Outcome {
        let mut state = self.state();
        state.holds = state.holds.checked_sub(1).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        if state.holds == 0 {
            self.end(state);
        }
        Ok(())
    }

    /// Ends the context, even while it is in use.
    pub(crate) fn reset(&self) {
        let mut state = self.state();
        state.holds = 0;
        self.end(state);
    }

    /// Takes the context out and destroys it with the lock released: its destructors may call back.
    fn end(&self, mut state: MutexGuard<'_, PrimaryState>) {
        let Some(context) = state.context.take() else { return };
        state.ending = Some(thread::current().id());
        drop(state);
        teardown::destroy(&context);
        self.state().ending = None;
        self.ended.notify_all();
    }

    /// Returns the flags, and whether the context is active.
    pub(crate) fn flags_and_activity(&self) -> (u32, bool) {
        let state = self.state();
        (state.flags, state.context.is_some())
    }

    /// `cuDevicePrimaryCtxSetFlags` as before CUDA 11: only for a context that is not active yet.
    pub(crate) fn set_first_flags(&self, flags: u32) -> Outcome {
        check_context_flags(flags)?;
        let mut state = self.state();
        if state.context.is_some() {
            return Err(CUresult::ERROR_PRIMARY_CONTEXT_ACTIVE);
        }
        state.flags = flags;
        Ok(())
    }

    /// Sets the flags of the active or next context.
    pub(crate) fn set_flags(&self, flags: u32) -> Outcome {
        check_context_flags(flags)?;
        let mut state = self.state();
        state.flags = flags;
        state.context.as_ref().map_or(Ok(()), |context| context.set_flags(flags))
    }
}

/// The primary contexts of all devices, by ordinal.
static PRIMARY_CONTEXTS: LazyLock<Vec<Primary>> =
    LazyLock::new(|| device::all().iter().map(|device| Primary::new(device.primary_handle)).collect());

/// The primary context of a device.
pub(crate) fn of(device: &Device) -> &'static Primary {
    &PRIMARY_CONTEXTS[device.ordinal as usize]
}

/// Returns the first device's primary context, and activates it if necessary.
pub(crate) fn first() -> Outcome<Arc<LiveContext>> {
    state::ready()?;
    let device = device::get(0)?;
    let handle = device.primary_handle;
    if contexts::living(handle).is_none() {
        of(device).retain(device)?;
    }
    contexts::living(handle).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::handles::new_handle;

    #[test]
    fn the_handle_survives_the_context_and_releases_are_counted() {
        let device = device::get(0).unwrap();
        let primary = Primary::new(new_handle());
        let handle = primary.handle;
        assert_eq!(primary.release(), Err(CUresult::ERROR_INVALID_CONTEXT));
        assert_eq!((primary.retain(device), primary.retain(device)), (Ok(handle), Ok(handle)));
        let first = contexts::living(handle).unwrap();
        assert_eq!((primary.release(), primary.flags_and_activity()), (Ok(()), (0, true)));
        assert_eq!((primary.release(), primary.flags_and_activity()), (Ok(()), (0, false)));
        assert!(contexts::living(handle).is_none());
        assert_eq!(primary.retain(device), Ok(handle));
        assert_ne!(contexts::living(handle).unwrap().id, first.id);
        primary.reset();
        assert!(contexts::living(handle).is_none());
    }
}
