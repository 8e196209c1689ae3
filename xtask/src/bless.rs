//! Rewrites the expected results of tests: the outputs of the programs under test, and the golden files of the crates.
//!
//! The outputs come from the programs run directly on softcuda, and only from a program whose own checks passed. The author reads
//! the difference in git before committing it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::{self, App};
use katydid_tests::paths::EXPECTED_FOLDER;
use katydid_tests::program;
use katydid_tests::verdict::expected_path;
use katydid_tests::way::Way;

use crate::checks::pages;
use crate::output::{line, step};
use crate::tree::Tree;
use crate::{apps, dist, shell};

/// Time without progress after which a program is given up (`katydid_tests::deadline`).
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(180);

/// Rewrites all expected results.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    step("tables of measured figures");
    pages::write(tree)?;
    step("golden files of the crates");
    let packages = [
        "katydid-api-codegen",
        "katydid-cli",
        "katydid-driver-rules",
        "katydid-ptx",
        "katydid-ptx-exec",
        "katydid-ptx-forms",
    ];
    let mut cargo = shell::cargo(&tree.root, &["test", "--quiet"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    shell::run(cargo.env("KATYDID_BLESS", "1"))?;
    dist::run(tree, false)?;
    apps::run(tree)?;
    step("outputs of the programs under test");
    for app in catalog::apps()?.iter().filter(|app| app.is_test()) {
        output_of(tree, app).with_context(|| format!("{} cannot be blessed", app.name))?;
    }
    Ok(())
}

fn output_of(tree: &Tree, app: &App) -> Result<()> {
    let paths = tree.paths();
    let way = if app.runs_directly() {
        Way::Direct { name: "soft", folder: Some(paths.soft()) }
    } else {
        Way::Private { driver: "soft".to_owned() }
    };
    let variant = app.variants().first().context("it has no variant")?;
    let outcome = program::run(&mut way.command(&paths, &paths.program(&app.name, *variant)), PROGRAM_TIMEOUT)?;
    if !outcome.status.success() {
        bail!("{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    }
    let mut path = expected_path(&paths, &app.name)?;
    if !path.exists() {
        path = apps::folder(tree, app)?.join(EXPECTED_FOLDER).join(path.file_name().unwrap_or_default());
        let folder = path.parent().context("a text in no folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    if fs::read(&path).is_ok_and(|expected| expected == outcome.stdout) {
        return Ok(());
    }
    line(&format!("    {}", path.display()));
    fs::write(&path, &outcome.stdout).with_context(|| format!("cannot write {}", path.display()))
}
