//! The connection for questions about devices.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::env;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use katydid_client::connect::open_nvml;
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::{LinkError, Pending};
use katydid_wire::SPEC_HASH;
use katydid_wire::handshake::{Build, Ready};
use katydid_wire::key::SessionKey;

/// The program's environment: the server, and how long that may be silent, in seconds.
const SERVER: &str = "KATYDID_SERVER";
const SHORT_LINK_TIMEOUT: (&str, &str) = ("KATYDID_LINK_TIMEOUT", "3s");

/// A server accepts a program, and then is silent, as if the network between them had failed.
#[test]
fn a_server_that_is_silent_is_not_waited_for_for_ever() {
    if env::var_os(SERVER).is_some() {
        let link = open_nvml().unwrap();
        let answer = link.call(1, 0, &[], &mut Vec::new());
        return assert!(matches!(answer, Err(LinkError::Stalled { seconds: 3 })), "{answer:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, receiver) = channel::<()>();
    thread::scope(|scope| {
        let listener = &listener;
        scope.spawn(move || {
            let build = Build::current(SPEC_HASH);
            let program = Pending::accept(listener.accept().unwrap().0.into(), &build, hang_limit()).unwrap();
            let ready = Ready { worker_pid: 1, key: SessionKey::NONE, driver: "NVML".to_owned(), arenas: Vec::new() };
            let link = program.open(&build, &ready, 0).unwrap();
            // Until the program has ended, or the server should hang up.
            let _ = receiver.recv_timeout(hang_limit());
            drop(link);
        });
        let mut program = Command::new(env::current_exe().unwrap());
        program.args(["--exact", "nvml::a_server_that_is_silent_is_not_waited_for_for_ever", "--nocapture"]);
        let output = program
            .env(SERVER, format!("unix:{}", path.display()))
            .env(SHORT_LINK_TIMEOUT.0, SHORT_LINK_TIMEOUT.1)
            .output()
            .unwrap();
        // No thread waits for it where the program has been hung up on.
        let _ = sender.send(());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}
