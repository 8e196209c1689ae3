//! Device memory: addresses reserved for the whole session, and backed piece by piece for the program.
//!
//! The program chooses addresses, because it allocates from the arenas itself. It can choose nothing that is outside the
//! arena, backed twice, or beyond its limit. Sizes and addresses are in bytes, whole granules.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_arena::{AddressMap, GROWTH_GRANULE_BYTES};
use katydid_cuda_sys::{CUmemAccessDesc, CUresult, device_attribute};
use katydid_driver::Driver;
use katydid_wire::facts::{DeviceFacts, Facts};

use crate::calls::fault::{Fault, SessionError};
use crate::device::ask::ask;
use crate::memory::chunks::Chunks;
use crate::memory::device_block::{access, create, make, open};
use crate::memory::shares::POSIX_FD_HANDLE_TYPE;
use crate::memory::stand_in::StandIns;

/// The device arenas of a session.
#[derive(Debug)]
pub struct DeviceMemory {
    map: AddressMap,
    /// Grown pieces of each device's arena, by the device's ordinal.
    devices: Vec<Chunks<()>>,
    /// Devices that may access each device's memory, itself first.
    peers: Vec<Vec<i32>>,
    /// Whether blocks of a device can be exported to other processes.
    is_exportable: Vec<bool>,
    /// Most bytes that the session may hold; none: no limit.
    limit: Option<u64>,
    /// Bytes outside the arenas that count as well.
    charged: u64,
    /// In a rehearsal: the stand-ins for all memory of each device.
    stand_ins: Option<StandIns>,
}

impl DeviceMemory {
    /// Makes the memory of arenas that [`reserve`] reserved. `limit` is in bytes.
    pub fn new(map: AddressMap, facts: &Facts, limit: Option<u64>) -> Self {
        let devices = facts.devices.iter().map(|_| Chunks::default()).collect();
        let peers = (0..facts.devices.len()).map(|device| peers(facts, device)).collect();
        let is_exportable = facts.devices.iter().map(is_exportable).collect();
        Self { map, devices, peers, is_exportable, limit, charged: 0, stand_ins: None }
    }

    /// Begins a rehearsal: memory has no contents from here on, and little memory of the device stands in for all of it.
    pub(crate) fn begin_rehearsal(&mut self) {
        self.stand_ins = Some(StandIns::default());
    }

    /// Returns whether memory has no contents.
    pub(crate) fn is_rehearsal(&self) -> bool {
        self.stand_ins.is_some()
    }

    /// Returns the map of the arenas.
    pub(crate) fn map(&self) -> &AddressMap {
        &self.map
    }

    /// Returns the bytes backed on all devices, and those charged.
    pub(crate) fn backed_bytes(&self) -> u64 {
        self.devices.iter().map(Chunks::total).sum::<u64>() + self.charged
    }

    /// Returns the most bytes backed on one device, and those charged: no table tells the device of memory that was
    /// allocated outside the arenas.
    pub(crate) fn held_of(&self, device: i32) -> u64 {
        let chunks = usize::try_from(device).ok().and_then(|ordinal| self.devices.get(ordinal));
        chunks.map_or(0, Chunks::total) + self.charged
    }

    /// Charges memory outside the arenas.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.charged += bytes;
    }

    /// Refunds memory outside the arenas.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.charged -= bytes;
    }

    /// Returns the bytes that the limit leaves; without one, more than any device has.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.backed_bytes()))
    }

    /// Most bytes that the session may hold; none: no limit.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Backs a range with new memory of `device`.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY` exactly when the device or the limit leaves too little; a session error for a range that
    /// no correct program names.
    pub(crate) fn grow(&mut self, driver: &Driver, device: i32, address: u64, size: u64) -> Result<(), Fault> {
        let ordinal = self.check(device, address, size)?;
        if !self.devices[ordinal].is_free(address, size) {
            return Err(out_of_range(address, size));
        }
        if size > self.bytes_left() {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        match &mut self.stand_ins {
            Some(stand_ins) => stand_ins.back(driver, device, &self.peers[ordinal], address, size)?,
            None => back(driver, (device, self.is_exportable[ordinal]), &self.peers[ordinal], address, size)?,
        }
        self.devices[ordinal].insert(address, size, ());
        Ok(())
    }

    /// In a rehearsal: maps little memory of `device` at reserved addresses of the program, as a stand-in for another
    /// session's export.
    ///
    /// # Errors
    ///
    /// `INVALID_DEVICE`, `NOT_SUPPORTED` outside a rehearsal, or the driver's code.
    pub(crate) fn stand_in(&mut self, driver: &Driver, device: i32, address: u64, size: u64) -> Result<(), Fault> {
        let peers = usize::try_from(device).ok().and_then(|ordinal| self.peers.get(ordinal));
        let peers = peers.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        let stand_ins = self.stand_ins.as_mut().ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
        Ok(stand_ins.back(driver, device, peers, address, size)?)
    }

    /// Unmaps all memory, which nothing uses; the tables stay. Memory that was unmapped before is no failure.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn unmap_all(&self, driver: &Driver) -> Result<(), CUresult> {
        for (_, address, size) in self.ranges() {
            // SAFETY: a grown piece of an arena, which nothing uses, by the caller's promise.
            match unsafe { driver.cuMemUnmap(address, size as usize) } {
                CUresult::SUCCESS | CUresult::ERROR_INVALID_VALUE => {}
                code => return Err(code),
            }
        }
        Ok(())
    }

    /// Backs every unmapped range again, with new memory without contents.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemory::grow`].
    pub(crate) fn map_again(&self, driver: &Driver) -> Result<(), CUresult> {
        // A failed attempt may have left some mapped.
        self.unmap_all(driver)?;
        for (device, address, size) in self.ranges() {
            let ordinal = usize::try_from(device).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
            back(driver, (device, self.is_exportable[ordinal]), &self.peers[ordinal], address, size)?;
        }
        Ok(())
    }

    /// Every backed range: ordinal of its device, address, size.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (i32, u64, u64)> {
        let of_device = |(ordinal, chunks): (usize, &'_ Chunks<()>)| {
            let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
            chunks.iter().map(move |(address, size, ())| (ordinal, address, size)).collect::<Vec<_>>()
        };
        self.devices.iter().enumerate().flat_map(of_device)
    }

    /// Returns the grown pieces that contain a range: address and size of each.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` if the range is not fully backed, `NOT_SUPPORTED` if the device's memory cannot be exported.
    pub(crate) fn pieces(&self, address: u64, size: u64) -> Result<Vec<(u64, u64)>, Fault> {
        let end = address.checked_add(size).filter(|end| *end > address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        for (chunks, is_exportable) in self.devices.iter().zip(&self.is_exportable) {
            if !chunks.covers(address, size) {
                continue;
            }
            if !is_exportable {
                return Err(CUresult::ERROR_NOT_SUPPORTED.into());
            }
            let holding = chunks.iter().filter(|(start, length, ())| *start < end && address < start + length);
            return Ok(holding.map(|(start, length, ())| (start, length)).collect());
        }
        Err(CUresult::ERROR_INVALID_VALUE.into())
    }

    /// Returns grants of reading and writing for a device and its peers, itself first.
    ///
    /// # Errors
    ///
    /// `INVALID_DEVICE`.
    pub(crate) fn grants(&self, device: i32) -> Result<Vec<CUmemAccessDesc>, Fault> {
        let peers = usize::try_from(device).ok().and_then(|ordinal| self.peers.get(ordinal));
        let peers = peers.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        Ok(peers.iter().map(|id| access(*id)).collect())
    }

    /// Removes ranges from the tables, which the caller unmaps; returns address and size of each.
    ///
    /// # Errors
    ///
    /// A session error for a range that does not consist of grown pieces.
    pub(crate) fn shrink(&mut self, device: i32, address: u64, size: u64) -> Result<Vec<(u64, u64)>, Fault> {
        let ordinal = self.check(device, address, size)?;
        let gone = self.devices[ordinal].remove(address, size).ok_or_else(|| out_of_range(address, size))?;
        Ok(gone.into_iter().map(|(address, size, ())| (address, size)).collect())
    }

    /// Returns the device's index in the tables, if the range consists of whole granules of its arena.
    fn check(&self, device: i32, address: u64, size: u64) -> Result<usize, Fault> {
        let number = u32::try_from(device).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
        let ordinal = number as usize;
        if ordinal >= self.devices.len() {
            return Err(CUresult::ERROR_INVALID_DEVICE.into());
        }
        let whole =
            size > 0 && address.is_multiple_of(GROWTH_GRANULE_BYTES) && size.is_multiple_of(GROWTH_GRANULE_BYTES);
        let end = address.checked_add(size);
        let arena = self.map.device(number);
        let inside = arena.zip(end).is_some_and(|(arena, end)| arena.start <= address && end <= arena.end);
        if whole && inside { Ok(ordinal) } else { Err(out_of_range(address, size)) }
    }
}

fn out_of_range(address: u64, size: u64) -> Fault {
    SessionError::BadRange { what: "device memory", address, size }.into()
}

/// Returns whether blocks of a device can be exported as file descriptors, by the driver's facts.
fn is_exportable(facts: &DeviceFacts) -> bool {
    let answer = facts.attribute(device_attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as i32);
    answer.is_some_and(|answer| answer.code == 0 && answer.value != 0)
}

/// Returns the device itself, and those that can access it.
fn peers(facts: &Facts, device: usize) -> Vec<i32> {
    let others = (0..facts.devices.len())
        .filter(|other| *other != device && facts.peer(*other, device).is_some_and(|peer| peer.can_access.value != 0));
    std::iter::once(device).chain(others).filter_map(|ordinal| i32::try_from(ordinal).ok()).collect()
}

/// Reserves the addresses of every device in a candidate range; returns `false`, and reserves nothing, if the driver chooses
/// others.
pub fn reserve(driver: &Driver, map: &AddressMap, devices: usize) -> bool {
    let mut reserved = Vec::new();
    let ranges = (0..devices).map(|device| u32::try_from(device).ok().and_then(|device| map.device(device)));
    for range in ranges {
        let Some(range) = range else { break };
        let size = (range.end - range.start) as usize;
        // SAFETY: asks for addresses only; the output is a local.
        let got = ask(|out| unsafe { driver.cuMemAddressReserve(out, size, 0, range.start, 0) });
        match got {
            Ok(address) if address == range.start => reserved.push((address, size)),
            Ok(address) => {
                // SAFETY: frees the addresses that were just reserved.
                let _ = unsafe { driver.cuMemAddressFree(address, size) };
                break;
            }
            Err(_) => break,
        }
    }
    if reserved.len() == devices {
        return true;
    }
    for (address, size) in reserved {
        // SAFETY: frees the addresses reserved above; nothing was mapped there.
        let _ = unsafe { driver.cuMemAddressFree(address, size) };
    }
    false
}

/// Maps new memory of `device` at a reserved address and lets `peers` read and write it.
fn back(
    driver: &Driver,
    (device, is_exportable): (i32, bool),
    peers: &[i32],
    address: u64,
    size: u64,
) -> Result<(), CUresult> {
    let length = size as usize;
    // Memory must be made exportable in advance; if that is refused after all, it is not exportable.
    let exportable = || make(driver, device, size, POSIX_FD_HANDLE_TYPE);
    let memory = match is_exportable.then(exportable) {
        Some(Err(CUresult::ERROR_OUT_OF_MEMORY)) => Err(CUresult::ERROR_OUT_OF_MEMORY),
        Some(Ok(memory)) => Ok(memory),
        None | Some(Err(_)) => create(driver, device, size),
    }?;
    // SAFETY: the range is reserved for the session and, by the session's tables, not mapped.
    let mapped = unsafe { driver.cuMemMap(address, length, 0, memory, 0) };
    // SAFETY: created above; the mapping, if there is one, keeps the memory alive from here on.
    let _ = unsafe { driver.cuMemRelease(memory) };
    mapped.ok()?;
    open(driver, peers, address, size)
}
