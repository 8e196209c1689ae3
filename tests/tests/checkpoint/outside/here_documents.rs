//! Standard input from a pipe without a writer, as a shell gives a small here-document. The restored job reads on where it was.

use std::fs;
use std::io::{Write, pipe};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands::katydid;
use katydid_tests::job::CHECKPOINTED_EXIT_STATUS;
use katydid_tests::paths::Paths;
use katydid_tests::program::run;
use katydid_tests::watch::{WAIT_TIMEOUT, until};

use crate::scenarios::Scenario;
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, describe};

const JOB: &str = "here-document";

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    [("a_job_reads_on_what_is_left_in_a_pipe_without_a_writer", read_on as Scenario, "shm")].into_iter()
}

/// In one case the writer ends before the job begins, in the other after the job has read its first line.
fn read_on(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    for has_writer_at_first in [false, true] {
        let name = format!("{JOB}-{has_writer_at_first}");
        let [image, go, held] = ["image", "go", "go.held"].map(|end| stage.image(&format!("{name}.{end}")));
        let (reader, mut writer) = pipe()?;
        writer.write_all(b"one\ntwo\nend\n")?;
        let writer = has_writer_at_first.then_some(writer);
        let mut command = stage.way.job(paths, &["--name", &name], &paths.program("fixture", Variant::Static));
        command.arg("reads").arg(&go).env("XDG_RUNTIME_DIR", stage.image("run"));
        let child = command.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        until("it has read its first line", || held.exists())?;
        drop(writer);
        let mut checkpoint = katydid(paths, &["checkpoint", &name, "-o"]);
        let outcome = run(checkpoint.arg(&image).env("XDG_RUNTIME_DIR", stage.image("run")), CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{}", describe(&outcome));
        let ended = child.wait_with_output()?;
        ensure!(ended.status.code() == Some(CHECKPOINTED_EXIT_STATUS), "{ended:?}");

        fs::write(&go, "")?;
        let mut restore: Command = stage.way.restore(paths, &image, &[]);
        let restored = run(restore.env("XDG_RUNTIME_DIR", stage.image("run")), WAIT_TIMEOUT)?;
        let text = restored.text();
        let has_all = ["read two", "read end", "done"].iter().all(|words| text.contains(words));
        ensure!(restored.status.success() && has_all, "{name}: {}", describe(&restored));
    }
    stage.is_clean()
}
