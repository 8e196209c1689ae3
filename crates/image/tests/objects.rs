//! Images in object stores: in memory, and through the protocol of S3.
//!
//! A separate binary: it needs the feature `objects`, and links what that needs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;
#[path = "common/failing.rs"]
mod failing;
#[path = "common/s3.rs"]
mod s3;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use common::{TEST_CHUNK_BYTES, commit, contents, noise, put_session, save};
use failing::{Failing, FailureMode};
use katydid_image::{
    CheckpointChoice, CheckpointNumber, Compression, Image, ImageError, LeaseTerms, Manifest, Options, Region,
    RetentionPolicy, Session, Sink,
};
use katydid_tests::deadline::hang::until;
use object_store::ObjectStore;
use object_store::memory::InMemory;

fn memory(version: u64) -> Vec<u8> {
    [vec![0; 2 * TEST_CHUNK_BYTES], noise(1, 5 * TEST_CHUNK_BYTES), noise(version, 2 * TEST_CHUNK_BYTES + 3)].concat()
}

/// Uses every operation of an image, and opens it again for each process that would take part.
fn used(open: &dyn Fn() -> Image) {
    let image = open();
    save(&image, &memory(1)).unwrap();
    let writer = image.begin(Options::default()).unwrap();
    fs::write(writer.folder("criu").unwrap().join("core-1.img"), b"registers").unwrap();
    writer.adopt_folder("criu").unwrap();
    let second = commit(writer, &memory(2)).unwrap();
    assert!(second.sizes.added < (3 * TEST_CHUNK_BYTES + 500) as u64, "only what has changed: {:?}", second.sizes);

    let again = open();
    assert_eq!(again.id(), image.id());
    assert_eq!(again.checkpoints().unwrap(), [CheckpointNumber(1), CheckpointNumber(2)]);
    for version in [1, 2] {
        let reader = again.checkpoint(CheckpointChoice::Number(CheckpointNumber(version))).unwrap();
        assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(version.into()));
    }
    let reader = again.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(fs::read(reader.folder("criu").unwrap().join("core-1.img")).unwrap(), b"registers");
    assert!(again.verify(None, &|_| {}).unwrap().is_clean());
    assert_eq!(
        again.collect(&RetentionPolicy { newest: Some(1), ..RetentionPolicy::default() }).unwrap().checkpoints,
        [CheckpointNumber(1)]
    );
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(2));
}

#[test]
fn a_store_in_memory_holds_images() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    used(&|| Image::in_object_store(Arc::clone(&objects), "jobs/train").unwrap());
}

/// Writes a pack of many pieces.
fn large(image: &Image) {
    let options = Options { compression: Compression::None, ..Options::default() };
    let writer = image.begin(options).unwrap();
    let memory = noise(3, 40 << 20);
    let chunks = memory.chunks(1 << 20).map(|chunk| writer.put(chunk).unwrap()).collect();
    let region = Region { bytes: 40 << 20, chunk_bytes: 1 << 20, chunks, ..Region::default() };
    let session = Session { name: "0".into(), regions: vec![region], ..Session::default() };
    writer.commit(Manifest { sessions: vec![session], ..Manifest::default() }).unwrap();
    let report = image.verify(None, &|_| {}).unwrap();
    assert!(report.is_clean() && report.bytes >= 40 << 20, "{report:?}");
}

#[test]
fn large_packs_are_sent_in_pieces_while_they_are_written() {
    large(&Image::in_object_store(Arc::new(InMemory::new()), "").unwrap());
}

/// The body of the next test, in its own process: the environment gives credentials and endpoint.
#[test]
#[ignore = "needs a server, which the next test starts"]
fn behind_the_protocol() {
    used(&|| Image::create_or_open("s3://bucket/jobs/train").unwrap());
    large(&Image::create_or_open("s3://bucket/jobs/large").unwrap());
    assert!(matches!(Image::open("s3://bucket/jobs"), Err(ImageError::NotAnImage { .. })));
}

#[test]
fn a_bucket_behind_the_protocol_of_s3_holds_images() {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "behind_the_protocol"]).env("AWS_ENDPOINT", s3::serve());
    child.envs([("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "here"), ("AWS_ACCESS_KEY_ID", "me")]);
    let output = child.env("AWS_SECRET_ACCESS_KEY", "secret").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn one_writes_at_a_time_and_what_it_leaves_is_cleared() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let image = Image::in_object_store(Arc::clone(&objects), "a").unwrap();
    save(&image, &memory(1)).unwrap();
    let writer = image.begin(Options::default()).unwrap();
    put_session(&writer, "0", &memory(2)).unwrap();
    let refused = image.begin(Options::default()).unwrap_err();
    assert!(matches!(refused, ImageError::Locked { .. }), "{refused}");
    let expected = format!("in use by process {}", std::process::id());
    assert!(refused.to_string().contains(&expected), "{refused}");
    assert!(image.writer().unwrap().unwrap().contains("renewed its lock at"), "{:?}", image.writer());
    // As if the process had ended: nothing releases the lock. The user does not wait until another process may take it over.
    std::mem::forget(writer);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(object_store::ObjectStoreExt::delete(&*objects, &"a/lock".into())).unwrap();
    assert_eq!(image.writer().unwrap(), None);
    let image = Image::in_object_store(Arc::clone(&objects), "a").unwrap();
    assert_eq!(save(&image, &memory(3)).unwrap().number, CheckpointNumber(2));
    assert!(image.verify(None, &|_| {}).unwrap().is_clean());
    let left = runtime.block_on(objects.list_with_delimiter(Some(&"a/packs".into()))).unwrap();
    assert!(left.objects.iter().all(|meta| meta.location.as_ref().ends_with(".pack")), "{left:?}");
}

#[test]
fn a_lock_that_was_given_to_another_is_not_taken_from_it() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let image = Image::in_object_store(Arc::clone(&objects), "a").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let put = |text: &'static str| {
        runtime.block_on(object_store::ObjectStoreExt::put(&*objects, &"a/lock".into(), text.into())).unwrap();
    };
    let writer = image.begin(Options::default()).unwrap();
    put("process 1 on another host");
    drop(writer);
    let refused = image.begin(Options::default()).unwrap_err();
    assert!(refused.to_string().contains("in use by process 1 on another host"), "{refused}");
    assert!(refused.to_string().contains("remove the object objects:a/lock"), "{refused}");
    // No holder renews it, and none announced that it would.
    let hasty =
        Image::in_object_store_for(objects, "a", LeaseTerms { expires_after: Duration::ZERO, ..LeaseTerms::default() });
    assert!(matches!(hasty.unwrap().begin(Options::default()), Err(ImageError::Locked { .. })));
}

#[test]
fn a_writer_renews_its_lock_and_keeps_it() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let terms = LeaseTerms { renew_interval: Duration::from_millis(1), ..LeaseTerms::default() };
    let image = Image::in_object_store_for(Arc::clone(&objects), "a", terms).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let text = || {
        let read = async { object_store::ObjectStoreExt::get(&*objects, &"a/lock".into()).await?.bytes().await };
        runtime.block_on(read).map(|text| String::from_utf8_lossy(&text).into_owned())
    };
    let writer = image.begin(Options::default()).unwrap();
    let first = text().unwrap();
    until("a renewal", || text().unwrap() != first);
    assert!(matches!(image.begin(Options::default()), Err(ImageError::Locked { .. })));
    commit(writer, &memory(1)).unwrap();
    assert!(matches!(text(), Err(object_store::Error::NotFound { .. })));
}

/// The first writer is cut off from the store until the next one has its lock, as a killed one is for ever.
#[test]
fn a_lock_that_is_not_renewed_is_taken_over_and_its_writer_writes_no_more() {
    let inner = Arc::new(InMemory::new());
    let (often, soon) = (Duration::from_millis(1), Duration::from_secs(1));
    let eager = LeaseTerms { expires_after: Duration::from_millis(50), ..LeaseTerms::default() };
    let failing = Arc::new(Failing::at(&inner, u64::MAX, FailureMode::Once));
    let open = |objects: Arc<dyn ObjectStore>, terms| Image::in_object_store_for(objects, "a", terms).unwrap();
    let patient = open(inner.clone(), LeaseTerms::default());
    save(&patient, &memory(1)).unwrap();
    let first = open(failing.clone(), LeaseTerms { renew_interval: often, valid_for: soon, ..LeaseTerms::default() });
    let mut first_writer = None;
    // On a busy machine the renewal thread may be late.
    until("a checkpoint is begun", || {
        first_writer = first.begin(Options::default()).ok();
        first_writer.as_ref().is_some_and(|writer| writer.put(&noise(7, TEST_CHUNK_BYTES)).is_ok())
    });
    failing.cut_off(true);
    assert!(matches!(patient.begin(Options::default()), Err(ImageError::Locked { .. })));
    let (mut second_writer, eager) = (None, open(inner, eager));
    until("the lock is another's", || {
        second_writer = eager.begin(Options::default()).ok();
        second_writer.is_some()
    });
    thread::sleep(soon);
    failing.cut_off(false);
    let lost = first_writer.unwrap();
    let refused = commit(lost, &memory(2)).unwrap_err();
    assert!(matches!(refused, ImageError::LockLost { .. } | ImageError::WriteFailed { .. }), "{refused}");
    let second = commit(second_writer.unwrap(), &memory(3)).unwrap();
    assert_eq!(second.number, CheckpointNumber(2));
    let reader = patient.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(3));
    assert!(patient.verify(None, &|_| {}).unwrap().is_clean());
    assert_eq!(save(&patient, &memory(4)).unwrap().number, CheckpointNumber(3));
}

/// A machine that was suspended, and does not know what became of its lock meanwhile.
#[test]
fn a_writer_that_could_not_renew_its_lock_in_time_writes_no_more() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let terms = LeaseTerms {
        renew_interval: Duration::from_secs(3600),
        valid_for: Duration::from_millis(200),
        ..LeaseTerms::default()
    };
    let image = Image::in_object_store(Arc::clone(&objects), "a").unwrap();
    save(&image, &memory(1)).unwrap();
    let late = Image::in_object_store_for(objects, "a", terms).unwrap();
    // A busy machine may be late from the start.
    if let Ok(writer) = late.begin(Options::default()) {
        thread::sleep(terms.valid_for);
        assert!(matches!(commit(writer, &memory(2)), Err(ImageError::LockLost { .. })));
    }
    assert_eq!(image.checkpoints().unwrap(), [CheckpointNumber(1)]);
    assert!(image.writer().unwrap().is_some(), "a lock that may be another's was removed");
}

#[test]
fn a_dropped_writer_takes_back_what_it_wrote() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let image = Image::in_object_store(Arc::clone(&objects), "a").unwrap();
    save(&image, &memory(1)).unwrap();
    let stored = image.stored().unwrap();
    let writer = image.begin(Options::default()).unwrap();
    put_session(&writer, "0", &memory(2)).unwrap();
    drop(writer);
    assert_eq!((image.stored().unwrap(), image.checkpoints().unwrap().len()), (stored, 1));
}

/// Writes a second checkpoint to a store in which one request fails, or all from one on, and checks the result.
fn fails_at(at: u64, how: FailureMode) -> u64 {
    let objects = Arc::new(InMemory::new());
    let open = |objects: Arc<dyn ObjectStore>| Image::in_object_store(objects, "a");
    save(&open(objects.clone()).unwrap(), &memory(1)).unwrap();
    let failing = Arc::new(Failing::at(&objects, at, how));
    let second = open(failing.clone()).and_then(|image| {
        let writer = image.begin(Options::default())?;
        fs::write(writer.folder("criu")?.join("core-1.img"), b"registers").unwrap();
        writer.adopt_folder("criu")?;
        commit(writer, &memory(2))
    });
    // The next writer takes over at once the lock that a writer could not remove.
    let terms = LeaseTerms { expires_after: Duration::ZERO, ..LeaseTerms::default() };
    let image = Image::in_object_store_for(objects, "a", terms).unwrap();
    let numbers = image.checkpoints().unwrap();
    assert!(second.is_err() || numbers.len() == 2, "what was reported as made is there: request {at}, {how:?}");
    for (number, version) in numbers.iter().zip([1, 2]) {
        let reader = image.checkpoint(CheckpointChoice::Number(*number)).unwrap();
        assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(version), "request {at}, {how:?}");
    }
    let third = save(&image, &memory(3)).unwrap().number;
    let reader = image.checkpoint(CheckpointChoice::Number(third)).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory(3));
    assert!(image.verify(None, &|_| {}).unwrap().is_clean(), "request {at}, {how:?}");
    failing.requests()
}

#[test]
fn a_request_that_fails_leaves_the_last_checkpoint_and_the_next_one_works() {
    let requests = fails_at(u64::MAX, FailureMode::Once);
    assert!(requests > 10, "there are requests to let fail: {requests}");
    for how in [FailureMode::Once, FailureMode::Unanswered, FailureMode::ForEver] {
        for at in 0..requests {
            fails_at(at, how);
        }
    }
}

#[test]
fn invalid_address_is_refused() {
    for address in ["ftp://host/a", "s3:///prefix"] {
        assert!(matches!(Image::open(address), Err(ImageError::Unfit { .. })), "{address}");
    }
}
