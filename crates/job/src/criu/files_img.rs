//! What CRIU noted of regular files while the processes were stopped: reads `files.img` and `remap-fpath.img` of a dump, and
//! writes both with other names.
//!
//! | what                                                    | where                                                  |
//! |---------------------------------------------------------|--------------------------------------------------------|
//! | magic                                                   | two u32                                                |
//! | then, as often as there are files, length of a message  | u32                                                    |
//! | the message of `files.img`, in protocol buffers         | `file_entry`: field 3 is the `reg_file_entry`          |
//! | in that                                                 | field 1 is its number, 6 the name, 8 the length        |
//! | the message of `remap-fpath.img`                        | `remap_file_path_entry`: field 1 is the number of a file, 2 the
//! number of the entry with its name, 3 the reason |
//!
//! The rule: the files are CRIU's, but any user that may write the image may have changed them. Parsing stops at the first
//! malformed message. A file that is not found here is not cut back.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use katydid_scratch::private;

use crate::criu::protobuf::{FieldValue, Fields, Message};
use crate::process::file_id::FileId;

/// The first magic number of both files, and the second of each, in the byte order of the file.
pub(crate) const IMAGE_FILE_MAGIC: [u8; 4] = [0x19, 0x43, 0x56, 0x54];
pub(crate) const FILES_MAGIC: [u8; 4] = [0x38, 0x31, 0x30, 0x56];
const REMAPS_MAGIC: [u8; 4] = [0x54, 0x39, 0x13, 0x59];
/// The field of a regular file, `file_entry.reg`.
pub(crate) const REGULAR_FILE_FIELD: u64 = 3;
/// The field of a unix socket, `file_entry.usk`, and in it `unix_sk_entry.ino`, `.peer`, `.name`.
pub(crate) const UNIX_SOCKET_FIELD: u64 = 16;
const UNIX_INODE_FIELD: u64 = 2;
const UNIX_PEER_FIELD: u64 = 8;
const SOCKET_NAME: u64 = 11;
/// The field of inotify, `file_entry.ify`; `inotify_file_entry.wd`; `inotify_wd_entry.i_ino`, `.s_dev`, `.f_handle`;
/// `fh_entry.path`.
const INOTIFY_FIELD: u64 = 13;
const INOTIFY_WATCHES_FIELD: u64 = 5;
const WATCH_INODE_FIELD: u64 = 2;
const WATCH_DEVICE_FIELD: u64 = 5;
const WATCH_HANDLE_FIELD: u64 = 7;
const HANDLE_PATH_FIELD: u64 = 4;
/// Fields of `reg_file_entry`: `id`, `name` and `size`.
const REGULAR_ID_FIELD: u64 = 1;
const REGULAR_NAME_FIELD: u64 = 6;
const REGULAR_SIZE_FIELD: u64 = 8;
/// `remap_file_path_entry.orig_id`, `.remap_id`, `.remap_type`; the type of a file that got another name.
const REMAP_ORIGINAL_FIELD: u64 = 1;
const REMAP_TARGET_FIELD: u64 = 2;
const REMAP_TYPE_FIELD: u64 = 3;
const LINKED_REMAP: u64 = 0;
/// The type of a file that has no name: CRIU has its content.
const GHOST_REMAP: u64 = 1;
/// Largest file that is read: it has room for more files than a process can open.
const MAX_FILES_IMG_BYTES: u64 = 1 << 30;

/// Open files of a dump, as `files.img` lists them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesImage {
    /// Lengths in bytes, by name.
    pub(crate) lengths: BTreeMap<String, u64>,
    /// Files that had lost their names.
    pub(crate) links: Vec<RemappedFile>,
}

/// A file that CRIU gave a name, because the name under which it was opened is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RemappedFile {
    /// The name that is gone.
    pub(crate) of: PathBuf,
    /// The name that CRIU gave it.
    pub(crate) name: PathBuf,
    /// Length in bytes, if CRIU noted it.
    pub(crate) length: Option<u64>,
}

/// A regular file, as `reg_file_entry` has it.
#[derive(Default)]
struct RegularFile<'a> {
    id: u64,
    name: &'a [u8],
    size: Option<u64>,
}

/// CRIU's ids of unix sockets, by inode.
///
/// # Errors
///
/// There is no `files.img` in the folder, or it cannot be read.
pub(crate) fn unix_sockets(folder: &Path) -> io::Result<BTreeMap<u64, u64>> {
    let socket = |message| {
        let entry = Fields(message).bytes_in(UNIX_SOCKET_FIELD)?;
        Some((Fields(entry).number_in(UNIX_INODE_FIELD)?, Fields(entry).number_in(REGULAR_ID_FIELD)?))
    };
    Ok(messages(&bounded(&folder.join(FILE_NAMES[0]))?, FILES_MAGIC).filter_map(socket).collect())
}

/// The peer of each unix socket that has one, by inodes.
///
/// # Errors
///
/// There is no `files.img` in the folder, or it cannot be read.
pub(crate) fn unix_pairs(folder: &Path) -> io::Result<BTreeMap<u64, u64>> {
    let files = bounded(&folder.join(FILE_NAMES[0]))?;
    Ok(messages(&files, FILES_MAGIC).filter_map(unix_pair).collect())
}

/// Paths to which unix sockets are bound. CRIU takes these names from whatever has them.
///
/// # Errors
///
/// There is no `files.img` in the folder, or it cannot be read.
pub(crate) fn bound_names(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let name = |message| {
        let name = Fields(Fields(message).bytes_in(UNIX_SOCKET_FIELD)?).bytes_in(SOCKET_NAME)?;
        // An abstract name begins with a zero byte, a path ends with one.
        Some(PathBuf::from(OsStr::from_bytes(name.strip_suffix(b"\0").unwrap_or(name))))
    };
    let files = bounded(&folder.join(FILE_NAMES[0]))?;
    Ok(messages(&files, FILES_MAGIC).filter_map(name).filter(|name| name.is_absolute()).collect())
}

/// The inodes of a unix socket and of its peer.
pub(crate) fn unix_pair(message: &[u8]) -> Option<(u64, u64)> {
    let entry = Fields(message).bytes_in(UNIX_SOCKET_FIELD)?;
    let peer = Fields(entry).number_in(UNIX_PEER_FIELD).filter(|peer| *peer != 0)?;
    Some((Fields(entry).number_in(UNIX_INODE_FIELD)?, peer))
}

/// Paths of files that inotify watches, below the root folder of the first process.
///
/// # Errors
///
/// There is no `files.img` in the folder, or it cannot be read.
pub(crate) fn watched(folder: &Path) -> io::Result<BTreeMap<FileId, PathBuf>> {
    let watch = |entry: &[u8]| {
        let path = Fields(Fields(entry).bytes_in(WATCH_HANDLE_FIELD)?).bytes_in(HANDLE_PATH_FIELD)?;
        let number = |field| Fields(entry).number_in(field);
        let file = FileId::of_kernel(number(WATCH_DEVICE_FIELD)?, number(WATCH_INODE_FIELD)?);
        Some((file, PathBuf::from(OsStr::from_bytes(path))))
    };
    let files = bounded(&folder.join(FILE_NAMES[0]))?;
    let inotify = messages(&files, FILES_MAGIC).filter_map(|message| Fields(message).bytes_in(INOTIFY_FIELD));
    let entries = inotify.flat_map(Fields).filter_map(|(field, value)| match value {
        FieldValue::Bytes(entry) if field == INOTIFY_WATCHES_FIELD => Some(entry),
        _ => None,
    });
    Ok(entries.filter_map(watch).collect())
}

/// Reads the folder of a dump.
///
/// # Errors
///
/// The folder has no `files.img`, or a file in it cannot be read.
pub(crate) fn read(folder: &Path) -> io::Result<FilesImage> {
    let files = bounded(&folder.join("files.img"))?;
    let remaps = bounded_if_any(&folder.join("remap-fpath.img"))?;
    Ok(decode(&files, &remaps))
}

/// Reads a file of a dump; empty if CRIU had none to write.
pub(crate) fn bounded_if_any(path: &Path) -> io::Result<Vec<u8>> {
    match bounded(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        bytes => bytes,
    }
}

pub(crate) fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_FILES_IMG_BYTES {
        let text = format!("{} is longer than any that CRIU writes", path.display());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    fs::read(path)
}

/// A file of a dump that the restore finds under another name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RenamedFile {
    /// The name that CRIU noted.
    pub(crate) from: PathBuf,
    /// Whether that name was gone. Then CRIU finds the file in another way: it has the content, or gave another name.
    pub(crate) is_lost: bool,
    /// The name of the file at the restore.
    pub(crate) to: PathBuf,
}

/// Names of the two files that [`rename`] writes.
pub(crate) const FILE_NAMES: [&str; 2] = ["files.img", "remap-fpath.img"];

/// Writes `files.img` and `remap-fpath.img` of the dump in `folder` to the folder `to`, with other names.
///
/// # Errors
///
/// A file cannot be read or written, or is not as CRIU writes it.
pub(crate) fn rename(folder: &Path, to: &Path, renamed: &[RenamedFile]) -> io::Result<()> {
    let [files, remaps] = FILE_NAMES;
    let (old_files, old_remaps) = (bounded(&folder.join(files))?, bounded_if_any(&folder.join(remaps))?);
    let unknown = |name: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: CRIU wrote it in a way not known here", folder.join(name).display()),
        )
    };
    let (new_files, new_remaps) = with_names(&old_files, &old_remaps, renamed).map_err(unknown)?;
    private::write(&to.join(files), new_files)?;
    if old_remaps.is_empty() { Ok(()) } else { private::write(&to.join(remaps), new_remaps) }
}

/// Returns both files with other names, or the name of the file that cannot be parsed.
fn with_names(files: &[u8], remaps: &[u8], renamed: &[RenamedFile]) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
    let have_lost: BTreeSet<u64> = messages(remaps, REMAPS_MAGIC).filter_map(lost).collect();
    let mut moved = BTreeSet::new();
    let files = rewritten(files, FILES_MAGIC, |message| {
        let Some(file) = regular(message) else { return Some(message.to_owned()) };
        let is_it = |renamed: &&RenamedFile| {
            renamed.from.as_os_str().as_bytes() == file.name && renamed.is_lost == have_lost.contains(&file.id)
        };
        let Some(found) = renamed.iter().find(is_it) else { return Some(message.to_owned()) };
        moved.insert(file.id);
        Some(named(message, &found.to))
    });
    let files = files.ok_or(FILE_NAMES[0])?;
    if remaps.is_empty() {
        return Ok((files, Vec::new()));
    }
    let stays = |message: &[u8]| lost(message).is_none_or(|id| !moved.contains(&id)).then(|| message.to_owned());
    Ok((files, rewritten(remaps, REMAPS_MAGIC, stays).ok_or(FILE_NAMES[1])?))
}

/// Rewrites a file with each message as `new` returns it, or without it. Returns `None` if the file cannot be parsed to its end.
pub(crate) fn rewritten(
    bytes: &[u8],
    magic: [u8; 4],
    mut new: impl FnMut(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut written = [IMAGE_FILE_MAGIC, magic].concat();
    let mut read = bytes.starts_with(&written).then_some(written.len())?;
    for message in messages(bytes, magic) {
        read += 4 + message.len();
        if let Some(message) = new(message) {
            written.extend(u32::try_from(message.len()).ok()?.to_le_bytes());
            written.extend(message);
        }
    }
    (read == bytes.len()).then_some(written)
}

/// A `file_entry` with another name.
fn named(message: &[u8], name: &Path) -> Vec<u8> {
    let with_name = |entry: &[u8]| {
        Fields(entry).with_bytes().fold(Message::default(), |new, (field, _, bytes)| match field {
            REGULAR_NAME_FIELD => new.bytes(REGULAR_NAME_FIELD, name.as_os_str().as_bytes()),
            _ => new.field(bytes),
        })
    };
    with_regular(message, with_name)
}

/// Returns a `file_entry` without its length if it is one of the files with these names.
pub(crate) fn without_length(message: &[u8], names: &BTreeSet<&str>) -> Option<Vec<u8>> {
    let name = std::str::from_utf8(regular(message)?.name).ok()?;
    let without = |entry: &[u8]| {
        let fields = Fields(entry).with_bytes().filter(|(field, _, _)| *field != REGULAR_SIZE_FIELD);
        fields.fold(Message::default(), |new, (_, _, bytes)| new.field(bytes))
    };
    names.contains(name).then(|| with_regular(message, without))
}

/// A `file_entry` with a new `reg_file_entry`.
fn with_regular(message: &[u8], new: impl Fn(&[u8]) -> Message) -> Vec<u8> {
    let entry =
        Fields(message).with_bytes().fold(Message::default(), |entry, (field, value, bytes)| match (field, value) {
            (REGULAR_FILE_FIELD, FieldValue::Bytes(regular)) => {
                entry.bytes(REGULAR_FILE_FIELD, &new(regular).encoded())
            }
            _ => entry.field(bytes),
        });
    entry.encoded()
}

/// The number of a file that has lost its name, from its `remap_file_path_entry`.
fn lost(message: &[u8]) -> Option<u64> {
    [LINKED_REMAP, GHOST_REMAP]
        .contains(&Fields(message).number_in(REMAP_TYPE_FIELD)?)
        .then(|| Fields(message).number_in(REMAP_ORIGINAL_FIELD))?
}

fn decode(files: &[u8], remaps: &[u8]) -> FilesImage {
    let files: BTreeMap<u64, RegularFile<'_>> =
        messages(files, FILES_MAGIC).filter_map(regular).map(|file| (file.id, file)).collect();
    let named = |file: &RegularFile<'_>| Some((std::str::from_utf8(file.name).ok()?.to_owned(), file.size?));
    let linked = messages(remaps, REMAPS_MAGIC).filter_map(linked);
    let links = linked.filter_map(|(of, found_by)| {
        let name = |id| Some(PathBuf::from(OsStr::from_bytes(files.get(id)?.name)));
        Some(RemappedFile { of: name(&of)?, name: name(&found_by)?, length: files.get(&of)?.size })
    });
    FilesImage { lengths: files.values().filter_map(named).collect(), links: links.collect() }
}

/// The messages of a file with this second magic number, up to the first incomplete one.
pub(crate) fn messages(bytes: &[u8], magic: [u8; 4]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes.strip_prefix(&IMAGE_FILE_MAGIC).and_then(|rest| rest.strip_prefix(&magic)).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk()?;
        let (message, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after;
        Some(message)
    })
}

/// The fields of a `file_entry` for a regular file.
fn regular(message: &[u8]) -> Option<RegularFile<'_>> {
    let entry = Fields(message).bytes_in(REGULAR_FILE_FIELD)?;
    let mut file = RegularFile::default();
    for (number, value) in Fields(entry) {
        match (number, value) {
            (REGULAR_ID_FIELD, FieldValue::Number(id)) => file.id = id,
            (REGULAR_NAME_FIELD, FieldValue::Bytes(bytes)) => file.name = bytes,
            (REGULAR_SIZE_FIELD, FieldValue::Number(bytes)) => file.size = Some(bytes),
            _ => {}
        }
    }
    (!file.name.is_empty()).then_some(file)
}

/// From a `remap_file_path_entry` about names: the number of the file, and the number of the entry whose name it has now.
fn linked(message: &[u8]) -> Option<(u64, u64)> {
    let number = |field| Fields(message).number_in(field);
    (number(REMAP_TYPE_FIELD)? == LINKED_REMAP).then_some((number(REMAP_ORIGINAL_FIELD)?, number(REMAP_TARGET_FIELD)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic numbers and messages, as CRIU 4.2.1 writes them.
    fn file(magic: [u8; 4], messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = [IMAGE_FILE_MAGIC, magic].concat();
        for message in messages {
            bytes.extend((message.len() as u32).to_le_bytes());
            bytes.extend(message);
        }
        bytes
    }

    /// A pipe, two regular files, one that has lost its name, and its new link.
    fn files() -> Vec<u8> {
        let regular = |id: u8, name: &str, size: &[u8]| {
            let mut entry = vec![8, id, 16, 0, 24, 0, 42, 10, 8, 0, 16, 0, 24, 0, 32, 0, 40, 0, 0x32, name.len() as u8];
            entry.extend(name.bytes());
            if !size.is_empty() {
                entry.extend([&[0x40], size, &[0x50, 0xed, 0x83, 0x02]].concat());
            }
            let mut message = vec![8, 1, 16, id, 0x1a, entry.len() as u8];
            message.extend(entry);
            message
        };
        let pipe = vec![8, 2, 16, 1, 0x92, 1, 4, 8, 1, 16, 9];
        let (lost, link) = (regular(4, "/s/lost", &[32]), regular(5, "/s/link_remap.5", &[]));
        let (a, b) = (regular(2, "/tmp/a", &[0xe0, 0x84, 0x01]), regular(3, "/b", &[0]));
        file(FILES_MAGIC, &[pipe, a, b, lost, link])
    }

    /// The lost name, and a file without any.
    fn remaps() -> Vec<u8> {
        file(REMAPS_MAGIC, &[vec![8, 4, 16, 5, 24, 0], vec![8, 3, 16, 1, 24, 1]])
    }

    #[test]
    fn names_and_lengths_are_found() {
        let image = decode(&files(), &remaps());
        let lengths = [("/b".to_owned(), 0), ("/s/lost".to_owned(), 32), ("/tmp/a".to_owned(), 0x4260)];
        assert_eq!(image.lengths, lengths.into());
        assert_eq!(
            image.links,
            [RemappedFile { of: "/s/lost".into(), name: "/s/link_remap.5".into(), length: Some(32) }]
        );
        assert_eq!(decode(b"no image at all", &remaps()), FilesImage::default());
        assert_eq!(decode(&files(), &[]).links, []);
    }

    fn to(from: &str, is_lost: bool) -> RenamedFile {
        RenamedFile { from: from.into(), is_lost, to: "/elsewhere/than/before".into() }
    }

    #[test]
    fn a_renamed_file_has_its_new_name_and_all_else_stays() {
        let (new, remaps_too) = with_names(&files(), &remaps(), &[to("/tmp/a", false)]).unwrap();
        let image = decode(&new, &remaps());
        assert_eq!(image.lengths.get("/elsewhere/than/before"), Some(&0x4260));
        assert!(!image.lengths.contains_key("/tmp/a") && image.lengths.contains_key("/s/lost"));
        assert_eq!(image.links, decode(&files(), &remaps()).links);
        assert_eq!(remaps_too, remaps());
        assert_eq!(with_names(&files(), &remaps(), &[]).unwrap(), (files(), remaps()));
    }

    #[test]
    fn a_file_without_a_name_gets_one_and_needs_no_content_of_criu_s() {
        let (new, remaps_too) = with_names(&files(), &remaps(), &[to("/b", true), to("/tmp/a", true)]).unwrap();
        let image = decode(&new, &remaps_too);
        assert_eq!(image.lengths.get("/elsewhere/than/before"), Some(&0));
        assert!(image.lengths.contains_key("/tmp/a"), "it has a name, so it is another file");
        assert_eq!(remaps_too, file(REMAPS_MAGIC, &[vec![8, 4, 16, 5, 24, 0]]));
        let (_, remaps_too) = with_names(&files(), &remaps(), &[to("/s/lost", true)]).unwrap();
        assert_eq!(remaps_too, file(REMAPS_MAGIC, &[vec![8, 3, 16, 1, 24, 1]]));
    }

    #[test]
    fn a_file_that_is_not_understood_is_not_rewritten() {
        assert_eq!(with_names(&files()[..files().len() - 1], &remaps(), &[]), Err("files.img"));
        assert_eq!(with_names(&files(), b"nonsense", &[]), Err("remap-fpath.img"));
    }

    #[test]
    fn damage_is_survived_and_invents_no_file() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize
        };
        for _ in 0..50_000 {
            let mut copies = [files(), remaps()];
            for copy in &mut copies {
                let at = random() % copy.len();
                copy[at] = random() as u8;
                copy.truncate(random() % (copy.len() + 1));
            }
            let image = decode(&copies[0], &copies[1]);
            assert!(image.lengths.len() <= 4 && image.links.len() <= 2);
        }
    }
}
