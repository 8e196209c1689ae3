//! Races that are found, and programs in which none is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use crate::common::{Device, launch};
use katydid_ptx_exec::{AddressRange, Host, Race, Switch, run};
use std::sync::Mutex;

/// A device on which races are looked for.
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

/// The races of a kernel over two blocks of 64 threads: the line of each side, what it does, and whether in shared memory.
/// `%r1` is the thread, `%r2` the block, `%r3` its place in `tile`, `%d1` the output, `%d2` its place there.
fn races(body: &str) -> Vec<(u32, &'static str, u32, &'static str, bool)> {
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
    run(&launch(&program, [2, 1, 1], [64, 1, 1], &[output]), &host, 4, &Switch::new()).unwrap();
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
