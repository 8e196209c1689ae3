//! A limit of host memory that the kernel enforces, tested on a Debian kernel whose memory controller belongs to control groups
//! of version 2. Many machines have given that controller to version 1.
//!
//! In `tests/control-groups/init`, root runs a server in a separate group. One program there exceeds its limit and another runs
//! beside it. The script checks what happens to them and to the groups.

use anyhow::Result;

use super::Guest;
use crate::tree::Tree;

/// Runs the whole test.
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
