//! The program's lanes: connections beside a link's first one, over which bulk goes while the order of frames is kept there.
//!
//! A lane is one thread's at a time: it carries the payload of a frame whose head has gone over the first connection, or
//! the reply to a frame, and nobody else's bytes are between. So several threads send and receive at once, each straight
//! from and to the program's memory. A thread that finds no free lane does not wait for one, since whoever has it may
//! wait for the GPU: its bytes go over the first connection.
//!
//! Lanes are opened once bulk has begun to flow, each by a thread that wants one. They are closed when the program leaves
//! its worker. A lane that ends by itself, or that stalls, is the end of the link; one that cannot be opened is done
//! without.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use katydid_wire::frame::{MOST_LANES, ReplyHead};
use rustix::net::{Shutdown, shutdown};

use crate::ipc::connection::Line;
use crate::link::error::LinkError;
use crate::os::descriptor::{Descriptor, Placeholder};
use crate::os::socket::send_while;
use crate::stream::frame_reader::Inlet;
use crate::stream::reply_desk::{Arrived, UNASKED, Wanted, read_body};
use crate::tls::record::Sealer;

/// Least bytes that are worth a lane.
pub(crate) const BULK: usize = 128 << 10;
/// Bytes of bulk that have gone another way before lanes are opened: programs that copy little have no use for them.
const BEGIN: u64 = 8 << 20;
/// Least bytes that are divided among lanes.
const MUCH: u64 = 2 << 20;
/// Lanes that a link may have.
const MOST: usize = MOST_LANES as usize;

/// The lanes of a link.
pub(crate) struct Lanes {
    /// A lane keeps its place, and the number of its descriptor, from its first opening to the link's end.
    places: [OnceLock<Lane>; MOST],
    desk: Mutex<Desk>,
    /// A lane is given back, or an attempt to open one is over.
    changed: Condvar,
    /// Bytes of bulk so far.
    carried: AtomicU64,
    /// Lanes that may be opened.
    most: AtomicUsize,
}

/// One of them.
struct Lane {
    socket: Descriptor,
    ends: Mutex<Ends>,
}

/// What its user reads and writes with.
struct Ends {
    /// Of a connection that is sealed.
    sealer: Option<Sealer>,
    inlet: Inlet,
}

/// Who has what.
#[derive(Default)]
struct Desk {
    /// Places of lanes that nobody uses.
    free: Vec<usize>,
    /// Lanes that were opened since the program came to its worker, or are being opened.
    opened: usize,
    /// Lanes that threads use or open.
    in_use: usize,
    /// No further lane is opened: one was refused.
    is_refused: bool,
    /// No lane is given out: the program leaves its worker, or has left.
    is_closed: bool,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            places: [const { OnceLock::new() }; MOST],
            desk: Mutex::default(),
            changed: Condvar::new(),
            carried: AtomicU64::new(0),
            most: AtomicUsize::new(0),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // No code under this lock panics.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on so many lanes may be opened.
    pub(crate) fn allow(&self, lanes: usize) {
        self.most.store(lanes.min(MOST), Ordering::Relaxed);
    }

    /// How many lanes `bytes` of bulk to come may use at a time.
    pub(crate) fn expect(&self, bytes: u64) -> usize {
        if bytes < MUCH {
            return 0;
        }
        let before = self.carried.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) < BEGIN {
            return 0;
        }
        let (most, desk) = (self.most.load(Ordering::Relaxed), self.desk());
        if desk.is_refused { desk.opened.min(most) } else { most }
    }

    /// Opens a lane with `join`, which is told its number, if bulk flows, none is free and there may be one more.
    pub(crate) fn widen<E>(&self, bytes: usize, join: impl FnOnce(u16) -> Result<Line, E>) {
        let Some(place) = self.begin(bytes) else { return };
        let opened = join(place as u16 + 1).is_ok_and(|line| self.put(place, line).is_ok());
        let mut desk = self.desk();
        desk.in_use -= 1;
        if opened {
            desk.free.push(place);
        } else {
            (desk.is_refused, desk.opened) = (true, desk.opened - 1);
        }
        drop(desk);
        self.changed.notify_all();
    }

    /// The place for a lane that the caller is to open.
    fn begin(&self, bytes: usize) -> Option<usize> {
        let carried = self.carried.fetch_add(bytes as u64, Ordering::Relaxed);
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 || carried < BEGIN {
            return None;
        }
        let mut desk = self.desk();
        if !desk.free.is_empty() || desk.opened >= most || desk.is_refused || desk.is_closed {
            return None;
        }
        (desk.opened, desk.in_use) = (desk.opened + 1, desk.in_use + 1);
        Some(desk.opened - 1)
    }

    fn put(&self, place: usize, line: Line) -> io::Result<()> {
        let (fd, sealer, opener) = line.into_parts();
        let mut inlet = Inlet::of_bulk();
        inlet.turn_to(opener);
        let ends = Ends { sealer, inlet };
        match self.places[place].get() {
            Some(lane) => {
                *lane.ends() = ends;
                lane.socket.replace(&fd)?.then_some(()).ok_or_else(|| io::ErrorKind::AlreadyExists.into())
            }
            None => {
                let (socket, ends) = (Descriptor::new(fd)?, Mutex::new(ends));
                self.places[place].set(Lane { socket, ends }).map_err(|_| io::ErrorKind::AlreadyExists.into())
            }
        }
    }

    /// A lane for the calling thread alone; none if none is free.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let mut desk = self.desk();
        let place = if desk.is_closed { None } else { desk.free.pop() }?;
        let lane = self.places[place].get()?;
        desk.in_use += 1;
        Some(Taken { lanes: self, lane, place })
    }

    /// Waits until nobody uses or opens a lane, and closes all. False if that did not come to be before the deadline.
    pub(crate) fn close(&self, placeholder: &Placeholder, deadline: Instant) -> io::Result<bool> {
        let mut desk = self.desk();
        desk.is_closed = true;
        while desk.in_use > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            desk = self.changed.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        for lane in self.lanes().filter(|lane| lane.socket.expect_end()) {
            lane.socket.close(placeholder)?;
        }
        Ok(true)
    }

    /// Lanes may be opened to another worker, or to the same one anew. All were closed.
    pub(crate) fn reopen(&self) {
        *self.desk() = Desk::default();
    }

    /// Ends all lanes, so that those who wait for something there look up.
    pub(crate) fn end(&self) {
        for socket in self.lanes().filter(|lane| lane.socket.is_connected()).filter_map(|lane| lane.socket.get().ok()) {
            // One whose peer is gone has ended already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// In the child of a fork. Nobody else's lock is asked for.
    pub(crate) fn abandon(&self) {
        self.lanes().for_each(|lane| lane.socket.abandon());
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.places.iter().filter_map(OnceLock::get)
    }
}

impl Lane {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane that a thread has, until it is dropped.
pub(crate) struct Taken<'a> {
    lanes: &'a Lanes,
    lane: &'a Lane,
    place: usize,
}

impl Taken<'_> {
    /// Its number in frames.
    pub(crate) fn number(&self) -> u16 {
        self.place as u16 + 1
    }

    /// Sends all of `slices`, for as long as there are signs of life. [`io::ErrorKind::WouldBlock`] when there are none.
    pub(crate) fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let socket = self.lane.socket.get().map_err(|_| io::ErrorKind::NotConnected)?;
        let Ends { sealer, inlet } = &mut *self.lane.ends();
        // Those of the first connection say nothing about this one.
        let mut is_alive = || hear(inlet, socket);
        match sealer {
            Some(sealer) => sealer.send(socket, slices, &mut is_alive),
            None => send_while(socket, slices, &mut is_alive),
        }
    }

    /// Reads up to the reply for this thread, which nothing but signs of life may precede; none if the lane ends before.
    pub(crate) fn read(&self, wanted: Wanted, reply: &mut Vec<u8>) -> Result<Option<Arrived>, LinkError> {
        let (socket, mut ends) = (self.lane.socket.get()?, self.lane.ends());
        loop {
            let Some(bytes) = ends.inlet.head(socket)? else { return Ok(None) };
            let (head, length) = ReplyHead::decode(&bytes)?;
            if head.beat().is_some() && length == 0 {
                continue;
            }
            if head.sequence != wanted.sequence {
                return Err(UNASKED);
            }
            reply.clear();
            let landing = wanted.landing.filter(|landing| landing.fits(&head, length));
            read_body(&mut ends.inlet, socket, length, landing, reply)?;
            return Ok(Some((head, landing.is_some())));
        }
    }
}

/// Whether a worker has given a sign of life since somebody last listened: nothing else can come on a lane that sends.
fn hear(inlet: &mut Inlet, socket: BorrowedFd<'_>) -> bool {
    let mut is_heard = false;
    while inlet.has_bytes(socket) {
        let Ok(Some(bytes)) = inlet.head(socket) else { return false };
        let beat = ReplyHead::decode(&bytes).ok().and_then(|(head, length)| head.beat().filter(|_| length == 0));
        if beat.is_none() {
            return false;
        }
        is_heard = true;
    }
    is_heard
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut desk = self.lanes.desk();
        desk.in_use -= 1;
        desk.free.push(self.place);
        drop(desk);
        self.lanes.changed.notify_all();
    }
}
