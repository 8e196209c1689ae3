//! How often a program waits for the network, and how much it sends: counted replies and bytes, never times. A link of 1 ms
//! costs a step so many milliseconds and no more, since what is not waited for is on its way beside it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::places::Places;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::traffic::{Traffic, counting};
use katydid_tests::watch::PATIENCE;
use katydid_tests::way::Way;

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
