//! Checks the folder of data that is kept for later programs: hashes of modules that programs load, and the module cache of
//! servers.

use std::ffi::OsString;

use katydid_cli_core::args::config;
use katydid_cli_core::server::module_cache::{check_config, check_writable};
use katydid_client::cache;

use crate::doctor::finding::Finding;

/// Name of the check.
const CACHE_CHECK_NAME: &str = "cache";
/// Remedy if nothing can be kept.
const CACHE_REMEDY: &str =
    "set KATYDID_CACHE to a folder that you can write to, with free space, or let this user write there";

/// Checks whether files can be kept there. Programs also run without.
pub(super) fn check(variable: impl Fn(&str) -> Option<OsString>) -> Finding {
    let without = "each program hashes its modules, and each server has them sent, anew";
    let Some(folder) = cache::folder(variable) else {
        return Finding::warn(
            CACHE_CHECK_NAME,
            format!("HOME is not set, so there is no folder for it: {without}"),
            CACHE_REMEDY,
        );
    };
    let path = folder.display();
    match check_writable(&folder) {
        Ok(()) => Finding::ok(CACHE_CHECK_NAME, format!("in {path}")),
        Err(error) => Finding::warn(
            CACHE_CHECK_NAME,
            format!("{path}: no files can be made there: {error}: {without}"),
            CACHE_REMEDY,
        ),
    }
}

/// Returns a finding if the config file has a malformed size of the module cache, which `run` and `serve` would refuse.
pub(super) fn config_size() -> Option<Finding> {
    // Another error of the file is the server check's.
    let file = config::own().ok()??;
    let error = check_config(&file).err()?;
    Some(Finding::fail(CACHE_CHECK_NAME, error.to_string(), "write a size such as 4G, or remove the line"))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_to_is_named_with_the_remedy() {
        let home = tempfile::tempdir().unwrap();
        let of = |folder: &str| check(|name| (name == "KATYDID_CACHE").then(|| folder.into()));
        assert_eq!(of(home.path().join("new").to_str().unwrap()).status, Status::Ok);
        // Not even root can create files there.
        let finding = of("/proc/self/fdinfo");
        assert!(finding.status == Status::Warn && finding.detail.contains("/proc/self/fdinfo"), "{finding:?}");
        assert_eq!(check(|_| None).status, Status::Warn);
    }
}
