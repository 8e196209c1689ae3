//! Trial of a release on softcuda: it is fetched, run under `katydid trace`, and removed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::fetch::packages;
use crate::lookups::list::Lookup;
use crate::lookups::release::Release;
use crate::shell;
use crate::tree::Tree;

/// Options with which pip fetches a release and its dependencies.
const PIP_INSTALL: [&str; 6] = [
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--root-user-action=ignore",
    "--only-binary=:all:",
    "--no-compile",
];
/// Library whose symbols are looked up.
const CUDA_DRIVER_LIBRARY: &str = "libcuda.so.1";

/// Functions that `tests/releases/with_nccl.py` itself looks up by `dlsym`.
const OWN_LOOKUPS: [&str; 2] = ["cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"];

/// Results of a release.
#[derive(Debug)]
pub(super) struct Trial {
    /// All lookups.
    pub(super) lookups: BTreeSet<Lookup>,
    /// Lookups that the driver does not have.
    pub(super) absent: BTreeSet<Lookup>,
    /// Report of its program: `versions`, `passed` and `failed`.
    pub(super) report: Value,
    /// Functions that Katydid refused, by its lines on standard error.
    pub(super) refused: BTreeSet<String>,
}

impl Trial {
    /// Returns a line for the person who waits.
    pub(super) fn summary(&self) -> String {
        let names: Vec<&str> = self.absent.iter().map(|(name, _)| name.as_str()).collect();
        format!(
            "    {} lookups, {} not found ({}); passed {}; failed {}; refused {:?}",
            self.lookups.len(),
            names.len(),
            names.join(" "),
            self.report["passed"],
            self.report["failed"],
            self.refused
        )
    }
}

/// Fetches, runs and removes a release.
pub(super) fn run(tree: &Tree, release: &Release) -> Result<Trial> {
    let folder = tree.target.join("lookups");
    packages::remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // An environment is needed, since packages share folders, and `--target` omits a second package's part of them.
    let python = folder.join("python");
    shell::run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&python))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--python"]).arg(python.join("bin/python")).args(PIP_INSTALL);
    shell::run(pip.arg(release.requirement))?;
    let trial = traced(tree, release, &folder);
    packages::remove(&folder)?;
    trial
}

/// Runs the program of a release that lies in `folder`.
fn traced(tree: &Tree, release: &Release, folder: &Path) -> Result<Trial> {
    let (python, trace, bindings) = (folder.join("python"), folder.join("trace.json"), folder.join("bindings"));
    let mut command = Command::new(tree.target.join("dist/bin/katydid"));
    command.args(["trace", "--driver", "soft", "--no-gpu", "--text", "/dev/null", "--json"]).arg(&trace);
    command.args(["--", "env", "LD_DEBUG=bindings"]).arg(format!("LD_DEBUG_OUTPUT={}", bindings.display()));
    let program = tree.root.join("tests/releases").join(format!("with_{}.py", release.program));
    command.arg(python.join("bin/python")).arg(program).arg(&python);
    command.env("KATYDID_SOFT_DEVICES", "2").env("KATYDID_SOFT_MEMORY", "2G");
    let line = shell::show_command(&command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start: {line}"))?;
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let Some(report) = out.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok()) else {
        bail!("{line}: {}: it does not say what it did\n{out}{errors}", output.status);
    };
    let text = fs::read_to_string(&trace).with_context(|| format!("cannot read {}", trace.display()))?;
    let (mut lookups, mut absent) = recorded(&serde_json::from_str(&text).context("the trace is not JSON")?);
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.to_string_lossy().starts_with(&*bindings.to_string_lossy()) {
            take_bindings(&path, &mut lookups, &mut absent)?;
        }
    }
    let refused = errors.lines().filter_map(|line| line.strip_prefix("katydid: ")?.split_once(" is not supported"));
    Ok(Trial { lookups, absent, report, refused: refused.map(|(name, _)| name.to_owned()).collect() })
}

/// Returns the lookups by `cuGetProcAddress` and `cuGetExportTable` in a trace, and those among them without an answer.
fn recorded(trace: &Value) -> (BTreeSet<Lookup>, BTreeSet<Lookup>) {
    let (mut lookups, mut absent) = (BTreeSet::new(), BTreeSet::new());
    for lookup in trace["lookups"].as_array().into_iter().flatten() {
        let version = lookup["version"].as_u64().and_then(|version| version.try_into().ok()).unwrap_or(0);
        let one = (lookup["name"].as_str().unwrap_or_default().to_owned(), version);
        if lookup["is_found"] == false {
            absent.insert(one.clone());
        }
        lookups.insert(one);
    }
    (lookups, absent)
}

/// Takes lookups from the loader's messages about a process's symbols. The driver's own symbols are bound first when it is
/// loaded; each further binding is a `dlsym`.
fn take_bindings(path: &PathBuf, lookups: &mut BTreeSet<Lookup>, absent: &mut BTreeSet<Lookup>) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut own = BTreeSet::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        let line = String::from_utf8_lossy(&line);
        if let Some((is_own, name)) = bound(&line) {
            let is_dlsym = !is_own || !own.insert(name.to_owned());
            if is_dlsym && !OWN_LOOKUPS.contains(&name) {
                lookups.insert((name.to_owned(), 0));
            }
        } else if let Some(name) = unbound(&line) {
            lookups.insert((name.to_owned(), 0));
            absent.insert((name.to_owned(), 0));
        }
    }
    Ok(())
}

/// Returns the function of the driver that a library was bound to, and whether that library is the driver itself.
fn bound(line: &str) -> Option<(bool, &str)> {
    let (from, to) = line.split_once("binding file ")?.1.split_once(" to ")?;
    let (library, symbol) = to.split_once(": normal symbol `")?;
    let is_driver = |text: &str| text.split(' ').next().is_some_and(|path| path.ends_with(CUDA_DRIVER_LIBRARY));
    let name = symbol.split('\'').next()?;
    (is_driver(library) && is_function(name)).then(|| (is_driver(from), name))
}

/// Returns a function of the driver that `dlsym` did not find.
fn unbound(line: &str) -> Option<&str> {
    let name = line.split_once("undefined symbol: ")?.1.split([' ', ',']).next()?;
    is_function(name).then_some(name)
}

/// Returns whether a name belongs to the driver API: `cuInit` does, `cublasCreate` and `cuFileOpen` do not.
fn is_function(name: &str) -> bool {
    let rest = name.strip_prefix("cu").unwrap_or_default();
    rest.starts_with(|letter: char| letter.is_ascii_uppercase()) && !rest.starts_with("File")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_symbols_are_recognized() {
        let line = |from: &str, to: &str, name: &str| {
            format!("     42:\tbinding file {from} [0] to {to} [0]: normal symbol `{name}' [V1]")
        };
        let driver = "/opt/lib/libcuda.so.1";
        assert_eq!(bound(&line("/a/libnccl.so.2", driver, "cuInit")), Some((false, "cuInit")));
        assert_eq!(bound(&line(driver, driver, "cuInit")), Some((true, "cuInit")));
        assert_eq!(bound(&line("/a/b.so", "/a/libcublas.so.13", "cublasCreate_v2")), None);
        let missing = "     42:\t/a/b.so: error: symbol lookup error: undefined symbol: cuNew (fatal)";
        assert_eq!((unbound(missing), unbound("undefined symbol: cudaNew")), (Some("cuNew"), None));
    }

    #[test]
    fn failed_lookups_of_a_trace_are_absent() {
        let trace = serde_json::json!({"lookups": [
            {"name": "cuInit", "version": 2000, "is_found": true, "count": 1},
            {"name": "table X", "version": 0, "is_found": false, "count": 1},
        ]});
        let (lookups, absent) = recorded(&trace);
        assert_eq!((lookups.len(), absent), (2, BTreeSet::from([("table X".to_owned(), 0)])));
    }
}
