//! Libraries made for the test: which are opened, which are refused, and with which messages.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use katydid_driver::{Driver, DriverChoice, DriverError, open};
use tempfile::TempDir;

const WORKING: &str = "
    unsigned cuDriverGetVersion(int *version) { *version = 12000; return 0; }
    unsigned cuInit(unsigned flags) { return 0; }
    unsigned cuDeviceGetCount(int *count) { *count = 2; return 0; }
";

/// Builds a library from this C text.
fn library(folder: &TempDir, text: &str) -> PathBuf {
    let (source, built) = (folder.path().join("driver.c"), folder.path().join("libcuda.so.1"));
    fs::write(&source, text).unwrap();
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&built, &source]).status().unwrap();
    assert!(status.success());
    built
}

fn open_text(text: &str) -> Result<Driver, DriverError> {
    let folder = tempfile::tempdir().unwrap();
    let path = library(&folder, text);
    open(&DriverChoice::Path(path), None).map(Driver::new)
}

#[test]
fn a_working_library_is_opened_whatever_else_it_lacks() {
    let driver = open_text(WORKING).unwrap();
    assert!(!driver.is_soft());
    assert!(driver.path().is_some_and(|path| path.ends_with("libcuda.so.1")));
}

#[test]
fn our_own_library_for_programs_is_refused_in_clear_words() {
    let error = open_text(&format!("{WORKING} void katydid_shim_marker(void) {{}}")).err().unwrap();
    assert!(matches!(error, DriverError::OwnShim { .. }));
    assert!(error.to_string().contains("LD_LIBRARY_PATH"), "{error}");
}

#[test]
fn a_driver_that_does_not_start_says_with_which_code() {
    let error =
        open_text(&WORKING.replace("cuInit(unsigned flags) { return 0;", "cuInit(unsigned flags) { return 100;"));
    assert!(matches!(error.err(), Some(DriverError::Init { function: "cuInit", code: 100, .. })));
}

#[test]
fn a_driver_that_is_too_old_says_so_with_both_versions_and_is_not_started() {
    let old = WORKING
        .replace("12000", "11080")
        .replace("return 0; }\n    unsigned cuDeviceGetCount", "__builtin_trap(); }\n    unsigned cuDeviceGetCount");
    let error = open_text(&old).err().unwrap();
    assert!(matches!(error, DriverError::TooOld { found: 11080, .. }), "{error}");
    let text = error.to_string();
    for word in ["CUDA 11.8", "CUDA 12.0", "driver 525", "libcuda.so.1"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_driver_without_a_device_is_of_no_use() {
    let error = open_text(&WORKING.replace("*count = 2", "*count = 0"));
    assert!(matches!(error.err(), Some(DriverError::NoDevice { .. })));
}

#[test]
fn softcuda_is_opened_by_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = library(&folder, &format!("{WORKING} void katydid_softcuda_marker(void) {{}}"));
    let opened = open(&DriverChoice::Soft, Some(&path)).unwrap();
    assert!(opened.is_soft());
    assert_eq!((opened.devices(), opened.path()), (2, path.as_path()));
    let error = open(&DriverChoice::Soft, Some(Path::new("/no/such/file"))).err().unwrap();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}
