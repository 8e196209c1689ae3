//! Integer and bit instructions, each run on edge values.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{self, evaluate, i, once};

#[test]
fn integer_arithmetic_wraps_or_saturates_as_written() {
    assert_eq!(once("add.s32 %r0, %r4, %r5;", "r", [u64::from(u32::MAX), 1, 0, 0]), 0);
    assert_eq!(once("add.sat.s32 %r0, %r4, %r5;", "r", [i(i32::MAX), 1, 0, 0]), i(i32::MAX));
    assert_eq!(once("sub.u64 %d0, %d4, %d5;", "d", [0, 1, 0, 0]), u64::MAX);
    assert_eq!(once("add.u16 %h0, %h4, %h5;", "h", [0xffff, 2, 0, 0]), 1);
    assert_eq!(once("neg.s64 %d0, %d4;", "d", [5, 0, 0, 0]), (-5_i64).cast_unsigned());
    assert_eq!(once("abs.s32 %r0, %r4;", "r", [i(-7), 0, 0, 0]), 7);
    assert_eq!(once("min.s16 %h0, %h4, %h5;", "h", [0xffff, 1, 0, 0]), 0xffff);
    assert_eq!(once("max.u16 %h0, %h4, %h5;", "h", [0xffff, 1, 0, 0]), 0xffff);
    assert_eq!(once("sad.u32 %r0, %r4, %r5, %r6;", "r", [3, 10, 100, 0]), 107);
    assert_eq!(once("add.u16x2 %r0, %r4, %r5;", "r", [0x0001_ffff, 0x0001_0001, 0, 0]), 0x0002_0000);
}

#[test]
fn products_keep_the_half_that_is_asked_for() {
    let big = [u64::from(u32::MAX), u64::from(u32::MAX), 1, 0];
    assert_eq!(once("mul.lo.u32 %r0, %r4, %r5;", "r", big), 1);
    assert_eq!(once("mul.hi.u32 %r0, %r4, %r5;", "r", big), 0xffff_fffe);
    assert_eq!(once("mul.wide.u32 %d0, %r4, %r5;", "d", big), 0xffff_fffe_0000_0001);
    assert_eq!(once("mul.wide.s32 %d0, %r4, %r5;", "d", big), 1);
    assert_eq!(once("mad.lo.s32 %r0, %r4, %r5, %r6;", "r", big), 2);
    assert_eq!(once("mad.wide.s16 %r0, %h4, %h5, %r6;", "r", [0xffff, 5, 10, 0]), 5);
    assert_eq!(once("mul.hi.u64 %d0, %d4, %d5;", "d", [u64::MAX, u64::MAX, 0, 0]), u64::MAX - 1);
    assert_eq!(once("mad.hi.sat.s32 %r0, %r4, %r5, %r6;", "r", [1 << 30, 16, i(i32::MAX), 0]), i(i32::MAX));
    assert_eq!(once("mul24.lo.u32 %r0, %r4, %r5;", "r", [0x0100_0003, 2, 0, 0]), 6);
    assert_eq!(once("mad24.hi.u32 %r0, %r4, %r5, %r6;", "r", [0x00ff_ffff, 0x00ff_ffff, 1, 0]), 0xffff_fe01);
}

#[test]
fn division_truncates_and_never_traps() {
    assert_eq!(once("div.s32 %r0, %r4, %r5;", "r", [i(-7), 2, 0, 0]), i(-3));
    assert_eq!(once("rem.s32 %r0, %r4, %r5;", "r", [i(-7), 2, 0, 0]), i(-1));
    assert_eq!(once("div.u32 %r0, %r4, %r5;", "r", [7, 0, 0, 0]), u64::from(u32::MAX));
    assert_eq!(once("div.s64 %d0, %d4, %d5;", "d", [i64::MIN.cast_unsigned(), u64::MAX, 0, 0]), 1 << 63);
    assert_eq!(once("rem.u64 %d0, %d4, %d5;", "d", [10, 4, 0, 0]), 2);
    let many: Vec<[u64; 4]> = (0..200_u64).map(|n| [n * 21_474_836, n * n + 1, 0, 0]).collect();
    let quotients = evaluate("div.u32 %r0, %r4, %r5;", "r", &many);
    for (quotient, [a, b, ..]) in quotients.iter().zip(&many) {
        assert_eq!(*quotient, u64::from(*a as u32 / *b as u32));
    }
}

#[test]
fn carries_run_through_a_chain() {
    let body = "mov.b64 {%r0, %r1}, %d4; mov.b64 {%r2, %r3}, %d5;
                add.cc.u32 %r0, %r0, %r2; addc.u32 %r1, %r1, %r3; mov.b64 %d0, {%r0, %r1};";
    assert_eq!(once(body, "d", [u64::from(u32::MAX), 1, 0, 0]), 1 << 32);
    let body = "mov.b64 {%r0, %r1}, %d4; mov.b64 {%r2, %r3}, %d5;
                sub.cc.u32 %r0, %r0, %r2; subc.u32 %r1, %r1, %r3; mov.b64 %d0, {%r0, %r1};";
    assert_eq!(once(body, "d", [1 << 32, 1, 0, 0]), u64::from(u32::MAX));
    let body = "mad.lo.cc.u32 %r0, %r4, %r5, %r6; madc.hi.u32 %r1, %r4, %r5, 0; mov.b64 %d0, {%r0, %r1};";
    assert_eq!(once(body, "d", [u64::from(u32::MAX), 2, 2, 0]), (1 << 33));
}

#[test]
fn the_flag_of_a_difference_is_set_when_nothing_is_borrowed() {
    let body = "sub.cc.u32 %r0, %r4, %r5; addc.u32 %r0, 0, 0;";
    assert_eq!((once(body, "r", [5, 3, 0, 0]), once(body, "r", [3, 5, 0, 0])), (1, 0));
    assert_eq!(once("add.cc.u32 %r0, %r4, %r5; subc.u32 %r0, 9, 2;", "r", [u64::from(u32::MAX), 1, 0, 0]), 7);
    assert_eq!(once("add.cc.u32 %r0, %r4, %r5; subc.u32 %r0, 9, 2;", "r", [1, 1, 0, 0]), 6);
}

#[test]
fn shifts_clamp_their_amount() {
    assert_eq!(once("shl.b32 %r0, %r4, %r5;", "r", [1, 32, 0, 0]), 0);
    assert_eq!(once("shr.s32 %r0, %r4, %r5;", "r", [i(-8), 40, 0, 0]), i(-1));
    assert_eq!(once("shr.u64 %d0, %d4, %r5;", "d", [1 << 63, 63, 0, 0]), 1);
    assert_eq!(once("shr.s16 %h0, %h4, %r5;", "h", [0x8000, 15, 0, 0]), 0xffff);
    assert_eq!(once("shf.l.wrap.b32 %r0, %r4, %r5, %r6;", "r", [0x8000_0000, 1, 1, 0]), 3);
    assert_eq!(once("shf.r.clamp.b32 %r0, %r4, %r5, %r6;", "r", [1, 2, 40, 0]), 2);
}

#[test]
fn bits_are_counted_found_moved_and_merged() {
    assert_eq!(once("popc.b64 %r0, %d4;", "r", [u64::MAX, 0, 0, 0]), 64);
    assert_eq!(once("clz.b32 %r0, %r4;", "r", [0, 0, 0, 0]), 32);
    assert_eq!(once("brev.b32 %r0, %r4;", "r", [1, 0, 0, 0]), 1 << 31);
    assert_eq!(once("bfind.s32 %r0, %r4;", "r", [i(-1), 0, 0, 0]), u64::from(u32::MAX));
    assert_eq!(once("bfind.shiftamt.u64 %r0, %d4;", "r", [1, 0, 0, 0]), 63);
    assert_eq!(once("bfe.s32 %r0, %r4, %r5, %r6;", "r", [0xf0, 4, 4, 0]), i(-1));
    assert_eq!(once("bfi.b64 %d0, %d4, %d5, %r6, %r7;", "d", [0xff, 0, 60, 8]), 0xf << 60);
    assert_eq!(once("prmt.b32 %r0, %r4, %r5, %r6;", "r", [0x3322_1100, 0x7766_5544, 0x0167, 0]), 0x0011_6677);
    assert_eq!(once("lop3.b32 %r0, %r4, %r5, %r6, 0x96;", "r", [0b1100, 0b1010, 0b0110, 0]), 0);
    assert_eq!(once("lop3.b32 %r0, %r4, %r5, %r6, 0xe8;", "r", [0b1100, 0b1010, 0b0110, 0]), 0b1110);
    assert_eq!(once("bmsk.clamp.b32 %r0, %r4, %r5;", "r", [4, 8, 0, 0]), 0xff0);
    assert_eq!(once("szext.clamp.s32 %r0, %r4, %r5;", "r", [0x80, 8, 0, 0]), i(-128));
    assert_eq!(once("dp4a.s32.s32 %r0, %r4, %r5, %r6;", "r", [0x01ff_0102, 0x0101_0101, 7, 0]), 10);
    assert_eq!(once("not.b16 %h0, %h4;", "h", [0x0f0f, 0, 0, 0]), 0xf0f0);
    assert_eq!(once("cnot.b32 %r0, %r4;", "r", [0, 0, 0, 0]), 1);
}

#[test]
fn comparisons_select_and_combine() {
    let body = "setp.lt.s32 %p1, %r4, %r5; selp.u32 %r0, %r6, %r7, %p1;";
    assert_eq!(once(body, "r", [i(-1), 0, 7, 8]), 7);
    assert_eq!(once("setp.hi.u32 %p0, %r4, %r5;", "p", [i(-1), 0, 0, 0]), 1);
    assert_eq!(once("setp.eq.b16 %p0, %h4, %h5;", "p", [0x1_0005, 5, 0, 0]), 1);
    let both = "setp.gt.u32 %p1|%p2, %r4, %r5; not.pred %p0, %p2; and.pred %p0, %p0, %p1;";
    assert_eq!(once(both, "p", [2, 1, 0, 0]), 1);
    let combined = "setp.ne.u32 %p1, %r6, 0; setp.lt.and.u32 %p0|%p2, %r4, %r5, !%p1;";
    assert_eq!(once(combined, "p", [1, 2, 0, 0]), 1);
    assert_eq!(once(combined, "p", [1, 2, 9, 0]), 0);
    assert_eq!(once("set.lt.u32.s32 %r0, %r4, %r5;", "r", [i(-1), 0, 0, 0]), u64::from(u32::MAX));
    assert_eq!(once("set.gt.f32.f32 %f0, %f4, %f5;", "f", [common::f(2.0), common::f(1.0), 0, 0]), common::f(1.0));
    assert_eq!(once("slct.u32.s32 %r0, %r4, %r5, %r6;", "r", [1, 2, i(-1), 0]), 2);
}

#[test]
fn moves_pack_and_unpack() {
    assert_eq!(
        once("mov.b64 {%r1, %r2}, %d4; mov.b64 %d0, {%r2, %r1};", "d", [0x1111_1111_2222_2222, 0, 0, 0]),
        0x2222_2222_1111_1111
    );
    assert_eq!(once("mov.b32 {%h1, %h2}, %r4; mov.b32 %r0, {%h2, %h1};", "r", [0x1111_2222, 0, 0, 0]), 0x2222_1111);
    assert_eq!(once("mov.b64 {_, %r0}, %d4;", "r", [0x7_0000_0005, 0, 0, 0]), 7);
    let four = "mov.b64 {%h0, %h1, %h2, %h3}, %d4; mov.b64 %d0, {%h3, %h2, %h1, %h0};";
    assert_eq!(once(four, "d", [0x0001_0002_0003_0004, 0, 0, 0]), 0x0004_0003_0002_0001);
    assert_eq!(
        once(
            "mov.b64 {%r4, %r5}, %d4; mov.b64 {%r5, %r4}, %d5; mov.b64 %d0, {%r4, %r5};",
            "d",
            [0, 0x1_0000_0002, 0, 0]
        ),
        0x2_0000_0001
    );
    assert_eq!(once("{ .reg .b32 %r0; mov.u32 %r0, 5; } mov.u32 %r0, WARP_SZ;", "r", [0; 4]), 32);
}
