//! Questions about processes of a job, which a program asks for itself or another one (`cuCheckpointProcess*`).

use std::fmt;
use std::time::Duration;

use katydid_wire::job::ToProgram;

/// A question about a process of the job, as in [`katydid_wire::job::FromProgram::Ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// Process id, in the process's own namespace.
    pub(crate) process: u32,
    /// Requested action, one of the constants in `katydid_wire::job::ask`.
    pub(crate) what: u32,
    /// How long its device may take to come to rest.
    pub(crate) timeout: Duration,
    /// Pairs of UUIDs: a GPU that the process had, and the GPU to restore it to.
    pub(crate) gpus: Vec<u8>,
}

/// Answers questions with [`ToProgram::Answer`].
pub(crate) struct Answerer(pub(crate) Box<dyn Fn(&Question) -> ToProgram + Send + Sync>);

impl fmt::Debug for Answerer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Answerer")
    }
}
