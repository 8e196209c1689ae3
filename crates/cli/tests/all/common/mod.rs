//! Runs the real binary in a clean environment, with an installation that has a file where each library would be.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use katydid_wire::SPEC_HASH;
use katydid_wire::handshake::{Build, Ready};
use katydid_wire::key::SessionKey;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A home folder for one test.
pub(crate) struct HomeFolder {
    pub(crate) folder: TempDir,
}

impl HomeFolder {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for library in ["lib/shim", "lib/soft"] {
            fs::create_dir_all(folder.path().join(library)).unwrap();
            fs::write(folder.path().join(library).join("libcuda.so.1"), "").unwrap();
        }
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `katydid` with the given arguments, not started yet.
    pub(crate) fn katydid(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_katydid"));
        command.args(arguments).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.folder.path());
        command.env("KATYDID_LIB", self.path("lib")).env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.katydid(arguments).output().unwrap()
    }

    /// Runs `katydid`, and returns its exit status and standard error.
    pub(crate) fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.output(arguments);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

/// A `katydid serve` that has printed its addresses.
pub(crate) struct RunningServer {
    pub(crate) child: Child,
    pub(crate) addresses: Vec<String>,
    /// Kept open, since a server must not find its standard error closed by accident.
    _stderr: BufReader<ChildStderr>,
}

impl RunningServer {
    /// Starts a server without workers, which these tests do not need.
    pub(crate) fn start(home: &HomeFolder, listen: &[&str]) -> Self {
        Self::start_with(home, &[], listen, &[])
    }

    /// Starts a server with further flags and variables.
    pub(crate) fn start_with(home: &HomeFolder, flags: &[&str], listen: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = home.katydid(&["serve", "--warm", "0"]);
        command.args(flags).envs(variables.iter().copied());
        listen.iter().for_each(|address| {
            command.args(["--listen", address]);
        });
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut addresses = Vec::new();
        loop {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server ended; it listened on {addresses:?}");
            match line.trim().strip_prefix("katydid: listening on ") {
                Some(address) => addresses.push(address.to_owned()),
                None => break,
            }
        }
        Self { child, addresses, _stderr: stderr }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends the server properly, and returns its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code()
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the address of a stand-in for a server with this driver, which admits every process and does no more.
pub(crate) fn stand_in(home: &HomeFolder, driver: &str) -> String {
    let path = home.path("k.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let ready = Ready { worker_pid: 0, key: SessionKey::NONE, driver: driver.into(), arenas: Vec::new() };
    let answer = ready.encode(&Build::current(SPEC_HASH)).unwrap();
    std::thread::spawn(move || {
        for mut peer in listener.incoming().flatten() {
            // A client that sends nothing only tests whether there is a server.
            if peer.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                let _ = peer.write_all(&answer);
            }
        }
    });
    format!("unix:{}", path.display())
}
