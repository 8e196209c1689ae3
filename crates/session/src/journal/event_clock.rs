//! Asks the driver for the times between events, and answers for those from before a restore ([`super::event_times`]).

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::{HashMap, HashSet};

use katydid_cuda_sys::{CUevent, CUresult, CUstream, event_flags};
use katydid_driver::Driver;
use katydid_wire::codec::Message as _;
use katydid_wire::message::cuEventCreate;

use super::entry::ObjectKind;
use super::event_times::{ContextTimes, SavedTimes};
use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::state::Session;

/// Most events of a context for which the time between each two is saved as well.
const MAX_PAIRWISE_EVENTS: usize = 32;

/// Returns the milliseconds between two driver events.
fn elapsed(driver: &Driver, start: CUevent, end: CUevent) -> Result<f32, CUresult> {
    // SAFETY: the output is a local, the handles are the driver's own.
    ask(|out| unsafe { driver.cuEventElapsedTime(out, start, end) })
}

/// Makes an event that stands for this moment in the current context, in which nothing runs.
fn anchor(driver: &Driver) -> Result<CUevent, CUresult> {
    // SAFETY: the output is a local.
    let event = ask(|out| unsafe { driver.cuEventCreate(out, event_flags::DEFAULT) })?;
    // SAFETY: handles are the driver's own.
    unsafe { driver.cuEventRecord(event, CUstream::NULL) }.ok()?;
    // SAFETY: as above.
    unsafe { driver.cuEventSynchronize(event) }.ok()?;
    Ok(event)
}

impl Session {
    /// Returns the time between events of which at least one was restored and not recorded since; otherwise the driver's
    /// answer.
    pub(crate) fn elapsed_since_restore(
        &self,
        (start, end): (u32, u32),
        handles: (CUevent, CUevent),
    ) -> Result<f32, CUresult> {
        let driver = self.driver();
        let known = |(times, _): &&(ContextTimes, CUevent)| {
            times.stamps.contains_key(&start) || times.stamps.contains_key(&end)
        };
        let Some((times, anchor)) = self.event_times.contexts.iter().find(known) else {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        };
        // An event that was recorded since the restore has the driver's time, whatever was saved.
        let timestamp = |event: u32, handle| match elapsed(driver, *anchor, handle) {
            Ok(time) => Ok((f64::from(time), false)),
            Err(CUresult::ERROR_INVALID_HANDLE) => {
                times.stamps.get(&event).map(|stamp| (*stamp, true)).ok_or(CUresult::ERROR_INVALID_HANDLE)
            }
            Err(code) => Err(code),
        };
        let (from, to) = (timestamp(start, handles.0)?, timestamp(end, handles.1)?);
        let pair = times.pairs.get(&(start, end)).filter(|_| from.1 && to.1);
        Ok(pair.copied().unwrap_or((to.0 - from.0) as f32))
    }

    /// Returns the times of all recorded events. Nothing runs in any context.
    pub(super) fn event_times(&mut self) -> Result<SavedTimes, Fault> {
        let mut contexts: HashMap<u32, Vec<u32>> = HashMap::new();
        for (id, entry) in self.journal.of(ObjectKind::Event) {
            let flags = cuEventCreate::decode(entry.creation.payload()).map_or(0, |message| message.Flags);
            if flags & event_flags::DISABLE_TIMING == 0 && entry.creation.opcode == cuEventCreate::OPCODE {
                contexts.entry(entry.creation.context).or_default().push(id as u32);
            }
        }
        let mut all = Vec::new();
        for (context, events) in contexts {
            self.enter_context(context)?;
            all.push(self.context_times(context, &events)?);
        }
        all.retain(|times| !times.stamps.is_empty());
        all.sort_by_key(|times| times.context);
        Ok(SavedTimes(all))
    }

    fn context_times(&self, context: u32, events: &[u32]) -> Result<ContextTimes, Fault> {
        let driver = self.driver();
        let anchor_event = anchor(driver)?;
        let handle = |event: u32| self.tables.events.get(event);
        let mut recorded = Vec::new();
        for event in events {
            match elapsed(driver, handle(*event)?, anchor_event) {
                Ok(before) => recorded.push((*event, before)),
                Err(CUresult::ERROR_INVALID_HANDLE) => {}
                Err(code) => return Err(code.into()),
            }
        }
        // The latest first: the time of each is relative to the one placed before it.
        recorded.sort_by(|first, second| first.1.total_cmp(&second.1));
        let mut times = ContextTimes { context, ..ContextTimes::default() };
        let (mut at, mut reference) = (0.0, anchor_event);
        for (event, _) in &recorded {
            at -= f64::from(elapsed(driver, handle(*event)?, reference)?);
            reference = handle(*event)?;
            times.stamps.insert(*event, at);
        }
        if recorded.len() <= MAX_PAIRWISE_EVENTS {
            for (start, end) in recorded.iter().flat_map(|first| recorded.iter().map(move |second| (first.0, second.0)))
            {
                times.pairs.insert((start, end), elapsed(driver, handle(start)?, handle(end)?)?);
            }
        }
        self.carry_over(&mut times, anchor_event)?;
        // SAFETY: made by this function's own call, and named by no other code.
        let _ = unsafe { driver.cuEventDestroy_v2(anchor_event) };
        Ok(times)
    }

    /// Adds events that an earlier restore left unrecorded.
    fn carry_over(&self, times: &mut ContextTimes, anchor_event: CUevent) -> Result<(), Fault> {
        let previous = self.event_times.contexts.iter().find(|(previous, _)| previous.context == times.context);
        let Some((previous, anchor)) = previous else { return Ok(()) };
        let since = f64::from(elapsed(self.driver(), *anchor, anchor_event)?);
        let recorded: HashSet<u32> = times.stamps.keys().copied().collect();
        let is_not_recorded = |event: &u32| !recorded.contains(event);
        times.stamps.extend(
            previous.stamps.iter().filter(|it| is_not_recorded(it.0)).map(|(event, stamp)| (*event, stamp - since)),
        );
        let pairs = previous.pairs.iter().filter(|((start, end), _)| is_not_recorded(start) && is_not_recorded(end));
        times.pairs.extend(pairs.map(|(pair, time)| (*pair, *time)));
        Ok(())
    }

    /// Restores the times of events: their time goes on from this moment.
    pub(super) fn restore_times(&mut self, saved: SavedTimes) -> Result<(), Fault> {
        for times in saved.0 {
            self.enter_context(times.context)?;
            let anchor = anchor(self.driver())?;
            self.event_times.contexts.push((times, anchor));
        }
        Ok(())
    }
}
