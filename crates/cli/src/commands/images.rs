//! `katydid images`: lists the images in folders, verifies them, and clears them up.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use katydid_image::{CheckpointChoice, CheckpointNumber, CollectReport, Image, ImageError, Report, RetentionPolicy};
use serde::Serialize;

use crate::args::flags::{GcFlags, ImagesCommand, ImagesFlags, LsFlags, VerifyFlags};
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::date::date;
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};
use katydid_cli_core::output::table::{Align, Table};
use katydid_cli_core::output::terminal::{Progress, bar};
use katydid_wire::printable::printable;

/// Time between two changes of the progress line.
const VERIFY_PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// An image in a list.
#[derive(Debug, Serialize)]
struct ImageLine {
    #[serde(serialize_with = "document::lossy_path")]
    image: PathBuf,
    job: String,
    checkpoints: Vec<CheckpointNumber>,
    /// Time of the newest checkpoint, in seconds since 1970.
    newest: u64,
    /// Bytes of memory in the newest checkpoint.
    content: u64,
    /// Bytes of all packs.
    stored: u64,
    /// The error of an unreadable image; then the other fields are empty.
    error: Option<String>,
}

/// Runs `katydid images`.
pub(crate) fn main(flags: &ImagesFlags) -> Outcome {
    match &flags.command {
        ImagesCommand::Ls(flags) => ls(flags),
        ImagesCommand::Verify(flags) => verify(flags),
        ImagesCommand::Gc(flags) => gc(flags),
    }
}

/// Runs `images ls`: like `ls`, it lists what exists, reports what is missing, and then fails.
fn ls(flags: &LsFlags) -> Outcome {
    flags.folders.iter().try_for_each(|location| katydid_image::check_address(location)).map_err(Failure::usage)?;
    let (mut lines, mut failures) = (Vec::new(), Vec::new());
    for folder in &flags.folders {
        match images_in(folder) {
            Ok(found) => lines.extend(found),
            Err(failure) => failures.push((folder, failure)),
        }
    }
    if flags.folders.len() == 1
        && let Some((_, failure)) = failures.pop()
    {
        return Err(failure);
    }
    failures.iter().for_each(|(_, failure)| print_message(failure));
    if flags.json {
        let lost = failures.iter().map(|(folder, failure)| ImageLine::lost(folder, failure));
        document::write(&lines.into_iter().chain(lost).collect::<Vec<_>>())?;
    } else {
        table(&lines).write(&mut io::stdout().lock())?;
    }
    Ok(ExitCode::from(u8::from(!failures.is_empty())))
}

/// The image in a folder, or those directly below it. A folder that only has other files is an error. An empty folder just has no
/// images yet, and so does the current folder, which the user did not name.
fn images_in(folder: &Path) -> Result<Vec<ImageLine>, Failure> {
    let is_address = katydid_image::is_address(folder);
    if !is_address && !folder.exists() {
        return Err(Failure::work(format!("{}: no such folder: name one that has images", folder.display())));
    }
    if !is_address && !folder.is_dir() {
        return Err(Failure::work(format!(
            "{}: is not a folder: name an image, or a folder that has some",
            folder.display()
        )));
    }
    match Image::open(folder) {
        Err(ImageError::NotAnImage { .. }) if is_address => {
            return Err(Failure::work(format!("{}: there is no image: name the address of one", folder.display())));
        }
        Err(ImageError::NotAnImage { .. }) => {}
        Err(error @ (ImageError::Io { .. } | ImageError::Unfit { .. })) => return Err(Failure::work(error)),
        opened => return Ok(vec![ImageLine::of(folder.to_owned(), opened)]),
    }
    let failed = |error| {
        Failure::work(format!(
            "{}: cannot list this folder: {error}; name an image, or a folder that has some",
            folder.display()
        ))
    };
    let (mut below, mut is_empty) = (Vec::new(), true);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        is_empty = false;
        if path.is_dir() {
            match Image::open(&path) {
                Err(ImageError::NotAnImage { .. }) => {}
                opened => below.push(ImageLine::of(path, opened)),
            }
        }
    }
    if below.is_empty() && !is_empty && folder != Path::new(".") {
        let text = format!("{}: neither an image nor a folder of images: name one of these", folder.display());
        return Err(Failure::work(text));
    }
    below.sort_by(|a, b| a.image.cmp(&b.image));
    Ok(below)
}

impl ImageLine {
    fn empty(image: PathBuf) -> Self {
        Self { image, job: String::new(), checkpoints: Vec::new(), newest: 0, content: 0, stored: 0, error: None }
    }

    /// A line for a named image that is missing.
    fn lost(image: &Path, failure: &Failure) -> Self {
        Self { error: Some(failure.to_string()), ..Self::empty(image.to_owned()) }
    }

    fn of(image: PathBuf, opened: Result<Image, ImageError>) -> Self {
        let mut line = Self::empty(image);
        line.error = opened.and_then(|image| line.fill(&image)).err().map(|error| error.to_string());
        line
    }

    /// Reads the newest manifest and the lengths of the packs, but no chunk.
    fn fill(&mut self, image: &Image) -> Result<(), ImageError> {
        self.checkpoints = image.checkpoints()?;
        self.stored = image.stored()?;
        if !self.checkpoints.is_empty() {
            let manifest = image.manifest(CheckpointChoice::Latest)?;
            (self.newest, self.content) = (manifest.times.began / 1000, manifest.sizes.content);
            self.job = manifest.job.name;
        }
        Ok(())
    }

    /// The cells of a row. A broken image shows its error instead of its job, so that one of them does not end the list.
    fn cells(&self) -> Vec<String> {
        let image = self.image.display().to_string();
        match (&self.error, self.checkpoints.last()) {
            (Some(error), _) => vec![image, error.clone()],
            (None, None) => {
                vec![image, String::new(), "0".into(), "-".into(), "-".into(), Size(self.stored).to_string()]
            }
            (None, Some(_)) => vec![
                image,
                self.job.clone(),
                self.checkpoints.len().to_string(),
                date(self.newest),
                Size(self.content).to_string(),
                Size(self.stored).to_string(),
            ],
        }
    }
}

/// The table with the JSON's fields, in units for users.
fn table(lines: &[ImageLine]) -> Table {
    use Align::{Left, Right};
    let columns = [
        ("IMAGE", Left),
        ("JOB", Left),
        ("CHECKPOINTS", Right),
        ("NEWEST", Left),
        ("MEMORY", Right),
        ("KEPT IN", Right),
    ];
    let mut table = Table::new(&columns);
    lines.iter().for_each(|line| table.row(line.cells()));
    table
}

/// Runs `katydid images verify`.
fn verify(flags: &VerifyFlags) -> Outcome {
    let image = open(&flags.image)?;
    let (began, display) = (Instant::now(), Mutex::new((Progress::on_stderr(), Instant::now())));
    if let Ok(display) = display.lock() {
        display.0.show(&bar(0, 0, "", Duration::ZERO));
    }
    let show = |progress: katydid_image::Progress| {
        // If another thread has the progress line, this one goes on reading.
        if let Ok(mut display) = display.try_lock()
            && display.1.elapsed() >= VERIFY_PROGRESS_INTERVAL
        {
            display.1 = Instant::now();
            display.0.show(&bar(progress.done, progress.total, "", began.elapsed()));
        }
    };
    let report = image.verify(flags.at.map(CheckpointNumber), &show).map_err(Failure::work)?;
    drop(display);
    if flags.json {
        document::write(&report)?;
    } else {
        write_report(&report, &mut io::stdout().lock())?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a line for each checkpoint, or for each problem with it.
fn write_report(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if report.checkpoints.is_empty() {
        writeln!(out, "there is no checkpoint")?;
    }
    for (number, faults) in &report.checkpoints {
        match faults.as_slice() {
            [] => writeln!(out, "checkpoint {number}: whole")?,
            faults => faults.iter().try_for_each(|fault| writeln!(out, "checkpoint {number}: {}", printable(fault)))?,
        }
    }
    for remark in &report.remarks {
        writeln!(out, "not as it was written, and no harm: {}", printable(remark))?;
    }
    writeln!(out, "read {} chunks, {}", report.chunks, Size(report.bytes))?;
    report.writer.iter().try_for_each(|writer| writeln!(out, "the lock is that of {}", printable(writer)))
}

/// Runs `katydid images gc`.
fn gc(flags: &GcFlags) -> Outcome {
    let image = open(&flags.image)?;
    let remove = flags.remove.iter().copied().map(CheckpointNumber).collect();
    let keep = RetentionPolicy { newest: flags.keep.map(|keep| keep as usize), remove, dry_run: flags.dry_run };
    let cleared = image.collect(&keep).map_err(Failure::work)?;
    if flags.json {
        document::write(&cleared)?;
    } else {
        writeln!(io::stdout().lock(), "{}", summary(&cleared, flags.dry_run))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes in one line what was done, or would be.
fn summary(cleared: &CollectReport, dry_run: bool) -> String {
    let verb = if dry_run { "would remove" } else { "removed" };
    format!(
        "{verb} {} checkpoints and {} packs, {} {} packs: {} instead of {}",
        cleared.checkpoints.len(),
        cleared.packs_removed,
        if dry_run { "rewrite" } else { "rewrote" },
        cleared.packs_rewritten,
        Size(cleared.bytes_after),
        Size(cleared.bytes_before)
    )
}

/// Opens the image that a command line names.
pub(crate) fn open(location: &Path) -> Result<Image, Failure> {
    katydid_image::check_address(location).map_err(Failure::usage)?;
    Image::open(location).map_err(Failure::work)
}

#[cfg(test)]
mod tests {
    use katydid_image::{Job, Manifest, Options, Region, Session, Sink, Times};

    use super::*;

    fn image_with_one_checkpoint(folder: &Path) -> Image {
        let image = Image::create_or_open(folder).unwrap();
        let writer = image.begin(Options::default()).unwrap();
        let chunks = vec![writer.put(b"device memory").unwrap()];
        let region = Region { bytes: 13, chunk_bytes: 4096, chunks, ..Region::default() };
        let session = Session { name: "0".into(), regions: vec![region], ..Session::default() };
        let job = Job { name: "train".into(), ..Job::default() };
        let times = Times { began: 86_400_000, ..Times::default() };
        writer.commit(Manifest { job, times, sessions: vec![session], ..Manifest::default() }).unwrap();
        image
    }

    #[test]
    fn images_below_a_folder_are_listed_with_those_that_are_broken() {
        let folder = tempfile::tempdir().unwrap();
        image_with_one_checkpoint(&folder.path().join("a"));
        std::fs::create_dir(folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b/katydid-image"), "x").unwrap();
        std::fs::create_dir(folder.path().join("no image")).unwrap();
        let lines = images_in(folder.path()).unwrap();
        assert_eq!(lines.len(), 2);
        let cells = lines[0].cells();
        assert_eq!(cells[1..5], ["train", "1", "1970-01-02 00:00:00 UTC", "13 B"]);
        assert!(lines[1].error.as_ref().unwrap().contains("damaged"));
    }

    #[test]
    fn missing_image_folders_fail_and_empty_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let [images, empty, others] = ["images", "empty", "others"].map(|name| folder.path().join(name));
        image_with_one_checkpoint(&images.join("a"));
        std::fs::create_dir(&empty).unwrap();
        std::fs::create_dir(&others).unwrap();
        let file = others.join("file");
        std::fs::write(&file, "").unwrap();
        let status = |named: &[&PathBuf]| {
            let folders = named.iter().map(|path| path.to_path_buf()).collect();
            match ls(&LsFlags { folders, json: true }) {
                Ok(code) if code == ExitCode::SUCCESS => Ok(()),
                Ok(_) => Err("in part".to_owned()),
                Err(failure) => Err(failure.to_string()),
            }
        };
        assert_eq!((status(&[&images]), status(&[&empty]), status(&[&".".into()])), (Ok(()), Ok(()), Ok(())));
        for lost in [&file, &others, &folder.path().join("none")] {
            let error = status(&[lost]).unwrap_err();
            assert!(error.contains(lost.to_str().unwrap()) && error.contains("name "), "{error}");
            assert_eq!(status(&[&images, lost]), Err("in part".to_owned()));
        }
    }

    #[test]
    fn an_object_store_that_cannot_be_asked_is_a_failure() {
        for address in ["s3://", "http://host/image", "s3:///image", "s3://bucket/../image"] {
            let error = images_in(Path::new(address)).unwrap_err().to_string();
            assert!(error.contains(address) && error.contains("s3://BUCKET/PREFIX"), "{error}");
        }
    }

    #[test]
    fn a_report_names_whole_and_damaged_checkpoints() {
        let mut report = Report { chunks: 3, bytes: 2048, ..Report::default() };
        report.checkpoints.insert(CheckpointNumber(1), Vec::new());
        report.checkpoints.insert(CheckpointNumber(2), vec!["pack is cut off".into()]);
        report.writer = Some("process 5".into());
        let mut text = Vec::new();
        write_report(&report, &mut text).unwrap();
        let expected = "checkpoint 1: whole\ncheckpoint 2: pack is cut off\nread 3 chunks, 2 KiB\n\
                        the lock is that of process 5\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
