//! Bringing a session to rest, and having the main loop do what a companion wants while it is.
//!
//! At rest nothing is in flight: every frame that the program has sent is executed, every call answered, every stream
//! at its end. One thing may go on: the program's upcall thread waits for a function that is not due (`upcalls`).
//! A stream that does not come to its end in time is named, and the session goes on as if nobody had asked.
//!
//! Orders reach the main loop by interrupting the link ([`Switch::interrupt`]), so that a session which nobody keeps pays
//! for one comparison a frame.

#![expect(unsafe_code, reason = "asks the driver about its streams")]

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use katydid_cuda_sys::{CU_STREAM_LEGACY, CUresult, CUstream};
use katydid_transport::Switch;

use crate::fault::SessionError;
use crate::session::Session;

/// Shortest and longest pause between two looks at work that does not end.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Why a session is not at rest. It goes on as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestError {
    /// Frames that were announced have not come, or not been executed.
    #[error("{executed} of the program's {sent} frames were executed in the time given; try again, or give more time")]
    Behind {
        /// Frames that the program has sent.
        sent: u64,
        /// Frames that the worker has taken.
        executed: u64,
    },
    /// Calls that wait for the GPU, or for each other.
    #[error("{calls} calls of the program did not end in the time given")]
    Calls {
        /// How many.
        calls: u64,
    },
    /// The program runs a function for the GPU, and does not end it.
    #[error("a host function that the GPU waits for did not end in the time given")]
    Upcall,
    /// Work of the GPU that does not end.
    #[error(
        "stream {stream} of context {context} did not come to its end in the time given: a kernel in it runs on, or it \
         waits for a value that nobody writes"
    )]
    Stream {
        /// Wire id of its context.
        context: u32,
        /// Wire id; 1 is the default stream, 2 the default streams of threads.
        stream: u32,
    },
    /// An error that no checkpoint can keep.
    #[error("context {context} is ruined by error {}, which only its end can repair", code.0)]
    Faulted {
        /// Wire id of the context.
        context: u32,
        /// The driver's code.
        code: CUresult,
    },
    /// The session has ended meanwhile.
    #[error("the session has ended")]
    Ended,
}

/// What the main loop is to do.
pub(crate) enum Order {
    /// Come to rest when `frames` frames were executed, and stay there.
    Rest { frames: u64, deadline: Instant, answer: SyncSender<Result<u64, RestError>> },
    /// Something that needs a session at rest.
    Work(Box<dyn FnOnce(&mut Session) + Send>),
    /// Execute frames again.
    Go,
}

/// Gives orders to the main loop of a session. Those of one session come from one thread at a time.
#[derive(Clone)]
pub struct Control {
    orders: Sender<Order>,
    switch: Switch,
}

impl Control {
    /// Brings the session to rest once the program's first `frames` frames are executed, within `patience`. Returns
    /// how many have been in all, those of upcalls that had to end included.
    ///
    /// # Errors
    ///
    /// [`RestError`]; the session goes on then.
    pub fn rest(&self, frames: u64, patience: Duration) -> Result<u64, RestError> {
        let (answer, answered) = sync_channel(1);
        let order = Order::Rest { frames, deadline: Instant::now() + patience, answer };
        self.orders.send(order).map_err(|_| RestError::Ended)?;
        self.switch.interrupt(frames);
        match answered.recv_timeout(patience) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                // The main loop takes the order now, and says how far it is.
                self.switch.interrupt(0);
                answered.recv().unwrap_or(Err(RestError::Ended))
            }
            Err(RecvTimeoutError::Disconnected) => Err(RestError::Ended),
        }
    }

    /// Has the main loop of a session at rest do `work`, and waits for its outcome; none if the session has ended.
    pub fn with<R: Send + 'static>(&self, work: impl FnOnce(&mut Session) -> R + Send + 'static) -> Option<R> {
        let (answer, answered) = sync_channel(1);
        let work = move |session: &mut Session| {
            // Who asked waits for the answer.
            let _ = answer.send(work(session));
        };
        self.orders.send(Order::Work(Box::new(work))).ok()?;
        answered.recv().ok()
    }

    /// Says that a snapshot of the session will be wanted soon: what can be found out while the program runs is.
    pub fn prepare(&self) {
        let prepare = |session: &mut Session| session.prepare_snapshot();
        if self.orders.send(Order::Work(Box::new(prepare))).is_ok() {
            self.switch.interrupt(0);
        }
    }

    /// Has a session at rest go on.
    pub fn go(&self) {
        // A session that has ended needs no order.
        let _ = self.orders.send(Order::Go);
    }

    /// The session's link.
    #[must_use]
    pub fn switch(&self) -> &Switch {
        &self.switch
    }
}

/// What came from the link while a session was brought to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// So many frames, which were executed.
    Frames(usize),
    /// The end.
    End,
}

/// Executes what the program's upcall thread sends meanwhile.
pub(crate) type Pump<'a> = &'a mut dyn FnMut(&mut Session) -> Result<Pumped, SessionError>;

impl Session {
    /// Lets a companion control this session, whose link is `switch`'s.
    pub fn control(&mut self, switch: Switch) -> Control {
        let (orders, received) = channel();
        self.orders = Some(Orders { received, later: None, switch: switch.clone() });
        Control { orders, switch }
    }

    /// Obeys until the session may go on. The link was interrupted for an order, which may have been obeyed by now.
    pub(crate) fn obey(&mut self, pump: Pump<'_>) -> Result<Pumped, SessionError> {
        let Some(mut orders) = self.orders.take() else { return Ok(Pumped::Frames(0)) };
        let outcome = self.obey_all(&mut orders, pump);
        self.orders = Some(orders);
        outcome
    }

    fn obey_all(&mut self, orders: &mut Orders, pump: Pump<'_>) -> Result<Pumped, SessionError> {
        let mut is_at_rest = false;
        loop {
            let order = match orders.later.take() {
                Some(order) => Some(order),
                None if is_at_rest => orders.received.recv().ok(),
                None => orders.received.try_recv().ok(),
            };
            match order {
                // The link was interrupted for another order: this one's turn comes with its frames, or in the end.
                Some(order @ Order::Rest { frames, deadline, .. })
                    if orders.switch.frames() < frames && Instant::now() < deadline =>
                {
                    orders.later = Some(order);
                    orders.switch.interrupt(frames);
                    return Ok(Pumped::Frames(0));
                }
                Some(Order::Rest { frames, deadline, answer }) => {
                    let executed = orders.switch.frames();
                    let behind = RestError::Behind { sent: frames, executed };
                    let result = if executed < frames { Err(behind) } else { self.come_to_rest(deadline, pump)? };
                    self.frames = orders.switch.frames();
                    is_at_rest = result.is_ok();
                    let ended = matches!(result, Err(RestError::Ended));
                    // A companion that is gone has been answered in another way.
                    let _ = answer.send(result.map(|()| self.frames));
                    if !is_at_rest {
                        return Ok(if ended { Pumped::End } else { Pumped::Frames(0) });
                    }
                }
                Some(Order::Work(work)) => work(self),
                Some(Order::Go) | None => return Ok(Pumped::Frames(0)),
            }
        }
    }

    /// Waits until nothing is in flight. What it finds twice in a row, with no frame between, stays so: nobody but
    /// work in flight sends anything.
    fn come_to_rest(&mut self, deadline: Instant, pump: Pump<'_>) -> Result<Result<(), RestError>, SessionError> {
        let (mut nap, mut clean) = (NAPS.0, 0);
        while clean < 2 {
            match pump(self)? {
                Pumped::End => return Ok(Err(RestError::Ended)),
                Pumped::Frames(0) => {}
                Pumped::Frames(_) => clean = 0,
            }
            let Err(busy) = self.look() else {
                clean += 1;
                continue;
            };
            clean = 0;
            if matches!(busy, RestError::Faulted { .. }) || Instant::now() >= deadline {
                return Ok(Err(busy));
            }
            thread::sleep(nap);
            nap = (nap * 2).min(NAPS.1);
        }
        Ok(self.synchronize())
    }

    /// Whether anything is in flight at this moment.
    fn look(&mut self) -> Result<(), RestError> {
        for (context, stream, handle) in self.all_streams() {
            let handle = self.in_context(context, handle)?;
            // SAFETY: the driver made the handle, or it is the default stream's, and the context is current.
            match unsafe { self.driver().cuStreamQuery(handle) } {
                CUresult::SUCCESS => {}
                CUresult::ERROR_NOT_READY => return Err(RestError::Stream { context, stream }),
                code => return Err(RestError::Faulted { context, code }),
            }
        }
        // After the streams: a call that does not end waits for one, and that is named.
        let waiting = u64::from(self.shared.upcalls.waiting().is_some());
        let calls = self.shared.calls_in_flight().saturating_sub(waiting);
        if calls > 0 {
            return Err(RestError::Calls { calls });
        }
        // A program that has announced functions asks for the next one, if not at once: that is awaited, or it would be a
        // frame on its way.
        let is_awaited = self.is_relayed && self.shared.upcalls.waiting().is_none();
        if is_awaited || self.shared.upcalls.is_busy() { Err(RestError::Upcall) } else { Ok(()) }
    }

    /// Every stream of every context: context, id, the driver's handle.
    fn all_streams(&self) -> Vec<(u32, u32, CUstream)> {
        let legacy = self.tables.contexts.iter().map(|(context, _, _)| (context, 1, CU_STREAM_LEGACY));
        let of_threads = self.thread_streams.iter().map(|((_, context), stream)| (*context, 2, *stream));
        let named = self.tables.streams.iter().map(|(id, stream, context)| (context, id, stream));
        let mut all: Vec<_> = legacy.chain(of_threads).chain(named).collect();
        // Contexts one after the other: changing them is what costs. Default streams may wait for named ones, which are
        // then to be told of.
        all.sort_by_key(|(context, id, _)| (*context, *id <= 2, *id));
        all
    }

    /// `handle`, after its context was made current.
    fn in_context(&mut self, context: u32, handle: CUstream) -> Result<CUstream, RestError> {
        self.enter_context(context).map(|()| handle).map_err(|fault| match fault {
            crate::fault::Fault::Cuda(code) => RestError::Faulted { context, code },
            crate::fault::Fault::Fatal(_) => RestError::Ended,
        })
    }

    /// What streams do not show: errors of the context, and text that the device printed.
    fn synchronize(&mut self) -> Result<(), RestError> {
        let contexts: Vec<u32> = self.tables.contexts.iter().map(|(context, _, _)| context).collect();
        for context in contexts {
            self.in_context(context, CUstream::NULL)?;
            // SAFETY: no argument; the context is current, and its streams are at their ends.
            let code = unsafe { self.driver().cuCtxSynchronize() };
            if code != CUresult::SUCCESS {
                return Err(RestError::Faulted { context, code });
            }
        }
        Ok(())
    }
}

/// The main loop's end of a [`Control`].
pub(crate) struct Orders {
    received: Receiver<Order>,
    /// Taken from there too early.
    later: Option<Order>,
    switch: Switch,
}
