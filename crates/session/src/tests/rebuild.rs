//! A session on a driver that runs code, saved, and rebuilt in another process. The program must then receive the same
//! answers as if nothing had happened.
//!
//! Each half runs in its own process, as a worker does: this test binary started again, without address randomisation.
//! `KATYDID_TEST_DRIVER` names a driver other than softcuda.

#![expect(unsafe_code, reason = "starts a process without address randomisation")]

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use katydid_arena::AddressMap;
use katydid_driver::{Driver, open};
use katydid_fatbin::ModuleImage;
use katydid_session_core::ReplayStep;
use katydid_wire::codec::{Message, Reply as _};
use katydid_wire::facts::{EdgeFacts, FunctionFacts, GraphFacts, StepFacts, StepWork};
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use katydid_wire::message::*;
use katydid_wire::texture::TextureArguments;

use super::soft;
use super::stage::{DEVICE, GRANULE_BYTES, Stage};
use crate::device::gather;
use crate::journal::SessionRequirements;
use crate::memory::device_memory::reserve;

/// Tells a process its half, and the folder that both share.
const PROCESS_ROLE: &str = "KATYDID_TEST_HALF";
const FOLDER_VARIABLE: &str = "KATYDID_TEST_FOLDER";
/// Address of the program's own virtual memory.
const RESERVED_ADDRESS: u64 = 0x6000_0000_0000;

/// `values[i] = values[i] * factor + offset`, where `offset` is a variable; and a texel's bits.
const CODE: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 offset = 5;
.global .align 4 .u32 hidden = 6;
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
.visible .entry texel(.param .u64 to, .param .u64 texture)
{
    .reg .u64 %rd<3>;
    .reg .u32 %r<6>;
    .reg .f32 %f<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [texture];
    mov.f32 %f1, 0f3FC00000;
    tex.1d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd2, {%f1}];
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// Runs the half that the environment names; as an ordinary test, it does nothing.
#[test]
fn half() {
    let Ok(half) = env::var(PROCESS_ROLE) else { return };
    let folder = PathBuf::from(env::var(FOLDER_VARIABLE).unwrap());
    let answers = match half.as_str() {
        "before" => first_worker(&folder),
        _ => after(&folder),
    };
    fs::write(folder.join(half), answers).unwrap();
}

#[test]
fn a_program_goes_on_in_another_process_as_if_nothing_had_happened() {
    let folder = tempfile::tempdir().unwrap();
    for half in ["before", "after"] {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "tests::rebuild::half", "--nocapture"])
            .env(PROCESS_ROLE, half)
            .env(FOLDER_VARIABLE, folder.path());
        command.env("KATYDID_SOFT_DEVICES", "2");
        // SAFETY: between fork and exec only this system call is made.
        unsafe {
            command.pre_exec(|| {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                Ok(())
            });
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{half}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let read = |half: &str| fs::read_to_string(folder.path().join(half)).unwrap();
    let answers = read("before");
    assert!(answers.lines().count() > 20, "{answers}");
    assert_eq!(answers, read("after"));
}

fn stage(arenas: &[ArenaRange]) -> Stage {
    let driver = Driver::new(open(&soft::choice(), None).unwrap());
    let facts = gather::devices(&driver).unwrap();
    let map = AddressMap::from_arenas(arenas).unwrap();
    assert!(reserve(&driver, &map, 1));
    Stage::on(driver, facts, map, None)
}

/// Runs the program up to the checkpoint. Returns its answers after it.
fn first_worker(folder: &Path) -> String {
    let mut stage = stage(&[ArenaRange { kind: ArenaKind::DEVICE, base: DEVICE, length: 1 << 40 }]);
    let known = begin(&mut stage);
    let saved = stage.session.journal().unwrap();
    assert_eq!(sketched(&saved.state), [2, 4, 5]);
    fs::write(folder.join("state"), &saved.state).unwrap();
    for (number, image) in saved.images.iter().enumerate() {
        fs::write(folder.join(format!("image-{number}")), image.image().encode()).unwrap();
    }
    fs::write(folder.join("known"), known.map(|number| number.to_string()).join(" ")).unwrap();
    go_on(&mut stage, known)
}

/// Runs the program after a restore. Returns its answers.
fn after(folder: &Path) -> String {
    let state = fs::read(folder.join("state")).unwrap();
    let mut stage = stage(&SessionRequirements::read(&state).unwrap().arenas);
    let mut image = |number: u32| fs::read(folder.join(format!("image-{number}"))).ok();
    stage.session.rebuild(&state, &mut image).unwrap();
    stage.session.reattach().unwrap();
    // The journal holds the same now as then.
    let again = stage.session.journal().unwrap();
    assert_eq!(records(&again.state), records(&state));
    let known = fs::read_to_string(folder.join("known")).unwrap();
    let known: Vec<u64> = known.split(' ').map(|number| number.parse().unwrap()).collect();
    go_on(&mut stage, known.try_into().unwrap())
}

/// Returns the executable graphs whose memory is taken before they are made, or without making them.
fn sketched(state: &[u8]) -> Vec<u32> {
    let state = crate::journal::read_state(state).unwrap();
    let sketches = state.first.iter().filter(|record| record.step == ReplayStep::Sketch);
    sketches.map(|record| kdGraphInstantiate::decode(&record.payload).unwrap().exec).collect()
}

/// Returns the records to replay, without times, which a driver's `f32` makes imprecise.
fn records(state: &[u8]) -> String {
    let state = crate::journal::read_state(state).unwrap();
    format!("{:#?}", (state.first, state.second))
}

fn load(stage: &mut Stage) {
    let image = ModuleImage::from_bytes(CODE.as_bytes()).unwrap().encode();
    stage.enqueue(&kdUpload { total: image.len() as u64, data: &image });
}

fn module(stage: &mut Stage, module: u32) {
    load(stage);
    stage.reply(&kdModuleLoad { module, infoLogSize: 0, errorLogSize: 0, options: &[] });
}

/// A graph that fills two words, one after the other, and records an event.
fn graph(first: u32) -> GraphFacts {
    let fill =
        |address, value| StepWork::Fill { context: 1, address, pitch: 4, value, element: 4, width: 1, height: 1 };
    let step = |from: Option<u32>, work| StepFacts {
        dependencies: from.map(|from| EdgeFacts { from, port: 0, kind: 0 }).into_iter().collect(),
        is_enabled: true,
        work,
        inner: Vec::new(),
    };
    GraphFacts {
        steps: vec![
            step(None, fill(DEVICE, first)),
            step(Some(0), fill(DEVICE + 4, 22)),
            step(Some(1), StepWork::Record(2)),
        ],
    }
}

fn instantiate(stage: &mut Stage, exec: u32) {
    let steps = graph(11).encode();
    stage.enqueue(&kdUpload { total: steps.len() as u64, data: &steps });
    stage.reply(&kdGraphInstantiate { exec, graph: exec, flags: 0 });
}

fn texture(stage: &mut Stage) -> u64 {
    // Point sampling, clamped, integers unconverted.
    let sampler = [1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let arguments = TextureArguments { kind: 0, array: 1, sampler, ..TextureArguments::default() };
    stage.reply(&kdTextureCreate { arguments: &arguments.encode() }).texture
}

/// Makes objects of every kind, and ends some. Returns the numbers that the program knows.
fn begin(stage: &mut Stage) -> [u64; 4] {
    stage.retain(1);
    stage.reply(&kdContextCreate { context: 2, device: 0, flags: 0 });
    stage.reply(&kdContextCreate { context: 3, device: 0, flags: 0 });
    stage.reply(&kdContextSetLimit { limit: 0, value: 4096 });
    stage.reply(&cuCtxDestroy_v2 { ctx: 2 });
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE, size: GRANULE_BYTES });
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE + GRANULE_BYTES, size: GRANULE_BYTES });
    stage.reply(&kdDeviceShrink { device: 0, address: DEVICE + GRANULE_BYTES, size: GRANULE_BYTES });
    stage.enqueue(&cuStreamCreateWithPriority { phStream: 3, flags: 1, priority: -1 });
    stage.enqueue(&cuStreamCreate { phStream: 4, Flags: 0 });
    stage.enqueue(&cuStreamDestroy_v2 { hStream: 4 });
    for event in 1..=4 {
        stage.enqueue(&cuEventCreate { phEvent: event, Flags: 0 });
    }
    // This module leaves a gap once a younger one is loaded.
    module(stage, 1);
    stage.reply(&kdModuleGlobal { module: 1, name: b"offset" });
    module(stage, 2);
    stage.enqueue(&cuModuleUnload { hmod: 1 });
    let variable = stage.reply(&kdModuleGlobal { module: 2, name: b"offset" }).address;
    stage.reply(&kdModuleFunction { function: 1, module: 2, name: b"scale" });
    stage.reply(&kdModuleFunction { function: 2, module: 2, name: b"texel" });
    stage.enqueue(&kdFunctionSetAttribute { function: 1, kernel: 0, device: 0, attribute: 8, value: 1024 });
    load(stage);
    stage.reply(&kdLibraryLoad { library: 1, infoLogSize: 0, errorLogSize: 0, options: &[] });
    stage.reply(&kdLibraryKernel { kernel: 1, library: 1, name: b"scale" });
    tune(stage);
    stage.enqueue(&cuEventRecord { hEvent: 1, hStream: 3 });
    launch(stage, 0, 1, 3);
    stage.enqueue(&cuEventRecord { hEvent: 3, hStream: 3 });
    let of_library = stage.reply(&kdLibraryGlobal { library: 1, managed: 0, name: b"offset" }).address;
    let (width, height, depth) = (4, 0, 0);
    stage.reply(&kdArrayCreate { array: 1, width, height, depth, format: 3, channels: 1, flags: 0 });
    let gone = texture(stage);
    let live_texture = texture(stage);
    stage.enqueue(&cuTexObjectDestroy { texObject: gone });
    memory(stage);
    // A younger module found the memory of some graphs taken, one graph ended before that, and one stays and changes.
    instantiate(stage, 2);
    module(stage, 3);
    instantiate(stage, 3);
    stage.enqueue(&kdGraphDestroy { exec: 3 });
    instantiate(stage, 4);
    module(stage, 4);
    for exec in [2, 4] {
        stage.enqueue(&kdGraphDestroy { exec });
    }
    instantiate(stage, 5);
    let changed = graph(33).steps.remove(0).encode();
    stage.reply(&kdGraphChange { exec: 5, number: 0, step: &changed });
    let arguments = graph(44).steps.remove(0).encode();
    stage.enqueue(&kdGraphArguments { exec: 5, number: 0, step: &arguments });
    let condition = kdGraphCondition { graph: 6, context: 1, default: 0, flags: 0 };
    stage.reply(&condition);
    stage.enqueue(&kdGraphForget { graph: 6 });
    let handle = stage.reply(&kdGraphCondition { graph: 7, ..condition }).handle;
    stage.enqueue(&kdUpload { total: 1 << 20, data: b"half an image" });
    stage.reply(&cuCtxSynchronize {});
    [variable, of_library, live_texture, handle]
}

/// Sets an attribute of a library's kernel in a context that ends: it belongs to the device, and stays.
fn tune(stage: &mut Stage) {
    let of_kernel = kdFunctionSetAttribute { function: 0, kernel: 1, device: 0, attribute: 8, value: 2048 };
    stage.reply(&kdContextCreate { context: 4, device: 0, flags: 0 });
    let before = std::mem::replace(&mut stage.context, 4);
    stage.enqueue(&of_kernel);
    stage.enqueue(&kdFunctionSetAttribute { device: 1, value: 4096, ..of_kernel });
    stage.context = before;
    stage.reply(&cuCtxDestroy_v2 { ctx: 4 });
    let facts = stage.reply(&kdFunctionFacts { function: 0, kernel: 1 }).facts;
    assert_eq!(FunctionFacts::decode(&facts).unwrap().attributes[8].value, 2048);
}

/// Makes virtual memory: a block, mapped and readable, whose handle is released.
fn memory(stage: &mut Stage) {
    let properties = [1, 0, 1, 0, 0, 0, 0, 0].map(u32::to_le_bytes).concat();
    stage.reply(&kdAddressReserve { address: RESERVED_ADDRESS, size: 16 * GRANULE_BYTES });
    stage.reply(&kdMemoryCreate { memory: 1, size: 2 * GRANULE_BYTES, properties: &properties });
    stage.reply(&kdMemoryMap { address: RESERVED_ADDRESS, size: 2 * GRANULE_BYTES, offset: 0, memory: 1 });
    let grants = [1, 0, 3].map(u32::to_le_bytes).concat();
    stage.reply(&kdMemorySetAccess { address: RESERVED_ADDRESS, size: 2 * GRANULE_BYTES, grants: &grants });
    stage.enqueue(&kdMemoryRelease { memory: 1 });
}

fn launch(stage: &mut Stage, function: u32, kernel: u32, stream: u32) {
    let params = [&(DEVICE + 64).to_le_bytes()[..], &3_u32.to_le_bytes()].concat();
    start(stage, (function, kernel), stream, &params);
}

fn start(stage: &mut Stage, (function, kernel): (u32, u32), stream: u32, params: &[u8]) {
    stage.enqueue(&kdLaunch {
        function,
        kernel,
        gridX: 1,
        gridY: 1,
        gridZ: 1,
        blockX: 1,
        blockY: 1,
        blockZ: 1,
        sharedSize: 0,
        stream,
        attributeCount: 0,
        attributesAndParams: params,
    });
}

/// Continues the program and returns every answer. The journal keeps no contents of memory: the program writes what it
/// reads.
fn go_on(stage: &mut Stage, [variable, of_library, texture, condition]: [u64; 4]) -> String {
    stage.context = 1;
    let mut log = String::new();
    execute_and_log(stage, &mut log, &kdElapsedTime { start: 1, end: 3, version: 1 });
    execute_and_log(stage, &mut log, &kdElapsedTime { start: 3, end: 1, version: 2 });
    execute_and_log(stage, &mut log, &kdElapsedTime { start: 1, end: 4, version: 1 });
    execute_and_log(stage, &mut log, &kdModuleGlobal { module: 2, name: b"offset" });
    execute_and_log(stage, &mut log, &kdLibraryGlobal { library: 1, managed: 0, name: b"offset" });
    execute_and_log(stage, &mut log, &kdContextLimit { limit: 0 });
    execute_and_log(stage, &mut log, &kdStreamAttribute { stream: 3, attribute: 8 });
    for gone in [4, 9] {
        execute_and_log(stage, &mut log, &cuStreamQuery { hStream: gone });
    }
    execute_and_log(stage, &mut log, &kdFunctionFacts { function: 1, kernel: 0 });
    execute_and_log(stage, &mut log, &kdFunctionFacts { function: 0, kernel: 1 });
    execute_and_log(stage, &mut log, &kdModuleFunctionNames { module: 1 });
    execute_and_log(stage, &mut log, &kdMemoryAccess { address: RESERVED_ADDRESS, device: 0 });
    for address in [variable, of_library] {
        stage.enqueue(&kdCopyIn { destination: address, stream: 0, data: &7_u32.to_le_bytes() });
    }
    for (function, kernel, to) in [(1, 0, DEVICE + 64), (0, 1, DEVICE + 64), (1, 0, RESERVED_ADDRESS)] {
        stage.enqueue(&kdCopyIn { destination: to, stream: 3, data: &5_u32.to_le_bytes() });
        let params = [&to.to_le_bytes()[..], &3_u32.to_le_bytes()].concat();
        start(stage, (function, kernel), 3, &params);
        execute_and_log(stage, &mut log, &kdCopyOut { source: to, size: 4, stream: 3 });
    }
    let texels = [1_u32, 42, 3, 4].map(u32::to_le_bytes).concat();
    stage.enqueue(&kdRowsIn { array: 1, stream: 0, x: 0, y: 0, z: 0, pitch: 0, width: 16, height: 1, data: &texels });
    execute_and_log(
        stage,
        &mut log,
        &kdRowsOut { array: 1, stream: 0, x: 0, y: 0, z: 0, pitch: 0, width: 16, height: 1 },
    );
    let params = [DEVICE.to_le_bytes(), texture.to_le_bytes()].concat();
    start(stage, (2, 0), 0, &params);
    execute_and_log(stage, &mut log, &kdCopyOut { source: DEVICE, size: 4, stream: 0 });
    stage.enqueue(&kdGraphLaunch { exec: 5, stream: 3 });
    execute_and_log(stage, &mut log, &kdCopyOut { source: DEVICE, size: 8, stream: 3 });
    execute_and_log(stage, &mut log, &cuEventQuery { hEvent: 2 });
    execute_and_log(stage, &mut log, &kdGraphCondition { graph: 7, context: 1, default: 0, flags: 0 });
    let rest = vec![b'x'; (1 << 20) - 13];
    stage.enqueue(&kdUpload { total: 1 << 20, data: &rest });
    execute_and_log(stage, &mut log, &kdModuleLoad { module: 9, infoLogSize: 0, errorLogSize: 0, options: &[] });
    stage.context = 2;
    execute_and_log(stage, &mut log, &cuCtxSynchronize {});
    stage.context = 3;
    execute_and_log(stage, &mut log, &cuCtxSynchronize {});
    let _ = writeln!(log, "{variable:#x} {of_library:#x} {texture} {condition}");
    log
}

fn execute_and_log<M: Message>(stage: &mut Stage, log: &mut String, message: &M) {
    let sent = stage.call(message);
    let reply = M::Reply::decode(&sent.payload).map(|_| &sent.payload);
    let _ = writeln!(log, "{} {} {} {:x?}", M::NAME, sent.status, sent.deferred, reply.ok());
}
