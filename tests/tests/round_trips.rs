//! How often a program waits for the network, and how much it sends: counted replies and bytes, never times. A link of 1 ms
//! costs a step so many milliseconds and no more, since what is not waited for is on its way beside it.

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

/// What went over a network.
#[derive(Default)]
struct Traffic {
    replies: AtomicU64,
    /// Bytes from the program.
    sent: AtomicU64,
    /// Bytes of replies.
    received: AtomicU64,
}

/// Passes on what a program sends.
fn pass(mut from: TcpStream, mut to: TcpStream, sent: &AtomicU64) -> Option<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut bytes).ok().filter(|length| *length > 0)?;
        sent.fetch_add(length as u64, Ordering::Relaxed);
        to.write_all(&bytes[..length]).ok()?;
    }
}

/// Reads what goes from a worker to its program: one message of the handshake, then replies.
fn count(mut from: TcpStream, mut to: TcpStream, traffic: &Traffic) -> Option<()> {
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
            traffic.replies.fetch_add(1, Ordering::Relaxed);
        }
        let length = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
        traffic.received.fetch_add(length as u64, Ordering::Relaxed);
        frame.resize(length, 0);
        from.read_exact(&mut frame[HEAD..]).ok()?;
        to.write_all(&frame).ok()?;
    }
}

/// A network to `server` that counts what passes; its address.
fn counting(server: &str, traffic: &Arc<Traffic>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("tcp://{}", listener.local_addr()?);
    let server = server.strip_prefix("tcp://").context("not TCP")?.to_owned();
    let traffic = Arc::clone(traffic);
    thread::spawn(move || {
        while let Ok((program, _)) = listener.accept() {
            let Ok(worker) = TcpStream::connect(&server) else { return };
            let (Ok(from), Ok(to)) = (program.try_clone(), worker.try_clone()) else { return };
            let (forth, back) = (Arc::clone(&traffic), Arc::clone(&traffic));
            thread::spawn(move || {
                let ended = to.try_clone();
                pass(from, to, &forth.sent);
                ended.map(|worker| worker.shutdown(Shutdown::Write))
            });
            thread::spawn(move || {
                let ended = program.try_clone();
                count(worker, program, &back);
                ended.map(|program| program.shutdown(Shutdown::Both))
            });
        }
    });
    Ok(address)
}

/// What goes over the network while a program runs.
fn traffic_of(places: &Places, server: &Server, name: &str, arguments: &[String]) -> Result<Arc<Traffic>> {
    traffic_with(places, server, &[], name, arguments)
}

/// The same with options of `katydid run`.
fn traffic_with(
    places: &Places,
    server: &Server,
    options: &[&str],
    name: &str,
    arguments: &[String],
) -> Result<Arc<Traffic>> {
    let traffic = Arc::default();
    let address = counting(server.tcp(), &traffic)?;
    let way = Way::Served { name: "tcp", address, as_stream: false };
    let mut command = way.job(places, options, &places.program(name, Variant::Static));
    let outcome = program::run(command.args(arguments), PATIENCE)?;
    ensure!(outcome.status.success(), "{}", outcome.errors());
    Ok(traffic)
}

/// How often a program of so many steps waits for its worker.
fn waits(places: &Places, server: &Server, name: &str, steps: u64) -> Result<u64> {
    Ok(traffic_of(places, server, name, &[steps.to_string()])?.replies.load(Ordering::Relaxed))
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

/// The server has the images of the first.
#[test]
fn a_second_start_sends_no_images() -> Result<()> {
    /// Of more than a megabyte of code, with room for what the build of the program makes of it.
    const CODE: u64 = 512 << 10;
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let mut sent = [0; 2];
    for bytes in &mut sent {
        *bytes = traffic_of(&places, &server, "thrust_algorithms", &[])?.sent.load(Ordering::Relaxed);
    }
    let [first, second] = sent;
    ensure!(second + CODE < first, "{first} bytes, then {second}");
    Ok(())
}

/// Bytes of the large one of the two modules of `used_code`, and more: in one kind of machine code alone.
const LARGE_MODULE: u64 = 500_000;

/// Bytes that `used_code` sends; with the argument `both` it uses its large module too.
fn sent_of_used_code(places: &Places, server: &Server, name: &str, arguments: &[&str]) -> Result<u64> {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Ok(traffic_of(places, server, name, &arguments)?.sent.load(Ordering::Relaxed))
}

/// A server that keeps no images: each start sends what it loads.
fn forgetful(places: &Places) -> Result<Server> {
    Ok(Server::start(places, "soft", &["--images-size", "1"])?)
}

/// Softcuda's device has compute capability 9.0. The program with code for 8.0 as well sends no more than the one without.
#[test]
fn machine_code_for_other_devices_is_not_sent() -> Result<()> {
    let places = Places::of_this_test()?;
    let server = forgetful(&places)?;
    let size = |name| std::fs::metadata(places.program(name, Variant::Static)).map(|file| file.len());
    let (own, more) = (size("used_code")?, size("used_code_80_90")?);
    ensure!(more > own + LARGE_MODULE, "the programs have {own} and {more} bytes");
    let own = sent_of_used_code(&places, &server, "used_code", &["both"])?;
    let more = sent_of_used_code(&places, &server, "used_code_80_90", &["both"])?;
    ensure!(more < own + LARGE_MODULE / 10, "{own} bytes were sent, and {more} with other code beside");
    Ok(())
}

/// A module of which nothing is used is not loaded, unless the program's user wants all at once.
#[test]
fn modules_are_sent_when_they_are_used() -> Result<()> {
    let places = Places::of_this_test()?;
    let server = forgetful(&places)?;
    let one = sent_of_used_code(&places, &server, "used_code", &[])?;
    let both = sent_of_used_code(&places, &server, "used_code", &["both"])?;
    ensure!(one + LARGE_MODULE < both, "{one} bytes for one module, {both} for both");
    Ok(())
}

/// A start that finds the server's images sends them less.
#[test]
fn a_server_that_is_started_again_has_the_images_of_the_last_one() -> Result<()> {
    let places = Places::of_this_test()?;
    let mut last = Server::start(&places, "soft", &[])?;
    let first = sent_of_used_code(&places, &last, "used_code", &["both"])?;
    ensure!(last.stop()?, "{}", last.log());
    let server = last.successor(&places, "soft", &[], &[])?;
    let second = sent_of_used_code(&places, &server, "used_code", &["both"])?;
    ensure!(second + LARGE_MODULE < first, "{first} bytes, and {second} with another server");
    Ok(())
}

/// What is wrong on the disk is noticed, sent again and kept again; and no program minds that there is no room for it.
#[test]
fn images_that_are_damaged_or_cannot_be_kept_are_sent_again() -> Result<()> {
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let sent = || sent_of_used_code(&places, &server, "used_code", &["both"]);
    let first = sent()?;
    for image in std::fs::read_dir(server.images())? {
        let image = image?.path();
        let mut bytes = std::fs::read(&image)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&image, bytes)?;
    }
    let (damaged, repaired) = (sent()?, sent()?);
    ensure!(repaired + LARGE_MODULE < damaged.min(first), "{first} bytes, {damaged} after damage, then {repaired}");
    std::fs::remove_dir_all(server.images())?;
    let without = sent()?;
    ensure!(repaired + LARGE_MODULE < without, "{without} bytes without a folder for images");
    Ok(())
}

/// Copies that repeat themselves, both ways: whoever asks for it has less of them on the network, and the program, which looks
/// at every byte that comes back, is none the wiser. What is not asked for costs nothing.
#[test]
fn packed_copies_are_fewer_bytes_on_the_network_and_the_same_in_memory() -> Result<()> {
    /// Of 590,000 bytes each way from ordinary memory, in six copies.
    const SAVED: u64 = 400_000;
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let bytes = |packing| -> Result<[u64; 2]> {
        let traffic = traffic_with(&places, &server, &["--packing", packing], "bandwidth", &[])?;
        Ok([&traffic.sent, &traffic.received].map(|bytes| bytes.load(Ordering::Relaxed)))
    };
    let (off, _, always) = (bytes("off")?, bytes("auto")?, bytes("always")?);
    ensure!(always[0] + SAVED < off[0] && always[1] + SAVED < off[1], "{off:?} and {always:?} bytes");
    Ok(())
}
