//! Whole sessions: a program's messages over every link, a worker process, softcuda.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use crate::support::{self, Program, Way, on_every_way};
use katydid_tests::deadline::hang::until;
use katydid_wire::facts::{ContextFacts, Facts, FunctionFacts, decode_names};
use katydid_wire::message::{
    cuCtxSynchronize, cuEventCreate, cuEventRecord, cuEventSynchronize, cuStreamCreate, cuStreamSynchronize,
    kdContextRetain, kdCopy, kdCopyIn, kdCopyInStaged, kdCopyOut, kdCopyOutStaged, kdDeviceGrow, kdDeviceInfo,
    kdDeviceShrink, kdFacts, kdFill, kdHostFunction, kdHostPull, kdHostPush, kdHostRegister, kdHostUnregister,
    kdLaunch, kdModuleFunction, kdModuleFunctionNames, kdModuleGlobal, kdModuleLoad, kdUpcallNext, kdUpload,
};
use katydid_wire::ranges;

const GRANULE_BYTES: u64 = 2 << 20;
const OUT_OF_MEMORY_CODE: u32 = 2;
const INVALID_IMAGE: u32 = 200;
const INVALID_HANDLE_CODE: u32 = 400;
const NOT_FOUND_CODE: u32 = 500;

/// `values[i] = values[i] * factor + offset`, where `offset` is a variable of the module.
const SCALE_PTX: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 offset = 5;
.visible .entry scale(.param .u64 values, .param .u32 factor)
{
    .reg .u64 %rd<4>;
    .reg .u32 %r<7>;
    ld.param.u64 %rd1, [values];
    ld.param.u32 %r1, [factor];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r3, [%rd3];
    ld.global.u32 %r5, [offset];
    mad.lo.u32 %r4, %r3, %r1, %r5;
    st.global.u32 [%rd3], %r4;
    ret;
}
";

/// Returns the first address of the device arena.
fn device(program: &Program) -> u64 {
    program.arenas.map.device(0).unwrap().start
}

/// Grows the device arena by a granule, and returns its first address.
fn grown(program: &Program) -> u64 {
    let address = device(program);
    program.call(&kdDeviceGrow { device: 0, address, size: GRANULE_BYTES }).unwrap();
    address
}

fn send_image(program: &Program, text: &str) {
    let image = katydid_fatbin::ModuleImage::from_bytes(text.as_bytes()).unwrap().encode();
    let total = image.len() as u64;
    image.chunks(100).for_each(|data| program.enqueue(&kdUpload { total, data }));
}

const LOAD: kdModuleLoad<'_> = kdModuleLoad { module: 1, infoLogSize: 1024, errorLogSize: 1024, options: &[] };

/// Loads module 1 and its function 1.
fn load_scale(program: &Program) {
    send_image(program, SCALE_PTX);
    program.call(&LOAD).unwrap();
    let found = program.call(&kdModuleFunction { function: 1, module: 1, name: b"scale" }).unwrap();
    let facts = FunctionFacts::decode(&found.facts).unwrap();
    let parameters: Vec<_> = facts.parameters.iter().map(|parameter| (parameter.offset, parameter.size)).collect();
    assert_eq!(parameters, [(0, 8), (8, 4)]);
}

fn launch_scale(program: &Program, values: u64, threads: u32, factor: u32, stream: u32) {
    let parameters = [&values.to_le_bytes()[..], &factor.to_le_bytes()].concat();
    program.enqueue(&kdLaunch {
        function: 1,
        kernel: 0,
        gridX: 1,
        gridY: 1,
        gridZ: 1,
        blockX: threads,
        blockY: 1,
        blockZ: 1,
        sharedSize: 0,
        stream,
        attributeCount: 0,
        attributesAndParams: &parameters,
    });
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

on_every_way! {
    fn facts_describe_the_device(program: Program) {
        let facts = Facts::decode(&program.call(&kdFacts {}).unwrap().facts).unwrap();
        assert!(facts.driver_version >= 12000);
        assert_eq!(facts.devices[0].attribute(10).unwrap().value, 32);
        assert_eq!(facts.devices[0].granularity, GRANULE_BYTES);
        let retained = program.call(&kdContextRetain { context: 1, device: 0, flags: 0 }).unwrap();
        assert_ne!(ContextFacts::decode(&retained.facts).unwrap().id, 0);
    }

    fn copied_in_bytes_are_copied_out(program: Program) {
        let address = grown(&program);
        let data: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        program.enqueue(&kdCopyIn { destination: address, stream: 0, data: &data });
        let (destination, size) = (address + 0x10_0000, data.len());
        program.enqueue(&kdCopy { destination, source: address, size: size as u64, stream: 0 });
        let out = program.call(&kdCopyOut { source: destination, size: size as u32, stream: 0 }).unwrap();
        assert!(out.data == data);
    }

    fn a_fill_covers_its_rows_and_nothing_else(program: Program) {
        let destination = grown(&program);
        let fill = kdFill { destination, pitch: 0, value: 7, elementSize: 4, width: 8, height: 1, stream: 0 };
        program.enqueue(&fill);
        program.enqueue(&kdFill { pitch: 16, value: 9, width: 1, height: 2, ..fill });
        let out = program.call(&kdCopyOut { source: destination, size: 32, stream: 0 }).unwrap();
        assert_eq!(words(&out.data), [9, 7, 7, 7, 9, 7, 7, 7]);
    }

    fn a_kernel_reads_and_writes_device_memory(program: Program) {
        let address = grown(&program);
        load_scale(&program);
        program.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
        let data: Vec<u8> = (0..64_u32).flat_map(u32::to_le_bytes).collect();
        program.enqueue(&kdCopyIn { destination: address, stream: 3, data: &data });
        launch_scale(&program, address, 64, 3, 3);
        let out = program.call(&kdCopyOut { source: address, size: 256, stream: 3 }).unwrap();
        assert_eq!(words(&out.data), (0..64).map(|value| value * 3 + 5).collect::<Vec<_>>());
    }

    fn a_variable_of_a_module_can_be_written(program: Program) {
        let address = grown(&program);
        load_scale(&program);
        let variable = program.call(&kdModuleGlobal { module: 1, name: b"offset" }).unwrap();
        assert_eq!(variable.size, 4);
        program.enqueue(&kdCopyIn { destination: variable.address, stream: 0, data: &100_u32.to_le_bytes() });
        program.enqueue(&kdCopyIn { destination: address, stream: 0, data: &1_u32.to_le_bytes() });
        launch_scale(&program, address, 1, 2, 0);
        let out = program.call(&kdCopyOut { source: address, size: 4, stream: 0 }).unwrap();
        assert_eq!(words(&out.data), [102]);
        assert_eq!(program.call(&kdModuleGlobal { module: 1, name: b"none" }), Err(NOT_FOUND_CODE));
    }

    fn a_module_names_its_functions(program: Program) {
        load_scale(&program);
        let names = program.call(&kdModuleFunctionNames { module: 1 }).unwrap();
        assert_eq!(decode_names(&names.names).unwrap(), ["scale"]);
    }

    fn text_that_is_no_program_is_refused_and_the_session_lives(program: Program) {
        send_image(&program, "no ptx at all");
        let code = program.call(&LOAD).unwrap_err();
        assert!([INVALID_IMAGE, 218].contains(&code), "{code}");
        load_scale(&program);
    }

    fn an_error_of_an_enqueued_call_comes_with_the_next_reply(program: Program) {
        program.enqueue(&cuEventRecord { hEvent: 77, hStream: 0 });
        assert_eq!(program.call(&cuCtxSynchronize {}), Err(INVALID_HANDLE_CODE));
        program.call(&cuCtxSynchronize {}).unwrap();
    }

    fn events_and_default_streams_synchronize(program: Program) {
        program.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
        for stream in [0, 1, 2] {
            program.enqueue(&cuEventRecord { hEvent: 1, hStream: stream });
            program.call(&cuEventSynchronize { hEvent: 1 }).unwrap();
            program.call(&cuStreamSynchronize { hStream: stream }).unwrap();
        }
    }

    fn memory_grows_shrinks_and_ends(program: Program) {
        let address = grown(&program);
        let before = program.call(&kdDeviceInfo { device: 0 }).unwrap();
        let more = address + GRANULE_BYTES;
        program.call(&kdDeviceGrow { device: 0, address: more, size: 4 * GRANULE_BYTES }).unwrap();
        let after = program.call(&kdDeviceInfo { device: 0 }).unwrap();
        assert_eq!(before.free - after.free, 4 * GRANULE_BYTES);
        program.call(&kdDeviceShrink { device: 0, address: more, size: 4 * GRANULE_BYTES }).unwrap();
        assert_eq!(program.call(&kdDeviceInfo { device: 0 }).unwrap(), before);
        let size = (before.total + GRANULE_BYTES).next_multiple_of(GRANULE_BYTES);
        assert_eq!(program.call(&kdDeviceGrow { device: 0, address: more, size }), Err(OUT_OF_MEMORY_CODE));
    }

    fn a_host_function_is_run_by_the_program(program: Program) {
        program.enqueue(&kdHostFunction { stream: 0, token: 42 });
        let due = program.call(&kdUpcallNext { done: 0 }).unwrap();
        assert_eq!((due.token, due.status), (42, 0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Acknowledges the first, and takes the second.
                let link = &program.link;
                let mut reply = Vec::new();
                let done = 42_u64.to_le_bytes();
                let opcode = <kdUpcallNext as katydid_wire::codec::Message>::OPCODE;
                link.call(opcode, 1, &[&done], &mut reply).unwrap();
                assert_eq!(reply[..8], 43_u64.to_le_bytes());
            });
            program.link.enqueue(
                <kdHostFunction as katydid_wire::codec::Message>::OPCODE,
                1,
                &[&[0; 4], &43_u64.to_le_bytes()],
            ).unwrap();
        });
    }

    fn the_worker_ends_with_its_program(program: Program) {
        let mut program = program;
        let _ = program.link.enqueue(<kdFacts as katydid_wire::codec::Message>::OPCODE, 0, &[]);
        let Program { link, .. } = &mut program;
        link.abandon();
        until("the end of the worker", || program.worker.try_wait().unwrap().is_some());
    }
}

#[test]
fn pinned_memory_is_that_of_the_program_over_shared_memory() {
    let program = Program::start(Way::Shm);
    let pinned = program.arenas.map.pinned().unwrap().start;
    program.call(&kdHostRegister { address: pinned, size: 4096, flags: 0 }).unwrap();
    load_scale(&program);
    let device = grown(&program);
    program.enqueue(&kdFill {
        destination: device,
        pitch: 0,
        value: 4,
        elementSize: 4,
        width: 4,
        height: 1,
        stream: 0,
    });
    program.enqueue(&kdCopy { destination: pinned, source: device, size: 16, stream: 0 });
    launch_scale(&program, pinned, 4, 10, 0);
    program.call(&cuCtxSynchronize {}).unwrap();
    // Read back through the worker: tests of this crate hold no unsafe code.
    program.enqueue(&kdCopy { destination: device, source: pinned, size: 16, stream: 0 });
    let out = program.call(&kdCopyOut { source: device, size: 16, stream: 0 }).unwrap();
    assert_eq!(words(&out.data), [45; 4]);
    program.call(&kdHostUnregister { address: pinned, size: 4096 }).unwrap();
}

#[test]
fn pinned_memory_is_pushed_and_pulled_over_a_stream() {
    let program = Program::start(Way::Tcp);
    let pinned = program.arenas.map.pinned().unwrap().start;
    program.call(&kdHostRegister { address: pinned, size: 4096, flags: 0 }).unwrap();
    load_scale(&program);
    program.enqueue(&kdHostPush { address: pinned, data: &[1, 0, 0, 0, 2, 0, 0, 0] });
    launch_scale(&program, pinned, 2, 10, 0);
    program.call(&cuCtxSynchronize {}).unwrap();
    let pulled = program.call(&kdHostPull { ranges: &ranges::encode(&[(pinned, 8)]) }).unwrap();
    assert_eq!(words(&pulled.data), [15, 25]);
}

#[test]
fn bulk_copies_go_through_the_staging_area_and_give_it_back() {
    let program = Program::start(Way::Shm);
    let device = device(&program);
    program.call(&kdDeviceGrow { device: 0, address: device, size: 32 << 20 }).unwrap();
    let staging = program.link.staging().unwrap();
    let data: Vec<u8> = (0..katydid_transport::STAGING_PIECE_BYTES).map(|at| (at % 253) as u8).collect();
    // More pieces than exist, so each must be returned.
    for round in 0..40_u64 {
        let piece = staging.take(data.len()).unwrap();
        assert!(staging.write(piece, 0, &data));
        let (offset, number) = (u64::from(piece.number()) * data.len() as u64, piece.number());
        let destination = device + round % 8 * data.len() as u64;
        let size = data.len() as u32;
        program.enqueue(&kdCopyInStaged { destination, stream: 0, offset, size, piece: number });
    }
    let piece = staging.take(data.len()).unwrap();
    let offset = u64::from(piece.number()) * data.len() as u64 + 8;
    program.call(&kdCopyOutStaged { source: device + 100, size: 1000, stream: 0, offset }).unwrap();
    let mut out = vec![0; 1000];
    assert!(staging.read(piece, 8, &mut out));
    assert_eq!(out, data[100..1100]);
}

#[test]
fn the_limit_of_a_server_is_a_full_device() {
    let program = Program::start_with(Way::Shm, b"memory 4194304");
    let address = device(&program);
    program.call(&kdDeviceGrow { device: 0, address, size: 2 * GRANULE_BYTES }).unwrap();
    let more = kdDeviceGrow { device: 0, address: address + 2 * GRANULE_BYTES, size: GRANULE_BYTES };
    assert_eq!(program.call(&more), Err(OUT_OF_MEMORY_CODE));
    assert_eq!(program.call(&kdDeviceInfo { device: 0 }).unwrap().total, 2 * GRANULE_BYTES);
}

#[test]
fn a_hostile_program_ends_its_session_with_one_line() {
    for way in [Way::Shm, Way::Unix, Way::Tcp] {
        let program = Program::start(way);
        program.link.enqueue(u16::MAX, 1, &[b"nonsense"]).unwrap();
        let words = program.last_words();
        assert!(words.contains("the session of test (pid "), "{words}");
        assert!(words.contains("opcode 65535"), "{words}");
    }
}

#[test]
fn a_worker_without_a_driver_says_so_to_its_server() {
    let (mut worker, control) = support::spawn_worker("/no/such/libcuda.so.1");
    let mut buffer = [0; 4096];
    let (_, length) = rustix::net::recv(&control, &mut buffer, rustix::net::RecvFlags::empty()).unwrap();
    let words = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(words.starts_with("failed ") && words.contains("/no/such/libcuda.so.1"), "{words}");
    assert!(!worker.wait().unwrap().success());
}

#[test]
fn a_worker_loads_the_drivers_of_opencl_before_it_is_ready() {
    // A library that is no driver, and that nothing else here loads.
    const LIBRARY: &str = "libBrokenLocale.so.1";
    let (mut worker, control) = support::spawn_worker_with(&support::driver(), &[(support::OPENCL_DRIVERS, LIBRARY)]);
    let mut buffer = [0; 4096];
    let (_, length) = rustix::net::recv(&control, &mut buffer, rustix::net::RecvFlags::empty()).unwrap();
    assert!(buffer[..length].starts_with(b"warm "));
    assert!(std::fs::read_to_string(format!("/proc/{}/maps", worker.id())).unwrap().contains(LIBRARY));
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn a_worker_whose_server_is_gone_ends_without_complaint() {
    let (mut worker, control) = support::spawn_worker(&support::driver());
    let mut buffer = [0; 4096];
    let (_, length) = rustix::net::recv(&control, &mut buffer, rustix::net::RecvFlags::empty()).unwrap();
    assert!(buffer[..length].starts_with(b"warm "));
    drop(control);
    assert!(worker.wait().unwrap().success());
}
