//! Makes the streams that a replay needs at once ([`super::stream_highwater`]).

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUresult, CUstream, stream_flags};
use katydid_session_core::{JournalRecord, StateError};

use super::error::RebuildError;
use super::rebuild::used;
use super::stream_highwater::MAX_STREAMS;
use crate::device::ask::ask;
use crate::state::Session;

impl Session {
    /// Makes as many streams at once in a context as the program had at this place in the journal.
    pub(super) fn pool_streams(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let count = used(record);
        if count > MAX_STREAMS {
            return Err(StateError::Damaged { what: "the number of streams" }.into());
        }
        self.enter_for(&self.head_of(record)).map_err(RebuildError::from_fault)?;
        let alive = self.journal.pools.of(self.current).alive;
        // If the driver makes fewer, the comparison of addresses shows whether that matters.
        // SAFETY: the output is a local.
        let make = |_| ask(|out| unsafe { self.driver().cuStreamCreate(out, stream_flags::NON_BLOCKING) }).ok();
        let further: Vec<CUstream> = (alive..count).map_while(make).collect();
        for stream in further {
            // SAFETY: made here, and no other code knows it.
            let _: CUresult = unsafe { self.driver().cuStreamDestroy_v2(stream) };
        }
        self.journal.pools.raise(self.current, count, record.order);
        Ok(())
    }
}
