//! Checks the server that programs of this environment would use.

use std::time::Duration;

use katydid_server::ServerView;
use katydid_transport::{Address, ConnectError};
use katydid_wire::handshake::{HandshakeError, RefusalCode};
use katydid_wire::key::SessionKey;

use crate::doctor::finding::Finding;
use katydid_cli_core::server::address::{NamedServer, resolve};
use katydid_cli_core::server::admin;

/// Name of the check.
const SERVER_CHECK_NAME: &str = "server";
/// A key that no server gives: keys are random.
const UNUSED_KEY: SessionKey = SessionKey([0xff; 16]);
/// How long a server may take to answer.
const DOCTOR_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that a named server answers, and is of this release if that can be asked.
pub(super) fn check(flag: Option<&str>) -> Finding {
    match resolve(flag, None) {
        Err(error) => Finding::fail(SERVER_CHECK_NAME, error.to_string(), "correct the address"),
        Ok(None) => Finding::ok(SERVER_CHECK_NAME, "none named: `katydid run` starts a private one"),
        Ok(Some(server)) => reach(&server),
    }
}

/// Says hello first, since the admin socket exists only on the server's machine.
fn reach(server: &NamedServer) -> Finding {
    let (address, origin) = (&server.address, &server.origin);
    if let Err(error) = greet(address) {
        let error = match server.unreachable(error) {
            Ok(error) => return Finding::fail(SERVER_CHECK_NAME, error.reason(), error.remedy()),
            Err(error) => error,
        };
        let detail = format!("{address} (from {origin}) lets no program of this build in: {error}");
        return Finding::fail(
            SERVER_CHECK_NAME,
            detail,
            "use the same release on both sides, and the certificates that it wants",
        );
    }
    match admin::get::<ServerView>(&admin::of_address(address), "/v1/server") {
        Ok(view) => described(server, &view),
        // Its admin socket is on another machine, or at another path.
        Err(_) => Finding::ok(SERVER_CHECK_NAME, format!("{address} (from {origin}) accepts connections")),
    }
}

/// Says hello as programs do, with a key of no session: a server of this build answers that it has no such session.
fn greet(address: &Address) -> Result<(), ConnectError> {
    match katydid_transport::companion(address, UNUSED_KEY, DOCTOR_ANSWER_TIMEOUT) {
        Err(ConnectError::Handshake { source: HandshakeError::Refused(refused), .. })
            if refused.code == RefusalCode::NO_SESSION =>
        {
            Ok(())
        }
        greeted => greeted.map(drop),
    }
}

/// The finding about a server's view: programs would meet broken workers, and another release.
fn described(server: &NamedServer, view: &ServerView) -> Finding {
    let (address, origin) = (&server.address, &server.origin);
    if let Some(reason) = &view.workers.last_failure {
        let detail = format!("{address} (from {origin}) runs, but its workers do not start: {reason}");
        return Finding::fail(SERVER_CHECK_NAME, detail, "correct its --driver, and see its messages");
    }
    if view.version != env!("CARGO_PKG_VERSION") {
        let detail =
            format!("{address} (from {origin}) is of version {}, this is {}", view.version, env!("CARGO_PKG_VERSION"));
        return Finding::fail(SERVER_CHECK_NAME, detail, "use the same release on both sides");
    }
    let driver = view.driver_found.as_deref().unwrap_or("not started yet");
    Finding::ok(SERVER_CHECK_NAME, format!("{address} (from {origin}): driver {driver}, {} sessions", view.sessions))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use katydid_wire::SPEC_HASH;
    use katydid_wire::handshake::{Build, Refused};

    use super::super::Status;
    use super::*;
    use katydid_cli_core::server::address::{Origin, SERVER_FLAG};

    /// The finding about a server that answers each hello with this refusal.
    fn finding_of(code: RefusalCode) -> Finding {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let listener = UnixListener::bind(&path).unwrap();
        let answer = Refused::new(code, "not this one").encode(&Build::current(SPEC_HASH)).unwrap();
        let server = thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            assert!(peer.read(&mut [0; 4096]).unwrap() > 0);
            peer.write_all(&answer).unwrap();
        });
        let found = reach(&NamedServer { address: Address::Unix(path), origin: Origin::Flag(SERVER_FLAG) });
        server.join().unwrap();
        found
    }

    #[test]
    fn a_server_that_lets_no_program_in_is_a_failure() {
        let refused = finding_of(RefusalCode::NOT_ALLOWED);
        assert!(refused.status == Status::Fail && refused.detail.contains("not this one"), "{}", refused.detail);
        assert_eq!(finding_of(RefusalCode::NO_SESSION).status, Status::Ok);
    }
}
