//! Probes a driver library in a process of its own: a driver that crashes or hangs affects only that process.

#![expect(unsafe_code, reason = "three questions to a driver library")]

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use katydid_driver::{Driver, DriverChoice, OpenLibrary};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::layout::{self, Layout};
use crate::opencl::Drivers;
use crate::output::failure::{Failure, Outcome};

/// Result of a probe of the driver library, as the probe prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// A library that works.
    Works(ProbedDriver),
    /// No library works; the text says why.
    Fails(String),
}

/// A working driver library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedDriver {
    /// The path by which it was loaded.
    pub path: PathBuf,
    /// Whether it is softcuda.
    pub soft: bool,
    /// CUDA version, such as 13000 for 13.0.
    pub version: i32,
    /// Name and bytes of memory of each device.
    pub devices: Vec<(String, u64)>,
}

/// Runs the probing process: prints a [`Probe`].
pub fn main(driver: &str) -> Outcome {
    let text = serde_json::to_string(&probe(driver)).map_err(Failure::work)?;
    writeln!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the library as a worker would.
fn probe(driver: &str) -> Probe {
    let soft = Layout::find().ok().map(|layout| layout.soft()).filter(|path| path.is_file());
    let choice: DriverChoice = driver.parse().unwrap_or_default();
    match katydid_driver::open(&choice, soft.as_deref()) {
        Ok(library) => Probe::Works(facts(library)),
        Err(error) => Probe::Fails(error.to_string()),
    }
}

/// Asks an initialised library for the facts by which users know a driver.
fn facts(library: OpenLibrary) -> ProbedDriver {
    let (path, soft, count) = (library.path().to_owned(), library.is_soft(), library.devices());
    let driver = Driver::new(library);
    let mut version = 0;
    // SAFETY: `version` is writable for the call. A driver that refuses leaves it 0, which is shown as it is.
    let _ = unsafe { driver.cuDriverGetVersion(&raw mut version) };
    let devices = (0..i32::try_from(count).unwrap_or(i32::MAX)).map(|ordinal| device(&driver, ordinal)).collect();
    ProbedDriver { path, soft, version, devices }
}

/// Name and memory of a device; the name is empty if the device does not answer.
fn device(driver: &Driver, ordinal: i32) -> (String, u64) {
    let (mut device, mut name, mut memory) = (Default::default(), [0; 256], 0usize);
    // SAFETY: each pointer is writable for its call, and the name's length is that of the array.
    let results = unsafe {
        [
            driver.cuDeviceGet(&raw mut device, ordinal),
            driver.cuDeviceGetName(name.as_mut_ptr(), 255, device),
            driver.cuDeviceTotalMem_v2(&raw mut memory, device),
        ]
    };
    if results.into_iter().any(|result| result.ok().is_err()) {
        return (String::new(), 0);
    }
    let text: Vec<u8> = name.iter().take_while(|&&c| c != 0).map(|c| c.to_le_bytes()[0]).collect();
    (String::from_utf8_lossy(&text).into_owned(), memory as u64)
}

/// Probes a driver library in a process of its own.
pub fn probe_in_child(driver: &str) -> Probe {
    run_in_process(&["probe-driver", driver]).unwrap_or_else(Probe::Fails)
}

/// Looks for OpenCL drivers in a process of its own.
pub fn probe_opencl_in_child() -> Result<Drivers, String> {
    run_in_process(&["probe-opencl"]).and_then(|found: Result<Drivers, String>| found)
}

/// Runs a hidden command of katydid, which must not see the shim, and parses its output.
fn run_in_process<T: DeserializeOwned>(arguments: &[&str]) -> Result<T, String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    if let Some(path) = Layout::find().ok().and_then(|layout| layout.driver_search()) {
        command.env(layout::SEARCH_PATH_VARIABLE, path);
    }
    match command.output() {
        Ok(output) if output.status.success() => {
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
        }
        Ok(output) => Err(format!("the process that tried it ended with {}", output.status)),
        Err(error) => Err(format!("it could not be tried: /proc/self/exe, with /dev/null as its input: {error}")),
    }
}
