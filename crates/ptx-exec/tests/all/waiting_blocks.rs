//! Blocks of an ordinary launch that wait for each other. All blocks that a device holds at once make progress, for any number of
//! threads that run them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, launch};
use katydid_ptx_exec::{Program, Progress, RunLimits, Switch, run};

/// Returns a kernel whose blocks each add 1 to the counter in thread 0, wait for all blocks by the loop `wait`, and count their
/// end.
fn kernel(directives: &str, wait: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 p) {directives} {{
            .reg .u64 %a; .reg .u32 %n, %o, %v, %t, %i; .reg .pred %q;
            ld.param.u64 %a, [p]; mov.u32 %n, %nctaid.x; mov.u32 %t, %tid.x; setp.ne.u32 %q, %t, 0; @%q bra ALL;
            red.global.add.u32 [%a], 1; {wait}
            ALL: bar.sync 0; setp.ne.u32 %q, %t, 0; @%q exit; red.global.add.u32 [%a+4], 1; ret; }}"
    )
}

const VOLATILE: &str = "L: ld.volatile.global.u32 %v, [%a]; setp.lt.u32 %q, %v, %n; @%q bra L;";
const ATOMIC: &str = "L: atom.global.or.b32 %v, [%a], 0; setp.lt.u32 %q, %v, %n; @%q bra L;";
const ASLEEP: &str = "L: nanosleep.u32 20; ld.acquire.gpu.global.u32 %v, [%a]; setp.lt.u32 %q, %v, %n; @%q bra L;";
const PLAIN: &str = "L: ld.global.u32 %v, [%a]; setp.lt.u32 %q, %v, %n; @%q bra L;";

/// Runs a kernel; returns both counters.
fn counters(text: &str, blocks: u32, threads: u32, cores: usize) -> Vec<u32> {
    let device = Device::default();
    let counter = device.put(&[0, 0]);
    let program = device.load(text).unwrap_or_else(|error| panic!("{error}"));
    let launch = launch(&program, [blocks, 1, 1], [threads, 1, 1], &[counter]);
    run(&launch, &device, cores, &Switch::new()).unwrap();
    device.words(counter, 2)
}

#[test]
fn blocks_wait_for_each_other_however_they_do_it() {
    for wait in [VOLATILE, ATOMIC, ASLEEP, PLAIN] {
        assert_eq!(counters(&kernel("", wait), 24, 32, 1), [24, 24], "{wait}");
    }
}

#[test]
fn as_many_blocks_wait_as_a_device_holds_and_more_may_follow() {
    assert_eq!(counters(&kernel("", VOLATILE), 64, 1, 2), [64, 64]);
    // All blocks wait only for the first 32, and there are more blocks than fit.
    let first = "min.u32 %n, %n, 32; L: ld.volatile.global.u32 %v, [%a]; setp.lt.u32 %q, %v, %n; @%q bra L;";
    assert_eq!(counters(&kernel("", first), 500, 64, 1), [500, 500]);
}

#[test]
fn clusters_wait_for_each_other() {
    let text = kernel(".reqnctapercluster 4", VOLATILE);
    assert_eq!(counters(&text, 16, 256, 1), [16, 16]);
}

#[test]
fn a_block_of_many_warps_that_spin_waits_for_the_last_of_its_cluster() {
    // All warps of all blocks except the last one spin; the value they wait for comes from behind a barrier of some of its warps.
    let text = ".visible .entry k(.param .u64 p) .reqnctapercluster 8 {
            .reg .u64 %a; .reg .u32 %c, %v, %t; .reg .pred %q, %w;
            ld.param.u64 %a, [p]; mov.u32 %c, %ctaid.x; mov.u32 %t, %tid.x; setp.ne.u32 %q, %c, 7; @%q bra L;
            setp.ge.u32 %w, %t, 64; @%w bra L; bar.sync 1, 64; setp.ne.u32 %w, %t, 0; @%w exit; red.global.add.u32 [%a], 1; ret;
            L: ld.volatile.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra L; red.global.add.u32 [%a+4], 1; ret; }";
    assert_eq!(counters(text, 8, 1024, 1), [1, 8 * 1024 - 64]);
}

#[test]
fn blocks_that_wait_are_put_aside_as_bytes_and_go_on() {
    let device = Device::default();
    let counter = device.put(&[0, 0]);
    let program: Program = device.load(&kernel("", VOLATILE)).unwrap();
    let launch = launch(&program, [24, 1, 1], [64, 1, 1], &[counter]);
    let mut grid = katydid_ptx_exec::Grid::new(launch).unwrap();
    let (limits, switch) = (RunLimits { threads: 1, budget: 20_000 }, Switch::new());
    let mut pieces = 0;
    while grid.run(&device, limits, &switch).unwrap() == Progress::Paused {
        pieces += 1;
        grid = katydid_ptx_exec::Grid::from_bytes(&grid.to_bytes(), |name, _| program.kernel(name)).unwrap();
    }
    assert!(pieces > 1);
    assert_eq!(device.words(counter, 2), [24, 24]);
}
