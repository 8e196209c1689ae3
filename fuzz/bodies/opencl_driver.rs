//! An OpenCL driver that computes nothing: it makes objects, writes what its signatures say, and keeps count of what it is given.
//!
//! It stands for two drivers, each with a table of its own. Faults of three kinds are noted ([`forget`]):
//!
//! - a handle that is not alive, of another kind, or of the other driver's;
//! - an object given back before one that is made of it;
//! - a property of a context that drivers take for an address.
//!
//! Commands wait for events that the program has not set. [`finish`] does what waits, as a driver may at any time: so memory that
//! was freed too early is written or read then, which a sanitizer notices. Handles are numbers, never given twice.

#[path = "opencl_commands.rs"]
mod commands;
#[path = "opencl_functions.rs"]
mod functions;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, without_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::constant::{
    DEVICE_REFERENCE_COUNT, DEVICE_TYPE, DEVICE_TYPE_CPU, EVENT_COMMAND_EXECUTION_STATUS, EVENT_COMMAND_QUEUE,
    KERNEL_NUM_ARGS, MEM_COPY_HOST_PTR, MEM_SIZE, MEM_USE_HOST_PTR, PROGRAM_BINARIES, PROGRAM_BINARY_SIZES,
    PROGRAM_DEVICES,
};
use katydid_opencl_sys::{
    Code, Dispatch, cl_buffer_region, cl_command_queue, cl_context, cl_context_destroyed, cl_context_notify,
    cl_device_id, cl_event, cl_image_desc, cl_image_format, cl_kernel, cl_mem, cl_mem_notify, cl_platform_id,
    cl_program, cl_program_notify, cl_sampler,
};
use katydid_session_opencl::driver::Platform;
use katydid_wire::opencl::kind;

use self::functions::table;

/// Most bytes of an object.
const LARGEST: usize = 1 << 20;
/// Bytes of an element of an image.
const ELEMENT: usize = 4;
/// Most elements of an image in one dimension.
const WIDEST: usize = 64;
/// Number of arguments of every kernel, and the bytes of each.
const ARGUMENTS: u32 = 4;
const ARGUMENT: usize = 8;
/// The status of an event that the program has not set, and of commands that wait for it.
const WAITING: i32 = 3;
/// The only properties of a context whose values are neither addresses nor handles of another interface: `CL_CONTEXT_PLATFORM`,
/// `CL_CONTEXT_INTEROP_USER_SYNC`.
const PLAIN_PROPERTIES: [isize; 2] = [0x1084, 0x1085];
/// An object that the driver under test has created.
struct DriverObject {
    driver: usize,
    kind: u32,
    references: u32,
    /// Status of an event.
    status: i32,
    /// Bytes of a memory object, and their address if the host has them.
    size: usize,
    host: usize,
    shape: [usize; 3],
    /// Handles of the objects of which this one is made.
    whole: Vec<usize>,
    notify: Vec<(unsafe extern "C" fn(cl_mem, *mut c_void), usize)>,
}

type Work = Box<dyn FnOnce() + Send>;

/// A command that waits.
struct WaitingCommand {
    event: usize,
    waits: Vec<usize>,
    work: Work,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<usize, DriverObject>,
    last: usize,
    /// Handles up to this one belong to ended sessions, whose threads may still ask.
    past: usize,
    waiting: Vec<WaitingCommand>,
    svm: HashMap<usize, (usize, Box<[u8]>)>,
    faults: Vec<String>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

struct LockedState(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for LockedState {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().unwrap_or_else(|| unreachable!("made by `state`"))
    }
}

impl std::ops::DerefMut for LockedState {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().unwrap_or_else(|| unreachable!("made by `state`"))
    }
}

fn state() -> LockedState {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.get_or_insert_default();
    LockedState(state)
}

impl State {
    fn add(&mut self, driver: usize, kind: u32, whole: Vec<usize>) -> usize {
        // These are no addresses: the first page is never mapped.
        self.last += 1;
        let object = DriverObject {
            driver,
            kind,
            references: 1,
            status: 0,
            size: 0,
            host: 0,
            shape: [0; 3],
            whole,
            notify: Vec::new(),
        };
        self.objects.insert(self.last, object);
        self.last
    }

    fn fault(&mut self, text: String) {
        if self.faults.len() < 8 {
            self.faults.push(text);
        }
    }

    /// Whether a handle is alive, of this kind and of this driver; if not, records a fault.
    fn check(&mut self, driver: usize, kind: u32, handle: usize) -> bool {
        if handle <= self.past {
            return false;
        }
        let found = self.objects.get(&handle).map(|object| (object.driver, object.kind));
        if found != Some((driver, kind)) {
            self.fault(format!("driver {driver} is given {handle} for a handle of kind {kind}: {found:?}"));
        }
        found == Some((driver, kind))
    }

    fn check_all(&mut self, driver: usize, all: &[(u32, usize)]) -> bool {
        all.iter().fold(true, |good, (kind, handle)| self.check(driver, *kind, *handle) && good)
    }

    fn status(&self, event: usize) -> i32 {
        self.objects.get(&event).map_or(0, |object| object.status)
    }

    /// Removes a command that no longer waits, and returns it with its final status.
    fn next(&mut self) -> Option<(WaitingCommand, i32)> {
        let statuses =
            |waiting: &WaitingCommand| waiting.waits.iter().map(|event| self.status(*event)).collect::<Vec<_>>();
        let at = self.waiting.iter().position(|waiting| statuses(waiting).iter().all(|status| *status <= 0))?;
        let failed = statuses(&self.waiting[at]).iter().any(|status| *status < 0);
        let status = if failed { Code::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST.0 } else { 0 };
        Some((self.waiting.swap_remove(at), status))
    }
}

/// Runs the commands that no longer wait.
fn advance() {
    loop {
        let mut locked = state();
        let Some((waiting, status)) = locked.next() else { return };
        drop(locked);
        if status == 0 {
            (waiting.work)();
        }
        if let Some(object) = state().objects.get_mut(&waiting.event) {
            object.status = status;
        }
    }
}

/// Runs everything that waits, as a driver may at any time, and completes every event.
pub(crate) fn finish() {
    let waiting = std::mem::take(&mut state().waiting);
    waiting.into_iter().for_each(|waiting| (waiting.work)());
    state().objects.values_mut().for_each(|object| object.status = object.status.min(0));
}

/// Removes the objects of an ended session, and returns its faults in words.
pub(crate) fn forget() -> Vec<String> {
    let mut state = state();
    state.past = state.last;
    state.objects.clear();
    state.svm.clear();
    std::mem::take(&mut state.faults)
}

/// Returns both drivers: the first has a processor, the second none.
pub(crate) fn platforms() -> Vec<Platform> {
    let mut state = state();
    let mut handles = |driver| {
        let platform = state.add(driver, kind::PLATFORM, Vec::new());
        let device = state.add(driver, kind::DEVICE, Vec::new());
        (cl_platform_id(without_provenance_mut(platform)), cl_device_id(without_provenance_mut(device)))
    };
    let (first, second) = (handles(0), handles(1));
    drop(state);
    // SAFETY: the tables are static, and each function does what OpenCL says of it, with numbers for handles.
    unsafe {
        vec![
            Platform::from_table(first.0, table::<0>(), vec![(first.1, DEVICE_TYPE_CPU)], "first".to_owned()),
            Platform::from_table(second.0, table::<1>(), vec![(second.1, 4)], "second".to_owned()),
        ]
    }
}

/// Reads `size` bytes, so that a sanitizer checks them.
fn read(from: usize, size: usize) {
    let mut bytes = vec![0u8; size];
    // SAFETY: the caller of the driver promises readable memory.
    unsafe { ptr::copy_nonoverlapping(ptr::with_exposed_provenance::<u8>(from), bytes.as_mut_ptr(), size) };
    std::hint::black_box(&bytes);
}

/// Writes `size` bytes, so that a sanitizer checks them.
fn write(to: usize, size: usize) {
    // SAFETY: as above.
    unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(to), 0x5a, size) };
}

/// Copies a caller's list.
fn list<T: Copy>(count: u32, first: *const T) -> Vec<T> {
    // SAFETY: callers give as many elements as they say.
    if count == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(first, count as usize) }.to_vec() }
}

/// Answers a query with a value.
fn write_answer(size: usize, out: *mut c_void, needed: *mut usize, value: &[u8]) -> i32 {
    if !out.is_null() && size < value.len() {
        return Code::INVALID_VALUE.0;
    }
    // SAFETY: `out` has room for as many bytes as the caller says; `needed` is a number or null.
    unsafe {
        if !out.is_null() {
            ptr::copy_nonoverlapping(value.as_ptr(), out.cast(), value.len());
        }
        if !needed.is_null() {
            needed.write(value.len());
        }
    }
    0
}

fn make_object<H>(code: *mut i32, result: Result<usize, Code>, handle: fn(*mut c_void) -> H) -> H {
    // SAFETY: sessions pass room for the code.
    unsafe { code.write(result.err().unwrap_or(Code::SUCCESS).0) };
    handle(without_provenance_mut(result.unwrap_or(0)))
}

/// Makes an object out of others.
fn make<H>(driver: usize, kind: u32, of: &[(u32, usize)], code: *mut i32, handle: fn(*mut c_void) -> H) -> H {
    let mut state = state();
    let known = state.check_all(driver, of);
    let whole = of.iter().map(|(_, handle)| *handle).collect();
    let result = if known { Ok(state.add(driver, kind, whole)) } else { Err(Code::INVALID_VALUE) };
    make_object(code, result, handle)
}

/// Drops one reference. The last must go after everything made of the object.
fn release(driver: usize, kind: u32, handle: usize) -> i32 {
    let mut state = state();
    if !state.check(driver, kind, handle) {
        return Code::INVALID_VALUE.0;
    }
    let Some(found) = state.objects.get_mut(&handle) else { return 0 };
    found.references -= 1;
    if found.references > 0 {
        return 0;
    }
    let parts: Vec<(usize, u32)> = state
        .objects
        .iter()
        .filter(|(_, object)| object.whole.contains(&handle))
        .map(|(part, object)| (*part, object.kind))
        .collect();
    if !parts.is_empty() {
        state.fault(format!("{handle} of kind {kind} goes before what is made of it: {parts:?}"));
    }
    let gone = state.objects.remove(&handle);
    drop(state);
    for (notify, data) in gone.into_iter().flat_map(|gone| gone.notify).rev() {
        // SAFETY: registered for this object, and called once.
        unsafe { notify(cl_mem(without_provenance_mut(handle)), ptr::with_exposed_provenance_mut(data)) };
    }
    0
}

/// The events that a queue's command waits for, and room for its own event.
type Waits = (u32, *const cl_event, *mut cl_event);

/// Enqueues a command that uses objects.
fn enqueue(
    driver: usize,
    queue: cl_command_queue,
    uses: &[(u32, usize)],
    (count, first, out): Waits,
    work: impl FnOnce() + Send + 'static,
) -> i32 {
    let waits: Vec<usize> = list(count, first).iter().map(|event| event.0.addr()).collect();
    let mut state = state();
    let events: Vec<_> = waits.iter().map(|event| (kind::EVENT, *event)).collect();
    if !state.check(driver, kind::QUEUE, queue.0.addr())
        || !state.check_all(driver, uses)
        || !state.check_all(driver, &events)
    {
        return Code::INVALID_VALUE.0;
    }
    let event = if out.is_null() { 0 } else { state.add(driver, kind::EVENT, vec![queue.0.addr()]) };
    if let Some(object) = state.objects.get_mut(&event) {
        object.status = WAITING;
    }
    state.waiting.push(WaitingCommand { event, waits, work: Box::new(work) });
    drop(state);
    if !out.is_null() {
        // SAFETY: the caller passes room for the event.
        unsafe { out.write(cl_event(without_provenance_mut(event))) };
    }
    advance();
    0
}

/// Returns the bytes, the host address and the shape of a memory object.
fn memory(handle: cl_mem) -> Option<(usize, usize, [usize; 3])> {
    state().objects.get(&handle.0.addr()).map(|object| (object.size, object.host, object.shape))
}

/// Moves bytes of a buffer, to the host if `is_read`. Also touches the bytes in the host's memory.
fn transfer(
    driver: usize,
    is_read: bool,
    (queue, buffer): (cl_command_queue, cl_mem),
    (offset, size, out): (usize, usize, usize),
    waits: Waits,
) -> i32 {
    let Some((whole, host, shape)) = memory(buffer) else { return unknown(driver, kind::MEMORY, buffer.0.addr()) };
    let fits = offset.checked_add(size).is_some_and(|end| end <= whole);
    if size == 0 || !fits || shape != [0; 3] {
        return Code::INVALID_VALUE.0;
    }
    enqueue(driver, queue, &[(kind::MEMORY, buffer.0.addr())], waits, move || {
        if host != 0 {
            if is_read { read(host + offset, size) } else { write(host + offset, size) }
        }
        if is_read { write(out, size) } else { read(out, size) }
    })
}

/// Records the use of an unknown handle.
fn unknown(driver: usize, kind: u32, handle: usize) -> i32 {
    state().check(driver, kind, handle);
    Code::INVALID_VALUE.0
}

/// Reads three sizes from the caller's array.
fn three(first: *const usize) -> [usize; 3] {
    // SAFETY: callers give three.
    unsafe { first.cast::<[usize; 3]>().read_unaligned() }
}

/// Returns the rows of host memory with their offsets and lengths; `None` for invalid pitches.
fn rows(region: [usize; 3], row: usize, slice: usize) -> Option<Vec<(usize, usize)>> {
    let [width, height, depth] = region;
    let row = if row == 0 { width } else { row };
    let slice = if slice == 0 { row.checked_mul(height)? } else { slice };
    if region.contains(&0) || row < width || slice < row.checked_mul(height)? || height.checked_mul(depth)? > 1 << 16 {
        return None;
    }
    let at = |y: usize, z: usize| y.checked_mul(row)?.checked_add(z.checked_mul(slice)?);
    (0..depth).flat_map(|z| (0..height).map(move |y| (y, z))).map(|(y, z)| Some((at(y, z)?, width))).collect()
}

/// Moves rows between the host and an object; `fits` says whether the object contains the region.
fn transfer_rows(
    driver: usize,
    is_read: bool,
    (queue, object): (cl_command_queue, cl_mem),
    (rows, out): (Option<Vec<(usize, usize)>>, usize),
    waits: Waits,
) -> i32 {
    let Some(rows) = rows else { return Code::INVALID_VALUE.0 };
    enqueue(driver, queue, &[(kind::MEMORY, object.0.addr())], waits, move || {
        for (at, size) in rows {
            if is_read { write(out + at, size) } else { read(out + at, size) }
        }
    })
}

/// Whether a buffer contains a box.
fn has_box(buffer: cl_mem, origin: [usize; 3], region: [usize; 3], row: usize, slice: usize) -> bool {
    let end = || {
        let rows = rows(region, row, slice)?;
        let (at, size) = *rows.last()?;
        let [row, slice] = [if row == 0 { region[0] } else { row }, slice];
        let slice = if slice == 0 { row.checked_mul(region[1])? } else { slice };
        let start = origin[0].checked_add(origin[1].checked_mul(row)?)?.checked_add(origin[2].checked_mul(slice)?)?;
        start.checked_add(at)?.checked_add(size)
    };
    memory(buffer).is_some_and(|(whole, _, shape)| shape == [0; 3] && end().is_some_and(|end| end <= whole))
}

/// Whether an image contains a region.
fn has_region(image: cl_mem, origin: [usize; 3], region: [usize; 3]) -> bool {
    let Some((.., shape)) = memory(image) else { return false };
    origin
        .iter()
        .zip(region)
        .zip(shape)
        .all(|((start, size), whole)| start.checked_add(size).is_some_and(|end| end <= whole))
}

/// Creates a buffer with its first contents.
fn create_buffer_of(
    driver: usize,
    context: cl_context,
    (flags, size, host): (u64, usize, *mut c_void),
    code: *mut i32,
) -> cl_mem {
    if size == 0 || size > LARGEST || (host.is_null() == (flags & (MEM_USE_HOST_PTR | MEM_COPY_HOST_PTR) != 0)) {
        return make_object(code, Err(Code::INVALID_BUFFER_SIZE), cl_mem);
    }
    if flags & MEM_COPY_HOST_PTR != 0 {
        read(host.addr(), size);
    }
    let buffer = make(driver, kind::MEMORY, &[(kind::CONTEXT, context.0.addr())], code, cl_mem);
    if let Some(object) = state().objects.get_mut(&buffer.0.addr()) {
        object.size = size;
        object.host = if flags & MEM_USE_HOST_PTR == 0 { 0 } else { host.expose_provenance() };
    }
    buffer
}
