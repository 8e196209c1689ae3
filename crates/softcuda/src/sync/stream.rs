//! Streams: queues whose jobs run in order, on a thread of the executor while there are any.
//!
//! Every submission gets a ticket, and a stream has reached a ticket once that many jobs are done. The legacy default stream
//! comes after all earlier work of blocking streams, and their later work comes after it. Both are tickets taken under the lock
//! of the context's set of streams, so that no two streams can wait for each other.
//!
//! A queue has slots for [`MAX_QUEUED_JOBS`] jobs, as those of GPUs have. A thread that finds none free waits, and holds no lock
//! meanwhile.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use katydid_cuda_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, stream_flags};

use katydid_graph::CaptureStream;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::graphs::captures;
use crate::process::handles::new_handle;
use crate::sync::executor::{Runnable, StreamExecutor};
use crate::sync::job::StreamJob;
use crate::sync::stream_attributes::StreamAttributes;

/// Most queued jobs of a stream. On NVIDIA's GPUs, a thousand launches of a stream returned at once, and the next one when the
/// first was done (<https://stackoverflow.com/questions/53970187>).
const MAX_QUEUED_JOBS: usize = 1024;

/// Kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The context's default stream.
    Legacy,
    /// A thread's default stream.
    PerThread,
    /// One that `cuStreamCreate` made.
    Created,
}

/// A stream: a queue of jobs that run in order.
pub(crate) struct Stream {
    /// Handle that programs know the stream by.
    pub(crate) handle: usize,
    /// A number that no other stream has.
    pub(crate) id: u64,
    /// Flags of its creation.
    pub(crate) flags: u32,
    /// Priority of its creation.
    pub(crate) priority: i32,
    attributes: Mutex<StreamAttributes>,
    role: StreamKind,
    /// Handle of its green context, 0 for none.
    green: usize,
    context: Weak<LiveContext>,
    queue: Mutex<JobQueue>,
    reached: Condvar,
}

/// Queued jobs, and tickets given and reached.
#[derive(Default)]
struct JobQueue {
    /// The last ticket given.
    submitted: u64,
    /// The last ticket reached; tickets are reached in order.
    done: u64,
    /// Jobs that have a ticket and have not started.
    jobs: VecDeque<QueuedJob>,
    /// Whether a thread is running the stream, or about to.
    claimed: bool,
}

/// A job in the queue of a stream.
struct QueuedJob {
    job: StreamJob,
    /// Points of other streams that must be reached first.
    after: Vec<Ticket>,
}

/// A stream, and the number of its done jobs at some point.
pub(crate) type Ticket = (Arc<Stream>, u64);

/// A job for which the submitting thread has claimed an idle stream, and the context to run it in.
type ClaimedJob = (StreamJob, Arc<LiveContext>);

/// The threads that run streams.
static STREAM_EXECUTOR: StreamExecutor<Stream> = StreamExecutor::new();

impl Stream {
    /// Creates a stream of `context`, in a green context if that is not 0. The caller adds it to the context's set.
    fn new(context: Weak<LiveContext>, green: usize, role: StreamKind, flags: u32, priority: i32) -> Self {
        static NEXT_STREAM_ID: AtomicU64 = AtomicU64::new(1);
        let handle = match role {
            StreamKind::Legacy => CU_STREAM_LEGACY.address() as usize,
            StreamKind::PerThread => CU_STREAM_PER_THREAD.address() as usize,
            StreamKind::Created => new_handle(),
        };
        let id = NEXT_STREAM_ID.fetch_add(1, Ordering::Relaxed);
        let (queue, reached) = (Mutex::default(), Condvar::new());
        let attributes = Mutex::new(StreamAttributes::new(priority));
        Self { handle, id, flags, priority, attributes, role, green, context, queue, reached }
    }

    /// Returns its context, if that lives.
    pub(crate) fn context(&self) -> Outcome<Arc<LiveContext>> {
        self.context.upgrade().ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Returns whether its context lives.
    pub(crate) fn has_context(&self) -> bool {
        self.context.strong_count() > 0
    }

    /// Returns the handle of its green context, 0 for none.
    pub(crate) fn green(&self) -> usize {
        self.green
    }

    /// Returns whether it is a default stream.
    pub(crate) fn is_default(&self) -> bool {
        self.role != StreamKind::Created
    }

    /// Returns whether it belongs to a green context; always true for 0.
    pub(crate) fn is_of(&self, green: usize) -> bool {
        green == 0 || self.green == green
    }

    /// Locks the stream's attributes.
    pub(crate) fn attributes(&self) -> MutexGuard<'_, StreamAttributes> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its identity for stream capture.
    pub(crate) fn capture_stream(&self) -> CaptureStream {
        let context = self.context.upgrade().map_or(0, |context| context.handle);
        let (is_legacy, is_blocking) = (self.role == StreamKind::Legacy, self.is_blocking());
        CaptureStream { key: self.id, is_legacy, is_blocking, context }
    }

    /// Locks the queue. A thread that holds the lock of a set may take this one, never the reverse.
    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it and the legacy default stream wait for each other.
    fn is_blocking(&self) -> bool {
        self.role != StreamKind::Legacy && self.flags & stream_flags::NON_BLOCKING == 0
    }

    /// Returns the last ticket, unless that is reached.
    fn pending(&self) -> Option<u64> {
        let queue = self.queue();
        (queue.done < queue.submitted).then_some(queue.submitted)
    }

    /// Queues a job, and makes sure that a thread runs it.
    pub(crate) fn submit(self: &Arc<Self>, job: StreamJob) -> Outcome<u64> {
        let (ticket, claimed) = self.push(job, false)?;
        if let Some((job, context)) = claimed {
            self.run_here(job, &context);
        }
        Ok(ticket)
    }

    /// Queues a job and waits until it is done. Runs it on this thread if the stream is idle.
    pub(crate) fn perform(self: &Arc<Self>, job: StreamJob) -> Outcome {
        let (ticket, claimed) = self.push(job, true)?;
        match claimed {
            Some((job, context)) => self.run_here(job, &context),
            None => self.wait(ticket),
        }
        Ok(())
    }

    /// Takes a ticket. Returns the job if the caller shall run it; otherwise the executor runs it.
    fn push(self: &Arc<Self>, job: StreamJob, caller_waits: bool) -> Outcome<(u64, Option<ClaimedJob>)> {
        let context = self.context()?;
        // Only work that runs gets here: a graph has already taken what it can capture.
        captures::refuse_captured(self.capture_stream())?;
        self.wait_for_slot();
        let order = context.streams.lock();
        let after = order.predecessors(self);
        let mut queue = self.queue();
        queue.submitted += 1;
        let ticket = queue.submitted;
        let idle = !std::mem::replace(&mut queue.claimed, true);
        if idle && after.is_empty() && (job.short || caller_waits) {
            drop((queue, order));
            return Ok((ticket, Some((job, context))));
        }
        queue.jobs.push_back(QueuedJob { job, after });
        drop((queue, order));
        if idle {
            STREAM_EXECUTOR.run(Arc::clone(self));
        }
        Ok((ticket, None))
    }

    /// Waits until there is a slot for a job. If several threads return at the same time, each may exceed [`MAX_QUEUED_JOBS`] by
    /// one job.
    fn wait_for_slot(&self) {
        let mut queue = self.queue();
        while queue.jobs.len() >= MAX_QUEUED_JOBS {
            queue = self.reached.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs a job for which this thread has claimed the stream. Hands jobs that came meanwhile to the executor.
    fn run_here(self: &Arc<Self>, job: StreamJob, context: &Context) {
        job.run(context);
        let more = {
            let mut queue = self.queue();
            queue.done += 1;
            queue.claimed = !queue.jobs.is_empty();
            queue.claimed
        };
        self.reached.notify_all();
        if more {
            STREAM_EXECUTOR.run(Arc::clone(self));
        }
    }

    /// Waits until `ticket` is reached.
    pub(crate) fn wait(&self, ticket: u64) {
        let mut queue = self.queue();
        while queue.done < ticket {
            queue = self.reached.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until everything submitted so far is done.
    pub(crate) fn finish(&self) {
        if let Some(ticket) = self.pending() {
            self.wait(ticket);
        }
    }

    /// Returns the tickets that make the stream idle when reached. For the legacy one they include all blocking streams.
    pub(crate) fn tickets(self: &Arc<Self>, context: &LiveContext) -> Vec<Ticket> {
        match self.role {
            StreamKind::Legacy => context.tickets(|stream| stream.role == StreamKind::Legacy || stream.is_blocking()),
            _ => self.pending().map(|ticket| (Arc::clone(self), ticket)).into_iter().collect(),
        }
    }

    /// `cuStreamQuery`: `NOT_READY` while anything is pending.
    pub(crate) fn query(self: &Arc<Self>) -> Outcome {
        let context = self.context()?;
        context.healthy()?;
        if self.tickets(&context).is_empty() { Ok(()) } else { Err(CUresult::ERROR_NOT_READY) }
    }
}

impl Runnable for Stream {
    /// Runs jobs until there are none. Only the executor calls it, for a claimed stream.
    fn work(&self) {
        loop {
            let mut queue = self.queue();
            let Some(QueuedJob { job, after }) = queue.jobs.pop_front() else {
                queue.claimed = false;
                return;
            };
            drop(queue);
            if let Some(context) = self.context.upgrade() {
                for (stream, ticket) in after {
                    stream.wait(ticket);
                }
                job.run(&context);
            }
            self.queue().done += 1;
            self.reached.notify_all();
        }
    }
}

/// The streams of a context. Its lock puts their submissions in one sequence.
struct StreamSet {
    legacy: Arc<Stream>,
    created: Mutex<Vec<Arc<Stream>>>,
}

/// A set of streams, locked.
struct LockedStreams<'set> {
    legacy: &'set Arc<Stream>,
    created: MutexGuard<'set, Vec<Arc<Stream>>>,
}

impl LockedStreams<'_> {
    /// Returns what a new job of `stream` must come after, besides the jobs of `stream` itself.
    fn predecessors(&self, stream: &Arc<Stream>) -> Vec<Ticket> {
        if stream.role == StreamKind::Legacy {
            let blocking = self.created.iter().filter(|other| other.is_blocking());
            return blocking.filter_map(|other| Some((Arc::clone(other), other.pending()?))).collect();
        }
        let legacy = stream.is_blocking().then(|| self.legacy.pending()).flatten();
        legacy.map(|ticket| (Arc::clone(self.legacy), ticket)).into_iter().collect()
    }
}

impl StreamSet {
    /// Locks the set. Under this lock, nothing is submitted to any stream of the context.
    fn lock(&self) -> LockedStreams<'_> {
        LockedStreams { legacy: &self.legacy, created: self.created.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Adds a stream, and drops finished streams to which no thread can submit any more.
    fn add(&self, stream: &Arc<Stream>) {
        let mut order = self.lock();
        order.created.retain(|other| Arc::strong_count(other) > 1 || other.pending().is_some());
        order.created.push(Arc::clone(stream));
    }
}

/// A context with its streams; a handle names one.
pub(crate) struct LiveContext {
    context: Context,
    streams: StreamSet,
}

impl Deref for LiveContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl LiveContext {
    /// Creates a context with only the legacy default stream.
    pub(crate) fn new(context: Context) -> Arc<Self> {
        Arc::new_cyclic(|this| {
            let legacy = Arc::new(Stream::new(this.clone(), 0, StreamKind::Legacy, 0, 0));
            Self { context, streams: StreamSet { legacy, created: Mutex::default() } }
        })
    }

    /// The legacy default stream.
    pub(crate) fn legacy(&self) -> &Arc<Stream> {
        &self.streams.legacy
    }

    /// Adds a stream, in a green context if that is not 0.
    pub(crate) fn add_stream(
        self: &Arc<Self>,
        green: usize,
        role: StreamKind,
        flags: u32,
        priority: i32,
    ) -> Arc<Stream> {
        let stream = Arc::new(Stream::new(Arc::downgrade(self), green, role, flags, priority));
        self.streams.add(&stream);
        stream
    }

    /// Returns all streams.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        let order = self.streams.lock();
        order.created.iter().chain([order.legacy]).map(Arc::clone).collect()
    }

    /// Returns the streams with pending work for which `which` is true, and their last tickets.
    pub(crate) fn tickets(&self, which: impl Fn(&Stream) -> bool) -> Vec<Ticket> {
        let order = self.streams.lock();
        let streams = order.created.iter().chain([order.legacy]);
        streams.filter(|stream| which(stream)).filter_map(|it| Some((Arc::clone(it), it.pending()?))).collect()
    }

    /// Waits until all submitted work is done, failed or not.
    pub(crate) fn drain(&self) {
        for (stream, ticket) in self.tickets(|_| true) {
            stream.wait(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_waits_for_a_slot_of_a_full_queue() {
        let stream = Stream::new(Weak::new(), 0, StreamKind::Created, 0, 0);
        let add = || stream.queue().jobs.push_back(QueuedJob { job: StreamJob::new(|_| Ok(())), after: Vec::new() });
        (0..MAX_QUEUED_JOBS - 1).for_each(|_| add());
        stream.wait_for_slot();
        add();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| stream.wait_for_slot());
            assert!(!waiting.is_finished());
            drop(stream.queue().jobs.pop_front());
            stream.reached.notify_all();
        });
    }
}
