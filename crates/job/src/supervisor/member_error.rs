//! Why a member of a job did not carry out an order.

use std::time::Duration;

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The program refused; the text is its own.
    #[error("{program} (process {pid}): {reason}")]
    Refused {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// The reason that it gave.
        reason: String,
    },
    /// The program has ended.
    #[error("{program} (process {pid}) has ended meanwhile; try again, if the job still runs")]
    Gone {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
    },
    /// The program has left its worker, and its connection is still open.
    #[error(
        "{program} (process {pid}) has let go of its worker, but after {} s another process still has its connection to this job",
        timeout.as_secs()
    )]
    Lingers {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// The time limit.
        timeout: Duration,
    },
    /// The program did not answer in time.
    #[error("{program} (process {pid}) did not answer within {} s; try again when it is less busy, or give --quiesce-timeout more", timeout.as_secs())]
    Silent {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// The time limit.
        timeout: Duration,
    },
}
