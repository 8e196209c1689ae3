//! A session under attack: frames of every opcode with bytes that no honest program sends, without a driver and with one that
//! lacks all functions.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use katydid_opencl_sys::constant::DEVICE_TYPE_ALL;
use katydid_opencl_sys::{
    Code, Dispatch, cl_command_queue, cl_context, cl_device_id, cl_event, cl_kernel, cl_mem, cl_platform_id,
    cl_program, void,
};
use katydid_session_core::{Capture, Checkpointable, QuiesceError, Usage};
use katydid_transport::{LinkError, OutgoingReply, Replier};
use katydid_wire::codec::Message;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message::{self, message_name};
use katydid_wire::opencl::{STAGED_IN_HOST, STAGED_IN_PIECE, id, kind, list, value};

use crate::calls::fault::SessionError;
use crate::calls::pending_reads::{CommandEnd, PendingRead, ReadLocation};
use crate::drivers::driver::Platform;
use crate::journal::JournalState;
use crate::memory::staged::StagingArea;
use crate::memory::svm_placement::HEAP_BLOCK_BYTES;
use crate::objects::held_events::HeldEvent;
use crate::objects::object::Object;
use crate::snapshot::parse_state;
use crate::state::Session;

/// Records the codes of replies.
#[derive(Default)]
pub(crate) struct Notes(Mutex<Vec<(u64, i32)>>);

impl Replier for Notes {
    fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError> {
        self.0.lock().unwrap().push((answer.sequence, answer.status.cast_signed()));
        Ok(())
    }
}

/// Returns the table of a driver that has no functions.
pub(crate) fn empty_table() -> Dispatch {
    // SAFETY: every entry of a table of zeros is `None`.
    #[expect(unsafe_code, reason = "an empty table")]
    unsafe {
        std::mem::zeroed()
    }
}

/// Returns a platform of one device, whose driver has no functions.
fn mute() -> Platform {
    let api: &'static Dispatch = Box::leak(Box::new(empty_table()));
    let pointer = std::ptr::without_provenance_mut;
    Platform {
        handle: cl_platform_id(pointer(64)),
        api,
        devices: vec![(cl_device_id(pointer(128)), DEVICE_TYPE_ALL)],
        name: "mute".to_owned(),
    }
}

/// Returns an event of a driver that answers only queries about it.
pub(crate) fn event(
    handle: cl_event,
    info: unsafe extern "C" fn(cl_event, u32, usize, *mut void, *mut usize) -> i32,
) -> HeldEvent {
    let mut api = empty_table();
    api.clGetEventInfo = Some(info);
    HeldEvent::alone(handle, Box::leak(Box::new(api)))
}

pub(crate) fn session() -> (Session, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let usage = Arc::new(Usage::new(None));
    let session = Session::new(vec![mute()], Arc::clone(&notes) as Arc<dyn Replier>, usage, Capture::default());
    (session.unwrap(), notes)
}

fn head(opcode: u16, sequence: u64, wants_reply: bool) -> FrameHead {
    FrameHead { opcode, wants_reply, thread: 1 + (sequence % 3) as u32, context: 0, sequence }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Sends every opcode with random bytes, many of which are ids of existing objects, small counts, or zero.
#[test]
fn no_frame_makes_a_session_panic() {
    let mut state = 0x2545_f491_4f6c_dd1d;
    let opcodes: Vec<u16> = (1..).take_while(|opcode| message_name(*opcode).is_some()).collect();
    assert!(opcodes.len() > 50);
    let (mut session, _) = session();
    for sequence in 0..20_000 {
        let opcode = opcodes[random(&mut state) as usize % opcodes.len()];
        // Would wait for a callback that never comes, on a thread that outlives this test.
        if opcode == message::kdclUpcallNext::OPCODE {
            continue;
        }
        let words = random(&mut state) % 24;
        let payload: Vec<u8> = (0..words)
            .flat_map(|_| match random(&mut state) % 6 {
                0 => id(kind::DEVICE, 0).to_le_bytes(),
                1 => id(kind::PLATFORM, 0).to_le_bytes(),
                2 => (random(&mut state) as u32 % 4).to_le_bytes(),
                3 => u32::MAX.to_le_bytes(),
                _ => (random(&mut state) as u32 & 0xff).to_le_bytes(),
            })
            .collect();
        let cut = payload.len() - (random(&mut state) as usize % 4).min(payload.len());
        if session.execute(&head(opcode, sequence, random(&mut state).is_multiple_of(2)), &payload[..cut]).is_err() {
            session = self::session().0;
        }
    }
}

#[test]
fn unsupported_driver_function_is_an_invalid_operation() {
    let (mut session, notes) = session();
    let message = message::kdclTimers { device: id(kind::DEVICE, 0), host: 0, wanted: 3 };
    let mut payload = Vec::new();
    message.encode(&mut payload);
    session.execute(&head(message::kdclTimers::OPCODE, 7, true), &payload).unwrap();
    assert_eq!(notes.0.lock().unwrap()[..], [(7, Code::INVALID_OPERATION.0)]);
}

#[test]
fn unawaited_failure_is_reported_with_the_next_reply() {
    let (mut session, _) = session();
    let mut payload = Vec::new();
    message::kdclTimers { device: 5, host: 0, wanted: 3 }.encode(&mut payload);
    session.execute(&head(message::kdclTimers::OPCODE, 1, false), &payload).unwrap();
    assert_eq!(session.shared.replies.take_deferred(), Code::INVALID_DEVICE.0.cast_unsigned());
}

/// Destructor callbacks that the driver received, with their user data.
static DESTROYED: Mutex<Vec<(unsafe extern "C" fn(cl_mem, *mut void), usize)>> = Mutex::new(Vec::new());

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn when_destroyed(
    _: cl_mem,
    notify: Option<unsafe extern "C" fn(cl_mem, *mut void)>,
    data: *mut void,
) -> i32 {
    DESTROYED.lock().unwrap().push((notify.unwrap(), data.expose_provenance()));
    0
}

#[test]
#[expect(unsafe_code, reason = "an empty table, and what a driver calls")]
fn the_end_of_an_object_that_a_driver_still_has_is_due_after_a_restore() {
    let mut api = empty_table();
    api.clSetMemObjectDestructorCallback = Some(when_destroyed);
    api.clReleaseMemObject = Some(release);
    let (mut session, _) = session();
    let memory = id(kind::MEMORY, 3);
    let object =
        Object { handle: cl_mem(std::ptr::without_provenance_mut(64)), api: Box::leak(Box::new(api)), size: 8 };
    session.shared.objects.set(memory, object, Vec::new()).unwrap();
    let due =
        |session: &mut Session| -> Vec<u64> { session.state().unwrap().pending.iter().map(|due| due.token).collect() };
    for token in [7, 8] {
        run(&mut session, token, &message::kdclMemoryCallback { memory, token });
    }
    assert!(due(&mut session).is_empty(), "its end has not come");
    run(&mut session, 9, &message::kdclRelease { object: memory });
    assert_eq!(due(&mut session), [8, 7], "the last one is called first");
    for (notify, data) in DESTROYED.lock().unwrap().drain(..).rev() {
        // SAFETY: as a driver does, once for each.
        unsafe { notify(cl_mem::NULL, std::ptr::with_exposed_provenance_mut(data)) };
    }
    assert_eq!(due(&mut session), [8, 7], "each is due once");
}

#[test]
fn a_piece_that_comes_with_a_refused_write_is_given_back() {
    let (mut session, notes) = session();
    let busy = AtomicU32::new(1);
    session.staging = Some(StagingArea::of_one(&busy));
    let write = |staged| {
        let mut payload = Vec::new();
        let memory = id(kind::MEMORY, 0);
        message::kdclWrite { queue: 5, event: 0, memory, form: 0, staged, blocking: 0, waits: &[0; 4] }
            .encode(&mut payload);
        payload
    };
    let opcode = message::kdclWrite::OPCODE;
    session.execute(&head(opcode, 3, true), &write(STAGED_IN_PIECE)).unwrap();
    assert_eq!(notes.0.lock().unwrap()[..], [(3, Code::INVALID_COMMAND_QUEUE.0)]);
    assert_eq!(busy.load(Ordering::Acquire), 0);
    assert!(matches!(
        session.execute(&head(opcode, 4, true), &write(STAGED_IN_PIECE + 1)),
        Err(SessionError::BadPart { part: "piece", .. })
    ));
}

/// The handle of the pipe that the driver of [`with_pipes`] makes.
const PIPE: usize = 512;

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn create_pipe(_: cl_context, _: u64, _: u32, _: u32, _: *const isize, code: *mut i32) -> cl_mem {
    // SAFETY: the session asks for the code.
    unsafe { code.write(0) };
    cl_mem(std::ptr::without_provenance_mut(PIPE))
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn set_argument(_: cl_kernel, _: u32, _: usize, value: *const void) -> i32 {
    // SAFETY: the only argument that is set is a pipe.
    let handle = unsafe { value.cast::<usize>().read_unaligned() };
    if handle == PIPE { 0 } else { Code::INVALID_ARG_VALUE.0 }
}

#[expect(unsafe_code, reason = "a driver's function")]
pub(crate) unsafe extern "C" fn release(_: cl_mem) -> i32 {
    0
}

/// Returns a session with a context and a kernel, whose driver has pipes.
fn with_pipes() -> (Session, Arc<Notes>) {
    let mut api = empty_table();
    api.clCreatePipe = Some(create_pipe);
    api.clSetKernelArg = Some(set_argument);
    api.clReleaseMemObject = Some(release);
    let api: &'static Dispatch = Box::leak(Box::new(api));
    let (session, notes) = session();
    let pointer = std::ptr::without_provenance_mut;
    let objects = &session.shared.objects;
    objects.set(id(kind::CONTEXT, 1), Object { handle: cl_context(pointer(256)), api, size: 0 }, Vec::new()).unwrap();
    objects.set(id(kind::KERNEL, 1), Object { handle: cl_kernel(pointer(320)), api, size: 0 }, Vec::new()).unwrap();
    (session, notes)
}

#[test]
fn a_pipe_is_saved_until_a_kernel_has_it() {
    let (mut session, notes) = with_pipes();
    let (pipe, context, kernel) = (id(kind::MEMORY, 1), id(kind::CONTEXT, 1), id(kind::KERNEL, 1));
    let create = message::kdclPipe { memory: pipe, context, flags: 0, packetSize: 4, packets: 16 };
    run(&mut session, 1, &create);
    assert_eq!(notes.0.lock().unwrap()[..], [(1, 0)]);
    let records = session.state().unwrap().records;
    assert_eq!(records.iter().map(|record| record.opcode).collect::<Vec<_>>(), [message::kdclPipe::OPCODE]);
    let value = pipe.to_le_bytes();
    let give = message::kdclSetArgument { kernel, index: 0, form: value::OBJECT, size: 8, value: &value };
    run(&mut session, 2, &give);
    assert!(session.state().unwrap_err().to_string().contains("have a pipe"));
    run(&mut session, 3, &message::kdclRelease { object: pipe });
    assert!(session.state().unwrap().records.is_empty());
}

/// A descriptor among the properties would be one of the worker's.
#[test]
fn properties_of_a_buffer_reach_no_driver() {
    let (mut session, notes) = with_pipes();
    let mut data = Vec::new();
    list::put(&mut data, &[0x2060u64, 1]);
    let (memory, context) = (id(kind::MEMORY, 1), id(kind::CONTEXT, 1));
    let buffer = message::kdclBuffer {
        memory,
        context,
        flags: 0,
        size: 64,
        host_address: 0,
        staged: 0,
        properties: 1,
        data: &data,
    };
    run(&mut session, 1, &buffer);
    assert_eq!(notes.0.lock().unwrap()[..], [(1, Code::INVALID_PROPERTY.0)]);
}

/// Without shared memory, no address is valid.
#[test]
fn a_buffer_begins_with_nothing_that_lies_elsewhere() {
    let (mut session, _) = with_pipes();
    let (memory, context, data) = (id(kind::MEMORY, 1), id(kind::CONTEXT, 1), [8; 16]);
    let mut payload = Vec::new();
    message::kdclBuffer {
        memory,
        context,
        flags: 0,
        size: 64,
        host_address: 0,
        staged: STAGED_IN_HOST,
        properties: 0,
        data: &data,
    }
    .encode(&mut payload);
    let refused = session.execute(&head(message::kdclBuffer::OPCODE, 1, true), &payload);
    assert!(matches!(refused, Err(SessionError::BadPart { part: "host address", .. })));
}

/// What the driver of [`with_svm`] got back.
static FREED_ADDRESSES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn free_svm(_: cl_context, pointer: *mut void) {
    FREED_ADDRESSES.lock().unwrap().push(pointer.addr());
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn create_buffer(_: cl_context, _: u64, _: usize, _: *mut void, code: *mut i32) -> cl_mem {
    // SAFETY: the session asks for the code.
    unsafe { code.write(0) };
    cl_mem(std::ptr::without_provenance_mut(576))
}

/// Returns a session with a context and 4096 bytes of shared virtual memory, and its address.
fn with_svm() -> (Session, Arc<Notes>, u64) {
    let mut api = empty_table();
    api.clSVMFree = Some(free_svm);
    api.clCreateBuffer = Some(create_buffer);
    api.clReleaseMemObject = Some(release);
    let (mut session, notes) = session();
    let handle = cl_context(std::ptr::without_provenance_mut(256));
    let context = id(kind::CONTEXT, 1);
    let object = Object { handle, api: Box::leak(Box::new(api)), size: 0 };
    session.shared.objects.set(context, object, Vec::new()).unwrap();
    let bytes: &'static mut [u8] = Box::leak(vec![7; 8192].into_boxed_slice());
    let raw = bytes.as_mut_ptr().expose_provenance() as u64;
    let hold = session.shared.objects.hold::<cl_context>(context).unwrap();
    let address = session.svm.add(raw, (4096, 0), hold);
    (session, notes, address)
}

#[test]
fn shared_virtual_memory_stays_while_it_is_fetched_or_a_buffer_lies_in_it() {
    let (mut session, notes, address) = with_svm();
    let has_freed = || FREED_ADDRESSES.lock().unwrap().len();
    let buffer = |session: &mut Session, memory, sequence| {
        let (context, properties) = (id(kind::CONTEXT, 1), 0);
        let message = message::kdclBuffer {
            memory,
            context,
            flags: 0,
            size: 64,
            host_address: address,
            staged: 0,
            properties,
            data: &[],
        };
        run(session, sequence, &message);
    };
    let memory = id(kind::MEMORY, 1);
    buffer(&mut session, memory, 1);
    let location = ReadLocation::Svm(address, 64, session.svm.hold(address, 64).unwrap());
    session.shared.pending_reads.add(9, PendingRead { location, end: CommandEnd::Past(0) });
    let fetched = session.shared.pending_reads.all().pop().unwrap().1;
    run(&mut session, 2, &message::kdclSvmFree { address });
    assert!(session.shared.pending_reads.all().is_empty(), "the program has given up what it did not fetch");
    run(&mut session, 3, &message::kdclRelease { object: memory });
    assert_eq!(has_freed(), 0, "it is being fetched");
    drop(fetched);
    assert_eq!(has_freed(), 1);
    buffer(&mut session, memory, 4);
    assert_eq!(notes.0.lock().unwrap().last(), Some(&(4, Code::INVALID_VALUE.0)));
}

/// Callbacks of the driver of [`with_memory`] for when nothing of a memory object is left.
static MEMORY_CALLBACKS: Mutex<Vec<(unsafe extern "C" fn(cl_mem, *mut void), usize)>> = Mutex::new(Vec::new());

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn keep(_: cl_mem, notify: Option<unsafe extern "C" fn(cl_mem, *mut void)>, data: *mut void) -> i32 {
    MEMORY_CALLBACKS.lock().unwrap().push((notify.unwrap(), data.expose_provenance()));
    0
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn create_part(_: cl_mem, _: u64, _: u32, _: *const void, code: *mut i32) -> cl_mem {
    // SAFETY: the session asks for the code.
    unsafe { code.write(0) };
    cl_mem(std::ptr::without_provenance_mut(640))
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn allocate_svm(_: cl_context, _: u64, size: usize, _: u32) -> *mut void {
    Box::leak(vec![0_u8; size].into_boxed_slice()).as_mut_ptr().cast()
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn leave_svm(_: cl_context, _: *mut void) {}

/// Returns a session with a context, whose driver has buffers and shared virtual memory.
fn with_memory() -> Session {
    let mut api = empty_table();
    api.clCreateBuffer = Some(create_buffer);
    api.clCreateSubBuffer = Some(create_part);
    api.clSetMemObjectDestructorCallback = Some(keep);
    api.clReleaseMemObject = Some(release);
    api.clSVMAlloc = Some(allocate_svm);
    api.clSVMFree = Some(leave_svm);
    let (session, _) = session();
    let handle = cl_context(std::ptr::without_provenance_mut(256));
    let object = Object { handle, api: Box::leak(Box::new(api)), size: 0 };
    session.shared.objects.set(id(kind::CONTEXT, 1), object, Vec::new()).unwrap();
    session
}

/// Returns a buffer of 1000 bytes, at `host_address` unless that is 0.
fn buffer(memory: u32, host_address: u64) -> message::kdclBuffer<'static> {
    let (context, size, data) = (id(kind::CONTEXT, 1), 1000, &[][..]);
    message::kdclBuffer { memory, context, flags: 0, size, host_address, staged: 0, properties: 0, data }
}

/// Makes the driver report the end of this many memory objects.
fn tell_ends(count: usize) {
    let callbacks: Vec<_> = MEMORY_CALLBACKS.lock().unwrap().drain(..).collect();
    assert_eq!(callbacks.len(), count);
    for (notify, data) in callbacks {
        // SAFETY: as a driver does, once for each.
        #[expect(unsafe_code, reason = "what a driver calls")]
        unsafe {
            notify(cl_mem::NULL, std::ptr::with_exposed_provenance_mut(data));
        }
    }
}

/// The unit in which a GPU allocates.
const PIECE_BYTES: u64 = 2 << 20;

#[test]
fn memory_counts_until_the_driver_has_nothing_left_of_it_whatever_the_program_releases() {
    let mut session = with_memory();
    let [whole, part] = [1, 2].map(|number| id(kind::MEMORY, number));
    run(&mut session, 1, &buffer(whole, 0));
    let region = message::kdclSubBuffer { memory: part, parent: whole, flags: 0, origin: 0, size: 8 };
    run(&mut session, 2, &region);
    run(&mut session, 3, &message::kdclRelease { object: whole });
    tell_ends(0);
    assert_eq!(session.shared.usage.memory(), PIECE_BYTES, "a part keeps the whole");
    run(&mut session, 4, &message::kdclRelease { object: part });
    assert_eq!(session.shared.usage.memory(), PIECE_BYTES, "commands may be yet to run");
    tell_ends(1);
    assert_eq!(session.shared.usage.memory(), 0);
}

#[test]
fn shared_virtual_memory_counts_once_with_all_that_is_taken_of_the_driver() {
    let mut session = with_memory();
    let (context, memory) = (id(kind::CONTEXT, 1), id(kind::MEMORY, 1));
    let count = PIECE_BYTES / HEAP_BLOCK_BYTES;
    for sequence in 0..=count {
        run(
            &mut session,
            sequence,
            &message::kdclSvmAlloc { context, flags: 0, size: 1000, alignment: 0, host_address: 0 },
        );
        let pieces = if sequence < count { 1 } else { 2 };
        assert_eq!(session.shared.usage.memory(), pieces * PIECE_BYTES);
    }
    let address = session.svm.addresses().next().unwrap();
    run(&mut session, 10, &buffer(memory, address));
    let others: Vec<u64> = session.svm.addresses().skip(1).collect();
    for (sequence, address) in (11..).zip(others) {
        run(&mut session, sequence, &message::kdclSvmFree { address });
    }
    run(&mut session, 20, &message::kdclSvmFree { address });
    assert_eq!(session.shared.usage.memory(), PIECE_BYTES, "a buffer lies in it");
    run(&mut session, 21, &message::kdclRelease { object: memory });
    assert_eq!(session.shared.usage.memory(), 0);
}

/// The sizes of arguments, and the texts, that a driver receives.
static RECEIVED_ARGUMENTS: Mutex<Vec<(usize, Option<u8>)>> = Mutex::new(Vec::new());

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn note_argument(_: cl_kernel, _: u32, size: usize, _: *const void) -> i32 {
    RECEIVED_ARGUMENTS.lock().unwrap().push((size, None));
    0
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn note_text(
    _: cl_context,
    _: u32,
    texts: *const *const std::ffi::c_char,
    lengths: *const usize,
    code: *mut i32,
) -> cl_program {
    // SAFETY: one text and its length; a text of length 0 ends with a zero byte, by the standard.
    unsafe {
        RECEIVED_ARGUMENTS.lock().unwrap().push((lengths.read(), Some(texts.read().cast::<u8>().read())));
        code.write(0);
    }
    cl_program(std::ptr::without_provenance_mut(640))
}

/// A driver reads as much as the size says: a handle has its own size, and an empty text ends where it begins.
#[test]
fn drivers_get_sizes_within_the_payload() {
    let mut api = empty_table();
    api.clSetKernelArg = Some(note_argument);
    api.clCreateProgramWithSource = Some(note_text);
    let api: &'static Dispatch = Box::leak(Box::new(api));
    let (mut session, notes) = session();
    let (context, kernel, pointer) = (id(kind::CONTEXT, 1), id(kind::KERNEL, 1), std::ptr::without_provenance_mut);
    let objects = &session.shared.objects;
    objects.set(context, Object { handle: cl_context(pointer(256)), api, size: 0 }, Vec::new()).unwrap();
    objects.set(kernel, Object { handle: cl_kernel(pointer(320)), api, size: 0 }, Vec::new()).unwrap();
    for (sequence, size) in [(1, 8), (2, 64), (3, 0)] {
        let give = message::kdclSetArgument { kernel, index: 0, form: value::OBJECT, size, value: &[0; 4] };
        run(&mut session, sequence, &give);
    }
    let size = Code::INVALID_ARG_SIZE.0;
    assert_eq!(notes.0.lock().unwrap()[..], [(1, 0), (2, size), (3, size)]);
    run(
        &mut session,
        4,
        &message::kdclProgram { program: id(kind::PROGRAM, 1), context, form: 0, staged: 0, arguments: &[] },
    );
    assert_eq!(RECEIVED_ARGUMENTS.lock().unwrap()[..], [(8, None), (0, Some(0))]);
}

/// Such a property would name an object of another API, or an address, in the worker.
#[test]
fn properties_of_a_context_that_are_no_numbers_reach_no_driver() {
    let (mut session, notes) = session();
    let mut arguments = id(kind::PLATFORM, 0).to_le_bytes().to_vec();
    list::put(&mut arguments, &[0x2008i64, 4096]);
    list::put(&mut arguments, &[id(kind::DEVICE, 0)]);
    run(&mut session, 1, &message::kdclContext { context: id(kind::CONTEXT, 1), token: 0, arguments: &arguments });
    assert_eq!(notes.0.lock().unwrap()[..], [(1, Code::INVALID_PROPERTY.0)]);
}

/// Executes a message that breaks nothing.
fn run<M: Message>(session: &mut Session, sequence: u64, message: &M) {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    payload.extend_from_slice(message.tail());
    session.execute(&head(M::OPCODE, sequence, true), &payload).unwrap();
}

/// The state of the marker in a queue.
static MARKER: AtomicI32 = AtomicI32::new(1);

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn place_marker(_: cl_command_queue, _: u32, _: *const cl_event, event: *mut cl_event) -> i32 {
    // SAFETY: the session asks for the event.
    unsafe { event.write(cl_event(std::ptr::without_provenance_mut(64))) };
    0
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn event_state(_: cl_event, _: u32, _: usize, value: *mut void, _: *mut usize) -> i32 {
    // SAFETY: room for a state.
    unsafe { value.cast::<i32>().write(MARKER.load(Ordering::Acquire)) };
    0
}

#[expect(unsafe_code, reason = "a driver's function")]
unsafe extern "C" fn of_queue(_: cl_command_queue) -> i32 {
    0
}

#[test]
fn a_session_is_not_at_rest_while_commands_of_a_released_queue_run() {
    let mut api = empty_table();
    api.clEnqueueMarkerWithWaitList = Some(place_marker);
    api.clGetEventInfo = Some(event_state);
    api.clFlush = Some(of_queue);
    api.clReleaseCommandQueue = Some(of_queue);
    let (mut session, _) = session();
    let queue = id(kind::QUEUE, 1);
    let handle = cl_command_queue(std::ptr::without_provenance_mut(128));
    session.shared.objects.set(queue, Object { handle, api: Box::leak(Box::new(api)), size: 0 }, Vec::new()).unwrap();
    run(&mut session, 1, &message::kdclRelease { object: queue });
    assert!(matches!(Checkpointable::check_idle(&mut session), Err(QuiesceError::Busy { .. })));
    MARKER.store(0, Ordering::Release);
    assert!(Checkpointable::check_idle(&mut session).is_ok());
    session.forget_ended_queues();
    assert!(session.ending.is_empty());
}

#[test]
fn breaches_end_the_session() {
    let opcode = message::kdclFinish::OPCODE;
    let (mut session, _) = session();
    assert!(matches!(session.execute(&head(9999, 0, true), &[]), Err(SessionError::UnknownOpcode { opcode: 9999 })));
    assert!(matches!(session.execute(&head(opcode, 0, true), &[1]), Err(SessionError::Damaged(_))));
    let pieces = message::kdclUpload::OPCODE;
    let mut payload = Vec::new();
    message::kdclUpload { total: u64::MAX, data: &[] }.encode(&mut payload);
    assert!(matches!(session.execute(&head(pieces, 0, false), &payload), Err(SessionError::Upload(_))));
    let mut payload = Vec::new();
    message::kdclOutput {}.encode(&mut payload);
    let output = message::kdclOutput::OPCODE;
    assert!(matches!(session.execute(&head(output, 0, false), &payload), Err(SessionError::NoReplyWanted { .. })));
}

/// The saved state of a session with bytes changed, removed and inserted: all of it is refused or read, and what was read is
/// written back unchanged.
#[test]
fn no_state_makes_a_restore_panic() {
    let (mut session, _) = session();
    let whole = session.state().unwrap().encode();
    assert!(parse_state(&whole).is_ok());
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(&mut seed) % 3 {
            let at = random(&mut seed) as usize % bytes.len();
            match random(&mut seed) % 4 {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.insert(at, random(&mut seed) as u8),
                2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(&mut seed) as usize % 5],
                _ => bytes[at] ^= 1 << (random(&mut seed) % 8),
            }
        }
        if let Ok(state) = JournalState::decode(&bytes) {
            assert_eq!(JournalState::decode(&state.encode()).unwrap().encode(), state.encode());
            read += 1;
        }
    }
    assert!(read > 0, "not one change was harmless: what is read is not tested");
}
