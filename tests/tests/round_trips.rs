//! How often a program waits for the network: counted replies, never times. A link of 1 ms costs a step so many milliseconds
//! and no more, since what is not waited for is on its way beside it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::places::Places;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::PATIENCE;
use katydid_tests::way::Way;

/// Bytes in front of a reply's length, and of all of its head.
const HEAD: usize = 32;

/// Reads what goes from a worker to its program: one message of the handshake, then replies.
fn count(mut from: TcpStream, mut to: TcpStream, replies: &AtomicU64) -> Option<()> {
    let mut message = vec![0; 72];
    from.read_exact(&mut message).ok()?;
    let length = u32::from_le_bytes(message[8..12].try_into().ok()?) as usize;
    message.resize(length, 0);
    from.read_exact(&mut message[72..]).ok()?;
    to.write_all(&message).ok()?;
    loop {
        let mut frame = vec![0; HEAD];
        from.read_exact(&mut frame).ok()?;
        // Thread 2^32 - 1 is a worker that says that it is there: nobody waits for that.
        if frame[16..20] != [0xff; 4] {
            replies.fetch_add(1, Ordering::Relaxed);
        }
        let length = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
        frame.resize(length, 0);
        from.read_exact(&mut frame[HEAD..]).ok()?;
        to.write_all(&frame).ok()?;
    }
}

/// A network to `server` that counts the replies which pass; its address.
fn counting(server: &str, replies: &Arc<AtomicU64>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("tcp://{}", listener.local_addr()?);
    let server = server.strip_prefix("tcp://").context("not TCP")?.to_owned();
    let replies = Arc::clone(replies);
    thread::spawn(move || {
        while let Ok((program, _)) = listener.accept() {
            let Ok(worker) = TcpStream::connect(&server) else { return };
            let (Ok(mut from), Ok(mut to)) = (program.try_clone(), worker.try_clone()) else { return };
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            let replies = Arc::clone(&replies);
            thread::spawn(move || {
                let ended = program.try_clone();
                count(worker, program, &replies);
                ended.map(|program| program.shutdown(Shutdown::Both))
            });
        }
    });
    Ok(address)
}

/// How often a program of so many steps waits for its worker.
fn waits(places: &Places, server: &Server, name: &str, steps: u64) -> Result<u64> {
    let replies = Arc::new(AtomicU64::new(0));
    let address = counting(server.tcp(), &replies)?;
    let way = Way::Served { name: "tcp", address, as_stream: false };
    let mut command = way.command(places, &places.program(name, Variant::Static));
    let outcome = program::run(command.arg(steps.to_string()), PATIENCE)?;
    ensure!(outcome.status.success(), "{}", outcome.errors());
    Ok(replies.load(Ordering::Relaxed))
}

/// Each step of 48 kernels, an upload, two events, two waits of streams and a result that is copied to pinned memory and
/// waited for: what it costs on a link is the waiting, and the fetching of the result. A copy to ordinary memory is both in one.
#[test]
fn a_step_of_many_calls_waits_for_its_result_alone() -> Result<()> {
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    for (name, per_step) in [("launch_bound", 2), ("long_loop", 1)] {
        let (few, many) = (waits(&places, &server, name, 10)?, waits(&places, &server, name, 60)?);
        ensure!(many - few == 50 * per_step, "{name}: 50 steps waited {} times", many - few);
    }
    Ok(())
}
