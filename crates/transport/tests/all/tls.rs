//! Which peers TLS admits, and what refused ones get: each reason by its name, on both sides.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;

use crate::common::certs::{Authority, CLIENT, EXPIRED, NOT_YET, SERVER, VALID};
use crate::common::proxy::Proxy;
use crate::common::{ECHO, Path, Server, build, hello, work};
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{AUTHORITY_FILE, Address, CERTIFICATE_FILE, Identity, KEY_FILE};
use katydid_wire::handshake::{LinkKind, Ready};
use katydid_wire::key::SessionKey;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// The errors of program and server when the program is not served.
fn refusal(server: &Server, address: &Address) -> (String, String) {
    thread::scope(|scope| {
        let accepted = scope.spawn(|| server.greet().map(drop));
        let program = connect(address, &hello(LinkKind::STREAM), &build(), hang_limit());
        let program = program.map(drop).unwrap_err().to_string();
        (program, accepted.join().unwrap().unwrap_err().to_string())
    })
}

/// Servers and programs of one authority, and the errors of refused ones.
fn refused(server: PathBuf, client: PathBuf) -> (String, String) {
    let server = Server::tls(server, client);
    let refusals = refusal(&server, &server.address);
    eprintln!("program: {}\nserver: {}", refusals.0, refusals.1);
    refusals
}

#[test]
fn a_folder_of_certificates_is_of_files_and_of_one_purpose() {
    let authority = Authority::new("good");
    let program = Identity::read(&authority.issue("alice", CLIENT, VALID)).unwrap();
    program.check().unwrap();
    let text = program.check_as_server().unwrap_err().to_string();
    assert!(text.contains("certificate.pem: it is for another purpose"), "{text}");
    let folder = authority.issue("127.0.0.1", SERVER, VALID);
    Identity::read(&folder).unwrap().check_as_server().unwrap();
    for name in [AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE] {
        let (path, backup) = (folder.join(name), folder.join("kept"));
        fs::rename(&path, &backup).unwrap();
        let text = Identity::read(&folder).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("katydid certs server"), "{text}");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let text = Identity::read(&folder).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("it is not a file"), "{text}");
        fs::rename(&backup, &path).unwrap();
    }
}

#[test]
fn a_servers_certificate_is_refused_with_the_reason_on_both_sides() {
    let authority = Authority::new("good");
    let client = || authority.issue("alice", CLIENT, VALID);
    for (server, at_program, at_server) in [
        (authority.issue("127.0.0.1", SERVER, EXPIRED), "it expired 2 days ago", "has expired or is not valid yet"),
        (authority.issue("127.0.0.1", SERVER, NOT_YET), "it is not valid before", "has expired or is not valid yet"),
        (authority.issue("gpu7", SERVER, VALID), "it is for gpu7 and not for 127.0.0.1", "is it for the name"),
        (
            authority.issue("127.0.0.2", SERVER, VALID),
            "it is for 127.0.0.2 and not for 127.0.0.1",
            "is it for the name",
        ),
        (authority.issue("127.0.0.1", CLIENT, VALID), "it is for another purpose", "for another purpose"),
    ] {
        let (program, server) = refused(server, client());
        assert!(program.contains(at_program), "{program}");
        assert!(server.contains(at_server) && server.contains("refuses our certificate"), "{server}");
    }
}

#[test]
fn a_server_of_another_authority_is_refused() {
    let (own_authority, other_authority) = (Authority::new("ours"), Authority::new("theirs"));
    let (server, client) =
        (other_authority.issue("127.0.0.1", SERVER, VALID), own_authority.issue("alice", CLIENT, VALID));
    // The server knows this test's authority, so the program refuses.
    own_authority.give_to(&server);
    let (program, server) = refused(server, client);
    assert!(program.contains("of another authority"), "{program}");
    assert!(server.contains("of another authority"), "{server}");
}

/// Skips the program's own check of its certificate: only the server's matters here.
#[test]
fn a_programs_certificate_is_refused_with_the_reason_on_both_sides() {
    let (good, other) = (Authority::new("good"), Authority::new("other"));
    let server = || good.issue("127.0.0.1", SERVER, VALID);
    let unknown = other.issue("mallory", CLIENT, VALID);
    let (program, at_server) = refused(server(), unknown.clone());
    assert!(program.contains("of another authority than our authority.pem"), "{program}");
    assert!(at_server.contains("another authority"), "{at_server}");
    let (program, at_server) = refused(server(), good.issue("alice", SERVER, VALID));
    assert!(program.contains("for another purpose"), "{program}");
    assert!(at_server.contains("for another purpose"), "{at_server}");
}

/// No program connects with a certificate that no server would accept.
#[test]
fn a_program_looks_at_its_own_certificate_first() {
    let authority = Authority::new("good");
    let server = Server::tls(authority.issue("127.0.0.1", SERVER, VALID), PathBuf::new());
    let Address::Tls { host, port, .. } = server.address.clone() else { unreachable!() };
    let refusal_text = |certs: Option<PathBuf>| {
        let address = Address::Tls { host: host.clone(), port, certs };
        let outcome = connect(&address, &hello(LinkKind::STREAM), &build(), hang_limit());
        outcome.map(drop).unwrap_err().to_string()
    };
    let certificate = |valid| authority.issue("alice", CLIENT, valid);
    assert!(refusal_text(Some(certificate(EXPIRED))).contains("certificate.pem: it expired 2 days ago"));
    assert!(refusal_text(Some(certificate(NOT_YET))).contains("certificate.pem: it is not valid before"));
    assert!(refusal_text(None).contains("--certs"));
    let (open, broken, unknown) = (certificate(VALID), certificate(VALID), certificate(VALID));
    fs::set_permissions(open.join(KEY_FILE), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert!(refusal_text(Some(open)).contains("key.pem: others can read this key"));
    fs::write(broken.join(CERTIFICATE_FILE), "no certificate").unwrap();
    assert!(refusal_text(Some(broken)).contains("certificate.pem: it holds no certificate"));
    Authority::new("other").give_to(&unknown);
    assert!(refusal_text(Some(unknown)).contains("certificate.pem: it is of another authority"));
    assert!(refusal_text(Some("/no/such/folder".into())).contains("/no/such/folder/authority.pem: No such file"));
}

#[test]
fn plaintext_client_of_a_tls_port_is_refused_and_tls_client_of_a_plaintext_port() {
    let (encrypted, plain) = (Server::new(Path::Tls), Server::new(Path::Tcp));
    let (Address::Tls { host, port, certs }, Address::Tcp { port: plain_port, .. }) =
        (encrypted.address.clone(), plain.address.clone())
    else {
        unreachable!()
    };
    let (program, server) = refusal(&encrypted, &Address::Tcp { host: host.clone(), port });
    assert!(program.contains("takes TLS only") && server.contains("takes TLS only"), "{program}; {server}");
    let (program, server) = refusal(&plain, &Address::Tls { host, port: plain_port, certs });
    assert!(program.contains("does not speak TLS") && server.contains("does not speak TLS"), "{program}; {server}");
}

/// An attacker between program and server, without a certificate, answers in plaintext that all is well.
#[test]
fn plaintext_consent_is_rejected_and_the_program_sends_no_plaintext() {
    let authority = Authority::new("good");
    let (server, client) = (authority.issue("127.0.0.1", SERVER, VALID), authority.issue("alice", CLIENT, VALID));
    let server = Server::tls(server, client);
    let ready =
        Ready { worker_pid: 1, key: SessionKey::NONE, driver: "none".into(), arenas: hello(LinkKind::STREAM).arenas };
    let received = thread::scope(|scope| {
        let plain_server = scope.spawn(|| {
            let mut socket = TcpStream::from(server.accept());
            socket.write_all(&ready.encode(&build()).unwrap()).unwrap();
            let mut received = Vec::new();
            // The program may end the connection in any way.
            let _ = socket.read_to_end(&mut received);
            received
        });
        let error = connect(&server.address, &hello(LinkKind::STREAM), &build(), hang_limit());
        let error = error.map(drop).unwrap_err().to_string();
        assert!(error.contains("the other side does not speak TLS"), "{error}");
        plain_server.join().unwrap()
    });
    assert!(!received.windows(7).any(|bytes| bytes == b"KATYDID"), "a hello in the plain");
}

/// A peer of another implementation, which trusts the authority and shows a folder's certificate, or none.
fn other_make(authority: &Authority, certs: Option<PathBuf>) -> rustls::ClientConnection {
    let folder = authority.issue("other-make", CLIENT, VALID);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join(AUTHORITY_FILE)).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match certs {
        None => config.with_no_client_auth(),
        Some(folder) => {
            let chain = vec![CertificateDer::from_pem_file(folder.join(CERTIFICATE_FILE)).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(folder.join(KEY_FILE)).unwrap()).unwrap()
        }
    };
    rustls::ClientConnection::new(config.into(), ServerName::try_from("127.0.0.1").unwrap()).unwrap()
}

/// The peer gets TLS's own alert for the fault, and the server reports it in its own words.
#[test]
fn a_program_of_another_make_is_refused_by_the_same_rules() {
    let (authority, other) = (Authority::new("good"), Authority::new("other"));
    let server = Server::tls(authority.issue("127.0.0.1", SERVER, VALID), PathBuf::new());
    let Address::Tls { port, .. } = server.address else { unreachable!() };
    for (certs, alert, at_server) in [
        (None, "CertificateRequired", "it has none"),
        (Some(authority.issue("alice", CLIENT, EXPIRED)), "CertificateExpired", "it expired 2 days ago"),
        (Some(authority.issue("alice", CLIENT, NOT_YET)), "CertificateExpired", "it is not valid before"),
        (Some(other.issue("mallory", CLIENT, VALID)), "UnknownCA", "of another authority"),
    ] {
        let mut client = other_make(&authority, certs);
        thread::scope(|scope| {
            let accepted = scope.spawn(|| server.greet().map(drop));
            let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut stream = rustls::Stream::new(&mut client, &mut socket);
            let error = stream.write_all(b"hello").and_then(|()| stream.read(&mut [0; 1])).unwrap_err().to_string();
            assert!(error.contains(alert), "{error}");
            let error = accepted.join().unwrap().unwrap_err().to_string();
            assert!(error.contains(at_server), "{error}");
        });
    }
}

/// Versions before TLS 1.3 are refused, and bytes that are no handshake end the connection.
#[test]
fn bytes_that_are_not_a_handshake_are_refused() {
    let server = Server::new(Path::Tls);
    let Address::Tls { port, .. } = server.address else { unreachable!() };
    for bytes in [&b"\x16\x03\x01\xff\xff"[..], b"\x16\x03\x01\x00\x02\x01\x00", b"\x16\x03\x03\x00\x00", b"\x16"] {
        thread::scope(|scope| {
            let accepted = scope.spawn(|| server.greet().map(drop));
            let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
            socket.write_all(bytes).unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            // Whatever comes back, the connection ends.
            let _ = socket.read_to_end(&mut Vec::new());
            assert!(accepted.join().unwrap().is_err());
        });
    }
}

/// Bytes on the network do not show the plaintext.
#[test]
fn a_network_observer_sees_only_ciphertext() {
    for (path, is_seen) in [(Path::Tcp, true), (Path::Tls, false)] {
        let server = Server::new(path);
        let proxy = Proxy::to(&server.address);
        proxy.there.record();
        thread::scope(|scope| {
            let worker = scope.spawn(|| work(server.serve()));
            let connection = connect(&proxy.address, &hello(LinkKind::STREAM), &build(), hang_limit()).unwrap();
            let mut reply = Vec::new();
            connection.link.call(ECHO, 0, &[b"in the clear?"], &mut reply).unwrap();
            assert_eq!(reply, b"in the clear?");
            drop(connection);
            worker.join().unwrap();
        });
        let in_clear = proxy.there.recorded().windows(13).any(|bytes| bytes == b"in the clear?");
        assert_eq!(in_clear, is_seen, "{path:?}");
    }
}
