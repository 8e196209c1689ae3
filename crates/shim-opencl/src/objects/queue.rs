//! Command queues, and how far each is.
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
    /// The properties as the program gave them, with the 0 that ends them.
    properties: Vec<u64>,
    /// Its properties, a bit field of `CL_QUEUE_…_ENABLE`.
    flags: AtomicU64,
    /// What is on its way.
    pub(crate) progress: Progress,
    /// The program has asked when a command of it came to its states, and so will again.
    asks_times: AtomicBool,
    /// Kinds of commands ([`InfallibleCommand`]) that the driver of a worker has accepted.
    accepted: PerWorker,
    accepted_images: Mutex<AcceptedImageCommands>,
    cached: CachedValues,
}

kind_of_object! { Queue cl_command_queue QUEUE INVALID_COMMAND_QUEUE MAX_PROGRAM_OBJECTS }

/// Commands of images that drivers may have for some kinds and formats alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ImageCommand {
    Fill,
    Write,
    /// From the first of two to the second.
    Copy,
}

/// Such commands of a queue that the driver of a worker has accepted, each with the kinds and formats of its images.
#[derive(Debug, Default)]
struct AcceptedImageCommands {
    worker: u32,
    commands: HashSet<(ImageCommand, [Option<OpenclImageKind>; 2])>,
}

/// Commands with which nothing of the program's can be wrong where a driver has them at all. Each is one bit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InfallibleCommand {
    Fill = 1,
    Marker = 2,
    Barrier = 4,
}

/// How far a queue is that keeps its order, as far as it is known here: so that no thread waits for what is known to have ended.
///
/// Commands are counted from 1. That one has ended says that all before it have, if these were sent before it was
/// counted: another thread may be about to send one with a lower number.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Commands so far, in units of [`COMMAND_UNIT`], and those of them that are not sent yet.
    counts: AtomicU64,
    /// All up to this one are known to have ended.
    ended: AtomicU64,
    /// Threads for whose copies others wait before they send anything.
    copying: AtomicU32,
}

/// One command; below it there is room for more threads than a session may have.
const COMMAND_UNIT: u64 = 1 << 16;

impl Progress {
    /// Counts a command that is about to be sent. Its number; 0 if its end will say nothing of those before it.
    pub(crate) fn begin(&self) -> u64 {
        // Either this thread sees the thread that copies, or that thread sees this command: both are in one order for all.
        let old_counts = self.counts.fetch_add(COMMAND_UNIT + 1, Ordering::SeqCst);
        while self.copying.load(Ordering::SeqCst) != 0 {
            thread::yield_now();
        }
        if old_counts.is_multiple_of(COMMAND_UNIT) { old_counts / COMMAND_UNIT + 1 } else { 0 }
    }

    /// Does `work` while no thread sends anything; none if anything was begun since the command of this number, which is not
    /// counted as sent yet. Others wait meanwhile.
    pub(crate) fn alone<T>(&self, number: u64, work: impl FnOnce() -> T) -> Option<T> {
        self.copying.fetch_add(1, Ordering::SeqCst);
        let _end = CopyGuard(&self.copying);
        (number != 0 && self.counts.load(Ordering::SeqCst) == number * COMMAND_UNIT + 1).then(work)
    }

    /// One that was counted is sent, or will not be.
    pub(crate) fn sent(&self) {
        self.counts.fetch_sub(1, Ordering::AcqRel);
    }

    /// A command has ended, whose number is this.
    pub(crate) fn end(&self, number: u64) {
        self.ended.fetch_max(number, Ordering::AcqRel);
    }

    /// A command that is not sent has ended, if all before it are known to have.
    pub(crate) fn skip(&self, number: u64) {
        if self.have_ended_before(number) {
            self.end(number);
        }
    }

    /// Whether all commands before that of a number are known to have ended.
    pub(crate) fn have_ended_before(&self, number: u64) -> bool {
        number.checked_sub(1).is_some_and(|before| before <= self.ended.load(Ordering::Acquire))
    }

    /// Whether the command of a number is known to have ended; of one without never.
    pub(crate) fn has_ended(&self, number: u64) -> bool {
        (1..=self.ended.load(Ordering::Acquire)).contains(&number)
    }

    /// The number of the last command; none if some are not sent yet.
    fn last(&self) -> Option<u64> {
        let counts = self.counts.load(Ordering::Acquire);
        counts.is_multiple_of(COMMAND_UNIT).then_some(counts / COMMAND_UNIT)
    }

    /// Whether all commands have ended.
    fn is_idle(&self) -> bool {
        self.last().is_some_and(|last| last <= self.ended.load(Ordering::Acquire))
    }
}

/// Whether all commands of a context are known to have ended: each queue that it has had is still there, and keeps its order.
pub(crate) fn are_queues_idle(context: &Context) -> bool {
    /// Most queues that are looked at; where there are more, none is.
    const MAX_QUEUES: u32 = 8;
    let queue_count = context.queues();
    if queue_count == 0 || queue_count > MAX_QUEUES {
        return queue_count == 0;
    }
    let live = Queue::table().live();
    let own = || live.iter().filter(|queue| queue.context.base.id == context.base.id);
    own().count() == queue_count as usize && own().all(|queue| queue.is_in_order() && queue.progress.is_idle())
}

/// Commands that the queues of a context have had so far, those alone that are still there.
pub(crate) fn commands(context: &Context) -> u64 {
    let live = Queue::table().live();
    let own = live.iter().filter(|queue| queue.context.base.id == context.base.id);
    own.map(|queue| queue.progress.counts.load(Ordering::Relaxed) / COMMAND_UNIT).sum()
}

/// A thread that copies, however it ends.
struct CopyGuard<'a>(&'a AtomicU32);

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Queue {
    /// Whether one command is done after the other.
    pub(crate) fn is_in_order(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0
    }

    /// Whether all that the program enqueues later comes after the commands of this queue: it keeps its order, and its context has had
    /// no other one.
    pub(crate) fn is_before_all(&self) -> bool {
        self.is_in_order() && self.context.has_one_queue()
    }

    /// The program wants to know when a command came to its states.
    pub(crate) fn times_are_asked(&self) {
        self.asks_times.store(self.is_profiled(), Ordering::Relaxed);
    }

    /// Whether it has wanted to.
    pub(crate) fn are_times_asked(&self) -> bool {
        self.asks_times.load(Ordering::Relaxed)
    }

    /// Whether the driver of a worker has accepted such a command of it.
    pub(crate) fn has_accepted(&self, worker: u32, command: InfallibleCommand) -> bool {
        self.accepted.get(worker) & command as u32 != 0
    }

    /// Whether the driver of a worker has accepted such a command of such images; none: not of an image.
    pub(crate) fn has_accepted_images(
        &self,
        worker: u32,
        command: ImageCommand,
        images: [Option<OpenclImageKind>; 2],
    ) -> bool {
        let accepted = self.accepted_images.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.worker == worker && accepted.commands.contains(&(command, images))
    }

    /// Notes that the driver of a worker has accepted such a command.
    pub(crate) fn accepted_images(&self, worker: u32, command: ImageCommand, images: [Option<OpenclImageKind>; 2]) {
        let mut accepted = self.accepted_images.lock().unwrap_or_else(PoisonError::into_inner);
        if accepted.worker != worker {
            *accepted = AcceptedImageCommands { worker, ..AcceptedImageCommands::default() };
        }
        accepted.commands.insert((command, images));
    }

    /// The driver of a worker has accepted such a command of it.
    pub(crate) fn accepted(&self, worker: u32, command: InfallibleCommand) {
        self.accepted.learn(worker, |commands| commands | command as u32);
    }

    /// The queue that kernels of its device enqueue to, as a handle; 0: none that the program has made. The driver knows it, and says
    /// of which queues it may be asked.
    fn default_of_device(&self) -> Result<usize, Code> {
        let id = ask(query::QUEUE, self.base.id, 0, QUEUE_DEVICE_DEFAULT, &[])?;
        let id = u32::take(&mut &id[..]).unwrap_or(0);
        let queues = Self::table().live();
        Ok(queues.iter().find(|queue| queue.base.id == id).map_or(0, |queue| queue.base.handle))
    }

    /// Whether it keeps the times of its commands.
    pub(crate) fn is_profiled(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & QUEUE_PROFILING_ENABLE != 0
    }
}

/// The flags in a list of properties.
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
    // SAFETY: handed on.
    match unsafe { pairs(properties) } {
        Some(list) => create(context, device, properties_form::LIST, &list[..list.len() - 1], list.clone()),
        None => create(context, device, properties_form::NONE, &[], Vec::new()),
    }
}

pub(crate) fn retain_command_queue(queue: cl_command_queue) -> Result<(), Code> {
    handle::retain::<Queue>(queue)
}

/// As the standard has it, what was enqueued is begun.
pub(crate) fn release_command_queue(queue: cl_command_queue) -> Result<(), Code> {
    flush(queue)?;
    handle::release::<Queue>(queue)
}

/// As the standard has it, a change of the order waits for everything before it.
///
/// # Safety
///
/// The place is null or writable.
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
    // The function always has a value.
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
    // SAFETY: handed on.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

pub(crate) fn flush(queue: cl_command_queue) -> Result<(), Code> {
    let queue = object::<Queue>(queue)?;
    session::enqueue(&kdclFlush { queue: queue.base.id })
}

/// Everything that was enqueued has ended, and what it read is in the program's memory.
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
    // A device without queues of its own takes none, which drivers may say before they look at this one.
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
        // Counted first and sent last.
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
