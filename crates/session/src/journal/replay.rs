//! The state of a session while it is rebuilt.

use std::collections::BTreeMap;

use katydid_cuda_sys::CUresult;
use katydid_session_core::JournalRecord;

use crate::memory::shares::Exports;

/// Numbers that a replay uses up.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Textures and surfaces (whether it is a texture) to be destroyed, with their context.
    pub(super) fillers: Vec<(u32, bool, u64)>,
    /// The last known conditional handle of this process.
    pub(super) last_condition: u64,
}

/// Device memory that a replay takes.
#[derive(Debug, Default)]
pub(super) struct WantedMemory {
    /// Needed bytes by ordinal, of devices of which nothing is taken yet.
    pub(super) devices: BTreeMap<i32, u64>,
    /// Whether memory of some device is taken.
    pub(super) is_holding: bool,
}

/// The state of a session while it is rebuilt.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Whether a replay is under way: replies are not sent.
    pub(crate) is_on: bool,
    /// Status of the current frame.
    pub(crate) outcome: CUresult,
    pub(super) numbers: Numbers,
    pub(super) wanted: WantedMemory,
    /// Records that wait for the program.
    pub(super) second: Vec<JournalRecord>,
    /// Exports that wait for the contents.
    pub(super) exports: Exports,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            is_on: false,
            outcome: CUresult::SUCCESS,
            numbers: Numbers::default(),
            wanted: WantedMemory::default(),
            second: Vec::new(),
            exports: Exports::default(),
        }
    }
}
