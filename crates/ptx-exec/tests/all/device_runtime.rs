//! Kernels that launch kernels, and the rest of the device runtime.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, launch};
use katydid_ptx_exec::{FaultKind, Grid, Progress, RunLimits, Switch, run};

/// Declarations of functions, and kernels for others to launch: `add` adds to a word, `shift` multiplies it by 10 and adds.
const KERNELS: &str = ".extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2 (.param .b64 f, .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
    .extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2 (.param .b64 p, .param .b64 s);
    .extern .func (.param .b32 r) __cudaCDP2GetLastError ();
    .extern .func (.param .b32 r) __cudaCDP2MemsetAsync (.param .b64 p, .param .b32 v, .param .b64 n, .param .b64 s);
    .extern .func (.param .b32 r) __cudaCDP2MemcpyAsync (.param .b64 t, .param .b64 f, .param .b64 n, .param .b32 k, .param .b64 s);
    .entry add(.param .u64 p, .param .u32 n) { .reg .b64 %d; .reg .b32 %n; ld.param.u64 %d, [p]; ld.param.u32 %n, [n]; red.global.add.u32 [%d], %n; ret; }
    .entry shift(.param .u64 p, .param .u32 n) { .reg .b64 %d; .reg .b32 %n, %m; ld.param.u64 %d, [p]; ld.param.u32 %n, [n];
        ld.global.u32 %m, [%d]; mad.lo.u32 %m, %m, 10, %n; st.global.u32 [%d], %m; ret; }";

/// Launches `kernel` over `grid` blocks of `block` threads with the word at `%d1` and a number; `%r9` is the error.
fn call(kernel: &str, grid: u32, block: u32, number: &str, stream: u32) -> String {
    format!(
        "{{ .reg .b64 %f, %b; .reg .pred %none; mov.u64 %f, {kernel}; .param .b64 param0; st.param.b64 [param0], %f;
           .param .align 4 .b8 param1[12]; st.param.b32 [param1], {grid}; st.param.b32 [param1+4], 1; st.param.b32 [param1+8], 1;
           .param .align 4 .b8 param2[12]; st.param.b32 [param2], {block}; st.param.b32 [param2+4], 1; st.param.b32 [param2+8], 1;
           .param .b32 param3; st.param.b32 [param3], 0; .param .b64 retval0;
           call.uni (retval0), __cudaCDP2GetParameterBufferV2, (param0, param1, param2, param3); ld.param.b64 %b, [retval0];
           setp.eq.u64 %none, %b, 0; @%none bra FAILED; st.u64 [%b], %d1; st.u32 [%b+8], {number};
           .param .b64 param4; st.param.b64 [param4], %b; .param .b64 param5; st.param.b64 [param5], {stream}; .param .b32 retval1;
           call.uni (retval1), __cudaCDP2LaunchDeviceV2, (param4, param5); ld.param.b32 %r9, [retval1]; bra DONE;
           FAILED: .param .b32 retval2; call.uni (retval2), __cudaCDP2GetLastError, (); ld.param.b32 %r9, [retval2]; DONE: }}"
    )
}

fn text(body: &str) -> String {
    format!(
        "{KERNELS} .visible .entry k(.param .u64 out) {{ .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<8>;
            ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; {body} ret; }}
         .entry middle(.param .u64 p, .param .u32 n) {{ .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<8>; ld.param.u64 %d1, [p];
            {} {} ret; }}",
        call("shift", 1, 1, "2", 0),
        call("shift", 1, 1, "3", 3)
    )
}

/// Runs a body for `threads` threads on a zero; returns the first two words afterwards.
fn words(body: &str, threads: u32) -> Result<[u32; 2], FaultKind> {
    let device = Device::default();
    let output = device.put(&[0; 2]);
    let program = device.load(&text(body)).unwrap_or_else(|error| panic!("{error}"));
    run(&launch(&program, [1, 1, 1], [threads, 1, 1], &[output]), &device, 2, &Switch::new())
        .map_err(|fault| fault.kind)?;
    Ok(device.words(output, 2).try_into().unwrap())
}

#[test]
fn a_kernel_runs_the_kernels_that_it_launches() {
    assert_eq!(words(&call("add", 3, 7, "5", 0), 1).unwrap()[0], 105);
    assert_eq!(words(&call("add", 1, 2, "%r1", 4), 32).unwrap()[0], 31 * 32);
}

#[test]
fn tails_come_after_all_that_was_launched_and_its_own_tails_first() {
    // Digits are appended in the order in which kernels run.
    let body = [
        call("shift", 1, 1, "9", 3),
        call("middle", 1, 1, "0", 0),
        call("shift", 1, 1, "4", 0),
        call("middle", 1, 1, "0", 3),
        call("shift", 1, 1, "5", 3),
    ];
    assert_eq!(words(&body.concat(), 1).unwrap()[0], 2_3_4_9_2_3_5);
}

#[test]
fn copies_and_fills_take_their_turn() {
    let set = "{ .param .b64 a; .param .b32 b; .param .b64 c; .param .b64 d; .param .b32 r; st.param.b64 [a], %d1; st.param.b32 [b], 1;
        st.param.b64 [c], 4; st.param.b64 [d], 0; call.uni (r), __cudaCDP2MemsetAsync, (a, b, c, d); }";
    let copy = "{ .reg .b64 %t; add.u64 %t, %d1, 4; .param .b64 a; .param .b64 b; .param .b64 c; .param .b32 d; .param .b64 e; .param .b32 r;
        st.param.b64 [a], %t; st.param.b64 [b], %d1; st.param.b64 [c], 4; st.param.b32 [d], 3; st.param.b64 [e], 0;
        call.uni (r), __cudaCDP2MemcpyAsync, (a, b, c, d, e); }";
    let body = [&call("add", 1, 1, "7", 0), set, &call("add", 1, 1, "1", 0), copy, &call("add", 1, 1, "1", 0)];
    assert_eq!(words(&body.map(String::from).concat(), 1).unwrap(), [0x0101_0103, 0x0101_0102]);
    let outside = copy.replace("add.u64 %t, %d1, 4", "add.u64 %t, %d1, 65536");
    assert!(matches!(words(&outside, 1), Err(FaultKind::IllegalAddress(_))));
}

#[test]
fn launches_that_cannot_be_are_errors_of_the_thread() {
    let store = "st.global.u32 [%d1+4], %r9;";
    assert_eq!(words(&(call("add", 1, 2000, "1", 0) + store), 1).unwrap(), [0, 9], "too many threads");
    assert_eq!(words(&(call("add", 0, 1, "1", 0) + store), 1).unwrap(), [0, 9], "no blocks");
    assert_eq!(words(&(call("add", 1, 1, "1", 77) + store), 1).unwrap(), [0, 400], "no such stream");
    assert_eq!(words(&(call("add", 1, 1, "1", 4) + store), 1).unwrap(), [1, 0]);
}

#[test]
fn a_fault_of_a_child_is_the_grids() {
    let body = format!("mov.u64 %d1, 64; {}", call("add", 1, 1, "1", 0));
    assert_eq!(words(&body, 1), Err(FaultKind::IllegalAddress(64)));
}

#[test]
fn a_family_of_grids_is_paused_and_taken_up() {
    let device = Device::default();
    let output = device.put(&[0; 2]);
    let body = [call("middle", 1, 1, "0", 0), call("shift", 1, 1, "4", 3), call("shift", 1, 1, "5", 0)].concat();
    let program = device.load(&text(&body)).unwrap();
    let mut grid = Grid::new(launch(&program, [1, 1, 1], [1, 1, 1], &[output])).unwrap();
    let mut pauses = 0;
    while grid.run(&device, RunLimits { threads: 1, budget: 4 }, &Switch::new()).unwrap() == Progress::Paused {
        pauses += 1;
        grid = Grid::from_bytes(&grid.to_bytes(), |name, _| program.kernel(name)).unwrap();
    }
    assert_eq!((pauses, device.words(output, 1)[0]), (5, 2354), "one pause before each kernel but the first");
}
