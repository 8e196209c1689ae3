//! Device memory for a session that is rebuilt.
//!
//! A rebuild takes all memory or nothing. It waits before it takes the first memory, and has other sessions give back idle
//! memory meanwhile. If it runs short later, it gives up at once: its worker ends, which frees its memory, and its
//! supervisor asks another worker. So a waiting rebuild holds nothing that another one waits for.

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

/// Interval of polls for free memory.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of reclaim requests.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

impl Session {
    /// Adds up the memory that `records` will take of each device. A rehearsal takes next to nothing.
    pub(super) fn expect_memory(&mut self, records: &[JournalRecord]) {
        let mut demand = WantedMemory::default();
        let taking = records.iter().filter(|_| !self.device.is_rehearsal());
        for (device, bytes) in taking.filter_map(memory_taken) {
            let sum: &mut u64 = demand.devices.entry(device).or_default();
            *sum = sum.saturating_add(bytes);
        }
        self.replay.wanted = demand;
    }

    /// Waits, before the first memory of a device is taken, until all that the session needs of it is free. After a timeout
    /// the driver decides: its free memory is not always what it can allocate.
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

    /// Has other sessions give back idle memory of the current context's device.
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

    /// Returns the free bytes, and all bytes, of a device; none for one without a context yet.
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

/// Returns the device of which a record takes memory, and the bytes.
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

/// Returns the device in a block's properties (`CUmemAllocationProp`), whose third and fourth word are its location; none
/// for a host block.
fn device_of(properties: &[u8]) -> Option<i32> {
    let word = |at: usize| properties.as_chunks().0.get(at).copied().map(u32::from_le_bytes);
    word(3).filter(|_| word(2) == Some(location_type::DEVICE)).map(u32::cast_signed)
}
