//! Device memory for a session that is rebuilt.
//!
//! The rule: a rebuild takes all or nothing. It waits before it takes the first memory, and has other sessions give back what they
//! hold idle meanwhile. One that runs short later gives up at once: its worker ends, which frees what it had, and its supervisor asks
//! another worker. So a rebuild that waits holds nothing that another one waits for.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use katydid_cuda_sys::{CUresult, location_type};
use katydid_session_core::JournalRecord;
use katydid_wire::codec::Message as _;
use katydid_wire::message::{kdDeviceGrow, kdMemoryCreate};

use super::error::REPLAY_MEMORY_TIMEOUT;
use super::replay::WantedMemory;
use crate::device::ask::memory_info;
use crate::device::gather::current_device;
use crate::state::Session;

/// Between two looks at what is free.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Between two reclaim requests.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

impl Session {
    /// Notes what `records` will take of each device. A rehearsal takes next to nothing.
    pub(super) fn expect_memory(&mut self, records: &[JournalRecord]) {
        let mut demand = WantedMemory::default();
        let taking = records.iter().filter(|_| !self.device.is_rehearsal());
        for (device, bytes) in taking.filter_map(memory_taken) {
            let sum: &mut u64 = demand.devices.entry(device).or_default();
            *sum = sum.saturating_add(bytes);
        }
        self.replay.wanted = demand;
    }

    /// Waits before the first memory of a device is taken, until all that is wanted of it is free. Where that does not come to pass,
    /// the driver decides: what it says is free is not always what it gives.
    pub(super) fn await_memory(&mut self, record: &JournalRecord) {
        let Some((device, _)) = memory_taken(record) else { return };
        let Some(needed_bytes) = self.replay.wanted.devices.remove(&device) else { return };
        let is_holding = std::mem::replace(&mut self.replay.wanted.is_holding, true);
        let is_short = |session: &Self| {
            let info = session.memory_of(device);
            info.is_some_and(|(free, total)| {
                free < needed_bytes && needed_bytes <= total.min(session.device.bytes_left())
            })
        };
        let (began, mut last_request) = (Instant::now(), None::<Instant>);
        while is_short(self) && began.elapsed() < REPLAY_MEMORY_TIMEOUT {
            if last_request.is_none_or(|at| at.elapsed() >= REQUEST_INTERVAL) {
                self.ask_for_memory(device);
                last_request = Some(Instant::now());
            } else {
                thread::sleep(MEMORY_POLL_INTERVAL);
            }
            if is_holding {
                break;
            }
        }
    }

    /// Has other sessions give back what they hold idle of the current context's device.
    pub(super) fn ask_for_memory_of_context(&self) {
        if let Ok(device) = current_device(self.driver()) {
            self.ask_for_memory(device);
        }
    }

    fn ask_for_memory(&self, device: i32) {
        let reclaim = Arc::clone(&self.shared.reclaim);
        let number = u32::try_from(device).ok().and_then(|device| reclaim.send_request(device));
        if let Some(number) = number {
            reclaim.wait(number, || self.memory_of(device).map_or(0, |(free, _)| free));
        }
    }

    /// Bytes that are free on a device, and all of them; none of one without a context yet.
    fn memory_of(&self, device: i32) -> Option<(u64, u64)> {
        let driver = self.driver();
        if current_device(driver) == Ok(device) {
            return memory_info(driver).ok();
        }
        let contexts = self.tables.contexts.all().map(|(_, handle, _)| handle);
        let mut contexts = self.warm.iter().map(|warm| warm.handle).chain(contexts);
        let found = contexts.find(|handle| {
            // SAFETY: a living context of the session, or the worker's own.
            let entered = unsafe { driver.cuCtxSetCurrent(*handle) };
            entered == CUresult::SUCCESS && current_device(driver) == Ok(device)
        });
        let info = found.and_then(|_| memory_info(driver).ok());
        self.reenter();
        info
    }
}

/// The device of which a record takes memory, and how much.
fn memory_taken(record: &JournalRecord) -> Option<(i32, u64)> {
    match record.opcode {
        kdDeviceGrow::OPCODE => {
            let message = kdDeviceGrow::decode(&record.payload).ok()?;
            Some((message.device, message.size))
        }
        kdMemoryCreate::OPCODE => {
            let message = kdMemoryCreate::decode(&record.payload).ok()?;
            Some((device_of(message.properties)?, message.size))
        }
        _ => None,
    }
}

/// The device in a block's properties (`CUmemAllocationProp`), where its third and fourth word are its location; none of a block of the
/// host.
fn device_of(properties: &[u8]) -> Option<i32> {
    let word = |at: usize| properties.as_chunks().0.get(at).copied().map(u32::from_le_bytes);
    word(3).filter(|_| word(2) == Some(location_type::DEVICE)).map(u32::cast_signed)
}
