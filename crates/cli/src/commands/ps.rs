//! `katydid ps`: lists what runs on this machine, and the programs that are served.
//!
//! Without a server's name, these are all servers and jobs that the caller may know of. They are those of `katydid serve`, the
//! private ones of `run`, `trace`, `restore` and `bench`, and the jobs of `run` and `restore`. All are asked in parallel. A
//! server that does not answer gets a row without values; standard error names one whose answer is invalid.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use katydid_job::supervisor::folder::FoundJob;
use katydid_job::supervisor::registry;
use katydid_job::supervisor::view::{JobView, StageProgress};
use katydid_server::{ReservedView, ServerView, SessionView, SessionsView};
use katydid_transport::Address;
use rustix::process::geteuid;
use serde::Serialize;

use crate::args::flags::PsFlags;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};
use katydid_cli_core::output::table::{Align, Table};
use katydid_cli_core::server::address::{admin_path, resolve};
use katydid_cli_core::server::admin::{self, ADMIN_ANSWER_TIMEOUT, AdminError, SHORT_TIMEOUT};
use katydid_cli_core::server::private_server::PrivateServer;

/// Longest name in the table; JSON has the whole name.
const MAX_PROGRAM_COLUMN_CHARS: usize = 32;
/// Most servers and jobs that are asked in parallel.
const PARALLEL_QUERIES: usize = 64;
/// Shown in place of the link of a session that has not begun.
const RESERVED_LINK: &str = "reserved";
/// Shown for a server or supervisor that does not answer.
const SILENT_TEXT: &str = "does not answer";
/// Longest command line of a job.
const MAX_COMMAND_CHARS: usize = 60;

/// Document that `katydid ps --json` writes.
#[derive(Debug, Default, Serialize)]
struct View {
    servers: Vec<ServerLine>,
    sessions: Vec<SessionLine>,
    reserved: Vec<ReservedLine>,
    jobs: Vec<JobLine>,
}

/// A running server, as its admin socket describes it.
#[derive(Debug, Serialize)]
struct ServerLine {
    /// Path of its admin socket.
    #[serde(serialize_with = "document::lossy_path")]
    admin: PathBuf,
    #[serde(flatten)]
    view: Option<ServerView>,
    /// Why its view is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A session, with its server.
#[derive(Debug, Serialize)]
struct SessionLine {
    /// The first address of its server.
    server: String,
    #[serde(flatten)]
    view: SessionView,
}

/// A slot that is reserved for a program to come, with its server.
#[derive(Debug, Serialize)]
struct ReservedLine {
    /// The server's first address.
    server: String,
    #[serde(flatten)]
    view: ReservedView,
}

/// A job. Fields that only its supervisor knows are missing if that does not answer.
#[derive(Debug, Serialize)]
struct JobLine {
    name: String,
    user: u32,
    supervisor: u32,
    program: u32,
    command: Vec<String>,
    server: Option<String>,
    /// Number of programs that use a GPU.
    members: Option<usize>,
    /// The current stage of a running checkpoint.
    checkpoint: Option<String>,
    #[serde(serialize_with = "document::lossy_path")]
    folder: PathBuf,
}

/// Runs `katydid ps`.
pub(crate) fn main(flags: &PsFlags) -> Outcome {
    let named = named(flags)?;
    let view = match &named {
        Some(admin) => View { jobs: Vec::new(), ..of_server(admin, deadline_of_others()).map_err(Failure::server)? },
        None => everything(),
    };
    if flags.json {
        document::write(&view)?;
    } else {
        write(&view, named.is_some(), &mut io::stdout().lock())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The admin socket of the server that the flags name, if any.
fn named(flags: &PsFlags) -> Result<Option<PathBuf>, Failure> {
    if flags.admin.is_some() || flags.server.is_none() {
        return Ok(flags.admin.clone());
    }
    let known = resolve(flags.server.as_deref(), None).map_err(Failure::usage)?;
    let Some(address) = known.map(|known| known.address) else { return Ok(None) };
    if is_elsewhere(&address) {
        let text = format!(
            "cannot list the sessions of {address}: the admin socket is on the server's machine only: run `katydid ps` there"
        );
        return Err(Failure::server(text));
    }
    Ok(Some(admin::of_address(&address)))
}

/// How long an answer may take. Those of other users share a `deadline`: any number may be made not to answer.
fn limit(is_own: bool, deadline: Instant) -> Duration {
    if is_own { ADMIN_ANSWER_TIMEOUT } else { deadline.saturating_duration_since(Instant::now()) }
}

/// When all answers of other users have to be there.
fn deadline_of_others() -> Instant {
    Instant::now() + SHORT_TIMEOUT
}

/// Asks a server for itself and its sessions.
fn of_server(admin: &Path, deadline: Instant) -> Result<View, AdminError> {
    let is_own = registry::is_socket_of(admin, geteuid().as_raw());
    let limit = || limit(is_own, deadline);
    let server: ServerView = admin::get_within(admin, "/v1/server", limit())?;
    let sessions: SessionsView = admin::get_within(admin, "/v1/sessions", limit())?;
    let address = server.listen.first().cloned().unwrap_or_default();
    let SessionsView { sessions, reserved } = sessions;
    let sessions = sessions.into_iter().map(|view| SessionLine { server: address.clone(), view }).collect();
    let reserved = reserved.into_iter().map(|view| ReservedLine { server: address.clone(), view }).collect();
    let line = ServerLine { admin: admin.to_owned(), view: Some(server), error: None };
    Ok(View { servers: vec![line], sessions, reserved, jobs: Vec::new() })
}

/// Asks all servers and jobs.
fn everything() -> View {
    let (servers, found) = (registry::servers(), registry::jobs());
    let deadline = deadline_of_others();
    let ask_servers = |admins: &[PathBuf]| ask_each(admins, |admin| owner(admin), |admin| of_server(admin, deadline));
    let ask_jobs = || ask_each(&found, |found| found.user, |found| JobLine::of(found.clone(), deadline));
    let (answers, jobs) = thread::scope(|scope| {
        let jobs = thread::Builder::new().spawn_scoped(scope, ask_jobs);
        let answers = ask_servers(&servers);
        // Without a thread, the jobs are asked after the servers.
        (answers, jobs.map_or_else(|_| ask_jobs(), |jobs| jobs.join().unwrap_or_default()))
    });
    let mut view = View { jobs, ..View::default() };
    servers.iter().zip(answers).for_each(|(admin, answers)| view.add_answer(admin, answers));
    // A server that does not answer may be on another machine, or have its admin socket elsewhere: the job is listed in any case.
    let unlisted = view.unlisted().into_iter().filter(|(user, admin)| registry::is_socket_of(admin, *user));
    let unlisted: Vec<PathBuf> = unlisted.map(|(_, admin)| admin).filter(|admin| !servers.contains(admin)).collect();
    let answers = ask_servers(&unlisted);
    unlisted.iter().zip(answers).for_each(|(admin, answers)| view.add_answer(admin, answers));
    view
}

/// The user of a socket; none is root's.
fn owner(socket: &Path) -> u32 {
    fs::symlink_metadata(socket).map_or(0, |stat| stat.uid())
}

/// Asks all in parallel, as far as the system gives threads. The owners take turns, so that many silent ones of one owner
/// delay those of no other.
fn ask_each<T: Sync, R: Send>(items: &[T], owner: impl Fn(&T) -> u32, ask: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (order, next) = (in_turns(items.iter().map(owner)), AtomicUsize::new(0));
    let answers: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    let work = || {
        while let Some(&position) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answer = ask(&items[position]);
            answers.lock().unwrap_or_else(PoisonError::into_inner)[position] = Some(answer);
        }
    };
    thread::scope(|scope| {
        // This thread works too, alone if there are no others.
        let mut others =
            (1..items.len().min(PARALLEL_QUERIES)).map(|_| thread::Builder::new().spawn_scoped(scope, work));
        let _ = others.find(Result::is_err);
        work();
    });
    answers.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// Positions of items of these owners: the first of each owner, then the second of each, and so on.
fn in_turns(owners: impl Iterator<Item = u32>) -> Vec<usize> {
    let mut counts = BTreeMap::<u32, usize>::new();
    let next_round = |owner| {
        let count = counts.entry(owner).or_default();
        *count += 1;
        *count
    };
    let mut rounds: Vec<(usize, usize)> = owners.map(next_round).zip(0..).collect();
    rounds.sort_unstable();
    rounds.into_iter().map(|(_, position)| position).collect()
}

impl View {
    /// Adds a server's answer, or that it does not answer.
    fn add_answer(&mut self, admin: &Path, answer: Result<Self, AdminError>) {
        match answer {
            Ok(found) => self.add(found),
            Err(error) if error.is_silence() => {
                self.servers.push(ServerLine { admin: admin.to_owned(), view: None, error: Some(error.to_string()) });
            }
            // It may have ended meanwhile.
            Err(AdminError::Unreachable { .. }) if !admin.exists() => {}
            Err(error) => print_message(error),
        }
    }

    /// Adds a server, unless it is listed by another name.
    fn add(&mut self, view: Self) {
        let is_known = |new: &ServerLine| {
            let identity = |line: &ServerLine| line.view.as_ref().map(|view| (view.pid, view.listen.clone()));
            self.servers.iter().any(|known| identity(known).is_some() && identity(known) == identity(new))
        };
        if !view.servers.iter().any(is_known) {
            self.servers.extend(view.servers);
            self.sessions.extend(view.sessions);
            self.reserved.extend(view.reserved);
        }
    }

    /// Admin sockets of jobs' servers that no note names, such as those of another runtime folder. Each comes with the job's
    /// user, who may have named another user's socket.
    fn unlisted(&self) -> Vec<(u32, PathBuf)> {
        let views = self.servers.iter().filter_map(|server| server.view.as_ref());
        let listened: Vec<&String> = views.flat_map(|view| &view.listen).collect();
        let known = |address: &String| listened.contains(&address);
        let addresses = self.jobs.iter().filter_map(|job| Some((job.user, job.server.as_ref()?)));
        let addresses = addresses.filter(|(_, address)| !known(address));
        let admin = |address: &String| match address.parse().ok()? {
            Address::Unix(socket) => {
                Some(PrivateServer::admin_beside(&socket).unwrap_or_else(|| admin_path(&Address::Unix(socket))))
            }
            _ => None,
        };
        let mut admins: Vec<_> = addresses.filter_map(|(user, address)| Some((user, admin(address)?))).collect();
        admins.sort();
        admins.dedup();
        admins
    }
}

impl JobLine {
    fn of(job: FoundJob, deadline: Instant) -> Self {
        let limit = limit(job.user == geteuid().as_raw(), deadline);
        let reply: Option<JobView> = admin::get_of_job(&job.control(), job.user, "/v1/job", limit).ok();
        let server = job.servers().into_iter().next();
        let FoundJob { entry, user, folder } = job;
        let (members, checkpoint, command) = match reply {
            Some(view) => {
                let stage = view.checkpoint.as_ref().map(StageProgress::name);
                (Some(view.members.len()), stage, view.command)
            }
            None => (None, None, vec![entry.command.clone()]),
        };
        let (name, supervisor, program) = (entry.name, entry.supervisor, entry.program);
        Self { name, user, supervisor, program, command, server, members, checkpoint, folder }
    }

    /// State of the job in a few words, for the table.
    fn state(&self) -> String {
        match (&self.checkpoint, self.members) {
            (Some(stage), _) => format!("checkpoint: {stage}"),
            (None, Some(_)) if self.program == 0 => "starting".to_owned(),
            (None, Some(_)) => "running".to_owned(),
            (None, None) => SILENT_TEXT.to_owned(),
        }
    }
}

/// Writes the tables; the table of jobs only if there are any.
fn write(view: &View, is_one: bool, out: &mut impl Write) -> io::Result<()> {
    let silent = view.servers.iter().filter(|server| server.view.is_none());
    let silent: Vec<&Path> = silent.map(|server| server.admin.as_path()).collect();
    sessions(view, &silent, is_one, seconds_since_epoch()).write(out)?;
    if view.jobs.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    jobs(&view.jobs).write(out)
}

/// Whether only another machine can have the server's admin socket. Names are not resolved: only `localhost` means this machine
/// everywhere.
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

/// The table of sessions, in units for users; with their server if there may be several. The slots that are reserved for programs
/// to come follow, and the admin sockets of silent servers.
fn sessions(view: &View, silent: &[&Path], is_one: bool, now: u64) -> Table {
    use Align::{Left, Right};
    let mut columns = vec![
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
    ];
    columns.extend((!is_one).then_some(("SERVER", Left)));
    let mut table = Table::new(&columns);
    for line in &view.sessions {
        let mut cells = row(&line.view, now);
        cells.extend((!is_one).then(|| line.server.clone()));
        table.row(cells);
    }
    for line in &view.reserved {
        let mut cells = reserved_row(&line.view, now);
        cells.extend((!is_one).then(|| line.server.clone()));
        table.row(cells);
    }
    for admin in silent {
        let mut cells = vec!["-".to_owned(); columns.len()];
        (cells[1], cells[columns.len() - 1]) = (SILENT_TEXT.to_owned(), admin.display().to_string());
        table.row(cells);
    }
    table
}

/// Table of the jobs that run.
fn jobs(lines: &[JobLine]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("JOB", Left),
        ("USER", Left),
        ("SUPERVISOR", Right),
        ("PID", Right),
        ("ON GPU", Right),
        ("STATE", Left),
        ("SERVER", Left),
        ("COMMAND", Left),
    ]);
    let names = fs::read_to_string("/etc/passwd").unwrap_or_default();
    for line in lines {
        table.row(vec![
            line.name.clone(),
            user(&names, line.user),
            line.supervisor.to_string(),
            if line.program == 0 { "-".to_owned() } else { line.program.to_string() },
            line.members.map_or_else(|| "-".to_owned(), |members| members.to_string()),
            line.state(),
            line.server.clone().unwrap_or_else(|| "-".to_owned()),
            shortened(&line.command.join(" "), MAX_COMMAND_CHARS),
        ]);
    }
    table
}

/// A user's name in the text of `/etc/passwd`, or the number.
fn user(names: &str, number: u32) -> String {
    let text = number.to_string();
    let line = names.lines().find(|line| line.split(':').nth(2) == Some(&text));
    line.and_then(|line| line.split(':').next()).map_or(text.clone(), str::to_owned)
}

/// The row of a session; a dash stands for what its worker has not reported yet.
fn row(session: &SessionView, now: u64) -> Vec<String> {
    let unknown = || "-".to_owned();
    vec![
        session.id.to_string(),
        shortened(&session.name, MAX_PROGRAM_COLUMN_CHARS),
        session.pid.to_string(),
        shortened(&session.program, MAX_PROGRAM_COLUMN_CHARS),
        session.peer.clone(),
        session.link.clone(),
        session.worker_pid.to_string(),
        session.driver.clone().unwrap_or_else(unknown),
        session.device_memory.map_or_else(unknown, |bytes| Size(bytes).to_string()),
        session.calls.map_or_else(unknown, |calls| calls.to_string()),
        age(now.saturating_sub(session.started)),
    ]
}

/// The row of a reserved slot, whose session has no worker yet.
fn reserved_row(slot: &ReservedView, now: u64) -> Vec<String> {
    let unknown = || "-".to_owned();
    vec![
        slot.id.to_string(),
        shortened(&slot.name, MAX_PROGRAM_COLUMN_CHARS),
        slot.pid.to_string(),
        shortened(&slot.program, MAX_PROGRAM_COLUMN_CHARS),
        slot.peer.clone(),
        RESERVED_LINK.to_owned(),
        unknown(),
        unknown(),
        unknown(),
        unknown(),
        age(now.saturating_sub(slot.started)),
    ]
}

/// Shortens a name; names come from programs and users, and must not break the table.
fn shortened(name: &str, width: usize) -> String {
    match name.char_indices().nth(width) {
        Some(_) => name.chars().take(width - 1).chain(['…']).collect(),
        None => name.to_owned(),
    }
}

/// Formats a time in its two largest units.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// Seconds since 1970, by the same clock as the server's answer, since both are on one machine.
fn seconds_since_epoch() -> u64 {
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
    fn all_are_asked_at_the_same_time_and_answer_in_their_order() {
        let all: Vec<usize> = (0..PARALLEL_QUERIES + 2).collect();
        let barriers = [PARALLEL_QUERIES, 2].map(std::sync::Barrier::new);
        let answers = ask_each(
            &all,
            |_| 0,
            |number| {
                barriers[number / PARALLEL_QUERIES].wait();
                *number
            },
        );
        assert_eq!(answers, all);
    }

    #[test]
    fn owners_take_turns_and_those_of_others_have_one_deadline() {
        assert_eq!(in_turns([7, 7, 7, 8, 9, 8].into_iter()), [0, 3, 4, 1, 5, 2]);
        let (past, later) = (Instant::now(), deadline_of_others());
        assert_eq!((limit(false, past), limit(true, past)), (Duration::ZERO, ADMIN_ANSWER_TIMEOUT));
        assert!(limit(false, later) <= SHORT_TIMEOUT);
    }

    #[test]
    fn paths_of_any_bytes_are_in_the_document() {
        let admin = PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"/run/\xff"));
        let text = serde_json::to_string(&ServerLine { admin, view: None, error: None }).unwrap();
        assert_eq!(text, "{\"admin\":\"/run/\u{fffd}\"}");
    }

    #[test]
    fn a_session_is_a_line() {
        let mut text = Vec::new();
        let line = SessionLine { server: "unix:/k".into(), view: session() };
        sessions(&View { sessions: vec![line], ..View::default() }, &[], true, 1075).write(&mut text).unwrap();
        let expected = "ID  NAME      PID  PROGRAM  FROM  LINK  WORKER  DRIVER    MEMORY  CALLS    AGE\n \
                        3  nightly  4711  train    unix  shm     4713  softcuda  64 MiB      -  1m15s\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_reserved_slot_is_a_line_and_an_item() {
        let (name, program, peer) = ("nightly".to_owned(), "train".to_owned(), "unix".to_owned());
        let slot = ReservedView { id: 4, name, pid: 4711, program, peer, started: 1000 };
        let reserved = vec![ReservedLine { server: "unix:/k".into(), view: slot }];
        let view = View { reserved, ..View::default() };
        let mut text = Vec::new();
        sessions(&view, &[], true, 1075).write(&mut text).unwrap();
        let expected = "ID  NAME      PID  PROGRAM  FROM  LINK      WORKER  DRIVER  MEMORY  CALLS    AGE\n \
                        4  nightly  4711  train    unix  reserved       -  -            -      -  1m15s\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["reserved"][0]["id"], &json["reserved"][0]["server"]), (&4.into(), &"unix:/k".into()));
    }

    #[test]
    fn json_keeps_the_names_of_the_admin_api() {
        let line = SessionLine { server: "unix:/k".into(), view: session() };
        let json = serde_json::to_value(View { sessions: vec![line], ..View::default() }).unwrap();
        assert_eq!(json["sessions"][0]["worker_pid"], 4713);
        assert_eq!(json["sessions"][0]["server"], "unix:/k");
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
        assert_eq!(shortened(&"ü".repeat(40), MAX_PROGRAM_COLUMN_CHARS).chars().count(), MAX_PROGRAM_COLUMN_CHARS);
        assert_eq!(shortened("short", MAX_PROGRAM_COLUMN_CHARS), "short");
    }

    fn job() -> JobLine {
        JobLine {
            name: "train".into(),
            user: 4_000_000_123,
            supervisor: 5,
            program: 7,
            command: vec!["./train".into(), "-x".into()],
            server: Some("unix:/k".into()),
            members: Some(1),
            checkpoint: None,
            folder: "/j".into(),
        }
    }

    #[test]
    fn the_servers_of_jobs_that_no_note_names_are_asked_too() {
        let at = |server: &str| JobLine { server: Some(server.to_owned()), ..job() };
        let jobs = vec![
            at("unix:/k"),
            at("unix:/k"),
            at("unix:/p/sock"),
            at("tcp://gpu7:1"),
            JobLine { server: None, ..job() },
        ];
        let mut view = View { jobs, ..View::default() };
        assert_eq!(view.unlisted(), ["/k.admin", "/p/admin"].map(|admin| (job().user, PathBuf::from(admin))));
        view.servers.push(ServerLine { admin: "/elsewhere".into(), view: Some(server("unix:/k")), error: None });
        assert_eq!(view.unlisted(), [(job().user, PathBuf::from("/p/admin"))]);
        view.add(View {
            servers: vec![ServerLine { admin: "/k.admin".into(), view: Some(server("unix:/k")), error: None }],
            ..View::default()
        });
        assert_eq!(view.servers.len(), 1);
    }

    #[test]
    fn a_server_that_says_nothing_is_a_row_and_an_item_with_its_error() {
        let mut view = View::default();
        let silence = AdminError::Unreachable { path: "/s.admin".into(), source: io::ErrorKind::TimedOut.into() };
        view.add_answer(Path::new("/s.admin"), Err(silence));
        let mut text = Vec::new();
        write(&view, false, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let row: Vec<&str> = text.lines().nth(1).unwrap().split("  ").map(str::trim).collect();
        assert!(row.contains(&SILENT_TEXT) && row.last() == Some(&"/s.admin"), "{text}");
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["servers"][0]["admin"], "/s.admin");
        assert!(json["servers"][0]["error"].as_str().unwrap().contains("in time"), "{json}");
    }

    fn server(listen: &str) -> ServerView {
        let text = r#"{"version": "1", "pid": 1, "started": 1, "listen": [], "driver": "soft", "driver_found": null,
            "workers": {"ready": 0, "warming": 0, "last_failure": null}, "sessions": 0, "max_sessions": 1,
            "session_memory": null}"#;
        ServerView { listen: vec![listen.to_owned()], ..serde_json::from_str(text).unwrap() }
    }

    #[test]
    fn a_job_is_a_line_with_the_name_of_its_user() {
        let line = job();
        let mut text = Vec::new();
        jobs(&[line]).write(&mut text).unwrap();
        let expected = "JOB    USER        SUPERVISOR  PID  ON GPU  STATE    SERVER   COMMAND\n\
                        train  4000000123           5    7       1  running  unix:/k  ./train -x\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(user("root:x:0:0::/root:/bin/sh\nme:x:1000:5::/:/bin/sh\n", 1000), "me");
        assert_eq!(user("", 1000), "1000");
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
