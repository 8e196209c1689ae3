//! Locations of the installed binaries, the built programs and their expected outputs.
//!
//! There are two layouts: a checkout, with everything below cargo's target folder, and a pack, the folder that is sent to a GPU
//! machine.

mod texts;

use std::env;
use std::path::{Path, PathBuf};

use crate::catalog::Variant;

pub use texts::Texts;

/// Names the folder of a pack, for tests that run from one.
pub const PACK_VARIABLE: &str = "KATYDID_TEST_PACK";

/// Names the driver of the tests' servers: `auto`, `soft` (the default) or a path.
pub const DRIVER_VARIABLE: &str = "KATYDID_TEST_DRIVER";

/// Name of the folders with expected outputs.
pub const EXPECTED_FOLDER: &str = "expected";

/// Returns the driver for the tests' servers.
pub fn driver_under_test() -> String {
    env::var(DRIVER_VARIABLE).unwrap_or_else(|_| "soft".to_owned())
}

/// All locations that are needed to run a program under test.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Folder that contains `bin/katydid` and `lib/katydid`.
    pub dist: PathBuf,
    /// Folder with the programs, in one subfolder per variant.
    pub apps: PathBuf,
    /// Folders of the shared CUDA runtimes.
    pub runtimes: Vec<PathBuf>,
    /// Expected output of each program.
    pub expected: Texts,
    /// Expected output of each OpenCL program.
    pub expected_opencl: Texts,
    /// Programs that need a framework.
    pub frameworks: PathBuf,
}

/// Why the locations are unknown.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// The running binary does not lie in cargo's target folder.
    #[error("{0}: not below cargo's target folder; run the tests with `cargo xtask test`")]
    NoTarget(PathBuf),
    /// The path of the running binary is unknown.
    #[error("cannot tell where this program lies: {0}")]
    NoSelf(#[from] std::io::Error),
    /// Something is not built.
    #[error("{0} is missing; run `cargo xtask apps` and `cargo xtask dist` first")]
    NotBuilt(PathBuf),
}

impl Paths {
    /// Returns the paths of a checkout that cargo builds into `target`; the binaries are those of `target/dist`.
    pub fn of_checkout(target: &Path) -> Self {
        let toolkit = target.join("cuda-toolkit/nvidia");
        Self {
            dist: target.join("dist"),
            apps: target.join("apps"),
            runtimes: vec![toolkit.join("cu13/lib"), toolkit.join("cuda_runtime/lib")],
            expected: Texts::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("apps"), EXPECTED_FOLDER),
            expected_opencl: Texts::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("apps-opencl"), EXPECTED_FOLDER),
            frameworks: Path::new(env!("CARGO_MANIFEST_DIR")).join("frameworks"),
        }
    }

    /// Returns the paths of a folder that `cargo xtask gpu-test --pack` made.
    pub fn of_pack(folder: &Path) -> Self {
        Self {
            dist: folder.join("dist"),
            apps: folder.join("apps"),
            runtimes: vec![folder.join("runtimes")],
            expected: Texts::new(folder.join("texts/cuda"), EXPECTED_FOLDER),
            expected_opencl: Texts::new(folder.join("texts/opencl"), EXPECTED_FOLDER),
            frameworks: folder.join("frameworks"),
        }
    }

    /// Returns the paths for a test binary: the pack in the environment, else the checkout of the binary, which must be built.
    ///
    /// # Errors
    ///
    /// See [`PathsError`].
    pub fn of_this_test() -> Result<Self, PathsError> {
        if let Some(pack) = env::var_os(PACK_VARIABLE) {
            return Ok(Self::of_pack(Path::new(&pack)));
        }
        let binary = env::current_exe()?;
        // target/debug/deps/apps-0123456789abcdef
        let target = binary.ancestors().nth(3).ok_or_else(|| PathsError::NoTarget(binary.clone()))?;
        let paths = Self::of_checkout(target);
        for needed in [paths.katydid(), paths.shim().join("libcuda.so.1"), paths.soft().join("libcuda.so.1")] {
            if !needed.exists() {
                return Err(PathsError::NotBuilt(needed));
            }
        }
        if !paths.apps.exists() {
            return Err(PathsError::NotBuilt(paths.apps));
        }
        Ok(paths)
    }

    /// Returns the path of the command line tool.
    pub fn katydid(&self) -> PathBuf {
        self.dist.join("bin/katydid")
    }

    /// Returns the folder of the library for programs.
    pub fn shim(&self) -> PathBuf {
        self.dist.join("lib/katydid/shim")
    }

    /// Returns the root of the OpenCL driver under test, which exists if it could be fetched; in a pack, of a loader only.
    pub fn opencl(&self) -> PathBuf {
        self.apps.with_file_name("opencl")
    }

    /// Returns the cache that programs under test share, separate from the user's own.
    pub fn cache(&self) -> PathBuf {
        self.apps.with_file_name("cache")
    }

    /// Returns the folder of the driver library whose device is the CPU.
    pub fn soft(&self) -> PathBuf {
        self.dist.join("lib/katydid/soft")
    }

    /// Returns why a program was not built: programs with MPI ranks need Open MPI. `None`: it was built, or should have been.
    pub fn why_not_built(&self, name: &str, variant: Variant) -> Option<&'static str> {
        let is_missing = variant == Variant::Mpi && !self.program(name, variant).exists();
        is_missing.then_some("programs with ranks of MPI are not tested: there was no Open MPI to build them with")
    }

    /// Returns the path of a built program, by its CUDA runtime.
    pub fn program(&self, name: &str, variant: Variant) -> PathBuf {
        self.apps.join(variant.to_string()).join(name)
    }
}
