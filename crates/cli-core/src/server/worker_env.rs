//! Selects the variables of a server's environment that its workers get.
//!
//! An operator's environment may hold secrets, and a worker runs other users' code. So workers get only the variables that
//! drivers, their compilers and Katydid read, selected by prefixes of the names; `--worker-env` adds further ones. Names that
//! look like those of secrets never pass by a prefix. `docs/reference/environment.md` has the lists.

use std::env;
use std::ffi::{OsStr, OsString};

use crate::output::failure::Failure;

/// Variables that are passed on by name.
const PASSED_VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TMP",
    "TEMP",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "GLIBC_TUNABLES",
    "RUST_BACKTRACE",
];

/// Prefixes of variables that are passed on: the loader's and the language's, CUDA's, Katydid's, and those of OpenCL and its
/// drivers.
const PASSED_PREFIXES: [&str; 34] = [
    "LC_", "LD_", "MALLOC_", "CUDA_", "NVIDIA_", "KATYDID_", "OCL_", "OPENCL_", "CL_", "POCL_", "LLVM_", "OMP_",
    "KMP_", "TBB_", "INTEL_", "ONEAPI_", "SYCL_", "ZE_", "IGC_", "NEO_", "ROCR_", "HSA_", "HIP_", "AMD_", "GPU_",
    "MESA_", "RUSTICL_", "GALLIUM_", "LIBGL_", "LP_", "ASAN_", "LSAN_", "TSAN_", "UBSAN_",
];

/// Parts of the names of secrets.
const SECRET_NAME_PARTS: [&str; 8] = ["KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "COOKIE", "AUTH"];

/// Whether workers get a variable of this name.
pub fn passes(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_driver_s = || PASSED_PREFIXES.iter().any(|start| name.starts_with(start));
    let is_secret = || SECRET_NAME_PARTS.iter().any(|part| name.to_ascii_uppercase().contains(part));
    PASSED_VARIABLES.contains(&name) || (is_driver_s() && !is_secret())
}

/// The variables of these names that are set.
pub fn named(names: &[String]) -> Vec<(OsString, OsString)> {
    names.iter().filter_map(|name| Some((name.into(), env::var_os(name)?))).collect()
}

/// Refuses names that no variable can have.
pub fn check(names: &[String]) -> Result<(), Failure> {
    match names.iter().find(|name| name.is_empty() || name.contains('=')) {
        Some(name) => Err(Failure::usage(format!(
            "--worker-env: {name:?} is not the name of a variable; give the name alone, and set it for the server"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_given_by_its_name_alone() {
        assert!(check(&["HTTP_PROXY".into()]).is_ok());
        for wrong in ["A=1", ""] {
            assert!(check(&[wrong.into()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn drivers_have_their_settings_and_no_secret() {
        for name in ["PATH", "CUDA_CACHE_PATH", "POCL_DEVICES", "OCL_ICD_VENDORS", "KATYDID_SOFT_MEMORY", "LC_ALL"] {
            assert!(passes(name.as_ref()), "{name}");
        }
        for name in
            ["AWS_SECRET_ACCESS_KEY", "SECRET", "NVIDIA_API_KEY", "CL_token", "SSH_AUTH_SOCK", "PATHS", "cuda_x"]
        {
            assert!(!passes(name.as_ref()), "{name}");
        }
    }
}
