//! Races that are found, and programs without races.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, launch};
use katydid_ptx_exec::{AddressRange, Host, Race, Switch, run};
use std::sync::Mutex;

/// A device that searches for races.
struct Watched {
    device: Device,
    races: Mutex<Vec<Race>>,
}

impl Host for Watched {
    fn range_of(&self, address: u64) -> Option<AddressRange> {
        self.device.range_of(address)
    }

    fn print(&self, text: &[u8]) {
        Host::print(&self.device, text);
    }

    fn assert_failed(&self, text: &str) {
        self.device.assert_failed(text);
    }

    fn race_seed(&self) -> Option<u64> {
        Some(7)
    }

    fn race(&self, race: &Race) {
        self.races.lock().unwrap().push(race.clone());
    }
}

/// Line and access of each side, and whether the race is in shared memory.
type Found = (u32, &'static str, u32, &'static str, bool);

/// Returns the races of a kernel over two blocks of 64 threads.
fn races(body: &str) -> Vec<Found> {
    races_in([64, 1, 1], body)
}

/// Returns the races of a kernel over two blocks of this shape. `%r1` is the thread along the first axis, `%r2` the block, and
/// `%r3` the thread's place in `tile`. `%d1` is the output, `%d2` the thread's place there.
fn races_in(block: [u32; 3], body: &str) -> Vec<Found> {
    let text = format!(
        ".shared .align 16 .b8 tile[512]; .visible .entry k(.param .u64 out) {{
            .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %d<4>; ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
            mov.u32 %r3, tile; mad.lo.u32 %r3, %r1, 4, %r3; mad.lo.u32 %r4, %r2, 64, %r1; mad.wide.u32 %d2, %r4, 4, %d1;
            {body}
            ret; }}"
    );
    let host = Watched { device: Device::default(), races: Mutex::default() };
    let output = host.device.put(&[0; 256]);
    let program = host.device.load(&text).unwrap_or_else(|error| panic!("{error}"));
    run(&launch(&program, [2, 1, 1], block, &[output]), &host, 4, &Switch::new()).unwrap();
    let races = host.races.into_inner().unwrap();
    assert!(races.iter().all(|race| race.kernel == "k"));
    // Line 7 is the first of the body.
    races.iter().map(|it| (it.first.line - 6, it.first.kind, it.second.line - 6, it.second.kind, it.shared)).collect()
}

#[test]
fn a_missing_barrier_is_found() {
    let exchange = |between: &str| {
        races(&format!(
            "st.shared.u32 [%r3], %r1;\n{between} xor.b32 %r5, %r1, 32; mov.u32 %r6, tile; mad.lo.u32 %r5, %r5, 4, %r6;\n
             ld.shared.u32 %r7, [%r5];\nst.global.u32 [%d2], %r7;"
        ))
    };
    assert_eq!(exchange("bar.sync 0;"), []);
    assert_eq!(exchange("barrier.sync.aligned 0;"), []);
    let races_found = exchange("");
    assert!(!races_found.is_empty(), "each warp reads what the other one writes");
    assert!(
        races_found.iter().all(|(.., shared)| *shared)
            && races_found.iter().any(|(a, _, b, ..)| (*a, *b) == (1, 4) || (*a, *b) == (4, 1)),
        "{races_found:?}"
    );
}

#[test]
fn lanes_of_a_warp_need_an_operation_between() {
    let exchange = |between: &str| {
        races(&format!(
            "st.shared.u32 [%r3], %r1; {between} xor.b32 %r5, %r1, 1; mov.u32 %r6, tile; mad.lo.u32 %r5, %r5, 4, %r6;
             ld.shared.u32 %r7, [%r5]; st.global.u32 [%d2], %r7;"
        ))
    };
    assert_eq!(exchange("bar.warp.sync -1;"), []);
    assert_eq!(exchange("shfl.sync.idx.b32 %r8, %r1, 0, 31, -1;"), []);
    assert_eq!(exchange("").len(), 1);
}

#[test]
fn blocks_that_add_to_the_same_word_are_found_unless_they_do_it_atomically() {
    let plain =
        "mad.wide.u32 %d3, %r1, 4, %d1; ld.global.u32 %r5, [%d3]; add.u32 %r5, %r5, 1; st.global.u32 [%d3], %r5;";
    let races_found = races(plain);
    assert!(!races_found.is_empty() && races_found.iter().all(|(.., shared)| !shared), "{races_found:?}");
    assert_eq!(races("mad.wide.u32 %d3, %r1, 4, %d1; red.global.add.u32 [%d3], 1;"), []);
    assert_eq!(races("st.global.u32 [%d1], 1;"), [], "all set one flag");
}

#[test]
fn the_last_block_reads_published_values_without_a_race() {
    // Each block writes a sum, publishes it, and the last one adds them up.
    let body = |fence: &str| {
        format!(
            "setp.ne.u32 %p1, %r1, 0; @%p1 exit; mad.wide.u32 %d3, %r2, 4, %d1; st.global.u32 [%d3+512], 5; {fence}
             atom.global.inc.u32 %r5, [%d1], 1; setp.ne.u32 %p2, %r5, 1; @%p2 exit; {fence}
             ld.global.u32 %r6, [%d1+512]; ld.global.u32 %r7, [%d1+516]; add.u32 %r6, %r6, %r7; st.global.u32 [%d1+640], %r6;"
        )
    };
    assert_eq!(races(&body("membar.gl;")), []);
    // Without the counter nothing orders them.
    let racy = "setp.ne.u32 %p1, %r1, 0; @%p1 exit; mad.wide.u32 %d3, %r2, 4, %d1; st.global.u32 [%d3+512], 5;
         ld.global.u32 %r6, [%d1+512]; ld.global.u32 %r7, [%d1+516]; add.u32 %r6, %r6, %r7; st.global.u32 [%d3+640], %r6;";
    assert!(!races(racy).is_empty());
}

#[test]
fn bytes_beside_each_other_do_not_race() {
    assert_eq!(
        races("cvt.u64.u32 %d3, %r4; add.s64 %d3, %d1, %d3; st.global.u8 [%d3], %r1; ld.global.u8 %r5, [%d3];"),
        []
    );
}

/// Returns whether there are races, all of them between a load and a store, and in shared memory or not.
fn are_of_load_and_store(found: &[Found], shared: bool) -> bool {
    let is_one =
        |race: &Found| [race.1, race.3].contains(&"load") && [race.1, race.3].contains(&"store") && race.4 == shared;
    !found.is_empty() && found.iter().all(is_one)
}

/// Product of matrix and vector, whose block has rows of threads and whose kernel has no row in its indices.
#[test]
fn rows_of_threads_that_do_the_same_sum_are_found() {
    let sum = "ld.global.u32 %r5, [%d2]; add.u32 %r5, %r5, 1; st.global.u32 [%d2], %r5;";
    assert_eq!(races_in([64, 1, 1], sum), []);
    let found = races_in([32, 2, 1], sum);
    assert!(are_of_load_and_store(&found, false), "{found:?}");
}

/// Filter of sections, one for each thread: it reads its neighbour's result, writes its own, and one barrier ends the turn.
#[test]
fn a_pipeline_of_threads_needs_two_barriers_a_turn() {
    let filter = |between: &str| {
        races(&format!(
            "st.shared.u32 [%r3], %r1; mov.u32 %r8, 0; setp.ne.u32 %p1, %r1, 0; bar.sync 0;
             TURN: mov.u32 %r5, 0; @%p1 ld.shared.u32 %r5, [%r3-4]; {between} add.u32 %r5, %r5, 1; st.shared.u32 [%r3], %r5;
             bar.sync 0; add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, 4; @%p2 bra TURN;"
        ))
    };
    assert_eq!(filter("bar.sync 0;"), []);
    // On a GPU, lanes of a warp in lockstep hide the race; the two warps do not.
    for between in ["", "bar.warp.sync -1;"] {
        let found = filter(between);
        assert!(are_of_load_and_store(&found, true), "{between}: {found:?}");
    }
}

/// Two sums over the block, of which the second begins while the first is still read.
#[test]
fn two_reductions_through_the_same_words_need_a_barrier_between() {
    let sums = |between: &str| {
        races(&format!(
            "and.b32 %r5, %r1, 31; setp.eq.u32 %p1, %r5, 0; shr.u32 %r5, %r1, 5; mov.u32 %r6, tile; mad.lo.u32 %r6, %r5, 4, %r6;
             @%p1 st.shared.u32 [%r6], %r1; bar.sync 0; ld.shared.u32 %r7, [tile]; {between}
             @%p1 st.shared.u32 [%r6], %r7; bar.sync 0; ld.shared.u32 %r8, [tile]; st.global.u32 [%d2], %r8;"
        ))
    };
    assert_eq!(sums("bar.sync 0;"), []);
    let found = sums("");
    assert!(are_of_load_and_store(&found, true), "{found:?}");
}

/// Lock that is taken by an atomic operation and released by a plain store.
#[test]
fn a_lock_that_a_plain_store_releases_is_found() {
    let locked = |release: &str| {
        races(&format!(
            "setp.ne.u32 %p1, %r1, 0; @%p1 exit;
             LOCK: atom.global.cas.b32 %r5, [%d1], 0, 1; setp.ne.u32 %p2, %r5, 0; @%p2 bra LOCK; membar.gl;
             ld.global.u32 %r6, [%d1+64]; add.u32 %r6, %r6, 1; st.global.u32 [%d1+64], %r6; {release}"
        ))
    };
    assert_eq!(locked("membar.gl; atom.global.exch.b32 %r5, [%d1], 0;"), []);
    let found = locked("st.global.u32 [%d1], 0;");
    assert!(found.iter().any(|race| [race.1, race.3].contains(&"atomic")), "{found:?}");
}

#[test]
fn a_copy_is_there_when_its_thread_has_waited_and_a_barrier_has_told() {
    const OTHERS: &str =
        "xor.b32 %r5, %r1, 32; mov.u32 %r6, tile; mad.lo.u32 %r5, %r5, 4, %r6; ld.shared.u32 %r7, [%r5];";
    let copied = |rest: &str| races(&format!("cp.async.ca.shared.global [%r3], [%d2], 4; {rest}"));
    let is_found = |rest: &str| {
        let found = copied(rest);
        assert!(found.iter().all(|race| (race.1, race.3, race.4) == ("copy", "load", true)), "{rest}: {found:?}");
        !found.is_empty()
    };
    for waits in ["cp.async.wait_all; bar.sync 0;", "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;"] {
        assert!(!is_found(&format!("{waits} {OTHERS}")), "{waits}");
    }
    for no_wait in [
        "bar.sync 0;",
        "cp.async.commit_group; bar.sync 0;",
        "cp.async.commit_group; cp.async.wait_group 1; bar.sync 0;",
        "cp.async.wait_group 0; bar.sync 0;",
        "bar.sync 0; cp.async.wait_all;",
    ] {
        assert!(is_found(&format!("{no_wait} {OTHERS}")), "{no_wait}");
    }
    // The thread itself needs no barrier, but it does need a wait.
    assert!(!is_found("cp.async.wait_all; ld.shared.u32 %r7, [%r3];"));
    assert!(is_found("ld.shared.u32 %r7, [%r3];"));
}

#[test]
fn a_barrier_in_memory_waits_for_copies_too() {
    let copied = |arrival: &str| {
        races(&format!(
            ".shared .align 8 .b64 arrivals; setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [arrivals], 64; bar.sync 0;
             cp.async.ca.shared.global [%r3], [%d2], 4; {arrival}
             WAIT: mbarrier.test_wait.parity.shared.b64 %p2, [arrivals], 0; @!%p2 bra WAIT;
             xor.b32 %r5, %r1, 32; mov.u32 %r6, tile; mad.lo.u32 %r5, %r5, 4, %r6; ld.shared.u32 %r7, [%r5];"
        ))
    };
    assert_eq!(copied("cp.async.mbarrier.arrive.noinc.shared.b64 [arrivals];"), []);
    let found = copied("mbarrier.arrive.shared.b64 %d3, [arrivals];");
    assert!(!found.is_empty() && found.iter().all(|race| race.1 == "copy"), "{found:?}");
}

#[test]
fn a_matrix_is_read_behind_an_operation_of_the_warp() {
    let read = |between: &str| {
        races(&format!(
            "setp.gt.u32 %p1, %r1, 31; @%p1 exit; mov.u32 %r6, tile; mad.lo.u32 %r5, %r1, 16, %r6; st.shared.u32 [%r5], %r1;
             {between} xor.b32 %r7, %r1, 1; mad.lo.u32 %r7, %r7, 16, %r6;
             ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r4, %r5, %r8, %r2}}, [%r7];"
        ))
    };
    assert_eq!(read("bar.warp.sync -1;"), []);
    let found = read("");
    assert!(are_of_load_and_store(&found, true), "{found:?}");
}
