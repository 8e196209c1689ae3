//! Products and sums without a rounding modifier are fused where ptxas fuses them, and nowhere else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, f};
use std::fmt::Write;

/// Inputs of `data/contraction.txt`.
const INPUTS: [f64; 5] = [1.1, -0.7, 1.3, 2.9, -3.7];

/// Returns one line of the file as a kernel, with its results.
struct Recorded<'a> {
    ty: &'a str,
    body: String,
    results: Vec<(&'a str, u64)>,
}

fn recorded(line: &str) -> Recorded<'_> {
    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
    let [ty, body, results] = parts.as_slice() else { panic!("{line}") };
    let body = body.split(';').map(str::trim).filter(|one| !one.is_empty());
    let body = body.map(|one| one.split_once(' ').unwrap()).fold(String::new(), |mut all, (opcode, rest)| {
        let _ = writeln!(all, "{opcode}.{ty} {rest};");
        all
    });
    let results = results.split(' ').map(|one| one.split_once('=').unwrap());
    let results = results.map(|(name, bits)| (name, u64::from_str_radix(bits, 16).unwrap())).collect();
    Recorded { ty, body, results }
}

#[test]
fn random_programs_come_to_what_ptxas_makes_of_them() {
    let data = include_str!("../data/contraction.txt");
    let lines: Vec<&str> = data.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(lines.len() > 150, "{} programs", lines.len());
    for line in lines {
        let Recorded { ty, body, results } = recorded(line);
        let mut text = format!(
            ".visible .entry k(.param .u64 out) {{ .reg .u64 to; .reg .{ty} a, b, c, d, e, x<16>;\n\
             ld.param.u64 to, [out];\n"
        );
        for (name, value) in "abcde".chars().zip(INPUTS) {
            let bits = if ty == "f64" {
                format!("0d{:016X}", value.to_bits())
            } else {
                format!("0f{:08X}", (value as f32).to_bits())
            };
            // Goes through memory, so that no operand is a constant.
            let _ =
                writeln!(text, "mov.{ty} {name}, {bits};\nst.global.{ty} [to], {name};\nld.global.{ty} {name}, [to];");
        }
        text += &body;
        for (index, (name, _)) in results.iter().enumerate() {
            let _ = writeln!(text, "st.global.{ty} [to+{}], {name};", 8 * index);
        }
        let device = Device::default();
        let out = device.allocate(8 * results.len() as u64);
        device.run(&(text + "ret; }"), [1; 3], [1; 3], &[out]).unwrap();
        let mask = if ty == "f64" { u64::MAX } else { 0xffff_ffff };
        let found: Vec<u64> = device.doubles(out, results.len()).into_iter().map(|bits| bits & mask).collect();
        let expected: Vec<u64> = results.iter().map(|(_, bits)| *bits).collect();
        assert_eq!(found, expected, "{line}");
    }
}

/// `1 + 2^-12`, whose square is `1 + 2^-11 + 2^-24`: rounding the square loses the last bit.
const NEAR_ONE: f32 = 1.0 + 1.0 / 4096.0;
/// The square, rounded.
const SQUARE: f32 = 1.0 + 1.0 / 2048.0;
/// Rounding error of the square.
const REST: f32 = 1.0 / 16_777_216.0;

/// Runs `body`, which puts a value into `x` out of `a = NEAR_ONE`, `c = SQUARE` and a true `p`.
fn value(body: &str) -> u64 {
    let device = Device::default();
    let input = device.put(&[NEAR_ONE.to_bits(), SQUARE.to_bits(), 1, 0]);
    let text = format!(
        ".visible .entry k(.param .u64 in) {{ .reg .u64 at; .reg .f32 a, c, x, t, u, v; .reg .u32 w; .reg .pred p;
         ld.param.u64 at, [in]; ld.global.f32 a, [at]; ld.global.f32 c, [at+4]; ld.global.u32 w, [at+8];
         setp.ne.u32 p, w, 0;\n{body}\nst.global.f32 [at+12], x; ret; }}"
    );
    device.run(&text, [1; 3], [1; 3], &[input]).unwrap();
    u64::from(device.words(input + 12, 1)[0])
}

#[test]
fn differences_are_fused_with_the_right_signs() {
    assert_eq!(value("mul.f32 t, a, a; sub.f32 x, t, c;"), f(REST));
    assert_eq!(value("mul.f32 t, a, a; sub.f32 x, c, t;"), f(-REST));
    assert_eq!(value("mul.f32 t, a, a; neg.f32 u, t; add.f32 x, u, c;"), f(-REST));
    assert_eq!(value("neg.f32 u, c; mul.f32 t, a, a; mov.f32 v, t; add.f32 x, v, u;"), f(REST));
    assert_eq!(value("mul.ftz.f32 t, a, a; sub.ftz.sat.f32 x, t, c;"), f(REST));
}

#[test]
fn a_rounding_modifier_forbids_it() {
    assert_eq!(value("mul.rn.f32 t, a, a; sub.f32 x, t, c;"), 0);
    assert_eq!(value("mul.f32 t, a, a; sub.rn.f32 x, t, c;"), 0);
    assert_eq!(value("mul.ftz.f32 t, a, a; sub.f32 x, t, c;"), 0);
    assert_eq!(value("mul.sat.f32 t, a, a; sub.f32 x, t, 0f3F800000;"), 0);
}

#[test]
fn a_product_that_is_wanted_itself_stays_one() {
    assert_eq!(value("mul.f32 t, a, a; sub.f32 x, t, c; st.global.f32 [at], t;"), 0);
    assert_eq!(value("mul.f32 t, a, a; sub.f32 x, t, c; sub.f32 u, c, t; add.rn.f32 x, x, u;"), 0);
    assert_eq!(value("mul.f32 t, a, a; @p mov.f32 t, c; sub.f32 x, t, c;"), 0);
    assert_eq!(value("mov.f32 t, c; @p mul.f32 t, a, a; sub.f32 x, t, c;"), 0);
    assert_eq!(value("mov.f32 t, c; @p bra L; mul.f32 t, a, a;\nL: sub.f32 x, t, c;"), 0);
}

#[test]
fn products_are_fused_over_branches_and_with_the_factors_they_had() {
    assert_eq!(value("mov.f32 x, c; mul.f32 t, a, a; @!p bra L; sub.f32 x, t, c;\nL:"), f(REST));
    assert_eq!(value("mul.f32 t, a, a; mov.f32 a, c; sub.f32 x, t, c;"), f(REST));
    assert_eq!(value("mul.f32 a, a, a; sub.f32 x, a, c;"), f(REST));
    assert_eq!(value("mov.f32 x, c; mul.f32 t, a, a; mov.f32 a, c; @p sub.f32 x, t, c;"), f(REST));
    let twice = "mov.u32 w, 0; neg.f32 x, c; mul.f32 t, a, a;\nL: add.f32 x, x, t; mov.f32 a, c; add.u32 w, w, 1;
                 setp.lt.u32 p, w, 2; @p bra L; sub.rn.f32 x, x, c;";
    assert_eq!(value(twice), f(2.0 * REST));
    let reused = "mul.f32 t, a, a; sub.f32 u, t, c; mul.f32 t, a, c; sub.rn.f32 v, t, t; add.rn.f32 x, u, v;";
    assert_eq!(value(reused), f(REST));
}

/// Runs one `mul` and one `op` of 16-bit floats in both halves of a register where the type is a pair.
fn half(ty: &str, op: &str, [a, c]: [u32; 2]) -> u32 {
    let pair = ty.ends_with("x2");
    let register = if pair { "b32" } else { "b16" };
    let both = |bits: u32| if pair { bits << 16 | bits } else { bits };
    let device = Device::default();
    let input = device.put(&[both(a), both(c), 0]);
    let text = format!(
        ".visible .entry k(.param .u64 in) {{ .reg .u64 at; .reg .{register} a, c, x, t;
         ld.param.u64 at, [in]; ld.global.{register} a, [at]; ld.global.{register} c, [at+4];
         mul.{ty} t, a, a; {op}; st.global.{register} [at+8], x; ret; }}"
    );
    device.run(&text, [1; 3], [1; 3], &[input]).unwrap();
    let found = device.words(input + 8, 1)[0];
    assert!(!pair || found >> 16 == found & 0xffff, "{found:#x}");
    found & 0xffff
}

#[test]
fn halves_are_fused_too() {
    // (1 + 2^-10)^2 = 1 + 2^-9 + 2^-20 of f16, and (1 + 2^-7)^2 = 1 + 2^-6 + 2^-14 of bf16.
    for (ty, [a, square], rest) in [("f16", [0x3c01, 0x3c02], 0x0010), ("bf16", [0x3f81, 0x3f82], 0x3880)] {
        for ty in [ty.to_owned(), format!("{ty}x2")] {
            assert_eq!(half(&ty, &format!("sub.{ty} x, t, c"), [a, square]), rest, "{ty}");
            assert_eq!(half(&ty, &format!("sub.{ty} x, c, t"), [a, square]), rest | 0x8000, "{ty}");
            assert_eq!(half(&ty, &format!("sub.rn.{ty} x, t, c"), [a, square]), 0, "{ty}");
        }
    }
    assert_eq!(half("f16", "sub.sat.f16 x, t, c", [0x3c01, 0x3c02]), 0x0010);
}
