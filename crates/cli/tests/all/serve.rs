//! `katydid serve`, `ps` and `doctor` with the real binary: sockets, signals, clients of another protocol.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{HomeFolder, RunningServer};
use katydid_tests::deadline::hang::hang_limit;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn unix_of(home: &HomeFolder) -> String {
    format!("unix:{}", home.path("k.sock").display())
}

fn sessions(home: &HomeFolder) -> Value {
    let output = home.output(&["ps", "--server", &unix_of(home), "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_server_answers_ps_and_leaves_nothing_behind() {
    let home = HomeFolder::new();
    let server = RunningServer::start(&home, &[&unix_of(&home), "tcp://127.0.0.1:0"]);
    assert_eq!(server.addresses[0], unix_of(&home));
    assert!(!server.addresses[1].ends_with(":0"));
    assert_eq!(sessions(&home)["sessions"].as_array().unwrap().len(), 0);
    assert_eq!(server.stop(), Some(0));
    assert!(!home.path("k.sock").exists() && !home.path("k.sock.admin").exists());
}

#[test]
fn without_listen_the_socket_lies_in_the_runtime_folder_and_ps_finds_it() {
    let home = HomeFolder::new();
    let server = RunningServer::start(&home, &[]);
    assert_eq!(server.addresses, [format!("unix:{}", home.path("katydid.sock").display())]);
    let output = home.output(&["ps"]);
    assert!(output.status.success() && output.stdout.trim_ascii_start().starts_with(b"ID  NAME"));
}

#[test]
fn interrupt_ends_a_server_as_terminate_does() {
    let home = HomeFolder::new();
    let mut server = RunningServer::start(&home, &[&unix_of(&home)]);
    server.signal(Signal::INT);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(!home.path("k.sock").exists());
}

#[test]
fn a_live_server_is_not_replaced() {
    let home = HomeFolder::new();
    let _server = RunningServer::start(&home, &[&unix_of(&home)]);
    let (code, text) = home.fails(&["serve", "--listen", &unix_of(&home)]);
    assert!(code == 3 && text.contains("a server is listening there already"), "{text}");
    assert!(home.path("k.sock").exists());
}

#[test]
fn a_stale_socket_is_replaced() {
    let home = HomeFolder::new();
    drop(UnixListener::bind(home.path("k.sock")).unwrap());
    let server = RunningServer::start(&home, &[&unix_of(&home)]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_file_in_the_way_is_kept() {
    let home = HomeFolder::new();
    fs::write(home.path("k.sock"), "mine").unwrap();
    let (code, text) = home.fails(&["serve", "--listen", &unix_of(&home)]);
    assert!(code == 3 && text.contains("not a socket"), "{text}");
    assert_eq!(fs::read(home.path("k.sock")).unwrap(), b"mine");
}

#[test]
fn tcp_beyond_loopback_is_refused_in_one_line() {
    let home = HomeFolder::new();
    let (code, text) = home.fails(&["serve", "--listen", "tcp://0.0.0.0:0"]);
    assert!(code == 3 && text.contains("--insecure") && text.lines().count() == 1, "{text}");
}

#[test]
fn a_wrong_address_or_driver_is_a_usage_error() {
    let home = HomeFolder::new();
    assert_eq!(home.fails(&["serve", "--listen", "carrier-pigeon:coop"]).0, 2);
    let (code, text) = home.fails(&["serve", "--driver", "/no/such/libcuda.so.1", "--listen", &unix_of(&home)]);
    assert!(code == 2 && text.contains("/no/such/libcuda.so.1"), "{text}");
}

#[test]
fn a_folder_for_modules_is_made_and_one_that_others_can_write_to_is_refused() {
    let home = HomeFolder::new();
    let server = RunningServer::start(&home, &[&unix_of(&home)]);
    let mode = |path: &str| fs::metadata(home.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(".cache/katydid/modules"), 0o700);
    assert_eq!(server.stop(), Some(0));
    fs::create_dir(home.path("open")).unwrap();
    fs::set_permissions(home.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let open = home.path("open").display().to_string();
    let (status, errors) = home.fails(&["serve", "--module-cache", &open, "--listen", &unix_of(&home)]);
    assert!(status == 2 && errors.contains(&open) && errors.contains("--module-cache"), "{status} {errors}");
    // If no cache is named, the server does without.
    fs::set_permissions(home.path(".cache/katydid/modules"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = home.katydid(&["serve", "--warm", "0", "--listen", &unix_of(&home)]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut errors).unwrap();
    assert!(errors.contains("only you can write to") && errors.contains("it goes with this server"), "{errors}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn without_nvidias_service_mps_is_refused_by_name() {
    let home = HomeFolder::new();
    let mut command = home.katydid(&["serve", "--mps", "--warm", "0", "--listen", &unix_of(&home)]);
    let output = command.env("PATH", home.path("nothing")).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("there is no nvidia-cuda-mps-control in PATH") && errors.lines().count() == 1, "{errors}");
    let (status, errors) = home.fails(&["serve", "--mps", "--driver", "soft"]);
    assert!(status == 2 && errors.contains("--mps needs NVIDIA's driver"), "{status} {errors}");
}

/// Installs a stand-in for NVIDIA's service, which runs `script`. Returns a PATH with it.
fn service(home: &HomeFolder, script: &str) -> String {
    let folder = home.path("bin");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("nvidia-cuda-mps-control");
    // Another process writes the file. A file that a child of another test has open for writing, until that executes its program,
    // cannot be executed.
    let mut writer = Command::new("sh");
    writer.args(["-c", r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#]).arg(&program).arg(script);
    assert!(writer.status().unwrap().success());
    format!("{}:/usr/bin:/bin", folder.display())
}

/// Whether a process exists, and has not ended.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn the_service_of_a_server_ends_with_it_however_that_ends() {
    for signal in [Signal::TERM, Signal::KILL] {
        let home = HomeFolder::new();
        let note = home.path("note");
        let script = format!(
            "[ \"$1\" = -f ] || exit 1; echo $$ $CUDA_MPS_PIPE_DIRECTORY > {}; \
             : > $CUDA_MPS_PIPE_DIRECTORY/control; exec sleep 1000",
            note.display()
        );
        let (path, temporary) = (service(&home, &script), home.folder.path().display().to_string());
        let mut server = RunningServer::start_with(
            &home,
            &["--mps"],
            &[&unix_of(&home)],
            &[("PATH", &path), ("TMPDIR", &temporary)],
        );
        let note = fs::read_to_string(note).unwrap();
        let (pid, pipes) = note.trim().split_once(' ').unwrap();
        assert!(is_alive(pid) && fs::exists(pipes).unwrap(), "{note}");
        server.signal(signal);
        server.child.wait().unwrap();
        // The kernel sends the signal when the server ends, which takes a moment.
        while signal == Signal::KILL && is_alive(pid) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_alive(pid));
        // The next server removes what a killed one left.
        assert_eq!(fs::exists(pipes).unwrap(), signal == Signal::KILL, "{pipes}");
        RunningServer::start_with(&home, &[], &[&unix_of(&home)], &[("TMPDIR", &temporary)]).stop();
        assert!(!fs::exists(pipes).unwrap(), "{pipes}");
    }
}

#[test]
fn a_service_that_ends_while_its_server_lives_is_started_again_at_its_place() {
    let home = HomeFolder::new();
    let note = home.path("note");
    // The second start fails.
    let script = format!(
        "echo $$ $CUDA_MPS_PIPE_DIRECTORY >> {0}; [ $(wc -l < {0}) = 2 ] && exit 1; \
         : > $CUDA_MPS_PIPE_DIRECTORY/control; exec sleep 1000",
        note.display()
    );
    let path = service(&home, &script);
    let server = RunningServer::start_with(&home, &["--mps"], &[&unix_of(&home)], &[("PATH", &path)]);
    let starts = |count: usize| loop {
        let text = fs::read_to_string(&note).unwrap();
        let starts: Vec<(String, String)> =
            text.lines().filter_map(|line| line.split_once(' ')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        if starts.len() >= count {
            return starts;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let first = starts(1)[0].0.parse().unwrap();
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    let all = starts(3);
    assert!(all[0].1 == all[2].1 && is_alive(&all[2].0) && !is_alive(&all[1].0), "{all:?}");
    assert_eq!(sessions(&home)["sessions"].as_array().unwrap().len(), 0);
    assert_eq!(server.stop(), Some(0));
    assert!(!is_alive(&all[2].0));
}

#[test]
fn failed_service_start_is_reported_with_its_output() {
    let home = HomeFolder::new();
    let path = service(&home, "echo 'no device here' >&2; exit 1");
    let mut command = home.katydid(&["serve", "--mps", "--warm", "0", "--listen", &unix_of(&home)]);
    let output = command.env("PATH", path).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(3) && errors.contains("it said: no device here"), "{errors}");
}

#[test]
fn clients_of_another_protocol_leave_the_server_running() {
    let home = HomeFolder::new();
    let server = RunningServer::start(&home, &[&unix_of(&home), "tcp://127.0.0.1:0"]);
    let tcp = server.addresses[1].strip_prefix("tcp://").unwrap();
    let oversized = [b"KATYDID\0".as_slice(), &u32::MAX.to_le_bytes(), &[0; 60]].concat();
    for bytes in [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(4).as_slice(), &[0xff; 4096], &oversized, b""] {
        let mut stream = TcpStream::connect(tcp).unwrap();
        stream.set_read_timeout(Some(hang_limit())).unwrap();
        // The server may close the connection before all is written, and may answer before that.
        let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(sessions(&home)["sessions"].as_array().unwrap().len(), 0);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn peers_that_say_nothing_do_not_keep_others_out() {
    let home = HomeFolder::new();
    let server = RunningServer::start(&home, &[&unix_of(&home)]);
    let silent: Vec<_> = (0..200).map(|_| UnixStream::connect(home.path("k.sock")).unwrap()).collect();
    assert_eq!(sessions(&home)["sessions"].as_array().unwrap().len(), 0);
    drop(silent);
    let mut client = UnixStream::connect(home.path("k.sock")).unwrap();
    client.set_read_timeout(Some(hang_limit())).unwrap();
    // As above, the server may close before all is written.
    let _ = client.write_all(&[0x55; 128]);
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.starts_with(b"KATYDID\0"), "no refusal: {answer:?}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn ps_shows_what_there_is_and_a_named_server_that_is_not_there_is_one_line() {
    let home = HomeFolder::new();
    let output = home.output(&["ps"]);
    assert!(output.status.success() && output.stdout.trim_ascii_start().starts_with(b"ID  NAME"), "{output:?}");
    let (code, text) = home.fails(&["ps", "--server", "unix:/no/such.sock"]);
    assert!(code == 3 && text.starts_with("katydid: ") && text.lines().count() == 1, "{text}");
    let (code, text) = home.fails(&["ps", "--server", "tcp://gpu-host:9923"]);
    assert!(code == 3 && text.contains("on the server's machine"), "{text}");
}

/// The entry of a server in the output of `ps`, for a caller with this runtime folder, if any.
fn listed(home: &HomeFolder, runtime: Option<&str>, admin: &str) -> Option<Value> {
    let mut command = home.katydid(&["ps", "--json"]);
    match runtime {
        Some(folder) => command.env("XDG_RUNTIME_DIR", home.path(folder)),
        None => command.env_remove("XDG_RUNTIME_DIR"),
    };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    found["servers"].as_array().unwrap().iter().find(|server| server["admin"] == admin).cloned()
}

#[test]
fn ps_finds_a_server_whatever_runtime_folder_it_and_the_asker_have() {
    let home = HomeFolder::new();
    let admin = home.path("k.sock.admin").display().to_string();
    for folder in ["here", "there"] {
        fs::create_dir(home.path(folder)).unwrap();
    }
    let there = home.path("there").display().to_string();
    let server = RunningServer::start_with(&home, &[], &[&unix_of(&home)], &[("XDG_RUNTIME_DIR", &there)]);
    for runtime in [Some("here"), Some("there"), None] {
        assert!(listed(&home, runtime, &admin).is_some(), "{runtime:?}");
    }
    assert_eq!(server.stop(), Some(0));
    // A server that cron or sudo starts, and one whose runtime folder is missing.
    for runtime in ["", "/nonexistent/run"] {
        let server = RunningServer::start_with(&home, &[], &[&unix_of(&home)], &[("XDG_RUNTIME_DIR", runtime)]);
        assert!(listed(&home, Some("here"), &admin).is_some(), "{runtime:?}");
        assert_eq!(server.stop(), Some(0));
    }
}

#[test]
fn a_server_that_is_stopped_is_a_row_and_holds_no_other_up() {
    let home = HomeFolder::new();
    let admin = home.path("k.sock.admin").display().to_string();
    let other = HomeFolder::new();
    let [server, _running] = [&home, &other].map(|home| RunningServer::start(home, &[&unix_of(home)]));
    server.signal(Signal::STOP);
    let stopped = listed(&home, Some(""), &admin).unwrap();
    assert!(stopped["error"].as_str().unwrap().contains("kill -CONT") && stopped["pid"].is_null(), "{stopped}");
    let running = listed(&home, Some(""), other.path("k.sock.admin").to_str().unwrap()).unwrap();
    assert!(running["error"].is_null() && running["pid"].is_u64(), "{running}");
    let shown = String::from_utf8(home.output(&["ps"]).stdout).unwrap();
    let row = shown.lines().find(|line| line.contains(&admin)).unwrap();
    assert!(row.contains("does not answer"), "{shown}");
    server.signal(Signal::CONT);
    assert!(listed(&home, Some(""), &admin).unwrap()["error"].is_null());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn doctor_tells_of_every_check_and_of_a_server_that_is_not_there() {
    let home = HomeFolder::new();
    let output = home.output(&["doctor", "--json", "--server", "unix:/no/such.sock"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let finding = |name: &str| findings.iter().find(|finding| finding["check"] == name).unwrap();
    assert_eq!(finding("library for programs")["status"], "ok");
    assert_eq!(finding("server")["status"], "fail");
    assert!(finding("server")["remedy"].as_str().unwrap().contains("katydid serve"));
    // The libraries of these tests are empty files.
    assert_eq!(finding("softcuda")["status"], "fail");
    assert_eq!(output.status.code(), Some(1));
}
