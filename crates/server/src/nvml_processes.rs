//! Bounds the number of processes that answer programs about devices (NVML).

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::slots::PeerOrigin;

/// Most such processes at a time.
pub(crate) const MAX_NVML_PROCESSES: usize = 64;

/// Most processes for NVML for peers over networks. The rest is for programs of this machine.
pub(crate) const MAX_REMOTE_PROCESSES: usize = 48;

/// Most processes for NVML for one peer over a network.
pub(crate) const MAX_PROCESSES_PER_PEER: usize = 16;

/// The origins that have such processes.
#[derive(Debug, Default)]
pub(crate) struct NvmlProcesses(Mutex<Vec<PeerOrigin>>);

/// The slot of such a process. It is free again when this is dropped.
pub(crate) struct ProcessSlot<'a>(&'a NvmlProcesses, PeerOrigin);

impl NvmlProcesses {
    pub(crate) fn take(&self, origin: PeerOrigin) -> Option<ProcessSlot<'_>> {
        let mut held = self.lock();
        let of_peer = held.iter().filter(|known| **known == origin).count();
        let remote = held.iter().filter(|known| known.is_limited()).count();
        let is_over = origin.is_limited() && (of_peer >= MAX_PROCESSES_PER_PEER || remote >= MAX_REMOTE_PROCESSES);
        if is_over || held.len() >= MAX_NVML_PROCESSES {
            return None;
        }
        held.push(origin);
        Some(ProcessSlot(self, origin))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<PeerOrigin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProcessSlot<'_> {
    fn drop(&mut self) {
        let mut all = self.0.lock();
        if let Some(at) = all.iter().position(|known| *known == self.1) {
            all.swap_remove(at);
        }
    }
}
