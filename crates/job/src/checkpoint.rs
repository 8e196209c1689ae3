//! Checkpoints of a job, restores, and moves of its sessions.

pub mod error;
pub(crate) mod failover;
pub mod fault_injection;
pub(crate) mod frozen;
pub(crate) mod image_notes;
pub(crate) mod locked_processes;
pub(crate) mod migrate;
pub mod obstacles;
pub(crate) mod process_checkpoint;
pub(crate) mod quiesce;
pub(crate) mod recovery;
pub(crate) mod rehearsal;
pub(crate) mod request;
pub mod restore;
pub mod run;
pub(crate) mod sharing_check;
pub(crate) mod stages;
pub(crate) mod worker_images;
