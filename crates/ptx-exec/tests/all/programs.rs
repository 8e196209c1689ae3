//! Whole programs as a compiler writes them, several linked texts, and texts that are refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, Globals, HEADER, TARGET, launch};
use katydid_ptx_exec::{LoadError, Program, Switch, TargetDevice, run};

/// `C = A * B` for square matrices, with 16 by 16 tiles in shared memory and two columns for each thread.
const MATMUL: &str = "
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pn)
{
    .shared .align 4 .b8 ta[1024];
    .shared .align 4 .b8 tb[1024];
    .reg .pred %p<3>; .reg .b32 %r<30>; .reg .f32 %f<9>; .reg .b64 %d<20>;
    ld.param.u64 %d1, [pa]; ld.param.u64 %d2, [pb]; ld.param.u64 %d3, [pc]; ld.param.u32 %r1, [pn];
    mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y;
    mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y;
    shl.b32 %r6, %r4, 4; add.u32 %r6, %r6, %r2;
    shl.b32 %r7, %r5, 4; add.u32 %r7, %r7, %r3;
    shl.b32 %r8, %r3, 6; shl.b32 %r9, %r2, 2; add.u32 %r10, %r8, %r9;
    mov.u32 %r11, ta; add.u32 %r12, %r11, %r10; add.u32 %r13, %r11, %r8;
    mov.u32 %r14, tb; add.u32 %r15, %r14, %r10; add.u32 %r16, %r14, %r9;
    mov.f32 %f1, 0f00000000; mov.u32 %r17, 0;
TILE:
    add.u32 %r18, %r17, %r2; mad.lo.u32 %r18, %r7, %r1, %r18; mad.wide.u32 %d4, %r18, 4, %d1;
    ld.global.nc.f32 %f2, [%d4]; st.shared.f32 [%r12], %f2;
    add.u32 %r19, %r17, %r3; mad.lo.u32 %r19, %r19, %r1, %r6; mad.wide.u32 %d5, %r19, 4, %d2;
    ld.global.nc.f32 %f3, [%d5]; st.shared.f32 [%r15], %f3;
    bar.sync 0;
    mov.u32 %r20, 0; mov.u32 %r21, %r13; mov.u32 %r22, %r16;
STEP:
    ld.shared.f32 %f4, [%r21]; ld.shared.f32 %f5, [%r22]; fma.rn.f32 %f1, %f4, %f5, %f1;
    add.u32 %r21, %r21, 4; add.u32 %r22, %r22, 64; add.u32 %r20, %r20, 1;
    setp.lt.u32 %p1, %r20, 16; @%p1 bra STEP;
    bar.sync 0;
    add.u32 %r17, %r17, 16; setp.lt.u32 %p2, %r17, %r1; @%p2 bra TILE;
    mad.lo.u32 %r23, %r7, %r1, %r6; mad.wide.u32 %d6, %r23, 4, %d3; st.global.f32 [%d6], %f1;
    ret;
}";

#[test]
fn a_tiled_matrix_product_is_exact_on_small_numbers() {
    const N: usize = 48;
    let device = Device::default();
    let a: Vec<f32> = (0..N * N).map(|at| (at * 7 % 13) as f32 - 6.0).collect();
    let b: Vec<f32> = (0..N * N).map(|at| (at * 5 % 11) as f32 - 5.0).collect();
    let put = |matrix: &[f32]| device.put(&matrix.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
    let (pa, pb, pc) = (put(&a), put(&b), device.allocate((N * N * 4) as u64));
    device.run(MATMUL, [3, 3, 1], [16, 16, 1], &[pa, pb, pc, N as u64]).unwrap();
    let c = device.words(pc, N * N);
    for (at, value) in c.iter().enumerate() {
        let exact: f32 = (0..N).map(|k| a[at / N * N + k] * b[k * N + at % N]).sum();
        assert_eq!(f32::from_bits(*value), exact);
    }
}

#[test]
fn texts_that_refer_to_each_other_are_linked() {
    let device = Device::default();
    let main = format!(
        "{HEADER}.extern .global .u32 base; .extern .func (.param .b32 r) scale(.param .b32 x);
        .visible .entry k(.param .u64 out) {{ .reg .b32 %r<4>; .reg .b64 %d<3>; ld.param.u64 %d1, [out]; ld.global.u32 %r1, [base];
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), scale, (a); ld.param.b32 %r2, [b]; }} st.global.u32 [%d1], %r2; ret; }}"
    );
    let library = format!(
        "{HEADER}.visible .global .u32 base = 14; .global .u32 own = 3;
        .visible .func (.param .b32 r) scale(.param .b32 x) {{ .reg .b32 %r<4>; ld.param.u32 %r1, [x]; ld.global.u32 %r2, [own]; mul.lo.u32 %r1, %r1, %r2; st.param.b32 [r], %r1; ret; }}"
    );
    let program = Program::load(&[&main, &library], &mut Globals(&device), TARGET).unwrap();
    let output = device.put(&[0]);
    run(&launch(&program, [1, 1, 1], [1, 1, 1], &[output]), &device, 1, &Switch::new()).unwrap();
    assert_eq!(device.words(output, 1), [42]);
    let (address, size) = program.global("base").unwrap();
    assert_eq!((device.words(address, 1), size), (vec![14], 4));
    assert_eq!(program.global_names(), ["base", "own"]);
}

#[test]
fn a_kernel_describes_itself() {
    let device = Device::default();
    let program = device
        .load(
            ".const .b8 table[40]; .extern .shared .align 64 .b8 dynamic[];
            .visible .entry k(.param .u32 a, .param .u64 b, .param .align 4 .b8 c[6]) .maxntid 64, 2 {
                .shared .align 8 .b8 s[24]; .local .align 4 .b8 depot[20]; .reg .b32 %r<3>;
                mov.u32 %r1, dynamic; st.shared.u32 [%r1], %r1; st.local.u32 [depot], %r1; ret; }",
        )
        .unwrap();
    let kernel = program.kernel("k").unwrap();
    let params: Vec<(u32, u32)> = kernel.params.iter().map(|param| (param.offset, param.size)).collect();
    assert_eq!((params, kernel.param_bytes), (vec![(0, 4), (8, 8), (16, 6)], 22));
    assert_eq!((kernel.static_shared, kernel.local_bytes, kernel.const_bytes), (24, 32, 40));
    assert_eq!((kernel.max_threads, kernel.required_block), (128, None));
    assert_eq!((kernel.ptx_version, kernel.target, kernel.registers), (90, 90, 16));
    assert!(program.kernel("missing").is_none() && program.kernels().len() == 1);
}

#[test]
fn shared_variables_of_functions_lie_at_one_place_in_every_kernel() {
    let device = Device::default();
    let text = ".shared .u32 common[4]; .func touch() { .reg .b32 %r<3>; mov.u32 %r1, common; st.shared.u32 [%r1], 7; ret; }
        .visible .entry k(.param .u64 out) { .shared .u32 own[2]; .reg .b32 %r<4>; .reg .b64 %d<2>; mov.u32 %r1, own; st.shared.u32 [%r1], 5; call touch, ();
        ld.shared.u32 %r2, [common]; ld.shared.u32 %r3, [own]; mad.lo.u32 %r2, %r2, 10, %r3; ld.param.u64 %d1, [out]; st.global.u32 [%d1], %r2; ret; }
        .visible .entry inlined() { .reg .b32 %r<2>; mov.u32 %r1, common; st.shared.u32 [%r1+12], 7; ret; }
        .visible .entry lone() { .shared .u32 own[2]; ret; }";
    let output = device.put(&[0]);
    device.run(text, [1, 1, 1], [1, 1, 1], &[output]).unwrap();
    assert_eq!(device.words(output, 1), [75]);
    let program = device.load(text).unwrap();
    let bytes = |name: &str| program.kernel(name).unwrap().static_shared;
    assert_eq!((bytes("k"), bytes("inlined"), bytes("lone")), (24, 16, 8));
}

#[test]
fn unsupported_instructions_are_refused_by_name_and_line() {
    let device = Device::default();
    let refused = |body: &str| {
        device
            .load(&format!(
                ".visible .entry k() {{ .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>;\n{body}\nret; }}"
            ))
            .unwrap_err()
    };
    for (body, name) in [
        ("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned"),
        (
            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%d1, {%r1, %r2, %r3, %r4, %r5}];",
            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4",
        ),
        ("tex.2dms.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%d1, {%r1, %r5, %r6, %r6}];", "tex.2dms.v4.f32.s32"),
        ("add.weird.u32 %r1, %r2, %r3;", "add.weird.u32"),
        ("mov.u32 %r1, %pm8;", "special register %pm8"),
    ] {
        assert_eq!(refused(body), LoadError::Unsupported { line: 5, name: name.to_owned() });
    }
    let unknown = device.load(".extern .func (.param .b64 r) cudaUnheardOf(.param .b64 n); .visible .entry k() { .param .b64 a; .param .b64 b; call (b), cudaUnheardOf, (a); ret; }");
    assert!(unknown.unwrap_err().to_string().contains("cudaUnheardOf"));
}

#[test]
fn texts_that_are_wrong_or_for_another_device_are_refused() {
    let device = Device::default();
    let error = |text: &str| device.load(text).unwrap_err();
    assert!(matches!(error(".entry k() { add.u32 %r1, %r2; }"), LoadError::InvalidPtx { line: 4, .. }));
    assert!(matches!(error(".entry k() { .reg .b64 %d; add.u32 %d, %d, %d; }"), LoadError::InvalidPtx { .. }));
    assert!(matches!(error(".entry k() { bra NOWHERE; }"), LoadError::InvalidPtx { .. }));
    assert!(matches!(error(".entry k() { call missing, (); }"), LoadError::UnresolvedSymbol { .. }));
    assert!(matches!(
        error(".extern .global .u32 x; .entry k() { .reg .b64 %d; mov.u64 %d, x; }"),
        LoadError::UnresolvedSymbol { .. }
    ));
    assert!(matches!(error(".global .b8 x[900000];"), LoadError::OutOfMemory { .. }));
    let newer = ".version 9.0 .target sm_100 .address_size 64";
    let refused = Program::load(&[newer], &mut Globals(&device), TargetDevice { major: 9, minor: 0 });
    assert_eq!(refused.unwrap_err(), LoadError::NoKernelImage { wanted: 100, device: 90 });
}

#[test]
fn damaged_programs_never_make_the_loader_panic() {
    let texts = [MATMUL, include_str!("../golden/loop.ptx"), include_str!("../golden/call.ptx")];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for text in texts {
        let words: Vec<&str> = text.split_inclusive([' ', ',', ';', '.', '[', ']', '\n']).collect();
        for _ in 0..1500 {
            let mut changed = words.clone();
            for _ in 0..=random(3) {
                let at = random(changed.len());
                changed[at] = words[random(words.len())];
            }
            let text = changed.concat();
            let text = if text.contains(".version") { text } else { format!("{HEADER}{text}") };
            let _ = Program::load(&[&text], &mut Globals(&Device::new(1 << 14)), TARGET);
        }
    }
}

#[test]
fn a_kernel_never_needs_more_registers_than_its_largest_block_leaves_it() {
    let device = Device::default();
    // 300 values that are all alive at once.
    let read: String = (0..300).map(|n| format!("ld.volatile.global.u32 %r{n}, [%d1+{}]; ", 4 * n)).collect();
    let written: String = (0..300).map(|n| format!("st.volatile.global.u32 [%d1+{}], %r{n}; ", 4 * n)).collect();
    let registers = |directive: &str| {
        let text = format!(
            ".visible .entry k(.param .u64 out) {directive} {{ .reg .b32 %r<300>; .reg .b64 %d<2>; ld.param.u64 %d1, [out]; {read}{written} ret; }}"
        );
        device.load(&text).unwrap().kernel("k").unwrap().registers
    };
    assert_eq!(
        [registers(""), registers(".maxntid 256"), registers(".maxntid 1024"), registers(".reqntid 400")],
        [255, 255, 64, 128]
    );
}
