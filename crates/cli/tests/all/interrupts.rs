//! Commands that a signal ends: their document, their exit status, and what they leave.

use std::fs;
use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::common::HomeFolder;
use katydid_job::supervisor::folder::Folder;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SIGNALS: [(Signal, &str); 7] = [
    (Signal::HUP, "SIGHUP"),
    (Signal::INT, "SIGINT"),
    (Signal::TERM, "SIGTERM"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::USR1, "SIGUSR1"),
    (Signal::USR2, "SIGUSR2"),
    (Signal::XCPU, "SIGXCPU"),
];

/// Command prefix that resets signals, since `nohup` and shells make their children ignore some of them.
const HEARING: [&str; 2] = ["env", "--default-signal=HUP,INT,TERM,QUIT,USR1,USR2,XCPU"];

fn start(command: &Command) -> Child {
    start_by(&HEARING, command)
}

/// Starts the command through another program, which gets the command line after its own arguments.
fn start_by(other: &[&str], plain: &Command) -> Child {
    let mut command = Command::new(other[0]);
    command.args(&other[1..]).arg(plain.get_program()).args(plain.get_args());
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a request of the command, which gets no answer. A client that sends nothing only tests whether there is a server.
/// `katydid ps` of other tests asks all jobs of the user.
fn wait_until_asked(listener: &UnixListener, command: &Child) -> UnixStream {
    loop {
        let (mut peer, _) = listener.accept().unwrap();
        let is_asked = peer.read(&mut [0; 64 << 10]).is_ok_and(|read| read > 0);
        if is_asked && socket_peercred(&peer).unwrap().pid == Pid::from_child(command) {
            return peer;
        }
    }
}

/// Checks that a command died by the signal, with one line and this document.
fn was_interrupted(output: &Output, document: &[u8], (signal, name): (Signal, &str)) -> Value {
    assert_eq!(output.status.signal(), Some(signal.as_raw()), "{output:?}");
    let found: Value = serde_json::from_slice(document).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let error = found["error"].as_str().unwrap();
    assert!(error.starts_with(&format!("interrupted by {name}")), "{found}");
    assert_eq!(found["status"], 128 + signal.as_raw());
    assert_eq!(String::from_utf8_lossy(&output.stderr), format!("katydid: {error}\n"));
    found
}

#[test]
fn a_document_is_written_whatever_signal_ends_the_command() {
    let home = HomeFolder::new();
    let admin = home.path("silent");
    let listener = UnixListener::bind(&admin).unwrap();
    for signal in SIGNALS {
        let child = start(&home.katydid(&["ps", "--json", "--admin", admin.to_str().unwrap()]));
        let _peer = wait_until_asked(&listener, &child);
        kill_process(Pid::from_child(&child), signal.0).unwrap();
        let output = child.wait_with_output().unwrap();
        was_interrupted(&output, &output.stdout, signal);
    }
    // Without a document, the command dies as any other process.
    let child = start(&home.katydid(&["ps", "--admin", admin.to_str().unwrap()]));
    let _peer = wait_until_asked(&listener, &child);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.signal() == Some(Signal::TERM.as_raw()) && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn signals_that_the_caller_ignores_stay_ignored() {
    let home = HomeFolder::new();
    let admin = home.path("silent");
    let listener = UnixListener::bind(&admin).unwrap();
    let plain = home.katydid(&["ps", "--json", "--admin", admin.to_str().unwrap()]);
    let child = start_by(&["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"], &plain);
    let _peer = wait_until_asked(&listener, &child);
    for (signal, _) in [SIGNALS[0], SIGNALS[2]] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    was_interrupted(&output, &output.stdout, SIGNALS[2]);
}

#[test]
fn a_trace_that_is_interrupted_before_its_program_leaves_a_document_and_no_folder() {
    let home = HomeFolder::new();
    let [socket, temporary, file] = ["silent", "temporary", "calls.json"].map(|name| home.path(name));
    fs::create_dir(&temporary).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let server = format!("unix:{}", socket.display());
    let line = ["trace", "--json", file.to_str().unwrap(), "--server", &server, "--", "echo", "ran"];
    let child = start(home.katydid(&line).env("TMPDIR", &temporary));
    let _peer = wait_until_asked(&listener, &child);
    let is_empty = |folder: &Path| fs::read_dir(folder).unwrap().next().is_none();
    assert!(!is_empty(&temporary));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    was_interrupted(&output, &fs::read(&file).unwrap(), SIGNALS[2]);
    assert!(is_empty(&temporary));
}

/// At that time its job has a folder, and no guard yet that would clear it away.
#[test]
fn a_run_that_is_interrupted_before_its_program_leaves_no_folder() {
    let home = HomeFolder::new();
    let socket = home.path("silent");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = format!("unix:{}", socket.display());
    for (signal, _) in SIGNALS {
        let child = start(&home.katydid(&["run", "--server", &server, "--", "echo", "ran"]));
        let _peer = wait_until_asked(&listener, &child);
        let jobs = home.path("katydid/jobs");
        assert!(fs::read_dir(&jobs).unwrap().next().is_some());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.signal() == Some(signal.as_raw()) && output.stdout.is_empty(), "{output:?}");
        assert!(fs::read_dir(&jobs).unwrap().next().is_none());
    }
}

/// A signal while the program runs goes to the program, and the trace is written.
#[test]
fn a_trace_whose_program_is_interrupted_has_its_tables() {
    let home = HomeFolder::new();
    let file = home.path("calls.json");
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let line = ["trace", "--json", file.to_str().unwrap(), "--driver", "soft", "--", "sh", "-c", script];
    let mut child = start(&home.katydid(&line));
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    let found: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(found["calls"], 0, "{found}");
}

#[test]
fn a_checkpoint_whose_command_is_interrupted_is_the_supervisors_to_complete() {
    let home = HomeFolder::new();
    let jobs = home.path("katydid/jobs");
    for folder in [home.path("katydid"), jobs.clone()] {
        katydid_scratch::private::folder(&folder).unwrap();
    }
    let folder = Folder::take_at(&jobs.join("held")).unwrap();
    folder.describe(0, "held").unwrap();
    let listener = UnixListener::bind(folder.control()).unwrap();
    let image = home.path("image").display().to_string();
    for line in [
        &["checkpoint", "held", "--json", "-o", &image][..],
        &["checkpoint", "held", "--json", "-o", &image, "--every", "1h"],
    ] {
        let child = start(&home.katydid(line));
        let _peer = wait_until_asked(&listener, &child);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let found = was_interrupted(&output, &output.stdout, SIGNALS[1]);
        assert!(found["error"].as_str().unwrap().contains("supervisor goes on"), "{found}");
    }
}
