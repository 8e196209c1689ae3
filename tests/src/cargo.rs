//! Runs cargo for tests and chores.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

/// Prefixes of the variables in which cargo describes a program's own package.
const OF_PACKAGE: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"];
/// The alias of cargo that builds what `cargo xtask dist` installs (`.cargo/config.toml`).
const BUILD_INSTALLED: &str = "build-installed";

/// Returns a command for the cargo that started this process, without variables of the calling package. Build scripts of
/// dependencies read those: with values other than at the last build, cargo would rebuild all dependents.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_package = |name: &OsString| OF_PACKAGE.iter().any(|start| name.as_bytes().starts_with(start.as_bytes()));
    for name in env::vars_os().map(|(name, _)| name).filter(of_package) {
        command.env_remove(name);
    }
    command
}

/// Builds softcuda once per process, and returns its library: cargo puts it beside the test that calls this.
///
/// # Panics
///
/// It cannot be built, or the test is not in a target folder.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn softcuda() -> PathBuf {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let status = cargo().arg(BUILD_INSTALLED).status().expect("cannot start cargo");
        assert!(status.success(), "cargo {BUILD_INSTALLED}: {status}");
    });
    let test = env::current_exe().expect("a test has a path");
    test.ancestors().nth(2).expect("a test lies in target/debug/deps").join("libkatydid_softcuda.so")
}
