//! OpenCL drivers that workers of this machine would find.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::output::failure::{Failure, Outcome};

/// OpenCL drivers that workers of this machine would find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drivers {
    /// Names of the platforms that work.
    pub platforms: Vec<String>,
    /// Libraries that do not work, each with the reason.
    pub tried: Vec<String>,
}

/// Runs the probing process: prints [`Drivers`], or why there are none.
pub fn probe() -> Outcome {
    let found = katydid_worker::opencl_drivers().map(|(platforms, tried)| Drivers { platforms, tried });
    writeln!(io::stdout(), "{}", serde_json::to_string(&found).map_err(Failure::work)?)?;
    Ok(ExitCode::SUCCESS)
}
