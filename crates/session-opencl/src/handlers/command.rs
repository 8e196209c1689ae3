//! Commands that move no data of the program: launches, copies, fills, markers.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ptr;

use katydid_opencl_sys::{Code, Dispatch, cl_command_queue, cl_event, cl_kernel, cl_mem};
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message;
use katydid_wire::opencl::transfer_extent::{BUFFER_BOX, BUFFER_RUN, IMAGE_BOX, TransferExtent};

use crate::calls::arguments::Arguments;
use crate::calls::fault::Fault;
use crate::drivers::call::driver;
use crate::handlers::pointer;
use crate::objects::held_events::HeldEvent;
use crate::objects::lifetimes::ObjectRef;
use crate::objects::object::Object;
use crate::state::Session;

/// The name of PoCL's platform.
const POCL_PLATFORM: &str = "Portable Computing Language";

/// A command about to be enqueued: its queue, what it waits for, and the event that the program wants.
pub(super) struct Command {
    pub(super) queue: Object<cl_command_queue>,
    queue_ref: ObjectRef,
    waits: Vec<cl_event>,
    event: u32,
}

/// Returns the origin of an extent as drivers read it: an image with levels has four numbers.
pub(super) fn origin_of(form: u32, extent: &TransferExtent) -> [usize; 4] {
    let [x, y, z] = extent.origin;
    [x, y, z, if form == IMAGE_BOX { extent.row } else { 0 }].map(|number| number as usize)
}

impl Command {
    /// Reads the wait list at the start of the arguments.
    pub(super) fn read(session: &Session, queue: u32, event: u32, from: &mut Arguments<'_>) -> Result<Self, Fault> {
        let queue_ref = session.shared.objects.hold::<cl_command_queue>(queue)?;
        let Object { handle, api, size } = queue_ref.object();
        let queue = Object { handle: cl_command_queue(handle), api, size };
        let ids: Vec<u32> = from.list("waits")?;
        let known = session.shared.objects.all_of(api, &ids);
        let waits = known.map_err(|_: Code| Code::INVALID_EVENT_WAIT_LIST)?;
        Ok(Self { queue, queue_ref, waits, event })
    }

    /// Returns the functions of the queue's driver.
    pub(super) fn api(&self) -> &'static Dispatch {
        self.queue.api
    }

    /// Enqueues the command: `call` receives the number of waits, their list, and where the event goes (null: nowhere).
    pub(super) fn run(
        &self,
        session: &Session,
        call: impl FnOnce(u32, *const cl_event, *mut cl_event) -> Code,
    ) -> Result<(), Fault> {
        let mut event = cl_event::NULL;
        let out = if self.event == 0 { ptr::null_mut() } else { &raw mut event };
        call(self.waits.len() as u32, pointer(&self.waits), out).ok()?;
        if self.event != 0 {
            self.bind(session, &HeldEvent::own(event, self.api(), &self.queue_ref))?;
        }
        Ok(())
    }

    /// Enqueues the command, and returns the event for the caller to hold. On an error no command runs, so the caller may free
    /// the memory that it was to read or write.
    pub(super) fn run_held(
        &self,
        session: &Session,
        call: impl FnOnce(u32, *const cl_event, *mut cl_event) -> Code,
    ) -> Result<HeldEvent, Fault> {
        if self.event != 0 {
            session.shared.objects.check_vacant::<cl_event>(self.event)?;
        }
        let mut event = cl_event::NULL;
        call(self.waits.len() as u32, pointer(&self.waits), &raw mut event).ok()?;
        let held = HeldEvent::own(event, self.api(), &self.queue_ref);
        if self.event != 0 {
            let bound = self.bind(session, &held);
            if bound.is_err() {
                // The outcome does not matter any more.
                let _ = held.wait();
            }
            bound?;
        }
        Ok(held)
    }

    /// Notes that the current frame waits for this command's event alone, so that the main loop may poll it.
    pub(super) fn note_awaited(&self, session: &mut Session, event: &HeldEvent) {
        if session.may_poll() {
            driver!(self.api(), clFlush(self.queue.handle));
            session.set_awaited_events(vec![event.clone()]);
        }
    }

    /// Binds the event to the program's id.
    fn bind(&self, session: &Session, event: &HeldEvent) -> Result<(), Fault> {
        Ok(session.shared.objects.set_held::<cl_event>(self.event, event.hold())?)
    }
}

impl Session {
    /// Returns whether a driver is known to survive a launch with groups of zero items, which the standard leaves open: PoCL
    /// chooses a size, NVIDIA's driver divides by it.
    fn stands_empty_groups(&self, api: &'static Dispatch) -> bool {
        let of = self.platforms.iter().find(|platform| ptr::eq(platform.api, api));
        of.is_some_and(|platform| platform.name.starts_with(POCL_PLATFORM))
    }
}

/// Launches a kernel: offsets, sizes, group sizes. Bits 0, 2 and 1 of `given_arrays` say which of them the program gave.
pub(crate) fn kdclLaunch(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclLaunch<'_>,
) -> Result<message::kdclLaunchReply, Fault> {
    let mut arguments = Arguments::new("kdclLaunch", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let kernel: Object<cl_kernel> = session.shared.objects.get_of(command.api(), message.kernel)?;
    let numbers: [usize; 9] = arguments.sizes("sizes")?;
    let part = |at: usize, is_given: bool| if is_given { numbers[at..].as_ptr() } else { ptr::null() };
    let (offset, global, local) = (
        part(0, message.given_arrays & 1 != 0),
        part(3, message.given_arrays & 4 != 0),
        part(6, message.given_arrays & 2 != 0),
    );
    if !(1..=3).contains(&message.dimensions) {
        return Err(Code::INVALID_WORK_DIMENSION.into());
    }
    if message.given_arrays & 2 != 0 {
        let is_empty = numbers[6..].iter().take(message.dimensions as usize).any(|size| *size == 0);
        if is_empty && !session.stands_empty_groups(command.api()) {
            return Err(Code::INVALID_WORK_GROUP_SIZE.into());
        }
    }
    command.run(session, |count, waits, event| {
        driver!(
            command.api(),
            clEnqueueNDRangeKernel(
                command.queue.handle,
                kernel.handle,
                message.dimensions,
                offset,
                global,
                local,
                count,
                waits,
                event,
            )
        )
    })?;
    // A launch that the driver refuses must not bar the session from devices that would refuse it too.
    if message.given_arrays & 2 != 0 {
        let size = |at: usize| if (at as u32) < message.dimensions { numbers[6 + at] as u64 } else { 1 };
        session.journal.launched(message.kernel, message.queue, [size(0), size(1), size(2)]);
    }
    Ok(message::kdclLaunchReply {})
}

/// Copies between objects, with both extents. `form` gives the kinds of source and destination.
pub(crate) fn kdclCopy(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclCopy<'_>,
) -> Result<message::kdclCopyReply, Fault> {
    let mut arguments = Arguments::new("kdclCopy", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let source: Object<cl_mem> = session.shared.objects.get_of(command.api(), message.source)?;
    let destination: Object<cl_mem> = session.shared.objects.get_of(command.api(), message.destination)?;
    let (from, to): (TransferExtent, TransferExtent) = (arguments.take("extent")?, arguments.take("extent")?);
    command.run(session, |count, waits, event| {
        copy(&command, message.form, (source.handle, &from), (destination.handle, &to), (count, waits, event))
    })?;
    Ok(message::kdclCopyReply {})
}

type WaitList = (u32, *const cl_event, *mut cl_event);

fn copy(
    command: &Command,
    form: u32,
    from: (cl_mem, &TransferExtent),
    to: (cl_mem, &TransferExtent),
    waits: WaitList,
) -> Code {
    let sizes = |numbers: [u64; 3]| numbers.map(|number| number as usize);
    let (api, queue, (count, list, event)) = (command.api(), command.queue.handle, waits);
    let (source, target) = (origin_of(form & 0xf, from.1), origin_of(form >> 4, to.1));
    let region = sizes(from.1.region);
    let (start, end, area) = (source.as_ptr(), target.as_ptr(), region.as_ptr());
    match (form & 0xf, form >> 4) {
        (BUFFER_RUN, BUFFER_RUN) => {
            driver!(api, clEnqueueCopyBuffer(queue, from.0, to.0, source[0], target[0], region[0], count, list, event))
        }
        (BUFFER_BOX, BUFFER_BOX) => {
            let [row, slice, to_row, to_slice] =
                [from.1.row, from.1.slice, to.1.row, to.1.slice].map(|pitch| pitch as usize);
            driver!(
                api,
                clEnqueueCopyBufferRect(
                    queue, from.0, to.0, start, end, area, row, slice, to_row, to_slice, count, list, event
                )
            )
        }
        (IMAGE_BOX, IMAGE_BOX) => {
            driver!(api, clEnqueueCopyImage(queue, from.0, to.0, start, end, area, count, list, event))
        }
        (IMAGE_BOX, BUFFER_RUN) => {
            driver!(api, clEnqueueCopyImageToBuffer(queue, from.0, to.0, start, area, target[0], count, list, event))
        }
        (BUFFER_RUN, IMAGE_BOX) => {
            let region = sizes(to.1.region);
            let area = region.as_ptr();
            driver!(api, clEnqueueCopyBufferToImage(queue, from.0, to.0, source[0], end, area, count, list, event))
        }
        _ => Code::INVALID_VALUE,
    }
}

/// Fills an extent with a pattern.
pub(crate) fn kdclFill(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclFill<'_>,
) -> Result<message::kdclFillReply, Fault> {
    let mut arguments = Arguments::new("kdclFill", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let memory: Object<cl_mem> = session.shared.objects.get_of(command.api(), message.memory)?;
    let extent: TransferExtent = arguments.take("extent")?;
    let pattern = arguments.remaining();
    // An image color has 16 bytes, whatever the size of the image's elements.
    let needed = if message.form == IMAGE_BOX { 16 } else { message.patternSize as usize };
    if pattern.len() != needed {
        return Err(Code::INVALID_VALUE.into());
    }
    let (api, queue) = (command.api(), command.queue.handle);
    let origin = origin_of(message.form, &extent);
    let region = extent.region.map(|number| number as usize);
    let bytes = pattern.as_ptr().cast();
    command.run(session, |count, waits, event| {
        if message.form == IMAGE_BOX {
            let (origin, region) = (origin.as_ptr(), region.as_ptr());
            return driver!(api, clEnqueueFillImage(queue, memory.handle, bytes, origin, region, count, waits, event));
        }
        driver!(
            api,
            clEnqueueFillBuffer(queue, memory.handle, bytes, needed, origin[0], region[0], count, waits, event)
        )
    })?;
    Ok(message::kdclFillReply {})
}

/// Migrates objects to a device.
pub(crate) fn kdclMigrate(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclMigrate<'_>,
) -> Result<message::kdclMigrateReply, Fault> {
    let mut arguments = Arguments::new("kdclMigrate", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let ids = arguments.list::<u32>("objects")?;
    let objects: Vec<cl_mem> = session.shared.objects.all_of(command.api(), &ids)?;
    let (api, queue, length) = (command.api(), command.queue.handle, objects.len() as u32);
    command.run(session, |count, waits, event| {
        driver!(api, clEnqueueMigrateMemObjects(queue, length, pointer(&objects), message.flags, count, waits, event))
    })?;
    Ok(message::kdclMigrateReply {})
}

/// Enqueues a marker or a barrier.
pub(crate) fn kdclMarker(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclMarker<'_>,
) -> Result<message::kdclMarkerReply, Fault> {
    let mut arguments = Arguments::new("kdclMarker", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let (api, queue) = (command.api(), command.queue.handle);
    command.run(session, |count, waits, event| {
        if message.barrier == 0 {
            driver!(api, clEnqueueMarkerWithWaitList(queue, count, waits, event))
        } else {
            driver!(api, clEnqueueBarrierWithWaitList(queue, count, waits, event))
        }
    })?;
    Ok(message::kdclMarkerReply {})
}
