//! `cargo xtask lookups`: the functions that releases of CUDA's runtime, NCCL and PyTorch look up in the driver, and their
//! results on softcuda.
//!
//! For each release of `xtask/releases.txt`, pip fetches the wheels and a program of `tests/releases` runs with them under
//! `katydid trace`. The wheels are removed again. Then `spec/lookups.txt` holds the lookups, and
//! `docs/evidence/DATE-releases.json` the results; other releases keep their entries. A test of the shim compares the driver API
//! with the former.

pub(crate) mod cudart;
mod evidence;
mod list;
mod release;
mod trial;

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::lookups::evidence::Outcomes;
use crate::lookups::list::Lookups;
use crate::lookups::release::{Release, releases};
use crate::output::{line, step};
use crate::tree::Tree;
use crate::{checks, dist};

/// Tries the named releases, such as `torch==2.15.0` or `torch`, in that order; all if none is named.
pub(crate) fn run(tree: &Tree, names: &[String]) -> Result<()> {
    let releases = releases();
    let is_meant = |release: &&Release, name: &String| release.requirement == name || release.parts().0 == name;
    for name in names {
        let is_known = releases.iter().any(|release| is_meant(&release, name));
        ensure!(
            is_known,
            "{name} is not a release of xtask/releases.txt: add its line, or name one such as torch==2.15.0"
        );
    }
    dist::run(tree, false)?;
    let file = tree.root.join(list::LOOKUPS_FILE);
    let mut lookups = Lookups::parse(&fs::read_to_string(&file).unwrap_or_default(), &releases)?;
    let mut outcomes = Outcomes::read(&tree.root)?;
    let named = names.iter().flat_map(|name| releases.iter().filter(move |release| is_meant(release, name)));
    let chosen: Vec<&Release> = if names.is_empty() { releases.iter().collect() } else { named.collect() };
    for release in chosen {
        step(release.requirement);
        let trial = trial::run(tree, release).with_context(|| release.requirement.to_owned())?;
        line(&trial.summary());
        lookups.replace(release.requirement, &trial.lookups);
        outcomes.replace(release, &trial);
        fs::write(&file, lookups.text(&releases)).with_context(|| format!("cannot write {}", file.display()))?;
        outcomes.write(&tree.root, &releases)?;
    }
    checks::pages::check(tree, true)
}
