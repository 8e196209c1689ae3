//! Jobs whose server is behind TLS. They release their connections and make new ones, with certificates that may
//! have changed by then.

use anyhow::{Result, ensure};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

use crate::kills::failover;
use crate::scenarios::{self, LOOP, Scenario, expected_of_loop, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, continues, describe};

/// The scenarios that concern connections, and one for TLS alone.
const SCENARIOS: [(&str, Scenario); 4] = [
    ("a_restored_program_is_checkpointed_again_at_its_very_first_frame", scenarios::a_chain_of_restores),
    ("a_worker_killed_after_a_checkpoint_is_replaced", failover::replaced),
    ("a_server_of_another_authority_takes_a_session_over", another_authority),
    ("a_server_of_another_authority_takes_a_running_session_over", migrated),
];

pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    SCENARIOS.into_iter().map(|(name, scenario)| (name, scenario, "tls"))
}

/// Returns the address of a server behind TLS, with certificates that it accepts.
fn address(server: &Server) -> Result<String> {
    match Way::tls(server) {
        Some(Way::Served { address, .. }) => Ok(address),
        _ => anyhow::bail!("the server is not behind TLS"),
    }
}

/// The job is restored where its old certificate is not valid, with one that is.
fn another_authority(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    let mut job = stage.start("moved", LOOP, &[], &[70])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    scenarios::was_stopped(job)?;
    let server = Server::start_tls(paths, &driver_under_test(), &[])?;
    stage.way = Way::Served { name: "tls", address: address(&server)?, as_stream: false };
    stage.server = server;
    let outcome = stage.restore("moved", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

/// With the certificates of the old server, the move is refused before the job hears of it. With those of the new
/// server, the job moves.
fn migrated(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let other = Server::start_tls(paths, &driver_under_test(), &[])?;
    let mut job = stage.start("mover", LOOP, &[], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let (there, wrong) = (address(&other)?, address(&stage.server)?);
    let (bare_address, _) = there.split_once('?').unwrap_or((&there, ""));
    let (_, certs) = wrong.split_once("?certs=").unwrap_or(("", ""));
    let refused = program::run(&mut job.migrate_command(bare_address, &["--certs", certs]), WAIT_TIMEOUT)?;
    ensure!(!refused.status.success() && refused.errors().contains("another authority"), "{}", describe(&refused));
    let moved = program::run(&mut job.migrate_command(&there, &[]), WAIT_TIMEOUT)?;
    ensure!(moved.status.success(), "not moved: {}--- the job\n{}", describe(&moved), job.errors_so_far()?);
    stage.server.workers_of(0)?;
    went_on(paths, job)?;
    stage.is_clean()
}
