//! A network that fails in the middle of a program's large copies, at counted bytes of its connections: the program has an
//! error, never a part of a copy for the whole, and the server serves the next one.

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
use katydid_tests::places::Places;
use katydid_tests::program::{self, Running};
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, until};
use katydid_tests::way::Way;
use katydid_transport::Address;
use proxy::{Direction, Network, Ways};

/// MiB of each copy: several connections have their share of it.
const SIZE: &str = "24";
/// The program's first connection: two of `katydid run`, which looks for a server and asks for its driver, come before it, lanes
/// behind it.
const FIRST: usize = 2;
/// In the middle of what a connection carries of a copy.
const MIDDLE: u64 = 3 << 20;
/// A copy to the device has been read when it returns, and need not have arrived: the next one may be told that it has not.
const IN: [&str; 2] = ["in", "out"];
/// Long enough for the program to send what it can meanwhile.
const NAP: Duration = Duration::from_millis(30);
/// What a program is told of a link that ended, and of one that stalled, with the shortest limit that there is: or, by its
/// supervisor, what has become of the worker.
const ENDED: &[&str] = &["the session"];
const STALLED: &[&str] = &["no sign of life from the other side for 3 s", "its worker is gone", "its worker has ended"];

/// Which way of a connection fails.
type Which = fn(&Ways) -> &Direction;

const THERE: Which = |ways| &ways.0;
const BACK: Which = |ways| &ways.1;

/// The fixture copies over a network to a server of its own; `fail` is given the connections once it does. Then one of the
/// `copies` has failed, with the error of a worker that is gone, as has the call behind it, for one of these reasons; and another
/// program is served.
fn failed_copy(copies: &[&str], reasons: &[&str], fail: impl FnOnce(&[Ways]) -> Result<()>) -> Result<()> {
    let places = Places::of_this_test()?;
    let server = Server::start(&places, "soft", &[])?;
    let network = Network::to(&server.tcp().parse::<Address>()?, |_, _| ());
    let fixture = |address: String, options: &[&str], arguments: [&str; 2]| {
        let way = Way::Served { name: "tcp", address, as_stream: false };
        let mut command = way.job(&places, options, &places.program("fixture", Variant::Static));
        command.args(arguments);
        command
    };
    // Where bytes are lost that nothing follows, they are waited for as well.
    let limit = ["--link-timeout", if reasons == STALLED { "3s" } else { "10s" }];
    let mut command = fixture(network.address.to_string(), &limit, ["copies", SIZE]);
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

/// The connections for bulk; there have to be some.
fn lanes(ways: &[Ways]) -> Result<&[Ways]> {
    ways.get(FIRST + 1..).filter(|lanes| lanes.len() > 1).context("no lanes")
}

/// Does something to each of them.
fn of_lanes(ways: &[Ways], each: impl FnMut(&Ways)) -> Result<()> {
    lanes(ways)?.iter().for_each(each);
    Ok(())
}

#[test]
fn a_lane_that_dies_in_a_copy_to_the_device() -> Result<()> {
    failed_copy(&IN, ENDED, |ways| of_lanes(ways, |lane| THERE(lane).cut_after(MIDDLE)))
}

#[test]
fn a_lane_that_dies_in_a_copy_from_the_device() -> Result<()> {
    failed_copy(&["out"], ENDED, |ways| of_lanes(ways, |lane| BACK(lane).cut_after(MIDDLE)))
}

/// Heads of frames go there, which tell of what lanes carry.
#[test]
fn a_first_connection_that_dies_in_a_copy() -> Result<()> {
    failed_copy(&IN, ENDED, |ways| {
        THERE(ways.get(FIRST).context("no connection")?).cut_after(0);
        Ok(())
    })
}

/// What comes next is not what was announced; where it looks like it, the next thing does not.
#[test]
fn a_lane_that_loses_bytes_of_a_copy() -> Result<()> {
    failed_copy(&IN, ENDED, |ways| of_lanes(ways, |lane| THERE(lane).lose_after(MIDDLE, 1000)))
}

#[test]
fn a_lane_that_stalls_in_a_copy_to_the_device() -> Result<()> {
    failed_copy(&IN, STALLED, |ways| of_lanes(ways, |lane| THERE(lane).hold_after(MIDDLE)))
}

#[test]
fn a_lane_that_stalls_in_a_copy_from_the_device() -> Result<()> {
    failed_copy(&["out"], STALLED, |ways| of_lanes(ways, |lane| BACK(lane).hold_after(MIDDLE)))
}

/// Pieces of copies, each way, come on one connection after another, the last one first: copies are whole all the same, for
/// which the fixture looks, until a connection is cut.
#[test]
fn pieces_that_come_in_another_order_make_whole_copies() -> Result<()> {
    failed_copy(&IN, ENDED, |ways| {
        let lanes = lanes(ways)?;
        for which in [THERE, BACK] {
            lanes.iter().for_each(|lane| which(lane).hold_after(0));
            for lane in lanes.iter().rev() {
                sleep(NAP);
                which(lane).release();
            }
        }
        let before = BACK(&lanes[0]).passed();
        until("copies go on", || BACK(&lanes[0]).passed() > before + MIDDLE)?;
        THERE(&lanes[0]).cut_after(MIDDLE);
        Ok(())
    })
}
