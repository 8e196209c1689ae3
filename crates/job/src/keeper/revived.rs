//! A worker that was restored as a process.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{ExitCode, Stdio};

use katydid_image::WorkerImage;
use katydid_scratch::{Scratch, private};
use rustix::process::Signal;

use crate::criu::tool::Criu;
use crate::keeper::driver::{Action, WorkerDriver};
use crate::keeper::files;
use crate::keeper::supervisor::{KeeperOptions, OrderError, SupervisorConnection, system};
use crate::process::tree;
use crate::supervisor::guard::Guard;
use crate::supervisor::namespace::JobNamespaces;
use crate::supervisor::{folder, namespace};

/// Distance of new process ids from the worker's.
const WORKER_ID_GAP: u32 = 100;

/// A restored worker, which runs below this process.
pub(super) struct RestoredWorker {
    /// The guard, which is the parent of `child`.
    guard: Guard,
    /// Process to wait for: the worker, or the first process of its namespaces, which ends as the worker does.
    child: u32,
}

impl RestoredWorker {
    /// Restores a worker from its image. The worker gets the keeper's end of the control socket, which the keeper closes.
    pub(super) fn new(
        options: KeeperOptions,
        part: &[u8],
        devices: &str,
        supervisor: &SupervisorConnection,
    ) -> Result<Self, OrderError> {
        let image: WorkerImage = serde_json::from_slice(part).map_err(OrderError::new)?;
        let driver = WorkerDriver { choice: options.driver.clone(), name: image.driver.clone() };
        driver.check()?;
        let criu = Criu::find(&options.private_criu, folder::cache().as_deref()).map_err(OrderError::new)?;
        let scratch = Scratch::new("worker").map_err(system("make a folder for CRIU's files"))?;
        let folders = RestoreFolders { files: scratch.path().join("criu"), work: scratch.path().join("work") };
        private::folder(&folders.files).map_err(system("make a folder for CRIU's files"))?;
        private::folder(&folders.work).map_err(system("make a folder for CRIU's files"))?;
        files::get(supervisor, &image.files, &folders.files)?;
        let ends = ReplacementEnds::new(&image, options.control)?;
        let (guard, child, pid) = raise(&criu, &options.katydid, &image, &folders, &ends)?;
        drop(ends);
        let revived = Self { guard, child };
        tree::signal(&tree::tree(pid).map_err(system("find the worker"))?, Signal::CONT);
        driver.run(&options.katydid, Action::Restore, pid, devices)?;
        Ok(revived)
    }

    /// Waits for the worker's end.
    pub(super) fn wait(mut self) -> ExitCode {
        let status = self.guard.wait(self.child);
        let code = status.ok().and_then(|status| u8::try_from(status.code()?).ok());
        ExitCode::from(code.unwrap_or(u8::MAX))
    }
}

/// The folder of CRIU's image files, and the folder that it writes to.
struct RestoreFolders {
    files: std::path::PathBuf,
    work: std::path::PathBuf,
}

/// Replacements for the worker's ends of sockets and pipes that lead to other processes.
struct ReplacementEnds {
    /// Descriptors, by the names that the original ends had.
    inherited: Vec<(String, OwnedFd)>,
}

impl ReplacementEnds {
    fn new(image: &WorkerImage, control: OwnedFd) -> Result<Self, OrderError> {
        let mut inherited = vec![(image.control.clone(), control)];
        for output in &image.outputs {
            // CRIU inherits the duplicate, which lacks the close-on-exec flag.
            let copy = rustix::io::dup(io::stderr().as_fd());
            inherited.push((output.clone(), copy.map_err(io::Error::from).map_err(system("copy our standard error"))?));
        }
        Ok(Self { inherited })
    }

    fn inherit(&self) -> Vec<OsString> {
        let option = |(name, fd): &(String, OwnedFd)| {
            [OsString::from("--inherit-fd"), format!("fd[{}]:{name}", fd.as_raw_fd()).into()]
        };
        self.inherited.iter().flat_map(option).collect()
    }
}

/// Has CRIU make the process, stopped; in namespaces of its own if another process has one of its ids. Returns the guard, its
/// child, and the worker.
fn raise(
    criu: &Criu,
    katydid: &Path,
    image: &WorkerImage,
    folders: &RestoreFolders,
    ends: &ReplacementEnds,
) -> Result<(Guard, u32, u32), OrderError> {
    let inherit = ends.inherit();
    if !image.ids.iter().any(|id| tree::exists(*id)) {
        let raised = criu.restore(katydid, &folders.files, &folders.work, &[], &inherit, None);
        let (guard, pid) = raised.map_err(OrderError::new)?;
        return Ok((guard, pid, pid));
    }
    split(criu, katydid, image, folders, &inherit)
}

fn split(
    criu: &Criu,
    katydid: &Path,
    image: &WorkerImage,
    folders: &RestoreFolders,
    inherit: &[OsString],
) -> Result<(Guard, u32, u32), OrderError> {
    let failed = system("restore the worker in namespaces of its own");
    Criu::make_statistics(&folders.work).map_err(&failed)?;
    let restore = criu.restore_command(&folders.files, &folders.work, inherit);
    let highest = image.ids.iter().copied().max().unwrap_or(0);
    let namespaces = JobNamespaces {
        known_folder: folders.work.clone(),
        folder: folders.work.clone(),
        note: Criu::note(&folders.work),
        last_id: highest.saturating_add(WORKER_ID_GAP),
        files: folders.files.clone(),
        shared: folders.work.join("shared.json"),
        made: folders.work.join("made.json"),
        terminals: Vec::new(),
    };
    fs::write(&namespaces.shared, "[]").map_err(&failed)?;
    fs::write(&namespaces.made, "").map_err(&failed)?;
    let _kernel_data = criu.install_kernel_data();
    let keeper = namespace::keeper(katydid, &namespaces, &restore);
    let guard = Guard::spawn(katydid, &keeper, &[], |command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    });
    let mut guard = guard.map_err(&failed)?;
    let mut line = String::new();
    if let Some(out) = guard.stdout() {
        BufReader::new(out).read_line(&mut line).map_err(&failed)?;
    }
    let inner: Option<u32> = line.trim().parse().ok();
    let child = guard.first();
    let processes = tree::tree(child).map_err(&failed)?;
    let found = processes.iter().find(|process| Some(tree::pid_in_own_namespace(process.pid)) == inner);
    let Some(worker) = found.map(|process| process.pid) else {
        let mut output = Vec::new();
        if let Some(mut stderr) = guard.stderr() {
            stderr.read_to_end(&mut output).map_err(&failed)?;
        }
        return Err(OrderError::new(criu.failure(&folders.work, &output)));
    };
    guard.restored();
    Ok((guard, child, worker))
}
