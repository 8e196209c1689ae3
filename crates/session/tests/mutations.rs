//! Made-up frames, executed by a session: the short run of the fuzz target `dispatch`, without a fuzzer.
//!
//! Numbers are small or boundary values, since other ids and sizes end a session at once. They come from a fixed seed, so
//! that a failure repeats; `KATYDID_MUTATIONS` sets the number of scripts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "../../../fuzz/bodies/dispatch.rs"]
mod dispatch;
#[path = "../../../fuzz/bodies/random.rs"]
mod random;

use std::env;
use std::panic::catch_unwind;

use random::Random;

/// Number of scripts unless the environment sets it: some seconds of work.
const MUTATION_COUNT: u64 = 4000;
/// The most frames in a script.
const MAX_MADE_UP_FRAMES: u64 = 24;

impl Random {
    /// Returns eight bytes, as a field could hold them.
    fn number(&mut self) -> [u8; 8] {
        let borders = [0x2000_0000_0000, 0x3000_0000_0000, 0x3000_0010_0000, 4096, 2 << 20, u64::MAX, 1 << 31, 1 << 63];
        let number = match self.below(8) {
            0..=4 => self.below(3) << 32 | self.below(3),
            5 => borders[self.below(8) as usize],
            6 => borders[self.below(8) as usize].wrapping_add(self.below(64)).wrapping_sub(32),
            _ => self.0,
        };
        number.to_le_bytes()
    }

    fn script(&mut self) -> Vec<u8> {
        let mut script = Vec::new();
        for _ in 0..=self.below(MAX_MADE_UP_FRAMES) {
            let (opcode, more) =
                (self.below(1 << 16) as u16, if self.below(3) == 0 { self.below(64) as u8 } else { 0 });
            // Mostly in the first context.
            let context = if self.below(8) == 0 { self.below(4) as u8 } else { 1 };
            let mut frame = opcode.to_le_bytes().to_vec();
            frame.extend([self.below(4) as u8 | context << 2, self.below(256) as u8, more]);
            while frame.len() < dispatch::FRAME {
                frame.extend(self.number());
            }
            frame.truncate(dispatch::FRAME);
            script.extend(frame);
        }
        script
    }
}

#[test]
fn made_up_frames_end_sessions_and_nothing_else() {
    let script_count =
        env::var("KATYDID_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTATION_COUNT);
    let (mut random, mut executed) = (Random(0x9e37_79b9_7f4a_7c15), 0);
    for _ in 0..script_count {
        let script = random.script();
        let outcome = catch_unwind(|| dispatch::dispatch(&script));
        executed += outcome.unwrap_or_else(|_| panic!("this script is trouble: {script:02x?}"));
    }
    assert!(executed as u64 > 2 * script_count, "only {executed} frames were executed");
}
