//! A limit of host memory that the kernel holds: a kernel of Debian's whose memory controller is that of control groups of version 2,
//! which many machines have given to version 1.
//!
//! `tests/control-groups/init` has root run a server in a group of its own there, with a program that takes more than it may and one
//! beside it, and looks at what becomes of them and of the groups.

use anyhow::Result;

use super::Guest;
use crate::tree::Tree;

/// Runs it all.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    let guest = Guest {
        name: "control-groups",
        tries: "workers in control groups, on a machine that has those of version 2",
        modules: &[],
        programs: &[("programs", "fixture")],
        has_criu: false,
        requests: Vec::new(),
    };
    guest.run(tree)
}
