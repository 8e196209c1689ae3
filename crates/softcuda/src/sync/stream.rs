//! Streams: queues whose jobs run in order, each on a thread of the executor while it has any.
//!
//! Every submission gets a ticket, and a stream has reached a ticket once that many jobs are done. The legacy default
//! stream comes after everything submitted before it to blocking streams, and they after it: both are tickets taken
//! under the lock of the context's set of streams, so that no two streams can wait for each other.
//!
//! A queue has places for [`PLACES`] jobs, as those of GPUs have: a thread that finds none free waits, and holds nothing meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use katydid_cuda_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream, stream_flags};

use katydid_graph::Place;

use crate::context::contexts::Context;
use crate::context::stack;
use crate::ffi::Outcome;
use crate::graphs;
use crate::memory::pool;
use crate::process::handles::{Registry, mint};
use crate::sync::executor;
use crate::sync::job::Job;
use crate::sync::stream_attributes::Attributes;

/// Best priority that can be asked for; 0 is the least. All are treated alike.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// Jobs that wait in a stream. A thousand launches of a stream have been seen to return at once on NVIDIA's GPUs, and the next
/// one when the first is done (<https://stackoverflow.com/questions/53970187>).
const PLACES: usize = 1024;

/// Where a stream comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The context's default stream.
    Legacy,
    /// A thread's default stream.
    PerThread,
    /// `cuStreamCreate`.
    Created,
}

/// One stream.
pub(crate) struct Stream {
    /// Its handle.
    pub(crate) handle: usize,
    /// A number that no other stream has.
    pub(crate) id: u64,
    /// Flags of its creation.
    pub(crate) flags: u32,
    /// Priority of its creation.
    pub(crate) priority: i32,
    attributes: Mutex<Attributes>,
    role: Role,
    /// The green context that it was made in, 0 for none.
    green: usize,
    context: Weak<Context>,
    queue: Mutex<Queue>,
    reached: Condvar,
}

/// Jobs that wait, and tickets given and reached.
#[derive(Default)]
struct Queue {
    /// The last ticket given.
    submitted: u64,
    /// The last ticket reached; tickets are reached in order.
    done: u64,
    /// What has a ticket and has not been started.
    jobs: VecDeque<Job>,
    /// A thread is running the stream, or about to.
    claimed: bool,
}

/// A job that the submitting thread has claimed an idle stream for, and the context to run it in.
type Claim = (Job, Arc<Context>);

/// Streams whose handle is alive.
static STREAMS: Registry<Stream> = Registry::new();

impl Stream {
    /// A stream of `context`; the caller adds it to the context's set.
    pub(crate) fn new(context: Weak<Context>, role: Role, flags: u32, priority: i32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let handle = match role {
            Role::Legacy => CU_STREAM_LEGACY.address() as usize,
            Role::PerThread => CU_STREAM_PER_THREAD.address() as usize,
            Role::Created => mint(),
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (queue, reached) = (Mutex::default(), Condvar::new());
        let attributes = Mutex::new(Attributes::new(priority));
        Self { handle, id, flags, priority, attributes, role, green: 0, context, queue, reached }
    }

    /// Its context, if that lives.
    pub(crate) fn context(&self) -> Outcome<Arc<Context>> {
        self.context.upgrade().ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
    }

    /// The green context that it was made in, 0 for none.
    pub(crate) fn green(&self) -> usize {
        self.green
    }

    /// Whether it is a default stream.
    pub(crate) fn is_default(&self) -> bool {
        self.role != Role::Created
    }

    /// Whether it belongs to a green context; to none (0), all do.
    pub(crate) fn is_of(&self, green: usize) -> bool {
        green == 0 || self.green == green
    }

    /// Its attributes, locked.
    pub(crate) fn attributes(&self) -> MutexGuard<'_, Attributes> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What stream capture knows it by.
    pub(crate) fn place(&self) -> Place {
        let context = self.context.upgrade().map_or(0, |context| context.handle);
        let (is_legacy, is_blocking) = (self.role == Role::Legacy, self.is_blocking());
        Place { key: self.id, is_legacy, is_blocking, context }
    }

    /// The queue, locked. A thread that holds the lock of a set may take it, never the other way round.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it and the legacy default stream wait for each other.
    fn is_blocking(&self) -> bool {
        self.role != Role::Legacy && self.flags & stream_flags::NON_BLOCKING == 0
    }

    /// The last ticket, unless that has been reached.
    fn pending(&self) -> Option<u64> {
        let queue = self.queue();
        (queue.done < queue.submitted).then_some(queue.submitted)
    }

    /// Puts a job at the end, and sees to it that it will be run.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Outcome<u64> {
        let (ticket, mine) = self.push(job, false)?;
        if let Some((job, context)) = mine {
            self.run_here(job, &context);
        }
        Ok(ticket)
    }

    /// Puts a job at the end and waits until it is done; runs it on this thread if nothing is before it.
    pub(crate) fn perform(self: &Arc<Self>, job: Job) -> Outcome {
        let (ticket, mine) = self.push(job, true)?;
        match mine {
            Some((job, context)) => self.run_here(job, &context),
            None => self.wait(ticket),
        }
        Ok(())
    }

    /// Takes a ticket. The job comes back if the caller is to run it, otherwise the executor will.
    fn push(self: &Arc<Self>, mut job: Job, caller_waits: bool) -> Outcome<(u64, Option<Claim>)> {
        let context = self.context()?;
        // Whatever gets here is carried out: what can be part of a graph was taken into it before.
        graphs::of_process().refuse_captured(self.place())?;
        self.wait_for_place();
        let order = context.streams.lock();
        job.after = order.before(self);
        let mut queue = self.queue();
        queue.submitted += 1;
        let ticket = queue.submitted;
        let idle = !std::mem::replace(&mut queue.claimed, true);
        if idle && job.after.is_empty() && (job.short || caller_waits) {
            drop((queue, order));
            return Ok((ticket, Some((job, context))));
        }
        queue.jobs.push_back(job);
        drop((queue, order));
        if idle {
            executor::run(Arc::clone(self));
        }
        Ok((ticket, None))
    }

    /// Waits until there is a place for a job. Threads that come out of it together may go beyond [`PLACES`], each by one job.
    fn wait_for_place(&self) {
        let mut queue = self.queue();
        while queue.jobs.len() >= PLACES {
            queue = self.reached.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs a job that this thread has claimed the stream for, and hands on what came behind it meanwhile.
    fn run_here(self: &Arc<Self>, job: Job, context: &Context) {
        job.run(context);
        let more = {
            let mut queue = self.queue();
            queue.done += 1;
            queue.claimed = !queue.jobs.is_empty();
            queue.claimed
        };
        self.reached.notify_all();
        if more {
            executor::run(Arc::clone(self));
        }
    }

    /// Runs jobs until there are none; only the executor, for a stream that was claimed for it.
    pub(crate) fn work(&self) {
        loop {
            let mut queue = self.queue();
            let Some(job) = queue.jobs.pop_front() else {
                queue.claimed = false;
                return;
            };
            drop(queue);
            if let Some(context) = self.context.upgrade() {
                job.run(&context);
            }
            self.queue().done += 1;
            self.reached.notify_all();
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

    /// Tickets that must be reached for the stream to be idle; the legacy one includes all blocking streams.
    fn tickets(self: &Arc<Self>, context: &Context) -> Vec<(Arc<Self>, u64)> {
        match self.role {
            Role::Legacy => context.streams.tickets(|stream| stream.role == Role::Legacy || stream.is_blocking()),
            _ => self.pending().map(|ticket| (Arc::clone(self), ticket)).into_iter().collect(),
        }
    }

    /// `cuStreamSynchronize`.
    pub(crate) fn synchronise(self: &Arc<Self>) -> Outcome {
        let context = self.context()?;
        for (stream, ticket) in self.tickets(&context) {
            stream.wait(ticket);
        }
        context.output.flush();
        pool::settle(context.device.ordinal);
        context.healthy()
    }

    /// `cuStreamQuery`: `NOT_READY` while anything is pending.
    pub(crate) fn query(self: &Arc<Self>) -> Outcome {
        let context = self.context()?;
        context.healthy()?;
        if self.tickets(&context).is_empty() { Ok(()) } else { Err(CUresult::ERROR_NOT_READY) }
    }
}

/// The streams of a context. Its lock makes submissions to them one sequence.
pub(crate) struct StreamSet {
    legacy: Arc<Stream>,
    others: Mutex<Vec<Arc<Stream>>>,
}

/// A locked set.
struct Order<'set> {
    legacy: &'set Arc<Stream>,
    others: MutexGuard<'set, Vec<Arc<Stream>>>,
}

impl Order<'_> {
    /// What a job submitted to `stream` now must come after, besides what is in `stream` itself.
    fn before(&self, stream: &Arc<Stream>) -> Vec<(Arc<Stream>, u64)> {
        if stream.role == Role::Legacy {
            let blocking = self.others.iter().filter(|other| other.is_blocking());
            return blocking.filter_map(|other| Some((Arc::clone(other), other.pending()?))).collect();
        }
        let legacy = stream.is_blocking().then(|| self.legacy.pending()).flatten();
        legacy.map(|ticket| (Arc::clone(self.legacy), ticket)).into_iter().collect()
    }
}

impl StreamSet {
    /// A set with its default stream only.
    pub(crate) fn new(legacy: Arc<Stream>) -> Self {
        Self { legacy, others: Mutex::default() }
    }

    /// While this is held, nothing is submitted to any stream of the context.
    fn lock(&self) -> Order<'_> {
        Order { legacy: &self.legacy, others: self.others.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Adds a stream, and forgets those that no thread can submit to any more and that have finished.
    fn add(&self, stream: &Arc<Stream>) {
        let mut order = self.lock();
        order.others.retain(|other| Arc::strong_count(other) > 1 || other.pending().is_some());
        order.others.push(Arc::clone(stream));
    }

    /// All streams that there are.
    pub(crate) fn all(&self) -> Vec<Arc<Stream>> {
        let order = self.lock();
        order.others.iter().chain([order.legacy]).map(Arc::clone).collect()
    }

    /// Streams with pending work among those that `which` answers true for, and their last tickets.
    pub(crate) fn tickets(&self, which: impl Fn(&Stream) -> bool) -> Vec<(Arc<Stream>, u64)> {
        let order = self.lock();
        let all = order.others.iter().chain([order.legacy]);
        all.filter(|stream| which(stream)).filter_map(|it| Some((Arc::clone(it), it.pending()?))).collect()
    }
}

/// `cuStreamCreate`, in a green context if that is not 0.
pub(crate) fn create(context: &Arc<Context>, green: usize, flags: u32, priority: i32) -> Outcome<Arc<Stream>> {
    if flags & !stream_flags::NON_BLOCKING != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let stream = Stream::new(Arc::downgrade(context), Role::Created, flags, priority);
    let stream = Arc::new(Stream { green, ..stream });
    context.streams.add(&stream);
    STREAMS.insert(stream.handle, Arc::clone(&stream));
    Ok(stream)
}

/// `cuStreamDestroy`: the handle ends, pending work goes on.
pub(crate) fn destroy(handle: CUstream) -> Outcome {
    STREAMS.remove(handle.address() as usize).map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Ends the handles of a context's streams.
pub(crate) fn forget(context: u64) {
    STREAMS.remove_if(|stream| stream.context().map_or(true, |owner| owner.id == context));
}

/// Ends the handles of a green context's streams.
pub(crate) fn forget_green(green: usize) {
    STREAMS.remove_if(|stream| stream.green == green);
}

thread_local! {
    /// Whether a null handle means the thread's own default stream.
    static PER_THREAD_DEFAULT: Cell<bool> = const { Cell::new(false) };
    /// This thread's default streams, by the id of their context.
    static OWN: RefCell<HashMap<u64, Arc<Stream>>> = RefCell::default();
}

/// Runs one of the `_ptsz` and `_ptds` functions: a null stream is the calling thread's.
pub(crate) fn with_per_thread_default(body: impl FnOnce() -> CUresult) -> CUresult {
    with_default(true, body)
}

/// Runs a function of the program's in the middle of a call: what it calls is no part of that call.
pub(crate) fn outside_of_call(body: impl FnOnce()) {
    with_default(false, body);
}

fn with_default<T>(is_per_thread: bool, body: impl FnOnce() -> T) -> T {
    let before = PER_THREAD_DEFAULT.replace(is_per_thread);
    let result = body();
    PER_THREAD_DEFAULT.set(before);
    result
}

/// The stream behind a handle, and its context in working order. Null means a default stream of the current context.
pub(crate) fn resolve(handle: CUstream) -> Outcome<Arc<Stream>> {
    if handle.is_null() || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD {
        let context = stack::usable()?;
        let own = handle == CU_STREAM_PER_THREAD || (handle.is_null() && PER_THREAD_DEFAULT.get());
        return Ok(default_of(&context, own));
    }
    let stream = created(handle)?;
    stream.context()?.healthy()?;
    Ok(stream)
}

/// The default stream that a function without a stream argument uses.
pub(crate) fn default_stream() -> Outcome<Arc<Stream>> {
    resolve(CUstream::NULL)
}

/// The stream that a non-special handle names.
pub(crate) fn created(handle: CUstream) -> Outcome<Arc<Stream>> {
    crate::process::state::ready()?;
    STREAMS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// The stream that work in groups is given to: any but the legacy default stream, which gives 1 as on driver 580.
pub(crate) fn of_group(handle: CUstream) -> Outcome<Arc<Stream>> {
    let is_legacy = handle == CU_STREAM_LEGACY || (handle.is_null() && !PER_THREAD_DEFAULT.get());
    let is_wrong = is_legacy || (!handle.is_null() && handle != CU_STREAM_PER_THREAD && created(handle).is_err());
    if is_wrong { Err(CUresult::ERROR_INVALID_VALUE) } else { resolve(handle) }
}

/// A default stream of `context`: the legacy one, or the calling thread's own.
pub(crate) fn default_of(context: &Arc<Context>, own: bool) -> Arc<Stream> {
    if !own {
        return Arc::clone(&context.streams.legacy);
    }
    let make = || {
        let stream = Arc::new(Stream::new(Arc::downgrade(context), Role::PerThread, 0, 0));
        context.streams.add(&stream);
        stream
    };
    let kept = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        own.retain(|_, stream| stream.context.strong_count() > 0);
        Arc::clone(own.entry(context.id).or_insert_with(make))
    });
    // A thread that is ending keeps nothing: its call gets a stream of its own.
    kept.unwrap_or_else(|_| make())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_finds_no_place_waits_for_one() {
        let stream = Stream::new(Weak::new(), Role::Created, 0, 0);
        let add = || stream.queue().jobs.push_back(Job::new(|_| Ok(())));
        (0..PLACES - 1).for_each(|_| add());
        stream.wait_for_place();
        add();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| stream.wait_for_place());
            assert!(!waiting.is_finished());
            drop(stream.queue().jobs.pop_front());
            stream.reached.notify_all();
        });
    }
}
