//! Forms that compilers seldom write but ptxas accepts: constant expressions, vector registers, carries of 16 bits.

use crate::common::{Device, f, i, once};

#[test]
fn operands_are_constant_expressions() {
    assert_eq!(once("mov.u32 %r0, (3+4)*2-1;", "r", [0; 4]), 13);
    assert_eq!(once("mov.s32 %r0, ~5;", "r", [0; 4]), i(-6));
    assert_eq!(once("mov.u64 %d0, (.u64)-7>>60;", "d", [0; 4]), 15);
    assert_eq!(once("mov.f32 %f0, 1.5*2.0;", "f", [0; 4]), f(3.0));
    assert_eq!(once("add.u32 %r0, %r4, WARP_SZ*2;", "r", [1, 0, 0, 0]), 65);
    assert_eq!(once("setp.eq.and.u32 %p0, %r4, 5>3?7:8, 1;", "p", [7, 0, 0, 0]), 1);
    let local = ".local .b32 l[4]; mov.u64 %d1, l; st.local.u32 [%d1+4*2], %r4; ld.local.u32 %r0, [l+4+4];";
    assert_eq!(once(local, "r", [9, 0, 0, 0]), 9);
}

#[test]
fn initial_values_are_constant_expressions() {
    let device = Device::default();
    let text = ".visible .global .u32 a[4] = {3*4+1, 1?2:3, (3>2)+(2==2), 0x10|010};
        .visible .global .u64 b = a+4*2; .visible .entry k() { ret; }";
    let program = device.load(text).unwrap();
    let (address, size) = program.global("a").unwrap();
    assert_eq!(device.words(address, size as usize / 4), [13, 2, 2, 24]);
    assert_eq!(device.doubles(program.global("b").unwrap().0, 1), [address + 8]);
}

#[test]
fn vector_registers_are_their_components() {
    let pair = ".reg .v2 .u32 v; mov.v2.u32 v, {%r4, %r5}; mov.v2.u32 {%r1, %r2}, v; sub.u32 v.x, v.x, v.y;
                mad.lo.u32 %r0, v.r, 100, %r2;";
    assert_eq!(once(pair, "r", [7, 4, 0, 0]), 304);
    let swapped = ".reg .v2 .u32 v; mov.v2.u32 v, {%r4, %r5}; mov.v2.u32 v, {v.y, v.x}; mov.b64 %d0, v;";
    assert_eq!(once(swapped, "d", [1, 2, 0, 0]), 0x1_0000_0002);
    let ranges = ".reg .v4 .f32 v<3>; ld.global.v4.f32 v2, [%in]; { .reg .v4 .f32 v<3>; mov.f32 v2.w, 0f00000000; }
                  mov.f32 %f0, v2.w;";
    assert_eq!(once(ranges, "f", [0, 0x4040_0000_0000_0000, 0, 0]), f(3.0));
    let stored = ".reg .v2 .b64 v; mov.b64 v.x, 5; add.u64 v.y, v.x, %d4; .local .align 16 .b64 l[2];
                  st.local.v2.b64 [l], v; ld.local.b64 %d0, [l+8];";
    assert_eq!(once(stored, "d", [6, 0, 0, 0]), 11);
    for wrong in [".reg .v4 .f64 v;", ".reg .v2 .pred v;", ".reg .v2 .u32 v; mov.u32 %r0, v.q;"] {
        assert!(Device::default().load(&format!(".visible .entry k() {{ .reg .b32 %r0; {wrong} ret; }}")).is_err());
    }
}

#[test]
fn special_registers_are_vectors() {
    let thread = "mov.v4.u32 {%r1, %r2, %r3, %r4}, %tid; mad.lo.u32 %r0, %r1, 1000, %r4; add.u32 %r0, %r0, %r2;";
    assert_eq!(once(thread, "r", [9; 4]), 5000);
    assert_eq!(once("mov.v4.u16 {_, %h0, _, _}, %ntid;", "h", [9; 4]), 1);
    assert_eq!(once("mov.u32 %r0, %ctaid.w;", "r", [9; 4]), 0);
    assert_eq!(once("mov.b32 %r0, %envreg31; mov.b64 %d1, %pm7_64; mov.u32 %r2, %pm0;", "r", [9; 4]), 0);
    let grid = "mov.u64 %d1, %gridid; cvt.u32.u64 %r1, %d1; mov.u32 %r2, %gridid; sub.u32 %r0, %r1, %r2;";
    assert_eq!(once(grid, "r", [9; 4]), 0);
}

#[test]
fn pairs_of_floats_give_masks_and_one_predicate() {
    let (one_two, two_one) = (0x4000_3c00, 0x3c00_4000);
    assert_eq!(once("set.lt.u32.f16x2 %r0, %r4, %r5;", "r", [one_two, two_one, 0, 0]), 0x0000_ffff);
    assert_eq!(once("set.gt.s32.f16x2 %r0, %r4, %r5;", "r", [one_two, two_one, 0, 0]), 0xffff_0000);
    let joined = "setp.ne.u32 %p1, %r6, 0; set.lt.or.s32.bf16x2 %r0, %r4, %r5, %p1;";
    assert_eq!(once(joined, "r", [one_two, two_one, 1, 0]), 0xffff_ffff);
    for (a, b, expected) in [(one_two, two_one, 1), (two_one, one_two, 0)] {
        assert_eq!(once("setp.lt.f16x2 %p0, %r4, %r5;", "p", [a, b, 0, 0]), expected);
        let xored = "setp.eq.u32 %p1, 0, 0; setp.lt.xor.bf16x2 %p0, %r4, %r5, %p1;";
        assert_eq!(once(xored, "p", [a, b, 0, 0]), 1 - expected);
    }
}

#[test]
fn carries_reach_16_bits() {
    // %r4 + %r5 carries out.
    let carry = [u64::from(u32::MAX), 1, 0, 0];
    let of = |step: &str, [a, b, c]: [u64; 3]| {
        let body = format!("mov.b16 %h1, {a}; mov.b16 %h2, {b}; mov.b16 %h3, {c}; add.cc.u32 %r1, %r4, %r5; {step}");
        once(&body, "h", carry)
    };
    assert_eq!(of("addc.u16 %h0, %h1, %h2;", [0xffff, 2, 0]), 2);
    assert_eq!(of("subc.s16 %h0, %h1, %h2;", [5, 7, 0]), 0xfffe);
    assert_eq!(of("madc.lo.u16 %h0, %h1, %h2, %h3;", [0x8001, 2, 7]), 10);
    assert_eq!(of("madc.hi.u16 %h0, %h1, %h2, %h3;", [0xfffe, 3, 7]), 10);
    assert_eq!(of("madc.hi.s16 %h0, %h1, %h2, %h3;", [0xfffe, 3, 7]), 7);
    let product = "add.cc.u32 %r1, %r4, %r4; madc.hi.sat.s32 %r0, %r5, %r6, %r7;";
    let most = i(i32::MAX);
    assert_eq!(once(product, "r", [1 << 31, 1 << 30, 16, most - 4]), most);
    assert_eq!(once(product, "r", [1 << 31, 1 << 30, 16, most - 6]), most - 1);
    assert_eq!(once(product, "r", [1, 1 << 30, i(-16), i(i32::MIN) + 1]), i(i32::MIN));
}

#[test]
fn registers_that_are_narrow_or_hold_fractions_are_taken() {
    assert_eq!(once("isspacep.shared %p0, %r4;", "p", [5, 0, 0, 0]), 0);
    assert_eq!(once("isspacep.global %p0, %r4;", "p", [5, 0, 0, 0]), 1);
    let policy = "createpolicy.fractional.L2::evict_first.b64 %d0, %f4;";
    let constant = "createpolicy.fractional.L2::evict_first.b64 %d0, 0.1;";
    assert_eq!(once(policy, "d", [f(0.1), 0, 0, 0]), once(constant, "d", [0; 4]));
    assert_eq!(once(policy, "d", [f(1.0), 0, 0, 0]), 0x12f0_0000_0000_0000);
    assert_eq!(once("rcp.rn.ftz.f64 %g0, %g4;", "g", [0.25_f64.to_bits(), 0, 0, 0]), 4.0_f64.to_bits());
    assert_eq!(once("pmevent.mask 0xffff; pmevent 15; mov.u32 %r0, %r4;", "r", [3, 0, 0, 0]), 3);
}

#[test]
fn four_bytes_are_packed_and_unpacked() {
    let reversed = ".reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %r4; mov.b32 %r0, {d, c, b, a};";
    assert_eq!(once(reversed, "r", [0x1122_3344, 0, 0, 0]), 0x4433_2211);
    let some = ".reg .b8 a, d; mov.b32 {a, _, _, d}, %r4; mov.b32 %r0, {d, 7, 8, a};";
    assert_eq!(once(some, "r", [0x1122_3344, 0, 0, 0]), 0x4408_0711);
}
