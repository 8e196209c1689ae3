//! The checkout and its target folder.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use katydid_tests::paths::Paths;

/// Folders of the sources and of the build outputs.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    /// Root of the checkout.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
}

impl Tree {
    /// Finds the checkout that this program was built from.
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("xtask lies in no checkout")?.to_owned();
        // The running program is target/debug/xtask, wherever the target folder is.
        let binary = env::current_exe().context("cannot tell where this program lies")?;
        let target = binary.ancestors().nth(2).context("this program lies in no target folder")?.to_owned();
        Ok(Self { root, target })
    }

    /// Returns the CUDA toolkit of version 13, once `setup` has run.
    pub(crate) fn cuda(&self) -> PathBuf {
        self.target.join("cuda-toolkit/nvidia/cu13")
    }

    /// Returns the runtime of CUDA 12 and its headers.
    pub(crate) fn cuda12(&self) -> PathBuf {
        self.target.join("cuda-toolkit/nvidia/cuda_runtime")
    }

    /// Returns the sources of the programs under test.
    pub(crate) fn app_sources(&self) -> PathBuf {
        self.root.join("tests/apps")
    }

    /// Returns the paths of the installed binaries and built programs.
    pub(crate) fn paths(&self) -> Paths {
        Paths::of_checkout(&self.target)
    }
}
