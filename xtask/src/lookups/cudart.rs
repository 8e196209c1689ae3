//! Runs of every program with every minor version of CUDA's shared runtime, by `tests/tests/all/cudart.rs`.

use anyhow::Result;

use crate::fetch::cudart;
use crate::output::step;
use crate::tree::Tree;
use crate::{apps, dist, shell};

/// Fetches all versions, and runs every program with each, directly and through Katydid.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    cudart::fetch_all(tree)?;
    dist::run(tree, false)?;
    apps::run(tree)?;
    step("every program with every minor version of the runtime");
    let test = ["test", "--quiet", "-p", "katydid-tests", "--test", "all", "cudart::", "--", "--nocapture"];
    let mut test = shell::cargo(&tree.root, &test);
    shell::run(test.env("KATYDID_CUDART_ALL", "1"))
}
