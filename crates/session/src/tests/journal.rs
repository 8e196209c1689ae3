//! What the journal keeps, and that a replay recreates it. The driver of these tests records its calls.

use std::fs::File;
use std::sync::atomic::Ordering;

use katydid_fatbin::ModuleImage;
use katydid_session_core::{ReplayError, StateError};
use katydid_transport::share::Exporter;
use katydid_wire::message::{
    cuEventCreate, cuEventDestroy_v2, cuModuleUnload, cuStreamCopyAttributes, cuStreamCreate, cuStreamDestroy_v2,
    cuStreamQuery, cuSurfObjectDestroy, kdAddressReserve, kdArrayCreate, kdContextRelease, kdContextSetLimit,
    kdDeviceGrow, kdDeviceShrink, kdEventImport, kdFacts, kdFunctionSetAttribute, kdFunctionSetCacheConfig, kdHostPull,
    kdHostPush, kdHostRegister, kdImportedMap, kdLibraryKernel, kdLibraryLoad, kdMemoryCreate, kdMemoryImport,
    kdMemoryMap, kdMemoryRelease, kdModuleFunction, kdModuleGlobal, kdModuleLoad, kdOccupancy, kdStreamSetAttribute,
    kdSurfaceCreate, kdUpload,
};
use katydid_wire::ranges;
use rustix::fs::{MemfdFlags, memfd_create};

use super::fake::{self, ADDRESS_STOCK, AddressStock, VARIABLE_ADDRESS, calls};
use super::stage::{DEVICE, GRANULE_BYTES, Stage};
use crate::journal::{ObjectKind, RebuildError, SavedState, SessionRequirements, messages_of};

/// Returns the saved state of a stage.
fn save(stage: &mut Stage) -> SavedState {
    let saved = stage.session.journal().unwrap();
    calls();
    saved
}

/// Rebuilds into a new session, whose driver counts from zero.
fn try_rebuild(saved: &SavedState) -> Result<Stage, RebuildError> {
    fake::NUMBER.set(0);
    let mut stage = Stage::bare();
    let mut images = |number: u32| saved.images.get(number as usize).map(|image| image.image().encode());
    stage.session.rebuild(&saved.state, &mut images)?;
    stage.session.reattach()?;
    stage.context = 1;
    Ok(stage)
}

fn rebuild(saved: &SavedState) -> Stage {
    try_rebuild(saved).unwrap()
}

/// Returns calls without their handles, which are consecutive numbers.
fn plain(calls: &[String]) -> Vec<String> {
    let handle = |word: &str| word.starts_with("0x") && word.len() < 10;
    calls.iter().map(|call| call.split(' ').filter(|word| !handle(word)).collect::<Vec<_>>().join(" ")).collect()
}

/// Returns the calls of a rebuilt session, without the session's own streams, with which its first context begins.
fn of_program(calls: &[String]) -> Vec<String> {
    let mut calls = plain(calls);
    assert_eq!(calls.drain(2..10).collect::<Vec<_>>(), ["stream 1"; 8]);
    calls
}

fn load(stage: &mut Stage, module: u32, text: &[u8]) {
    let image = ModuleImage::from_bytes(text).unwrap().encode();
    stage.enqueue(&kdUpload { total: image.len() as u64, data: &image });
    stage.reply(&kdModuleLoad { module, infoLogSize: 0, errorLogSize: 0, options: &[] });
}

#[test]
fn live_objects_are_replayed_in_order_and_no_others() {
    let mut stage = Stage::new();
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
    stage.enqueue(&cuStreamCreate { phStream: 4, Flags: 0 });
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE, size: GRANULE_BYTES });
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE + GRANULE_BYTES, size: GRANULE_BYTES });
    load(&mut stage, 1, b".version 8.0\n");
    stage.reply(&kdModuleFunction { function: 1, module: 1, name: b"saxpy" });
    for value in 0..3 {
        stage.reply(&kdContextSetLimit { limit: 2, value });
    }
    stage.enqueue(&cuStreamDestroy_v2 { hStream: 4 });
    stage.reply(&kdDeviceShrink { device: 0, address: DEVICE, size: GRANULE_BYTES });
    let saved = save(&mut stage);
    assert_eq!(saved.images.len(), 1);
    let mut again = rebuild(&saved);
    // Two streams were alive when the module was loaded.
    let expected = ["retain", "current", "stream 1", "stream 1", "destroy", "create", "map 0x200000200000", "access 1"];
    assert_eq!(of_program(&calls()), [&expected[..], &["module", "function saxpy", "limit 2 2"]].concat());
    assert!(save(&mut again).state == saved.state);
    assert_eq!(again.call(&cuStreamQuery { hStream: 3 }).status, 0);
    assert_ne!(again.call(&cuStreamQuery { hStream: 4 }).status, 0);
}

#[test]
fn a_journal_is_as_small_after_a_million_objects_as_before() {
    // Two objects a round; the sweep makes ten million.
    let is_sweep = std::env::var("KATYDID_CHECKPOINT_SWEEP").is_ok_and(|value| value == "1");
    let rounds = if is_sweep { 5_000_000 } else { 500_000 };
    let mut stage = Stage::new();
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 2 });
    let before = save(&mut stage).state.len();
    for round in 0..rounds {
        let id = 2 + round % 5_u32;
        stage.enqueue(&cuEventCreate { phEvent: id, Flags: 2 });
        stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
        stage.enqueue(&cuEventDestroy_v2 { hEvent: id });
        stage.enqueue(&cuStreamDestroy_v2 { hStream: 3 });
        if round % 100 == 0 {
            calls();
            load(&mut stage, 1, b".version 8.0\n");
            stage.enqueue(&cuModuleUnload { hmod: 1 });
        }
    }
    let after = save(&mut stage);
    // The count of executed frames has a fixed width: only its digits changed.
    assert_eq!((after.state.len(), after.images.len()), (before, 0));
}

#[test]
fn a_late_id_is_as_good_after_a_restore_as_before() {
    let mut stage = Stage::new();
    for id in (1..200_000).step_by(60_000) {
        stage.enqueue(&cuEventCreate { phEvent: id, Flags: 2 });
    }
    for id in (1..180_000).step_by(60_000) {
        stage.enqueue(&cuEventDestroy_v2 { hEvent: id });
    }
    let mut again = rebuild(&save(&mut stage));
    assert!(again.session.tables.events.get(180_001).is_ok());
    again.enqueue(&cuEventCreate { phEvent: 240_001, Flags: 2 });
}

#[test]
fn objects_of_a_context_go_with_it() {
    let mut stage = Stage::new();
    stage.retain(2);
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 0 });
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE, size: GRANULE_BYTES });
    stage.reply(&kdContextRelease { context: 2, device: 0 });
    stage.context = 1;
    let saved = save(&mut stage);
    let again = rebuild(&saved);
    assert!(again.session.tables.streams.get(3).is_err() && again.session.tables.contexts.get(2).is_err());
    // Device memory belongs to no context.
    assert!(again.session.journal.get(ObjectKind::Growth, DEVICE).is_some());
}

#[test]
fn a_module_that_was_there_when_a_younger_one_was_loaded_is_loaded_and_unloaded_again() {
    let mut stage = Stage::new();
    load(&mut stage, 1, b".version 8.0\n");
    load(&mut stage, 2, b".version 8.1\n");
    stage.enqueue(&cuModuleUnload { hmod: 1 });
    // No live object was made while this module was loaded.
    load(&mut stage, 3, b".version 8.2\n");
    stage.enqueue(&cuModuleUnload { hmod: 3 });
    let saved = save(&mut stage);
    rebuild(&saved);
    assert_eq!(of_program(&calls()), ["retain", "current", "module", "module", "unload"]);
    stage.enqueue(&cuModuleUnload { hmod: 2 });
    let saved = save(&mut stage);
    rebuild(&saved);
    assert_eq!(of_program(&calls()), ["retain", "current"]);
}

#[test]
fn variables_lie_where_they_did_when_streams_are_gone_that_came_before() {
    let fresh = || ADDRESS_STOCK.set(Some(AddressStock { streams: Some((0, 0)), ..AddressStock::default() }));
    fresh();
    let mut stage = Stage::new();
    let streams = |stage: &mut Stage, ids: &[u32]| {
        ids.iter().for_each(|id| stage.enqueue(&cuStreamCreate { phStream: *id, Flags: 1 }));
    };
    let end = |stage: &mut Stage, ids: &[u32]| {
        ids.iter().for_each(|id| stage.enqueue(&cuStreamDestroy_v2 { hStream: *id }));
    };
    streams(&mut stage, &[3, 4, 5, 6]);
    end(&mut stage, &[3, 5, 6]);
    streams(&mut stage, &[5]);
    load(&mut stage, 1, b".version 8.0\n");
    let first = stage.reply(&kdModuleGlobal { module: 1, name: b"counter" }).address;
    streams(&mut stage, &[7, 8, 9, 10]);
    load(&mut stage, 2, b".version 8.1\n");
    let second = stage.reply(&kdModuleGlobal { module: 2, name: b"counter" }).address;
    end(&mut stage, &[4, 5, 8, 9]);
    assert!(second > first + AddressStock::BLOCK * 2);
    let saved = save(&mut stage);
    // A restored session knows it as well.
    for _ in 0..2 {
        fresh();
        let mut stage = try_rebuild(&saved).unwrap();
        let saved = save(&mut stage);
        fresh();
        drop(try_rebuild(&saved).unwrap());
    }
    ADDRESS_STOCK.set(None);
}

#[test]
fn a_library_is_used_where_its_kernels_are_asked_about_and_set() {
    let mut stage = Stage::new();
    for library in [1, 2, 3] {
        let image = ModuleImage::from_bytes(b".version 8.0\n").unwrap().encode();
        stage.enqueue(&kdUpload { total: image.len() as u64, data: &image });
        stage.reply(&kdLibraryLoad { library, infoLogSize: 0, errorLogSize: 0, options: &[] });
        stage.reply(&kdLibraryKernel { kernel: library, library, name: b"scale" });
    }
    stage.retain(2);
    stage.enqueue(&kdFunctionSetAttribute { function: 0, kernel: 1, device: 0, attribute: 8, value: 1024 });
    stage.enqueue(&kdFunctionSetCacheConfig { function: 0, kernel: 3, device: 1, config: 1 });
    stage.reply(&kdOccupancy { function: 0, kernel: 2, blockSize: 32, dynamicSize: 0, flags: 0 });
    stage.enqueue(&kdFunctionSetAttribute { function: 0, kernel: 1, device: 0, attribute: 8, value: 2048 });
    let uses = stage.session.journal.uses.in_order();
    let uses: Vec<_> = uses.iter().map(|(library, context, _)| (*library, *context)).collect();
    assert_eq!(uses, [(1, 1), (1, 2), (2, 2)], "on the device, and in the current context");
}

#[test]
fn an_address_that_the_program_knows_and_that_moved_refuses_the_restore_by_name() {
    let mut stage = Stage::new();
    load(&mut stage, 1, b".version 8.0\n");
    let answer = stage.reply(&kdModuleGlobal { module: 1, name: b"counter" }).address;
    let saved = save(&mut stage);
    rebuild(&saved);
    VARIABLE_ADDRESS.fetch_add(0x100, Ordering::Relaxed);
    let refused = try_rebuild(&saved).err().unwrap();
    VARIABLE_ADDRESS.fetch_sub(0x100, Ordering::Relaxed);
    assert!(
        matches!(refused, RebuildError::Moved { saved, current, .. } if saved == answer && current == answer + 0x100),
        "{refused}"
    );
    assert!(refused.to_string().contains("counter"), "{refused}");
}

#[test]
fn numbers_that_a_driver_counts_come_back_though_others_are_gone() {
    fake::NUMBER.set(0);
    let mut stage = Stage::new();
    let (width, height, depth) = (4, 4, 0);
    stage.reply(&kdArrayCreate { array: 1, width, height, depth, format: 1, channels: 1, flags: 2 });
    let numbers: Vec<u64> = (0..5).map(|_| stage.reply(&kdSurfaceCreate { array: 1 }).surface).collect();
    for gone in [0, 1, 3] {
        stage.enqueue(&cuSurfObjectDestroy { surfObject: numbers[gone] });
    }
    let saved = save(&mut stage);
    let again = rebuild(&saved);
    let surfaces: Vec<u64> = again.session.journal.of(ObjectKind::Surface).map(|(id, _)| id & 0xff_ffff).collect();
    assert_eq!(surfaces, [numbers[2], numbers[4]]);
    let ended = calls().iter().filter(|call| call.starts_with("end surface")).count();
    assert_eq!(ended, 3);
}

#[test]
fn a_rehearsal_makes_what_waits_for_the_program_with_little_memory_of_the_host() {
    const BASE: u64 = 0x4900_0000_0000;
    const LENGTH: u64 = 512 << 20;
    const REGISTERED_BYTES: u64 = 160 << 20;
    fake::NUMBER.set(0);
    let mut stage = Stage::with_host_memory(BASE, LENGTH, true);
    stage.retain(1);
    stage.reply(&kdHostRegister { address: BASE, size: REGISTERED_BYTES, flags: 0 });
    let (width, height, depth) = (4, 4, 0);
    stage.reply(&kdArrayCreate { array: 1, width, height, depth, format: 1, channels: 1, flags: 2 });
    stage.reply(&kdSurfaceCreate { array: 1 });
    let saved = save(&mut stage);
    drop(stage);
    let rehearse = |numbers_used: u64| {
        fake::NUMBER.set(0);
        let mut stage = Stage::with_host_memory(BASE, LENGTH, false);
        stage.session.device.begin_rehearsal();
        stage.session.rebuild(&saved.state, &mut |_| None).unwrap();
        fake::NUMBER.set(numbers_used);
        let outcome = stage.session.rehearse_reattach();
        (stage, outcome)
    };
    let (mut stage, outcome) = rehearse(0);
    outcome.unwrap();
    let driver_calls = calls();
    assert!(driver_calls.contains(&format!("register {BASE:#x} {REGISTERED_BYTES:#x}")), "{driver_calls:?}");
    stage.context = 1;
    stage.enqueue(&kdHostPush { address: BASE + 8, data: b"same" });
    let elsewhere = ranges::encode(&[(BASE + (64 << 20) + 8, 4), (BASE + (128 << 20) + 8, 4)]);
    assert_eq!(stage.reply(&kdHostPull { ranges: &elsewhere }).data, b"samesame");
    drop(stage);
    // The driver's numbers run ahead of those that the program received.
    let refused = rehearse(7).1.unwrap_err();
    assert!(matches!(refused, RebuildError::Moved { .. }), "{refused}");
}

#[test]
fn a_rehearsal_makes_what_names_memory_and_events_of_other_sessions() {
    const AT: u64 = 0x5000_0000_0000;
    /// Size of the driver's handle of an event.
    const HANDLE_BYTES: u64 = 64;
    fake::NUMBER.set(0);
    let exporter = Exporter::open(0).unwrap();
    let exported = |size: u64| {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(HANDLE_BYTES).unwrap();
        exporter.name(&exporter.export(vec![(file.into(), size)]).unwrap())
    };
    let (block, piece, event) = (exported(GRANULE_BYTES), exported(2 * GRANULE_BYTES), exported(HANDLE_BYTES));
    let mut stage = Stage::new();
    stage.reply(&kdAddressReserve { address: AT, size: 4 * GRANULE_BYTES });
    stage.reply(&kdMemoryImport { memory: 9, name: &block });
    stage.reply(&kdMemoryMap { address: AT, size: GRANULE_BYTES, offset: 0, memory: 9 });
    let address = AT + GRANULE_BYTES;
    stage.reply(&kdImportedMap { address, size: 2 * GRANULE_BYTES, device: 0, name: &piece });
    stage.reply(&kdEventImport { event: 5, name: &event });
    stage.reply(&kdArrayCreate { array: 1, width: 4, height: 4, depth: 0, format: 1, channels: 1, flags: 2 });
    stage.reply(&kdSurfaceCreate { array: 1 });
    let saved = save(&mut stage);
    drop(stage);
    let rehearse = |numbers_used: u64| {
        fake::NUMBER.set(0);
        let mut stage = Stage::bare();
        stage.session.device.begin_rehearsal();
        stage.session.rebuild(&saved.state, &mut |_| None).unwrap();
        calls();
        fake::NUMBER.set(numbers_used);
        stage.session.rehearse_reattach()
    };
    rehearse(0).unwrap();
    let driver_calls = calls();
    assert!(!driver_calls.iter().any(|call| call == "import" || call.starts_with("open event")), "{driver_calls:?}");
    for (at, size) in [(AT, GRANULE_BYTES), (address, 2 * GRANULE_BYTES)] {
        assert!(driver_calls.contains(&format!("map {at:#x} {size:#x}")), "{driver_calls:?}");
    }
    // Objects made after the imported ones are compared.
    let refused = rehearse(7).unwrap_err();
    assert!(matches!(refused, RebuildError::Moved { .. }), "{refused}");
}

#[test]
fn the_last_value_of_each_attribute_is_set_again_also_where_it_was_copied() {
    let mut stage = Stage::new();
    for stream in 3..=5 {
        stage.enqueue(&cuStreamCreate { phStream: stream, Flags: 0 });
    }
    let set = |stage: &mut Stage, stream, attribute, first| {
        stage.reply(&kdStreamSetAttribute { stream, attribute, value: &[first; 64] });
    };
    set(&mut stage, 3, 1, 1);
    set(&mut stage, 3, 1, 2);
    set(&mut stage, 3, 3, 3);
    set(&mut stage, 4, 8, 4);
    // A default stream has its own attributes in each context, the per-thread one in each thread.
    set(&mut stage, 1, 1, 5);
    set(&mut stage, 2, 1, 6);
    stage.reply(&cuStreamCopyAttributes { dst: 4, src: 3 });
    stage.reply(&cuStreamCopyAttributes { dst: 5, src: 2 });
    let saved = save(&mut stage);
    rebuild(&saved);
    let set: Vec<String> = plain(&calls()).into_iter().filter(|call| call.starts_with("attribute")).collect();
    let expected = ["1 2", "3 3", "1 5", "1 6", "1 2", "3 3", "1 6"].map(|value| format!("attribute {value}"));
    assert_eq!(set, expected);
}

#[test]
fn a_block_that_only_its_mapping_holds_comes_back_so() {
    const AT: u64 = 0x5000_0000_0000;
    let properties = [[1, 0, 0, 0], [0; 4], [1, 0, 0, 0], [0; 4], [0; 4], [0; 4], [0; 4], [0; 4]].concat();
    let mut stage = Stage::new();
    stage.reply(&kdAddressReserve { address: AT, size: 2 * GRANULE_BYTES });
    stage.reply(&kdMemoryCreate { memory: 9, size: GRANULE_BYTES, properties: &properties });
    stage.reply(&kdMemoryMap { address: AT, size: GRANULE_BYTES, offset: 0, memory: 9 });
    stage.enqueue(&kdMemoryRelease { memory: 9 });
    let saved = save(&mut stage);
    let again = rebuild(&saved);
    assert!(again.session.virtual_memory.is_mapped(AT, GRANULE_BYTES));
    assert!(again.session.virtual_memory.knows(9) && again.session.virtual_memory.block(9).is_err());
    assert!(calls().contains(&"access 1".to_owned()));
}

#[test]
fn unfinished_uploads_and_links_are_saved() {
    let mut stage = Stage::new();
    stage.enqueue(&kdUpload { total: 100, data: b"half of " });
    stage.session.linked.insert(1, b"linked".into());
    fake::fail_next(katydid_cuda_sys::CUresult::ERROR_INVALID_VALUE);
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 9 });
    let mut again = rebuild(&save(&mut stage));
    assert_eq!(again.call(&kdFacts {}).deferred, 1);
    assert_eq!(again.session.uploads.unfinished(), stage.session.uploads.unfinished());
    assert_eq!(again.session.linked, stage.session.linked);
}

/// A state with objects of most kinds.
fn rich() -> SavedState {
    let mut stage = Stage::new();
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
    stage.enqueue(&cuEventCreate { phEvent: 1, Flags: 0 });
    stage.reply(&kdDeviceGrow { device: 0, address: DEVICE, size: GRANULE_BYTES });
    load(&mut stage, 1, b".version 8.0\n");
    stage.reply(&kdModuleFunction { function: 1, module: 1, name: b"saxpy" });
    stage.reply(&kdModuleGlobal { module: 1, name: b"x" });
    stage.enqueue(&kdUpload { total: 100, data: b"half" });
    save(&mut stage)
}

#[test]
fn other_versions_and_other_bytes_are_refused_in_words() {
    let saved = rich();
    let mut newer = saved.state.clone();
    newer[8] = 5;
    assert_eq!(SessionRequirements::read(&newer), Err(StateError::TooNew { found: 5, newest: 4 }));
    assert_eq!(SessionRequirements::read(b"something else"), Err(StateError::Magic));
    let messages = messages_of(&saved.state).unwrap();
    assert_eq!((messages["cuStreamCreate"], messages["kdModuleLoad"]), (1, 1));
    let opening = SessionRequirements::read(&saved.state).unwrap();
    assert_eq!((opening.arenas[0].base, opening.memory_limit), (DEVICE, Some(64 * GRANULE_BYTES)));
    let at = saved.state.windows(8).position(|bytes| bytes == b"kdModule").unwrap();
    let mut renamed = saved.state.clone();
    renamed[at] = b'x';
    let refused = try_rebuild(&SavedState { state: renamed, ..SavedState::default() }).err().unwrap();
    assert!(
        matches!(refused, RebuildError::Replay(ReplayError::State(StateError::UnknownMessage { .. }))),
        "{refused}"
    );
    let missing = try_rebuild(&SavedState { state: saved.state, ..SavedState::default() }).err().unwrap();
    assert!(matches!(missing, RebuildError::Image { number: 0 }), "{missing}");
}

/// Truncated states and changed bytes: each yields a session or an error, never a panic, and never takes more memory than
/// the input.
#[test]
fn no_change_of_a_state_makes_a_replay_panic() {
    let saved = rich();
    for length in 0..saved.state.len() {
        let cut =
            SavedState { state: saved.state[..length].to_vec(), images: saved.images.clone(), ..SavedState::default() };
        assert!(try_rebuild(&cut).is_err(), "{length}");
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..3_000 {
        let mut changed = saved.state.clone();
        for _ in 0..1 + random() % 4 {
            let at = random() as usize % changed.len();
            changed[at] = if random() % 2 == 0 { random() as u8 } else { changed[at] ^ 1 << (random() % 8) };
        }
        let _ = try_rebuild(&SavedState { state: changed, images: saved.images.clone(), ..SavedState::default() });
    }
    calls();
}

#[test]
fn without_a_journal_a_session_works_and_is_not_saved() {
    let mut stage = Stage::new();
    stage.session.keep_no_journal();
    stage.enqueue(&cuStreamCreate { phStream: 3, Flags: 1 });
    assert_eq!(stage.call(&cuStreamQuery { hStream: 3 }).status, 0);
    let error = stage.session.journal().unwrap_err().to_string();
    assert!(error.contains("keeps no journal"), "{error}");
    calls();
}
