//! The server that programs of this environment would use.

use katydid_daemon::ServerView;

use super::Finding;
use crate::address::{Known, admin_path, resolve};
use crate::admin;

/// The name of the check.
const CHECK: &str = "server";

/// Whether a named server answers, and is of this release where that can be asked.
pub(super) fn check(flag: Option<&str>) -> Finding {
    match resolve(flag, None) {
        Err(error) => Finding::fail(CHECK, error.to_string(), "correct the address"),
        Ok(None) => Finding::ok(CHECK, "none named: `katydid run` starts a private one"),
        Ok(Some(known)) => reach(&known),
    }
}

/// A connection first, since the admin socket exists on the server's machine only.
fn reach(known: &Known) -> Finding {
    let (address, origin) = (&known.address, &known.origin);
    if let Err(error) = known.reach() {
        let remedy = format!("start it with `katydid serve --listen {address}` on its machine, or correct {origin}");
        return Finding::fail(CHECK, error.to_string(), remedy);
    }
    match admin::get::<ServerView>(&admin_path(address), "/v1/server") {
        Ok(view) => described(known, &view),
        // Its admin socket is on another machine, or was put elsewhere.
        Err(_) => Finding::ok(CHECK, format!("{address} (from {origin}) accepts connections")),
    }
}

/// What the server says of itself: broken workers and another release are failures that programs would meet.
fn described(known: &Known, view: &ServerView) -> Finding {
    let (address, origin) = (&known.address, &known.origin);
    if let Some(reason) = &view.workers.last_failure {
        let detail = format!("{address} (from {origin}) runs, but its workers do not start: {reason}");
        return Finding::fail(CHECK, detail, "correct its --driver, and see its messages");
    }
    if view.version != env!("CARGO_PKG_VERSION") {
        let detail =
            format!("{address} (from {origin}) is of version {}, this is {}", view.version, env!("CARGO_PKG_VERSION"));
        return Finding::fail(CHECK, detail, "use the same release on both sides");
    }
    let driver = view.driver_found.as_deref().unwrap_or("not started yet");
    Finding::ok(CHECK, format!("{address} (from {origin}): driver {driver}, {} sessions", view.sessions))
}
