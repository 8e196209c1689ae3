//! Katydid over vsock, which few machines have: a kernel of Debian's that knows how to loop it back, started in QEMU without
//! the help of this machine's processor, with our binaries and a few programs under test in its memory.
//!
//! `tests/vsock/init` is that machine's only process of its own: it starts a server, runs each program without Katydid and
//! through vsock, one of them with checkpoints and restores, and says on the serial line whether they print the same. Packages
//! come as CRIU's do (`criu.rs`), and QEMU is started through its own loader, so that nothing is installed and everything runs
//! the same on every machine.

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
use crate::fetch::opencl::SOURCES;
use crate::output::{line, step};
use crate::tree::Tree;
use crate::{apps, dist, shell};

/// The pins: QEMU, with all that it needs in turn, and what needs nothing.
const QEMU: &str = "qemu-system-x86=1:7.2+dfsg-7+deb12u18+b3";
const OTHERS: [&str; 2] = ["linux-image-6.1.0-50-cloud-amd64=6.1.176-1", "busybox-static=1:1.35.0-4+deb12u1+b1"];
/// The kernel's file and its modules, in that package.
const KERNEL: &str = "boot/vmlinuz-6.1.0-50-cloud-amd64";
const MODULES: &str = "lib/modules/6.1.0-50-cloud-amd64/kernel";
/// In the order in which they are loaded: vsock, and what CRIU asks for.
const LOADED: [&str; 12] = [
    "drivers/net/tun.ko",
    "drivers/net/veth.ko",
    "net/vmw_vsock/vsock.ko",
    "net/vmw_vsock/vmw_vsock_virtio_transport_common.ko",
    "net/vmw_vsock/vsock_loopback.ko",
    "net/ipv4/inet_diag.ko",
    "net/ipv4/tcp_diag.ko",
    "net/ipv4/udp_diag.ko",
    "net/netlink/netlink_diag.ko",
    "net/packet/af_packet_diag.ko",
    "net/netfilter/nfnetlink.ko",
    "net/unix/unix_diag.ko",
];
/// Programs that between them use all that a link has: bulk over several connections, calls back, prints, memory of the host.
const PROGRAMS: [&str; 6] =
    ["vector_add", "big_copy", "async_pipeline", "host_callbacks", "device_printf", "pinned_memory"];
/// The program that is checkpointed and restored.
const KEPT: &str = "long_loop";
/// What `dist` has installed and the machine needs.
const INSTALLED: [&str; 5] = [
    "bin/katydid",
    "lib/katydid/shim/libcuda.so.1",
    "lib/katydid/shim/libkatydid_opencl.so",
    "lib/katydid/shim/libnvidia-ml.so.1",
    "lib/katydid/soft/libcuda.so.1",
];
/// How the machine is made: of software alone, two processors, no devices but a serial line. It ends when its kernel does.
const MACHINE: &str =
    "-accel tcg -cpu max -smp 2 -m 2048 -nodefaults -no-user-config -display none -no-reboot -serial stdio";
/// What its kernel is told: where to speak, and to end when something is wrong with it.
const KERNEL_OPTIONS: &str = "console=ttyS0 panic=-1 quiet";
/// What the machine says at the end if all was well.
const WELL: &str = "vsock: ok";

/// Runs it all; `measures` has `katydid bench` run there too.
pub(crate) fn run(tree: &Tree, measures: bool) -> Result<()> {
    let root = fetch(tree)?;
    dist::run(tree, false)?;
    apps::run(tree)?;
    step("programs on a machine of software that has vsock");
    let image = image(tree, &root, measures)?;
    let said = start(&root, &image)?;
    line(said.trim_end());
    if !said.lines().any(|line| line.trim_end() == WELL) {
        bail!("not all is well over vsock; see what the machine said");
    }
    clear(&image)
}

/// Where the packages lie, unpacked: fetched unless they are there.
fn fetch(tree: &Tree) -> Result<PathBuf> {
    let (root, work) = (tree.target.join("vsock/root"), tree.target.join("vsock/new"));
    let stamp = root.join("pins.txt");
    let pins = format!("{QEMU}\n{}\n", OTHERS.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == pins) {
        return Ok(root);
    }
    step("fetching QEMU and a kernel (106 packages of Debian, 70 MB)");
    let mut said = Vec::new();
    let found = SOURCES.iter().any(|source| {
        let outcome = from(source, &work);
        outcome.map_err(|error| said.push(format!("{source}: {error:#}"))).is_ok()
    });
    if !found {
        bail!("cannot fetch QEMU and a kernel:\n{}", said.join("\n"));
    }
    fs::write(work.join("root/pins.txt"), pins).context("cannot write the stamp")?;
    clear(&root)?;
    fs::rename(work.join("root"), &root).with_context(|| format!("cannot place {}", root.display()))?;
    clear(&work)?;
    Ok(root)
}

/// Makes `work/root` out of what `source` has.
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
    apt(&["install", "-y", "-qq", "--download-only", "--no-install-recommends", QEMU])?;
    apt(&[&["download", "-qq"], &OTHERS[..]].concat())?;
    for entry in fs::read_dir(&archives).with_context(|| format!("cannot read {}", archives.display()))? {
        let path = entry.context("cannot read the packages")?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            shell::run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(work.join("root")))?;
        }
    }
    Ok(())
}

/// What the machine has in its memory, in the one file that its kernel unpacks.
fn image(tree: &Tree, root: &Path, measures: bool) -> Result<PathBuf> {
    let folder = tree.target.join("vsock/memory");
    clear(&folder)?;
    let place = |from: &Path, at: &str| {
        let to = folder.join(at);
        fs::create_dir_all(to.parent().unwrap_or(&folder)).with_context(|| format!("cannot make {}", to.display()))?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display())).map(drop)
    };
    place(&tree.root.join("tests/vsock/init"), "init")?;
    place(&root.join("bin/busybox"), "bin/busybox")?;
    for module in LOADED {
        place(&root.join(MODULES).join(module), &format!("modules/{module}"))?;
    }
    fs::write(folder.join("modules/order"), LOADED.join("\n")).context("cannot name the modules")?;
    let mut libraries = BTreeSet::new();
    for file in INSTALLED {
        let installed = tree.target.join("dist").join(file);
        place(&installed, &format!("katydid/{file}"))?;
        // What it needs to be debugged is most of it. Where nothing strips it, the machine has room for it all the same.
        shell::works("strip", &[&folder.join("katydid").join(file).to_string_lossy()]);
        libraries.extend(needed(&installed)?);
    }
    let kept = format!("kept/{KEPT}");
    let compared = PROGRAMS.map(|name| (name, format!("programs/{name}")));
    for (name, at) in compared.into_iter().chain([(KEPT, kept)]) {
        let program = tree.places().program(name, Variant::Static);
        place(&program, &at)?;
        libraries.extend(needed(&program)?);
    }
    let criu = "lib/katydid/criu";
    let mut copy = Command::new("cp");
    shell::run(copy.arg("--archive").arg(tree.target.join("dist").join(criu)).arg(folder.join("katydid").join(criu)))?;
    for library in libraries {
        place(&library, &library.to_string_lossy()[1..])?;
    }
    if measures {
        fs::write(folder.join("measure"), "").context("cannot ask for measurements")?;
    }
    let image = tree.target.join("vsock/memory.cpio");
    pack(&root.join("bin/busybox"), &folder, &image)?;
    clear(&folder)?;
    Ok(image)
}

/// The libraries that a program or library of this machine is loaded with.
fn needed(file: &Path) -> Result<BTreeSet<PathBuf>> {
    let listed = shell::read(Command::new("ldd").arg(file).env_remove("LD_LIBRARY_PATH"))?;
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(paths.filter(|path| path.is_file()).collect())
}

/// Packs a folder as kernels want it.
fn pack(busybox: &Path, folder: &Path, image: &Path) -> Result<()> {
    let names = shell::read(Command::new(busybox).args(["find", "."]).current_dir(folder))?;
    let file = fs::File::create(image).with_context(|| format!("cannot make {}", image.display()))?;
    let mut packer = Command::new(busybox);
    packer.args(["cpio", "-o", "-H", "newc"]).current_dir(folder);
    let mut child = packer.stdin(Stdio::piped()).stdout(file).stderr(Stdio::null()).spawn().context("cannot pack")?;
    // The end of the list ends the packer, so the pipe is closed before it is waited for.
    child.stdin.take().context("no pipe")?.write_all(names.as_bytes()).context("cannot name the files")?;
    let status = child.wait().context("cannot pack")?;
    if status.success() { Ok(()) } else { bail!("cannot pack the machine's memory ({status})") }
}

/// Starts the machine, waits for its end, and gives what it said on its serial line.
fn start(root: &Path, image: &Path) -> Result<String> {
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|folder| root.join(folder));
    let libraries = std::env::join_paths(libraries).context("the target folder has a colon in its name")?;
    let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(libraries).arg(root.join("usr/bin/qemu-system-x86_64"));
    // It looks for them where its executable is, which is the loader.
    command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
    for folder in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(root.join(folder));
    }
    command.args(MACHINE.split(' ')).args(["-append", KERNEL_OPTIONS]);
    let outcome = program::run(command.arg("-kernel").arg(root.join(KERNEL)).arg("-initrd").arg(image), WAIT_TIMEOUT)?;
    if !outcome.status.success() {
        bail!("the machine: {}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    }
    Ok(outcome.text())
}
