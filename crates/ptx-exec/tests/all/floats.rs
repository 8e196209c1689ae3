//! Floating-point instructions: roundings, modifiers, special values, conversions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{self, f, i, once, to_f32};

fn g(value: f64) -> u64 {
    value.to_bits()
}

#[test]
fn single_precision_rounds_as_written() {
    let third = [f(1.0), f(3.0), 0, 0];
    assert_eq!(to_f32(once("div.rn.f32 %f0, %f4, %f5;", "f", third)), 1.0 / 3.0);
    assert_eq!(to_f32(once("div.rm.f32 %f0, %f4, %f5;", "f", third)), 0.333_333_3);
    assert_eq!(to_f32(once("div.rp.f32 %f0, %f4, %f5;", "f", third)), 0.333_333_34);
    assert_eq!(to_f32(once("add.rp.f32 %f0, %f4, %f5;", "f", [f(1.0), f(1e-30), 0, 0])), 1.0_f32.next_up());
    assert_eq!(
        to_f32(once("fma.rm.f32 %f0, %f4, %f5, %f6;", "f", [f(1.0), f(1.0), f(-1e-30), 0])),
        1.0_f32.next_down()
    );
    assert_eq!(to_f32(once("mul.rz.f32 %f0, %f4, %f5;", "f", [f(3e38), f(3e38), 0, 0])), f32::MAX);
    assert_eq!(to_f32(once("sqrt.rn.f32 %f0, %f4;", "f", [f(2.0), 0, 0, 0])), 2.0_f32.sqrt());
    assert_eq!(to_f32(once("sub.f32 %f0, %f4, %f5;", "f", [f(1.5), f(0.25), 0, 0])), 1.25);
    assert_eq!(to_f32(once("mad.rn.f32 %f0, %f4, 0f40000000, %f5;", "f", [f(3.0), f(1.0), 0, 0])), 7.0);
}

#[test]
fn modifiers_flush_saturate_and_canonicalize() {
    assert_eq!(once("add.ftz.f32 %f0, %f4, %f5;", "f", [1, 0, 0, 0]), 0);
    assert_eq!(once("add.f32 %f0, %f4, %f5;", "f", [1, 0, 0, 0]), 1);
    assert_eq!(to_f32(once("mul.sat.f32 %f0, %f4, %f5;", "f", [f(3.0), f(4.0), 0, 0])), 1.0);
    assert_eq!(once("sub.f32 %f0, %f4, %f4;", "f", [f(f32::INFINITY), 0, 0, 0]), 0x7fff_ffff);
    assert_eq!(to_f32(once("cvt.sat.f32.f32 %f0, %f4;", "f", [f(-5.0), 0, 0, 0])), 0.0);
    assert_eq!(to_f32(once("min.f32 %f0, %f4, %f5;", "f", [f(f32::NAN), f(2.0), 0, 0])), 2.0);
    assert_eq!(once("max.NaN.f32 %f0, %f4, %f5;", "f", [f(f32::NAN), f(2.0), 0, 0]), 0x7fff_ffff);
    assert_eq!(to_f32(once("copysign.f32 %f0, %f4, %f5;", "f", [f(-1.0), f(3.0), 0, 0])), -3.0);
    assert_eq!(once("neg.f32 %f0, %f4;", "f", [f(0.0), 0, 0, 0]), 0x8000_0000);
    assert_eq!(once("testp.infinite.f32 %p0, %f4;", "p", [f(f32::INFINITY), 0, 0, 0]), 1);
    assert_eq!(once("setp.neu.f32 %p0, %f4, %f4;", "p", [f(f32::NAN), 0, 0, 0]), 1);
    assert_eq!(once("setp.ge.f64 %p0, %g4, %g5;", "p", [g(1.0), g(f64::NAN), 0, 0]), 0);
}

#[test]
fn double_precision_rounds_as_written() {
    let one_and_tiny = [g(1.0), g(1e-300), 0, 0];
    assert_eq!(once("add.rn.f64 %g0, %g4, %g5;", "g", one_and_tiny), g(1.0));
    assert_eq!(once("add.rp.f64 %g0, %g4, %g5;", "g", one_and_tiny), g(1.0_f64.next_up()));
    assert_eq!(once("fma.rn.f64 %g0, %g4, %g5, %g6;", "g", [g(3.0), g(4.0), g(5.0), 0]), g(17.0));
    assert_eq!(once("div.rz.f64 %g0, %g4, %g5;", "g", [g(-1.0), g(3.0), 0, 0]), g(-(1.0_f64 / 3.0)));
    assert_eq!(once("rcp.rn.f64 %g0, %g4;", "g", [g(4.0), 0, 0, 0]), g(0.25));
    assert_eq!(once("sqrt.rn.f64 %g0, %g4;", "g", [g(2.0), 0, 0, 0]), g(2.0_f64.sqrt()));
    assert_eq!(once("max.f64 %g0, %g4, %g5;", "g", [g(-0.0), g(0.0), 0, 0]), 0);
    assert_eq!(once("rcp.approx.ftz.f64 %g0, %g4;", "g", [g(8.0), 0, 0, 0]), g(0.125));
    assert_eq!(once("abs.f64 %g0, %g4;", "g", [g(-2.0), 0, 0, 0]), g(2.0));
}

#[test]
fn approximations_are_close() {
    let near = |body: &str, x: f32, exact: f64| {
        let value = f64::from(to_f32(once(body, "f", [f(x), 0, 0, 0])));
        assert!((value - exact).abs() <= 1e-6 * exact.abs().max(0.1), "{body} of {x}: {value}, not {exact}");
    };
    near("ex2.approx.ftz.f32 %f0, %f4;", 3.7, 3.7_f64.exp2());
    near("lg2.approx.f32 %f0, %f4;", 3.7, 3.7_f64.log2());
    near("sin.approx.f32 %f0, %f4;", 2.5, 2.5_f64.sin());
    near("cos.approx.ftz.f32 %f0, %f4;", 2.5, 2.5_f64.cos());
    near("rsqrt.approx.f32 %f0, %f4;", 2.5, 1.0 / 2.5_f64.sqrt());
    near("rcp.approx.ftz.f32 %f0, %f4;", 2.5, 0.4);
    near("sqrt.approx.f32 %f0, %f4;", 2.5, 2.5_f64.sqrt());
    near("tanh.approx.f32 %f0, %f4;", 0.7, 0.7_f64.tanh());
    near("div.approx.f32 %f0, 0f40400000, %f4;", 2.0, 1.5);
    near("div.full.f32 %f0, 0f40400000, %f4;", 2.0, 1.5);
}

#[test]
fn conversions_to_integers_round_and_saturate() {
    assert_eq!(once("cvt.rzi.s32.f32 %r0, %f4;", "r", [f(-2.7), 0, 0, 0]), i(-2));
    assert_eq!(once("cvt.rni.s32.f32 %r0, %f4;", "r", [f(2.5), 0, 0, 0]), 2);
    assert_eq!(once("cvt.rpi.u32.f32 %r0, %f4;", "r", [f(-7.0), 0, 0, 0]), 0);
    assert_eq!(once("cvt.rmi.s64.f64 %d0, %g4;", "d", [g(-0.5), 0, 0, 0]), u64::MAX);
    assert_eq!(once("cvt.rzi.s32.f32 %r0, %f4;", "r", [f(f32::NAN), 0, 0, 0]), 0);
    assert_eq!(once("cvt.rzi.s32.f64 %r0, %g4;", "r", [g(f64::NAN), 0, 0, 0]), 1 << 31);
    assert_eq!(once("cvt.rzi.u16.f32 %h0, %f4;", "h", [f(1e9), 0, 0, 0]), 0xffff);
    assert_eq!(once("cvt.rzi.s8.f32 %r0, %f4;", "r", [f(-200.0), 0, 0, 0]), i(-128));
    assert_eq!(to_f32(once("cvt.rmi.f32.f32 %f0, %f4;", "f", [f(-1.5), 0, 0, 0])), -2.0);
}

#[test]
fn conversions_between_integers_extend_by_the_source() {
    assert_eq!(once("cvt.s64.s32 %d0, %r4;", "d", [i(-1), 0, 0, 0]), u64::MAX);
    assert_eq!(once("cvt.u64.u32 %d0, %r4;", "d", [u64::MAX, 0, 0, 0]), u64::from(u32::MAX));
    assert_eq!(once("cvt.s32.s8 %r0, %r4;", "r", [0x180, 0, 0, 0]), i(-128));
    assert_eq!(once("cvt.u32.u16 %r0, %h4;", "r", [0xffff, 0, 0, 0]), 0xffff);
    assert_eq!(once("cvt.s16.s32 %h0, %r4;", "h", [0x1_8000, 0, 0, 0]), 0x8000);
    assert_eq!(once("cvt.sat.u8.s32 %r0, %r4;", "r", [i(300), 0, 0, 0]), 255);
    assert_eq!(once("cvt.sat.s32.s64 %r0, %d4;", "r", [i64::MIN.cast_unsigned(), 0, 0, 0]), 1 << 31);
    assert_eq!(once("cvt.u16.u64 %h0, %d4;", "h", [0x1234_5678, 0, 0, 0]), 0x5678);
    assert_eq!(once("cvt.s8.u64 %d0, %d4;", "d", [0x1280, 0, 0, 0]), (-128_i64).cast_unsigned());
}

#[test]
fn conversions_between_floats_and_from_integers() {
    assert_eq!(to_f32(once("cvt.rn.f32.s32 %f0, %r4;", "f", [i(-16_777_217), 0, 0, 0])), -16_777_216.0);
    assert_eq!(to_f32(once("cvt.rm.f32.s32 %f0, %r4;", "f", [i(-16_777_217), 0, 0, 0])), -16_777_218.0);
    assert_eq!(once("cvt.rn.f64.u64 %g0, %d4;", "g", [u64::MAX, 0, 0, 0]), g(u64::MAX as f64));
    assert_eq!(to_f32(once("cvt.rz.f32.f64 %f0, %g4;", "f", [g(0.1), 0, 0, 0])), 0.099_999_994);
    assert_eq!(once("cvt.f64.f32 %g0, %f4;", "g", [f(0.5), 0, 0, 0]), g(0.5));
    assert_eq!(once("cvt.rn.f16.f32 %h0, %f4;", "h", [f(1.5), 0, 0, 0]), 0x3e00);
    assert_eq!(to_f32(once("cvt.f32.f16 %f0, %h4;", "f", [0xc000, 0, 0, 0])), -2.0);
    assert_eq!(once("cvt.rn.bf16x2.f32 %r0, %f4, %f5;", "r", [f(1.0), f(2.0), 0, 0]), 0x3f80_4000);
    assert_eq!(once("cvt.rn.f16.s32 %h0, %r4;", "h", [i(-3), 0, 0, 0]), 0xc200);
    assert_eq!(once("cvt.rzi.s32.f16 %r0, %h4;", "r", [0xc200, 0, 0, 0]), i(-3));
    assert_eq!(once("cvt.rni.f16.f16 %h0, %h4;", "h", [0x4100, 0, 0, 0]), 0x4000);
    assert_eq!(once("cvt.rn.f16.f64 %h0, %g4;", "h", [g(1.0), 0, 0, 0]), 0x3c00);
}

#[test]
fn conversions_between_bf16_and_bytes_have_registers_of_bytes() {
    let to = |ty: &str, bits: u64| {
        let body = format!("{{ .reg .b8 b; cvt.rzi.{ty}.bf16 b, %h4; mov.b16 %h0, {{b, 0}}; }}");
        once(&body, "h", [bits, 0, 0, 0]) & 0xff
    };
    // 1.5, -1.5, 300 and -200.
    assert_eq!([0x3fc0, 0xbfc0, 0x4396, 0xc348].map(|bits| to("s8", bits)), [1, 0xff, 127, 0x80]);
    assert_eq!([0x3fc0, 0xbfc0, 0x4396, 0xc348].map(|bits| to("u8", bits)), [1, 0, 255, 0]);
    let from = "{ .reg .b8 b, c; mov.b16 {b, c}, %h4; cvt.rn.bf16.s8 %h0, b; }";
    assert_eq!(once(from, "h", [0x01fe, 0, 0, 0]), 0xc000);
    let wide = ".visible .entry k() { .reg .b16 a, b; cvt.rzi.s8.bf16 a, b; ret; }";
    assert!(common::Device::default().load(wide).is_err());
    assert_eq!(once("cvt.rzi.s32.f32 %d0, %f4;", "d", [f(-3.5), 0, 0, 0]), (-3_i64).cast_unsigned());
}

#[test]
fn half_precision_arithmetic() {
    assert_eq!(once("add.f16 %h0, %h4, %h5;", "h", [0x3c00, 0x4000, 0, 0]), 0x4200);
    assert_eq!(once("fma.rn.f16x2 %r0, %r4, %r4, %r4;", "r", [0x4000_3c00, 0, 0, 0]), 0x4600_4000);
    assert_eq!(once("mul.bf16 %h0, %h4, %h5;", "h", [0x4000, 0x4040, 0, 0]), 0x40c0);
    assert_eq!(once("neg.f16x2 %r0, %r4;", "r", [0x3c00_bc00, 0, 0, 0]), 0xbc00_3c00);
    assert_eq!(once("max.f16 %h0, %h4, %h5;", "h", [0x7e00, 0x3c00, 0, 0]), 0x3c00);
    assert_eq!(once("setp.lt.f16 %p0, %h4, %h5;", "p", [0xbc00, 0x3c00, 0, 0]), 1);
    assert_eq!(once("ex2.approx.f16 %h0, %h4;", "h", [0x4000, 0, 0, 0]), 0x4400);
}
