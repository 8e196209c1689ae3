//! Writes and reads checkpoints without faults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{TEST_CHUNK_BYTES, commit, contents, folder, noise, put_region, put_session, save, tree};
use katydid_image::{
    Build, CheckpointChoice, CheckpointNumber, CheckpointPart, ChunkId, Compression, Image, ImageError, ImageSource,
    Library, Manifest, Options, Sink, check_location,
};
use katydid_tests::deadline::hang::hang_limit;

/// Returns zeros, text and noise: all three encodings of a chunk.
fn mixture() -> Vec<u8> {
    let mut bytes = vec![0; 3 * TEST_CHUNK_BYTES];
    bytes.extend(b"the quick brown fox ".iter().cycle().take(3 * TEST_CHUNK_BYTES));
    bytes.extend(noise(1, 3 * TEST_CHUNK_BYTES + 17));
    bytes
}

#[test]
fn checkpoint_reads_back_as_written() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let committed = save(&image, &mixture()).unwrap();
    assert_eq!(committed.number, CheckpointNumber(1));
    let reader = Image::open(folder.path()).unwrap().checkpoint(CheckpointChoice::Latest).unwrap();
    let manifest = reader.manifest();
    assert_eq!(contents(&reader, manifest).unwrap(), mixture());
    let journal = &manifest.sessions[0].states["journal"];
    assert_eq!(reader.state(journal).unwrap(), noise(mixture().len() as u64, 100));
    assert!(committed.sizes.stored < committed.sizes.chunks && committed.sizes.chunks < committed.sizes.content);
}

#[test]
fn a_place_is_checked_without_a_change() {
    let folder = folder();
    let [new, file, full] = ["new", "file", "full"].map(|name| folder.path().join(name));
    fs::write(&file, "").unwrap();
    fs::create_dir(&full).unwrap();
    fs::write(full.join("other"), "").unwrap();
    let check_at = |location: &std::path::Path| check_location(location).map_err(|error| error.to_string());
    assert_eq!(check_at(&new), Ok(()));
    assert!(!new.exists());
    Image::create_or_open(&new).unwrap();
    assert_eq!(check_at(&new), Ok(()));
    assert!(check_at(&file).unwrap_err().contains("Not a directory"));
    assert!(check_at(&full).unwrap_err().contains("neither empty nor an image"));
    let error = Image::create_or_open(&file).unwrap_err().to_string();
    assert!(error.contains("choose another folder"), "{error}");
}

#[test]
fn a_second_checkpoint_writes_what_has_changed() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let mut memory = noise(2, 200 * TEST_CHUNK_BYTES);
    save(&image, &memory).unwrap();
    memory[7 * TEST_CHUNK_BYTES] ^= 1;
    let second = save(&image, &memory).unwrap();
    // One chunk, its header, and header, index and trailer of its pack.
    assert_eq!(second.sizes.added, (TEST_CHUNK_BYTES + 4 * 64) as u64);
    let old = image.checkpoint(CheckpointChoice::Number(CheckpointNumber(1))).unwrap();
    assert_eq!(contents(&old, old.manifest()).unwrap(), noise(2, 200 * TEST_CHUNK_BYTES));
    let new = image.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&new, new.manifest()).unwrap(), memory);
    assert_eq!(new.manifest().identity.unwrap().parent, Some(CheckpointNumber(1)));
    assert_eq!(fs::read_to_string(folder.path().join("latest")).unwrap(), "000002\n");
}

#[test]
fn a_draft_is_read_before_it_is_committed_and_leaves_nothing() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let memory = noise(3, 5 * TEST_CHUNK_BYTES + 9);
    let writer = image.begin(Options::default()).unwrap();
    let session = put_session(&writer, "0", &memory).unwrap();
    let manifest = Manifest { sessions: vec![session], ..Manifest::default() };
    let draft = writer.draft(manifest.clone()).unwrap();
    assert_eq!(contents(&draft, draft.manifest()).unwrap(), memory);
    assert_eq!((draft.number(), image.checkpoints().unwrap()), (CheckpointNumber(1), Vec::new()));
    drop(draft);
    drop(writer);
    assert!(image.checkpoints().unwrap().is_empty() && tree(&folder.path().join("packs")).is_empty());
    let writer = image.begin(Options::default()).unwrap();
    let session = put_session(&writer, "0", &memory).unwrap();
    let manifest = Manifest { sessions: vec![session], ..Manifest::default() };
    drop(writer.draft(manifest.clone()).unwrap());
    let committed = writer.commit(manifest).unwrap();
    assert!(committed.sizes.added > memory.len() as u64, "packs that a draft has finished count too");
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory);
}

#[test]
fn a_newer_checkpoint_that_is_not_there_is_known() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    save(&image, &noise(4, TEST_CHUNK_BYTES)).unwrap();
    assert_eq!(image.newer_than(CheckpointNumber(1)).unwrap(), None);
    save(&image, &noise(5, TEST_CHUNK_BYTES)).unwrap();
    fs::remove_file(folder.path().join("checkpoints/000002/manifest.json")).unwrap();
    assert_eq!(image.checkpoints().unwrap(), [CheckpointNumber(1)]);
    assert_eq!(image.newer_than(CheckpointNumber(1)).unwrap(), Some(CheckpointNumber(2)));
    fs::remove_dir_all(folder.path().join("checkpoints/000002")).unwrap();
    assert_eq!(image.newer_than(CheckpointNumber(1)).unwrap(), Some(CheckpointNumber(2)), "`latest` names it");
}

#[test]
fn many_threads_write_many_packs_and_equal_chunks_once() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let options =
        Options { compression: Compression::None, pack_bytes: 40 * TEST_CHUNK_BYTES as u64, packs_at_once: 3 };
    let writer = image.begin(options).unwrap();
    let memory = noise(3, 300 * TEST_CHUNK_BYTES);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| memory.chunks(TEST_CHUNK_BYTES).all(|chunk| writer.put(chunk).is_ok()));
        }
    });
    assert_eq!(writer.written().raw, 8 * memory.len() as u64);
    let committed = commit(writer, &memory).unwrap();
    assert_eq!(committed.sizes.stored, memory.len() as u64);
    assert!(fs::read_dir(folder.path().join("packs")).unwrap().count() >= 7);
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory);
}

#[test]
fn room_that_was_made_is_used_or_given_back() {
    const MIB: u64 = 1 << 20;
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let options = Options { compression: Compression::None, pack_bytes: 16 * MIB, packs_at_once: 4 };
    let writer = image.begin(options).unwrap();
    writer.preallocate(64 * MIB).unwrap();
    let memory = noise(4, 3 * TEST_CHUNK_BYTES);
    let committed = commit(writer, &memory).unwrap();
    let packs: Vec<fs::Metadata> =
        fs::read_dir(folder.path().join("packs")).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect();
    // Each chunk found room in its own pack; the fourth pack and the rest of the room are gone.
    assert_eq!((packs.len(), packs.iter().map(fs::Metadata::len).sum()), (3, committed.sizes.added));
    assert!(packs.iter().all(|pack| pack.blocks() * 512 < MIB));
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), memory);
}

#[test]
fn a_writer_with_room_leaves_nothing_when_it_is_dropped() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let writer = image.begin(Options::default()).unwrap();
    writer.preallocate(64 << 20).unwrap();
    writer.put(&noise(5, TEST_CHUNK_BYTES)).unwrap();
    drop(writer);
    assert_eq!(fs::read_dir(folder.path().join("packs")).unwrap().count(), 0);
}

#[test]
fn another_process_writes_its_share_through_a_descriptor() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let writer = image.begin(Options::default()).unwrap();
    let part = Image::open_at(writer.directory().unwrap().unwrap())
        .unwrap()
        .join(writer.number(), Options::default())
        .unwrap();
    let session = put_session(&part, "gpu", &mixture()).unwrap();
    part.finish(&session).unwrap();
    let session = writer.take_session("gpu").unwrap();
    writer.commit(Manifest { sessions: vec![session], ..Manifest::default() }).unwrap();
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), mixture());
    assert!(reader.state(&reader.manifest().sessions[0].states["journal"]).is_ok());
    let names: Vec<&str> = reader.manifest().files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["state-gpu.bin"]);
}

#[test]
fn a_library_is_kept_once_and_is_no_memory_of_a_session() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let bytes = noise(7, 3 * TEST_CHUNK_BYTES + 1);
    let mut added = Vec::new();
    for _ in 0..2 {
        let writer = image.begin(Options::default()).unwrap();
        let build = Build { protocol: 6, job_protocol: 2, interface: ChunkId::of(b"spec"), release: "0.1.0".into() };
        let contents = put_region(&writer, &bytes).unwrap();
        let library = Library { path: "/l".into(), deleted: false, mode: 0o100_755, build, contents };
        let committed = writer.commit(Manifest { libraries: vec![library], ..Manifest::default() }).unwrap();
        assert_eq!((committed.sizes.content, committed.sizes.chunks), (0, bytes.len() as u64));
        added.push(committed.sizes.added);
    }
    assert!(added[0] > 0 && added[1] == 0, "{added:?}");
    image.keep(1).unwrap();
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    let contents = &reader.manifest().libraries[0].contents;
    let read = contents.chunks.iter().enumerate().flat_map(|(index, id)| {
        let mut chunk = vec![0; contents.chunk_len(index).unwrap()];
        reader.read(id, &mut chunk).unwrap();
        chunk
    });
    assert_eq!(read.collect::<Vec<u8>>(), bytes);
}

/// Returns an image with a checkpoint that has a CRIU file of 9 bytes.
fn image_with_a_file(folder: &std::path::Path) -> Image {
    let image = Image::create_or_open(folder).unwrap();
    let writer = image.begin(Options::default()).unwrap();
    fs::write(writer.folder("criu").unwrap().join("core-1.img"), b"registers").unwrap();
    writer.adopt_folder("criu").unwrap();
    commit(writer, &mixture()).unwrap();
    image
}

#[test]
fn files_of_another_program_become_part_of_it() {
    let folder = folder();
    let image = image_with_a_file(folder.path());
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    let file = reader.folder("criu").unwrap().join("core-1.img");
    assert_eq!(fs::read(&file).unwrap(), b"registers");
    fs::write(&file, b"registerz").unwrap();
    assert!(matches!(reader.folder("criu"), Err(ImageError::Damaged { .. })));
}

/// A pipe has no end, and a lengthened file may be longer than a disk: neither is read to find that out.
#[test]
fn a_file_of_another_program_is_read_only_if_its_length_is_right() {
    let folder = folder();
    let image = image_with_a_file(folder.path());
    let file = image.checkpoint(CheckpointChoice::Latest).unwrap().folder("criu").unwrap().join("core-1.img");
    let refused = || {
        let (sender, answer) = mpsc::channel();
        let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
        std::thread::spawn(move || sender.send(reader.folder("criu").unwrap_err().to_string()));
        answer.recv_timeout(hang_limit()).unwrap()
    };
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
    assert!(refused().contains("1099511627776 bytes instead of 9"), "{}", refused());
    fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(refused().contains("it is not a file"), "{}", refused());
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    assert!(!refused().contains("hash mismatch"), "{}", refused());
    fs::remove_file(&file).unwrap();
    assert!(refused().contains("core-1.img"), "{}", refused());
}

#[test]
fn a_dropped_writer_leaves_the_image_as_it_was() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    save(&image, &noise(4, 9 * TEST_CHUNK_BYTES)).unwrap();
    let before = tree(folder.path());
    let writer = image.begin(Options::default()).unwrap();
    put_session(&writer, "0", &noise(5, 9 * TEST_CHUNK_BYTES)).unwrap();
    drop(writer);
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn one_writes_at_a_time_and_the_other_is_named() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let _first = image.begin(Options::default()).unwrap();
    let refused = image.begin(Options::default()).unwrap_err();
    assert!(refused.to_string().contains(&format!("in use by process {}", std::process::id())), "{refused}");
}

/// Returns a part with a chunk in an unnamed pack, of a checkpoint that was given up.
fn part_given_up(image: &Image) -> CheckpointPart {
    let writer = image.begin(Options::default()).unwrap();
    let part = image.join(writer.number(), Options::default()).unwrap();
    part.put(&noise(6, TEST_CHUNK_BYTES)).unwrap();
    part
}

#[test]
fn a_part_that_is_given_up_late_takes_nothing_of_the_next_checkpoint() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let late = part_given_up(&image);
    let (put, put_signal) = mpsc::channel();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let writer = image.begin(Options::default()).unwrap();
            let part = image.join(writer.number(), Options::default()).unwrap();
            let session = put_session(&part, "gpu", &mixture()).unwrap();
            put.send(()).unwrap();
            part.finish(&session).unwrap();
            let session = writer.take_session("gpu").unwrap();
            writer.commit(Manifest { sessions: vec![session], ..Manifest::default() }).unwrap();
        });
        // The writer waits; otherwise it would have written by now.
        assert!(put_signal.recv_timeout(Duration::from_secs(1)).is_err());
        drop(late);
        next.join().unwrap();
    });
    let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
    assert_eq!(contents(&reader, reader.manifest()).unwrap(), mixture());
}

#[test]
fn no_process_begins_or_clears_up_beside_a_part_that_stays() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    save(&image, &noise(5, TEST_CHUNK_BYTES)).unwrap();
    let late = part_given_up(&image);
    let before = tree(folder.path());
    std::thread::scope(|scope| {
        let begin_thread = scope.spawn(|| image.begin(Options::default()).map(drop).unwrap_err().to_string());
        let other = Image::open(folder.path()).unwrap();
        let cleared = scope.spawn(move || other.keep(1).unwrap_err().to_string());
        let errors = [begin_thread.join().unwrap(), cleared.join().unwrap()];
        // One of them held the writer's lock meanwhile.
        assert!(errors.iter().any(|text| text.contains("in use by a worker")), "{errors:?}");
        assert!(errors.iter().all(|text| text.contains("wait for it to end")), "{errors:?}");
    });
    assert_eq!(tree(folder.path()), before);
    drop(late);
    save(&image, &noise(7, TEST_CHUNK_BYTES)).unwrap();
}

#[test]
fn a_manifest_may_name_only_chunks_that_were_put() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let writer = image.begin(Options::default()).unwrap();
    let mut session = put_session(&writer, "0", &mixture()).unwrap();
    session.regions[0].chunks[2] = ChunkId::of(b"never put");
    let refused = writer.commit(Manifest { sessions: vec![session], ..Manifest::default() });
    assert!(matches!(refused, Err(ImageError::UnknownChunk { .. })));
    assert_eq!(image.checkpoints().unwrap(), []);
}

#[test]
fn a_folder_with_other_things_is_left_alone() {
    let folder = folder();
    fs::write(folder.path().join("thesis.tex"), "").unwrap();
    assert!(matches!(Image::create_or_open(folder.path()), Err(ImageError::Occupied { .. })));
    assert!(matches!(Image::open(folder.path()), Err(ImageError::NotAnImage { .. })));
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    for changed in [folder.path().to_owned(), folder.path().join("checkpoints"), folder.path().join("packs")] {
        fs::set_permissions(&changed, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = image.begin(Options::default()).map(drop).unwrap_err();
        assert!(matches!(refused, ImageError::NotPrivate { .. }), "{refused}");
        assert!(Image::create_or_open(folder.path()).is_err(), "{changed:?}");
        fs::set_permissions(&changed, fs::Permissions::from_mode(0o700)).unwrap();
    }
    save(&image, &mixture()).unwrap();
}

#[test]
fn files_of_a_user_with_names_of_an_image_are_left_alone() {
    for name in ["checkpoints/001000/model.pt", "packs/data.part"] {
        let folder = folder();
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "a model").unwrap();
        assert!(matches!(Image::create_or_open(folder.path()), Err(ImageError::Occupied { .. })), "{name}");
        assert_eq!(fs::read(&path).unwrap(), b"a model");
    }
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    let path = folder.path().join("packs/data.part");
    fs::create_dir(&path).unwrap();
    save(&image, &mixture()).unwrap();
    assert!(path.exists());
}

#[test]
fn a_number_at_the_limit_removes_no_checkpoint() {
    let folder = folder();
    let image = Image::create_or_open(folder.path()).unwrap();
    save(&image, &mixture()).unwrap();
    fs::write(folder.path().join("latest"), "4294967295\n").unwrap();
    assert_eq!(save(&image, &mixture()).unwrap().number, CheckpointNumber(2));
    let checkpoints = folder.path().join("checkpoints");
    fs::rename(checkpoints.join("000002"), checkpoints.join("4294967295")).unwrap();
    let refused = save(&image, &mixture()).unwrap_err().to_string();
    assert!(refused.contains("last possible number"), "{refused}");
    assert!(checkpoints.join("4294967295/manifest.json").exists());
}
