//! CRIU's image files for one restore: a folder of links to the files of a dump, with some of them rewritten.
//!
//! CRIU restores a standard stream as the kind of file that it was. A terminal needs a terminal with the session that it had, and
//! one open file that served as input, output and error stays one. So this module rewrites every descriptor of a standard stream,
//! process by process, into a regular file. Its name stands for a stream of the restoring side (`--inherit-fd`). CRIU passes that
//! stream on unopened, whatever it is.
//!
//! | at the dump | after the rewriting |
//! |---|---|
//! | terminal whose master belongs to no process of the dump | the restoring side's stream of the same number |
//! | `/dev/tty` | the restoring side's `/dev/tty`; one of its streams where it has none |
//! | pipe, socket, or regular file of standard output or error | the restoring side's stream of the same number |
//! | a duplicate at another number | the stream of its kind: for reading, for writing, a terminal for both |
//! | regular file of standard input | unchanged: CRIU opens it at its path and offset |
//! | two ends of a connection of unix sockets | the one that is to make both stands behind the other |
//! | lease that another open is breaking | left out (`process/descriptors/leases.rs`) |
//! | regular file that is cut back before the job goes on | without its length, which CRIU would miss |
//! | periodic timerfd with an expiry that was not read | armed for its next period; CRIU finds no time left and would disarm it |
//! | timerfd that was set to a point in time | set by the time left; CRIU adds whole seconds of the clock, so it would expire early |
//!
//! The rule: the dump stays as it is. A malformed message is copied as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use katydid_scratch::private;

use crate::criu::files_img::{
    FILES_MAGIC, IMAGE_FILE_MAGIC, REGULAR_FILE_FIELD, UNIX_SOCKET_FIELD, bounded, bounded_if_any, messages, unix_pair,
};
use crate::criu::protobuf::{FieldValue, Fields, Message};
use crate::criu::{filelocks_img, files_img};
use crate::process::stdio::StandardStream;
use crate::process::terminals::Modes;

/// The second magic numbers of `fdinfo-N.img` and `tty-info.img`.
const FDINFO_MAGIC: [u8; 4] = [0x32, 0x37, 0x21, 0x56];
const TTY_INFO_MAGIC: [u8; 4] = [0x36, 0x30, 0x45, 0x59];
/// The type of a regular file, `fd_types.REG`.
const TYPE_REGULAR: u64 = 1;
/// Fields of `file_entry`: type, id, and one field for each kind of file.
const FILE_TYPE_FIELD: u64 = 1;
const FILE_ID_FIELD: u64 = 2;
const FILE_INET_FIELD: u64 = 4;
const FILE_TIMER_FIELD: u64 = 12;
const FILE_PIPE_FIELD: u64 = 18;
const FILE_TERMINAL_FIELD: u64 = 19;
/// `fdinfo_entry`: id, type, descriptor number.
const FDINFO_ID_FIELD: u64 = 1;
const FDINFO_TYPE_FIELD: u64 = 3;
const FDINFO_DESCRIPTOR_FIELD: u64 = 4;
/// `TtyType`: `CONSOLE`, `VT`, `CTTY` of a terminal of the job's own, `SERIAL`.
const REOPENED_TTY_TYPES: [u64; 4] = [2, 3, 4, 6];
/// The kernel device number of `/dev/tty`.
const DEV_TTY_NUMBER: u64 = 0x500;
/// The stream number that stands for the controlling terminal, beside 0 to 2.
const CONTROLLING_STREAM: usize = 3;
/// Flags by which a timerfd was set: `TFD_TIMER_ABSTIME` and `TFD_TIMER_CANCEL_ON_SET`.
const TIMER_ABSOLUTE_FLAG: u64 = 1;
const TIMER_CANCEL_FLAG: u64 = 2;
/// Access mode of an open file's flags.
const ACCESS_MODE_MASK: u64 = 3;
const WRITE_ONLY_MODE: u64 = 1;

/// A copy of a dump's files, changed for the restore.
#[derive(Debug)]
pub(crate) struct RestoreImages {
    /// The folder for CRIU.
    pub(crate) folder: PathBuf,
    /// Streams that CRIU inherits: 0 to 2, and [`CONTROLLING_STREAM`].
    pub(crate) streams: Vec<usize>,
    /// Offset of standard input, where a regular file outside the job's mount namespace has to be opened at its path.
    pub(crate) input_offset: Option<u64>,
    /// Modes of the terminal at the checkpoint, if a standard stream was one.
    pub(crate) modes: Option<Modes>,
}

/// What the restoring side has for its streams 0 to 2 and its controlling terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfferedStreams {
    /// Which of the standard streams are terminals.
    pub(crate) is_terminal: [bool; 3],
    /// Whether `/dev/tty` opens: there is a controlling terminal.
    pub(crate) has_controlling: bool,
}

/// A terminal of `tty-info.img`.
#[derive(Debug)]
struct Terminal {
    device: u64,
    file_system: u64,
    modes: Option<Modes>,
    /// Whether CRIU restores it itself, unless it was a standard stream. CRIU does so for a console or line that is opened again,
    /// and for a pseudo-terminal both of whose ends are in the dump.
    is_internal: bool,
}

/// How the descriptors of one open file are mapped to streams of the restoring side.
#[derive(Debug)]
struct DescriptorSplit {
    /// Standard streams that this file was.
    of: Vec<usize>,
    /// The stream for every descriptor with another number.
    other: usize,
    /// File ids by stream; the first one is the id of the dump.
    ids: Vec<(usize, u64)>,
}

impl RestoreImages {
    /// Rewrites the dump in `from` into the empty folder `to`. `then` says what the standard streams were. `makers` are inodes of
    /// unix sockets that have to follow their peers (`process/descriptors/peers.rs`). `longer` are files that still are longer
    /// than at the dump.
    ///
    /// # Errors
    ///
    /// A file cannot be read, written or linked.
    pub(crate) fn new(
        from: &Path,
        to: PathBuf,
        then: &[StandardStream; 3],
        offered: OfferedStreams,
        (makers, longer): (&[u64], &BTreeSet<&str>),
    ) -> io::Result<Self> {
        let files = bounded(&from.join("files.img"))?;
        let terminals = terminals(&bounded_if_any(&from.join("tty-info.img"))?);
        let mut splits = BTreeMap::new();
        let mut input_offset = None;
        for message in messages(&files, FILES_MAGIC) {
            let Some((id, split)) = split(message, then, &terminals, offered) else { continue };
            if matches!(then[0], StandardStream::Outside { .. }) && split.of.contains(&0) {
                input_offset = Fields(message).bytes_in(REGULAR_FILE_FIELD).and_then(|file| Fields(file).number_in(3));
            }
            splits.insert(id, split);
        }
        let mut written = ["files.img", "tty-info.img", filelocks_img::FILE_NAME].map(str::to_owned).to_vec();
        let mut next =
            messages(&files, FILES_MAGIC).filter_map(|file| Fields(file).number_in(FILE_ID_FIELD)).max().unwrap_or(0)
                + 1;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("fdinfo-") && name.ends_with(".img") {
                let bytes = descriptors(&bounded(&from.join(&name))?, &mut splits, &mut next);
                private::write(&to.join(&name), bytes)?;
                written.push(name);
            } else if !written.contains(&name) {
                symlink(from.join(&name), to.join(&name))?;
            }
        }
        private::write(&to.join("files.img"), rewritten_files(&files, &splits, makers, longer))?;
        let tty_info = bounded_if_any(&from.join("tty-info.img"))?;
        if !tty_info.is_empty() {
            private::write(&to.join("tty-info.img"), internal_terminals(&tty_info, &files, &splits))?;
        }
        let locks = bounded_if_any(&from.join(filelocks_img::FILE_NAME))?;
        if !locks.is_empty() {
            let target = to.join(filelocks_img::FILE_NAME);
            match filelocks_img::without_broken(&locks) {
                Some(others) => private::write(&target, others)?,
                // CRIU reports what is wrong with it.
                None => symlink(from.join(filelocks_img::FILE_NAME), target)?,
            }
        }
        let mut streams: Vec<usize> = splits.values().flat_map(|split| split.ids.iter().map(|(to, _)| *to)).collect();
        streams.sort_unstable();
        streams.dedup();
        let modes = terminals.values().filter(|terminal| is_standard(terminal, then)).find_map(|it| it.modes.clone());
        Ok(Self { folder: to, streams, input_offset, modes })
    }

    /// The arguments by which CRIU inherits descriptor `fd` as stream `stream`.
    pub(crate) fn inherit(stream: usize, fd: i32) -> [OsString; 2] {
        ["--inherit-fd".into(), format!("fd[{fd}]:{}", name(stream)).into()]
    }
}

/// Name of the file that stands for a stream. CRIU skips the first letter of a path.
fn name(stream: usize) -> String {
    format!("katydid-stream-{stream}")
}

/// The terminals of `tty-info.img`, by id.
fn terminals(bytes: &[u8]) -> BTreeMap<u64, Terminal> {
    let read = |message: &[u8]| {
        let number = |field| Fields(message).number_in(field);
        let modes = Fields(message).bytes_in(9).and_then(|termios| modes(termios, number(7)?));
        let (device, file_system) = (number(8)?, number(13).unwrap_or(0));
        let is_internal = REOPENED_TTY_TYPES.contains(&number(2)?);
        Some((number(1)?, Terminal { device, file_system, modes, is_internal }))
    };
    let mut terminals: BTreeMap<u64, Terminal> = messages(bytes, TTY_INFO_MAGIC).filter_map(read).collect();
    // CRIU numbers the two ends of a pseudo-terminal 2n and 2n + 1; the master is the odd one.
    let pairs: Vec<u64> = messages(bytes, TTY_INFO_MAGIC)
        .filter(|message| Fields(message).bytes_in(12).is_some())
        .filter_map(|message| Fields(message).number_in(1))
        .filter(|id| id % 2 == 1)
        .flat_map(|id| [id - 1, id])
        .collect();
    for (id, terminal) in &mut terminals {
        terminal.is_internal |= pairs.contains(id);
    }
    terminals
}

/// Reads the modes from a `termios_entry`, with the terminal's foreground group.
fn modes(termios: &[u8], group: u64) -> Option<Modes> {
    let flag = |field| Fields(termios).number_in(field).map(|value| value as u32);
    let keys = Fields(termios).filter_map(|(field, value)| match (field, value) {
        (8, FieldValue::Number(key)) => Some(key as u8),
        _ => None,
    });
    Some(Modes {
        group: u32::try_from(group).ok()?,
        input: flag(1)?,
        output: flag(2)?,
        local: flag(4)?,
        keys: keys.collect(),
    })
}

fn is_standard(terminal: &Terminal, then: &[StandardStream; 3]) -> bool {
    then.iter().any(|standard| is_terminal(standard, terminal))
}

fn is_terminal(standard: &StandardStream, terminal: &Terminal) -> bool {
    matches!(standard, StandardStream::Terminal { rdev, dev }
        if *rdev == terminal.device && (*dev == terminal.file_system || terminal.file_system == 0))
}

/// The id of a file of a dump, and how its descriptors are mapped; `None` for a file that stays the program's own.
fn split(
    message: &[u8],
    then: &[StandardStream; 3],
    terminals: &BTreeMap<u64, Terminal>,
    offered: OfferedStreams,
) -> Option<(u64, DescriptorSplit)> {
    let id = Fields(message).number_in(FILE_ID_FIELD)?;
    let part = |field| Fields(message).bytes_in(field);
    let streams =
        |is: &dyn Fn(&StandardStream) -> bool| (0..3).filter(|number| is(&then[*number])).collect::<Vec<usize>>();
    if let Some(file) = part(FILE_TERMINAL_FIELD) {
        let terminal = terminals.get(&Fields(file).number_in(2)?)?;
        let of = streams(&|standard| is_terminal(standard, terminal));
        // A terminal that has hung up and was no standard stream belongs to no session any more.
        let is_gone = terminal.modes.is_none() && of.is_empty();
        if terminal.is_internal && of.is_empty() || is_gone {
            return None;
        }
        let flags = Fields(file).number_in(3).unwrap_or(2);
        let is_controlling = terminal.device == DEV_TTY_NUMBER && offered.has_controlling;
        let other = if is_controlling { CONTROLLING_STREAM } else { nearest(&of, flags, offered) };
        return Some((id, DescriptorSplit { of, other, ids: Vec::new() }));
    }
    let (of, flags) = if let Some(pipe) = part(FILE_PIPE_FIELD) {
        let number = Fields(pipe).number_in(2)?;
        let is = |it: &StandardStream| matches!(it, StandardStream::Pipe { inode } if *inode == number);
        (streams(&is), Fields(pipe).number_in(3))
    } else if let Some(socket) = part(UNIX_SOCKET_FIELD).or_else(|| part(FILE_INET_FIELD)) {
        let number = Fields(socket).number_in(2)?;
        let is = |it: &StandardStream| matches!(it, StandardStream::Socket { inode } if *inode == number);
        (streams(&is), None)
    } else {
        let file = part(REGULAR_FILE_FIELD)?;
        let name = std::str::from_utf8(Fields(file).bytes_in(6)?).ok()?;
        let is = |number: &usize| match &then[*number] {
            // The program reads on at its old offset.
            StandardStream::File { path } => *number > 0 && path == name,
            outside @ StandardStream::Outside { .. } => outside.external().as_deref() == Some(name),
            _ => false,
        };
        ((0..3).filter(is).collect(), Fields(file).number_in(2))
    };
    let other = nearest(&of, flags.unwrap_or(2), offered);
    (!of.is_empty()).then_some((id, DescriptorSplit { of, other, ids: Vec::new() }))
}

/// The stream for a descriptor with another number than 0 to 2: chosen by access mode, among `of` if that has any.
fn nearest(of: &[usize], flags: u64, offered: OfferedStreams) -> usize {
    let has = |stream: &usize| of.is_empty() || of.contains(stream);
    let order: [usize; 3] = match flags & ACCESS_MODE_MASK {
        0 => [0, 1, 2],
        WRITE_ONLY_MODE => [1, 2, 0],
        _ => {
            let terminal = [0, 2, 1].into_iter().filter(has).find(|stream| offered.is_terminal[*stream]);
            if let Some(stream) = terminal {
                return stream;
            }
            [1, 2, 0]
        }
    };
    order.into_iter().find(has).unwrap_or(1)
}

impl DescriptorSplit {
    /// The id of the file for a descriptor's number. The first one asked for keeps the dump's id.
    fn id_for(&mut self, number: u64, id: u64, next: &mut u64) -> u64 {
        let stream = usize::try_from(number).ok().filter(|number| self.of.contains(number));
        // A reopened terminal is no known standard stream, and yet its number tells the stream.
        let loose =
            || usize::try_from(number).ok().filter(|number| self.of.is_empty() && *number < 3 && self.other < 3);
        let stream = stream.or_else(loose).unwrap_or(self.other);
        if let Some((_, known)) = self.ids.iter().find(|(known, _)| *known == stream) {
            return *known;
        }
        let fresh = if self.ids.is_empty() {
            id
        } else {
            *next += 1;
            *next - 1
        };
        self.ids.push((stream, fresh));
        fresh
    }
}

/// A `fdinfo-N.img` whose descriptors refer to the files of their streams.
fn descriptors(bytes: &[u8], splits: &mut BTreeMap<u64, DescriptorSplit>, next: &mut u64) -> Vec<u8> {
    let mut out = begin(FDINFO_MAGIC);
    for message in messages(bytes, FDINFO_MAGIC) {
        let number = |field| Fields(message).number_in(field);
        let split = number(FDINFO_ID_FIELD).and_then(|id| Some((id, splits.get_mut(&id)?)));
        let Some(((id, split), number)) = split.zip(number(FDINFO_DESCRIPTOR_FIELD)) else {
            push(&mut out, message);
            continue;
        };
        let id = split.id_for(number, id, next);
        push(&mut out, &replaced(message, &[(FDINFO_ID_FIELD, id), (FDINFO_TYPE_FIELD, TYPE_REGULAR)]));
    }
    out
}

fn rewritten_files(
    bytes: &[u8],
    splits: &BTreeMap<u64, DescriptorSplit>,
    makers: &[u64],
    longer: &BTreeSet<&str>,
) -> Vec<u8> {
    let mut out = begin(FILES_MAGIC);
    for message in ordered(bytes, makers) {
        let Some((id, split)) = Fields(message).number_in(FILE_ID_FIELD).and_then(|id| Some((id, splits.get(&id)?)))
        else {
            let new = as_it_was(message).or_else(|| files_img::without_length(message, longer));
            push(&mut out, &new.unwrap_or_else(|| message.to_vec()));
            continue;
        };
        // A file that no descriptor names, such as one on its way through a socket.
        let unnamed = [(split.other, id)];
        let ids = if split.ids.is_empty() { &unnamed[..] } else { &split.ids };
        for (stream, id) in ids {
            push(&mut out, &stream_entry(*id, *stream));
        }
    }
    out
}

/// The files of a dump, in which each socket in `makers` follows its peer.
fn ordered<'a>(bytes: &'a [u8], makers: &[u64]) -> Vec<&'a [u8]> {
    let mut files: Vec<&[u8]> = messages(bytes, FILES_MAGIC).collect();
    let pairs = files.iter().enumerate().filter_map(|(at, file)| Some((at, unix_pair(file)?)));
    let sockets: BTreeMap<u64, (usize, u64)> = pairs.map(|(at, (inode, peer))| (inode, (at, peer))).collect();
    for maker in makers {
        let Some((at, peer)) = sockets.get(maker) else { continue };
        if let Some((other, _)) = sockets.get(peer).filter(|(other, _)| other > at) {
            files.swap(*at, *other);
        }
    }
    files
}

/// A `file_entry` of a regular file that is inherited.
fn stream_entry(id: u64, stream: usize) -> Vec<u8> {
    let owner = (1..=5).fold(Message::default(), |owner, field| owner.number(field, 0)).encoded();
    let path = format!("/{}", name(stream));
    let file = Message::default().number(1, id).number(2, 2).number(3, 0).bytes(5, &owner).bytes(6, path.as_bytes());
    Message::default()
        .number(FILE_TYPE_FIELD, TYPE_REGULAR)
        .number(FILE_ID_FIELD, id)
        .bytes(REGULAR_FILE_FIELD, &file.encoded())
        .encoded()
}

/// The timer from which CRIU restores the original one, or `None` if the dump's does.
///
/// The reader of an expired periodic timer arms it again, and until then it has no time left: so the period is set as the time
/// left. A timer that was set to a point in time is set by the time left. CRIU would add the clock's whole seconds to that: the
/// timer would expire up to a second early, or at once if it is not armed. An armed timer that a change of the clock cancels
/// stays unchanged.
fn as_it_was(message: &[u8]) -> Option<Vec<u8>> {
    let timer = Fields(message).bytes_in(FILE_TIMER_FIELD)?;
    let number = |field| Fields(timer).number_in(field).unwrap_or(0);
    let (ticks, flags, left, period) = (number(5), number(6), (number(7), number(8)), (number(9), number(10)));
    let waits_for_reader = ticks != 0 && left == (0, 0) && period != (0, 0);
    let is_cancelled = flags & TIMER_CANCEL_FLAG != 0 && left != (0, 0);
    let is_absolute = flags & TIMER_ABSOLUTE_FLAG != 0 && !is_cancelled;
    if !waits_for_reader && !is_absolute {
        return None;
    }
    let left = if waits_for_reader { period } else { left };
    let timer = replaced(timer, &[(6, if is_absolute { 0 } else { flags }), (7, left.0), (8, left.1)]);
    let mut out = Message::default();
    for (field, value) in Fields(message) {
        out = match value {
            FieldValue::Bytes(_) if field == FILE_TIMER_FIELD => out.bytes(field, &timer),
            FieldValue::Bytes(bytes) => out.bytes(field, bytes),
            FieldValue::Number(number) => out.number(field, number),
            FieldValue::Fixed => return None,
        };
    }
    Some(out.encoded())
}

/// The terminals that CRIU restores itself: those of files that stay the program's own.
fn internal_terminals(bytes: &[u8], files: &[u8], splits: &BTreeMap<u64, DescriptorSplit>) -> Vec<u8> {
    let own = messages(files, FILES_MAGIC)
        .filter(|file| Fields(file).number_in(FILE_ID_FIELD).is_none_or(|id| !splits.contains_key(&id)));
    let own: Vec<u64> =
        own.filter_map(|file| Fields(Fields(file).bytes_in(FILE_TERMINAL_FIELD)?).number_in(2)).collect();
    let mut out = begin(TTY_INFO_MAGIC);
    for message in messages(bytes, TTY_INFO_MAGIC) {
        if Fields(message).number_in(1).is_some_and(|id| own.contains(&id)) {
            push(&mut out, message);
        }
    }
    out
}

/// The message with new numbers in these fields.
fn replaced(message: &[u8], fields: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Message::default();
    for (field, value) in Fields(message) {
        let replacement = fields.iter().find(|(key, _)| *key == field);
        out = match (value, replacement) {
            (FieldValue::Number(_), Some((_, number))) => out.number(field, *number),
            (FieldValue::Number(number), None) => out.number(field, number),
            (FieldValue::Bytes(bytes), _) => out.bytes(field, bytes),
            (FieldValue::Fixed, _) => return message.to_vec(),
        };
    }
    out.encoded()
}

fn begin(magic: [u8; 4]) -> Vec<u8> {
    [IMAGE_FILE_MAGIC, magic].concat()
}

fn push(out: &mut Vec<u8>, message: &[u8]) {
    out.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TERMINAL: OfferedStreams = OfferedStreams { is_terminal: [false; 3], has_controlling: false };

    fn written(folder: &Path, name: &str, magic: [u8; 4], list: &[Vec<u8>]) {
        let mut bytes = begin(magic);
        list.iter().for_each(|message| push(&mut bytes, message));
        fs::write(folder.join(name), bytes).unwrap();
    }

    fn entry(kind: u64, id: u64, field: u64, part: Message) -> Vec<u8> {
        Message::default()
            .number(FILE_TYPE_FIELD, kind)
            .number(FILE_ID_FIELD, id)
            .bytes(field, &part.encoded())
            .encoded()
    }

    fn descriptor(file: u64, kind: u64, number: u64) -> Vec<u8> {
        Message::default()
            .number(FDINFO_ID_FIELD, file)
            .number(2, 0)
            .number(FDINFO_TYPE_FIELD, kind)
            .number(FDINFO_DESCRIPTOR_FIELD, number)
            .encoded()
    }

    fn terminal(id: u64, device: u64, is_pseudo: bool) -> Vec<u8> {
        let termios = (1..=7).fold(Message::default(), |termios, field| termios.number(field, field)).number(8, 3);
        let info = Message::default().number(1, id).number(2, 5).number(6, 77).number(7, 88).number(8, device);
        let info = info.bytes(9, &termios.encoded()).number(13, 24);
        if is_pseudo { info.bytes(12, &Message::default().number(1, id / 2).encoded()) } else { info }.encoded()
    }

    /// Writes a dump. File 1 is a terminal, all three streams and descriptor 9; files 2 and 3 are the two ends of one of the
    /// program's own. File 4 has standard input's name at another descriptor, and file 5 is a timer.
    fn dump(folder: &Path, timer: [u64; 6]) {
        let tty = |id, info| {
            entry(11, id, FILE_TERMINAL_FIELD, Message::default().number(1, id).number(2, info).number(3, 2))
        };
        let regular = Message::default().number(1, 4).number(2, 0).number(3, 7).bytes(6, b"/in");
        let clock =
            (5..).zip(timer).fold(Message::default().number(1, 5), |timer, (field, value)| timer.number(field, value));
        let files = [
            tty(1, 0),
            tty(2, 6),
            tty(3, 7),
            entry(1, 4, REGULAR_FILE_FIELD, regular),
            entry(17, 5, FILE_TIMER_FIELD, clock),
        ];
        written(folder, "files.img", FILES_MAGIC, &files);
        let infos = [terminal(0, 0x8801, false), terminal(6, 0x8803, true), terminal(7, 0x502, true)];
        written(folder, "tty-info.img", TTY_INFO_MAGIC, &infos);
        let numbers = [(1, 11, 0), (1, 11, 1), (1, 11, 2), (1, 11, 9), (3, 11, 4), (4, 1, 5)];
        let list: Vec<Vec<u8>> = numbers.iter().map(|(file, kind, number)| descriptor(*file, *kind, *number)).collect();
        written(folder, "fdinfo-2.img", FDINFO_MAGIC, &list);
        fs::write(folder.join("pages-1.img"), "pages").unwrap();
    }

    fn rewritten(
        then: &[StandardStream; 3],
        offered: OfferedStreams,
        timer: [u64; 6],
    ) -> (tempfile::TempDir, RestoreImages) {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        dump(&from, timer);
        let images = RestoreImages::new(&from, to, then, offered, (&[], &BTreeSet::new())).unwrap();
        (folder, images)
    }

    /// The name of the regular file behind each descriptor; `None` for another kind of file.
    fn regular_files(images: &RestoreImages) -> Vec<(u64, Option<String>)> {
        let files = fs::read(images.folder.join("files.img")).unwrap();
        let list = fs::read(images.folder.join("fdinfo-2.img")).unwrap();
        let name = |id: u64| {
            let file = messages(&files, FILES_MAGIC).find(|file| Fields(file).number_in(FILE_ID_FIELD) == Some(id))?;
            let name = Fields(Fields(file).bytes_in(REGULAR_FILE_FIELD)?).bytes_in(6)?;
            Some(String::from_utf8_lossy(name).into_owned())
        };
        let of = |message: &[u8]| {
            (Fields(message).number_in(FDINFO_DESCRIPTOR_FIELD).unwrap(), name(Fields(message).number_in(1).unwrap()))
        };
        messages(&list, FDINFO_MAGIC).map(of).collect()
    }

    fn stream(number: usize) -> Option<String> {
        Some(format!("/katydid-stream-{number}"))
    }

    #[test]
    fn each_descriptor_of_a_terminal_gets_the_stream_of_its_number() {
        let then = [0, 1, 2].map(|_| StandardStream::Terminal { rdev: 0x8801, dev: 24 });
        let (_folder, images) = rewritten(&then, NO_TERMINAL, [0; 6]);
        let own = Some("/in".to_owned());
        let expected = [(0, stream(0)), (1, stream(1)), (2, stream(2)), (9, stream(1)), (4, None), (5, own)];
        assert_eq!(regular_files(&images), expected);
        assert_eq!(images.streams, [0, 1, 2]);
        assert_eq!(images.modes.as_ref().map(|modes| (modes.group, modes.local)), Some((88, 4)));
        let left = fs::read(images.folder.join("tty-info.img")).unwrap();
        let left: Vec<u64> = messages(&left, TTY_INFO_MAGIC).filter_map(|info| Fields(info).number_in(1)).collect();
        assert_eq!(left, [6, 7]);
        assert_eq!(fs::read_to_string(images.folder.join("pages-1.img")).unwrap(), "pages");
        let offered = OfferedStreams { is_terminal: [false, false, true], has_controlling: false };
        let (_folder, images) = rewritten(&then, offered, [0; 6]);
        assert_eq!(regular_files(&images)[3], (9, stream(2)));
    }

    #[test]
    fn a_file_is_replaced_as_output_and_stays_as_input() {
        let file = || StandardStream::File { path: "/in".into() };
        let (_folder, images) = rewritten(&[file(), StandardStream::Other, StandardStream::Other], NO_TERMINAL, [0; 6]);
        assert_eq!(regular_files(&images)[5], (5, Some("/in".to_owned())));
        let (_folder, images) = rewritten(&[StandardStream::Other, file(), StandardStream::Other], NO_TERMINAL, [0; 6]);
        assert_eq!(regular_files(&images)[5], (5, stream(1)));
    }

    #[test]
    fn connecting_socket_is_ordered_after_its_peer() {
        let socket = |inode, peer| {
            entry(6, inode, UNIX_SOCKET_FIELD, Message::default().number(1, inode).number(2, inode).number(8, peer))
        };
        let list = [socket(1, 4), socket(2, 3), socket(3, 2), socket(4, 1), socket(5, 0)];
        let mut bytes = begin(FILES_MAGIC);
        list.iter().for_each(|message| push(&mut bytes, message));
        let order = |makers: &[u64]| -> Vec<u64> {
            ordered(&bytes, makers).into_iter().filter_map(|file| Fields(file).number_in(FILE_ID_FIELD)).collect()
        };
        assert_eq!(order(&[]), [1, 2, 3, 4, 5]);
        assert_eq!(order(&[1, 3, 5, 6]), [4, 2, 3, 1, 5]);
        assert_eq!(order(&[2]), [1, 3, 2, 4, 5]);
    }

    /// Flags of a timer's setting and the time left that CRIU gets. `timer`: expiries, flags, time left, period.
    fn restored_timer(timer: [u64; 6]) -> [u64; 3] {
        let (_folder, images) = rewritten(&[const { StandardStream::Other }; 3], NO_TERMINAL, timer);
        let files = fs::read(images.folder.join("files.img")).unwrap();
        let file = messages(&files, FILES_MAGIC).find(|file| Fields(file).number_in(FILE_ID_FIELD) == Some(5)).unwrap();
        let timer = Fields(file).bytes_in(FILE_TIMER_FIELD).unwrap();
        [6, 7, 8].map(|field| Fields(timer).number_in(field).unwrap())
    }

    #[test]
    fn a_timer_that_was_not_read_is_armed_for_a_period() {
        assert_eq!(restored_timer([3, 0, 0, 0, 9, 40]), [0, 9, 40]);
        assert_eq!(restored_timer([3, 1, 0, 0, 9, 40]), [0, 9, 40]);
        assert_eq!(restored_timer([0, 0, 0, 0, 9, 40]), [0, 0, 0]);
        assert_eq!(restored_timer([3, 0, 5, 6, 9, 40]), [0, 5, 6]);
    }

    #[test]
    fn timer_set_to_a_point_in_time_is_set_by_the_time_left() {
        assert_eq!(restored_timer([0, 1, 5, 6, 0, 0]), [0, 5, 6]);
        assert_eq!(restored_timer([0, 1, 0, 0, 0, 0]), [0, 0, 0]);
        assert_eq!(restored_timer([1, 3, 0, 0, 0, 0]), [0, 0, 0]);
        assert_eq!(restored_timer([0, 3, 5, 6, 0, 0]), [3, 5, 6]);
    }
}
