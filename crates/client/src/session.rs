//! One session: the link to the worker, what is known of its health, and how messages become calls.
//!
//! The rule: a program is never left waiting and never told twice. The first sign that the worker is gone marks the
//! session lost and says so in one line; every later call fails at once, without touching the link. Device output that
//! a reply carries is written before the call returns.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use katydid_cuda_sys::CUresult;
use katydid_transport::{LinkError, ProgramLink, Staging};
use katydid_wire::codec::{Message, Reply};
use katydid_wire::frame::ReplyHead;

use crate::{life, output};

/// What calls return once the worker is gone. The driver knows no "connection lost"; of the errors that programs
/// treat as "this GPU cannot be used any more, by no fault of mine", this is the one that does not blame a kernel.
pub const LOST: CUresult = CUresult::ERROR_DEVICE_UNAVAILABLE;

/// The session of this process.
pub struct Session {
    link: Box<dyn ProgramLink>,
    lost: AtomicBool,
    /// An enqueued call's failure that came with a reply that was itself a failure; told to the next call.
    deferred: AtomicU32,
    /// Messages enqueued so far: what a synchronisation has to wait for.
    enqueued: AtomicU64,
    on_fault: FaultHandler,
}

/// Is told of an error that has ruined a context: its wire id, and the error.
pub type FaultHandler = fn(u32, CUresult);

thread_local! {
    /// The encoded message and the reply of the call in progress, kept for their memory.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Session {
    /// A session over a link that is up. `on_fault` is called before the call returns that brought the error.
    pub fn new(link: Box<dyn ProgramLink>, on_fault: FaultHandler) -> Self {
        let (lost, deferred, enqueued) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU64::new(0));
        Self { link, lost, deferred, enqueued, on_fault }
    }

    /// Sends a message nobody answers. It is executed after everything sent before it, by any thread.
    ///
    /// # Errors
    ///
    /// [`LOST`] when the worker is gone.
    pub fn enqueue<M: Message>(&self, context: u32, message: &M) -> Result<(), CUresult> {
        self.check()?;
        with_buffers(|request, _| {
            message.encode(request);
            self.enqueued.fetch_add(1, Ordering::AcqRel);
            self.link.enqueue(M::OPCODE, context, &[request, message.tail()])
        })
        .map_err(|error| self.fail(M::NAME, &error))
    }

    /// Sends a message and waits for its reply.
    ///
    /// # Errors
    ///
    /// What the driver answered; an enqueued call's failure when the driver answered none; [`LOST`].
    pub fn call<M: Message>(&self, context: u32, message: &M) -> Result<M::Reply, CUresult> {
        match self.call_any(context, message)? {
            (CUresult::SUCCESS, Some(reply)) => Ok(reply),
            (CUresult::SUCCESS, None) => Err(self.broken(M::NAME)),
            (status, _) => Err(status),
        }
    }

    /// As [`Session::call`], reading the reply's bytes where they lie: for the ones that are bulk.
    ///
    /// # Errors
    ///
    /// As [`Session::call`].
    pub fn call_in_place<M: Message, R>(
        &self,
        context: u32,
        message: &M,
        read: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Result<R, CUresult> {
        self.check()?;
        with_buffers(|request, reply| {
            let (status, payload) = self.exchange(context, message, request, reply)?;
            status.ok()?;
            read(payload).ok_or_else(|| self.broken(M::NAME))
        })
    }

    /// As [`Session::call`], for messages whose reply says something in failure too, such as a compiler's log.
    ///
    /// # Errors
    ///
    /// [`LOST`], and an enqueued call's failure when this one succeeded.
    pub fn call_any<M: Message>(&self, context: u32, message: &M) -> Result<(CUresult, Option<M::Reply>), CUresult> {
        self.check()?;
        with_buffers(|request, reply| {
            let (status, payload) = self.exchange(context, message, request, reply)?;
            Ok((status, M::Reply::decode(payload).ok()))
        })
    }

    /// Sends a message and waits; returns the worker's verdict and the payload of its reply.
    fn exchange<'a, M: Message>(
        &self,
        context: u32,
        message: &M,
        request: &mut Vec<u8>,
        reply: &'a mut Vec<u8>,
    ) -> Result<(CUresult, &'a [u8]), CUresult> {
        message.encode(request);
        let head = self
            .link
            .call(M::OPCODE, context, &[request, message.tail()], reply)
            .map_err(|error| self.fail(M::NAME, &error))?;
        let Ok((payload, printed)) = head.split(reply) else { return Err(self.broken(M::NAME)) };
        output::write(printed.stdout, printed.stderr);
        let verdict = self.verdict(&head);
        let (Ok(code) | Err(code)) = verdict;
        if is_fault(code) {
            (self.on_fault)(context, code);
        }
        Ok((verdict?, payload))
    }

    fn verdict(&self, head: &ReplyHead) -> Result<CUresult, CUresult> {
        let status = CUresult(head.status);
        let earlier = if head.deferred == 0 { self.deferred.swap(0, Ordering::Relaxed) } else { head.deferred };
        if earlier != 0 {
            // "Not ready" is an answer, not a failure; a failure of an earlier call outranks it.
            if status == CUresult::SUCCESS || status == CUresult::ERROR_NOT_READY {
                return Err(CUresult(earlier));
            }
            self.deferred.store(earlier, Ordering::Relaxed);
        }
        Ok(status)
    }

    /// Messages enqueued so far. What was freed at one count is out of use once a later synchronisation has ended.
    pub fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    /// Memory that both sides see, for bulk copies.
    pub fn staging(&self) -> Option<&Staging> {
        self.link.staging()
    }

    /// Whether the worker is gone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// In the child of a fork: lets go of the connection without a word to the worker.
    pub fn abandon(&self) {
        self.link.abandon();
    }

    fn check(&self) -> Result<(), CUresult> {
        if self.is_lost() { Err(LOST) } else { Ok(()) }
    }

    /// A reply that does not fit its message: the two sides disagree, so the session is over.
    #[cold]
    pub fn broken(&self, what: &str) -> CUresult {
        self.lose(&format!("the server's answer to {what} makes no sense; are both of the same release?"))
    }

    /// The error of a link that carried a message: a fault of the caller, or the end of the session.
    #[cold]
    pub fn fail(&self, what: &str, error: &LinkError) -> CUresult {
        match error {
            LinkError::TooManyThreads { .. } => {
                output::say(format_args!("{what}: {error}"));
                CUresult::ERROR_OUT_OF_MEMORY
            }
            LinkError::Forked => CUresult::ERROR_NOT_INITIALIZED,
            _ => self.lose(&format!("the session ended during {what}: {error}")),
        }
    }

    fn lose(&self, why: &str) -> CUresult {
        // While the process exits, the worker may well go first; nobody wants to hear of it then.
        self.lost.store(true, Ordering::Relaxed);
        if life::lose() {
            output::say(format_args!("{why}; every further CUDA call returns {LOST}"));
        }
        LOST
    }
}

/// Whether an error ruins its context: every later call in it returns the same, natively as here.
fn is_fault(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::ERROR_ECC_UNCORRECTABLE
            | CUresult::ERROR_NVLINK_UNCORRECTABLE
            | CUresult::ERROR_CONTAINED
            | CUresult::ERROR_ILLEGAL_ADDRESS
            | CUresult::ERROR_LAUNCH_TIMEOUT
            | CUresult::ERROR_ASSERT
            | CUresult::ERROR_HARDWARE_STACK_ERROR
            | CUresult::ERROR_ILLEGAL_INSTRUCTION
            | CUresult::ERROR_MISALIGNED_ADDRESS
            | CUresult::ERROR_INVALID_ADDRESS_SPACE
            | CUresult::ERROR_INVALID_PC
            | CUresult::ERROR_LAUNCH_FAILED
    )
}

/// Runs `body` with empty buffers of this thread. A call inside a call (an upcall's, or after the thread's locals are
/// gone) gets fresh ones.
fn with_buffers<R>(body: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> R) -> R {
    /// Room for the largest reply is kept: a thread that copies much would otherwise fault in fresh pages every time.
    const KEEP: usize = 2 << 20;
    let (mut request, mut reply) = BUFFERS.try_with(RefCell::take).unwrap_or_default();
    request.clear();
    reply.clear();
    let result = body(&mut request, &mut reply);
    request.shrink_to(KEEP);
    if reply.capacity() > KEEP {
        reply = Vec::new();
    }
    let _ = BUFFERS.try_with(|buffers| buffers.replace((request, reply)));
    result
}
