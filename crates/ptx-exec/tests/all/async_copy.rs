//! Asynchronous copies and the barriers that track them, in one block.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::Device;
use katydid_ptx_exec::{FaultKind, LoadError};

/// Returns a kernel over 64 threads with an input and an output pointer, and 512 bytes of shared memory with two barriers.
fn kernel(body: &str) -> String {
    format!(
        ".shared .align 16 .b8 tile[512]; .shared .align 8 .b64 bar[2];
         .visible .entry k(.param .u64 in, .param .u64 out) {{
            .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<16>; .reg .b64 %d<16>;
            ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x;
            mad.wide.u32 %d3, %r1, 4, %d1; mad.wide.u32 %d4, %r1, 4, %d2;
            mov.u32 %r2, tile; mov.u32 %r3, bar; shl.b32 %r4, %r1, 2; add.u32 %r5, %r2, %r4;
            {body} ret; }}"
    )
}

/// Runs it on words 1000.. and returns 64 words of output.
fn run(body: &str) -> Result<Vec<u32>, FaultKind> {
    let device = Device::default();
    let (input, output) = (device.put(&(1000..1128).collect::<Vec<_>>()), device.put(&[0; 64]));
    let done = device.run(&kernel(body), [1, 1, 1], [64, 1, 1], &[input, output]);
    done.map(|()| device.words(output, 64)).map_err(|fault| fault.kind)
}

/// Returns why a body is refused.
fn refused(body: &str) -> LoadError {
    Device::default().load(&kernel(body)).expect_err("refused")
}

#[test]
fn copies_fill_what_the_source_does_not_give_with_zeroes() {
    let store = "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0; xor.b32 %r6, %r5, 4;
                 ld.shared.u32 %r7, [%r6]; st.global.u32 [%d4], %r7;";
    let words = run(&format!("cp.async.ca.shared.global [%r5], [%d3], 4; {store}")).unwrap();
    assert_eq!(words[..4], [1001, 1000, 1003, 1002]);
    let partly = "and.b32 %r8, %r1, 7; cp.async.ca.shared.global.L2::128B [%r5], [%d3], 4, %r8;";
    let words = run(&format!("{partly} {store}")).unwrap();
    assert_eq!(words[..6], [1001 & 0xff, 0, 1003 & 0xff_ffff, 1002 & 0xffff, 1005, 1004]);
    let ignored = "setp.gt.u32 %p1, %r1, 1; cp.async.ca.shared.global [%r5], [%d3], 4, %p1;";
    assert_eq!(run(&format!("{ignored} {store}")).unwrap()[..4], [1001, 1000, 0, 0]);
}

#[test]
fn a_copy_of_sixteen_bytes_moves_them_whole() {
    let body = "setp.lt.u32 %p1, %r1, 16; shl.b32 %r6, %r1, 4; add.u32 %r7, %r2, %r6; mad.wide.u32 %d5, %r1, 16, %d1;
                @%p1 cp.async.cg.shared.global [%r7+0], [%d5+16], 16, 16; cp.async.wait_all; bar.sync 0;
                ld.shared.u32 %r8, [%r5]; st.global.u32 [%d4], %r8;";
    assert_eq!(run(body).unwrap(), (1004..1068).collect::<Vec<_>>());
    let crooked = body.replace("[%d5+16], 16, 16", "[%d5+4], 16");
    assert!(matches!(run(&crooked), Err(FaultKind::MisalignedAddress(_))));
    let outside = body.replace("[%d5+16], 16, 16", "[%d5+16384], 16");
    assert!(matches!(run(&outside), Err(FaultKind::IllegalAddress(_))));
    let nothing = body.replace("[%d5+16], 16, 16", "[%d5+16384], 16, 0");
    assert_eq!(run(&nothing).unwrap(), [0; 64], "an address that is not read may be any");
}

#[test]
fn a_barrier_is_passed_when_all_have_arrived() {
    let body = "setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r3], 64; bar.sync 0;
                st.shared.u32 [%r5], %r1; mbarrier.arrive.shared.b64 %d5, [%r3];
                WAIT: mbarrier.test_wait.shared.b64 %p2, [%r3], %d5; @!%p2 bra WAIT;
                xor.b32 %r6, %r5, 252; ld.shared.u32 %r7, [%r6]; st.global.u32 [%d4], %r7;";
    assert_eq!(run(body).unwrap(), (0..64).rev().collect::<Vec<_>>());
    let parity =
        body.replace("test_wait.shared.b64 %p2, [%r3], %d5", "try_wait.parity.shared::cta.b64 %p2, [%r3], 0, 64");
    assert_eq!(run(&parity).unwrap(), (0..64).rev().collect::<Vec<_>>());
    let generic = "cvta.shared.u64 %d9, %d8;".to_owned();
    let generic = body.replace("bar.sync 0;", &format!("bar.sync 0; cvt.u64.u32 %d8, %r3; {generic}"));
    let generic = generic.replace(".shared.b64 %d5, [%r3]", ".release.cta.b64 %d5, [%d9], 1");
    let generic = generic.replace("test_wait.shared.b64 %p2, [%r3]", "test_wait.acquire.cta.b64 %p2, [%d9]");
    assert_eq!(run(&generic).unwrap(), (0..64).rev().collect::<Vec<_>>());
}

#[test]
fn threads_that_drop_out_of_an_mbarrier_are_not_awaited_again() {
    let body = "setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared::cta.b64 [%r3], 64; bar.sync 0;
                setp.lt.u32 %p2, %r1, 32; @%p2 mbarrier.arrive_drop.shared.b64 %d5, [%r3]; @%p2 bra OUT;
                mbarrier.arrive.shared.b64 %d5, [%r3];
                FIRST: mbarrier.try_wait.shared.b64 %p3, [%r3], %d5; @!%p3 bra FIRST;
                mbarrier.arrive.shared.b64 %d6, [%r3]; mbarrier.pending_count.b64 %r6, %d6;
                SECOND: mbarrier.try_wait.shared.b64 %p3, [%r3], %d6; @!%p3 bra SECOND;
                st.global.u32 [%d4], %r6; OUT:";
    let mut counts = run(body).unwrap();
    counts[32..].sort_unstable();
    assert_eq!(counts[..32], [0; 32]);
    assert_eq!(counts[32..], (1..33).collect::<Vec<_>>());
}

#[test]
fn a_barrier_waits_for_the_bytes_of_bulk_copies() {
    let body = "setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared.b64 [%r3+8], 1;
                fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;
                mbarrier.arrive.expect_tx.shared.b64 %d5, [%r3+8], 256; mov.u32 %r6, 128;
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1+64], %r6, [%r3+8];
                mbarrier.test_wait.shared.b64 %p2, [%r3+8], %d5; selp.u32 %r9, 1, 0, %p2;
                cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2+128], [%d1], %r6, [%r3+8];
                READY: bar.sync 0; WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 0; @!%p2 bra WAIT;
                ld.shared.u32 %r7, [%r5]; add.u32 %r7, %r7, %r9; st.global.u32 [%d4], %r7;";
    let body = body.replacen("setp.ne", "mov.u32 %r9, 0; setp.ne", 1);
    let expected: Vec<u32> = (1016..1048).chain(1000..1032).collect();
    assert_eq!(run(&body).unwrap(), expected);
}

#[test]
fn shared_memory_goes_back_in_bulk_and_is_added_in_bulk() {
    let body = |how: &str| {
        format!(
            "st.shared.u32 [%r5], %r1; st.global.u32 [%d4], 5; bar.sync 0; setp.eq.u32 %p1, %r1, 0; mov.u32 %r6, 240;
             @%p1 {how} [%d2], [%r2], %r6; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
        )
    };
    let words = run(&body("cp.async.bulk.global.shared::cta.bulk_group")).unwrap();
    assert_eq!((words[59], words[60]), (59, 5));
    let words = run(&body("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32")).unwrap();
    assert_eq!((words[59], words[60]), (64, 5));
    let crooked = body("cp.async.bulk.global.shared::cta.bulk_group").replace("240", "24");
    assert!(matches!(run(&crooked), Err(FaultKind::MisalignedAddress(24))));
}

#[test]
fn a_barrier_tracks_copies_of_its_threads() {
    let body = "setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r3], 64; bar.sync 0;
                cp.async.ca.shared.global [%r5], [%d3], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];
                WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
                xor.b32 %r6, %r5, 252; ld.shared.u32 %r7, [%r6]; st.global.u32 [%d4], %r7;";
    assert_eq!(run(body).unwrap(), (1000..1064).rev().collect::<Vec<_>>());
    // NVIDIA's headers use an address of 32 bits without its space.
    let bare = body.replace(".noinc.shared.b64", ".noinc.b64");
    assert_eq!(run(&bare).unwrap(), (1000..1064).rev().collect::<Vec<_>>());
    let counted = body.replace(".noinc.shared.b64 [%r3];", ".b64 [%r3]; mbarrier.arrive.shared.b64 %d5, [%r3];");
    assert_eq!(run(&counted).unwrap(), (1000..1064).rev().collect::<Vec<_>>());
}

#[test]
fn unsupported_async_copies_are_refused_by_name() {
    let tensor = "cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes
        [%r2], [%d1, {%r1, %r1, %r1}], [%r3], {%h1};";
    assert!(matches!(refused(tensor), LoadError::Unsupported { name, .. } if name.starts_with("cp.async.bulk.tensor")));
    assert!(matches!(refused("cp.async.cg.shared.global [%r5], [%d3], 8;"), LoadError::InvalidPtx { .. }));
    assert!(matches!(refused("mbarrier.arrive.global.b64 %d5, [%d1];"), LoadError::Unsupported { .. }));
    assert!(matches!(refused("fence.proxy.texture;"), LoadError::Unsupported { .. }));
    assert!(matches!(refused("fence;"), LoadError::InvalidPtx { .. }));
}
