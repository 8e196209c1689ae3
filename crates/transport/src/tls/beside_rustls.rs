//! Compares Katydid's records with those of rustls: the bulk throughput of either over loopback TCP, in one run.
//!
//! `cargo test --release -p katydid-transport beside_rustls -- --ignored --nocapture` prints it as ratios. The throughput of
//! rustls decides whether its records could replace Katydid's (SECURITY.md).

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::net::RecvFlags;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use crate::tls::identity::provider;
use crate::tls::record::{Seals, Suite, TRAFFIC_SECRET_BYTES};

/// Bytes of a message, as in bulk.
const MESSAGE_BYTES: usize = 1 << 20;
/// Messages of a measurement.
const MESSAGES_PER_ROUND: usize = 2048;
/// Measurements of each way, alternating; the best one counts.
const ROUNDS_PER_WAY: usize = 5;
/// Bytes that are received at once.
const RECEIVE_BYTES: usize = 256 << 10;

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    local.set_nodelay(true).unwrap();
    (local, peer)
}

/// Returns gigabytes a second when one thread sends by `send`, message by message, and another receives by `receive`.
fn pace(
    mut send: impl FnMut(&TcpStream, &[u8]) + Send,
    mut receive: impl FnMut(&TcpStream, &mut [u8]),
    (sending_end, receiving_end): (TcpStream, TcpStream),
) -> f64 {
    let (sent, mut got) = (vec![0x5a; MESSAGE_BYTES], vec![0; MESSAGE_BYTES]);
    thread::scope(|scope| {
        scope.spawn(|| (0..=MESSAGES_PER_ROUND).for_each(|_| send(&sending_end, &sent)));
        receive(&receiving_end, &mut got);
        let start = Instant::now();
        (0..MESSAGES_PER_ROUND).for_each(|_| receive(&receiving_end, &mut got));
        let seconds = start.elapsed().as_secs_f64();
        assert!(got == sent);
        (MESSAGES_PER_ROUND * MESSAGE_BYTES) as f64 / seconds / 1e9
    })
}

fn ours() -> f64 {
    let ends = [
        ([1; TRAFFIC_SECRET_BYTES], [2; TRAFFIC_SECRET_BYTES]),
        ([2; TRAFFIC_SECRET_BYTES], [1; TRAFFIC_SECRET_BYTES]),
    ];
    let [near, far] = ends.map(|(sending, receiving)| Seals::new(Suite::Aes128Gcm, sending, receiving).unwrap());
    let (mut sealer, mut opener) = (near.sealer, far.opener);
    opener.enable_read_ahead();
    pace(
        move |socket, bytes| sealer.send(socket.as_fd(), &[IoSlice::new(bytes)], &mut || false).unwrap(),
        |socket, bytes| {
            let mut done = 0;
            while done < bytes.len() {
                let some = opener.fill(socket.as_fd(), RecvFlags::empty()).unwrap();
                let some = &some[..some.len().min(bytes.len() - done)];
                bytes[done..done + some.len()].copy_from_slice(some);
                done += some.len();
                let length = some.len();
                opener.take(length);
            }
        },
        tcp(),
    )
}

fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(issued.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).unwrap();
    let mut server = server.with_no_client_auth().with_single_cert(vec![issued.cert.der().clone()], key).unwrap();
    server.send_tls13_tickets = 0;
    (Arc::new(client), Arc::new(server))
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

/// A connection that buffers, as most programs use rustls; one thread has each end.
fn buffered() -> f64 {
    let (client, server) = configs();
    let mut client = ClientConnection::new(client, name()).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    client.set_buffer_limit(None);
    let (mut local, mut peer) = tcp();
    thread::scope(|scope| {
        scope.spawn(|| client.complete_io(&mut local).unwrap());
        while server.is_handshaking() {
            server.complete_io(&mut peer).unwrap();
        }
    });
    let (mut raw, mut used) = (vec![0; RECEIVE_BYTES], 0..0);
    pace(
        move |mut socket, bytes| {
            client.writer().write_all(bytes).unwrap();
            while client.wants_write() {
                client.write_tls(&mut socket).unwrap();
            }
        },
        move |mut socket, bytes| {
            let mut done = 0;
            while done < bytes.len() {
                match server.reader().read(&mut bytes[done..]) {
                    Ok(read) => done += read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if used.is_empty() {
                            used = 0..socket.read(&mut raw).unwrap();
                        }
                        used.start += server.read_tls(&mut &raw[used.clone()]).unwrap();
                        server.process_new_packets().unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        },
        (local, peer),
    )
}

/// Makes the handshake between two connections that do not buffer.
fn handshake(client: &mut UnbufferedClientConnection, server: &mut UnbufferedServerConnection) {
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    macro_rules! step {
        ($end:expr, $in:expr, $out:expr) => {{
            let UnbufferedStatus { discard, state, .. } = $end.process_tls_records(&mut $in);
            let is_over = match state.unwrap() {
                ConnectionState::EncodeTlsData(mut data) => {
                    let mut record = vec![0; 1 << 16];
                    let length = data.encode(&mut record).unwrap();
                    $out.extend_from_slice(&record[..length]);
                    false
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    false
                }
                ConnectionState::WriteTraffic(_) => true,
                _ => false,
            };
            $in.drain(..discard);
            is_over
        }};
    }
    let mut are_over = [false; 2];
    while are_over != [true; 2] || !to_server.is_empty() || !to_client.is_empty() {
        are_over = [step!(client, to_client, to_server), step!(server, to_server, to_client)];
    }
}

/// A connection whose user provides the buffers, the fastest that rustls has.
fn unbuffered() -> f64 {
    let (client, server) = configs();
    let mut client = UnbufferedClientConnection::new(client, name()).unwrap();
    let mut server = UnbufferedServerConnection::new(server).unwrap();
    handshake(&mut client, &mut server);
    let (mut out, mut raw, mut filled) = (vec![0; 160 << 10], vec![0; RECEIVE_BYTES], 0);
    // The previous message leaves no data of a record, as messages end with records.
    pace(
        move |mut socket, bytes| {
            for part in bytes.chunks(128 << 10) {
                let UnbufferedStatus { state, .. } = client.process_tls_records(&mut []);
                let ConnectionState::WriteTraffic(mut traffic) = state.unwrap() else { panic!("no traffic") };
                let length = traffic.encrypt(part, &mut out).unwrap();
                socket.write_all(&out[..length]).unwrap();
            }
        },
        move |mut socket, bytes| {
            let mut done = 0;
            while done < bytes.len() {
                let mut gone = 0;
                loop {
                    let UnbufferedStatus { mut discard, state, .. } =
                        server.process_tls_records(&mut raw[gone..filled]);
                    let is_empty = match state.unwrap() {
                        ConnectionState::ReadTraffic(mut traffic) => {
                            while let Some(record) = traffic.next_record() {
                                let record = record.unwrap();
                                discard += record.discard;
                                bytes[done..done + record.payload.len()].copy_from_slice(record.payload);
                                done += record.payload.len();
                            }
                            false
                        }
                        _ => true,
                    };
                    gone += discard;
                    if is_empty || done == bytes.len() {
                        break;
                    }
                }
                raw.copy_within(gone..filled, 0);
                filled -= gone;
                if done < bytes.len() {
                    filled += socket.read(&mut raw[filled..]).unwrap();
                }
            }
        },
        tcp(),
    )
}

/// A name, and the function that measures it.
type NamedRate = (&'static str, fn() -> f64);

#[test]
#[ignore = "measures; timings decide nothing"]
fn bulk_throughput_beside_rustls() {
    let ways: [NamedRate; 3] = [("ours", ours), ("buffered", buffered), ("unbuffered", unbuffered)];
    let mut best = [0.0_f64; 3];
    for _ in 0..ROUNDS_PER_WAY {
        for (best, (_, way)) in best.iter_mut().zip(&ways) {
            *best = best.max(way());
        }
    }
    for ((name, _), pace) in ways.iter().zip(best) {
        println!("{name:<12} {pace:6.2} GB/s  {:4.0} % of ours", 100.0 * pace / best[0]);
    }
}
