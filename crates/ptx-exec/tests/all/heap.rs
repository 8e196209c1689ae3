//! `malloc` and `free` of device code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::Device;
use katydid_ptx_exec::FaultKind;

/// Returns a kernel whose 32 threads allocate, write, read back and free; `body` may do something in between.
fn kernel(size: &str, body: &str) -> String {
    format!(
        ".extern .func (.param .b64 retval) malloc (.param .b64 size);
         .extern .func free (.param .b64 pointer);
         .visible .entry k(.param .u64 out) {{
            .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %d<8>;
            ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d1; mov.u64 %d3, {size};
            {{ .param .b64 param0; st.param.b64 [param0], %d3; .param .b64 retval0;
               call.uni (retval0), malloc, (param0); ld.param.b64 %d4, [retval0]; }}
            setp.eq.u64 %p1, %d4, 0; @%p1 bra NONE; st.u32 [%d4+8], %r1; bar.warp.sync -1; ld.u32 %r2, [%d4+8];
            add.u32 %r2, %r2, 1; st.global.u32 [%d2], %r2;
            {{ .param .b64 param0; st.param.b64 [param0], %d4; call.uni free, (param0); }}
            {body} NONE: ret; }}"
    )
}

#[test]
fn each_thread_gets_memory_of_its_own() {
    let device = Device::default();
    let output = device.put(&[0; 32]);
    device.run(&kernel("24", ""), [1, 1, 1], [32, 1, 1], &[output]).unwrap();
    assert_eq!(device.words(output, 32), (1..33).collect::<Vec<_>>());
}

#[test]
fn a_full_heap_gives_null_and_no_bytes_have_an_address() {
    let device = Device::default();
    let output = device.put(&[0; 32]);
    device.run(&kernel("8192", "trap;"), [1, 1, 1], [32, 1, 1], &[output]).unwrap();
    assert_eq!(device.words(output, 32), [0; 32]);
    let fault = device.run(&kernel("0", "trap;"), [1, 1, 1], [32, 1, 1], &[output]).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::IllegalAddress(_)), "8 bytes into one byte");
}

#[test]
fn freed_heap_memory_is_inaccessible() {
    let device = Device::default();
    let output = device.put(&[0; 32]);
    let fault = device.run(&kernel("24", "ld.u32 %r2, [%d4];"), [1, 1, 1], [32, 1, 1], &[output]).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::IllegalAddress(_)));
}
