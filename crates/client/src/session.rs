//! One session: the link to the worker, what is known of its health, and how messages become calls.
//!
//! The rule: a program never waits for ever, and hears of a loss once. The first sign that the worker is gone marks the session
//! lost and reports it in one line. Every later call fails at once, without touching the link. Device output that a reply carries
//! is written before the call returns.

pub mod api_code;
pub mod session_mark;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use katydid_transport::{
    LinkError, OrderingRules, ProgramLink, QuiesceGate, ReplyBuffer, Staging, StreamKey, in_batch,
};
use katydid_wire::codec::{Message, Reply};
use katydid_wire::frame::{MAX_PAYLOAD_BYTES, ReplyHead};
use katydid_wire::handshake::SessionKind;

use crate::job::SupervisedSession;
use crate::session::api_code::ApiCode;
use crate::{life, output};

/// The session of this process, for one API, given by its type of result codes.
pub struct Session<C> {
    link: Box<dyn ProgramLink>,
    lost: AtomicBool,
    /// The failure of an enqueued call that came with a reply that could not report it. A later call returns it.
    deferred: AtomicU32,
    moves: AtomicU64,
    on_fault: FaultHandler<C>,
    on_leave: fn(),
}

/// Called with an error that has ruined a context: the context's wire id, and the error.
pub type FaultHandler<C> = fn(u32, C);

/// The driver's result, and the reply, if it could be decoded.
type CallAnswer<C, M> = (C, Option<<M as Message>::Reply>);

type CallBuffers = (Vec<u8>, Vec<u8>);

thread_local! {
    /// Number of replies that this thread has waited for.
    static ROUND_TRIPS: Cell<u32> = const { Cell::new(0) };
    /// The encoded message and the reply of the call in progress, kept to reuse their memory. Boxed, so that taking them out and
    /// putting them back moves one word. More words are read in larger units than they were written in, which takes longer than
    /// all the rest of queueing a message.
    static BUFFERS: Cell<Option<Box<CallBuffers>>> = const { Cell::new(None) };
}

/// Returns how often the calling thread has waited for a worker, modulo 2³². On a network, a call costs the difference that it
/// makes, times the round-trip time.
pub fn round_trips() -> u32 {
    ROUND_TRIPS.try_with(Cell::get).unwrap_or(0)
}

/// Notes that the calling thread is about to wait.
fn count_round_trip() {
    // For a thread whose thread-locals are gone, no code reads the count any more.
    let _ = ROUND_TRIPS.try_with(|count| count.set(count.get().wrapping_add(1)));
}

impl<C: ApiCode> Session<C> {
    /// Creates a session over an open link.
    ///
    /// `on_fault` is called before the call returns that brought the error. `on_leave` is called before the program is dumped,
    /// and releases memory that the program can do without.
    pub fn new(link: Box<dyn ProgramLink>, on_fault: FaultHandler<C>, on_leave: fn()) -> Self {
        let (lost, deferred, moves) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU64::new(0));
        Self { link, lost, deferred, moves, on_fault, on_leave }
    }

    /// Returns a number that grows when the session leaves its worker, and when it resumes with one. Another worker may have
    /// another driver and other devices, so earlier facts of a driver may no longer hold.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Sends a message without a reply. It is executed after everything sent before it, by any thread.
    ///
    /// # Errors
    ///
    /// [`ApiCode::WORKER_LOST`] when the worker is gone.
    #[inline]
    pub fn enqueue<M: Message>(&self, context: u32, message: &M) -> Result<(), C> {
        self.enqueue_by(message, |parts| self.link.enqueue(M::OPCODE, context, parts))
    }

    /// Sends a message like [`Session::enqueue`], if its effect is not visible at once: it wakes no worker that sleeps
    /// ([`CallLink::enqueue_lazily`](katydid_transport::CallLink::enqueue_lazily)).
    ///
    /// # Errors
    ///
    /// As [`Session::enqueue`].
    pub fn enqueue_lazily<M: Message>(&self, context: u32, message: &M) -> Result<(), C> {
        self.enqueue_by(message, |parts| self.link.enqueue_lazily(M::OPCODE, context, parts))
    }

    #[inline]
    fn enqueue_by<M: Message>(
        &self,
        message: &M,
        enqueue: impl FnOnce(&[&[u8]]) -> Result<(), LinkError>,
    ) -> Result<(), C> {
        self.check()?;
        with_buffers(|request, _| {
            message.encode(request);
            check_size(request, message.tail())?;
            enqueue(&[request, message.tail()]).map_err(|error| self.fail(M::NAME, &error))
        })
    }

    /// Sends a message and waits for its reply.
    ///
    /// # Errors
    ///
    /// The driver's error; an enqueued call's failure when the driver returned none; [`ApiCode::WORKER_LOST`].
    pub fn call<M: Message>(&self, context: u32, message: &M) -> Result<M::Reply, C> {
        self.good::<M>(self.call_any(context, message)?)
    }

    /// Makes a call like [`Session::call`], for the library's own needs: an enqueued call's failure is left to a call of the
    /// program.
    ///
    /// # Errors
    ///
    /// The driver's error; [`ApiCode::WORKER_LOST`].
    pub fn ask<M: Message>(&self, context: u32, message: &M) -> Result<M::Reply, C> {
        self.good::<M>(self.send(context, message, false)?)
    }

    /// Returns the reply of a call that succeeded.
    fn good<M: Message>(&self, (status, reply): CallAnswer<C, M>) -> Result<M::Reply, C> {
        status.check()?;
        reply.ok_or_else(|| self.broken(M::NAME))
    }

    /// Makes a call like [`Session::call`], whose reply consists only of exactly as many bytes as `buffer` holds.
    ///
    /// # Errors
    ///
    /// As [`Session::call`].
    pub fn call_into<M: Message>(&self, context: u32, message: &M, buffer: ReplyBuffer) -> Result<(), C> {
        self.check()?;
        with_buffers(|request, reply| {
            message.encode(request);
            check_size(request, message.tail())?;
            count_round_trip();
            let (head, landed) = self
                .link
                .call_into(M::OPCODE, context, &[request, message.tail()], reply, buffer)
                .map_err(|error| self.fail(M::NAME, &error))?;
            let elsewhere = if landed { buffer.size() } else { 0 };
            let reports = reports_earlier::<C, M>();
            let (status, _) = self.receive((context, M::NAME), &head, (reply, elsewhere), reports)?;
            status.check()?;
            if landed { Ok(()) } else { Err(self.broken(M::NAME)) }
        })
    }

    /// Makes a call like [`Session::call`], for messages whose reply matters after a failure too, such as a compiler's log.
    ///
    /// # Errors
    ///
    /// [`ApiCode::WORKER_LOST`], and an enqueued call's failure when this one succeeded.
    pub fn call_any<M: Message>(&self, context: u32, message: &M) -> Result<CallAnswer<C, M>, C> {
        self.send(context, message, reports_earlier::<C, M>())
    }

    /// Makes a call like [`Session::call`], with a function that reads the reply's bytes in place. If it returns none, the
    /// session ends.
    ///
    /// # Errors
    ///
    /// As [`Session::call`].
    pub fn call_and_read<M: Message, R>(
        &self,
        context: u32,
        message: &M,
        read: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Result<R, C> {
        self.exchange(context, message, reports_earlier::<C, M>(), |status, payload| {
            status.check()?;
            read(payload).ok_or_else(|| self.broken(M::NAME))
        })
    }

    /// Sends a message and waits for its reply. With `reports`, the result may be an earlier call's failure.
    fn send<M: Message>(&self, context: u32, message: &M, reports: bool) -> Result<CallAnswer<C, M>, C> {
        self.exchange(context, message, reports, |status, payload| Ok((status, M::Reply::decode(payload).ok())))
    }

    /// Sends a message and waits for its reply, whose status and payload go to a function.
    fn exchange<M: Message, R>(
        &self,
        context: u32,
        message: &M,
        reports: bool,
        take: impl FnOnce(C, &[u8]) -> Result<R, C>,
    ) -> Result<R, C> {
        self.check()?;
        with_buffers(|request, reply| {
            message.encode(request);
            check_size(request, message.tail())?;
            count_round_trip();
            let head = self
                .link
                .call(M::OPCODE, context, &[request, message.tail()], reply)
                .map_err(|error| self.fail(M::NAME, &error))?;
            let (status, payload) = self.receive((context, M::NAME), &head, (reply, 0), reports)?;
            take(status, payload)
        })
    }

    /// Handles the parts of a reply beside its message, of which `elsewhere` bytes went somewhere else.
    fn receive<'a>(
        &self,
        (context, name): (u32, &'static str),
        head: &ReplyHead,
        (reply, elsewhere): (&'a [u8], usize),
        reports: bool,
    ) -> Result<(C, &'a [u8]), C> {
        let Ok((payload, printed)) = head.split(reply) else { return Err(self.broken(name)) };
        output::write(printed.stdout, printed.stderr);
        if head.output != 0 && reply.len() + elsewhere == MAX_PAYLOAD_BYTES {
            self.print_overflow(context)?;
        }
        for code in [head.status, head.deferred].map(C::from_wire) {
            if code.is_fault() {
                (self.on_fault)(context, code);
            }
        }
        Ok((self.result_of_reply(head, reports)?, payload))
    }

    /// Prints device output that a full reply had no room for, before the call returns that waited for the device.
    fn print_overflow(&self, context: u32) -> Result<(), C> {
        let mut reply = Vec::new();
        loop {
            count_round_trip();
            let head = self
                .link
                .call(C::Output::OPCODE, context, &[], &mut reply)
                .map_err(|error| self.fail(C::Output::NAME, &error))?;
            let Ok((_, printed)) = head.split(&reply) else { return Err(self.broken(C::Output::NAME)) };
            output::write(printed.stdout, printed.stderr);
            self.defer(C::from_wire(head.deferred));
            if reply.len() < MAX_PAYLOAD_BYTES {
                return Ok(());
            }
        }
    }

    /// Returns the status of a call. With `reports`, an earlier call's failure outranks success, and "not ready", which is an
    /// answer and not a failure.
    fn result_of_reply(&self, head: &ReplyHead, reports: bool) -> Result<C, C> {
        let (status, earlier) = (C::from_wire(head.status), C::from_wire(head.deferred));
        // A fault of a context is reported by that context's own calls from now on.
        if reports || !earlier.is_fault() {
            self.defer(earlier);
        }
        if reports && status.yields_to_earlier() {
            self.take_deferred()?;
        }
        Ok(status)
    }

    /// Keeps an earlier call's failure for the next call that can report it, unless there is one already. There is nearly always
    /// none, so this and the next function then avoid locked instructions.
    fn defer(&self, code: C) {
        if code != C::SUCCESS {
            let _ = self.deferred.compare_exchange(0, code.to_wire(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes the first failure of an enqueued call that no call has reported yet.
    ///
    /// # Errors
    ///
    /// That failure.
    pub fn take_deferred(&self) -> Result<(), C> {
        let code = match self.deferred.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.deferred.swap(0, Ordering::Relaxed),
        };
        C::from_wire(code).check()
    }

    /// Returns the number of messages enqueued so far. Memory freed at one count is unused once a later synchronization has
    /// ended.
    pub fn enqueued(&self) -> u64 {
        self.link.enqueued()
    }

    /// Begins a batch of work for a stream: until the value is dropped, other threads do not send what would come between two of
    /// its messages.
    ///
    /// # Errors
    ///
    /// [`ApiCode::WORKER_LOST`] when the worker is gone.
    pub fn batch(&self, stream_key: StreamKey, rules: OrderingRules) -> Result<Batch<'_, C>, C> {
        let number = self.link.begin_batch(stream_key, rules).map_err(|error| self.fail("a copy", &error))?;
        Ok(Batch { session: self, number })
    }

    /// Waits until the calling thread's messages would be sent at once.
    ///
    /// # Errors
    ///
    /// [`ApiCode::WORKER_LOST`] when the worker is gone.
    pub fn wait_until_open(&self) -> Result<(), C> {
        self.check()?;
        self.link.wait_until_open().map_err(|error| self.fail("a pause", &error))
    }

    /// Disables spinning: from now on, threads that wait sleep at once.
    pub fn disable_spin(&self) {
        self.link.disable_spin();
    }

    /// Returns whether several threads send messages.
    pub fn is_multithreaded(&self) -> bool {
        self.link.is_multithreaded()
    }

    /// Returns the staging memory that both sides share, for bulk copies.
    pub fn staging(&self) -> Option<&Staging> {
        self.link.staging()
    }

    /// Returns how many threads may share a copy of `bytes`, each with its own connection; 0 if that does not pay.
    pub fn bulk_connections_for(&self, bytes: u64) -> usize {
        self.link.bulk_connections_for(bytes)
    }

    /// Makes the memory of the pinned arena at least `length` bytes long, if the sides share some.
    ///
    /// # Errors
    /// Error that the system returned.
    pub fn lengthen_pinned(&self, length: u64) -> std::io::Result<()> {
        self.link.lengthen_pinned(length)
    }

    /// Waits like [`ReclaimLink::next_reclaim_notice`](katydid_transport::ReclaimLink::next_reclaim_notice).
    ///
    /// # Errors
    ///
    /// [`ApiCode::WORKER_LOST`]; the program's own calls report the loss.
    pub fn next_reclaim_notice(&self) -> Result<u32, C> {
        self.check()?;
        self.link.next_reclaim_notice().map_err(|_| C::WORKER_LOST)
    }

    /// Prepares the cheap way to queue frames: see [`CallLink::enable_fast_path`](katydid_transport::CallLink::enable_fast_path).
    pub fn enable_fast_path(&self) {
        self.link.enable_fast_path();
    }

    /// Returns whether the worker is gone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// In the child of a fork: abandons the connection without a message to the worker.
    pub fn abandon(&self) {
        self.link.abandon();
    }

    fn check(&self) -> Result<(), C> {
        if self.is_lost() { Err(C::WORKER_LOST) } else { Ok(()) }
    }

    /// Ends the session after a reply that does not fit its message: the two sides disagree.
    #[cold]
    pub fn broken(&self, what: &str) -> C {
        self.lose(&format!("the server's answer to {what} makes no sense; are both of the same release?"))
    }

    /// Translates the error of a link: the caller is at fault, or the session ends.
    #[cold]
    pub fn fail(&self, what: &str, error: &LinkError) -> C {
        match error {
            LinkError::TooManyThreads { .. } => {
                output::report(format_args!("{what}: {error}"));
                C::OUT_OF_MEMORY
            }
            LinkError::Forked => C::FORKED_CHILD,
            LinkError::Held => C::LOCK_HELD,
            _ => self.lose(&format!("the session ended during {what}: {error}")),
        }
    }

    fn lose(&self, why: &str) -> C {
        // While the process exits, the worker may well end first. That is not reported.
        self.lost.store(true, Ordering::Relaxed);
        session_mark::remove();
        if life::lose() {
            output::report(format_args!("{why}; every further {} call returns {}", C::API, C::WORKER_LOST));
        }
        C::WORKER_LOST
    }
}

/// A batch of messages ([`Session::batch`]).
pub struct Batch<'a, C> {
    session: &'a Session<C>,
    number: u64,
}

impl<C> Batch<'_, C> {
    /// Runs `body`, whose messages belong to the batch. Any thread may run it. `body` must not wait for what another thread may
    /// hold while it sends.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        in_batch(self.number, body)
    }
}

impl<C> Drop for Batch<'_, C> {
    fn drop(&mut self) {
        self.session.link.end_batch(self.number);
    }
}

impl<C: ApiCode> SupervisedSession for Session<C> {
    fn kind(&self) -> SessionKind {
        C::KIND
    }

    fn quiesce_gate(&self) -> Option<&dyn QuiesceGate> {
        self.link.quiesce_gate()
    }

    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }

    fn note_broken(&self, what: &str, error: &LinkError) {
        let _ = self.fail(what, error);
    }

    fn leaving(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
        (self.on_leave)();
    }

    fn resumed(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    fn give_up(&self, why: &str) {
        let _ = self.lose(&format!("the session has ended: {why}"));
        if let Some(gate) = self.quiesce_gate() {
            gate.give_up();
        }
    }
}

/// Returns whether the reply to a message reports the failure of an earlier call. It does not where it reports what happened to
/// an object.
const fn reports_earlier<C: ApiCode, M: Message>() -> bool {
    C::CALLS_REPORT_EARLIER && !M::CHANGES_OBJECTS
}

/// Refuses messages that fit no frame, where the API has a code for that.
fn check_size<C: ApiCode>(request: &[u8], tail: &[u8]) -> Result<(), C> {
    match C::TOO_LONG {
        Some(code) if request.len() + tail.len() > MAX_PAYLOAD_BYTES => Err(code),
        _ => Ok(()),
    }
}

/// Runs `body` with empty buffers of this thread. A nested call (an upcall's), or one after the thread's locals are gone, gets
/// fresh ones.
fn with_buffers<R>(body: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> R) -> R {
    /// The capacity for the largest reply is kept: a thread that copies much would otherwise fault in fresh pages every time.
    const MAX_KEPT_BUFFER_BYTES: usize = 2 << 20;
    let mut buffers = BUFFERS.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let (request, reply) = &mut *buffers;
    request.clear();
    reply.clear();
    let result = body(request, reply);
    request.shrink_to(MAX_KEPT_BUFFER_BYTES);
    if reply.capacity() > MAX_KEPT_BUFFER_BYTES {
        *reply = Vec::new();
    }
    let _ = BUFFERS.try_with(|slot| slot.set(Some(buffers)));
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_cuda_sys::CUresult;
    use katydid_opencl_sys::Code;
    use katydid_transport::{BatchLink, CallLink, QuiesceLink, ReclaimLink};
    use katydid_wire::message::{
        cuCtxSynchronize, kdContextLimit, kdCopyIn, kdCopyOut, kdDeviceGrow, kdDeviceInfo, kdDeviceShrink, kdOutput,
        kdUpcallNext,
    };
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    type Answer = Result<(ReplyHead, Vec<u8>), LinkError>;

    /// Opcode, context and payload of every frame.
    type Sent = Arc<Mutex<Vec<(u16, u32, Vec<u8>)>>>;

    /// A link that answers from a list and notes sent frames.
    #[derive(Default)]
    struct Script {
        answers: Mutex<VecDeque<Answer>>,
        sent: Sent,
        enqueued: AtomicU64,
    }

    impl CallLink for Script {
        fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
            self.sent.lock().unwrap().push((opcode, context, parts.concat()));
            self.enqueued.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn call(&self, op: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
            self.enqueue(op, context, parts)?;
            let (head, body) = self.answers.lock().unwrap().pop_front().unwrap()?;
            *reply = body;
            Ok(head)
        }

        fn enqueued(&self) -> u64 {
            self.enqueued.load(Ordering::Relaxed)
        }
    }

    impl BatchLink for Script {
        fn staging(&self) -> Option<&Staging> {
            None
        }
    }

    impl QuiesceLink for Script {
        fn abandon(&self) {}
    }

    impl ReclaimLink for Script {}

    fn session<C: ApiCode>(answers: impl IntoIterator<Item = Answer>) -> Session<C> {
        let answers = Mutex::new(answers.into_iter().collect());
        Session::new(Box::new(Script { answers, ..Script::default() }), |_, _| (), || ())
    }

    fn answer(status: CUresult, deferred: CUresult, body: &[u8]) -> Answer {
        let head = ReplyHead { status: status.0, deferred: deferred.0, output: 0, thread: 1, sequence: 0 };
        Ok((head, body.to_vec()))
    }

    const FINE: CUresult = CUresult::SUCCESS;
    const BAD: CUresult = CUresult::ERROR_INVALID_VALUE;

    #[test]
    fn messages_travel_with_their_context_and_tail() {
        let script = Script::default();
        let sent = Arc::clone(&script.sent);
        let session = Session::<CUresult>::new(Box::new(script), |_, _| (), || ());
        session.enqueue(7, &kdCopyIn { destination: 1, stream: 2, data: b"abc" }).unwrap();
        let sent = sent.lock().unwrap();
        assert_eq!(round_trips(), 0, "no call waits for what is only sent");
        assert_eq!((sent[0].0, sent[0].1), (kdCopyIn::OPCODE, 7));
        assert_eq!(sent[0].2, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b', b'c']);
        assert_eq!(session.enqueued(), 1);
    }

    #[test]
    fn a_reply_is_read_and_its_status_returned() {
        let body = [5u64.to_le_bytes(), 9u64.to_le_bytes()].concat();
        let session = session::<CUresult>([answer(FINE, FINE, &body), answer(BAD, FINE, &[])]);
        let reply = session.call(0, &kdDeviceInfo { device: 0 }).unwrap();
        assert_eq!((reply.free, reply.total), (5, 9));
        assert_eq!(session.call(0, &kdDeviceInfo { device: 0 }), Err(BAD));
        assert_eq!(round_trips(), 2);
    }

    #[test]
    fn a_deferred_failure_is_told_once_by_the_next_call_that_succeeds() {
        let late = CUresult::ERROR_INVALID_HANDLE;
        let session = session::<CUresult>([
            answer(BAD, late, &[]),
            answer(FINE, FINE, &[]),
            answer(FINE, FINE, &[]),
            answer(CUresult::ERROR_NOT_READY, late, &[]),
        ]);
        let synchronize = || session.call(0, &cuCtxSynchronize {}).map(drop);
        assert_eq!([(); 4].map(|()| synchronize()), [Err(BAD), Err(late), Ok(()), Err(late)]);
    }

    #[test]
    fn a_call_with_effects_gets_its_own_result_and_the_next_call_gets_an_earlier_failure() {
        let (late, later) = (CUresult::ERROR_INVALID_HANDLE, CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        let session = session::<CUresult>([
            answer(FINE, late, &[]),
            answer(FINE, later, &[]),
            answer(BAD, FINE, &[]),
            answer(FINE, later, &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            answer(FINE, FINE, &[]),
            answer(FINE, FINE, &[]),
        ]);
        let grow = kdDeviceGrow { device: 0, address: 0, size: 0 };
        assert_eq!(session.call(0, &grow).map(drop), Ok(()));
        assert_eq!(session.call(0, &kdDeviceShrink { device: 0, address: 0, size: 0 }).map(drop), Ok(()));
        assert_eq!(session.call(0, &grow).map(drop), Err(BAD));
        assert_eq!(session.ask(0, &kdUpcallNext { done: 0 }).map(|next| next.token), Ok(5));
        let synchronize = || session.call(0, &cuCtxSynchronize {}).map(drop);
        assert_eq!([(); 2].map(|()| synchronize()), [Err(late), Ok(())]);
    }

    #[test]
    fn a_reply_full_of_output_is_followed_by_questions_for_the_rest() {
        // The output itself is empty; all that matters is that the reply was full.
        let full = |payload: &[u8]| {
            let head = ReplyHead { status: 0, deferred: 0, output: 4, thread: 1, sequence: 0 };
            Ok((head, [payload, &0u32.to_le_bytes()].concat()))
        };
        let data = vec![0; MAX_PAYLOAD_BYTES - 8];
        let reply = [&(data.len() as u32).to_le_bytes(), &data[..]].concat();
        let answers = [full(&reply), full(&[0; MAX_PAYLOAD_BYTES - 4]), full(&[])];
        let script = Script { answers: Mutex::new(answers.into_iter().collect()), ..Script::default() };
        let sent = Arc::clone(&script.sent);
        let message = kdCopyOut { source: 0, size: data.len() as u32, stream: 0 };
        assert_eq!(
            Session::<CUresult>::new(Box::new(script), |_, _| (), || ()).call(0, &message).unwrap().data.len(),
            data.len()
        );
        let opcodes: Vec<_> = sent.lock().unwrap().iter().map(|frame| frame.0).collect();
        assert_eq!(opcodes, [kdCopyOut::OPCODE, kdOutput::OPCODE, kdOutput::OPCODE]);
    }

    #[test]
    fn a_lost_worker_is_not_asked_again() {
        let session = session::<CUresult>([Err(LinkError::Closed)]);
        assert_eq!(session.call(0, &cuCtxSynchronize {}).map(drop), Err(CUresult::WORKER_LOST));
        assert!(session.is_lost());
        assert_eq!(session.call(0, &cuCtxSynchronize {}).map(drop), Err(CUresult::WORKER_LOST));
        assert_eq!(session.enqueue(0, &kdCopyIn { destination: 1, stream: 2, data: b"" }), Err(CUresult::WORKER_LOST));
    }

    #[test]
    fn a_reply_that_makes_no_sense_ends_the_session() {
        let session = session::<CUresult>([answer(FINE, FINE, &[1, 2, 3])]);
        assert_eq!(session.call(0, &kdContextLimit { limit: 0 }).map(drop), Err(CUresult::WORKER_LOST));
        assert!(session.is_lost());
    }

    #[test]
    fn an_error_that_ruins_a_context_is_announced_others_are_not() {
        static FAULTS: Mutex<Vec<(u32, CUresult)>> = Mutex::new(Vec::new());
        let fault = CUresult::ERROR_ILLEGAL_ADDRESS;
        let assert = CUresult::ERROR_ASSERT;
        let answers = [answer(BAD, FINE, &[]), answer(FINE, fault, &[]), answer(assert, FINE, &[])];
        let answers = answers.into_iter().chain([answer(FINE, assert, &[]), answer(FINE, FINE, &[])]);
        let script = Script { answers: Mutex::new(answers.collect()), ..Script::default() };
        let session =
            Session::new(Box::new(script), |context, code| FAULTS.lock().unwrap().push((context, code)), || ());
        for context in 1..=3 {
            assert!(session.call(context, &cuCtxSynchronize {}).is_err());
        }
        assert!(session.call(4, &kdDeviceGrow { device: 0, address: 0, size: 0 }).is_ok());
        assert!(session.call(5, &cuCtxSynchronize {}).is_ok(), "not the one that is ruined");
        assert_eq!(*FAULTS.lock().unwrap(), [(2, fault), (3, assert), (4, assert)]);
    }

    #[test]
    fn a_failure_with_a_log_tells_both() {
        let session = session::<CUresult>([answer(BAD, FINE, &[3, 0, 0, 0, 0, 0, 0, 0])]);
        let (status, reply) = session.call_any(0, &kdContextLimit { limit: 0 }).unwrap();
        assert_eq!((status, reply.map(|reply| reply.value)), (BAD, Some(3)));
    }

    #[test]
    fn a_session_of_opencl_reports_a_deferred_failure_when_it_is_asked() {
        let late = Code::OUT_OF_RESOURCES;
        let reply = |deferred: Code| {
            let head = ReplyHead { status: 0, deferred: deferred.to_wire(), output: 0, thread: 1, sequence: 0 };
            Ok((head, Vec::new()))
        };
        let session = session::<Code>([reply(late), reply(Code::OUT_OF_HOST_MEMORY), reply(Code::SUCCESS)]);
        let call = || session.call(0, &cuCtxSynchronize {}).map(drop);
        assert_eq!([(); 3].map(|()| call()), [Ok(()); 3]);
        assert_eq!([(); 2].map(|()| session.take_deferred()), [Err(late), Ok(())], "the first one, once");
    }

    #[test]
    fn a_call_too_long_for_a_frame_is_refused_where_the_api_has_a_code() {
        let session = session::<Code>([]);
        let data = vec![0; MAX_PAYLOAD_BYTES + 1];
        let sent = session.enqueue(0, &kdCopyIn { destination: 1, stream: 2, data: &data });
        assert_eq!((sent, session.is_lost()), (Err(Code::OUT_OF_HOST_MEMORY), false));
    }
}
