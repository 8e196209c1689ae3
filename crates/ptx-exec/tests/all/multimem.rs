//! One address for the memory of several devices: loads reduce, and stores and reductions go to all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::Device;
use katydid_ptx_exec::FaultKind;

/// Three devices with some words each, and an address that stands for all of them.
fn devices(device: &Device, words: [&[u32]; 3]) -> (u64, [u64; 3]) {
    let replicas = words.map(|words| device.put(words));
    let multicast = device.allocate(words[0].len() as u64 * 4);
    device.multicast(multicast, words[0].len() as u64 * 4, &replicas);
    (multicast, replicas)
}

/// Runs `body` with the multicast address in `m` and returns the 8 words that it writes to `to`.
fn run(device: &Device, multicast: u64, body: &str) -> Vec<u32> {
    let out = device.allocate(32);
    let text = format!(
        ".visible .entry k(.param .u64 at, .param .u64 out) {{ .reg .u64 m, to; .reg .b32 a, b, c, d; .reg .b64 l;
         .reg .f32 f, g; .reg .b16 h, i;
         ld.param.u64 m, [at]; ld.param.u64 to, [out]; {body} ret; }}"
    );
    device.run(&text, [1; 3], [1; 3], &[multicast, out]).unwrap();
    device.words(out, 8)
}

#[test]
fn loads_reduce_the_values_of_all_devices() {
    let device = Device::default();
    let (multicast, _) = devices(&device, [&[1, 7, 0, 0], &[20, 5, 0, 0], &[300, 0xffff_fff0, 0, 1]]);
    let body = "multimem.ld_reduce.relaxed.sys.global.add.u32 a, [m]; st.global.u32 [to], a;
        multimem.ld_reduce.acquire.gpu.global.min.s32 a, [m+4]; st.global.u32 [to+4], a;
        multimem.ld_reduce.weak.global.max.u32 a, [m+4]; st.global.u32 [to+8], a;
        multimem.ld_reduce.xor.b32 a, [m]; st.global.u32 [to+12], a;
        multimem.ld_reduce.weak.global.add.u64 l, [m+8]; st.global.u64 [to+16], l;";
    let expected = [321, 0xffff_fff0, 0xffff_fff0, 1 ^ 20 ^ 300, 0, 1];
    assert_eq!(run(&device, multicast, body)[..6], expected);
}

#[test]
fn vectors_are_reduced_by_elements_and_sums_may_be_kept_wide() {
    let device = Device::default();
    let one = 1.0_f32.to_bits();
    let (multicast, _) = devices(&device, [&[one, 0x3c00_3c00], &[one, 0x1000_3c00], &[one, 0x1000_4000]]);
    let body = "multimem.ld_reduce.weak.global.add.v2.f32 {f, g}, [m]; st.global.f32 [to], f;
        multimem.ld_reduce.weak.global.add.f16x2 a, [m+4]; st.global.b32 [to+4], a;
        multimem.ld_reduce.weak.global.add.acc::f32.f16x2 a, [m+4]; st.global.b32 [to+8], a;
        multimem.ld_reduce.weak.global.max.v2.f16 {h, i}, [m+4]; mov.b32 a, {h, i}; st.global.b32 [to+12], a;";
    // 1 + 2^-11 + 2^-11: each addition rounds to 1 in f16, and both together make the next number.
    assert_eq!(run(&device, multicast, body)[..4], [3.0_f32.to_bits(), 0x3c00_4400, 0x3c01_4400, 0x3c00_4000]);
}

#[test]
fn stores_and_reductions_reach_every_device() {
    let device = Device::default();
    let (multicast, replicas) = devices(&device, [&[1; 4], &[2; 4], &[3; 4]]);
    let body = "multimem.red.relaxed.sys.global.add.u32 [m], 10; multimem.st.release.sys.global.b32 [m+4], 77;
        mov.b32 a, 0f3F800000; mov.b32 b, 0f40000000; mov.f32 f, 0f3F800000; mov.f32 g, 0f40000000;
        multimem.st.weak.global.v2.f32 [m+8], {f, g};";
    run(&device, multicast, body);
    let found = replicas.map(|address| device.words(address, 4));
    let (one, two) = (1.0_f32.to_bits(), 2.0_f32.to_bits());
    assert_eq!(found, [11, 12, 13].map(|sum| vec![sum, 77, one, two]));
}

#[test]
fn an_ordinary_address_stands_for_itself_and_alignment_is_that_of_the_vector() {
    let device = Device::default();
    let address = device.put(&[5, 6, 7, 8]);
    let body = "multimem.red.relaxed.gpu.global.add.u32 [m], 1; multimem.ld_reduce.weak.global.add.u32 a, [m];
        st.global.u32 [to], a;";
    assert_eq!(run(&device, address, body)[0], 6);
    let text = ".visible .entry k(.param .u64 at) { .reg .u64 m; .reg .f32 f, g; ld.param.u64 m, [at];
        multimem.ld_reduce.weak.global.add.v2.f32 {f, g}, [m+4]; ret; }";
    let fault = device.run(text, [1; 3], [1; 3], &[address]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::MisalignedAddress(address + 4));
}

#[test]
fn forms_that_ptxas_refuses_are_refused() {
    let device = Device::default();
    for form in [
        "multimem.ld_reduce.relaxed.global.add.u32 a, [m]",
        "multimem.ld_reduce.release.gpu.global.add.u32 a, [m]",
        "multimem.ld_reduce.weak.global.add.b32 a, [m]",
        "multimem.ld_reduce.weak.global.min.f32 a, [m]",
        "multimem.red.weak.global.add.u32 [m], a",
        "multimem.red.relaxed.gpu.global.min.f16x2 [m], a",
        "multimem.st.weak.global.v4.u32 [m], {a, a, a, a}",
    ] {
        let text = format!(".visible .entry k() {{ .reg .u64 m; .reg .b32 a; {form}; ret; }}");
        assert!(device.load(&text).is_err(), "{form}");
    }
}
