//! The generations of a job: its start, and each restore of it.
//!
//! A program may give another one a means to find it later, such as a handle of its memory. Both have that in their memories when
//! they are restored, perhaps twice at once, or beside the first run. The number of the generation keeps these apart. Programs of
//! a job read it beside the job socket. From the numbers before it they recognize what was given to them in an earlier
//! generation.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::path::Path;

use katydid_scratch::private;
use katydid_wire::job::GENERATIONS_FILE;
use serde::{Deserialize, Serialize};

/// Numbers of the generations, the latest first; none is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generations(Vec<u64>);

impl Generations {
    /// Adds a generation that begins now.
    #[must_use]
    pub fn and_next(mut self) -> Self {
        self.0.insert(0, number());
        self
    }

    /// Encodes them for workers: 8 bytes each, little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Writes them to the file that the job's programs read.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn note(&self, folder: &Path) -> io::Result<()> {
        let lines: Vec<String> = self.0.iter().map(|number| format!("{number:016x}")).collect();
        private::write(&folder.join(GENERATIONS_FILE), lines.join("\n"))
    }
}

/// A new random number. It need not be secret, since each export has a secret of its own.
fn number() -> u64 {
    // The keys of a hasher come from the system's random numbers, and differ for each.
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
