//! `katydid ps`: who is served.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use katydid_daemon::{SessionView, SessionsView};
use katydid_transport::Address;

use crate::address::{admin_path, default_listen, resolve};
use crate::admin;
use crate::failure::{Failure, Outcome};
use crate::flags::PsFlags;
use crate::size::Size;
use crate::table::{Align, Table};

/// Longest name shown in the table; JSON has all of it.
const NAME_WIDTH: usize = 32;

/// Runs the command.
pub(crate) fn main(flags: &PsFlags) -> Outcome {
    let view: SessionsView = admin::get(&admin_socket(flags)?, "/v1/sessions").map_err(Failure::server)?;
    let mut out = io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&view).map_err(Failure::work)?)?;
    } else {
        table(&view.sessions, now()).write(&mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `--admin`, or what follows from the server's address, or from where a server listens by default.
fn admin_socket(flags: &PsFlags) -> Result<PathBuf, Failure> {
    if let Some(path) = &flags.admin {
        return Ok(path.clone());
    }
    let known = resolve(flags.server.as_deref(), None).map_err(Failure::usage)?;
    let address = known.map_or_else(default_listen, |known| known.address);
    if is_elsewhere(&address) {
        let text = format!(
            "cannot list the sessions of {address}: the admin socket is on the server's machine only: run `katydid ps` there"
        );
        return Err(Failure::server(text));
    }
    Ok(admin_path(&address))
}

/// Whether only another machine can have the server's admin socket. A name is not resolved: `localhost` is the one that
/// means this machine everywhere.
fn is_elsewhere(address: &Address) -> bool {
    match address {
        Address::Unix(_) => false,
        Address::Vsock { cid, .. } => ![1, u32::MAX].contains(cid),
        Address::Tcp { host, .. } | Address::Tls { host, .. } => {
            host != "localhost"
                && !host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
        }
    }
}

/// The same fields in the same order as the JSON, with units for people.
fn table(sessions: &[SessionView], now: u64) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("ID", Right),
        ("NAME", Left),
        ("PID", Right),
        ("PROGRAM", Left),
        ("FROM", Left),
        ("LINK", Left),
        ("WORKER", Right),
        ("DRIVER", Left),
        ("MEMORY", Right),
        ("CALLS", Right),
        ("AGE", Right),
    ]);
    sessions.iter().for_each(|session| table.row(row(session, now)));
    table
}

/// What a worker has not reported yet is a dash.
fn row(session: &SessionView, now: u64) -> Vec<String> {
    let unknown = || "-".to_owned();
    vec![
        session.id.to_string(),
        shortened(&session.name),
        session.pid.to_string(),
        shortened(&session.program),
        session.peer.clone(),
        session.link.clone(),
        session.worker_pid.to_string(),
        session.driver.clone().unwrap_or_else(unknown),
        session.device_memory.map_or_else(unknown, |bytes| Size(bytes).to_string()),
        session.calls.map_or_else(unknown, |calls| calls.to_string()),
        age(now.saturating_sub(session.started)),
    ]
}

/// Names come from programs and users, so one of them must not break the table.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_WIDTH) {
        Some(_) => name.chars().take(NAME_WIDTH - 1).chain(['…']).collect(),
        None => name.to_owned(),
    }
}

/// The two largest units of a time.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// Seconds since 1970, the clock of the server's answer; both are on one machine.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> SessionView {
        SessionView {
            id: 3,
            name: "nightly".into(),
            pid: 4711,
            program: "train".into(),
            peer: "unix".into(),
            link: "shm".into(),
            started: 1000,
            worker_pid: 4713,
            driver: Some("softcuda".into()),
            device_memory: Some(64 << 20),
            calls: None,
        }
    }

    #[test]
    fn a_session_is_a_line() {
        let mut text = Vec::new();
        table(&[session()], 1075).write(&mut text).unwrap();
        let expected = "ID  NAME      PID  PROGRAM  FROM  LINK  WORKER  DRIVER    MEMORY  CALLS    AGE\n \
                        3  nightly  4711  train    unix  shm     4713  softcuda  64 MiB      -  1m15s\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn json_keeps_the_names_of_the_admin_api() {
        let json = serde_json::to_value(SessionsView { sessions: vec![session()] }).unwrap();
        assert_eq!(json["sessions"][0]["worker_pid"], 4713);
        assert_eq!(json["sessions"][0]["calls"], serde_json::Value::Null);
        assert_eq!(serde_json::from_value::<SessionsView>(json).unwrap().sessions, [session()]);
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [(5, "5s"), (75, "1m15s"), (3661, "1h01m"), (90_000, "1d01h")] {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn long_names_are_cut_in_the_table() {
        assert_eq!(shortened(&"ü".repeat(40)).chars().count(), NAME_WIDTH);
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn only_servers_of_this_machine_can_be_asked() {
        for (address, elsewhere) in
            [("unix:/a", false), ("tcp://127.0.0.1:1", false), ("tcp://[::1]:1", false), ("tcp://gpu7:1", true)]
        {
            assert_eq!(is_elsewhere(&address.parse().unwrap()), elsewhere, "{address}");
        }
    }
}
