//! The memory of the staging pieces as mapped by one process, and when it may be touched.
//!
//! The memory holds nothing while no copy runs, but once used it has 64 MiB of pages. So it is kept out of dumps of the program:
//! the worker makes it and passes it with the consent, and the program keeps no descriptor of it. A program that detaches from
//! its worker suspends the mapping. (Giving pages back instead would be wrong: the driver of a living worker has registered them,
//! and its GPU would continue to use them.)
//!
//! Behind the pieces lies the zero-copy area ([`crate::shm::staging::ZeroCopyMemory`]): the program may read what its worker has
//! there.
//!
//! The rule: the program's threads touch the memory only within [`StagingMap::with`], which waits while it is away. Contents of
//! pieces in use at that time are saved, and written to the memory that the next worker provides.

use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::link::error::LinkError;
use crate::shm::layout::{PIECES_ADDRESS, STAGING_BYTES, STAGING_PIECE_BYTES, ZERO_COPY_BYTES, ZERO_COPY_OFFSET};
use crate::shm::shared_mapping::SharedMapping;
use crate::shm::staging_piece::StagingPiece;

/// Bytes of the zero-copy area that become accessible at a time, when the program touches one of them.
const ZERO_COPY_PART_BYTES: usize = 64 << 20;
/// Words of the bitmap, for 64 parts each.
const ZERO_COPY_WORDS: usize = ZERO_COPY_BYTES / ZERO_COPY_PART_BYTES / 64;
/// How long threads may take to finish copies that have begun. They only move the program's own memory.
const PIECE_COPY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pieces, mapped or suspended.
#[derive(Debug)]
pub(crate) struct StagingMap {
    memory: SharedMapping,
    /// Accessible parts of the zero-copy area, a bit each. A program has none at first: `mlockall` fills accessible pages, which
    /// would be all of the zero-copy area.
    open_parts: [AtomicU64; ZERO_COPY_WORDS],
    access: Mutex<Access>,
    changed: Condvar,
}

/// Which threads may touch the memory.
#[derive(Debug, Default)]
struct Access {
    /// Number of threads that use the memory.
    users: usize,
    /// No further thread may begin.
    is_closed: bool,
    /// The saved contents of pieces in use, while there is no memory.
    saved: Option<Vec<(StagingPiece, Vec<u8>)>>,
    /// Whether no worker will bring it back.
    is_abandoned: bool,
    /// How often it was suspended.
    absences: u64,
}

impl StagingMap {
    /// Maps memory of [`STAGING_BYTES`] bytes.
    pub(crate) fn new(fd: impl AsFd) -> io::Result<Self> {
        let memory = SharedMapping::map(fd, STAGING_BYTES, PIECES_ADDRESS)?;
        let open_parts = std::array::from_fn(|_| AtomicU64::new(u64::MAX));
        Ok(Self { memory, open_parts, access: Mutex::default(), changed: Condvar::new() })
    }

    /// Program: requests large pages for the zero-copy area, of which fewer are needed, and makes each part inaccessible until
    /// used.
    ///
    /// # Errors
    /// Error that the system returned.
    pub(crate) fn close_zero_copy(&self) -> io::Result<()> {
        self.memory.use_large_pages(ZERO_COPY_OFFSET);
        self.memory.set_access(ZERO_COPY_OFFSET, ZERO_COPY_BYTES, false)?;
        self.open_parts.iter().for_each(|word| word.store(0, Ordering::Release));
        Ok(())
    }

    /// Makes the parts of the zero-copy area with these bytes accessible, and the first one, which has the epoch.
    fn open_zero_copy(&self, bytes: Range<usize>) -> io::Result<()> {
        let parts = (bytes.start - ZERO_COPY_OFFSET) / ZERO_COPY_PART_BYTES
            ..(bytes.end - ZERO_COPY_OFFSET).div_ceil(ZERO_COPY_PART_BYTES);
        for part in iter::once(0).chain(parts) {
            let (word, bit) = (&self.open_parts[part / 64], 1 << (part % 64));
            if word.load(Ordering::Acquire) & bit == 0 {
                self.memory.set_access(ZERO_COPY_OFFSET + part * ZERO_COPY_PART_BYTES, ZERO_COPY_PART_BYTES, true)?;
                word.fetch_or(bit, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Returns the memory: for the worker, whose memory is never suspended, or within [`StagingMap::with`].
    pub(crate) fn memory(&self) -> &SharedMapping {
        &self.memory
    }

    /// Runs `work`, which may touch the memory, as soon as the memory is there.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the memory will not come.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&SharedMapping) -> T) -> Result<T, LinkError> {
        let mut access = self.access();
        while access.is_closed {
            if access.is_abandoned {
                return Err(LinkError::Closed);
            }
            access = self.changed.wait(access).unwrap_or_else(PoisonError::into_inner);
        }
        access.users += 1;
        drop(access);
        let _user = User(self);
        Ok(work(&self.memory))
    }

    /// Returns how often the memory was suspended. Contents seen in the zero-copy area are still there while this is unchanged.
    pub(crate) fn absences(&self) -> u64 {
        self.access().absences
    }

    /// Runs `work`, which may touch these bytes of the zero-copy area. Returns none if the area was suspended since `absences`
    /// was read, or cannot be made accessible.
    ///
    /// # Errors
    /// As [`StagingMap::with`].
    pub(crate) fn with_zero_copy<T>(
        &self,
        absences: u64,
        bytes: Range<usize>,
        work: impl FnOnce(&SharedMapping) -> T,
    ) -> Result<Option<T>, LinkError> {
        // While `work` runs, no thread suspends the memory.
        self.with(|memory| {
            let is_there = self.absences() == absences && self.open_zero_copy(bytes).is_ok();
            is_there.then(|| work(memory))
        })
    }

    /// Suspends the memory once no thread touches it. Saves the first `used` bytes of each piece. Memory that is away stays away.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if a thread does not finish its copy, or the system's error. Nothing has changed then.
    pub(crate) fn suspend(&self, used: impl Fn(StagingPiece) -> usize) -> io::Result<()> {
        let mut access = self.access();
        if access.saved.is_some() {
            return Ok(());
        }
        access.is_closed = true;
        let deadline = Instant::now() + PIECE_COPY_TIMEOUT;
        while access.users > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.open(access);
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a copy of the program's does not end"));
            }
            access = self.changed.wait_timeout(access, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let saved = StagingPiece::all()
            .map(|piece| (piece, self.bytes(piece, used(piece))))
            .filter(|(_, bytes)| !bytes.is_empty());
        let saved = saved.collect();
        match self.memory.suspend() {
            Ok(()) => {
                access.saved = Some(saved);
                access.absences += 1;
            }
            Err(error) => {
                self.open(access);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes `fd` for the memory, and writes the saved contents there. The memory must be away.
    ///
    /// # Errors
    /// The system's error; the memory stays away.
    pub(crate) fn bring_back(&self, fd: impl AsFd) -> io::Result<()> {
        let mut access = self.access();
        self.memory.restore(fd)?;
        self.close_zero_copy()?;
        access.saved.take().into_iter().flatten().for_each(|(piece, bytes)| self.memory.copy_in(piece.start(), &bytes));
        access.is_abandoned = false;
        self.open(access);
        Ok(())
    }

    /// Tells waiting threads that the memory will not come. [`StagingMap::bring_back`] cancels that.
    pub(crate) fn give_up(&self) {
        self.access().is_abandoned = true;
        self.changed.notify_all();
    }

    fn open(&self, mut access: MutexGuard<'_, Access>) {
        access.is_closed = false;
        drop(access);
        self.changed.notify_all();
    }

    fn bytes(&self, piece: StagingPiece, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.memory.append_to(piece.start(), length.min(STAGING_PIECE_BYTES), &mut bytes);
        bytes
    }

    fn access(&self) -> MutexGuard<'_, Access> {
        // Code under the lock panics only for want of memory, and leaves the state whole.
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread within [`StagingMap::with`], however it leaves.
struct User<'a>(&'a StagingMap);

impl Drop for User<'_> {
    fn drop(&mut self) {
        let mut access = self.0.access();
        access.users -= 1;
        if access.is_closed && access.users == 0 {
            drop(access);
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::shm::channel::create;

    fn file() -> OwnedFd {
        create("test", STAGING_BYTES as u64).unwrap()
    }

    fn piece(number: u32) -> StagingPiece {
        StagingPiece::new(number).unwrap()
    }

    #[test]
    fn staging_pieces_in_use_are_restored_in_other_memory_and_no_others() {
        let area = StagingMap::new(file()).unwrap();
        area.with(|memory| (0..2).for_each(|number| memory.copy_in(piece(number).start(), b"some bytes"))).unwrap();
        let used = |piece: StagingPiece| if piece.number() == 1 { 4 } else { 0 };
        area.suspend(used).unwrap();
        area.suspend(|_| 0).unwrap();
        area.bring_back(file()).unwrap();
        let mut got = [[9; 10]; 2];
        for (number, got) in (0..).zip(&mut got) {
            area.with(|memory| memory.copy_out(piece(number).start(), got)).unwrap();
        }
        assert_eq!(got, [[0; 10], *b"some\0\0\0\0\0\0"]);
    }

    #[test]
    fn zero_copy_contents_from_before_a_suspend_are_not_read() {
        let area = StagingMap::new(file()).unwrap();
        let old_absences = area.absences();
        assert_eq!(area.with_zero_copy(old_absences, ZERO_COPY_OFFSET..ZERO_COPY_OFFSET + 1, |_| 1).unwrap(), Some(1));
        area.suspend(|_| 0).unwrap();
        area.bring_back(file()).unwrap();
        assert_eq!(area.with_zero_copy(old_absences, ZERO_COPY_OFFSET..ZERO_COPY_OFFSET + 1, |_| 1).unwrap(), None);
        assert_eq!(
            area.with_zero_copy(area.absences(), ZERO_COPY_OFFSET..ZERO_COPY_OFFSET + 1, |_| 1).unwrap(),
            Some(1)
        );
    }

    #[test]
    fn it_is_not_put_away_under_a_thread_and_others_wait_until_it_is_back() {
        let area = StagingMap::new(file()).unwrap();
        let ((entered, has_entered), (leave, may_leave)) = (channel(), channel());
        thread::scope(|scope| {
            let area = &area;
            let within = scope.spawn(move || {
                area.with(|memory| {
                    entered.send(()).unwrap();
                    may_leave.recv().unwrap();
                    memory.copy_in(0, b"written late");
                })
            });
            has_entered.recv().unwrap();
            let away = scope.spawn(|| area.suspend(|piece| if piece.number() == 0 { 12 } else { 0 }));
            while !area.access().is_closed {
                thread::yield_now();
            }
            let late = scope.spawn(|| {
                let mut got = [0; 12];
                area.with(|memory| memory.copy_out(0, &mut got)).map(|()| got)
            });
            assert!(area.access().saved.is_none());
            leave.send(()).unwrap();
            away.join().unwrap().unwrap();
            within.join().unwrap().unwrap();
            assert!(!late.is_finished() && area.access().saved.is_some());
            area.bring_back(file()).unwrap();
            assert_eq!(&late.join().unwrap().unwrap(), b"written late");
        });
    }

    #[test]
    fn threads_that_wait_for_memory_fail_when_none_will_come() {
        let area = StagingMap::new(file()).unwrap();
        area.suspend(|_| 0).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| area.with(|_| ()));
            area.give_up();
            assert!(matches!(waiting.join().unwrap(), Err(LinkError::Closed)));
        });
        area.bring_back(file()).unwrap();
        assert!(area.with(|_| ()).is_ok());
    }
}
