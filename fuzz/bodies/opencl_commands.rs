//! The commands of the drivers that compute nothing. They check their arguments, and read or write the host memory
//! that the standard says.

#![allow(clippy::too_many_arguments, reason = "signatures are the vendor's")]

use super::functions::{Event, Events, OutPointer, Queue};
use super::*;

pub(super) extern "C" fn read_buffer<const D: usize>(
    queue: Queue,
    buffer: cl_mem,
    _: u32,
    offset: usize,
    size: usize,
    host: OutPointer,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    transfer(D, true, (queue, buffer), (offset, size, host.expose_provenance()), (n, e, event))
}

pub(super) extern "C" fn write_buffer<const D: usize>(
    queue: Queue,
    buffer: cl_mem,
    _: u32,
    offset: usize,
    size: usize,
    host: *const c_void,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    transfer(D, false, (queue, buffer), (offset, size, host.expose_provenance()), (n, e, event))
}

fn rect<const D: usize>(
    is_read: bool,
    objects: (Queue, cl_mem),
    [origin, region]: [*const usize; 2],
    [row, slice, host_row, host_slice]: [usize; 4],
    host: usize,
    waits: Waits,
) -> i32 {
    let region = three(region);
    let rows = rows(region, host_row, host_slice).filter(|_| has_box(objects.1, three(origin), region, row, slice));
    transfer_rows(D, is_read, objects, (rows, host), waits)
}

pub(super) extern "C" fn read_rect<const D: usize>(
    queue: Queue,
    buffer: cl_mem,
    _: u32,
    origin: *const usize,
    host: *const usize,
    region: *const usize,
    row: usize,
    slice: usize,
    host_row: usize,
    host_slice: usize,
    memory: OutPointer,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    std::hint::black_box(three(host));
    rect::<D>(
        true,
        (queue, buffer),
        [origin, region],
        [row, slice, host_row, host_slice],
        memory.expose_provenance(),
        (n, e, event),
    )
}

pub(super) extern "C" fn write_rect<const D: usize>(
    queue: Queue,
    buffer: cl_mem,
    _: u32,
    origin: *const usize,
    host: *const usize,
    region: *const usize,
    row: usize,
    slice: usize,
    host_row: usize,
    host_slice: usize,
    memory: *const c_void,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    std::hint::black_box(three(host));
    rect::<D>(
        false,
        (queue, buffer),
        [origin, region],
        [row, slice, host_row, host_slice],
        memory.expose_provenance(),
        (n, e, event),
    )
}

fn image<const D: usize>(
    is_read: bool,
    objects: (Queue, cl_mem),
    [origin, region]: [*const usize; 2],
    [row, slice]: [usize; 2],
    host: usize,
    waits: Waits,
) -> i32 {
    let [width, height, depth] = three(region);
    let rows = width.checked_mul(ELEMENT).and_then(|width| rows([width, height, depth], row, slice));
    let rows = rows.filter(|_| has_region(objects.1, three(origin), [width, height, depth]));
    transfer_rows(D, is_read, objects, (rows, host), waits)
}

pub(super) extern "C" fn read_image<const D: usize>(
    queue: Queue,
    object: cl_mem,
    _: u32,
    origin: *const usize,
    region: *const usize,
    row: usize,
    slice: usize,
    host: OutPointer,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    image::<D>(true, (queue, object), [origin, region], [row, slice], host.expose_provenance(), (n, e, event))
}

pub(super) extern "C" fn write_image<const D: usize>(
    queue: Queue,
    object: cl_mem,
    _: u32,
    origin: *const usize,
    region: *const usize,
    row: usize,
    slice: usize,
    host: *const c_void,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    image::<D>(false, (queue, object), [origin, region], [row, slice], host.expose_provenance(), (n, e, event))
}

/// Enqueues a command that uses objects and no host memory.
fn plain<const D: usize>(queue: Queue, objects: &[cl_mem], waits: Waits) -> i32 {
    let uses: Vec<_> = objects.iter().map(|object| (kind::MEMORY, object.0.addr())).collect();
    enqueue(D, queue, &uses, waits, || ())
}

pub(super) extern "C" fn copy_buffer<const D: usize>(
    queue: Queue,
    from: cl_mem,
    to: cl_mem,
    _: usize,
    _: usize,
    _: usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    plain::<D>(queue, &[from, to], (n, e, event))
}

pub(super) extern "C" fn copy_rect<const D: usize>(
    queue: Queue,
    from: cl_mem,
    to: cl_mem,
    start: *const usize,
    end: *const usize,
    region: *const usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    std::hint::black_box([three(start), three(end), three(region)]);
    plain::<D>(queue, &[from, to], (n, e, event))
}

pub(super) extern "C" fn copy_image<const D: usize>(
    queue: Queue,
    from: cl_mem,
    to: cl_mem,
    start: *const usize,
    end: *const usize,
    region: *const usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    std::hint::black_box([three(start), three(end), three(region)]);
    plain::<D>(queue, &[from, to], (n, e, event))
}

pub(super) extern "C" fn image_to_buffer<const D: usize>(
    queue: Queue,
    from: cl_mem,
    to: cl_mem,
    start: *const usize,
    region: *const usize,
    _: usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    std::hint::black_box([three(start), three(region)]);
    plain::<D>(queue, &[from, to], (n, e, event))
}

pub(super) extern "C" fn buffer_to_image<const D: usize>(
    queue: Queue,
    from: cl_mem,
    to: cl_mem,
    _: usize,
    end: *const usize,
    region: *const usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    std::hint::black_box([three(end), three(region)]);
    plain::<D>(queue, &[from, to], (n, e, event))
}

pub(super) extern "C" fn fill_buffer<const D: usize>(
    queue: Queue,
    buffer: cl_mem,
    pattern: *const c_void,
    size: usize,
    _: usize,
    _: usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    read(pattern.addr(), size);
    plain::<D>(queue, &[buffer], (n, e, event))
}

pub(super) extern "C" fn fill_image<const D: usize>(
    queue: Queue,
    image: cl_mem,
    color: *const c_void,
    origin: *const usize,
    region: *const usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    read(color.addr(), 16);
    std::hint::black_box([three(origin), three(region)]);
    plain::<D>(queue, &[image], (n, e, event))
}

pub(super) extern "C" fn migrate<const D: usize>(
    queue: Queue,
    count: u32,
    objects: *const cl_mem,
    _: u64,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    plain::<D>(queue, &list(count, objects), (n, e, event))
}

pub(super) extern "C" fn marker<const D: usize>(queue: Queue, n: u32, e: Events, event: Event) -> i32 {
    plain::<D>(queue, &[], (n, e, event))
}

pub(super) extern "C" fn map_buffer<const D: usize>(
    queue: Queue,
    buffer: cl_mem,
    _: u32,
    _: u64,
    offset: usize,
    size: usize,
    n: u32,
    e: Events,
    event: Event,
    code: *mut i32,
) -> OutPointer {
    let found = memory(buffer)
        .filter(|(whole, host, _)| *host != 0 && offset.checked_add(size).is_some_and(|end| end <= *whole));
    let outcome = if found.is_some() { plain::<D>(queue, &[buffer], (n, e, event)) } else { Code::INVALID_VALUE.0 };
    // SAFETY: room for a code.
    unsafe { code.write(outcome) };
    let host = found.filter(|_| outcome == 0).map_or(0, |(_, host, _)| host + offset);
    ptr::with_exposed_provenance_mut(host)
}

pub(super) extern "C" fn unmap<const D: usize>(
    queue: Queue,
    object: cl_mem,
    _: OutPointer,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    plain::<D>(queue, &[object], (n, e, event))
}

pub(super) extern "C" fn launch<const D: usize>(
    queue: Queue,
    kernel: cl_kernel,
    dimensions: u32,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    for sizes in [offset, global, local].into_iter().filter(|sizes| !sizes.is_null()) {
        std::hint::black_box(list(dimensions, sizes));
    }
    enqueue(D, queue, &[(kind::KERNEL, kernel.0.addr())], (n, e, event), || ())
}

/// Whether a byte is in live shared virtual memory. If the program frees memory that a command uses, that is the program's own
/// fault with any driver. Such a command does nothing here.
fn lives(address: usize) -> bool {
    let is_in = |start: &usize, length: usize| (*start..*start + length).contains(&address);
    state().svm.iter().any(|(start, (_, bytes))| is_in(start, bytes.len()))
}

pub(super) extern "C" fn svm_copy<const D: usize>(
    queue: Queue,
    _: u32,
    to: OutPointer,
    from: *const c_void,
    size: usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    let (to, from) = (to.expose_provenance(), from.expose_provenance());
    let are_shared = [to, from].map(lives);
    enqueue(D, queue, &[], (n, e, event), move || {
        if !are_shared[1] || lives(from) {
            read(from, size);
        }
        if !are_shared[0] || lives(to) {
            write(to, size);
        }
    })
}

pub(super) extern "C" fn svm_fill<const D: usize>(
    queue: Queue,
    to: OutPointer,
    pattern: *const c_void,
    length: usize,
    size: usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    read(pattern.addr(), length);
    let to = to.expose_provenance();
    enqueue(D, queue, &[], (n, e, event), move || {
        if lives(to) {
            write(to, size);
        }
    })
}

pub(super) extern "C" fn svm_map<const D: usize>(
    queue: Queue,
    _: u32,
    _: u64,
    _: OutPointer,
    _: usize,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    plain::<D>(queue, &[], (n, e, event))
}

pub(super) extern "C" fn svm_unmap<const D: usize>(
    queue: Queue,
    _: OutPointer,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    plain::<D>(queue, &[], (n, e, event))
}

pub(super) extern "C" fn svm_migrate<const D: usize>(
    queue: Queue,
    count: u32,
    pointers: *const *const c_void,
    sizes: *const usize,
    _: u64,
    n: u32,
    e: Events,
    event: Event,
) -> i32 {
    std::hint::black_box((list(count, pointers), list(count, sizes)));
    plain::<D>(queue, &[], (n, e, event))
}
