//! Data that commands read from a device, until the program fetches it.
//!
//! The driver writes into memory of the worker while the command runs. The worker reads it only after the command's event reports
//! the end.

#![expect(unsafe_code, reason = "the driver writes into this memory while its command runs")]

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_opencl_sys::{Code, void};

use crate::objects::held_events::HeldEvent;
use crate::objects::lifetimes::ObjectRef;

/// Memory that a driver may write to.
pub(crate) struct ReadBuffer(Box<[UnsafeCell<u8>]>);

// SAFETY: the bytes are reached by raw pointers only, and read when the command that writes them has ended.
unsafe impl Send for ReadBuffer {}
// SAFETY: as above.
unsafe impl Sync for ReadBuffer {}

impl ReadBuffer {
    /// Allocates zeroed memory, so that no data of the worker is ever handed out.
    pub(crate) fn new(size: u64) -> Result<Self, Code> {
        let layout = usize::try_from(size).ok().and_then(|size| Layout::array::<UnsafeCell<u8>>(size).ok());
        let layout = layout.ok_or(Code::OUT_OF_HOST_MEMORY)?;
        if layout.size() == 0 {
            return Ok(Self(Box::new([])));
        }
        // Zero pages of the system: a read that the driver refuses, because the object is smaller, has used no memory.
        // SAFETY: there are bytes.
        let bytes = unsafe { alloc_zeroed(layout) };
        if bytes.is_null() {
            return Err(Code::OUT_OF_HOST_MEMORY);
        }
        // SAFETY: new, of the allocator of boxes, as long as the layout says, and all zeros.
        Ok(Self(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(bytes.cast(), layout.size())) }))
    }

    /// Returns memory that holds this one byte.
    pub(crate) fn of(byte: u8) -> Self {
        Self(Box::new([UnsafeCell::new(byte)]))
    }

    /// Returns the pointer that the driver writes through.
    pub(crate) fn pointer(&self) -> *mut void {
        self.0.as_ptr().cast_mut().cast()
    }

    /// Returns the length of the memory in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Copies a part; returns `None` beyond the end. The command that writes must have ended.
    pub(crate) fn copy(&self, offset: u64, size: u32) -> Option<Vec<u8>> {
        let end = usize::try_from(offset).ok()?.checked_add(size as usize)?;
        let part = self.0.get(end - size as usize..end)?;
        // SAFETY: inside the memory; no code writes once the command has ended, which the caller has seen.
        Some(unsafe { slice::from_raw_parts(part.as_ptr().cast::<u8>(), part.len()) }.to_vec())
    }
}

impl From<Vec<u8>> for ReadBuffer {
    fn from(bytes: Vec<u8>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the box is taken over whole.
        Self(unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) })
    }
}

/// Memory that a command reads or writes, for the thread that waits for the end. Without such a wait it is never freed: the
/// driver may still use it.
pub(crate) struct PendingTransfer {
    target: ManuallyDrop<ReadBuffer>,
    event: HeldEvent,
}

impl PendingTransfer {
    pub(crate) fn new(target: ReadBuffer, event: HeldEvent) -> Self {
        Self { target: ManuallyDrop::new(target), event }
    }

    pub(crate) fn event(&self) -> &HeldEvent {
        &self.event
    }

    /// Waits for the command and returns the memory. If the driver does not report the end, the memory is never freed.
    pub(crate) fn wait(self) -> Result<ReadBuffer, Code> {
        let outcome = self.event.wait();
        if outcome.is_err() && self.event.status()? > 0 {
            outcome?;
        }
        let target = ManuallyDrop::into_inner(self.target);
        outcome.map(|()| target)
    }
}

/// Where the bytes of a read lie.
pub(crate) enum ReadLocation {
    /// In memory that the read owns.
    Own(Arc<ReadBuffer>),
    /// In shared virtual memory, which the command has mapped: address, bytes, and a reference that holds it.
    Svm(u64, u64, #[expect(dead_code, reason = "held, not read")] ObjectRef),
}

/// The end of a read's command.
pub(crate) enum CommandEnd {
    /// The command's event tells when it has ended.
    Awaited(HeldEvent),
    /// The command ended, with this state, in the worker before this one.
    Past(i32),
}

/// The data that one command reads.
pub(crate) struct PendingRead {
    pub(crate) location: ReadLocation,
    pub(crate) end: CommandEnd,
}

impl PendingRead {
    /// Returns the state of the command: 0 ended, positive not yet, negative failed.
    pub(crate) fn status(&self) -> Result<i32, Code> {
        match &self.end {
            CommandEnd::Awaited(event) => event.status(),
            CommandEnd::Past(status) => Ok(*status),
        }
    }

    /// Returns the state of the command; with `wait`, waits for its end first.
    fn query(&self, wait: bool) -> Result<i32, Code> {
        if let (true, CommandEnd::Awaited(event)) = (wait, &self.end) {
            // The state tells what went wrong.
            let _ = event.wait();
        }
        self.status()
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.location {
            ReadLocation::Own(target) => target.len() as u64,
            ReadLocation::Svm(_, size, _) => *size,
        }
    }

    /// Copies a part, once the command has ended.
    fn copy(&self, offset: u64, size: u32) -> Option<Vec<u8>> {
        match &self.location {
            ReadLocation::Own(target) => target.copy(offset, size),
            ReadLocation::Svm(address, length, _) => {
                offset.checked_add(size.into()).filter(|end| end <= length)?;
                let start = std::ptr::with_exposed_provenance::<u8>((address + offset) as usize);
                // SAFETY: inside an allocation that is held; the program maps it for the host, and so leaves it to the host.
                Some(unsafe { slice::from_raw_parts(start, size as usize) }.to_vec())
            }
        }
    }
}

/// Pending reads by the numbers that the shim gave.
#[derive(Default)]
pub(crate) struct PendingReads {
    list: Mutex<HashMap<u64, Arc<PendingRead>>>,
}

impl PendingReads {
    /// Adds a read. Numbers are unique; if a program repeats one, the old memory stays, since the driver may still write to it.
    pub(crate) fn add(&self, number: u64, read: PendingRead) {
        let had = self.list.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(read));
        mem::forget(had);
    }

    /// Forgets the reads that lie in shared virtual memory that the program has freed. A part that is being copied stays held.
    pub(crate) fn forget_svm(&self, range: Range<u64>) {
        let lies_there =
            |read: &PendingRead| matches!(&read.location, ReadLocation::Svm(start, ..) if range.contains(start));
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = list.extract_if(|_, read| lies_there(read)).collect();
        drop(list);
        // The events are released outside of the lock.
        drop(gone);
    }

    /// Returns the event of a read's command; `None` if it ended in the worker before this one.
    pub(crate) fn event(&self, number: u64) -> Option<HeldEvent> {
        match self.list.lock().unwrap_or_else(PoisonError::into_inner).get(&number).map(|read| &read.end) {
            Some(CommandEnd::Awaited(event)) => Some(event.clone()),
            _ => None,
        }
    }

    /// Returns all reads that were not fetched to their ends, by number.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<PendingRead>)> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = list.iter().map(|(number, read)| (*number, Arc::clone(read))).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }

    fn find(&self, number: u64) -> Result<Arc<PendingRead>, Code> {
        let found = self.list.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        found.ok_or(Code::INVALID_VALUE)
    }

    /// Returns the state of a read, and keeps the read.
    pub(crate) fn query(&self, number: u64, wait: bool) -> Result<i32, Code> {
        self.find(number)?.query(wait)
    }

    /// Returns the state of a read and, when its command has ended, a part of its bytes. The last part or a failure removes the
    /// read.
    pub(crate) fn fetch(&self, number: u64, offset: u64, size: u32, wait: bool) -> Result<(i32, Vec<u8>), Code> {
        let read = self.find(number)?;
        let status = read.query(wait)?;
        if status > 0 {
            return Ok((status, Vec::new()));
        }
        let bytes = if status == 0 { read.copy(offset, size).ok_or(Code::INVALID_VALUE)? } else { Vec::new() };
        if status < 0 || offset + u64::from(size) == read.len() {
            let ended = self.list.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
            // The event is released outside of the lock.
            drop(ended);
        }
        Ok((status, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beyond_the_end_are_refused() {
        let target = ReadBuffer::new(10).unwrap();
        assert_eq!(target.copy(2, 8), Some(vec![0; 8]));
        assert!(target.copy(3, 8).is_none() && target.copy(u64::MAX, 1).is_none());
        assert_eq!(ReadBuffer::new(u64::MAX).err(), Some(Code::OUT_OF_HOST_MEMORY));
    }

    #[test]
    fn a_read_takes_no_memory_before_its_bytes_come() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let before = resident();
        let target = ReadBuffer::new(4 << 30).unwrap();
        assert_eq!((target.len(), target.copy((4 << 30) - 1, 1)), (4 << 30, Some(vec![0])));
        assert!(resident() < before + (1 << 30), "the zeros were written");
        drop(target);
        assert_eq!(ReadBuffer::new(0).unwrap().len(), 0);
    }

    #[test]
    fn a_number_that_nothing_has_is_refused() {
        assert_eq!(PendingReads::default().fetch(1, 0, 0, false).unwrap_err(), Code::INVALID_VALUE);
    }
}
