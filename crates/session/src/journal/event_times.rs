//! Times between events, across a restore.
//!
//! No call sets the time at which an event was recorded, so a restored event stays unrecorded in the driver. Except for its
//! time, that equals a completed one. Its time is kept here: milliseconds after an anchor, an event of the worker that
//! stands for the moment of the checkpoint (so the times are negative). The restore records the anchor again. Time in which
//! the program did not exist does not count. A driver refuses the query for an event that was not recorded since; only then
//! is the answer computed here.
//!
//! A driver answers in `f32`, so sums use the shortest gaps. While there are few events, the driver's answers for pairs are
//! saved as well.

use std::collections::HashMap;

use katydid_cuda_sys::CUevent;
use katydid_session_core::StateError;
use katydid_wire::codec::{Field as _, Reader};

/// The saved times of one context.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ContextTimes {
    pub(crate) context: u32,
    /// Milliseconds after the anchor, by event.
    pub(crate) stamps: HashMap<u32, f64>,
    /// Milliseconds from the first event to the second, as the driver answered.
    pub(crate) pairs: HashMap<(u32, u32), f32>,
}

/// The saved times of all contexts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SavedTimes(pub(crate) Vec<ContextTimes>);

impl SavedTimes {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        for times in &self.0 {
            times.context.put(out);
            (times.stamps.len() as u32).put(out);
            let mut stamps: Vec<_> = times.stamps.iter().collect();
            stamps.sort_by_key(|(event, _)| **event);
            for (event, stamp) in stamps {
                event.put(out);
                stamp.put(out);
            }
            (times.pairs.len() as u32).put(out);
            let mut pairs: Vec<_> = times.pairs.iter().collect();
            pairs.sort_by_key(|(pair, _)| **pair);
            for ((start, end), time) in pairs {
                start.put(out);
                end.put(out);
                time.put(out);
            }
        }
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let mut all = Vec::new();
        for _ in 0..reader.take::<u32>()? {
            let mut times = ContextTimes { context: reader.take()?, ..ContextTimes::default() };
            for _ in 0..reader.take::<u32>()? {
                times.stamps.insert(reader.take()?, reader.take()?);
            }
            for _ in 0..reader.take::<u32>()? {
                times.pairs.insert((reader.take()?, reader.take()?), reader.take()?);
            }
            all.push(times);
        }
        Ok(Self(all))
    }
}

/// Times of restored events that were not recorded since.
#[derive(Debug, Default)]
pub(crate) struct EventTimes {
    pub(super) contexts: Vec<(ContextTimes, CUevent)>,
}

impl EventTimes {
    pub(crate) fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }

    /// Forgets an event.
    pub(crate) fn forget(&mut self, event: u32) {
        for (times, _) in &mut self.contexts {
            times.stamps.remove(&event);
        }
    }

    /// Forgets a context with its anchor.
    pub(crate) fn end_context(&mut self, context: u32) {
        self.contexts.retain(|(times, _)| times.context != context);
    }
}
