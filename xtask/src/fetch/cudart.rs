//! Other minor versions of CUDA's shared runtime, fetched like the toolkit and tried by `tests/tests/all/cudart.rs`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::fetch::packages;
use crate::output::step;
use crate::shell;
use crate::tree::Tree;

/// Pins, oldest version first.
const CUDART_PINS: &str = include_str!("../../cudart.txt");

/// Line of the pins, and its minor version such as 13.5.
type Pin = (&'static str, String);

fn pins() -> Vec<Pin> {
    let lines = CUDART_PINS.lines().filter(|line| !line.starts_with('#'));
    let minor = |line: &str| -> Option<String> {
        let version = line.split_once("==")?.1.split_whitespace().next()?;
        Some(version.rsplit_once('.')?.0.to_owned())
    };
    lines.filter_map(|line| Some((line, minor(line)?))).collect()
}

/// Fetches the versions that every run of the tests tries.
pub(crate) fn fetch_ends(tree: &Tree) -> Result<()> {
    let pins = pins();
    pins.first().into_iter().chain(pins.last()).try_for_each(|pin| fetch(tree, pin))
}

/// Fetches one version, unless it is there.
fn fetch(tree: &Tree, (pin, version): &Pin) -> Result<()> {
    let folder = tree.target.join("cudart").join(version);
    let stamp = folder.join("pins.txt");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == *pin) {
        return Ok(());
    }
    step(&format!("fetching the runtime of CUDA {version} (a wheel of PyPI, under NVIDIA's licence)"));
    let fresh = tree.target.join("cudart-new");
    packages::remove(&fresh)?;
    packages::remove(&folder)?;
    fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
    let requirements = fresh.join("asked.txt");
    fs::write(&requirements, pin).with_context(|| format!("cannot write {}", requirements.display()))?;
    shell::run(&mut packages::pip(&fresh, &requirements))?;
    fs::write(fresh.join("pins.txt"), pin).context("cannot write the stamp")?;
    put(&fresh, &folder)
}

fn put(fresh: &Path, folder: &Path) -> Result<()> {
    let above = folder.parent().unwrap_or(folder);
    fs::create_dir_all(above).with_context(|| format!("cannot make {}", above.display()))?;
    fs::rename(fresh, folder).with_context(|| format!("cannot put {} in place", folder.display()))
}

/// Fetches all versions.
pub(crate) fn fetch_all(tree: &Tree) -> Result<()> {
    pins().iter().try_for_each(|pin| fetch(tree, pin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_in_order_and_each_has_a_hash() {
        let number = |version: &str| version.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>();
        let versions: Vec<_> = pins().iter().map(|(_, version)| number(version)).collect();
        assert!(versions.len() > 10 && versions.is_sorted());
        assert!(pins().iter().all(|(pin, _)| pin.contains(" --hash=sha256:")));
    }
}
