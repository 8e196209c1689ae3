//! A virtual machine for tests that need a different kernel: QEMU starts a Debian kernel with Katydid's binaries and some
//! programs under test in its memory.
//!
//! The folder `tests/NAME` has `init`, the only process of the project that the machine starts. It prints errors on the serial
//! line, and a success message in the last line if there are none. Packages are fetched like CRIU's (`fetch/criu.rs`), and QEMU
//! is started through its own loader. So nothing is installed, and everything runs the same on every machine. The processor helps
//! where it can (KVM); elsewhere QEMU does everything.

pub(crate) mod control_groups;
pub(crate) mod vsock;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::Variant;
use katydid_tests::program;
use katydid_tests::watch::WAIT_TIMEOUT;

use crate::fetch::criu::{clear, configure};
use crate::fetch::opencl::OPENCL_SOURCES;
use crate::output::{line, step};
use crate::tree::Tree;
use crate::{apps, dist, shell};

/// Pins: QEMU with all its dependencies, and packages without dependencies.
const QEMU_PACKAGE: &str = "qemu-system-x86=1:7.2+dfsg-7+deb12u18+b3";
const OTHER_PACKAGES: [&str; 2] =
    ["linux-image-6.1.0-50-cloud-amd64=6.1.176-1", "busybox-static=1:1.35.0-4+deb12u1+b1"];
/// Path of the kernel and its modules, in that package.
const KERNEL_FILE: &str = "boot/vmlinuz-6.1.0-50-cloud-amd64";
const MODULES_FOLDER: &str = "lib/modules/6.1.0-50-cloud-amd64/kernel";
/// Files installed by `dist` that the machine needs.
const INSTALLED_FILES: [&str; 5] = [
    "bin/katydid",
    "lib/katydid/shim/libcuda.so.1",
    "lib/katydid/shim/libkatydid_opencl.so",
    "lib/katydid/shim/libnvidia-ml.so.1",
    "lib/katydid/soft/libcuda.so.1",
];
/// Options of the machine: two processors, no devices except a serial line. It ends when its kernel does.
const MACHINE_OPTIONS: &str =
    "-cpu max -smp 2 -m 2048 -nodefaults -no-user-config -display none -no-reboot -serial stdio";
/// Options for the accelerator; QEMU takes the first that this machine has.
const BY_PROCESSOR: &str = "-accel kvm -accel tcg";
const BY_SOFTWARE: &str = "-accel tcg";
/// KVM by the processor. Other kinds of KVM only run kernels that were made for them.
const KVM_MODULE_FOLDERS: [&str; 2] = ["/sys/module/kvm_intel", "/sys/module/kvm_amd"];
const KVM_DEVICE: &str = "/dev/kvm";
/// Command line of the kernel: its console, to end when it panics, and to accept late timers of a busy machine.
const KERNEL_OPTIONS: &str = "console=ttyS0 panic=-1 no_timer_check quiet";

/// A machine, and its purpose.
pub(crate) struct Guest {
    /// Folder below `tests` with its `init`, which prints `NAME: ok` at the end if there is no error.
    name: &'static str,
    /// Description of the test, for people.
    tries: &'static str,
    /// Modules of its kernel, in loading order.
    modules: &'static [&'static str],
    /// Programs under test, each with the name of its folder.
    programs: &'static [(&'static str, &'static str)],
    /// Whether the machine has CRIU.
    has_criu: bool,
    /// Empty files that select further work of `init`.
    requests: Vec<&'static str>,
}

impl Guest {
    /// Fetches and builds the missing parts, and runs the machine to its end.
    pub(crate) fn run(&self, tree: &Tree) -> Result<()> {
        let root = fetch(tree)?;
        dist::run(tree, false)?;
        apps::run(tree)?;
        step(self.tries);
        let image = self.image(tree, &root)?;
        let output = start(&root, &image)?;
        line(output.trim_end());
        let well = format!("{}: ok", self.name);
        if !output.lines().any(|line| line.trim_end() == well) {
            bail!("not all is well; see what the machine said");
        }
        clear(&image)
    }

    /// Packs the content of the machine's memory into the one file that its kernel unpacks.
    fn image(&self, tree: &Tree, root: &Path) -> Result<PathBuf> {
        let folder = tree.target.join("guest").join(self.name);
        clear(&folder)?;
        let copy = |from: &Path, at: &str| {
            let to = folder.join(at);
            fs::create_dir_all(to.parent().unwrap_or(&folder))
                .with_context(|| format!("cannot make {}", to.display()))?;
            fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display())).map(drop)
        };
        copy(&tree.root.join("tests").join(self.name).join("init"), "init")?;
        copy(&root.join("bin/busybox"), "bin/busybox")?;
        for module in self.modules {
            copy(&root.join(MODULES_FOLDER).join(module), &format!("modules/{module}"))?;
        }
        fs::create_dir_all(folder.join("modules")).context("cannot make a folder for modules")?;
        fs::write(folder.join("modules/order"), self.modules.join("\n")).context("cannot name the modules")?;
        let mut libraries = BTreeSet::new();
        for file in INSTALLED_FILES {
            let installed = tree.target.join("dist").join(file);
            copy(&installed, &format!("katydid/{file}"))?;
            // Debug information is the largest part. If strip is missing, the machine still has room for it.
            shell::works("strip", &[&folder.join("katydid").join(file).to_string_lossy()]);
            libraries.extend(needed(&installed)?);
        }
        for (at, name) in self.programs {
            let program = tree.paths().program(name, Variant::Static);
            copy(&program, &format!("{at}/{name}"))?;
            libraries.extend(needed(&program)?);
        }
        if self.has_criu {
            let criu = "lib/katydid/criu";
            let (from, to) = (tree.target.join("dist").join(criu), folder.join("katydid").join(criu));
            shell::run(Command::new("cp").arg("--archive").arg(from).arg(to))?;
        }
        for library in libraries {
            copy(&library, &library.to_string_lossy()[1..])?;
        }
        for file in &self.requests {
            fs::write(folder.join(file), "").with_context(|| format!("cannot make {file}"))?;
        }
        let image = folder.with_extension("cpio");
        pack(&root.join("bin/busybox"), &folder, &image)?;
        clear(&folder)?;
        Ok(image)
    }
}

/// Returns the folder of the unpacked packages, and fetches them unless they are there.
fn fetch(tree: &Tree) -> Result<PathBuf> {
    let (root, work) = (tree.target.join("guest/root"), tree.target.join("guest/new"));
    let stamp = root.join("pins.txt");
    let pins = format!("{QEMU_PACKAGE}\n{}\n", OTHER_PACKAGES.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == pins) {
        return Ok(root);
    }
    step("fetching QEMU and a kernel (106 packages of Debian, 70 MB)");
    let mut failures = Vec::new();
    let found = OPENCL_SOURCES.iter().any(|source| {
        let outcome = from(source, &work);
        outcome.map_err(|error| failures.push(format!("{source}: {error:#}"))).is_ok()
    });
    if !found {
        bail!("cannot fetch QEMU and a kernel:\n{}", failures.join("\n"));
    }
    fs::write(work.join("root/pins.txt"), pins).context("cannot write the stamp")?;
    clear(&root)?;
    fs::rename(work.join("root"), &root).with_context(|| format!("cannot place {}", root.display()))?;
    clear(&work)?;
    Ok(root)
}

/// Makes `work/root` from the packages of `source`.
fn from(source: &str, work: &Path) -> Result<()> {
    clear(work)?;
    let archives = work.join("cache/archives");
    for folder in [work.join("state/lists/partial"), archives.join("partial"), work.join("root")] {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let config = configure(source, work)?;
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("APT_CONFIG", &config).env("DEBIAN_FRONTEND", "noninteractive");
        shell::read(command.current_dir(&archives))
    };
    apt(&["update", "-qq"])?;
    apt(&["install", "-y", "-qq", "--download-only", "--no-install-recommends", QEMU_PACKAGE])?;
    apt(&[&["download", "-qq"], &OTHER_PACKAGES[..]].concat())?;
    for entry in fs::read_dir(&archives).with_context(|| format!("cannot read {}", archives.display()))? {
        let path = entry.context("cannot read the packages")?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            shell::run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(work.join("root")))?;
        }
    }
    Ok(())
}

/// Returns the libraries that a program or library of this machine loads.
fn needed(file: &Path) -> Result<BTreeSet<PathBuf>> {
    let listed = shell::read(Command::new("ldd").arg(file).env_remove("LD_LIBRARY_PATH"))?;
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(paths.filter(|path| path.is_file()).collect())
}

/// Packs a folder in the format for kernels.
fn pack(busybox: &Path, folder: &Path, image: &Path) -> Result<()> {
    let names = shell::read(Command::new(busybox).args(["find", "."]).current_dir(folder))?;
    let file = fs::File::create(image).with_context(|| format!("cannot make {}", image.display()))?;
    let mut packer = Command::new(busybox);
    packer.args(["cpio", "-o", "-H", "newc"]).current_dir(folder);
    let mut child = packer.stdin(Stdio::piped()).stdout(file).stderr(Stdio::null()).spawn().context("cannot pack")?;
    // The packer ends at the end of the list, so the pipe is closed before the wait.
    child.stdin.take().context("no pipe")?.write_all(names.as_bytes()).context("cannot name the files")?;
    let status = child.wait().context("cannot pack")?;
    if status.success() { Ok(()) } else { bail!("cannot pack the machine's memory ({status})") }
}

/// Starts the machine, waits for its end, and returns its output on the serial line.
fn start(root: &Path, image: &Path) -> Result<String> {
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|folder| root.join(folder));
    let libraries = std::env::join_paths(libraries).context("the target folder has a colon in its name")?;
    let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(libraries).arg(root.join("usr/bin/qemu-system-x86_64"));
    // QEMU looks for its modules beside its executable, which is the loader.
    command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
    for folder in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(root.join(folder));
    }
    command.args(accelerator().split(' ')).args(MACHINE_OPTIONS.split(' ')).args(["-append", KERNEL_OPTIONS]);
    let outcome =
        program::run(command.arg("-kernel").arg(root.join(KERNEL_FILE)).arg("-initrd").arg(image), WAIT_TIMEOUT)?;
    if !outcome.status.success() {
        bail!("the machine: {}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    }
    Ok(outcome.text())
}

/// Returns the accelerator option for this machine.
fn accelerator() -> &'static str {
    let has_processor = KVM_MODULE_FOLDERS.iter().any(|module| Path::new(module).exists());
    let is_open = || fs::File::options().read(true).write(true).open(KVM_DEVICE).is_ok();
    if has_processor && is_open() {
        return BY_PROCESSOR;
    }
    line("QEMU does everything: the processor does not help here (KVM)");
    BY_SOFTWARE
}
