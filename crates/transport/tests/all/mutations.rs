//! Generated peers: short runs of the fuzz targets `ring` and `records`, without a fuzzer.
//!
//! Scripts come from a fixed seed, so that a failure repeats; `KATYDID_MUTATIONS` sets how many are made.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::env;
use std::panic::{RefUnwindSafe, catch_unwind};

use crate::random::Random;
use katydid_transport::fuzz_entry;

/// Scripts that are made unless the environment says otherwise: a second's work.
const MUTATION_COUNT: usize = 4000;

/// Runs `execute` on many results of `make`. Returns the sum of its results.
fn run_all(mut make: impl FnMut(&mut Random) -> Vec<u8>, execute: impl Fn(&[u8]) -> usize + RefUnwindSafe) -> usize {
    let script_count =
        env::var("KATYDID_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTATION_COUNT);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let scripts = (0..script_count).map(|_| make(&mut random));
    scripts
        .map(|script| {
            catch_unwind(|| execute(&script)).unwrap_or_else(|_| panic!("this script is trouble: {script:02x?}"))
        })
        .sum()
}

#[test]
fn a_program_that_does_as_it_likes_in_the_ring_ends_its_link_at_worst() {
    let script = |random: &mut Random| {
        // Honest for a while, most often.
        let honest = random.below(60);
        let mut script = Vec::new();
        for step in 0..=random.below(80) {
            let what = if step < honest { random.below(4) as u8 } else { random.below(8) as u8 };
            script.push(what);
            script.extend(std::iter::repeat_with(|| random.below(256) as u8).take(7));
        }
        script
    };
    let frames = run_all(script, |script| fuzz_entry::ring(script).unwrap());
    assert!(frames > MUTATION_COUNT, "only {frames} frames were handed out");
}

#[test]
fn of_a_made_up_stream_of_records_only_what_was_sealed_is_handed_out() {
    let script = |random: &mut Random| {
        let mut script = vec![random.below(256) as u8];
        let honest = random.below(8);
        for part in 0..=random.below(10) {
            let what = if part < honest { 0 } else { random.below(256) as u8 };
            let length = if random.below(20) == 0 { random.below(40_000) } else { random.below(48) };
            script.push(what);
            script.extend((length as u16).to_le_bytes());
            // Kinds of records and heads of them are among these.
            let bytes = [23, 22, 21, 3, 3, 0, 24, 1, 255, 2];
            script.extend(std::iter::repeat_with(|| bytes[random.below(10) as usize]).take(length as usize));
        }
        script
    };
    let bytes = run_all(script, fuzz_entry::records);
    assert!(bytes > MUTATION_COUNT, "only {bytes} bytes were handed out");
}
