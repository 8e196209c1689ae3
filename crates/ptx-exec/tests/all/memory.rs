//! Loads, stores and atomics in every space, and their faults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, once};
use katydid_ptx_exec::FaultKind;

/// Returns a kernel over 64 threads with an input and an output pointer.
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        "{declarations} .visible .entry k(.param .u64 in, .param .u64 out) {{
            .reg .pred %p<4>; .reg .b16 %h<9>; .reg .b32 %r<16>; .reg .b64 %d<12>; .reg .f32 %f<9>;
            ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x;
            mad.wide.u32 %d3, %r1, 4, %d1; mad.wide.u32 %d4, %r1, 4, %d2;
            {body} ret; }}"
    )
}

/// Runs a body on words 0..64 and returns 64 words of output.
fn run(declarations: &str, body: &str) -> Result<Vec<u32>, FaultKind> {
    let device = Device::default();
    let (input, output) = (device.put(&(0..64).collect::<Vec<_>>()), device.put(&[0; 64]));
    let done = device.run(&kernel(declarations, body), [1, 1, 1], [64, 1, 1], &[input, output]);
    done.map(|()| device.words(output, 64)).map_err(|fault| fault.kind)
}

#[test]
fn narrow_loads_extend_and_narrow_stores_cut() {
    assert_eq!(once("st.global.u64 [%out], %d4; ld.global.s8 %r0, [%out+1];", "r", [0x80ff, 0, 0, 0]), 0xffff_ff80);
    assert_eq!(once("st.global.u64 [%out], %d4; ld.global.u8 %h0, [%out+1];", "h", [0x80ff, 0, 0, 0]), 0x80);
    assert_eq!(
        once("st.global.u64 [%out], %d4; ld.global.s16 %d0, [%out];", "d", [0x80ff, 0, 0, 0]),
        0xffff_ffff_ffff_80ff
    );
    assert_eq!(
        once(
            "st.global.u64 [%out], %d4; st.global.u8 [%out+2], %r5; ld.global.u64 %d0, [%out];",
            "d",
            [u64::MAX, 0x1200, 0, 0]
        ),
        0xffff_ffff_ff00_ffff
    );
}

#[test]
fn addresses_in_any_pattern_reach_their_lanes() {
    let reverse =
        "sub.u32 %r2, 63, %r1; mad.wide.u32 %d5, %r2, 4, %d1; ld.global.u32 %r3, [%d5]; st.global.u32 [%d4], %r3;";
    assert_eq!(run("", reverse).unwrap(), (0..64).rev().collect::<Vec<_>>());
    let same = "ld.global.u32 %r3, [%d1+20]; st.global.u32 [%d4], %r3;";
    assert_eq!(run("", same).unwrap(), [5; 64]);
    let odd_lanes =
        "and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; @%p1 ld.global.u32 %r3, [%d3]; @%p1 st.global.u32 [%d4], %r3;";
    assert_eq!(run("", odd_lanes).unwrap()[..6], [0, 1, 0, 3, 0, 5]);
    let two_allocations = "and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; selp.b64 %d5, %d3, %d4, %p1; ld.global.u32 %r3, [%d5]; st.global.u32 [%d4], %r3;";
    assert_eq!(run("", two_allocations).unwrap()[..6], [0, 1, 0, 3, 0, 5]);
}

#[test]
fn vectors_are_loaded_and_stored_whole() {
    let body = "setp.lt.u32 %p1, %r1, 16; shl.b32 %r9, %r1, 4; cvt.u64.u32 %d5, %r9; add.u64 %d6, %d1, %d5; add.u64 %d7, %d2, %d5;
        @%p1 ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d6]; @%p1 st.global.v2.u32 [%d7], {%r5, %r4}; @%p1 st.global.v2.u32 [%d7+8], {%r3, _};";
    // A store has no `_`, so the text is refused.
    assert!(Device::default().load(&kernel("", body)).is_err());
    let body = body.replace("{%r3, _}", "{%r3, %r2}");
    assert_eq!(run("", &body).unwrap()[..8], [3, 2, 1, 0, 7, 6, 5, 4]);
    let overwritten =
        "and.b64 %d6, %d3, -16; ld.global.v2.u64 {%d6, %d7}, [%d6]; mov.b64 {%r2, %r3}, %d7; st.global.u32 [%d4], %r3;";
    assert_eq!(run("", overwritten).unwrap()[..5], [3, 3, 3, 3, 7]);
}

#[test]
fn a_flag_and_what_it_vouches_for_are_never_torn() {
    // Block 0 writes pairs whose sum is 0. Block 1 reads them at the same time, one lane each: both sums and the last pair count.
    let body = "mov.u32 %r2, %ctaid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END; mov.u64 %d5, 0; mov.u32 %r3, 0;
        setp.ne.u32 %p2, %r2, 0; @%p2 bra READ;
        WRITE: add.u64 %d5, %d5, 1; neg.s64 %d6, %d5; st.volatile.global.v2.u64 [%d2], {%d5, %d6};
        setp.lt.u64 %p1, %d5, 100000; @%p1 bra WRITE; bra END;
        READ: ld.volatile.global.v2.u64 {%d5, %d6}, [%d2]; add.u64 %d7, %d5, %d6; setp.ne.u64 %p1, %d7, 0;
        @%p1 add.u32 %r3, %r3, 1; setp.lt.u64 %p1, %d5, 100000; @%p1 bra READ; st.global.u32 [%d2+16], %r3;
        END:";
    let device = Device::default();
    let out = device.put(&[0; 64]);
    device.run(&kernel("", body), [2, 1, 1], [32, 1, 1], &[out, out]).unwrap();
    assert_eq!(device.words(out, 5), [100_000, 0, 100_000_u32.wrapping_neg(), u32::MAX, 0]);
}

#[test]
fn shared_memory_is_seen_by_the_whole_block() {
    let declarations = ".shared .align 4 .u32 buffer[64]; .extern .shared .align 4 .u32 more[];";
    let body = "mov.u32 %r2, buffer; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r1; bar.sync 0;
        mov.u32 %r4, buffer; sub.u32 %r5, 252, %r3; add.u32 %r4, %r4, %r5; ld.shared.u32 %r6, [%r4]; st.global.u32 [%d4], %r6;";
    assert_eq!(run(declarations, body).unwrap(), (0..64).rev().collect::<Vec<_>>());
    let generic = "mov.u64 %d5, buffer; cvta.shared.u64 %d5, %d5; mad.wide.u32 %d5, %r1, 4, %d5; st.u32 [%d5], %r1; ld.u32 %r6, [%d5];
        cvta.to.shared.u64 %d6, %d5; ld.shared.u32 %r7, [%d6]; add.u32 %r6, %r6, %r7; st.global.u32 [%d4], %r6;";
    assert_eq!(run(declarations, generic).unwrap()[..3], [0, 2, 4]);
    assert_eq!(
        run(declarations, "ld.shared.u32 %r2, [buffer+256]; st.global.u32 [%d4], %r2;"),
        Err(FaultKind::IllegalAddress(256))
    );
}

#[test]
fn local_memory_is_the_lanes_own_and_reachable_by_generic_addresses() {
    let body = ".local .align 8 .b8 depot[16]; mov.u64 %d5, depot; cvta.local.u64 %d6, %d5; st.local.u32 [%d5+4], %r1;
        ld.u32 %r2, [%d6+4]; st.u8 [%d6+4], %r2; ld.local.u16 %r3, [%d5+4]; st.local.v2.u32 [depot+8], {%r3, %r1}; ld.local.u64 %d7, [%d5+8];
        mov.b64 {%r4, %r5}, %d7; add.u32 %r4, %r4, %r5; st.global.u32 [%d4], %r4;";
    assert_eq!(run("", body).unwrap()[..4], [0, 2, 4, 6]);
    assert!(matches!(
        run("", ".local .b8 x[8]; ld.local.u32 %r2, [x+16]; st.global.u32 [%d4], %r2;"),
        Err(FaultKind::IllegalAddress(_))
    ));
}

#[test]
fn variables_and_parameters_are_readable() {
    let declarations = ".const .align 4 .u32 table[3] = {7, 8, 9}; .global .u32 counter = 5;";
    let body =
        "ld.const.u32 %r2, [table+4]; ld.global.u32 %r3, [counter]; add.u32 %r2, %r2, %r3; st.global.u32 [%d4], %r2;";
    assert_eq!(run(declarations, body).unwrap()[0], 13);
    let by_address = "mov.b64 %d5, in; cvta.param.u64 %d6, %d5; ld.u64 %d7, [%d6]; sub.u64 %d7, %d7, %d1; ld.param.v2.u64 {%d8, %d9}, [in];
        sub.u64 %d9, %d9, %d2; or.b64 %d7, %d7, %d9; cvt.u32.u64 %r2, %d7; st.global.u32 [%d4], %r2;";
    assert_eq!(run("", by_address).unwrap(), [0; 64]);
}

#[test]
fn atomics_return_what_was_there_and_leave_the_sum() {
    let body =
        "atom.global.add.u32 %r2, [%d2], 1; red.global.max.s32 [%d2+4], %r1; atom.global.cas.b32 %r3, [%d2+8], 0, %r1;
        atom.global.inc.u32 %r4, [%d2+12], 9; red.global.add.f32 [%d2+16], 0f3F000000; atom.or.b64 %d5, [%d2+24], 3;
        setp.eq.u32 %p1, %r2, 63; @%p1 st.global.u32 [%d2+32], %r2; mov.b32 %r6, 0x3c003c00;
        red.global.add.noftz.f16x2 [%d2+36], %r6;";
    let words = run("", body).unwrap();
    assert_eq!((words[0], words[1], words[2], words[3]), (64, 63, 1, 4));
    assert_eq!((f32::from_bits(words[4]), words[6], words[8], words[9]), (32.0, 3, 63, 0x5400_5400));
    let shared = "atom.shared.add.u32 %r2, [cell], 2; bar.sync 0; ld.shared.u32 %r3, [cell]; st.global.u32 [%d4], %r3;";
    assert_eq!(
        run(".shared .u32 cell;", &format!("mov.u32 %r5, cell; st.shared.u32 [%r5], 0; bar.sync 0; {shared}")).unwrap(),
        [128; 64]
    );
    let local = ".local .b32 x; mov.u64 %d5, x; cvta.local.u64 %d5, %d5; st.u32 [%d5], 7; atom.add.u32 %r2, [%d5], %r1;
        ld.u32 %r3, [%d5]; add.u32 %r2, %r2, %r3; st.global.u32 [%d4], %r2;";
    assert_eq!(run("", local).unwrap()[..3], [14, 15, 16]);
}

#[test]
fn bad_addresses_fault_with_their_lane_and_line() {
    let device = Device::default();
    let (input, output) = (device.put(&[1; 64]), device.put(&[0; 64]));
    let fault = |body: &str| device.run(&kernel("", body), [1, 1, 1], [64, 1, 1], &[input, output]).unwrap_err();
    let past = fault("ld.global.u32 %r2, [%d3+16];");
    assert_eq!((past.kind, past.thread), (FaultKind::IllegalAddress(input + 256), [60, 0, 0]));
    assert_eq!(past.line, 8);
    assert_eq!(fault("ld.global.u32 %r2, [%d3+2];").kind, FaultKind::MisalignedAddress(input + 2));
    assert_eq!(fault("ld.global.v2.u32 {%r2, %r3}, [%d3];").kind, FaultKind::MisalignedAddress(input + 4));
    assert_eq!(fault("mov.u64 %d5, 8; st.global.u32 [%d5], %r1;").kind, FaultKind::IllegalAddress(8));
    assert_eq!(fault("ld.global.u32 %r2, [%d3+-300];").thread, [0, 0, 0]);
    assert!(matches!(fault("mov.u64 %d5, k; ld.u32 %r2, [%d5];").kind, FaultKind::IllegalAddress(_)));
}

#[test]
fn read_only_memory_cannot_be_written() {
    let mut device = Device::default();
    let (input, output) = (device.put(&[1; 64]), device.put(&[0; 64]));
    device.read_only_below = output;
    let run =
        |body: &str| device.run(&kernel("", body), [1, 1, 1], [64, 1, 1], &[input, output]).map_err(|fault| fault.kind);
    assert_eq!(run("ld.global.u32 %r2, [%d3]; st.global.u32 [%d4], %r2;"), Ok(()));
    assert_eq!(run("st.global.u32 [%d3], %r1;"), Err(FaultKind::IllegalAddress(input)));
    assert_eq!(run("red.global.add.u32 [%d3], 1;"), Err(FaultKind::IllegalAddress(input)));
}
