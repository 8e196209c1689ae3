//! Commands that move data between a memory object and the program.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::sync::Arc;

use katydid_opencl_sys::{Code, cl_event, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::transfer_extent::{BUFFER_BOX, BUFFER_RUN, IMAGE_BOX, TransferExtent};
use katydid_wire::opencl::{
    MAX_REPLY_VALUE_BYTES, NO_ZERO_COPY_OFFSET, STAGED_IN_HOST, STAGED_IN_PIECE, STAGED_IN_SVM, fetch_mode, message,
};

use crate::calls::arguments::Arguments;
use crate::calls::executor::ExecutorCall;
use crate::calls::fault::{Fault, SessionError};
use crate::calls::pending_reads::{CommandEnd, PendingRead, PendingTransfer, ReadBuffer, ReadLocation};
use crate::drivers::call::driver;
use crate::handlers::command::{Command, origin_of};
use crate::memory::address::pointer;
use crate::objects::held_events::HeldEvent;
use crate::objects::object::Object;
use crate::state::Session;

/// Where the program's bytes are in this process, with the pitches of rows and slices in bytes; 0: no gaps.
#[derive(Clone, Copy)]
pub(super) struct Host {
    pub(super) start: *mut void,
    pub(super) row: usize,
    pub(super) slice: usize,
}

impl Host {
    /// Returns memory whose rows and slices have no gaps.
    fn packed(start: *mut void) -> Self {
        Self { start, row: 0, slice: 0 }
    }
}

/// The object and extent of a transfer.
pub(super) struct Transfer {
    memory: Object<cl_mem>,
    form: u32,
    extent: TransferExtent,
    /// Bytes of one element: an image's element, or one.
    element: u64,
    bytes: u64,
}

impl Transfer {
    pub(super) fn read(
        session: &Session,
        command: &Command,
        (memory, form): (u32, u32),
        from: &mut Arguments<'_>,
    ) -> Result<Self, Fault> {
        let memory: Object<cl_mem> = session.shared.objects.get_of(command.api(), memory)?;
        let extent: TransferExtent = from.take("extent")?;
        let element = if form == IMAGE_BOX { memory.size } else { 1 };
        let bytes = extent.bytes(element).ok_or(Code::INVALID_VALUE)?;
        Ok(Self { memory, form, extent, element, bytes })
    }

    /// Returns the bytes from the program's first to its last, gaps included; `None` on overflow.
    pub(super) fn reach(&self, row: u64, slice: u64) -> Option<u64> {
        let [width, rows, slices] = self.extent.region;
        let width = width.checked_mul(self.element)?;
        // The images of an array of lines are a slice apart, and count as rows.
        let row = if slices == 1 { row.max(width).max(slice) } else { row.max(width) };
        let slice = if slice == 0 { rows.checked_mul(row)? } else { slice };
        let last = |count: u64, step: u64| count.checked_sub(1)?.checked_mul(step);
        last(slices, slice)?.checked_add(last(rows, row)?)?.checked_add(width)
    }

    /// Reads where the driver is to access fine-grained shared virtual memory, from the end of a message.
    fn in_svm(&self, session: &Session, mut address_bytes: &[u8]) -> Result<Host, Fault> {
        let mut next = || u64::take(&mut address_bytes);
        let ((address, row), slice) = next()
            .zip(next())
            .zip(next())
            .ok_or(SessionError::BadPart { message: "a transfer", part: "host address" })?;
        session.svm.check_fine(address, self.reach(row, slice).ok_or(Code::INVALID_VALUE)?)?;
        Ok(Host { start: pointer(address), row: row as usize, slice: slice as usize })
    }

    fn sizes(numbers: [u64; 3]) -> [usize; 3] {
        numbers.map(|number| number as usize)
    }

    /// Enqueues a read into, or a write from, memory that holds the transfer's bytes.
    pub(super) fn enqueue(&self, command: &Command, host: Host, is_read: bool, waits: WaitList) -> Code {
        let ((count, list, event), Host { start: data, row, slice }) = (waits, host);
        let (api, queue, memory) = (command.api(), command.queue.handle, self.memory.handle);
        let (origin, region) = (origin_of(self.form, &self.extent), Self::sizes(self.extent.region));
        let (start, area) = (origin.as_ptr(), region.as_ptr());
        match (self.form, is_read) {
            (BUFFER_RUN, true) => {
                driver!(api, clEnqueueReadBuffer(queue, memory, 0, origin[0], region[0], data, count, list, event))
            }
            (BUFFER_RUN, false) => {
                driver!(api, clEnqueueWriteBuffer(queue, memory, 0, origin[0], region[0], data, count, list, event))
            }
            (BUFFER_BOX, _) => self.enqueue_box(command, host, is_read, waits),
            (IMAGE_BOX, true) => {
                driver!(api, clEnqueueReadImage(queue, memory, 0, start, area, row, slice, data, count, list, event))
            }
            (IMAGE_BOX, false) => {
                driver!(api, clEnqueueWriteImage(queue, memory, 0, start, area, row, slice, data, count, list, event))
            }
            _ => Code::INVALID_VALUE,
        }
    }

    fn enqueue_box(&self, command: &Command, host: Host, is_read: bool, (count, list, event): WaitList) -> Code {
        let (api, queue, memory) = (command.api(), command.queue.handle, self.memory.handle);
        let (origin, region, zero) = (Self::sizes(self.extent.origin), Self::sizes(self.extent.region), [0usize; 3]);
        let (start, area, none) = (origin.as_ptr(), region.as_ptr(), zero.as_ptr());
        let (row, slice) = (self.extent.row as usize, self.extent.slice as usize);
        let Host { start: data, row: host_row, slice: host_slice } = host;
        if is_read {
            driver!(
                api,
                clEnqueueReadBufferRect(
                    queue, memory, 0, start, none, area, row, slice, host_row, host_slice, data, count, list, event
                )
            )
        } else {
            driver!(
                api,
                clEnqueueWriteBufferRect(
                    queue, memory, 0, start, none, area, row, slice, host_row, host_slice, data, count, list, event
                )
            )
        }
    }

    /// Enqueues a read into new memory.
    fn enqueue_read(&self, session: &Session, command: &Command) -> Result<(ReadBuffer, HeldEvent), Fault> {
        let target = ReadBuffer::new(self.bytes)?;
        let host_memory = Host::packed(target.pointer());
        let event = command
            .run_held(session, |count, list, event| self.enqueue(command, host_memory, true, (count, list, event)))?;
        Ok((target, event))
    }

    /// Enqueues a write of the bytes at `host_memory`, which `guard` keeps alive until the command has ended. The program takes a
    /// blocking write for done, so the write is flushed, and a later message may wait for it.
    fn enqueue_write(
        &self,
        session: &mut Session,
        (command, message): (&Command, &message::kdclWrite<'_>),
        host_memory: Host,
        guard: impl Send + 'static,
    ) -> Result<message::kdclWriteReply, Fault> {
        let waits = |count, list, event| self.enqueue(command, host_memory, false, (count, list, event));
        let event = command.run_held(session, waits)?;
        let last = (message.blocking != 0).then(|| event.clone());
        session.event_poller.keep_until(event, guard)?;
        if let Some(last) = last {
            driver!(command.api(), clFlush(command.queue.handle));
            if let Some(entry) = session.journal.get(message.queue) {
                session.taken_for_done.insert(entry.creation.frame.word(4), last);
            }
        }
        Ok(message::kdclWriteReply {})
    }
}

type WaitList = (u32, *const cl_event, *mut cl_event);

/// Writes the program's bytes to an object.
pub(crate) fn kdclWrite(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclWrite<'_>,
) -> Result<message::kdclWriteReply, Fault> {
    let mut arguments = Arguments::new("kdclWrite", message.waits);
    let read = Command::read(session, message.queue, message.event, &mut arguments).and_then(|command| {
        let transfer = Transfer::read(session, &command, (message.memory, message.form), &mut arguments)?;
        Ok((command, transfer))
    });
    if message.staged == STAGED_IN_SVM {
        let (command, transfer) = read?;
        let host_memory = transfer.in_svm(session, arguments.remaining())?;
        return transfer.enqueue_write(session, (&command, &message), host_memory, ());
    }
    if message.staged == STAGED_IN_HOST {
        return write_from_host(session, &message, arguments.remaining(), read);
    }
    if message.staged >= STAGED_IN_PIECE {
        return write_piece(session, &message, read);
    }
    // The message consumes its uploaded bytes, however it ends.
    let bytes = session.bytes(head, message.staged, arguments.remaining())?;
    let (command, transfer) = read?;
    if bytes.len() as u64 != transfer.bytes {
        return Err(Code::INVALID_VALUE.into());
    }
    let bytes = bytes.into_owned();
    let host_memory = Host::packed(bytes.as_ptr().cast_mut().cast());
    transfer.enqueue_write(session, (&command, &message), host_memory, bytes)
}

/// Writes bytes that lie in a piece of the staging area. The program gets the piece back, however the write ends.
fn write_piece(
    session: &mut Session,
    message: &message::kdclWrite<'_>,
    read: Result<(Command, Transfer), Fault>,
) -> Result<message::kdclWriteReply, Fault> {
    let bad = || SessionError::BadPart { message: "kdclWrite", part: "piece" };
    let piece = message.staged - STAGED_IN_PIECE;
    let area = session.staging.as_ref().ok_or_else(bad)?;
    let held = area.hold(piece).ok_or_else(bad)?;
    let (command, transfer) = read?;
    let host_memory = area.pointer(piece, transfer.bytes).ok_or(Code::INVALID_VALUE)?;
    session.count_staged(message.queue, transfer.bytes);
    transfer.enqueue_write(session, (&command, message), Host::packed(host_memory), held)
}

/// Writes bytes that lie in memory shared with the program. The message has their address, and that of the word that returns
/// them, however the write ends.
fn write_from_host(
    session: &mut Session,
    message: &message::kdclWrite<'_>,
    mut address_bytes: &[u8],
    read: Result<(Command, Transfer), Fault>,
) -> Result<message::kdclWriteReply, Fault> {
    let bad = || SessionError::BadPart { message: "kdclWrite", part: "host address" };
    let host = session.host.as_ref().ok_or_else(bad)?;
    let (address, word) = u64::take(&mut address_bytes).zip(u64::take(&mut address_bytes)).ok_or_else(bad)?;
    let held = host.hold(word).ok_or_else(bad)?;
    let (command, transfer) = read?;
    let host_memory = host.pointer_to(address, transfer.bytes)?;
    transfer.enqueue_write(session, (&command, message), Host::packed(host_memory), held)
}

/// Returns where a read goes, if its message says: a piece of the staging area, by a number from 1; an address in shared memory;
/// or fine-grained shared virtual memory with its gaps.
fn read_destination(session: &Session, transfer: &Transfer, arguments: Arguments<'_>) -> Result<Option<Host>, Fault> {
    let bad = || SessionError::BadPart { message: "kdclRead", part: "host address" };
    let (mut rest, size) = (arguments.remaining(), transfer.bytes);
    let host_memory = match rest.len() {
        0 => return Ok(None),
        24 => return transfer.in_svm(session, rest).map(Some),
        4 => u32::take(&mut rest)
            .zip(session.staging.as_ref())
            .and_then(|(number, area)| area.pointer(number.checked_sub(1)?, size)),
        8 => u64::take(&mut rest)
            .zip(session.host.as_ref())
            .and_then(|(address, host)| host.pointer_to(address, size).ok()),
        _ => None,
    };
    Ok(Some(Host::packed(host_memory.ok_or_else(bad)?)))
}

/// Reads an object's bytes, which the program fetches later by `read_number`; with 0 it wants only the command, not its bytes.
/// With a destination after the extent, the bytes are there when the command has ended, and no fetch follows.
pub(crate) fn kdclRead(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclRead<'_>,
) -> Result<message::kdclReadReply, Fault> {
    let mut arguments = Arguments::new("kdclRead", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let transfer = Transfer::read(session, &command, (message.memory, message.form), &mut arguments)?;
    let (target, event) = match read_destination(session, &transfer, arguments)? {
        // Only the news of the end is left to fetch.
        Some(host_memory) => {
            session.count_staged(message.queue, transfer.bytes);
            let waits = |count, list, event| transfer.enqueue(&command, host_memory, true, (count, list, event));
            (ReadBuffer::new(0)?, command.run_held(session, waits)?)
        }
        None => transfer.enqueue_read(session, &command)?,
    };
    if message.read_number == 0 {
        session.event_poller.keep_until(event, target)?;
    } else {
        session.shared.pending_reads.add(
            message.read_number,
            PendingRead { location: ReadLocation::Own(Arc::new(target)), end: CommandEnd::Awaited(event) },
        );
    }
    Ok(message::kdclReadReply {})
}

/// Reads an object's bytes, and waits for them.
pub(crate) fn kdclReadNow(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclReadNow<'_>,
) -> Result<ExecutorCall<message::kdclReadNowReply>, Fault> {
    let mut arguments = Arguments::new("kdclReadNow", message.waits);
    let command = Command::read(session, message.queue, message.event, &mut arguments)?;
    let transfer = Transfer::read(session, &command, (message.memory, message.form), &mut arguments)?;
    if transfer.bytes > MAX_REPLY_VALUE_BYTES as u64 {
        return Err(Code::INVALID_VALUE.into());
    }
    let (target, event) = transfer.enqueue_read(session, &command)?;
    let underway = PendingTransfer::new(target, event);
    command.note_awaited(session, underway.event());
    Ok(Box::new(move |_| {
        let target = underway.wait()?;
        let data = target.copy(0, target.len() as u32).unwrap_or_default();
        Ok(message::kdclReadNowReply { data })
    }))
}

/// Waits until a copy from or to a buffer in the zero-copy area could run, and returns where its bytes are. The driver reads or
/// writes the first byte, in its place among the commands.
pub(crate) fn kdclZeroCopy(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclZeroCopy<'_>,
) -> Result<ExecutorCall<message::kdclZeroCopyReply>, Fault> {
    let mut arguments = Arguments::new("kdclZeroCopy", message.waits);
    let command = Command::read(session, message.queue, 0, &mut arguments)?;
    let transfer = Transfer::read(session, &command, (message.memory, BUFFER_RUN), &mut arguments)?;
    let at = transfer.extent.origin[0];
    let (position, epoch) = session.zero_copy_position(message.memory, at);
    if matches!(position, 0 | NO_ZERO_COPY_OFFSET) {
        return Ok(Box::new(move |_| Ok(message::kdclZeroCopyReply { position, epoch })));
    }
    let first = Transfer { extent: TransferExtent::run(at, 1), bytes: 1, ..transfer };
    let target = ReadBuffer::of(message.first as u8);
    let (byte, is_read) = (Host::packed(target.pointer()), message.direction == 0);
    let event =
        command.run_held(session, |count, list, event| first.enqueue(&command, byte, is_read, (count, list, event)))?;
    let underway = PendingTransfer::new(target, event);
    command.note_awaited(session, underway.event());
    Ok(Box::new(move |_| underway.wait().map(|_| message::kdclZeroCopyReply { position, epoch })))
}

/// Returns a part of a read, if the command has ended or the message waits for it.
pub(crate) fn kdclFetch(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclFetch,
) -> Result<ExecutorCall<message::kdclFetchReply>, Fault> {
    if message.size as usize > MAX_REPLY_VALUE_BYTES {
        return Err(Code::INVALID_VALUE.into());
    }
    // A transfer without bytes only has to report its end, which the main loop can do at once.
    if message.size == 0
        && session.may_query()
        && let Some(event) = session.shared.pending_reads.event(message.read_number)
    {
        session.set_awaited_events(vec![event]);
    }
    Ok(Box::new(move |shared| {
        let waits = matches!(message.how, fetch_mode::FETCH_AT_END | fetch_mode::QUERY_AT_END);
        if matches!(message.how, fetch_mode::QUERY | fetch_mode::QUERY_AT_END) {
            let state = shared.pending_reads.query(message.read_number, waits)?;
            return Ok(message::kdclFetchReply { state, data: Vec::new() });
        }
        let (state, data) = shared.pending_reads.fetch(message.read_number, message.offset, message.size, waits)?;
        Ok(message::kdclFetchReply { state, data })
    }))
}

#[cfg(test)]
mod tests {
    use katydid_opencl_sys::Dispatch;

    use super::*;
    use crate::tests::empty_table;

    #[test]
    fn transfers_reach_to_their_last_byte_or_nowhere() {
        let api: &'static Dispatch = Box::leak(Box::new(empty_table()));
        let memory = Object { handle: cl_mem::NULL, api, size: 0 };
        let reach = |region: [u64; 3], element, row, slice| {
            let extent = TransferExtent { origin: [0; 3], region, row: 0, slice: 0 };
            Transfer { memory, form: BUFFER_BOX, extent, element, bytes: 0 }.reach(row, slice)
        };
        assert_eq!(reach([100, 1, 1], 1, 0, 0), Some(100));
        assert_eq!(reach([16, 6, 1], 4, 80, 0), Some(5 * 80 + 64));
        assert_eq!(reach([16, 6, 1], 4, 80, 80), Some(5 * 80 + 64), "the lines of an array");
        assert_eq!(reach([16, 6, 1], 4, 80, 1), Some(5 * 80 + 64), "a slice may be said that is none");
        assert_eq!(reach([16, 6, 3], 4, 80, 1000), Some(2 * 1000 + 5 * 80 + 64));
        assert_eq!(reach([16, 6, 3], 4, 80, 0), Some(2 * 480 + 5 * 80 + 64));
        for (region, row) in [([u64::MAX, 1, 1], 0), ([1, 3, 1], u64::MAX), ([0, 0, 1], 1)] {
            assert_eq!(reach(region, 4, row, 0), None, "{region:?}");
        }
    }
}
