//! Checks the installed libraries, and which driver a worker would open.

use std::fs;
use std::path::Path;

use crate::doctor::finding::Finding;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::layout::{Layout, OPENCL_LOADER, has_loader};
use katydid_cli_core::opencl::Drivers;
use katydid_cli_core::probe::{Probe, ProbedDriver, probe_in_child, probe_opencl_in_child};

/// File in which the kernel module tells its version.
const NVIDIA_VERSION: &str = "/sys/module/nvidia/version";
/// Text for an OpenCL driver without a device.
const NO_DEVICE: &str = "it has no device";
/// Says which machine needs an OpenCL driver.
const OPENCL_MACHINE_HINT: &str =
    "programs of OpenCL need it only where they are served: on this machine, or on the one of --server";
const REINSTALL_HINT: &str = "run `cargo xtask dist`, or set KATYDID_LIB to the folder that holds shim/ and soft/";

/// Checks that the libraries of the installation exist.
pub(super) fn libraries() -> Vec<Finding> {
    match Layout::find() {
        Ok(layout) => {
            vec![library("library for programs", &layout.shim()), library("softcuda's library", &layout.soft())]
        }
        Err(error) => vec![Finding::fail("libraries", error.to_string(), REINSTALL_HINT)],
    }
}

/// Checks that a library exists; whether it works is tested by opening it, below.
fn library(check: &'static str, path: &Path) -> Finding {
    match path.is_file() {
        true => Finding::ok(check, path.display().to_string()),
        false => Finding::fail(check, format!("{}: no such file", path.display()), REINSTALL_HINT),
    }
}

/// Checks which driver `auto` takes and why, NVIDIA's kernel module, and whether softcuda works.
pub(super) fn drivers() -> Vec<Finding> {
    let version = nvidia_version();
    let auto = probe_in_child("auto");
    vec![nvidia(version.as_deref()), automatic(&auto, version.is_some()), soft(&probe_in_child("soft"))]
}

/// Checks what OpenCL programs need on their side, and the drivers that a server of this machine would use.
pub(super) fn opencl() -> Vec<Finding> {
    let library = match Layout::find() {
        Ok(layout) => layout.opencl().into_iter().find(|path| !path.is_file()),
        Err(_) => None,
    };
    let library = library.map(|path| {
        let detail = format!("{}: no such file, so programs of OpenCL find no platform", path.display());
        Finding::warn("library for OpenCL programs", detail, REINSTALL_HINT)
    });
    library.into_iter().chain([loader(has_loader()), opencl_drivers(probe_opencl_in_child())]).collect()
}

fn loader(is_there: bool) -> Finding {
    let check = "OpenCL loader";
    match is_there {
        true => Finding::ok(check, format!("{OPENCL_LOADER} is found")),
        false => Finding::ok(check, format!("no {OPENCL_LOADER}: programs get Katydid's own library under that name")),
    }
}

/// The finding about OpenCL drivers. A machine without one serves CUDA all the same.
fn opencl_drivers(drivers: Result<Drivers, String>) -> Finding {
    let check = "OpenCL drivers";
    match drivers {
        Ok(Drivers { platforms, tried }) if tried.is_empty() => Finding::ok(check, platforms.join(", ")),
        Ok(Drivers { platforms, tried }) => {
            Finding::ok(check, format!("{}; not: {}", platforms.join(", "), tried.join("; ")))
        }
        Err(reason) if reason.contains(NO_DEVICE) => {
            let first = "a driver is there and its device is not: see whether nvidia-smi lists one, and who may open /dev/nvidia*";
            Finding::warn(check, reason, format!("{first}; {OPENCL_MACHINE_HINT}"))
        }
        Err(reason) => Finding::warn(check, reason, OPENCL_MACHINE_HINT),
    }
}

/// The kernel module's version; `None` if it is not loaded.
fn nvidia_version() -> Option<String> {
    fs::read_to_string(NVIDIA_VERSION).ok().map(|text| text.trim().to_owned())
}

/// The finding about NVIDIA's driver. A machine without an NVIDIA GPU is healthy: programs run on softcuda, or elsewhere.
fn nvidia(version: Option<&str>) -> Finding {
    match version {
        Some(version) => Finding::ok("NVIDIA driver", format!("version {version}")),
        None => {
            Finding::ok("NVIDIA driver", "not loaded: programs of this machine use softcuda, or a server elsewhere")
        }
    }
}

/// The finding about `auto`. If it falls back to softcuda although a GPU should work, the low speed would surprise the user.
fn automatic(probe: &Probe, has_nvidia: bool) -> Finding {
    let check = "driver taken by auto";
    match probe {
        Probe::Works(facts) if facts.soft && has_nvidia => Finding::warn(
            check,
            format!(
                "softcuda, although NVIDIA's driver is loaded: its libcuda.so.1 did not initialise; {}",
                devices(facts)
            ),
            "see whether nvidia-smi works, and what CUDA_VISIBLE_DEVICES says",
        ),
        Probe::Works(facts) if facts.soft => {
            Finding::ok(check, format!("softcuda, as no NVIDIA GPU works here; {}", devices(facts)))
        }
        Probe::Works(facts) => Finding::ok(check, format!("{}; {}", facts.path.display(), devices(facts))),
        Probe::Fails(reason) => Finding::fail(check, reason.clone(), REINSTALL_HINT),
    }
}

/// The finding about softcuda, which works wherever Katydid does: a failure is one of the installation.
fn soft(probe: &Probe) -> Finding {
    match probe {
        Probe::Works(facts) => Finding::ok("softcuda", devices(facts)),
        Probe::Fails(reason) => Finding::fail("softcuda", reason.clone(), REINSTALL_HINT),
    }
}

/// `CUDA 13.0, 2 devices: NVIDIA H200 (139 GiB), …`.
fn devices(facts: &ProbedDriver) -> String {
    let names = facts.devices.iter().map(|(name, memory)| format!("{name} ({})", Size(*memory)));
    let (major, minor) = (facts.version / 1000, facts.version % 1000 / 10);
    format!("CUDA {major}.{minor}, {}", names.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    fn works(soft: bool) -> Probe {
        let devices = vec![("H200".to_owned(), 139 << 30)];
        Probe::Works(ProbedDriver { path: "/x/libcuda.so.1".into(), soft, version: 13000, devices })
    }

    #[test]
    fn softcuda_beside_a_loaded_nvidia_driver_is_a_warning() {
        assert_eq!(automatic(&works(true), true).status, Status::Warn);
        assert_eq!(automatic(&works(true), false).status, Status::Ok);
        assert_eq!(automatic(&Probe::Fails("no".into()), false).status, Status::Fail);
    }

    #[test]
    fn devices_are_named_with_their_memory() {
        assert!(automatic(&works(false), true).detail.ends_with("CUDA 13.0, H200 (139 GiB)"));
    }

    #[test]
    fn opencl_finding_lists_the_drivers_tried() {
        let found = Drivers { platforms: vec!["PoCL".into()], tried: vec!["/v: no".into()] };
        assert!(opencl_drivers(Ok(found)).detail.contains("PoCL; not: /v: no"));
        let none = opencl_drivers(Err("no OpenCL driver works here".into()));
        assert!(none.status == Status::Warn && none.remedy.as_deref() == Some(OPENCL_MACHINE_HINT), "{none:?}");
        let none = opencl_drivers(Err(format!("no OpenCL driver works here (/x.so: {NO_DEVICE})")));
        assert!(
            none.remedy.is_some_and(|remedy| remedy.contains("nvidia-smi") && remedy.ends_with(OPENCL_MACHINE_HINT))
        );
        assert!(loader(false).detail.contains(OPENCL_LOADER));
    }

    #[test]
    fn a_missing_library_is_named() {
        let finding = library("x", Path::new("/no/such/libcuda.so.1"));
        assert!(finding.status == Status::Fail && finding.detail.contains("/no/such/libcuda.so.1"));
    }
}
