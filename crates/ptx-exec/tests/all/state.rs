//! The running state of a grid as bytes: the saved state is restored exactly, and nothing else is accepted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, busy, launch};
use katydid_ptx_exec::{FaultKind, Grid, Kernel, Launch, Progress, RunLimits, StateError, Switch};
use std::sync::Arc;
use std::time::Duration;

/// The busy kernel on a device, with the address of its results.
struct Fixture {
    device: Device,
    launch: Launch,
    output: u64,
    words: usize,
}

impl Fixture {
    fn new(cooperative: bool) -> Self {
        let device = Device::default();
        let (output, counter) = (device.put(&[0; 3 * busy::THREADS as usize]), device.put(&[0]));
        let program = device.load(&busy::text(cooperative)).unwrap();
        let mut launch = launch(&program, [3, 1, 1], [busy::THREADS, 1, 1], &[output, counter]);
        launch.cooperative = cooperative;
        Self { device, launch, output, words: 3 * busy::THREADS as usize }
    }

    fn kernel(&self) -> Arc<Kernel> {
        Arc::clone(&self.launch.kernel)
    }

    fn step(&self, grid: &mut Grid, budget: u64) -> Progress {
        grid.run(&self.device, RunLimits { threads: 1, budget }, &Switch::new()).unwrap()
    }

    /// Returns a grid in the middle of its work, with several blocks started.
    fn halfway(&self) -> Grid {
        let mut grid = Grid::new(self.launch.clone()).unwrap();
        (0..9).for_each(|_| assert_eq!(self.step(&mut grid, 501), Progress::Paused));
        grid
    }

    fn back(&self, bytes: &[u8]) -> Result<Grid, StateError> {
        Grid::from_bytes(bytes, |name, _| (name == "k").then(|| self.kernel()))
    }

    fn results(&self) -> Vec<u32> {
        self.device.words(self.output, self.words)
    }
}

fn straight_through(cooperative: bool) -> Vec<u32> {
    let fixture = Fixture::new(cooperative);
    katydid_ptx_exec::run(&fixture.launch, &fixture.device, 2, &Switch::new()).unwrap();
    fixture.results()
}

#[test]
fn a_grid_taken_apart_at_every_pause_ends_as_one_that_was_left_alone() {
    for cooperative in [false, true] {
        let fixture = Fixture::new(cooperative);
        let mut grid = Grid::new(fixture.launch.clone()).unwrap();
        let mut pauses = 0;
        while fixture.step(&mut grid, 97) == Progress::Paused {
            let bytes = grid.to_bytes();
            grid = fixture.back(&bytes).unwrap();
            assert_eq!(grid.to_bytes(), bytes, "what was read is written the same");
            pauses += 1;
        }
        assert!(pauses > 50, "{pauses}");
        assert_eq!(fixture.results(), straight_through(cooperative));
    }
}

#[test]
fn a_switch_pauses_all_threads_within_a_bounded_number_of_instructions_and_the_grid_goes_on_later() {
    let device = Device::default();
    let flag = device.put(&[0]);
    let text = ".visible .entry k(.param .u64 flag) { .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %d<2>;
        ld.param.u64 %d1, [flag]; L: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %p, %r1, 0; @%p bra L; ret; }";
    let program = device.load(text).unwrap();
    let mut grid = Grid::new(launch(&program, [4, 1, 1], [64, 1, 1], &[flag])).unwrap();
    let (switch, limits) = (Switch::new(), RunLimits { threads: 2, budget: u64::MAX });
    let mut run = || grid.run(&device, limits, &switch);
    std::thread::scope(|scope| {
        let running = scope.spawn(&mut run);
        std::thread::sleep(Duration::from_millis(20));
        switch.pause();
        assert_eq!(running.join().unwrap(), Ok(Progress::Paused));
    });
    assert_eq!(run(), Ok(Progress::Paused), "as long as the switch asks for it");
    device.set_word(flag, 1);
    switch.resume();
    assert_eq!(run(), Ok(Progress::Done));
}

#[test]
fn a_cancelled_switch_ends_a_grid_that_runs() {
    let device = Device::default();
    let program = device.load(".visible .entry k() { L: bra L; }").unwrap();
    let mut grid = Grid::new(launch(&program, [4, 1, 1], [64, 1, 1], &[])).unwrap();
    let switch = Switch::new();
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| grid.run(&device, RunLimits { threads: 2, budget: u64::MAX }, &switch));
        std::thread::sleep(Duration::from_millis(10));
        switch.cancel();
        running.join().unwrap()
    });
    assert_eq!(outcome.map_err(|fault| fault.kind), Err(FaultKind::Cancelled));
}

#[test]
fn bytes_that_are_no_state_are_refused_with_the_reason() {
    let fixture = Fixture::new(false);
    let bytes = fixture.halfway().to_bytes();
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        fixture.back(&bytes).map(drop)
    };
    assert_eq!(refused(&|_| {}), Ok(()));
    assert_eq!(refused(&|bytes| bytes[0] ^= 1), Err(StateError::Foreign));
    assert_eq!(refused(&|bytes| bytes.truncate(5)), Err(StateError::Foreign));
    assert_eq!(refused(&|bytes| bytes[8] = 99), Err(StateError::Version { version: 99 }));
    assert_eq!(refused(&|bytes| bytes.truncate(1000)), Err(StateError::Damaged));
    assert_eq!(refused(&|bytes| *bytes.last_mut().unwrap() ^= 1), Err(StateError::Damaged));
    let unknown = Grid::from_bytes(&bytes, |_, _| None).map(drop);
    assert_eq!(unknown, Err(StateError::UnknownKernel { kernel: "k".to_owned() }));
}

#[test]
fn a_grid_does_not_fit_another_program() {
    let (fixture, other) = (Fixture::new(false), Device::default());
    let bytes = fixture.halfway().to_bytes();
    let text = busy::text(false).replacen("add.u32", "sub.u32", 1);
    let kernel = other.load(&text).unwrap().kernel("k").unwrap();
    let outcome = Grid::from_bytes(&bytes, |_, _| Some(kernel)).map(drop);
    assert_eq!(outcome, Err(StateError::OtherProgram { kernel: "k".to_owned() }));
}

/// Corrects the hash in the header: FNV-1a over words, folded, with the last bytes and the length as words.
fn rehash(bytes: &mut [u8]) {
    let step = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0x100_0000_01b3);
        mixed ^ mixed >> 32
    };
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let body = &bytes[20..];
    let (whole, rest) = body.split_at(body.len() / 8 * 8);
    let hash = whole.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| step(hash, word(chunk)));
    let hash = step(step(hash, word(rest)), body.len() as u64);
    bytes[12..20].copy_from_slice(&hash.to_le_bytes());
}

/// Changes single bytes: each result is refused, or runs without harm to this process.
#[test]
fn a_state_with_any_byte_changed_and_its_hash_put_right_does_no_harm() {
    let fixture = Fixture::new(false);
    let bytes = fixture.halfway().to_bytes();
    let (mut refused, mut accepted) = (0, 0);
    let mut random = 12345_u64;
    for round in 0..4000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Half of the changes are in the first kilobyte, which has most of the state besides register content.
        let range = if round % 2 == 0 { 1024 } else { bytes.len() - 20 };
        let mut bytes = bytes.clone();
        bytes[20 + (random >> 33) as usize % range] ^= (1 << (random >> 20 & 7)) as u8;
        rehash(&mut bytes);
        match fixture.back(&bytes) {
            Err(_) => refused += 1,
            Ok(mut grid) => {
                accepted += 1;
                let limits = RunLimits { threads: 1, budget: 3000 };
                // The kernel may also end with a fault, since lanes may hold anything.
                let _ = grid.run(&fixture.device, limits, &Switch::new());
            }
        }
    }
    assert!(refused > 100 && accepted > 100, "{refused} refused, {accepted} accepted");
}
