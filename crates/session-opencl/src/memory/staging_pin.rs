//! When the staging area is pinned in a context ([`crate::memory::pinned`]): once enough bytes pass through it.

use std::env;

use katydid_opencl_sys::{Code, cl_context};

use crate::memory::pinned::{PinnedBuffer, StagingState};
use crate::state::Session;

/// Environment variable to compare the ways. `plain` never pins the staging area; `pinned` pins it in every context at once,
/// which also tests pinning with processors.
const STAGING_VARIABLE: &str = "KATYDID_OPENCL_STAGING";
/// Bytes that pass through a context's pieces before the area is pinned. Pinning takes 0.2 s, and as much device memory as the
/// area has.
const MIN_STAGED_BYTES: u64 = 32 << 20;

/// Returns the state that the environment requests for every context, if any.
fn requested() -> Option<StagingState> {
    match env::var_os(STAGING_VARIABLE)?.to_str()? {
        "plain" => Some(StagingState::Plain),
        "pinned" => Some(StagingState::Counting(MIN_STAGED_BYTES)),
        _ => None,
    }
}

impl Session {
    /// Counts bytes that will pass through the staging area in a queue, and pins the area in its context once that is worth it.
    pub(crate) fn count_staged(&mut self, queue: u32, bytes: u64) {
        let context = self.journal.get(queue).map_or(0, |entry| entry.creation.frame.word(4));
        let state = match self.staging_states.remove(&context) {
            Some(state) => state,
            None if self.is_of_processors(context) => requested().unwrap_or(StagingState::Plain),
            None => requested().unwrap_or(StagingState::Counting(0)),
        };
        let state = match state {
            StagingState::Counting(passed) if passed + bytes > MIN_STAGED_BYTES => self
                .pin_staging(context)
                .map_or(StagingState::Plain, |buffer| StagingState::PinnedBuffer { _buffer: buffer }),
            StagingState::Counting(passed) => StagingState::Counting(passed + bytes),
            state => state,
        };
        self.staging_states.insert(context, state);
    }

    fn pin_staging(&self, id: u32) -> Result<PinnedBuffer, Code> {
        let context = self.shared.objects.hold::<cl_context>(id)?;
        let device = *self.devices_of(id).first().ok_or(Code::INVALID_CONTEXT)?;
        let area = self.staging.as_ref().ok_or(Code::INVALID_VALUE)?.whole();
        PinnedBuffer::new(context.object().api, (context, device), area)
    }
}
