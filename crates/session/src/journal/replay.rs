//! What a session knows while it is rebuilt.

use std::collections::BTreeMap;

use katydid_cuda_sys::CUresult;
use katydid_session_core::JournalRecord;

use crate::memory::shares::Exports;

/// What a replay uses up.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Textures and surfaces (whether it is one) to be destroyed, with their context.
    pub(super) fillers: Vec<(u32, bool, u64)>,
    /// The last conditional handle of this process, as far as is known.
    pub(super) last_condition: u64,
}

/// What a replay takes of devices.
#[derive(Debug, Default)]
pub(super) struct WantedMemory {
    /// Bytes by ordinal, of devices of which nothing is taken yet.
    pub(super) devices: BTreeMap<i32, u64>,
    /// Memory of some device is taken.
    pub(super) is_holding: bool,
}

/// What a session knows while it is rebuilt.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Whether a replay is under way: replies are not sent.
    pub(crate) is_on: bool,
    /// How the current frame came out.
    pub(crate) outcome: CUresult,
    pub(super) numbers: Numbers,
    pub(super) wanted: WantedMemory,
    /// What waits for the program.
    pub(super) second: Vec<JournalRecord>,
    /// What waits for the contents.
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
