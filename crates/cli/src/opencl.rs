//! What this machine has for programs of OpenCL: a loader on their side, drivers on the server's.

#![expect(unsafe_code, reason = "opens the loader's library to see whether there is one")]

use std::io::{self, Write};
use std::process::ExitCode;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use serde::{Deserialize, Serialize};

use crate::layout::LOADER;
use crate::output::failure::{Failure, Outcome};

/// What workers of this machine would find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Drivers {
    /// Names of platforms.
    pub(crate) platforms: Vec<String>,
    /// What was tried in vain, and why it was.
    pub(crate) tried: Vec<String>,
}

/// Whether a program that is linked with a loader of OpenCL finds one.
pub(crate) fn has_loader() -> bool {
    // SAFETY: a loader does nothing before its first call; what it would do is what it does in every OpenCL program.
    unsafe { Library::open(Some(LOADER), RTLD_LAZY | RTLD_LOCAL) }.is_ok()
}

/// The probing process: prints [`Drivers`], or in their place why there are none.
pub(crate) fn probe() -> Outcome {
    let found = katydid_worker::opencl_drivers().map(|(platforms, tried)| Drivers { platforms, tried });
    writeln!(io::stdout(), "{}", serde_json::to_string(&found).map_err(Failure::work)?)?;
    Ok(ExitCode::SUCCESS)
}
