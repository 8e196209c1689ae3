//! What programs were given of each other's memory before a checkpoint and open after it: by those that were restored together,
//! and by no others, though there are several restores of one image, and the first run, at once.

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan};
use katydid_tests::places::Places;

use crate::scenarios::Scenario;
use crate::stage::{LIMIT, Stage, continues, kept_of, said};

/// Its frames number 60 and 80 lie between giving and opening; the borrowers have fewer.
const PROGRAM: (&str, Variant) = ("kept_lent", Variant::Plain);
const POINTS: [u64; 2] = [60, 80];

const ON_SOME_WAYS: [(&str, Scenario, &str); 2] = [
    ("what_is_lent_is_opened_by_those_who_were_restored_with_it", family, "shm"),
    ("what_is_lent_is_opened_by_those_who_were_restored_with_it", family, "tcp"),
];

/// The trials' names and ways.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    ON_SOME_WAYS.into_iter()
}

/// The first run stands at its second point, with all that it has lent, while a restore beside it goes to its end; then it goes to
/// its own. Both have been checkpointed once more at that point, and are restored from there too: where they were, and a
/// third time.
fn family(places: &Places, way: &str) -> Result<()> {
    let (stage, kept) = (Stage::new(places, way)?, kept_of(places, PROGRAM.0)?);
    let mut first = stage.start("lent", PROGRAM, &[], &POINTS)?;
    ensure!(first.holds_itself()?, "the job ended before its point");
    let begun = first.output_so_far()?.len();
    stage.checkpoint(&first, "image", &["--leave-running"])?;
    ensure!(first.holds_itself()?, "the job ended before its second point");
    let mut second = stage.restore_by("lent-2", "image", &Plan { points: &POINTS, ..Plan::default() })?;
    ensure!(second.holds_itself()?, "the restored job ended before its second point");
    let further = begun + second.output_so_far()?.len();
    stage.checkpoint(&second, "second", &["--leave-running"])?;
    continues(&kept, (begun, begun), &second.finish(LIMIT)?).context("beside the first run")?;
    stage.checkpoint(&first, "first", &["--leave-running"])?;
    whole(first, &kept)?;
    for (name, image) in [("lent", "first"), ("lent", "second"), ("lent-2", "second")] {
        let outcome = stage.restore(name, image, &[])?.finish(LIMIT)?;
        continues(&kept, (further, further), &outcome).with_context(|| format!("{name} from {image}"))?;
    }
    stage.is_clean()
}

fn whole(job: Job<'_>, kept: &str) -> Result<()> {
    let outcome = job.finish(LIMIT)?;
    ensure!(outcome.status.success() && outcome.text() == kept, "the first run: {}", said(&outcome));
    Ok(())
}
