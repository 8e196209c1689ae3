//! The generations of a job: its start, and each restore of it.
//!
//! What a program gives another one to be found by later, such as a handle of its memory, is in both their memories when they
//! are restored, perhaps twice at once, or beside the first run. The number of the generation keeps these apart: programs
//! of a job read it beside the job socket, and know from the numbers before it what was given to them in an earlier one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::path::Path;

use katydid_scratch::private;
use katydid_wire::job::GENERATIONS_FILE;
use serde::{Deserialize, Serialize};

/// Numbers, the last one first; none is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generations(Vec<u64>);

impl Generations {
    /// With one that begins now.
    #[must_use]
    pub fn and_next(mut self) -> Self {
        self.0.insert(0, number());
        self
    }

    /// The form for workers: 8 bytes each, little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Writes them where the job's programs look.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn note(&self, folder: &Path) -> io::Result<()> {
        let lines: Vec<String> = self.0.iter().map(|number| format!("{number:016x}")).collect();
        private::write(&folder.join(GENERATIONS_FILE), lines.join("\n"))
    }
}

/// A new random number. It is no secret: what is exported is behind one of its own.
fn number() -> u64 {
    // A hasher's keys are of the system's random numbers, and others for each.
    RandomState::new().hash_one(std::process::id()).max(1)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_has_another_number_and_all_are_noted() {
        let folder = tempfile::tempdir().unwrap();
        let first = Generations::default().and_next();
        let (one, other) = (first.clone().and_next(), first.clone().and_next());
        assert!(one.0[0] != other.0[0] && one.0[0] != first.0[0] && one.0[1..] == first.0);
        assert_eq!(one.encode(), [one.0[0].to_le_bytes(), first.0[0].to_le_bytes()].concat());
        one.note(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join(GENERATIONS_FILE)).unwrap();
        assert_eq!(text, format!("{:016x}\n{:016x}", one.0[0], first.0[0]));
    }
}
