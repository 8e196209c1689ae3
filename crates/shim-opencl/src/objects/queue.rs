//! Command queues, and the progress of each.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::constant::{
    QUEUE_CONTEXT, QUEUE_DEVICE, QUEUE_DEVICE_DEFAULT, QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, QUEUE_PROFILING_ENABLE,
    QUEUE_PROPERTIES, QUEUE_PROPERTIES_ARRAY, QUEUE_REFERENCE_COUNT,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_context, cl_device_id, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclDefaultQueue, kdclFinish, kdclFlush, kdclQueue, kdclQueueProperty};
use katydid_wire::opencl::{list, properties_form, query};

use crate::ffi::arguments::pairs;
use crate::host::pending_reads;
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::handle::{self, Base, HeldObject, Object, kind_of_object, make, object};
use crate::objects::image_shape::OpenclImageKind;
use crate::objects::info::{CachedValues, QueryBuffer, ask, handles};
use crate::process::per_worker::PerWorker;
use crate::process::session;

/// A command queue (`cl_command_queue`).
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) base: Base,
    pub(crate) context: HeldObject<Context>,
    device: HeldObject<Device>,
    /// The properties as the program gave them, with the final 0.
    properties: Vec<u64>,
    /// Its properties, a bit field of `CL_QUEUE_…_ENABLE`.
    flags: AtomicU64,
    /// The progress of its commands.
    pub(crate) progress: Progress,
    /// Whether the program has queried the times of a command, and so probably will again.
    asks_times: AtomicBool,
    /// Kinds of commands ([`InfallibleCommand`]) that a worker's driver has accepted.
    accepted: PerWorker,
    accepted_images: Mutex<AcceptedImageCommands>,
    cached: CachedValues,
}

kind_of_object! { Queue cl_command_queue QUEUE INVALID_COMMAND_QUEUE MAX_PROGRAM_OBJECTS }

/// Commands on images that drivers may support only for some kinds and formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ImageCommand {
    Fill,
    Write,
    /// From the first of two images to the second.
    Copy,
}

/// Image commands of a queue that a worker's driver has accepted, each with the kinds and formats of its images.
#[derive(Debug, Default)]
struct AcceptedImageCommands {
    worker: u32,
    commands: HashSet<(ImageCommand, [Option<OpenclImageKind>; 2])>,
}

/// Commands whose arguments cannot be wrong if a driver supports them at all. Each is one bit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InfallibleCommand {
    Fill = 1,
    Marker = 2,
    Barrier = 4,
}

/// The known progress of an in-order queue, so that no thread waits for commands that are known to have ended.
///
/// Commands are counted from 1. The end of one proves the end of all earlier ones only if these were sent before it was counted:
/// another thread may be about to send one with a lower number.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of commands so far, in units of [`COMMAND_UNIT`], plus the number of those that are not sent yet.
    counts: AtomicU64,
    /// All commands up to this one are known to have ended.
    ended: AtomicU64,
    /// Number of threads that copy while others wait to send.
    copying: AtomicU32,
}

/// One command; the bits below count more threads than a session may have.
const COMMAND_UNIT: u64 = 1 << 16;

impl Progress {
    /// Counts a command that is about to be sent. Returns its number; 0 if its end will prove nothing about earlier ones.
    pub(crate) fn begin(&self) -> u64 {
        // Either this thread sees the copying thread, or that thread sees this command: both accesses are sequentially
        // consistent.
        let old_counts = self.counts.fetch_add(COMMAND_UNIT + 1, Ordering::SeqCst);
        while self.copying.load(Ordering::SeqCst) != 0 {
            thread::yield_now();
        }
        if old_counts.is_multiple_of(COMMAND_UNIT) { old_counts / COMMAND_UNIT + 1 } else { 0 }
    }

    /// Runs `work` while no thread sends anything; others wait meanwhile. Returns `None` if a command was begun after the one of
    /// this number, which does not count as sent yet.
    pub(crate) fn alone<T>(&self, number: u64, work: impl FnOnce() -> T) -> Option<T> {
        self.copying.fetch_add(1, Ordering::SeqCst);
        let _end = CopyGuard(&self.copying);
        (number != 0 && self.counts.load(Ordering::SeqCst) == number * COMMAND_UNIT + 1).then(work)
    }

    /// Notes that a counted command was sent, or will not be.
    pub(crate) fn sent(&self) {
        self.counts.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes that the command of this number has ended.
    pub(crate) fn end(&self, number: u64) {
        self.ended.fetch_max(number, Ordering::AcqRel);
    }

    /// Notes that a command is not sent: it has ended if all earlier ones are known to have.
    pub(crate) fn skip(&self, number: u64) {
        if self.have_ended_before(number) {
            self.end(number);
        }
    }

    /// Returns whether all commands before this number are known to have ended.
    pub(crate) fn have_ended_before(&self, number: u64) -> bool {
        number.checked_sub(1).is_some_and(|before| before <= self.ended.load(Ordering::Acquire))
    }

    /// Returns whether the command of a number is known to have ended; never for 0.
    pub(crate) fn has_ended(&self, number: u64) -> bool {
        (1..=self.ended.load(Ordering::Acquire)).contains(&number)
    }

    /// Returns the number of the last command; `None` if some are not sent yet.
    fn last(&self) -> Option<u64> {
        let counts = self.counts.load(Ordering::Acquire);
        counts.is_multiple_of(COMMAND_UNIT).then_some(counts / COMMAND_UNIT)
    }

    /// Returns whether all commands have ended.
    fn is_idle(&self) -> bool {
        self.last().is_some_and(|last| last <= self.ended.load(Ordering::Acquire))
    }
}

/// Returns whether all commands of a context are known to have ended: each queue that it had still exists, and is in order.
pub(crate) fn are_queues_idle(context: &Context) -> bool {
    /// Most queues that are checked; with more, the answer is no.
    const MAX_QUEUES: u32 = 8;
    let queue_count = context.queues();
    if queue_count == 0 || queue_count > MAX_QUEUES {
        return queue_count == 0;
    }
    let live = Queue::table().live();
    let own = || live.iter().filter(|queue| queue.context.base.id == context.base.id);
    own().count() == queue_count as usize && own().all(|queue| queue.is_in_order() && queue.progress.is_idle())
}

/// Returns the number of commands so far in the queues of a context that still exist.
pub(crate) fn commands(context: &Context) -> u64 {
    let live = Queue::table().live();
    let own = live.iter().filter(|queue| queue.context.base.id == context.base.id);
    own.map(|queue| queue.progress.counts.load(Ordering::Relaxed) / COMMAND_UNIT).sum()
}

/// Marks a thread as copying, until it is dropped.
struct CopyGuard<'a>(&'a AtomicU32);

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Queue {
    /// Returns whether commands run one after the other.
    pub(crate) fn is_in_order(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0
    }

    /// Returns whether everything that the program enqueues later runs after the commands of this queue: it is in order, and the
    /// only queue that its context has had.
    pub(crate) fn is_before_all(&self) -> bool {
        self.is_in_order() && self.context.has_one_queue()
    }

    /// Notes that the program queries the times of a command.
    pub(crate) fn times_are_asked(&self) {
        self.asks_times.store(self.is_profiled(), Ordering::Relaxed);
    }

    /// Returns whether the program has queried times.
    pub(crate) fn are_times_asked(&self) -> bool {
        self.asks_times.load(Ordering::Relaxed)
    }

    /// Returns whether a worker's driver has accepted such a command.
    pub(crate) fn has_accepted(&self, worker: u32, command: InfallibleCommand) -> bool {
        self.accepted.get(worker) & command as u32 != 0
    }

    /// Returns whether a worker's driver has accepted such a command on such images; `None` stands for an operand that is no
    /// image.
    pub(crate) fn has_accepted_images(
        &self,
        worker: u32,
        command: ImageCommand,
        images: [Option<OpenclImageKind>; 2],
    ) -> bool {
        let accepted = self.accepted_images.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.worker == worker && accepted.commands.contains(&(command, images))
    }

    /// Records that a worker's driver has accepted such a command on such images.
    pub(crate) fn accepted_images(&self, worker: u32, command: ImageCommand, images: [Option<OpenclImageKind>; 2]) {
        let mut accepted = self.accepted_images.lock().unwrap_or_else(PoisonError::into_inner);
        if accepted.worker != worker {
            *accepted = AcceptedImageCommands { worker, ..AcceptedImageCommands::default() };
        }
        accepted.commands.insert((command, images));
    }

    /// Records that a worker's driver has accepted such a command.
    pub(crate) fn accepted(&self, worker: u32, command: InfallibleCommand) {
        self.accepted.learn(worker, |commands| commands | command as u32);
    }

    /// Returns the handle of the queue to which kernels of its device enqueue; 0 if it is none of the program's. The driver knows
    /// it, and decides which queues may be queried.
    fn default_of_device(&self) -> Result<usize, Code> {
        let id = ask(query::QUEUE, self.base.id, 0, QUEUE_DEVICE_DEFAULT, &[])?;
        let id = u32::take(&mut &id[..]).unwrap_or(0);
        let queues = Self::table().live();
        Ok(queues.iter().find(|queue| queue.base.id == id).map_or(0, |queue| queue.base.handle))
    }

    /// Returns whether it keeps the times of its commands.
    pub(crate) fn is_profiled(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & QUEUE_PROFILING_ENABLE != 0
    }
}

/// Returns the flags in a list of properties.
fn flags_of(form: u32, properties: &[u64]) -> u64 {
    if form == properties_form::VALUES {
        return properties.first().copied().unwrap_or(0);
    }
    let pair = properties.chunks_exact(2).find(|pair| pair[0] == u64::from(QUEUE_PROPERTIES));
    pair.map_or(0, |pair| pair[1])
}

fn create(
    context: cl_context,
    device: cl_device_id,
    form: u32,
    properties: &[u64],
    property_list: Vec<u64>,
) -> Result<cl_command_queue, Code> {
    let (context, device) = (object::<Context>(context)?, object::<Device>(device)?);
    if !context.has(&device) {
        return Err(Code::INVALID_DEVICE);
    }
    let mut bytes = Vec::new();
    list::put(&mut bytes, properties);
    let queue = make(|base| {
        let (context_id, device_id) = (context.base.id, device.base.id);
        let message = kdclQueue { queue: base.id, context: context_id, device: device_id, form, properties: &bytes };
        let worker = session::worker()?;
        let cached = CachedValues::from_worker(worker, &session::call(&message)?.facts);
        context.count_queue();
        let (context, device) = (HeldObject::new(Arc::clone(&context)), HeldObject::new(Arc::clone(&device)));
        let (flags, progress) = (AtomicU64::new(flags_of(form, properties)), Progress::default());
        let (asks_times, accepted, accepted_images) = (AtomicBool::new(false), PerWorker::default(), Mutex::default());
        let properties = property_list;
        Ok(Queue { base, context, device, properties, flags, progress, asks_times, accepted, accepted_images, cached })
    })?;
    Ok(queue.handle())
}

pub(crate) fn create_command_queue(
    context: cl_context,
    device: cl_device_id,
    properties: u64,
) -> Result<cl_command_queue, Code> {
    create(context, device, properties_form::VALUES, &[properties], Vec::new())
}

/// # Safety
///
/// `properties` is null or ends with 0.
pub(crate) unsafe fn create_command_queue_with_properties(
    context: cl_context,
    device: cl_device_id,
    properties: *const u64,
) -> Result<cl_command_queue, Code> {
    // SAFETY: guaranteed by the caller.
    match unsafe { pairs(properties) } {
        Some(list) => create(context, device, properties_form::LIST, &list[..list.len() - 1], list.clone()),
        None => create(context, device, properties_form::NONE, &[], Vec::new()),
    }
}

pub(crate) fn retain_command_queue(queue: cl_command_queue) -> Result<(), Code> {
    handle::retain::<Queue>(queue)
}

/// As the standard requires, enqueued commands are flushed first.
pub(crate) fn release_command_queue(queue: cl_command_queue) -> Result<(), Code> {
    flush(queue)?;
    handle::release::<Queue>(queue)
}

/// Sets a property of a queue. As the standard requires, a change of the order waits for everything before it.
///
/// # Safety
///
/// The pointer is null or writable.
pub(crate) unsafe fn set_command_queue_property(
    command_queue: cl_command_queue,
    properties: u64,
    enable: u32,
    old_properties: *mut u64,
) -> Result<(), Code> {
    let queue = object::<Queue>(command_queue)?;
    if properties & QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0 {
        finish(command_queue)?;
    }
    let worker = session::worker()?;
    let reply = session::call(&kdclQueueProperty { queue: queue.base.id, properties, enable })?;
    queue.cached.learn(worker, &reply.facts);
    let change = |flags| if enable == 0 { flags & !properties } else { flags | properties };
    // The closure always returns a value.
    let _ = queue.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |flags| Some(change(flags)));
    // SAFETY: by the contract.
    unsafe { write_optional(old_properties, reply.old) };
    Ok(())
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_command_queue_info(
    queue: cl_command_queue,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let queue = object::<Queue>(queue)?;
    let bytes = match param_name {
        QUEUE_CONTEXT => handle::bytes(&*queue.context),
        QUEUE_DEVICE => handle::bytes(&*queue.device),
        QUEUE_REFERENCE_COUNT => queue.base.count().to_le_bytes().to_vec(),
        QUEUE_PROPERTIES_ARRAY => queue.properties.iter().flat_map(|value| value.to_le_bytes()).collect(),
        QUEUE_DEVICE_DEFAULT => handles([queue.default_of_device()?]),
        _ => queue.cached.ask(query::QUEUE, queue.base.id, param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

pub(crate) fn flush(queue: cl_command_queue) -> Result<(), Code> {
    let queue = object::<Queue>(queue)?;
    session::enqueue(&kdclFlush { queue: queue.base.id })
}

/// Waits until all commands have ended and the data that they read is in the program's memory.
pub(crate) fn finish(queue: cl_command_queue) -> Result<(), Code> {
    let queue = object::<Queue>(queue)?;
    if !queue.is_in_order() || !queue.progress.is_idle() {
        let last = queue.progress.last();
        session::call(&kdclFinish { queue: queue.base.id })?;
        queue.progress.end(last.unwrap_or(0));
    }
    pending_reads::deliver()?;
    session::take_deferred()
}

pub(crate) fn set_default_device_command_queue(
    context: cl_context,
    device: cl_device_id,
    command_queue: cl_command_queue,
) -> Result<(), Code> {
    let (context, device) = (object::<Context>(context)?, object::<Device>(device)?);
    // A device without on-device queues accepts none; drivers may report that before they check this one.
    let queue = if command_queue == cl_command_queue::NULL { None } else { Some(object::<Queue>(command_queue)?) };
    let queue = queue.map_or(0, |queue| queue.base.id);
    let message = kdclDefaultQueue { context: context.base.id, device: device.base.id, queue };
    session::call(&message).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_idle_when_its_last_command_is_known_to_have_ended() {
        let progress = Progress::default();
        assert!(progress.is_idle());
        let first = progress.begin();
        assert!(progress.last().is_none() && !progress.is_idle());
        progress.sent();
        let second = progress.begin();
        progress.sent();
        progress.end(first);
        assert_eq!((first, second, progress.last(), progress.is_idle()), (1, 2, Some(2), false));
        assert!(progress.has_ended(first) && !progress.has_ended(second) && !progress.has_ended(0));
        progress.end(second);
        progress.end(first);
        assert!(progress.is_idle());
        let third = progress.begin();
        progress.sent();
        let fourth = progress.begin();
        progress.sent();
        progress.skip(fourth);
        assert!(!progress.is_idle(), "one before it may be under way");
        progress.skip(third);
        progress.skip(0);
        assert!(progress.has_ended(third) && !progress.has_ended(fourth));
    }

    #[test]
    fn a_command_that_may_have_overtaken_another_says_nothing_of_it() {
        let progress = Progress::default();
        // Counted first, sent last.
        assert_eq!(progress.begin(), 1);
        let overtakes = progress.begin();
        progress.sent();
        progress.end(overtakes);
        progress.sent();
        assert_eq!((overtakes, progress.last(), progress.is_idle()), (0, Some(2), false));
        assert_eq!(progress.begin(), 3);
    }

    #[test]
    fn a_copy_is_alone_or_not_made_and_others_wait_for_it() {
        let progress = Progress::default();
        let first = progress.begin();
        std::thread::scope(|scope| {
            let other = progress.alone(first, || {
                let other = scope.spawn(|| progress.begin());
                while progress.counts.load(Ordering::SeqCst) / COMMAND_UNIT == 1 {
                    thread::yield_now();
                }
                assert!(!other.is_finished());
                other
            });
            assert_eq!(other.unwrap().join().unwrap(), 0, "begun while another was under way");
        });
        assert_eq!(progress.alone(first, || ()), None, "another command was begun");
        (0..2).for_each(|_| progress.sent());
        let (third, _fourth) = (progress.begin(), progress.begin());
        assert_eq!((third, progress.alone(third, || ())), (3, None));
    }
}
