//! Events of several processes: two counters in a page that all of them map.
//!
//! A record takes the next number. The event is reached when the highest reached number is at least the last one taken. A handle
//! names the process that made the event, and its descriptor of the page. The handle is invalid once that process has ended, but
//! a process that opened it keeps the page.

#![expect(unsafe_code, reason = "maps a page that other processes map too")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use katydid_cuda_sys::{CUipcEventHandle, CUresult};

use crate::ffi::Outcome;
use crate::memory::pages::{self, PAGE_BYTES, SharedPage};

/// First bytes of a handle.
const EVENT_HANDLE_MAGIC: u64 = u64::from_le_bytes(*b"katydevt");
/// Stands for the process: the descriptor is this process's own, passed on to it by another one.
const OWN_PROCESS: u64 = 0;
/// Poll interval of a waiting thread: other processes cannot wake it.
const MARK_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Counters that the processes of an event share.
#[repr(C)]
struct Counters {
    /// The last number that a record took.
    recorded: AtomicU64,
    /// The highest number that a stream has reached.
    reached: AtomicU64,
}

/// Duplicates a descriptor of this process.
fn duplicate(number: u64) -> io::Result<OwnedFd> {
    let number = i32::try_from(number).map_err(io::Error::other)?;
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only duplicated, which fails for one that is not open.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

/// A page of counters.
pub(crate) struct IpcEventCounters {
    file: OwnedFd,
    page: SharedPage,
}

impl IpcEventCounters {
    /// Returns the counters of a new event.
    pub(crate) fn new() -> Outcome<Self> {
        pages::memory_file(PAGE_BYTES).and_then(Self::map).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    }

    fn map(file: OwnedFd) -> io::Result<Self> {
        let page = SharedPage::of(&file)?;
        Ok(Self { file, page })
    }

    /// Returns the handle by which other processes open it.
    pub(crate) fn handle(&self) -> Outcome<CUipcEventHandle> {
        let identity = identity(&self.file).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        let fields = [EVENT_HANDLE_MAGIC, u64::from(std::process::id()), self.file.as_raw_fd() as u64, identity];
        let mut handle = CUipcEventHandle::default();
        let bytes = fields.into_iter().flat_map(u64::to_le_bytes);
        handle.reserved.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        Ok(handle)
    }

    /// Opens the counters of another process's handle. As with a GPU, the process that made it cannot open it.
    pub(crate) fn open(handle: &CUipcEventHandle) -> Outcome<Self> {
        let word = |at: usize| handle.reserved.as_chunks().0.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let [magic, process, number, expected_identity] = [0, 1, 2, 3].map(word);
        if magic != EVENT_HANDLE_MAGIC {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if process == u64::from(std::process::id()) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        let file = match process {
            OWN_PROCESS => duplicate(number),
            _ => File::options().read(true).write(true).open(format!("/proc/{process}/fd/{number}")).map(OwnedFd::from),
        };
        let file = file.map_err(|_| CUresult::ERROR_INVALID_HANDLE)?;
        if identity(&file).ok() != Some(expected_identity) {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        Self::map(file).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    }

    fn counters(&self) -> &Counters {
        let at: NonNull<Counters> = self.page.start().cast();
        // SAFETY: the page is mapped as long as `self` lives, aligned to more than the counters, and all processes
        // touch them as atomics only; any bits are values of them.
        unsafe { at.as_ref() }
    }

    /// Takes the next number.
    pub(crate) fn record(&self) -> u64 {
        self.counters().recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The last number that was taken; 0 for none.
    pub(crate) fn last(&self) -> u64 {
        self.counters().recorded.load(Ordering::Acquire)
    }

    /// Notes that a stream has reached a number.
    pub(crate) fn reach(&self, number: u64) {
        self.counters().reached.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns whether a number was reached.
    pub(crate) fn is_reached(&self, number: u64) -> bool {
        self.counters().reached.load(Ordering::Acquire) >= number
    }

    /// Waits until a number is reached.
    pub(crate) fn wait(&self, number: u64) {
        while !self.is_reached(number) {
            thread::sleep(MARK_POLL_INTERVAL);
        }
    }
}

/// Returns the inode, which tells the file from a later one with the same descriptor number.
pub(crate) fn identity(file: &OwnedFd) -> io::Result<u64> {
    Ok(File::from(file.try_clone()?).metadata()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reached_in_any_order_and_the_highest_counts() {
        let marks = IpcEventCounters::new().unwrap();
        assert_eq!((marks.last(), marks.record(), marks.record()), (0, 1, 2));
        marks.reach(2);
        marks.reach(1);
        assert!(marks.is_reached(2) && !marks.is_reached(3));
        marks.wait(2);
    }

    #[test]
    fn handles_of_this_process_and_of_none_are_refused() {
        let handle = IpcEventCounters::new().unwrap().handle().unwrap();
        assert_eq!(IpcEventCounters::open(&handle).err(), Some(CUresult::ERROR_INVALID_CONTEXT));
        assert_eq!(IpcEventCounters::open(&CUipcEventHandle::default()).err(), Some(CUresult::ERROR_INVALID_HANDLE));
        let mut gone = handle;
        gone.reserved[8..16].copy_from_slice(&u64::from(u32::MAX).to_le_bytes());
        assert_eq!(IpcEventCounters::open(&gone).err(), Some(CUresult::ERROR_INVALID_HANDLE));
    }
}
