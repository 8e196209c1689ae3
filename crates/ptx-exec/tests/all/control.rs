//! Branches, calls, barriers, warp operations and pauses, whose results depend on the positions of lanes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, launch};
use katydid_ptx_exec::{FaultKind, Switch, run};

/// Returns a kernel with an output pointer; `%r1` is the thread, `%d4` its word of output.
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        "{declarations} .visible .entry k(.param .u64 out) {{
            .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %d<12>;
            ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %d4, %r1, 4, %d2;
            {body} ret; }}"
    )
}

/// Runs a body on `threads` threads and returns their words.
fn run_block(declarations: &str, body: &str, threads: u32) -> Result<Vec<u32>, FaultKind> {
    let device = Device::default();
    let output = device.put(&vec![0; threads as usize]);
    let done = device.run(&kernel(declarations, body), [1, 1, 1], [threads, 1, 1], &[output]);
    done.map(|()| device.words(output, threads as usize)).map_err(|fault| fault.kind)
}

#[test]
fn both_sides_of_a_branch_run_and_meet_again() {
    let body = "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN; mov.u32 %r3, 100; bra.uni JOIN;
        EVEN: mov.u32 %r3, 200; JOIN: activemask.b32 %r4; popc.b32 %r4, %r4; add.u32 %r3, %r3, %r4; st.global.u32 [%d4], %r3;";
    assert_eq!(run_block("", body, 40).unwrap()[..3], [232, 132, 232]);
    assert_eq!(run_block("", body, 40).unwrap()[38..], [208, 108]);
}

#[test]
fn loops_with_different_trip_counts_meet_at_their_end() {
    let body = "mov.u32 %r2, 0; mov.u32 %r3, 0; LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE; add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1; bra LOOP;
        DONE: vote.sync.ballot.b32 %r4, 1, 0xffffffff; popc.b32 %r4, %r4; mad.lo.u32 %r3, %r4, 1000, %r3; st.global.u32 [%d4], %r3;";
    let expected: Vec<u32> = (0..32).map(|n: u32| 32_000 + n * n.saturating_sub(1) / 2).collect();
    assert_eq!(run_block("", &body.replace(", 1, 0xffffffff", ", %p1, 0xffffffff"), 32).unwrap(), expected);
}

#[test]
fn a_jump_table_sends_each_lane_its_way() {
    let body = "TABLE: .branchtargets ZERO, ONE, TWO; rem.u32 %r2, %r1, 3; brx.idx %r2, TABLE;
        ZERO: mov.u32 %r3, 5; bra JOIN; ONE: mov.u32 %r3, 6; bra JOIN; TWO: mov.u32 %r3, 7; JOIN: st.global.u32 [%d4], %r3;";
    assert_eq!(run_block("", body, 5).unwrap(), [5, 6, 7, 5, 6]);
}

#[test]
fn lanes_that_sleep_let_the_lane_go_on_that_they_wait_for() {
    let declarations = ".global .u32 ticket = 0; .global .u32 serving = 0;";
    let body = "atom.global.add.u32 %r2, [ticket], 1;
        WAIT: nanosleep.u32 20; atom.global.add.u32 %r3, [serving], 0; setp.ne.u32 %p1, %r3, %r2; @%p1 bra WAIT;
        st.global.u32 [%d4], %r2; membar.gl; atom.global.add.u32 %r4, [serving], 1;";
    assert_eq!(run_block(declarations, body, 8).unwrap().iter().sum::<u32>(), 28);
}

#[test]
fn a_lock_inside_a_warp_is_handed_from_lane_to_lane() {
    let declarations = ".global .u32 lock = 0; .global .u32 count = 0;";
    let body = "TRY: atom.global.cas.b32 %r2, [lock], 0, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra TRY;
        ld.volatile.global.u32 %r3, [count]; add.u32 %r3, %r3, 1; st.volatile.global.u32 [count], %r3; membar.gl;
        atom.global.exch.b32 %r2, [lock], 0; bar.sync 0; ld.global.u32 %r4, [count]; st.global.u32 [%d4], %r4;";
    assert_eq!(run_block(declarations, body, 64).unwrap(), [64; 64]);
}

#[test]
fn functions_take_parameters_return_values_and_recurse() {
    let declarations = "
        .func (.param .b32 result) sum(.param .b32 n, .param .align 8 .b8 pair[16]) {
            .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<4>;
            ld.param.u32 %r1, [n]; ld.param.u32 %r2, [pair+12];
            mov.u32 %r3, %r2; setp.eq.u32 %p, %r1, 0; @%p bra END;
            sub.u32 %r4, %r1, 1;
            { .param .b32 a; .param .align 8 .b8 b[16]; .param .b32 c;
              st.param.b32 [a], %r4; st.param.b32 [b+12], %r2;
              call.uni (c), sum, (a, b); ld.param.b32 %r5, [c]; }
            add.u32 %r3, %r5, %r1;
            END: st.param.b32 [result], %r3; ret; }";
    let body =
        "{ .param .b32 a; .param .align 8 .b8 b[16]; .param .b32 c; st.param.b32 [a+0], %r1; st.param.b32 [b+12], 1000;
        call (c), sum, (a, b); ld.param.b32 %r2, [c+0]; } st.global.u32 [%d4], %r2;";
    let expected: Vec<u32> = (0..40).map(|n| 1000 + n * (n + 1) / 2).collect();
    assert_eq!(run_block(declarations, body, 40).unwrap(), expected);
}

#[test]
fn indirect_calls_go_where_each_lane_points() {
    let declarations = "
        .func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; shl.b32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
        .func (.param .b32 r) next(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
        .global .u64 table[2] = {twice, next};";
    let body = "and.b32 %r2, %r1, 1; mov.u64 %d5, table; mad.wide.u32 %d5, %r2, 8, %d5; ld.global.u64 %d6, [%d5];
        { .param .b32 a; .param .b32 c; st.param.b32 [a], %r1; P: .callprototype (.param .b32 _) _ (.param .b32 _);
          call (c), %d6, (a), P; ld.param.b32 %r3, [c]; } st.global.u32 [%d4], %r3;";
    assert_eq!(run_block(declarations, body, 6).unwrap(), [0, 2, 4, 4, 8, 6]);
    let wild = body.replace("ld.global.u64 %d6, [%d5]", "mov.u64 %d6, 12345");
    assert_eq!(run_block(declarations, &wild, 6), Err(FaultKind::InvalidPc(12345)));
}

#[test]
fn endless_recursion_is_a_stack_overflow() {
    let declarations = ".func f() { .local .b8 x[64]; call f, (); ret; }";
    assert_eq!(run_block(declarations, "call f, ();", 32), Err(FaultKind::StackOverflow));
}

#[test]
fn barriers_count_reduce_and_ignore_the_dead() {
    let body = "setp.ge.u32 %p1, %r1, 80; @%p1 exit; setp.lt.u32 %p2, %r1, 7; bar.red.popc.u32 %r2, 0, %p2;
        barrier.cta.red.or.pred %p3, 1, !%p2; bar.red.and.pred %p4, 0, %p2; selp.u32 %r3, 100, 0, %p3; selp.u32 %r4, 1000, 0, %p4;
        add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; st.global.u32 [%d4], %r2;";
    let words = run_block("", body, 96).unwrap();
    assert_eq!((words[0], words[79], words[80]), (107, 107, 0));
}

#[test]
fn producers_arrive_and_consumers_wait() {
    let declarations = ".shared .u32 cell[32];";
    let body = "mov.u32 %r9, cell; and.b32 %r2, %r1, 31; mad.lo.u32 %r9, %r2, 4, %r9; setp.lt.u32 %p1, %r1, 32; @!%p1 bra PRODUCE;
        bar.sync 3, 64; ld.shared.u32 %r3, [%r9]; st.global.u32 [%d4], %r3; bra END;
        PRODUCE: st.shared.u32 [%r9], %r1; bar.arrive 3, 64; END:";
    assert_eq!(run_block(declarations, body, 64).unwrap()[..3], [32, 33, 34]);
}

#[test]
fn barriers_that_no_lane_completes_are_a_deadlock() {
    let body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1; bra END; A: bar.sync 2; END:";
    assert_eq!(run_block("", body, 64), Err(FaultKind::Deadlock));
}

#[test]
fn warp_operations_exchange_values() {
    let body = "shfl.sync.down.b32 %r2|%p1, %r1, 1, 31, 0xffffffff; shfl.sync.bfly.b32 %r3, %r1, 4, 31, -1; shfl.sync.idx.b32 %r5, %r1, 9, 0x181f, -1;
        setp.lt.u32 %p2, %r1, 5; vote.ballot.sync.b32 %r6, %p2, -1; redux.sync.add.s32 %r7, %r1, -1; and.b32 %r8, %r1, 3; match.any.sync.b32 %r9, %r8, -1;
        mad.lo.u32 %r2, %r3, 100, %r2; mad.lo.u32 %r2, %r5, 10000, %r2; add.u32 %r2, %r2, %r6; add.u32 %r2, %r2, %r7; add.u32 %r2, %r2, %r9; st.global.u32 [%d4], %r2;";
    let words = run_block("", body, 32).unwrap();
    let expected = |lane: u32| {
        let down = if lane == 31 { 31 } else { lane + 1 };
        let same = 0x1111_1111_u32 << (lane & 3);
        (down + 100 * (lane ^ 4) + 10_000 * ((lane & 24) | 1)).wrapping_add(31 + 496).wrapping_add(same)
    };
    assert_eq!(words, (0..32).map(expected).collect::<Vec<_>>());
}

#[test]
fn a_synchronizing_operation_waits_for_lanes_on_another_path() {
    // Lanes meet at the same instruction, from two sides of a branch.
    let same = "setp.lt.u32 %p1, %r1, 16; mov.u32 %r2, 7; @%p1 bra JOIN; mov.u32 %r2, 9; mov.u32 %r3, 0; LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 50; @%p2 bra LOOP;
        JOIN: shfl.sync.idx.b32 %r4, %r2, 20, 31, -1; st.global.u32 [%d4], %r4;";
    assert_eq!(run_block("", same, 32).unwrap(), [9; 32]);
    // They meet at two instructions of the same kind.
    let apart = "setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW; shfl.sync.idx.b32 %r4, %r1, 3, 31, -1; add.u32 %r4, %r4, 100; bra END;
        LOW: shfl.sync.idx.b32 %r4, %r1, 30, 31, -1; bar.warp.sync -1; bra STORE; END: bar.warp.sync -1; STORE: st.global.u32 [%d4], %r4;";
    let words = run_block("", apart, 32).unwrap();
    assert_eq!((words[0], words[31]), (30, 103));
}

#[test]
fn a_tile_works_without_the_rest_of_its_warp() {
    let body = "setp.ge.u32 %p1, %r1, 8; @%p1 bra END; mov.u32 %r2, %r1; shfl.sync.down.b32 %r3, %r2, 4, 0x181f, 0xff; add.u32 %r2, %r2, %r3;
        vote.sync.all.pred %p2, !%p1, 0xff; selp.u32 %r4, 1000, 0, %p2; add.u32 %r2, %r2, %r4; st.global.u32 [%d4], %r2; END:";
    assert_eq!(run_block("", body, 32).unwrap()[..9], [1004, 1006, 1008, 1010, 1008, 1010, 1012, 1014, 0]);
}

/// Measured on an H100 (driver 580): a value that PTX leaves undefined is 0, and a lane whose source is out of range keeps its
/// own.
#[test]
fn a_shuffle_from_a_lane_that_takes_no_part_gives_zero() {
    let of = |before: &str, shuffle: &str| {
        let body = format!(
            "add.u32 %r2, %r1, 1000; mov.u32 %r3, 77; setp.gt.u32 %p1, %r1, 7; {before} {shuffle} D: st.global.u32 [%d4], %r3;"
        );
        run_block("", &body, 32).unwrap()[..8].to_vec()
    };
    let own: Vec<u32> = (1000..1008).collect();
    let branch = "vote.sync.ballot.b32 %r5, !%p1, 0xffffffff; @%p1 bra D;";
    assert_eq!(of(branch, "shfl.sync.down.b32 %r3, %r2, 16, 31, %r5;"), [0; 8], "lanes that went another way");
    assert_eq!(of(branch, "shfl.sync.down.b32 %r3, %r2, 4, 31, 0xff;"), [1004, 1005, 1006, 1007, 0, 0, 0, 0]);
    assert_eq!(of(branch, "shfl.sync.down.b32 %r3, %r2, 4, 0x181f, 0xff;")[..4], [1004, 1005, 1006, 1007]);
    assert_eq!(of(branch, "shfl.sync.down.b32 %r3, %r2, 4, 0x181f, 0xff;")[4..], own[4..], "beyond their segment");
    assert_eq!(of(branch, "shfl.sync.idx.b32 %r3, %r2, 20, 31, 0xff;"), [0; 8]);
    assert_eq!(of(branch, "shfl.sync.bfly.b32 %r3, %r2, 8, 31, 0xff;"), [0; 8]);
    assert_eq!(of("@%p1 exit;", "shfl.sync.idx.b32 %r3, %r2, 9, 31, 0xffffffff;"), [0; 8], "lanes that have ended");
    assert_eq!(of("", "@!%p1 shfl.sync.idx.b32 %r3, %r2, 9, 31, 0xff;"), [0; 8], "lanes that a guard keeps out");
    assert_eq!(of(branch, "shfl.sync.up.b32 %r3, %r2, 9, 0, 0xff;"), own, "below the first lane");
}

#[test]
fn special_registers_describe_the_launch() {
    let device = Device::default();
    let output = device.put(&[0; 48]);
    let body = "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r3, %r4, %r1; mov.u32 %r6, %nctaid.x; mad.lo.u32 %r7, %r2, 24, %r5;
        mad.wide.u32 %d4, %r7, 4, %d2; mov.u32 %r8, %laneid; mov.u32 %r9, %lanemask_lt; popc.b32 %r9, %r9; mad.lo.u32 %r6, %r6, 10000, %r8; mad.lo.u32 %r6, %r9, 100, %r6; st.global.u32 [%d4], %r6;";
    device.run(&kernel("", body), [2, 1, 1], [6, 4, 1], &[output]).unwrap();
    let words = device.words(output, 48);
    assert_eq!((words[0], words[23], words[24 + 7]), (20_000, 22_323, 20_707));
}

#[test]
fn printf_and_assert_reach_the_host() {
    let device = Device::default();
    let declarations = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
        .extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 g, .param .b64 c);
        .global .align 1 .b8 format[18] = {116, 104, 114, 101, 97, 100, 32, 37, 100, 32, 37, 46, 50, 102, 32, 37, 115, 10};
        .global .align 1 .b8 zero = 0; .global .align 1 .b8 name[3] = {107, 40, 41};";
    let body = ".local .align 8 .b8 args[24]; mov.u64 %d5, args; st.local.u32 [%d5], %r1; st.local.f64 [%d5+8], 0d3FF8000000000000; mov.u64 %d6, name; st.local.u64 [%d5+16], %d6;
        cvta.local.u64 %d7, %d5; mov.u64 %d8, format;
        { .param .b64 p; .param .b64 q; .param .b32 r; st.param.b64 [p], %d8; st.param.b64 [q], %d7; call.uni (r), vprintf, (p, q); }
        setp.ne.u32 %p1, %r1, 1; @%p1 bra OK; mov.u64 %d9, name;
        { .param .b64 m; .param .b64 n; .param .b32 l; .param .b64 g; .param .b64 c; st.param.b64 [m], %d9; st.param.b64 [n], %d9; st.param.b32 [l], 12; st.param.b64 [g], %d9; st.param.b64 [c], 1;
        call.uni __assertfail, (m, n, l, g, c); } OK:";
    // The format has no NUL of its own: the gap after the allocation must not be read, so add one.
    let declarations = declarations.replace("format[18]", "format[19]").replace("name[3]", "name[4]");
    let output = device.put(&[0; 2]);
    let fault = device.run(&kernel(&declarations, body), [1, 1, 1], [2, 1, 1], &[output]).unwrap_err();
    assert_eq!((fault.kind, fault.thread), (FaultKind::Assert, [1, 0, 0]));
    let expected =
        "thread 0 1.50 k()\nthread 1 1.50 k()\nk():12: k(): block: [0,0,0], thread: [1,0,0] Assertion `k()` failed.\n";
    assert_eq!(device.printed(), expected);
}

#[test]
fn printf_returns_how_many_arguments_its_format_took() {
    let declarations = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
        .global .align 1 .b8 format[9] = {37, 42, 100, 32, 37, 37, 37, 117, 0};";
    let body = ".local .align 8 .b8 args[16]; mov.u64 %d5, args; st.local.u32 [%d5], 5; st.local.u32 [%d5+4], %r1; st.local.u32 [%d5+8], 7;
        cvta.local.u64 %d7, %d5; mov.u64 %d8, format;
        { .param .b64 p; .param .b64 q; .param .b32 r; st.param.b64 [p], %d8; st.param.b64 [q], %d7; call.uni (r), vprintf, (p, q); ld.param.b32 %r5, [r]; }
        st.global.u32 [%d4], %r5;";
    assert_eq!(run_block(declarations, body, 2), Ok(vec![3, 3]));
}

#[test]
fn a_trap_stops_the_kernel() {
    assert_eq!(run_block("", "setp.eq.u32 %p1, %r1, 9; @%p1 trap;", 32), Err(FaultKind::Trap));
}

#[test]
fn a_paused_grid_goes_on_where_it_was() {
    let body = "mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 64, %r1; mad.wide.u32 %d4, %r3, 4, %d2; mov.u32 %r4, 0; LOOP: add.u32 %r4, %r4, %r3; bar.sync 0; add.u32 %r5, %r5, 1;
        setp.lt.u32 %p1, %r5, 20; @%p1 bra LOOP; st.global.u32 [%d4], %r4;";
    let body = body.replace("mov.u32 %r4, 0;", "mov.u32 %r4, 0; mov.u32 %r5, 0;");
    let device = Device::default();
    let output = device.put(&[0; 192]);
    let program = device.load(&kernel("", &body)).unwrap();
    let pauses = device.run_in_pieces(launch(&program, [3, 1, 1], [64, 1, 1], &[output]), 7).unwrap();
    assert!(pauses > 10, "{pauses}");
    assert_eq!(device.words(output, 192), (0..192).map(|n| 20 * n).collect::<Vec<u32>>());
}

#[test]
fn a_cancelled_launch_stops() {
    let device = Device::default();
    let output = device.put(&[0; 32]);
    let program = device.load(&kernel("", "LOOP: bra LOOP;")).unwrap();
    let launch = launch(&program, [1, 1, 1], [32, 1, 1], &[output]);
    let switch = Switch::new();
    switch.cancel();
    let fault = run(&launch, &device, 1, &switch).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Cancelled);
}

#[test]
fn cooperative_blocks_wait_for_each_other_on_one_thread() {
    let declarations = ".global .u32 arrived = 0;";
    let body = "mov.u32 %r2, %envreg1; mov.u32 %r3, %envreg2; mov.b64 %d5, {%r3, %r2}; atom.global.add.u32 %r4, [arrived], 1; LOOP: ld.acquire.gpu.global.u32 %r5, [arrived];
        setp.lt.u32 %p1, %r5, 12; @%p1 bra LOOP; atom.add.u32 %r6, [%d5+4], 1; st.global.u32 [%d4], %r5;";
    let device = Device::default();
    let output = device.put(&[0; 3]);
    let program = device.load(&kernel(declarations, body)).unwrap();
    let mut launch = launch(&program, [4, 1, 1], [3, 1, 1], &[output]);
    launch.cooperative = true;
    run(&launch, &device, 1, &Switch::new()).unwrap();
    assert_eq!(device.words(output, 3), [12; 3]);
}

/// Runs three steps of a grid that waits for itself by calls of the device library, which no text of the program has. Returns how
/// many threads had come after the last wait, and the result of that wait.
fn waited_by_calls(cooperative: bool) -> [u32; 2] {
    let declarations = ".global .u32 arrived = 0;
        .extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);
        .extern .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);";
    let handle = "{ .param .b32 s; .param .b64 h; st.param.b32 [s], 1;
        call (h), cudaCGGetIntrinsicHandle, (s); ld.param.b64 %d5, [h]; }";
    let step = "atom.global.add.u32 %r4, [arrived], 1;
        { .param .b64 h; .param .b32 f; .param .b32 r; st.param.b64 [h], %d5; st.param.b32 [f], 0;
        call (r), cudaCGSynchronize, (h, f); ld.param.b32 %r6, [r]; }";
    let body = format!(
        "{handle} {step} {step} {step} ld.global.u32 %r5, [arrived]; st.global.u32 [%d4], %r5; st.global.u32 [%d4+4], %r6;"
    );
    let device = Device::default();
    let output = device.put(&[0; 8]);
    let program = device.load(&kernel(declarations, &body)).unwrap();
    let mut launch = launch(&program, [4, 1, 1], [3, 2, 1], &[output]);
    launch.cooperative = cooperative;
    run(&launch, &device, 1, &Switch::new()).unwrap();
    let words = device.words(output, 2);
    [words[0], words[1]]
}

#[test]
fn a_grid_waits_by_the_calls_of_the_library() {
    assert_eq!(waited_by_calls(true), [4 * 6 * 3, 0]);
}

#[test]
fn a_grid_that_is_not_cooperative_cannot_wait_for_itself() {
    assert_eq!(waited_by_calls(false)[1], 1);
}

#[test]
fn impossible_launches_are_refused() {
    let device = Device::default();
    let program = device.load(".visible .entry k(.param .u64 x) .reqntid 32, 1, 1 { ret; }").unwrap();
    let refused = |change: &dyn Fn(&mut katydid_ptx_exec::Launch)| {
        let mut launch = launch(&program, [1, 1, 1], [32, 1, 1], &[0]);
        change(&mut launch);
        run(&launch, &device, 1, &Switch::new()).map_err(|fault| fault.kind)
    };
    assert_eq!(refused(&|_| {}), Ok(()));
    assert_eq!(refused(&|launch| launch.block = [64, 1, 1]), Err(FaultKind::BadLaunch));
    assert_eq!(refused(&|launch| launch.block = [u32::MAX; 3]), Err(FaultKind::BadLaunch));
    assert_eq!(refused(&|launch| launch.grid = [0, 1, 1]), Err(FaultKind::BadLaunch));
    assert_eq!(refused(&|launch| launch.params.clear()), Err(FaultKind::BadLaunch));
    assert_eq!(refused(&|launch| launch.dynamic_shared = 1 << 20), Err(FaultKind::BadLaunch));
}
