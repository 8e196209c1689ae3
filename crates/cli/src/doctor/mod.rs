//! `katydid doctor`: checks what works here and what is missing, with remedies.
//!
//! Every check is a function that returns a [`Finding`]; none changes anything. `fail` keeps programs from running, `warn` may
//! disappoint later.

mod cache;
mod drivers;
mod finding;
mod server;
mod system;
mod variables;

use std::io::{self, Write};
use std::process::ExitCode;

use katydid_job::criu::tool::Criu;

use crate::args::flags::DoctorFlags;
use crate::doctor::finding::{Finding, Status};
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::Outcome;
use katydid_cli_core::output::terminal::Progress;
use katydid_wire::printable::printable;

/// Runs `katydid doctor`.
pub(crate) fn main(flags: &DoctorFlags) -> Outcome {
    let findings = run_checks(flags);
    if flags.json {
        document::write(&findings)?;
    } else {
        let mut out = io::stdout().lock();
        findings.iter().try_for_each(|finding| write_finding(&mut out, finding))?;
    }
    let failed = findings.iter().any(|finding| finding.status == Status::Fail);
    Ok(ExitCode::from(u8::from(failed)))
}

/// Runs the checks from the files of the installation outwards, so that the first failure is the cause of later ones.
fn run_checks(flags: &DoctorFlags) -> Vec<Finding> {
    let progress = Progress::on_stderr();
    let mut findings = drivers::libraries();
    findings.extend(variables::checks(|name| std::env::var_os(name)));
    findings.push(cache::check(|name| std::env::var_os(name)));
    findings.extend(cache::config_size());
    progress.show("trying the drivers");
    findings.extend(drivers::drivers());
    findings.extend(drivers::opencl());
    progress.show("looking at the system");
    findings.extend(system::checks());
    findings.push(criu());
    progress.show("trying the server");
    findings.push(server::check(flags.server.as_deref()));
    findings
}

/// Checks what a checkpoint of a program's processes needs; without it `--device-only` still works.
fn criu() -> Finding {
    let layout = Layout::find();
    let how = layout.as_ref().map(|layout| Criu::how_to_grant(&layout.criu())).unwrap_or_default();
    let remedy = format!(
        "`cargo xtask setup` and `dist` fetch one, or install CRIU 4.2 or later; it needs root, or for an ordinary user {how} as root (docs/how-to/checkpoint-rights.md)"
    );
    match layout.map(|layout| Criu::find(&layout.criu(), None)) {
        Ok(Ok(criu)) => {
            let rights = if criu.unprivileged { ", with an ordinary user's rights" } else { "" };
            let detail = format!("CRIU {} at {}{rights}", criu.version, criu.path.display());
            Finding::ok("checkpoints", detail)
        }
        Ok(Err(error)) => Finding::warn("checkpoints", error.to_string(), remedy),
        Err(error) => Finding::warn("checkpoints", error.to_string(), remedy),
    }
}

/// Writes a finding in one line, and its remedy in a second one.
fn write_finding(out: &mut impl Write, finding: &Finding) -> io::Result<()> {
    let status = match finding.status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Fail => "FAIL",
    };
    writeln!(out, "{status:<5} {}: {}", finding.check, printable(&finding.detail))?;
    finding.remedy.iter().try_for_each(|remedy| writeln!(out, "      -> {}", printable(remedy)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_its_remedy_another() {
        let mut text = Vec::new();
        write_finding(&mut text, &Finding::ok("memfd", "works")).unwrap();
        write_finding(&mut text, &Finding::fail("server", "unix:/a does not answer", "start it")).unwrap();
        let expected = "ok    memfd: works\nFAIL  server: unix:/a does not answer\n      -> start it\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn json_says_what_the_lines_say() {
        let json = serde_json::to_value(Finding::warn("limits", "low", "raise them")).unwrap();
        assert_eq!((&json["status"], &json["remedy"]), (&"warn".into(), &"raise them".into()));
    }
}
