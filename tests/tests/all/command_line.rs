//! Tests what the command line promises: exit statuses, one JSON document, units, the list of `ps`, traces, and installed files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands::katydid;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Outcome, Running};
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, until};
use katydid_tests::way::Way;
use serde_json::{Value, json};

/// The variables that CuPy needs for softcuda, as a shell prints them.
const PRINT_VARIABLES: &str = "printf '%s|%s' \"$CUPY_COMPILE_WITH_PTX\" \"${CUPY_ACCELERATORS-unset}\"";

/// A word that appears only if the program runs.
const RAN_LINE: &str = "the program ran";

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Outcome> {
    let paths = Paths::of_this_test()?;
    let mut command = katydid(&paths, arguments);
    // The user that runs the tests may have a server in the config file.
    command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME").envs(variables.iter().copied());
    Ok(program::run(&mut command, WAIT_TIMEOUT)?)
}

fn fixture() -> Result<String> {
    let paths = Paths::of_this_test()?;
    Ok(paths.program("fixture", Variant::Static).to_string_lossy().into_owned())
}

/// Checks that a command is refused with this status and one line with these words, before its program runs.
fn is_refused(outcome: &Outcome, status: i32, texts: &[&str]) -> Result<()> {
    let errors = outcome.errors();
    ensure!(outcome.status.code() == Some(status), "{}, not {status}: {errors}", outcome.ending());
    ensure!(errors.lines().count() == 1 && errors.starts_with("katydid: "), "not one line of katydid's:\n{errors}");
    for word in texts {
        ensure!(errors.contains(word), "no {word} in: {errors}");
    }
    ensure!(!outcome.text().contains(RAN_LINE), "the program ran: {errors}");
    Ok(())
}

fn running(server: &str, arguments: &[&str]) -> Result<Outcome> {
    run(&[&["run", "--server", server], arguments, &["--", "echo", RAN_LINE]].concat(), &[])
}

#[test]
fn a_full_server_is_3_and_one_line() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, &driver_under_test(), &["--max-sessions", "1"])?;
    let way = Way::through(&server)[0].clone();
    let mut command = way.command(&paths, &paths.program("fixture", Variant::Static));
    let mut first = Running::start(command.arg("idle"), Stdio::piped())?;
    first.wait_for("ready", WAIT_TIMEOUT)?;
    is_refused(&running(&server.unix(), &[])?, 3, &["1 sessions", "--max-sessions"])?;
    is_refused(&running(server.tcp(), &[])?, 3, &["--max-sessions"])?;
    first.close_input();
    first.finish(WAIT_TIMEOUT)?;
    server.workers_of(0)?;
    ensure!(running(&server.unix(), &[])?.text().contains(RAN_LINE), "the server has room again");
    Ok(())
}

/// Two programs want the last slot. The second is refused before it runs, whichever of them would have made a call first.
#[test]
fn of_two_that_come_to_the_last_place_one_is_3_and_one_line() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, &driver_under_test(), &["--max-sessions", "1"])?;
    for address in [server.unix(), server.tcp().to_owned()] {
        let folder = tempfile::tempdir()?;
        let go = folder.path().join("go");
        let script =
            format!("echo begun; until [ -e '{}' ]; do sleep 0.1; done; exec '{}' idle", go.display(), fixture()?);
        let mut command = katydid(&paths, &["run", "--server", &address, "--", "sh", "-c", &script]);
        let mut first = Running::start(&mut command, Stdio::piped())?;
        first.wait_for("begun", WAIT_TIMEOUT)?;
        let view = document(&run(&["ps", "--server", &server.unix(), "--json"], &[])?)?;
        let reserved = &view["reserved"][0];
        ensure!(reserved["program"] == "sh" && reserved["name"] == "sh" && view["sessions"] == json!([]), "{view}");
        ensure!(view["servers"][0]["reserved"] == 1 && view["servers"][0]["sessions"] == 0, "{view}");
        ensure!(run(&["ps"], &[])?.text().contains("reserved"), "the table has no such row");
        for command in ["run", "trace"] {
            let refused = run(&[command, "--server", &server.unix(), "--", "echo", RAN_LINE], &[])?;
            is_refused(&refused, 3, &["1 sessions", "--max-sessions"])?;
        }
        fs::write(&go, "")?;
        first.wait_for("ready", WAIT_TIMEOUT)?;
        let view = document(&run(&["ps", "--server", &server.unix(), "--json"], &[])?)?;
        ensure!(view["reserved"] == json!([]) && view["sessions"][0]["name"] == "fixture", "{view}");
        first.close_input();
        let outcome = first.finish(WAIT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{}: {}", outcome.ending(), outcome.errors());
        server.workers_of(0)?;
    }
    // A program without a session gives its slot back, and the command below it uses that slot.
    let inner = format!("'{}' run --server '{}' -- echo '{RAN_LINE}'", paths.katydid().display(), server.unix());
    for _ in 0..3 {
        let outcome = run(&["run", "--server", &server.unix(), "--", "sh", "-c", &inner], &[])?;
        ensure!(outcome.text().contains(RAN_LINE), "{}: {}", outcome.ending(), outcome.errors());
    }
    Ok(())
}

#[test]
fn missing_certificates_are_2_and_others_certificates_3() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start_tls(&paths, &driver_under_test(), &[])?;
    let other = Server::start_tls(&paths, &driver_under_test(), &[])?;
    let address = |server: &Server| match Way::tls(server) {
        Some(Way::Served { address, .. }) => Ok(address),
        _ => anyhow::bail!("the server is not behind TLS"),
    };
    let (there, wrong) = (address(&server)?, address(&other)?);
    let bare_address = there.split_once('?').map_or(there.as_str(), |(bare_address, _)| bare_address);
    is_refused(&running(bare_address, &[])?, 2, &["certificates", "--certs"])?;
    is_refused(&running(bare_address, &["--certs", "/nonexistent/certs"])?, 2, &["/nonexistent/certs"])?;
    let certs = wrong.split_once("?certs=").context("no certificates")?.1;
    is_refused(&running(bare_address, &["--certs", certs])?, 3, &["certificate"])?;
    ensure!(running(&there, &[])?.text().contains(RAN_LINE), "with its certificates it is let in");
    is_refused(&run(&["serve", "--listen", "tls://127.0.0.1:0", "--driver", "soft"], &[])?, 2, &["certificates"])
}

#[test]
fn libraries_get_softcuda_variables_on_every_server() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let (unix, tcp) = (server.unix(), server.tcp().to_owned());
    for options in [&["--driver", "soft"][..], &["--server", &unix], &["--server", &tcp]] {
        let line = [&["run"], options, &["--", "sh", "-c", PRINT_VARIABLES]].concat();
        let outcome = run(&line, &[])?;
        ensure!(outcome.text() == "1|", "{options:?}: {} {}", outcome.text(), outcome.errors());
        let user_outcome = run(&line, &[("CUPY_ACCELERATORS", "cub"), ("CUPY_COMPILE_WITH_PTX", "0")])?;
        ensure!(
            user_outcome.text() == "0|cub",
            "{options:?}: what the user has set is changed: {}",
            user_outcome.text()
        );
    }
    Ok(())
}

#[test]
fn invalid_driver_exits_2_or_3_before_anything_runs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let text = folder.path().join("libcuda.so.1");
    fs::write(&text, "no library")?;
    let text = text.to_string_lossy();
    for command in ["run", "trace"] {
        let driver = |driver: &str| run(&[command, "--driver", driver, "--", "echo", RAN_LINE], &[]);
        is_refused(&driver("/nonexistent/libcuda.so.1")?, 2, &["/nonexistent/libcuda.so.1"])?;
        is_refused(&driver(&text)?, 3, &[&text])?;
    }
    let socket = format!("unix:{}", folder.path().join("k").display());
    let served = run(&["serve", "-q", "--listen", &socket, "--driver", &text], &[])?;
    is_refused(&served, 3, &[&text])?;
    let served = run(&["serve", "--listen", &socket, "--driver", &text], &[])?;
    is_refused(&served, 3, &[&text])?;
    Ok(())
}

#[test]
fn a_variable_that_holds_what_it_cannot_is_2_and_named() -> Result<()> {
    let wrong = [
        ("KATYDID_LANES", "many"),
        ("KATYDID_LANES", "17"),
        ("KATYDID_LINK", "smoke"),
        ("KATYDID_MEMORY", "much"),
        ("KATYDID_PACKING", "perhaps"),
        ("KATYDID_SOFT_DEVICES", "none"),
        ("KATYDID_SOFT_DEVICES", "0"),
        ("KATYDID_SOFT_SHARED", "/etc/passwd/below"),
        ("KATYDID_CACHE", "relative"),
        ("KATYDID_REQUIRE_GPU", "yes"),
    ];
    for (name, value) in wrong {
        for command in ["run", "trace"] {
            let outcome = run(&[command, "--driver", "soft", "--", "echo", RAN_LINE], &[(name, value)])?;
            is_refused(&outcome, 2, &[name, value])?;
        }
    }
    is_refused(
        &run(&["run", "--", "echo", RAN_LINE], &[("KATYDID_SERVER", "carrier-pigeon:coop")])?,
        2,
        &["KATYDID_SERVER"],
    )
}

#[test]
fn durations_need_a_unit_everywhere() -> Result<()> {
    let flags: [&[&str]; 7] = [
        &["run", "--link-timeout", "60", "--", "echo", RAN_LINE],
        &["run", "--image", "/nonexistent/i", "--every", "60", "--", "echo", RAN_LINE],
        &["checkpoint", "job", "-o", "/nonexistent/i", "--every", "60"],
        &["checkpoint", "job", "-o", "/nonexistent/i", "--quiesce-timeout", "60"],
        &["restore", "/nonexistent/i", "--every", "60"],
        &["migrate", "job", "--to", "unix:/k", "--quiesce-timeout", "60"],
        &["bench", "--within", "60"],
    ];
    for line in flags {
        let outcome = run(line, &[])?;
        ensure!(outcome.status.code() == Some(2) && outcome.errors().contains("60s"), "{line:?}: {outcome:?}");
    }
    let set = [("KATYDID_LINK_TIMEOUT", "60")];
    is_refused(&run(&["run", "--driver", "soft", "--", "echo", RAN_LINE], &set)?, 2, &["KATYDID_LINK_TIMEOUT", "60s"])?;
    let outcome = run(&["run", "--driver", "soft", "--link-timeout", "1m", "--", &fixture()?, "count", "1"], &[])?;
    ensure!(outcome.status.success(), "{outcome:?}");
    // A program started without the command reads the variable in the same way.
    let (paths, server) = (Paths::of_this_test()?, Server::start(&Paths::of_this_test()?, &driver_under_test(), &[])?);
    let way = Way::Direct { name: "shim", folder: Some(paths.shim()) };
    let mut command = way.command(&paths, Path::new(&fixture()?));
    command.args(["count", "1"]).env("KATYDID_SERVER", server.unix()).env("KATYDID_LINK_TIMEOUT", "60");
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    ensure!(!outcome.status.success() && outcome.errors().contains("60s"), "{outcome:?}");
    Ok(())
}

/// Parses standard output as one document.
fn document(outcome: &Outcome) -> Result<Value> {
    serde_json::from_slice(&outcome.stdout).with_context(|| format!("not one document: {outcome:?}"))
}

#[test]
fn json_is_one_document_whatever_happens() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nothing = folder.path().join("nothing").display().to_string();
    let failing: [&[&str]; 9] = [
        &["ps", "--json", "--server", "unix:/nonexistent/k"],
        &["ps", "--json", "--server", "carrier-pigeon:coop"],
        &["checkpoint", "no-such-job", "--json", "-o", &nothing],
        &["migrate", "no-such-job", "--json", "--to", "unix:/nonexistent/k"],
        &["inspect", "--json", &nothing],
        &["images", "ls", "--json", &nothing],
        &["images", "verify", "--json", &nothing],
        &["images", "gc", "--json", &nothing],
        &["bench", "--json", "--driver", "/nonexistent/libcuda.so.1"],
    ];
    for line in failing {
        let outcome = run(line, &[])?;
        let (document_found, code) = (document(&outcome)?, outcome.status.code());
        ensure!(code.is_some_and(|code| (1..=3).contains(&code)), "{line:?}: {outcome:?}");
        ensure!(document_found["status"].as_i64() == code.map(i64::from), "{line:?}: {document_found}");
        let error = document_found["error"].as_str().unwrap_or_default();
        ensure!(
            !error.is_empty() && outcome.errors().contains(error),
            "{line:?}: {document_found}, {}",
            outcome.errors()
        );
    }
    let mistakes: [(&[&str], &str); 8] = [
        (&["ps", "--json", "--no-such-flag"], "--no-such-flag"),
        (&["inspect", "--json"], "<DIR>"),
        (&["checkpoint", "j", "--json"], "--output <DIR>"),
        (&["ps", "--json=x"], "'x'"),
        (&["--json", "images", "ls"], "--json"),
        (&["--json"], "--json"),
        (&["trace", "--json"], "--json"),
        (&["trace", "--json", "/nonexistent/j", "--", "echo", RAN_LINE], "/nonexistent/j"),
    ];
    for (line, word) in mistakes {
        let outcome = run(line, &[])?;
        let document_found = document(&outcome)?;
        is_refused(&outcome, 2, &[word])?;
        let error = document_found["error"].as_str().unwrap_or_default();
        ensure!(document_found["status"] == 2 && error.contains(word), "{line:?}: {document_found}");
        ensure!(outcome.errors() == format!("katydid: {error}\n"), "{line:?}: {document_found}, {}", outcome.errors());
    }
    ensure!(document(&run(&["ps", "--json"], &[])?)?["jobs"].is_array(), "ps");
    ensure!(document(&run(&["doctor", "--json"], &[])?)?.is_array(), "doctor");
    ensure!(
        document(&run(&["images", "ls", "--json", &folder.path().display().to_string()], &[])?)? == json!([]),
        "images ls"
    );
    let outcome = run(&["images", "ls", "--json", &nothing, "/dev/null"], &[])?;
    let document_found = document(&outcome)?;
    let errors: Vec<&str> =
        document_found.as_array().into_iter().flatten().filter_map(|item| item["error"].as_str()).collect();
    ensure!(outcome.status.code() == Some(1) && errors.len() == 2, "{document_found}");
    Ok(())
}

#[test]
fn where_standard_output_is_the_programs_json_goes_to_a_file_or_descriptor() -> Result<()> {
    let (paths, folder) = (Paths::of_this_test()?, tempfile::tempdir()?);
    let file = folder.path().join("calls.json");
    let named = file.display().to_string();
    let outcome = run(&["trace", "--driver", "soft", "--json", &named, "--", &fixture()?, "count", "3"], &[])?;
    ensure!(outcome.status.success() && outcome.text() == "3\n" && outcome.errors().is_empty(), "{outcome:?}");
    let found: Value = serde_json::from_slice(&fs::read(&file)?)?;
    ensure!(found["calls"].as_u64() > Some(3), "{found}");
    // A descriptor of the caller, which the program does not inherit.
    let line = katydid(
        &paths,
        &["trace", "--driver", "soft", "--json", "fd:5", "--", "sh", "-c", "echo out >&5 || echo shut"],
    );
    let outcome = in_shell(&format!("exec 5>{named}; exec \"$@\""), &line)?;
    ensure!(outcome.text() == "shut\n", "{outcome:?}");
    let found: Value = serde_json::from_slice(&fs::read(&file)?)?;
    ensure!(found["calls"] == 0, "{found}");
    for (line, status) in [
        (&["trace", "--json", named.as_str(), "--driver", "/nonexistent/l.so", "--", "echo", RAN_LINE][..], 2),
        (&["restore", "--json", &named, "/nonexistent/image"], 1),
        (&["restore", "--json", &named, "--no-such-flag"], 2),
    ] {
        fs::write(&file, "")?;
        let outcome = run(line, &[])?;
        let found: Value =
            serde_json::from_slice(&fs::read(&file)?).with_context(|| format!("{line:?}: {outcome:?}"))?;
        ensure!(outcome.status.code() == Some(status) && found["status"] == status, "{line:?}: {found} {outcome:?}");
        ensure!(outcome.text().is_empty(), "{line:?}: {outcome:?}");
    }
    ensure!(
        run(&["trace", "--json", "fd:77", "--", "echo", RAN_LINE], &[])?.status.code() == Some(2),
        "a descriptor that is not open"
    );
    let line = katydid(&paths, &["trace", "--driver", "soft", "--json", "fd:5", "--", "echo", RAN_LINE]);
    let outcome = in_shell("exec 5</dev/null; exec \"$@\"", &line)?;
    ensure!(outcome.status.code() == Some(2) && !outcome.text().contains(RAN_LINE), "it can be read only: {outcome:?}");
    Ok(())
}

/// Runs a command line below a shell script, which starts it as `"$@"`.
fn in_shell(script: &str, line: &Command) -> Result<Outcome> {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(line.get_program()).args(line.get_args());
    Ok(program::run(&mut command, WAIT_TIMEOUT)?)
}

#[test]
fn unwritable_trace_keeps_the_programs_status() -> Result<()> {
    let paths = Paths::of_this_test()?;
    for (program, status) in [("exit 7", 7), ("exit 0", 1)] {
        let counted = format!("{} count 1; {program}", fixture()?);
        let traced = katydid(&paths, &["trace", "--driver", "soft", "--", "sh", "-c", &counted]);
        let outcome = in_shell("exec \"$@\" 2>/dev/full", &traced)?;
        ensure!(outcome.status.code() == Some(status), "{program}: {outcome:?}");
    }
    Ok(())
}

/// A file system without room ends the trace but not the program. It may be full at once, or in the middle of the calls.
#[test]
fn a_trace_that_has_no_room_leaves_the_program_alone() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (paths, folder) = (Paths::of_this_test()?, tempfile::tempdir()?);
    let mount_point = folder.path().display();
    for (size, launches, expected) in [
        ("16k", "3", &["calls are not recorded", "nothing was recorded: the file system was full", "TMPDIR"][..]),
        ("1536k", "30000", &["no free space for", "calls of fixture", "were recorded", "TMPDIR"]),
    ] {
        let line = katydid(&paths, &["trace", "--driver", "soft", "--", &fixture()?, "count", launches]);
        let script = format!("mount -t tmpfs -o size={size} none {mount_point} && TMPDIR={mount_point} exec \"$@\"");
        let outcome = in_shell(&format!("exec unshare -m sh -c '{script}' sh \"$@\""), &line)?;
        ensure!(outcome.text() == format!("{launches}\n") && outcome.status.code() == Some(1), "{outcome:?}");
        ensure!(expected.iter().all(|words| outcome.errors().contains(words)), "no {expected:?}: {outcome:?}");
    }
    Ok(())
}

/// Each file named by a flag may lie where there is no room. The program still runs, and the error names the flag and the file.
#[test]
fn a_file_of_a_trace_without_room_is_named() -> Result<()> {
    for flag in ["-o", "--text", "--json"] {
        let outcome = run(&["trace", "--driver", "soft", flag, "/dev/full", "--", &fixture()?, "count", "3"], &[])?;
        let last = outcome.errors().lines().last().unwrap_or_default().to_owned();
        let is_told = [flag, "cannot write /dev/full", "free space"].iter().all(|words| last.contains(words));
        ensure!(is_told && outcome.status.code() == Some(1) && outcome.text() == "3\n", "{flag}: {outcome:?}");
    }
    Ok(())
}

#[test]
fn a_variable_that_does_not_exist_is_named_once_with_the_nearest() -> Result<()> {
    // Split in two, since the test of all names would find it otherwise.
    let wrong = concat!("KATYDID_", "SEVRER");
    let paths = Paths::of_this_test()?;
    let line = ["run", "--driver", "soft", "--", &fixture()?, "count", "1"];
    let outcome = run(&line, &[(wrong, "unix:/k"), (concat!("KATYDID_", "UNHEARD_OF_THING"), "1")])?;
    ensure!(outcome.status.success() && outcome.text() == "1\n", "{outcome:?}");
    let errors = outcome.errors();
    let of = |name: &str| errors.lines().filter(|line| line.contains(name)).collect::<Vec<_>>();
    ensure!(of(wrong).len() == 1 && of(wrong)[0].contains("KATYDID_SERVER"), "{errors}");
    ensure!(of("UNHEARD_OF_THING").len() == 1, "{errors}");
    // The library warns where no command has.
    let server = Server::start(&paths, &driver_under_test(), &[])?;
    let way = Way::Direct { name: "shim", folder: Some(paths.shim()) };
    let mut command = way.command(&paths, Path::new(&fixture()?));
    command.args(["count", "1"]).env("KATYDID_SERVER", server.unix()).env(wrong, "1");
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{outcome:?}");
    ensure!(
        outcome.errors().matches(wrong).count() == 1 && outcome.errors().contains("KATYDID_SERVER"),
        "{}",
        outcome.errors()
    );
    ensure!(run(&["ps"], &[(wrong, "1")])?.errors().contains(wrong), "every command tells of it");
    Ok(())
}

#[test]
fn ps_lists_private_servers_and_all_jobs() -> Result<()> {
    let (paths, home) = (Paths::of_this_test()?, tempfile::Builder::new().prefix("kd").tempdir()?);
    let start = |name: &str, runtime: &Path| -> Result<Running> {
        fs::create_dir_all(runtime)?;
        let mut command = katydid(&paths, &["run", "--driver", "soft", "--name", name, "--", &fixture()?, "idle"]);
        let mut running = Running::start(command.env("XDG_RUNTIME_DIR", runtime), Stdio::piped())?;
        running.wait_for("ready", WAIT_TIMEOUT)?;
        Ok(running)
    };
    // The second job has its folder in another place, like one started in another login.
    let mut jobs = [start("listed", &home.path().join("a"))?, start("elsewhere", &home.path().join("b"))?];
    let ps = |arguments: &[&str]| -> Result<Outcome> {
        let mut command = katydid(&paths, &[&["ps"], arguments].concat());
        Ok(program::run(command.env("XDG_RUNTIME_DIR", home.path().join("a")), WAIT_TIMEOUT)?)
    };
    let found = document(&ps(&["--json"])?)?;
    let list = |name: &str| found[name].as_array().cloned().unwrap_or_default();
    for (name, running) in [("listed", &jobs[0]), ("elsewhere", &jobs[1])] {
        let job = list("jobs").into_iter().find(|job| job["name"] == name);
        let job = job.with_context(|| format!("no {name} in {found}"))?;
        ensure!(job["supervisor"] == running.pid() && job["members"] == 1, "{job}");
        ensure!(job["server"].as_str().is_some_and(|server| server.starts_with("unix:")), "{job}");
    }
    let session = list("sessions").into_iter().find(|session| session["name"] == "listed");
    let session = session.with_context(|| format!("no session of the private server in {found}"))?;
    ensure!(session["program"] == "fixture" && session["driver"] == "softcuda", "{session}");
    let text = ps(&[])?.text();
    ensure!(text.matches("listed").count() >= 2 && text.contains("running"), "{text}");
    // A listed job is found by its name.
    let image = home.path().join("image").display().to_string();
    let mut command = katydid(&paths, &["checkpoint", "elsewhere", "--device-only", "--json", "-o", &image]);
    let saved = program::run(command.env("XDG_RUNTIME_DIR", home.path().join("a")), WAIT_TIMEOUT)?;
    ensure!(saved.status.success() && document(&saved)?["job"] == "elsewhere", "{saved:?}");
    jobs.iter_mut().for_each(Running::close_input);
    for job in jobs {
        job.finish(WAIT_TIMEOUT)?;
    }
    until("what has ended is not listed", || ps(&[]).is_ok_and(|outcome| !outcome.text().contains("listed")))?;
    Ok(())
}

/// A checkpoint by the name alone would be that of the first job.
#[test]
fn a_second_job_of_one_name_says_what_it_is_called() -> Result<()> {
    let (paths, home) = (Paths::of_this_test()?, tempfile::Builder::new().prefix("kd").tempdir()?);
    let command = |arguments: &[&str]| -> Result<std::process::Command> {
        let mut command =
            katydid(&paths, &[&["run", "--driver", "soft", "--name", "twice", "--", &fixture()?], arguments].concat());
        command.env("XDG_RUNTIME_DIR", home.path());
        Ok(command)
    };
    let mut first = Running::start(&mut command(&["idle"])?, Stdio::piped())?;
    first.wait_for("ready", WAIT_TIMEOUT)?;
    let second = program::run(&mut command(&["count", "3"])?, WAIT_TIMEOUT)?;
    let (errors, end) = (second.errors(), ", and not \"twice\": another job has that name");
    let name = errors.lines().find_map(|line| line.strip_prefix("katydid: this job is called ")?.strip_suffix(end));
    ensure!(second.status.success() && name.is_some_and(|name| name != "twice"), "{}\n{errors}", second.ending());
    first.close_input();
    let first = first.finish(WAIT_TIMEOUT)?;
    ensure!(!first.errors().contains("is called"), "{}", first.errors());
    Ok(())
}

/// Their folders lie where root does not look by itself.
#[test]
fn ps_of_root_lists_jobs_of_other_users_and_another_user_its_own() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (paths, home) = (Paths::of_this_test()?, tempfile::Builder::new().prefix("kd").tempdir()?);
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711))?;
    let users = [(64_990, "one"), (64_991, "other")];
    let as_user = |user: u32, name: &str, arguments: &[&str]| -> Result<Command> {
        let runtime = home.path().join(name);
        if !runtime.exists() {
            fs::create_dir(&runtime)?;
            chown(&runtime, Some(user), Some(user))?;
            fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
        }
        let mut command = katydid(&paths, arguments);
        command.uid(user).gid(user).env("XDG_RUNTIME_DIR", &runtime).env("HOME", &runtime).env("TMPDIR", &runtime);
        command.env("KATYDID_CACHE", runtime.join("cache"));
        Ok(command)
    };
    let mut jobs = Vec::new();
    for (user, name) in users {
        let mut command = as_user(user, name, &["run", "--driver", "soft", "--name", name, "--", &fixture()?, "idle"])?;
        let mut running = Running::start(&mut command, Stdio::piped())?;
        running.wait_for("ready", WAIT_TIMEOUT)?;
        jobs.push(running);
    }
    let listed = |command: &mut Command| -> Result<Vec<(String, u64)>> {
        let found = document(&program::run(command, WAIT_TIMEOUT)?)?;
        let jobs = found["jobs"].as_array().with_context(|| format!("{found}"))?;
        Ok(jobs.iter().filter_map(|job| Some((job["name"].as_str()?.to_owned(), job["user"].as_u64()?))).collect())
    };
    let of_root = listed(&mut katydid(&paths, &["ps", "--json"]))?;
    for (user, name) in users {
        ensure!(of_root.contains(&(name.to_owned(), user.into())), "{name} is not in {of_root:?}");
        let own = listed(&mut as_user(user, name, &["ps", "--json"])?)?;
        ensure!(own == [(name.to_owned(), user.into())], "{name} sees {own:?}");
    }
    jobs.iter_mut().for_each(Running::close_input);
    for job in jobs {
        job.finish(WAIT_TIMEOUT)?;
    }
    Ok(())
}

/// Names of jobs that no concurrent test uses: `ps` of root shows the jobs of all tests.
const PRIVATE: &str = "private_for_ps";
const SERVED: &str = "served_for_ps";

#[test]
fn ps_finds_servers_by_their_jobs_and_notes() -> Result<()> {
    let (paths, home) = (Paths::of_this_test()?, tempfile::Builder::new().prefix("kd").tempdir()?);
    let [here, there] = ["a", "b"].map(|name| home.path().join(name));
    fs::create_dir_all(&here)?;
    fs::create_dir_all(&there)?;
    let [socket, admin] = ["k", "elsewhere"].map(|name| home.path().join(name).display().to_string());
    let address = format!("unix:{socket}");
    let mut serve = katydid(&paths, &["serve", "--driver", "soft", "--listen", &address, "--admin", &admin]);
    let mut server = Running::start(serve.env("XDG_RUNTIME_DIR", &here), Stdio::null())?;
    until("the server listens", || Path::new(&admin).exists())?;
    let idle = |more: &[&str], runtime: &Path| -> Result<Running> {
        let mut command = katydid(&paths, &[&["run"], more, &["--", &fixture()?, "idle"]].concat());
        let mut running = Running::start(command.env("XDG_RUNTIME_DIR", runtime), Stdio::piped())?;
        running.wait_for("ready", WAIT_TIMEOUT)?;
        Ok(running)
    };
    let mut jobs = [
        idle(&["--driver", "soft", "--name", PRIVATE], &there)?,
        idle(&["--server", &address, "--name", SERVED], &here)?,
    ];
    let names = |arguments: &[&str]| -> Result<Vec<String>> {
        let mut command = katydid(&paths, &[&["ps", "--json"], arguments].concat());
        let found = document(&program::run(command.env("XDG_RUNTIME_DIR", &here), WAIT_TIMEOUT)?)?;
        let sessions = found["sessions"].as_array().with_context(|| format!("{found}"))?;
        Ok(sessions.iter().filter_map(|session| session["name"].as_str().map(str::to_owned)).collect())
    };
    let all = names(&[])?;
    for name in [PRIVATE, SERVED] {
        ensure!(all.iter().filter(|found| *found == name).count() == 1, "not {name} once in {all:?}");
    }
    ensure!(names(&["--server", &address])? == [SERVED], "by the address of a server with --admin");
    jobs.iter_mut().for_each(Running::close_input);
    for job in jobs {
        job.finish(WAIT_TIMEOUT)?;
    }
    server.kill();
    Ok(())
}

#[test]
fn mistakes_are_found_before_anything_runs() -> Result<()> {
    for command in ["run", "trace"] {
        is_refused(
            &run(&[command, "--driver", "soft", "--servr", "x", "--", "echo", RAN_LINE], &[])?,
            2,
            &["'--servr'"],
        )?;
        let outcome = run(&[command, "--driver", "soft", "--", "-no-such-program"], &[])?;
        is_refused(&outcome, 127, &["-no-such-program"])?;
    }
    for flag in ["-o", "--text", "--json"] {
        let line = ["trace", "--driver", "soft", flag, "/nonexistent/x", "--", "echo", RAN_LINE];
        is_refused(&run(&line, &[])?, 2, &[flag, "/nonexistent/x"])?;
    }
    let folder = tempfile::tempdir()?;
    let both = folder.path().join("both").display().to_string();
    let line = ["trace", "--driver", "soft", "-o", &both, "--json", &both, "--", "echo", RAN_LINE];
    is_refused(&run(&line, &[])?, 2, &["-o and --json", &both])?;
    for (flag, value) in [("--max-sessions", "0"), ("--session-memory", "1"), ("--worker-folder", "/nonexistent/w")] {
        let folder = tempfile::tempdir()?;
        let socket = format!("unix:{}", folder.path().join("k").display());
        let outcome = run(&["serve", "--driver", "soft", "--listen", &socket, flag, value], &[])?;
        is_refused(&outcome, 2, &[flag, value])?;
    }
    let outcome = run(&["doctor", "--json"], &[("KATYDID_MEMORY", "lots"), ("KATYDID_SERVER", "foo")])?;
    let found = document(&outcome)?;
    let rows: Vec<&Value> = found.as_array().into_iter().flatten().filter(|row| row["check"] == "variables").collect();
    ensure!(outcome.status.code() == Some(1) && rows.len() == 2, "{found}");
    ensure!(rows.iter().all(|row| row["status"] == "fail" && row["remedy"].is_string()), "{found}");
    Ok(())
}

#[test]
fn a_trace_has_names_sizes_streams_and_the_gpu_of_all_processes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [timeline, text, json] =
        ["t.json", "calls.txt", "sums.json"].map(|name| folder.path().join(name).display().to_string());
    let two = format!("{0} count 4 & {0} count 5; wait", fixture()?);
    let line = [
        "trace",
        "--driver",
        "soft",
        "-o",
        &timeline,
        "--text",
        &text,
        "--json",
        &json,
        "-e",
        "launch,copy,!cuInit",
        "--",
    ];
    let outcome = run(&[&line[..], &["sh", "-c", &two]].concat(), &[])?;
    ensure!(outcome.status.success() && outcome.errors().is_empty(), "{outcome:?}");
    let sums: Value = serde_json::from_slice(&fs::read(&json)?)?;
    ensure!(sums["processes"].as_array().is_some_and(|all| all.len() == 2), "{sums}");
    let kernels = sums["gpu"].as_array().cloned().unwrap_or_default();
    let kernel = kernels
        .iter()
        .find(|work| work["count"] == 9)
        .with_context(|| format!("no kernel of nine launches: {sums}"))?;
    let name = kernel["name"].as_str().unwrap_or_default().to_owned();
    ensure!(name.contains('(') && kernel["total_ns"].as_u64() > Some(0), "not a name of the source: {kernel}");
    let copied = kernels.iter().any(|work| work["bytes"].as_u64() > Some(0));
    ensure!(copied, "no copy with its bytes: {sums}");
    let lines = fs::read_to_string(&text)?;
    let launches: Vec<&str> = lines.lines().filter(|line| line.contains("cuLaunchKernel(")).collect();
    ensure!(
        launches.len() == 9 && launches.iter().all(|line| line.contains(&name) && line.contains("grid ")),
        "{lines}"
    );
    ensure!(launches.iter().all(|line| line.contains("<gpu ") && line.contains("stream")), "{lines}");
    ensure!(lines.contains(" bytes") && !lines.contains("cuInit("), "{lines}");
    ensure!(lines.contains("FUNCTION") && lines.contains("ON THE GPU"), "no tables in the text: {lines}");
    let processes: BTreeSet<&str> = launches.iter().filter_map(|line| line.split(' ').next()).collect();
    ensure!(processes.len() == 2, "{processes:?}");
    let events: Value = serde_json::from_slice(&fs::read(&timeline)?)?;
    let events = events["traceEvents"].as_array().cloned().unwrap_or_default();
    let slices = |category: &str| events.iter().filter(|event| event["cat"] == category).cloned().collect::<Vec<_>>();
    let on_gpu: Vec<Value> = slices("gpu").into_iter().filter(|event| event["name"] == name.as_str()).collect();
    ensure!(on_gpu.len() == 9, "{} launches on the GPU", on_gpu.len());
    let rows: BTreeSet<String> = on_gpu.iter().map(|event| event["pid"].to_string()).collect();
    ensure!(rows.len() == 2, "two processes have two GPUs' rows: {rows:?}");
    // The kernel launched first began first, and none began before its launch.
    let starts = |events: Vec<Value>| events.iter().filter_map(|event| event["ts"].as_f64()).fold(f64::MAX, f64::min);
    let launched = slices("cuda").into_iter().filter(|event| event["name"] == "cuLaunchKernel").collect();
    let (launched, began) = (starts(launched), starts(on_gpu));
    ensure!(began + 1000.0 > launched, "a kernel began at {began}, and the first launch at {launched}");
    let refused = run(&["trace", "-e", "cuLaunchKernal", "--", "echo", RAN_LINE], &[])?;
    ensure!(refused.status.code() == Some(2) && refused.errors().contains("cuLaunchKernal"), "{refused:?}");
    Ok(())
}

#[test]
fn completions_and_man_pages_are_installed_and_named() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let help = run(&["--help"], &[])?.text();
    for word in ["completions", "man ", "share/man/man1", "bash-completion", "docs/reference/environment.md", "--json"]
    {
        ensure!(help.contains(word), "no {word} in the help:\n{help}");
    }
    let share = paths.dist.join("share");
    for (file, word) in [
        ("man/man1/katydid.1", "katydid"),
        ("man/man1/katydid-run.1", "link\\-timeout"),
        ("man/man1/katydid-checkpoint.1", "every"),
        ("bash-completion/completions/katydid", "--link-timeout"),
        ("zsh/site-functions/_katydid", "link-timeout"),
        ("fish/vendor_completions.d/katydid.fish", "link-timeout"),
    ] {
        let text = fs::read_to_string(share.join(file)).with_context(|| format!("{file} is not installed"))?;
        ensure!(text.contains(word), "no {word} in {file}");
    }
    Ok(())
}

/// Returns Katydid's names in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let letters = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !letters(c)).filter(|word| word.starts_with("KATYDID_") && word.len() > 8);
    words.map(|word| word.trim_end_matches('_').to_owned()).collect()
}

fn files(folder: &Path, ends: &[&str], found: &mut Vec<(String, String)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.to_string_lossy().into_owned();
        if path.is_dir() && !name.ends_with("/target") {
            files(&path, ends, found)?;
        } else if ends.iter().any(|end| name.ends_with(end)) && !name.ends_with("state/settings.rs") {
            found.push((name, fs::read_to_string(&path).unwrap_or_default()));
        }
    }
    Ok(())
}

#[test]
fn every_variable_is_in_the_one_list_and_its_table() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no root")?;
    let mut found = Vec::new();
    for folder in ["crates", "tests", "xtask", "fuzz"] {
        files(&root.join(folder), &[".rs", ".sh", ".py", ".cu", ".c"], &mut found)?;
    }
    let read: BTreeSet<String> = found.iter().flat_map(|(_, text)| names_in(text)).collect();
    let list = names_in(&fs::read_to_string(root.join("crates/driver-rules/src/state/settings.rs"))?);
    // Names that tests of parsers invent.
    let made_up: BTreeSet<String> =
        ["KATYDID_JOBS", "KATYDID_ONE", "KATYDID_TWO", "KATYDID_T"].map(str::to_owned).into();
    let missing: Vec<&String> = read.difference(&list).filter(|name| !made_up.contains(*name)).collect();
    ensure!(missing.is_empty(), "not in crates/driver-rules/src/state/settings.rs: {missing:?}");
    // These names occur only in the list that both sides use.
    let shared: BTreeSet<String> = ["KATYDID_REPORTED", "KATYDID_RESERVATION"].map(str::to_owned).into();
    let unread: Vec<&String> = list.difference(&read).filter(|name| !shared.contains(*name)).collect();
    ensure!(unread.is_empty(), "in the list, and read by nothing: {unread:?}");
    let table = names_in(&fs::read_to_string(root.join("docs/reference/environment.md"))?);
    let undocumented_names: Vec<&String> = list.difference(&table).collect();
    ensure!(
        undocumented_names.is_empty(),
        "not in docs/reference/environment.md (`cargo xtask bless`): {undocumented_names:?}"
    );
    Ok(())
}
