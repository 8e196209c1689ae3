//! A network fails in the middle of a program's large copies, after counted bytes of its connections. The program gets an error
//! and never takes a part of a copy for the whole, and the server serves the next program.

#[path = "../../crates/transport/tests/common/proxy.rs"]
#[expect(dead_code, reason = "other tests of links ask more of it")]
#[expect(clippy::unwrap_used, clippy::panic, reason = "a helper of tests")]
mod proxy;

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_cuda_sys::CUresult;
use katydid_tests::catalog::Variant;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Running};
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, until};
use katydid_tests::way::Way;
use katydid_transport::Address;
use proxy::{Direction, Network, Ways};

/// MiB of each copy: enough that several connections carry a share.
const SIZE_MIB: &str = "24";
/// Index of the program's first connection. Two connections of `katydid run` come before it, which looks for a server and asks
/// for its driver. Bulk connections follow.
const FIRST_CONNECTION: usize = 2;
/// Bytes after which a connection is in the middle of its part of a copy.
const MIDDLE_BYTES: u64 = 3 << 20;
/// A copy to the device returns once its bytes are read, before they arrive. So the copy that fails may be the next one.
const IN_ARGUMENTS: [&str; 2] = ["in", "out"];
/// Long enough for the program to send all that it can.
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(30);
/// Words of the program's error after a link ended and after one stalled, with the shortest limit that the options allow; or
/// its supervisor's words for what became of the worker.
const ENDED_TEXTS: &[&str] = &["the session"];
const STALLED_TEXTS: &[&str] =
    &["no sign of life from the other side for 3 s", "its worker is gone", "its worker has ended"];

/// Selects the direction of a connection that fails.
type DirectionOf = fn(&Ways) -> &Direction;

const TO_SERVER: DirectionOf = |ways| &ways.0;
const TO_PROGRAM: DirectionOf = |ways| &ways.1;

/// Runs the fixture's copies over a network to its own server, and passes the connections to `fail` once the copies run. One of
/// the `copies` must then fail with the error for a lost worker, for one of these reasons, and so must the next call. The
/// server must still serve another program.
fn failed_copy(copies: &[&str], reasons: &[&str], fail: impl FnOnce(&[Ways]) -> Result<()>) -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let network = Network::to(&server.tcp().parse::<Address>()?, |_, _| ());
    let fixture = |address: String, options: &[&str], arguments: [&str; 2]| {
        let way = Way::Served { name: "tcp", address, as_stream: false };
        let mut command = way.job(&paths, options, &paths.program("fixture", Variant::Static));
        command.args(arguments);
        command
    };
    // Where no bytes follow the lost ones, the program waits for the lost ones too.
    let limit = ["--link-timeout", if reasons == STALLED_TEXTS { "3s" } else { "10s" }];
    let mut command = fixture(network.address.to_string(), &limit, ["copies", SIZE_MIB]);
    let mut running = Running::start(&mut command, Stdio::null())?;
    running.wait_for("ready", WAIT_TIMEOUT)?;
    fail(&network.ways())?;
    let outcome = running.finish(WAIT_TIMEOUT)?;
    let (text, errors) = (outcome.text(), outcome.errors());
    let lost = CUresult::ERROR_DEVICE_UNAVAILABLE.0;
    let error = format!("error {lost} cudaErrorDevicesUnavailable\n");
    let is_it = |copy: &&str| text == format!("ready\n{copy}\n{error}{error}");
    ensure!(outcome.status.code() == Some(3) && copies.iter().any(is_it), "{}\n{text}{errors}", outcome.ending());
    ensure!(reasons.iter().any(|reason| errors.contains(reason)), "{errors}");
    let next = program::run(&mut fixture(server.tcp().to_owned(), &[], ["count", "5"]), WAIT_TIMEOUT)?;
    ensure!(next.status.success() && next.text() == "5\n", "{}\n{}{}", next.ending(), next.text(), next.errors());
    Ok(())
}

/// Returns the bulk connections.
///
/// # Errors
///
/// Fails if there are none.
fn bulk_connections(ways: &[Ways]) -> Result<&[Ways]> {
    ways.get(FIRST_CONNECTION + 1..).filter(|connections| connections.len() > 1).context("no bulk connections")
}

/// Runs `each` on every bulk connection.
fn of_bulk_connections(ways: &[Ways], each: impl FnMut(&Ways)) -> Result<()> {
    bulk_connections(ways)?.iter().for_each(each);
    Ok(())
}

#[test]
fn a_bulk_connection_that_dies_in_a_copy_to_the_device() -> Result<()> {
    failed_copy(&IN_ARGUMENTS, ENDED_TEXTS, |ways| {
        of_bulk_connections(ways, |connection| TO_SERVER(connection).cut_after(MIDDLE_BYTES))
    })
}

#[test]
fn a_bulk_connection_that_dies_in_a_copy_from_the_device() -> Result<()> {
    failed_copy(&["out"], ENDED_TEXTS, |ways| {
        of_bulk_connections(ways, |connection| TO_PROGRAM(connection).cut_after(MIDDLE_BYTES))
    })
}

/// The first connection carries the heads of frames, which announce what bulk connections carry.
#[test]
fn a_first_connection_that_dies_in_a_copy() -> Result<()> {
    failed_copy(&IN_ARGUMENTS, ENDED_TEXTS, |ways| {
        TO_SERVER(ways.get(FIRST_CONNECTION).context("no connection")?).cut_after(0);
        Ok(())
    })
}

/// The bytes that follow are not the announced ones. Where they happen to look right, the bytes after them do not.
#[test]
fn a_bulk_connection_that_loses_bytes_of_a_copy() -> Result<()> {
    failed_copy(&IN_ARGUMENTS, ENDED_TEXTS, |ways| {
        of_bulk_connections(ways, |connection| TO_SERVER(connection).lose_after(MIDDLE_BYTES, 1000))
    })
}

#[test]
fn a_bulk_connection_that_stalls_in_a_copy_to_the_device() -> Result<()> {
    failed_copy(&IN_ARGUMENTS, STALLED_TEXTS, |ways| {
        of_bulk_connections(ways, |connection| TO_SERVER(connection).hold_after(MIDDLE_BYTES))
    })
}

#[test]
fn a_bulk_connection_that_stalls_in_a_copy_from_the_device() -> Result<()> {
    failed_copy(&["out"], STALLED_TEXTS, |ways| {
        of_bulk_connections(ways, |connection| TO_PROGRAM(connection).hold_after(MIDDLE_BYTES))
    })
}

/// Pieces of copies, in both directions, arrive one connection at a time, the last connection first. Copies are whole all the
/// same, which the fixture checks, until a connection is cut.
#[test]
fn pieces_that_come_in_another_order_make_whole_copies() -> Result<()> {
    failed_copy(&IN_ARGUMENTS, ENDED_TEXTS, |ways| {
        let connections = bulk_connections(ways)?;
        for which in [TO_SERVER, TO_PROGRAM] {
            connections.iter().for_each(|connection| which(connection).hold_after(0));
            for connection in connections.iter().rev() {
                sleep(LINK_POLL_INTERVAL);
                which(connection).release();
            }
        }
        let before = TO_PROGRAM(&connections[0]).passed();
        until("copies go on", || TO_PROGRAM(&connections[0]).passed() > before + MIDDLE_BYTES)?;
        TO_SERVER(&connections[0]).cut_after(MIDDLE_BYTES);
        Ok(())
    })
}
