//! Messages to the worker and its replies.
//!
//! The rule: a program is never left waiting and never told twice. The first sign that the worker is gone is said in one
//! line; every later call fails at once. What a kernel printed is written before the call returns that waited for it.
//! The failure of a message that no thread waited for is told by the next call that waits for commands.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use katydid_client::job::SupervisedSession;
use katydid_client::{life, output, session_mark};
use katydid_opencl_sys::Code;
use katydid_transport::{LinkError, ProgramLink, QuiesceGate, Staging};
use katydid_wire::codec::{Message, Reply};
use katydid_wire::frame::{MAX_PAYLOAD, ReplyHead};
use katydid_wire::handshake::SessionKind;
use katydid_wire::opencl::message::kdclOutput;

use crate::ffi::returns::LOST;
use crate::process::shim::shim;

/// The way to the worker.
pub(crate) struct Link {
    link: Box<dyn ProgramLink>,
    lost: AtomicBool,
    /// The first failure of a message that no thread waited for; 0: none.
    deferred: AtomicI32,
    /// How often it has led to another one.
    worker: AtomicU32,
}

/// What was learnt of one worker, in a word; nothing is known of another one.
#[derive(Debug, Default)]
pub(crate) struct PerWorker(AtomicU64);

impl PerWorker {
    /// What is known of a worker, by its number; 0: nothing.
    pub(crate) fn get(&self, worker: u32) -> u32 {
        Self::of(worker, self.0.load(Ordering::Relaxed))
    }

    /// What a word says of a worker.
    fn of(worker: u32, word: u64) -> u32 {
        if (word >> 32) as u32 == worker { word as u32 } else { 0 }
    }

    /// Learns something of a worker, out of what is known of it.
    pub(crate) fn learn(&self, worker: u32, new: impl Fn(u32) -> u32) {
        let next = |word| Some(u64::from(worker) << 32 | u64::from(new(Self::of(worker, word))));
        // The function always has a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

thread_local! {
    /// The encoded message and the reply of the call in progress, kept for their memory.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Link {
    pub(crate) fn new(link: Box<dyn ProgramLink>) -> Self {
        Self { link, lost: AtomicBool::new(false), deferred: AtomicI32::new(0), worker: AtomicU32::new(0) }
    }

    /// Sends a message and goes on.
    pub(crate) fn enqueue<M: Message>(&self, message: &M) -> Result<(), Code> {
        self.check()?;
        with_buffers(|request, _| {
            message.encode(request);
            check_size(request, message.tail())?;
            self.link.enqueue(M::OPCODE, 0, &[request, message.tail()]).map_err(|error| self.fail(M::NAME, &error))
        })
    }

    /// Sends a message and waits for its reply.
    pub(crate) fn call<M: Message>(&self, message: &M) -> Result<M::Reply, Code> {
        self.exchange(message, |payload| M::Reply::decode(payload).ok())
    }

    /// The same, reading the reply's bytes where they lie.
    pub(crate) fn exchange<M: Message, R>(
        &self,
        message: &M,
        read: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Result<R, Code> {
        self.check()?;
        with_buffers(|request, reply| {
            message.encode(request);
            check_size(request, message.tail())?;
            let head = self
                .link
                .call(M::OPCODE, 0, &[request, message.tail()], reply)
                .map_err(|error| self.fail(M::NAME, &error))?;
            self.note(&head);
            let Ok((payload, printed)) = head.split(reply) else { return Err(self.broken(M::NAME)) };
            output::write(printed.stdout, printed.stderr);
            if head.output != 0 && reply.len() == MAX_PAYLOAD {
                self.print_rest()?;
            }
            Code(head.status.cast_signed()).ok()?;
            read(payload).ok_or_else(|| self.broken(M::NAME))
        })
    }

    /// Prints what a full reply had no room for.
    fn print_rest(&self) -> Result<(), Code> {
        let mut reply = Vec::new();
        loop {
            let head = self
                .link
                .call(kdclOutput::OPCODE, 0, &[], &mut reply)
                .map_err(|error| self.fail(kdclOutput::NAME, &error))?;
            self.note(&head);
            let Ok((_, printed)) = head.split(&reply) else { return Err(self.broken(kdclOutput::NAME)) };
            output::write(printed.stdout, printed.stderr);
            if reply.len() < MAX_PAYLOAD {
                return Ok(());
            }
        }
    }

    fn note(&self, head: &ReplyHead) {
        if head.deferred != 0 {
            let code = head.deferred.cast_signed();
            let _ = self.deferred.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// For a call that waits for commands: what went wrong with one that no thread waited for.
    pub(crate) fn earlier(&self) -> Result<(), Code> {
        Code(self.deferred.swap(0, Ordering::Relaxed)).ok()
    }

    /// A number for the worker at the other end: another one may have other devices behind the same names.
    pub(crate) fn worker(&self) -> u32 {
        self.worker.load(Ordering::Acquire)
    }

    /// The memory that is shared with the worker; none on a stream.
    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.link.staging()
    }

    /// Has at least so many bytes of memory behind the addresses that both sides have.
    pub(crate) fn lengthen_pinned(&self, length: u64) -> std::io::Result<()> {
        self.link.lengthen_pinned(length)
    }

    /// As [`ProgramLink::enable_fast_path`].
    pub(crate) fn enable_fast_path(&self) {
        self.link.enable_fast_path();
    }

    /// In the child of a fork: lets go of the connection without a word to the worker.
    pub(crate) fn abandon(&self) {
        self.link.abandon();
    }

    fn check(&self) -> Result<(), Code> {
        if self.lost.load(Ordering::Relaxed) { Err(LOST) } else { Ok(()) }
    }

    /// A reply that does not fit its message: the two sides disagree, so the session is over.
    #[cold]
    pub(crate) fn broken(&self, what: &str) -> Code {
        self.lose(&format!("the server's answer to {what} makes no sense; are both of the same release?"))
    }

    #[cold]
    pub(crate) fn fail(&self, what: &str, error: &LinkError) -> Code {
        match error {
            LinkError::TooManyThreads { .. } => {
                output::say(format_args!("{what}: {error}"));
                Code::OUT_OF_HOST_MEMORY
            }
            LinkError::Forked => LOST,
            _ => self.lose(&format!("the session ended during {what}: {error}")),
        }
    }

    fn lose(&self, why: &str) -> Code {
        self.lost.store(true, Ordering::Relaxed);
        session_mark::remove();
        if life::lose() {
            output::say(format_args!("{why}; every further OpenCL call returns {LOST}"));
        }
        LOST
    }
}

impl SupervisedSession for Link {
    fn kind(&self) -> SessionKind {
        SessionKind::OPENCL
    }

    fn quiesce_gate(&self) -> Option<&dyn QuiesceGate> {
        self.link.quiesce_gate()
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn leaving(&self) {
        self.worker.fetch_add(1, Ordering::AcqRel);
        if let Ok(shim) = shim() {
            shim.parcels.let_go();
        }
    }

    fn broke(&self, what: &str, error: &LinkError) {
        let _ = self.fail(what, error);
    }

    fn give_up(&self, why: &str) {
        let _ = self.lose(&format!("the session has ended: {why}"));
        if let Some(gate) = self.quiesce_gate() {
            gate.give_up();
        }
    }
}

/// What no frame has room for is refused before it gets to the link, which would be lost: a list or a name of the program's that is
/// longer than any driver takes.
fn check_size(request: &[u8], tail: &[u8]) -> Result<(), Code> {
    if request.len() + tail.len() > MAX_PAYLOAD { Err(Code::OUT_OF_HOST_MEMORY) } else { Ok(()) }
}

/// Runs `body` with empty buffers of this thread. A call inside a call gets fresh ones.
fn with_buffers<R>(body: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> R) -> R {
    /// Room for the largest reply is kept: a thread that reads much would otherwise fault in fresh pages every time.
    const MAX_KEPT_BYTES: usize = 2 << 20;
    let (mut request, mut reply) = BUFFERS.try_with(RefCell::take).unwrap_or_default();
    request.clear();
    reply.clear();
    let result = body(&mut request, &mut reply);
    request.shrink_to(MAX_KEPT_BYTES);
    reply.shrink_to(MAX_KEPT_BYTES);
    let _ = BUFFERS.try_with(|buffers| buffers.replace((request, reply)));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_one_worker_is_not_of_another() {
        let known = PerWorker::default();
        assert_eq!(known.get(0), 0);
        known.learn(0, |bits| bits | 2);
        known.learn(0, |bits| bits | 5);
        assert_eq!((known.get(0), known.get(1)), (7, 0));
        known.learn(1, |bits| bits | 8);
        assert_eq!((known.get(0), known.get(1)), (0, 8));
    }
}
