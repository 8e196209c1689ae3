//! `katydid run` and the command line itself, with programs that make no CUDA call.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::process::Stdio;

use crate::common::{HomeFolder, stand_in};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_program_finds_the_library_and_the_private_server_in_its_environment() {
    let home = HomeFolder::new();
    let output = home.output(&["run", "--", "sh", "-c", "echo \"$LD_LIBRARY_PATH\"; echo \"$KATYDID_SERVER\""]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (library, server) = text.trim().split_once('\n').unwrap();
    assert_eq!(library, home.path("lib/shim").to_str().unwrap());
    let socket = server.strip_prefix("unix:").unwrap();
    assert!(!fs::exists(socket).unwrap(), "{socket} was left behind");
}

#[test]
fn session_flags_reach_the_program_as_variables() {
    let home = HomeFolder::new();
    let script = "echo $KATYDID_NAME $KATYDID_MEMORY $KATYDID_LINK";
    let output = home.output(&["run", "--name", "n", "--memory", "4M", "--link", "stream", "sh", "-c", script]);
    assert_eq!(output.stdout, b"n 4194304 stream\n");
}

#[test]
fn the_status_of_the_program_is_the_status_of_run() {
    let home = HomeFolder::new();
    assert_eq!(home.output(&["run", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(home.output(&["run", "--", "sh", "-c", "kill -TERM $$"]).status.code(), Some(143));
    assert_eq!(home.fails(&["run", "--", "/no/such/program"]).0, 127);
    assert_eq!(home.fails(&["run", "--", "/etc/passwd"]).0, 126);
}

#[test]
fn signals_are_passed_on_to_the_program() {
    let home = HomeFolder::new();
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = home.katydid(&["run", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn within_a_job_katydid_becomes_the_program() {
    let home = HomeFolder::new();
    let server = stand_in(&home, "stand-in");
    let command = ["run", "--server", &server, "sh", "-c", "echo $$ $KATYDID_SERVER"];
    let run = |job: &str| {
        let child = home.katydid(&command).env("KATYDID_JOB", job).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        (pid, String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
    };
    let (pid, output) = run("/no/such/shims");
    assert_eq!(output, format!("{pid} {server}\n"));
    // Otherwise katydid stays, because it is the supervisor of the job.
    let (pid, output) = run("");
    assert!(output.ends_with(&format!(" {server}\n")) && !output.starts_with(&format!("{pid} ")), "{output}");
}

#[test]
fn the_config_file_names_the_server_and_unknown_keys_are_refused() {
    let home = HomeFolder::new();
    fs::create_dir_all(home.path(".config/katydid")).unwrap();
    fs::write(home.path(".config/katydid/config.toml"), "server = \"unix:/no/such.sock\"\n").unwrap();
    let (code, text) = home.fails(&["run", "true"]);
    assert!(code == 3 && text.contains("unix:/no/such.sock") && text.contains("config.toml"), "{text}");
    fs::write(home.path(".config/katydid/config.toml"), "sever = \"unix:/x\"\n").unwrap();
    let (code, text) = home.fails(&["run", "true"]);
    assert!(code == 2 && text.contains("`sever`") && text.contains("config.toml:1"), "{text}");
}

#[test]
fn a_missing_installation_is_one_line_with_the_remedy() {
    let home = HomeFolder::new();
    fs::remove_file(home.path("lib/shim/libcuda.so.1")).unwrap();
    let (code, text) = home.fails(&["run", "true"]);
    assert!(code == 3 && text.contains("KATYDID_LIB") && text.lines().count() == 1, "{text}");
}

#[test]
fn tracing_a_program_without_cuda_says_so_and_keeps_its_status() {
    let home = HomeFolder::new();
    let (code, text) = home.fails(&["trace", "--", "sh", "-c", "exit 4"]);
    assert!(code == 4 && text.contains("made no CUDA call"), "{text}");
}

#[test]
fn a_closed_pipe_is_success() {
    let home = HomeFolder::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = home.katydid(&["completions", "bash"]).stdout(writer).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn help_names_every_command_and_exit_status() {
    let home = HomeFolder::new();
    let text = String::from_utf8(home.output(&["--help"]).stdout).unwrap();
    for word in ["run", "serve", "ps", "trace", "bench", "doctor", "Exit status", "KATYDID_SERVER"] {
        assert!(text.contains(word), "no {word} in:\n{text}");
    }
    assert!(!text.contains("bench-body"), "hidden commands are shown:\n{text}");
}

#[test]
fn man_pages_are_written_for_every_command() {
    let home = HomeFolder::new();
    let folder = home.folder.path().to_str().unwrap();
    assert!(home.output(&["man", folder]).status.success());
    assert!(home.path("katydid.1").exists() && home.path("katydid-run.1").exists());
    assert_eq!(home.fails(&["man", "/no/such/folder"]).0, 1);
}
