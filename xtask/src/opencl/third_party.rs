//! Third-party programs that use OpenCL, natively on PoCL and through Katydid: their outputs must be equal.
//!
//! `tests/opencl-programs/run.sh` runs them, and the code here fetches its prerequisites: Debian's packages, a separate Python
//! with PyOpenCL, and PyOpenCL's own tests. As with PoCL itself (`opencl.rs`), parts that cannot be fetched are reported and not
//! tested.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::slice::Slice;

use crate::fetch::criu::clear;
use crate::fetch::{debian, opencl, packages};
use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;

/// Pinned packages, each with its version.
const PROGRAM_PINS: &str = include_str!("../../opencl-programs.txt");
/// Pins of the Python packages.
const OPENCL_PYTHON_PINS: &str = include_str!("../../opencl-python.txt");
/// Address and hash of PyOpenCL's sources, whose tests are in no wheel.
const TEST_SOURCES: [&str; 2] = [
    "https://files.pythonhosted.org/packages/0a/a9/b6133777fc20be05faa88c4dbae9cc0d26d6dc1395c45770ec49b56edc4b/pyopencl-2026.1.4.tar.gz",
    "6cb9544a004609061e86873fe36500da6c2101042e9c7b9c3b804a29a12b98bf",
];
/// Script that reads an address, a hash and a folder, and puts the tests of PyOpenCL there.
const FETCH_SCRIPT: &str = "
import hashlib, io, sys, tarfile, time, urllib.request
address, wanted, folder = sys.argv[1:]
for attempt in range(4):
    try:
        data = urllib.request.urlopen(address, timeout=60).read()
        break
    except OSError:
        if attempt == 3: raise
        time.sleep(5 << attempt)
assert hashlib.sha256(data).hexdigest() == wanted, 'not what was pinned'
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    for member in archive.getmembers():
        parts = member.name.split('/')
        if len(parts) == 3 and parts[1] == 'test' and member.isfile():
            open(folder + '/' + parts[2], 'wb').write(archive.extractfile(member).read())
";
/// Path of ViennaCL's pages, below the root of its documents.
const VIENNACL_PAGES: &str = "usr/share/doc/libviennacl-dev/html";
/// Programs in runs of the tests, a slice in each run; of PyOpenCL's long tests `slice` takes a smaller part.
const BRIEF_RUNS: [&str; 16] = [
    "clinfo",
    "blas",
    "clblast_test_xdot",
    "vienna",
    "vienna_custom-context",
    "vienna_custom-kernels",
    "vienna_fft",
    "vienna_matrix-free",
    "pyopencl",
    "openmm",
    "hashcat",
    "clpeak",
    "test_enqueue_copy",
    "test_arrays_in_structs",
    "fine_grain",
    "slice",
];
/// Programs without slices, which are run by hand.
const WHOLE_RUNS: [&str; 7] = [
    "clblast_test_xaxpy",
    "clblast_test_xgemv",
    "test_wrapper",
    "test_clmath",
    "test_clrandom",
    "test_algorithm",
    "test_array",
];
/// Number of slices of the brief programs.
const BRIEF_SLICES: u64 = 8;
/// Number of slices of PyOpenCL's long tests.
const LONG_SLICES: u64 = 32;

/// Fetches the missing parts, and runs a slice of the brief programs, or all of them.
pub(crate) fn test(tree: &Tree, runs_everything: bool) -> Result<()> {
    if !opencl::root(tree).exists() {
        return Ok(());
    }
    if let Err(error) = fetch(tree) {
        line(&format!("programs of other people that use OpenCL are not tested: {error:#}"));
        return Ok(());
    }
    let slice = Slice::of_commit(&tree.root, runs_everything);
    let names: Vec<&str> = BRIEF_RUNS.into_iter().filter(|name| slice.has(name, BRIEF_SLICES)).collect();
    run(tree, &names)
}

/// Runs all programs, or those that are named. The outputs of all ways must be equal.
pub(crate) fn run_here(tree: &Tree, names: &[String]) -> Result<()> {
    fetch(tree)?;
    let all: Vec<&str> = BRIEF_RUNS.into_iter().chain(WHOLE_RUNS).collect();
    let named: Vec<&str> = names.iter().map(String::as_str).collect();
    run(tree, if named.is_empty() { &all } else { &named })
}

fn run(tree: &Tree, names: &[&str]) -> Result<()> {
    step("programs of other people on PoCL, natively and through Katydid");
    let mut script = Command::new(tree.root.join("tests/opencl-programs/run.sh"));
    script.arg(folder(tree)).args(names).env("KATYDID", tree.target.join("dist/bin/katydid"));
    let number = Slice::of_commit(&tree.root, false).number(LONG_SLICES) + 1;
    shell::run(script.env("SLICE", format!("{number}/{LONG_SLICES}")))
}

/// Returns the folder of all programs.
pub(crate) fn folder(tree: &Tree) -> PathBuf {
    tree.target.join("opencl-programs")
}

/// Puts hashcat beside all files that it reads: if it is not installed, it looks beside itself.
fn arrange_hashcat(folder: &Path) -> Result<()> {
    let (root, hashcat_folder) = (folder.join("root/usr"), folder.join("hashcat"));
    fs::create_dir_all(&hashcat_folder).with_context(|| format!("cannot make {}", hashcat_folder.display()))?;
    let data = fs::read_dir(root.join("share/hashcat")).context("there is no hashcat in its package")?;
    let data = data.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    for path in data.context("cannot read hashcat's data")?.into_iter().chain([root.join("lib/hashcat/modules")]) {
        let name = path.file_name().context("a file without a name")?;
        let link = hashcat_folder.join(name);
        // The data has an empty folder of that name.
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
        }
        symlink(&path, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    // hashcat finds its files by its own location, so it must not be a link.
    fs::copy(root.join("bin/hashcat"), hashcat_folder.join("hashcat")).context("cannot place hashcat").map(drop)
}

/// Unpacks the pages of ViennaCL's documents from the package in `work`: its examples are nowhere else.
fn take_pages(folder: &Path, work: &Path) -> Result<()> {
    let documents = work.join("documents");
    for entry in fs::read_dir(work.join("packages")).context("cannot read the packages")? {
        let path = entry.context("cannot read the packages")?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libviennacl-doc")) {
            shell::run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&documents))?;
        }
    }
    fs::rename(documents.join(VIENNACL_PAGES), folder.join("vienna-pages")).context("cannot place ViennaCL's pages")
}

/// Fetches the missing parts.
pub(crate) fn fetch(tree: &Tree) -> Result<()> {
    let folder = &folder(tree);
    let stamp = folder.join("pins.txt");
    let pins = format!("{PROGRAM_PINS}{OPENCL_PYTHON_PINS}{}{VIENNACL_PAGES}", TEST_SOURCES.concat());
    if fs::read_to_string(&stamp).is_ok_and(|text| text == pins) {
        return Ok(());
    }
    if !debian::has_apt() {
        bail!("this takes apt-get and dpkg-deb");
    }
    step("fetching programs that use OpenCL (14 packages of Debian, 14 wheels and sources of PyPI, 67 MB)");
    clear(folder)?;
    let work = folder.join("new");
    if let Err(failures) =
        debian::from_one_of(&opencl::OPENCL_SOURCES, |source| debian::unpack(source, &work, PROGRAM_PINS))
    {
        bail!("{failures}");
    }
    fs::rename(work.join("root"), folder.join("root")).context("cannot place the packages")?;
    take_pages(folder, &work)?;
    clear(&work)?;
    arrange_hashcat(folder)?;
    packages::environment(&folder.join("python"), &tree.root.join("xtask/opencl-python.txt"))?;
    let tests = folder.join("pyopencl-tests");
    fs::create_dir_all(&tests).with_context(|| format!("cannot make {}", tests.display()))?;
    shell::run(Command::new("python3").args(["-c", FETCH_SCRIPT]).args(TEST_SOURCES).arg(&tests))?;
    fs::write(&stamp, pins).context("cannot write the stamp")
}
