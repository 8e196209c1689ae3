//! Contents of a session's memory: stored in an image and put back into a rebuilt session.
//!
//! The tests run on softcuda, or on the driver that `KATYDID_TEST_DRIVER` names. Both sessions live in this process, one
//! after the other.

use std::sync::{Arc, OnceLock};

use katydid_arena::{AddressMap, Reservation};
use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_image::{
    CheckpointChoice, CheckpointNumber, CheckpointReader, Image, Manifest, Options, Session as SessionPart, Writer,
};
use katydid_session_core::{
    CaptureOptions, Checkpointable as _, PendingSnapshot as _, Precopy, Progress, RestoreOptions,
};
use katydid_tests::deadline::hang::until;
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use katydid_wire::message::{
    cuStreamCreate, cuStreamWaitValue32_v2, cuStreamWriteValue32_v2, kdAddressFree, kdAddressReserve, kdArrayCreate,
    kdContextReset, kdCopyIn, kdCopyOut, kdDeviceGrow, kdDeviceShrink, kdHostPull, kdHostPush, kdHostRegister,
    kdHostUnregister, kdLaunch, kdMemoryCreate, kdMemoryMap, kdMemoryRelease, kdMemorySetAccess, kdMemoryUnmap,
    kdMipmapCreate, kdMipmapLevel, kdModuleFunction, kdModuleGlobal, kdModuleLoad, kdRowsIn, kdRowsOut, kdUpload,
};
use katydid_wire::ranges;
use tempfile::TempDir;

use super::soft;
use super::stage::{DEVICE, GRANULE_BYTES, Stage};
use crate::memory::host_memory::HostMemory;
use crate::snapshot::{CopyContext, SnapshotError};
use crate::{device_memory, gather};

/// `bump` counts in a variable without a visible name, stores the count on the device's heap, and its address in `out[0]`.
/// `look` follows the address and writes count, variable and constant from byte 16 on.
const CODE: &[u8] = b".version 7.0
.target sm_75
.address_size 64
.global .align 4 .u32 counter = 5;
.const .align 4 .u32 limits[4] = {1, 2, 3, 4};
.extern .func (.param .b64 r) malloc (.param .b64 n);
.visible .entry bump(.param .u64 out) {
    .reg .b32 %r<3>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    ld.global.u32 %r1, [counter]; add.u32 %r1, %r1, 1; st.global.u32 [counter], %r1;
    { .param .b64 n; .param .b64 r; st.param.b64 [n], 64; call (r), malloc, (n); ld.param.b64 %d2, [r]; }
    st.u32 [%d2], %r1; st.global.u64 [%d1], %d2; ret;
}
.visible .entry look(.param .u64 out) {
    .reg .b32 %r<4>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [out]; ld.global.u64 %d2, [%d1];
    ld.u32 %r1, [%d2]; ld.global.u32 %r2, [counter]; ld.const.u32 %r3, [limits+4];
    st.global.u32 [%d1+16], %r1; st.global.u32 [%d1+20], %r2; st.global.u32 [%d1+24], %r3; ret;
}
";

const PINNED: u64 = 0x3100_0000_0000;
/// Where the program maps its own block.
const OWN_BLOCK_ADDRESS: u64 = 0x5100_0000_0000;
/// Size of the device arena, whose addresses stay reserved for the process.
const LENGTH: u64 = 1 << 40;

/// The driver that sessions run on.
struct TestDriver {
    driver: Arc<Driver>,
    _guard: soft::DriverLock,
}

impl TestDriver {
    fn new() -> Self {
        static RESERVED: OnceLock<()> = OnceLock::new();
        let (driver, guard) = soft::driver();
        RESERVED.get_or_init(|| assert!(device_memory::reserve(&driver, &map(), 1)));
        Self { driver, _guard: guard }
    }

    /// A new session; `seed` gives it a hash kernel.
    fn stage(&self, seed: Option<u64>) -> Stage {
        let facts = gather::devices(&self.driver).unwrap();
        let arena = Reservation::at(PINNED, 16 << 20).unwrap();
        arena.map_private(0, 16 << 20).unwrap();
        let copy_context = CopyContext::make(&self.driver, 0, soft::retain(&self.driver), seed).unwrap();
        Stage::of(Arc::clone(&self.driver), facts, map(), Some(HostMemory::private(arena)), Some(copy_context))
    }
}

fn map() -> AddressMap {
    let device = ArenaRange { kind: ArenaKind::DEVICE, base: DEVICE, length: LENGTH };
    AddressMap::from_arenas(&[device, ArenaRange { kind: ArenaKind::PINNED, base: PINNED, length: 16 << 20 }]).unwrap()
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    (0..length).map(|_| next()).collect()
}

impl Stage {
    fn write(&mut self, destination: u64, data: &[u8]) {
        for (at, piece) in (0..).step_by(1 << 19).zip(data.chunks(1 << 19)) {
            self.enqueue(&kdCopyIn { destination: destination + at, stream: 1, data: piece });
        }
    }

    fn read(&mut self, source: u64, size: u32) -> Vec<u8> {
        self.reply(&kdCopyOut { source, size, stream: 1 }).data
    }

    fn run(&mut self, function: u32, out: u64) {
        let parameters = out.to_le_bytes();
        self.enqueue(&kdLaunch {
            function,
            kernel: 0,
            gridX: 1,
            gridY: 1,
            gridZ: 1,
            blockX: 1,
            blockY: 1,
            blockZ: 1,
            sharedSize: 0,
            stream: 1,
            attributeCount: 0,
            attributesAndParams: &parameters,
        });
    }

    /// Makes an object of every kind, with contents.
    fn furnish(&mut self) {
        self.retain(1);
        for piece in 0..2 {
            let grow = kdDeviceGrow { device: 0, address: DEVICE + piece * 4 * GRANULE_BYTES, size: 4 * GRANULE_BYTES };
            assert_eq!(self.call(&grow).status, 0);
        }
        self.write(DEVICE, &noise(1, GRANULE_BYTES as usize + 12_345));
        let image = katydid_fatbin::ModuleImage::from_bytes(CODE).unwrap().encode();
        self.enqueue(&kdUpload { total: image.len() as u64, data: &image });
        let load = kdModuleLoad { module: 1, infoLogSize: 0, errorLogSize: 0, options: &[] };
        assert_eq!(self.call(&load).status, 0);
        for (function, name) in [(1, &b"bump"[..]), (2, b"look")] {
            assert_eq!(self.call(&kdModuleFunction { function, module: 1, name }).status, 0);
        }
        let limits = self.reply(&kdModuleGlobal { module: 1, name: b"limits" });
        self.write(limits.address + 4, &77_u32.to_le_bytes());
        self.run(1, DEVICE + 5 * GRANULE_BYTES);
        self.textures();
        self.block();
        assert_eq!(self.call(&kdHostRegister { address: PINNED, size: 8192, flags: 0 }).status, 0);
        self.enqueue(&kdHostPush { address: PINNED + 5000, data: b"pinned" });
    }

    /// Makes an array with three slices, and a mipmap with two levels.
    fn textures(&mut self) {
        let float = 0x20;
        let array = kdArrayCreate { array: 1, width: 50, height: 20, depth: 3, format: float, channels: 1, flags: 0 };
        assert_eq!(self.call(&array).status, 0);
        for z in 0..3 {
            let data = noise(10 + z, 4000);
            self.enqueue(&kdRowsIn {
                array: 1,
                stream: 1,
                x: 0,
                y: 0,
                z,
                pitch: 0,
                width: 200,
                height: 20,
                data: &data,
            });
        }
        let mipmap = kdMipmapCreate {
            mipmap: 2,
            levels: 2,
            width: 16,
            height: 8,
            depth: 0,
            format: float,
            channels: 4,
            flags: 0,
        };
        assert_eq!(self.call(&mipmap).status, 0);
        assert_eq!(self.call(&kdMipmapLevel { array: 3, mipmap: 2, level: 1 }).status, 0);
        let data = noise(20, 128 * 4);
        self.enqueue(&kdRowsIn { array: 3, stream: 1, x: 0, y: 0, z: 0, pitch: 0, width: 128, height: 4, data: &data });
    }

    /// Makes a block that is mapped in two halves, and writes to both.
    fn block(&mut self) {
        let mut properties = [0; 32];
        for (at, word) in [(0, 1_u32), (8, 1)] {
            properties[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        assert_eq!(self.call(&kdAddressReserve { address: OWN_BLOCK_ADDRESS, size: 32 << 20 }).status, 0);
        assert_eq!(
            self.call(&kdMemoryCreate { memory: 1, size: 2 * GRANULE_BYTES, properties: &properties }).status,
            0
        );
        for (address, offset) in [(OWN_BLOCK_ADDRESS, 0), (OWN_BLOCK_ADDRESS + 4 * GRANULE_BYTES, GRANULE_BYTES)] {
            assert_eq!(self.call(&kdMemoryMap { address, size: GRANULE_BYTES, offset, memory: 1 }).status, 0);
            self.grant(address);
            self.write(address + 100, &noise(30 + offset, 1000));
        }
    }

    fn grant(&mut self, address: u64) {
        let grants: Vec<u8> = [1_u32, 0, 3].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(self.call(&kdMemorySetAccess { address, size: GRANULE_BYTES, grants: &grants }).status, 0);
    }

    /// Checks that everything is as [`Stage::furnish`] and, in all, `runs` calls of `bump` left it.
    #[track_caller]
    fn check(&mut self, runs: u32) {
        let from = GRANULE_BYTES - 100_000;
        assert_eq!(
            self.read(DEVICE + from, 110_000),
            noise(1, GRANULE_BYTES as usize + 12_345)[from as usize..][..110_000]
        );
        let out = DEVICE + 5 * GRANULE_BYTES;
        self.run(2, out);
        let answer = self.read(out + 16, 12);
        let expected: Vec<u8> = [5 + runs, 5 + runs, 77].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(answer, expected);
        for z in 0..3 {
            let read = kdRowsOut { array: 1, stream: 1, x: 0, y: 0, z, pitch: 0, width: 200, height: 20 };
            assert_eq!(self.reply(&read).data, noise(10 + z, 4000), "slice {z}");
        }
        let read = kdRowsOut { array: 3, stream: 1, x: 0, y: 0, z: 0, pitch: 0, width: 128, height: 4 };
        assert_eq!(self.reply(&read).data, noise(20, 128 * 4));
        assert_eq!(self.read(OWN_BLOCK_ADDRESS + 100, 1000), noise(30, 1000));
        assert_eq!(self.read(OWN_BLOCK_ADDRESS + 4 * GRANULE_BYTES + 100, 1000), noise(30 + GRANULE_BYTES, 1000));
        assert_eq!(self.reply(&kdHostPull { ranges: &ranges::encode(&[(PINNED + 5000, 6)]) }).data, b"pinned");
    }

    /// Releases everything, so that this process can have another session.
    fn clear(mut self) {
        for address in [OWN_BLOCK_ADDRESS, OWN_BLOCK_ADDRESS + 4 * GRANULE_BYTES] {
            assert_eq!(self.call(&kdMemoryUnmap { address, size: GRANULE_BYTES }).status, 0);
        }
        self.enqueue(&kdMemoryRelease { memory: 1 });
        assert_eq!(self.call(&kdAddressFree { address: OWN_BLOCK_ADDRESS, size: 32 << 20 }).status, 0);
        assert_eq!(self.call(&kdDeviceShrink { device: 0, address: DEVICE, size: 8 * GRANULE_BYTES }).status, 0);
        assert_eq!(self.call(&kdHostUnregister { address: PINNED, size: 8192 }).status, 0);
        assert_eq!(self.call(&kdContextReset { context: 1, device: 0 }).status, 0);
    }

    /// Gives back a snapshot's memory. It is released only once the snapshot is written and the GPU is at rest.
    fn give_back(&mut self, snapshot: impl Sized) {
        assert!(!self.session.release_snapshot(), "a snapshot is under way");
        drop(snapshot);
        self.release_snapshot();
    }

    /// Repeats [`Checkpointable::release_snapshot`] until the GPU is at rest.
    fn release_snapshot(&mut self) {
        until("the GPU is at rest", || self.session.release_snapshot());
        assert_eq!(self.session.snapshots.held_bytes(), 0);
    }

    /// Repeats [`Session::make_way`] until the GPU is at rest.
    fn make_way(&mut self) -> Result<bool, CUresult> {
        let mut outcome = Err(CUresult::ERROR_NOT_READY);
        until("the GPU is at rest", || {
            outcome = self.session.make_way();
            outcome != Err(CUresult::ERROR_NOT_READY)
        });
        outcome
    }

    /// Takes a checkpoint. Returns the bytes that may have changed, and those added to the image.
    fn keep(&mut self, image: &Image, full: bool) -> Result<(u64, u64), SnapshotError> {
        let writer = image.begin(Options::default())?;
        let progress = Arc::new(Progress::default());
        let mut snapshot =
            self.session.snapshot("one", CaptureOptions { full, ..CaptureOptions::default() }, &writer, &progress)?;
        let changed = snapshot.changed();
        let part = snapshot.write(&writer)?;
        assert_eq!(progress.bytes_done(), progress.total());
        let committed = writer.commit(Manifest { sessions: vec![part], ..Manifest::default() })?;
        self.give_back(snapshot);
        Ok((changed, committed.sizes.added))
    }
}

/// Takes a checkpoint after a precopy with `free` bytes left on the device; `meanwhile` is what the program does before it
/// is paused. Returns the bytes that the precopy left to the snapshot, then those of [`Stage::keep`].
fn keep_ahead(stage: &mut Stage, image: &Image, free: u64, meanwhile: impl FnOnce(&mut Stage)) -> (u64, u64, u64) {
    let writer = image.begin(Options::default()).unwrap();
    let mut ahead = stage.session.precopy_job_within(false, &|_| Some(free)).unwrap();
    let left = ahead.run(&writer).unwrap();
    meanwhile(stage);
    let progress = Arc::new(Progress::default());
    let options = CaptureOptions::default();
    let mut snapshot = stage.session.snapshot("one", options, &writer, &progress).unwrap();
    drop(ahead);
    let part = snapshot.write(&writer).unwrap();
    let committed = writer.commit(Manifest { sessions: vec![part], ..Manifest::default() }).unwrap();
    let changed = snapshot.changed();
    stage.give_back(snapshot);
    (left, changed, committed.sizes.added)
}

fn restore(house: &TestDriver, seed: Option<u64>, reader: &CheckpointReader) -> Result<Stage, SnapshotError> {
    let mut stage = house.stage(seed);
    let part: &SessionPart = &reader.manifest().sessions[0];
    let progress = Progress::default();
    stage.session.restore(part, reader, &progress, RestoreOptions::default())?;
    stage.session.restore_host(part, reader, &progress)?;
    stage.context = 1;
    assert_eq!(progress.bytes_done(), progress.total());
    Ok(stage)
}

/// An empty image in its own folder, and a session with an object of every kind.
fn furnished(house: &TestDriver, seed: Option<u64>) -> (TempDir, Image, Stage) {
    let folder = TempDir::new().unwrap();
    let image = Image::create_or_open(folder.path().join("image")).unwrap();
    let mut stage = house.stage(seed);
    stage.furnish();
    (folder, image, stage)
}

/// Prepares a snapshot on a device with memory for all copies: the precopy sends nothing to the image.
fn with_copy_memory(stage: &mut Stage, writer: &Writer) -> impl Precopy + use<> {
    let mut ahead = stage.session.precopy_job_within(false, &|_| Some(u64::MAX)).unwrap();
    assert_eq!(ahead.run(writer).unwrap(), 0);
    ahead
}

#[test]
fn precopied_chunks_are_copied_again_only_if_changed() {
    const SEED: Option<u64> = Some(0x1234_5678_9abc_def0);
    let house = TestDriver::new();
    let (_folder, image, mut first) = furnished(&house, SEED);
    let other = noise(1, GRANULE_BYTES as usize + 12_345);
    let undisturbed = keep_ahead(&mut first, &image, 0, |_| {});
    // The program writes to two copied chunks, and restores the contents of one.
    let changing = keep_ahead(&mut first, &image, 0, |stage| {
        stage.run(1, DEVICE + 5 * GRANULE_BYTES);
        stage.write(DEVICE, &noise(2, 1000));
        stage.write(DEVICE, &other[..1000]);
    });
    // Arena and block are copied already: the rest is a heap of 8 MiB and little else.
    assert!(undisturbed.1 < 5 * GRANULE_BYTES, "{} bytes were looked at again", undisturbed.1);
    assert_eq!(changing.1 - undisturbed.1, GRANULE_BYTES);
    assert!(changing.2 < undisturbed.2, "{} bytes were written, {} before", changing.2, undisturbed.2);
    first.check(2);
    first.clear();
    for runs in 1..=2 {
        let reader = image.checkpoint(CheckpointChoice::Number(CheckpointNumber(runs))).unwrap();
        let mut second = restore(&house, SEED, &reader).unwrap();
        second.check(runs);
        second.clear();
    }
}

#[test]
fn a_snapshot_needs_no_memory_of_a_device_that_has_none_left() {
    let house = TestDriver::new();
    let (_folder, image, mut first) = furnished(&house, Some(7));
    let rest = soft::ExhaustedMemory::take(&house.driver);
    first.keep(&image, false).unwrap();
    drop(rest);
    first.clear();
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    let mut second = restore(&house, Some(7), &reader).unwrap();
    second.check(1);
    second.clear();
}

/// The GPU is at rest between two reads of a precopy, and the memory of the next read is kept.
#[test]
fn precopy_holds_the_memory_that_it_reads() {
    let house = TestDriver::new();
    let (_folder, image, mut stage) = furnished(&house, Some(7));
    let writer = image.begin(Options::default()).unwrap();
    let mut ahead = stage.session.precopy_job_within(false, &|_| Some(0)).unwrap();
    assert_eq!(stage.session.make_way(), Err(CUresult::ERROR_NOT_READY));
    ahead.run(&writer).unwrap();
    drop(ahead);
    assert_eq!(stage.make_way(), Ok(true));
    stage.clear();
}

#[test]
fn memory_that_was_taken_for_a_snapshot_is_given_back_when_none_is_taken() {
    let house = TestDriver::new();
    let (_folder, image, mut stage) = furnished(&house, Some(7));
    let writer = image.begin(Options::default()).unwrap();
    let mut ahead = with_copy_memory(&mut stage, &writer);
    let held = stage.session.snapshots.held_bytes();
    assert!(held >= 10 * GRANULE_BYTES, "{held} bytes were taken");
    assert_eq!(stage.make_way(), Ok(true));
    assert_eq!(stage.session.snapshots.held_bytes(), 0);
    assert_eq!(stage.session.make_way(), Ok(false));
    assert_eq!(ahead.run(&writer).unwrap(), 0);
    drop(ahead);
    assert!(stage.session.snapshots.held_bytes() > 0);
    assert!(stage.session.precopy_job_within(false, &|_| Some(u64::MAX)).is_none());
    stage.release_snapshot();
    stage.clear();
}

#[test]
fn a_program_gets_memory_of_snapshots_when_the_gpu_is_at_rest_and_not_before() {
    let house = TestDriver::new();
    let (_folder, image, mut stage) = furnished(&house, Some(7));
    let writer = image.begin(Options::default()).unwrap();
    drop(with_copy_memory(&mut stage, &writer));
    let held = stage.session.snapshots.held_bytes();
    // One stream waits for a write of another.
    let word = DEVICE + 6 * GRANULE_BYTES;
    stage.enqueue(&cuStreamCreate { phStream: 30, Flags: 1 });
    stage.enqueue(&cuStreamCreate { phStream: 31, Flags: 1 });
    stage.enqueue(&cuStreamWaitValue32_v2 { stream: 30, addr: word, value: 1, flags: 0 });
    for _ in 0..3 {
        assert_eq!(stage.session.make_way(), Err(CUresult::ERROR_NOT_READY));
        assert_eq!(stage.session.snapshots.held_bytes(), held);
    }
    // The frame is executed: no thread blocks for the memory.
    stage.enqueue(&cuStreamWriteValue32_v2 { stream: 31, addr: word, value: 1, flags: 0 });
    assert_eq!((stage.make_way(), stage.session.snapshots.held_bytes()), (Ok(true), 0));
    assert_eq!(stage.session.make_way(), Ok(false));
    stage.clear();
}

#[test]
fn contents_come_back_and_a_second_checkpoint_takes_the_changes() {
    for seed in [None, Some(0x1234_5678_9abc_def0)] {
        let house = TestDriver::new();
        let (_folder, image, mut first) = furnished(&house, seed);
        let (changed, _) = first.keep(&image, false).unwrap();
        first.check(1);
        first.run(1, DEVICE + 5 * GRANULE_BYTES);
        let (again, added) = first.keep(&image, false).unwrap();
        assert!(added < 1 << 20, "{added} bytes were written for a few that changed");
        assert!(seed.is_none() || again < changed, "{again} bytes were looked at again, {changed} before");
        first.check(2);
        first.clear();
        for runs in 1..=2 {
            let reader = image.checkpoint(CheckpointChoice::Number(CheckpointNumber(runs))).unwrap();
            let mut second = restore(&house, seed, &reader).unwrap();
            second.check(runs);
            if seed.is_some() {
                let (untouched, _) = second.keep(&image, false).unwrap();
                assert!(untouched < changed, "nothing is known of {untouched} bytes that came out of the image");
            }
            second.clear();
        }
    }
}
