//! Where the installed binaries, the built programs and their expected outputs lie.
//!
//! There are two arrangements: a checkout, where everything is below cargo's target folder, and a pack, the folder
//! that travels to a GPU machine.

use std::env;
use std::path::{Path, PathBuf};

use crate::catalog::Variant;

/// All places that running a program under test needs.
#[derive(Debug, Clone)]
pub struct Places {
    /// `bin/katydid` and `lib/katydid` are below it.
    pub dist: PathBuf,
    /// A folder a variant, with the programs.
    pub apps: PathBuf,
    /// Folders of the shared CUDA runtimes.
    pub runtimes: Vec<PathBuf>,
    /// A text a program.
    pub expected: PathBuf,
}

/// Why the places are not known.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// The running binary does not lie in cargo's target folder.
    #[error("{0}: not below cargo's target folder; run the tests with `cargo xtask test`")]
    NoTarget(PathBuf),
    /// The running binary is not known.
    #[error("cannot tell where this program lies: {0}")]
    NoSelf(#[from] std::io::Error),
    /// Something is not built.
    #[error("{0} is missing; run `cargo xtask apps` and `cargo xtask dist` first")]
    NotBuilt(PathBuf),
}

impl Places {
    /// A checkout whose cargo builds into `target`; the binaries are those of `target/dist`.
    pub fn of_checkout(target: &Path) -> Self {
        let toolkit = target.join("cuda-toolkit/nvidia");
        Self {
            dist: target.join("dist"),
            apps: target.join("apps"),
            runtimes: vec![toolkit.join("cu13/lib"), toolkit.join("cuda_runtime/lib")],
            expected: Path::new(env!("CARGO_MANIFEST_DIR")).join("apps/expected"),
        }
    }

    /// A folder made by `cargo xtask gpu-test --pack`.
    pub fn of_pack(folder: &Path) -> Self {
        Self {
            dist: folder.join("dist"),
            apps: folder.join("apps"),
            runtimes: vec![folder.join("runtimes")],
            expected: folder.join("expected"),
        }
    }

    /// For a test binary that cargo built: the checkout, with everything in it built.
    ///
    /// # Errors
    ///
    /// See [`PlacesError`].
    pub fn of_this_test() -> Result<Self, PlacesError> {
        let binary = env::current_exe()?;
        // target/debug/deps/apps-0123456789abcdef
        let target = binary.ancestors().nth(3).ok_or_else(|| PlacesError::NoTarget(binary.clone()))?;
        let places = Self::of_checkout(target);
        for needed in [places.katydid(), places.shim().join("libcuda.so.1"), places.soft().join("libcuda.so.1")] {
            if !needed.exists() {
                return Err(PlacesError::NotBuilt(needed));
            }
        }
        if !places.apps.exists() {
            return Err(PlacesError::NotBuilt(places.apps));
        }
        Ok(places)
    }

    /// The command line tool.
    pub fn katydid(&self) -> PathBuf {
        self.dist.join("bin/katydid")
    }

    /// Folder of the library that programs get.
    pub fn shim(&self) -> PathBuf {
        self.dist.join("lib/katydid/shim")
    }

    /// Folder of the driver library whose device is the CPU.
    pub fn soft(&self) -> PathBuf {
        self.dist.join("lib/katydid/soft")
    }

    /// A built program.
    pub fn program(&self, name: &str, variant: Variant) -> PathBuf {
        self.apps.join(variant.to_string()).join(name)
    }
}
