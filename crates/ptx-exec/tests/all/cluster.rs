//! Clusters: blocks that wait for each other and reach each other's shared memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, launch};
use katydid_ptx_exec::{FaultKind, Grid, Progress, RunLimits, Switch, run};

/// Returns a kernel over 32 threads a block; `%r9` is the rank in the cluster, `%r8` the number of the thread in the grid.
fn kernel(directives: &str, body: &str) -> String {
    format!(
        ".shared .align 16 .b8 tile[256]; .shared .align 8 .b64 bar;
         .visible .entry k(.param .u64 out) {directives} {{
            .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<16>;
            ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r8, %r2, 32, %r1;
            mad.wide.u32 %d2, %r8, 4, %d1; mov.u32 %r9, %cluster_ctarank; mov.u32 %r10, %cluster_nctarank;
            mov.u32 %r3, tile; shl.b32 %r4, %r1, 2; add.u32 %r5, %r3, %r4;
            {body} ret; }}"
    )
}

const SYNC: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";

/// Runs it in clusters of `size` over `blocks` blocks; returns a word for each thread.
fn words(text: &str, blocks: u32, size: u32) -> Result<Vec<u32>, FaultKind> {
    let device = Device::default();
    let output = device.put(&vec![0; blocks as usize * 32]);
    let program = device.load(text).unwrap_or_else(|error| panic!("{error}"));
    let mut launch = launch(&program, [blocks, 1, 1], [32, 1, 1], &[output]);
    launch.cluster = (size > 0).then_some([size, 1, 1]);
    run(&launch, &device, 2, &Switch::new()).map_err(|fault| fault.kind)?;
    Ok(device.words(output, blocks as usize * 32))
}

/// Returns a kernel in which each block writes numbers to its shared memory and reads those of the next block of its cluster.
fn ring(read: &str) -> String {
    let body = format!(
        "st.shared.u32 [%r5], %r8; {SYNC} add.u32 %r11, %r9, 1; rem.u32 %r11, %r11, %r10;
         {read} st.global.u32 [%d2], %r12; {SYNC}"
    );
    kernel("", &body)
}

#[test]
fn a_block_reads_the_shared_memory_of_the_next() {
    let mapped = "mapa.shared::cluster.u32 %r6, %r5, %r11; ld.shared::cluster.u32 %r12, [%r6];";
    let generic = "cvt.u64.u32 %d4, %r5; cvta.shared.u64 %d4, %d4; mapa.u64 %d5, %d4, %r11; ld.u32 %r12, [%d5];";
    let vector = "mapa.shared::cluster.u32 %r6, %r3, %r11; and.b32 %r7, %r4, 112; add.u32 %r6, %r6, %r7; and.b32 %r7, %r1, 3;
        ld.shared::cluster.v4.u32 {%r12, %r13, %r14, %r15}, [%r6]; setp.eq.u32 %p1, %r7, 1; selp.u32 %r12, %r13, %r12, %p1;
        setp.eq.u32 %p1, %r7, 2; selp.u32 %r12, %r14, %r12, %p1; setp.eq.u32 %p1, %r7, 3; selp.u32 %r12, %r15, %r12, %p1;";
    let expected: Vec<u32> = (0..256).map(|at| at / 128 * 128 + (at + 32) % 128).collect();
    for read in [mapped, generic, vector] {
        assert_eq!(words(&ring(read), 8, 4).unwrap(), expected, "{read}");
    }
    assert_eq!(words(&ring(mapped), 8, 0).unwrap(), (0..256).collect::<Vec<_>>(), "a block alone is its own cluster");
}

#[test]
fn an_address_means_the_same_in_every_block() {
    // Each block puts the plain address of its own tile where the next block finds it.
    let body = format!(
        "st.shared.u32 [%r5], %r8; add.u32 %r11, %r9, 1; rem.u32 %r11, %r11, %r10; mov.u32 %r13, tile;
         mapa.shared::cluster.u32 %r6, %r5, %r11; st.shared::cluster.u32 [%r6+128], %r13; {SYNC}
         ld.shared.u32 %r7, [%r5+128]; add.u32 %r7, %r7, %r4; ld.shared::cluster.u32 %r12, [%r7];
         getctarank.shared::cluster.u32 %r14, %r7; mad.lo.u32 %r12, %r14, 1000, %r12;
         st.global.u32 [%d2], %r12; {SYNC}"
    );
    let expected: Vec<u32> = (0..64).map(|at| (at + 32) % 64 + (1 - at / 32) * 1000).collect();
    assert_eq!(words(&kernel("", &body), 2, 2).unwrap(), expected);
}

#[test]
fn atomics_and_barriers_work_across_blocks() {
    let body = format!(
        "setp.eq.u32 %p1, %r8, 0; st.shared.u32 [%r5], 0; mov.u32 %r6, bar; mapa.shared::cluster.u32 %r7, %r6, 0;
         setp.ne.u32 %p2, %r1, 0; setp.ne.or.u32 %p2, %r9, 0, %p2; @!%p2 mbarrier.init.shared::cta.b64 [%r6], 128; {SYNC}
         mapa.shared::cluster.u32 %r11, tile, 0; red.shared::cluster.add.u32 [%r11], 1;
         mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
         setp.ne.u32 %p1, %r9, 0; @%p1 bra END;
         WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r6], 0; @!%p3 bra WAIT;
         ld.shared.u32 %r12, [tile]; st.global.u32 [%d2], %r12; END: {SYNC}"
    );
    let words = words(&kernel(".reqnctapercluster 4", &body), 8, 0).unwrap();
    let expected: Vec<u32> = (0..256).map(|at| if at % 128 < 32 { 128 } else { 0 }).collect();
    assert_eq!(words, expected);
}

#[test]
fn copies_and_stores_reach_other_blocks_and_their_barriers() {
    let body = |send: &str| {
        kernel(
            "",
            &format!(
                "st.shared.u32 [%r5], %r8; mov.u32 %r6, bar; setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r6], 1;
                 @%p1 mbarrier.arrive.expect_tx.shared.b64 %d4, [%r6], 128; {SYNC}
                 add.u32 %r11, %r9, 1; rem.u32 %r11, %r11, %r10; mapa.shared::cluster.u32 %r7, %r6, %r11;
                 mapa.shared::cluster.u32 %r12, %r3, %r11; {send}
                 WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra WAIT;
                 ld.shared.u32 %r12, [%r5+128]; st.global.u32 [%d2], %r12; {SYNC}"
            ),
        )
    };
    let expected: Vec<u32> = (0..64).map(|at| (at + 32) % 64).collect();
    let bulk =
        "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r12+128], [%r3], 128, [%r7];";
    assert_eq!(words(&body(bulk), 2, 2).unwrap(), expected);
    let store = "add.u32 %r12, %r12, %r4; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r12+128], %r8, [%r7];";
    assert_eq!(words(&body(store), 2, 2).unwrap(), expected);
    let add = format!(
        "st.shared.u32 [%r5+128], 1; {SYNC} add.u32 %r12, %r12, %r4;
         red.async.relaxed.cluster.global.mbarrier::complete_tx::bytes.add.u32 [%r12+128], %r8, [%r7];"
    );
    let add = add.replace(".cluster.global", ".cluster.shared::cluster");
    let sums: Vec<u32> = expected.iter().map(|word| word + 1).collect();
    assert_eq!(words(&body(&add), 2, 2).unwrap(), sums);
}

#[test]
fn a_multicast_reaches_the_blocks_of_its_mask() {
    let body = format!(
        "st.shared.u32 [%r5], 7; mov.u32 %r6, bar; setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r6], 1; {SYNC}
         setp.eq.u32 %p2, %r9, 1; @%p1 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r6], 128;
         @%p1 mbarrier.arrive.shared.b64 %d4, [%r6]; {SYNC} .reg .b16 %mask; mov.u16 %mask, 5;
         setp.eq.and.u32 %p2, %r9, 1, %p1;
         @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%d1], 128, [%r6], %mask;
         {SYNC} ld.shared.u32 %r12, [%r5]; mbarrier.test_wait.parity.shared.b64 %p3, [%r6], 0; selp.u32 %r13, 100, 0, %p3;
         add.u32 %r12, %r12, %r13; st.global.u32 [%d2+128], %r12;"
    );
    let device = Device::default();
    let output = device.put(&[3; 32 * 5]);
    let program = device.load(&kernel("", &body)).unwrap();
    let mut launch = launch(&program, [4, 1, 1], [32, 1, 1], &[output]);
    launch.cluster = Some([4, 1, 1]);
    run(&launch, &device, 1, &Switch::new()).unwrap();
    let by_block: Vec<u32> = device.words(output, 160).chunks(32).map(|chunk| chunk[9]).collect();
    assert_eq!(by_block, [3, 103, 7, 103, 7]);
}

#[test]
fn registers_say_where_a_block_is() {
    let body = "mov.u32 %r3, %clusterid.x; mov.u32 %r4, %nclusterid.x; mov.u32 %r5, %cluster_ctaid.x; mov.pred %p1, %is_explicit_cluster;
        mov.u32 %r6, %cluster_nctaid.x; selp.u32 %r7, 1, 0, %p1; mad.lo.u32 %r3, %r3, 10, %r4; mad.lo.u32 %r3, %r3, 10, %r5;
        mad.lo.u32 %r3, %r3, 10, %r6; mad.lo.u32 %r3, %r3, 10, %r7; st.global.u32 [%d2], %r3;";
    let of_blocks =
        |size| words(&kernel("", body), 4, size).unwrap().chunks(32).map(|chunk| chunk[0]).collect::<Vec<_>>();
    assert_eq!(of_blocks(2), [2_0_2_1, 2_1_2_1, 1_2_0_2_1, 1_2_1_2_1]);
    assert_eq!(of_blocks(0), [4_0_1_0, 1_4_0_1_0, 2_4_0_1_0, 3_4_0_1_0]);
}

#[test]
fn clusters_that_do_not_fit_are_refused() {
    let plain = kernel("", "");
    assert_eq!(words(&plain, 4, 3), Err(FaultKind::BadLaunch));
    assert_eq!(words(&plain, 32, 32), Err(FaultKind::BadLaunch));
    assert_eq!(words(&kernel(".reqnctapercluster 2", ""), 4, 4), Err(FaultKind::BadLaunch));
    assert_eq!(words(&kernel(".explicitcluster", ""), 4, 0), Err(FaultKind::BadLaunch));
    assert!(words(&kernel(".explicitcluster .maxclusterrank 2", ""), 4, 2).is_ok());
    assert_eq!(words(&kernel(".maxclusterrank 2", ""), 4, 4), Err(FaultKind::BadLaunch));
}

#[test]
fn memory_of_blocks_that_are_not_there_is_a_fault_and_waiting_for_ever_is_one_too() {
    let beyond = "mapa.shared::cluster.u32 %r6, %r5, 7; ld.shared::cluster.u32 %r7, [%r6];";
    assert!(matches!(words(&kernel("", beyond), 4, 2), Err(FaultKind::IllegalAddress(_))));
    let alone =
        "setp.eq.u32 %p1, %r9, 0; @%p1 bra STAY; bar.sync 0, 64; STAY: barrier.cluster.arrive; barrier.cluster.wait;";
    assert_eq!(words(&kernel("", alone), 4, 2), Err(FaultKind::Deadlock));
}

#[test]
fn a_cluster_is_paused_and_taken_up_whole() {
    let device = Device::default();
    let text = ring("mapa.shared::cluster.u32 %r6, %r5, %r11; ld.shared::cluster.u32 %r12, [%r6];");
    let output = device.put(&[0; 256]);
    let program = device.load(&text).unwrap();
    let mut launch = launch(&program, [8, 1, 1], [32, 1, 1], &[output]);
    launch.cluster = Some([4, 1, 1]);
    let mut grid = Grid::new(launch).unwrap();
    let mut pauses = 0;
    while grid.run(&device, RunLimits { threads: 1, budget: 3 }, &Switch::new()).unwrap() == Progress::Paused {
        pauses += 1;
        grid = Grid::from_bytes(&grid.to_bytes(), |name, _| program.kernel(name)).unwrap();
    }
    assert!(pauses > 8, "{pauses}");
    let expected: Vec<u32> = (0..256).map(|at| at / 128 * 128 + (at + 32) % 128).collect();
    assert_eq!(device.words(output, 256), expected);
}
