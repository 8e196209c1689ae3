//! Executes random frames in a session: a short run of the fuzz target `dispatch_opencl` without a fuzzer.
//!
//! The frames come from a fixed seed, so a failure repeats; `KATYDID_MUTATIONS` sets the number of scripts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "../../../fuzz/bodies/dispatch_opencl.rs"]
mod dispatch_opencl;
#[path = "../../../fuzz/bodies/random.rs"]
mod random;

use std::env;
use std::panic::catch_unwind;

use random::Random;

/// Default number of scripts: some seconds' work.
const MUTATION_COUNT: u64 = 2000;
/// Most bytes of a script.
const MAX_MADE_UP_FRAME_BYTES: u64 = 600;

/// Returns the bytes of a script. About one field in a hundred may have any value.
fn script(random: &mut Random) -> Vec<u8> {
    let has_svm = u8::from(random.below(16) == 0);
    let length = random.below(MAX_MADE_UP_FRAME_BYTES);
    let byte = |_| if random.below(100) == 0 { 0xee } else { random.byte() };
    std::iter::once(has_svm).chain((0..length).map(byte)).collect()
}

#[test]
fn made_up_frames_end_sessions_and_nothing_else() {
    let script_count =
        env::var("KATYDID_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTATION_COUNT);
    let (mut random, mut executed) = (Random(0x9e37_79b9_7f4a_7c15), 0);
    for _ in 0..script_count {
        let script = script(&mut random);
        let outcome = catch_unwind(|| dispatch_opencl::dispatch(&script));
        executed += outcome.unwrap_or_else(|_| panic!("this script is trouble: {script:02x?}"));
    }
    assert!(executed as u64 > 2 * script_count, "only {executed} frames were executed");
}
