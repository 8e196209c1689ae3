//! Katydid's own environment variables: the list of all, the values of each, and the nearest name of a misspelled one.
//!
//! If a name begins with `KATYDID_` and is not in [`KNOWN_SETTINGS`], it is reported once on standard error: by the command
//! or, if no command has started the program, by the library. `docs/reference/environment.md` has its table from here; tests
//! hold the sources and that page to the list.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::time::Duration;

use crate::state::units;

/// The prefix of all their names.
pub const VARIABLE_PREFIX: &str = "KATYDID_";
/// Names that the command has reported already, separated by commas, so that the program's libraries do not report them
/// again.
pub const REPORTED_VARIABLE: &str = "KATYDID_REPORTED";
/// The key of the command's reservation at the server, for its program's session.
pub const RESERVATION_VARIABLE: &str = "KATYDID_RESERVATION";
/// How long a server may take to answer a hello: a worker that has to start its driver first needs a second or two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Shortest silence limit of a link: busy workers send a sign of life once a second.
pub const MIN_SILENCE_LIMIT: Duration = Duration::from_secs(3);
/// Longest silence limit: the system counts its probes of a silent connection.
pub const MAX_SILENCE_LIMIT: Duration = Duration::from_secs(277 * 3600);
/// Longest name of a session, in bytes, that fits into the first message to a server.
pub const MAX_SESSION_NAME_BYTES: usize = 4096;
/// Smallest limit of device memory: CUDA programs get memory 2 MiB at a time, so with less their first allocation fails.
pub const MIN_DEVICE_MEMORY_BYTES: u64 = 2 << 20;
/// Most characters of a wrong value that a message repeats.
const MAX_VALUE_CHARS: usize = 64;
/// Most changes between a name and the one that was probably meant.
const MAX_EDIT_DISTANCE: usize = 4;

/// Processes that read a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingReader {
    /// The libraries in a program, and the commands that start one.
    Program,
    /// The `katydid` command itself.
    Command,
    /// `katydid serve`, a private server, and their workers.
    Server,
    /// softcuda, in a worker or in a program.
    Soft,
    /// Set by Katydid for its own processes.
    Own,
    /// Tests, and their users in a search for a fault.
    Tests,
}

impl SettingReader {
    fn title(self) -> &'static str {
        match self {
            Self::Program => "programs",
            Self::Command => "commands",
            Self::Server => "servers",
            Self::Soft => "softcuda",
            Self::Own => "Katydid sets it",
            Self::Tests => "tests",
        }
    }
}

/// The kind of a variable's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingValue {
    /// Any text is accepted.
    Text,
    /// A text that fits into the first message to a server.
    Name,
    /// The path of a file or folder.
    Path,
    /// An existing folder.
    Folder,
    /// A folder that is made if it does not exist.
    NewFolder,
    /// A folder that is made if it does not exist, by a path that does not depend on the current folder.
    AbsoluteFolder,
    /// An existing file.
    File,
    /// An existing file or folder.
    FileOrFolder,
    /// Libraries, separated by colons.
    Libraries,
    /// A server address; the code that connects reports what is wrong with it.
    Address,
    /// A number of bytes, with an optional suffix, such as `512M`.
    Size,
    /// Bytes of device memory, as a limit.
    DeviceMemory,
    /// A time without a sign of life, as a limit.
    Silence,
    /// A whole number within two bounds.
    Number(u64, u64),
    /// One word of a list.
    Words(&'static [&'static str]),
}

impl SettingValue {
    /// Values that the setting accepts, as text for a message.
    pub fn expected(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Name => format!("a text of at most {MAX_SESSION_NAME_BYTES} bytes"),
            Self::Path => "a path".to_owned(),
            Self::Folder => "a folder".to_owned(),
            Self::NewFolder => "a folder, which is made if it is not there".to_owned(),
            Self::AbsoluteFolder => "a folder by its whole path, which is made if it is not there".to_owned(),
            Self::File => "a file".to_owned(),
            Self::FileOrFolder => "a file or folder".to_owned(),
            Self::Libraries => "libraries, with colons between them".to_owned(),
            Self::Address => "unix:PATH, tcp://HOST:PORT, tls://HOST:PORT or vsock://MACHINE:PORT".to_owned(),
            Self::Size => "a size such as 512M or 16GiB".to_owned(),
            Self::DeviceMemory => "a size of 2M or more, such as 512M or 16GiB".to_owned(),
            Self::Silence => "a time from 3s to 277h, such as 60s, or 0s for no limit".to_owned(),
            Self::Number(least, u64::MAX) => format!("a number from {least} on"),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Words([one]) => format!("{one}, or not set"),
            Self::Words(words) => {
                let (last, first) = words.split_last().map_or(("", &[][..]), |(last, first)| (*last, first));
                format!("{} or {last}", first.join(", "))
            }
        }
    }

    /// Returns whether it is a path, or several: those are bytes, and everything else is text.
    fn is_path(self) -> bool {
        matches!(
            self,
            Self::Path
                | Self::Folder
                | Self::NewFolder
                | Self::AbsoluteFolder
                | Self::File
                | Self::FileOrFolder
                | Self::Libraries
        )
    }

    /// Returns whether it accepts `text`; the caller checks that named files exist.
    pub fn takes(self, text: &str) -> bool {
        match self {
            Self::Text
            | Self::Path
            | Self::Address
            | Self::Folder
            | Self::NewFolder
            | Self::File
            | Self::FileOrFolder
            | Self::Libraries => true,
            Self::Name => text.len() <= MAX_SESSION_NAME_BYTES,
            Self::AbsoluteFolder => text.starts_with('/'),
            Self::Size => units::size(text).is_ok(),
            Self::DeviceMemory => units::size(text).is_ok_and(|bytes| bytes >= MIN_DEVICE_MEMORY_BYTES),
            Self::Silence => silence(text).is_some(),
            Self::Number(least, most) => text.parse().is_ok_and(|number: u64| (least..=most).contains(&number)),
            Self::Words(words) => words.contains(&text),
        }
    }
}

/// An environment variable of Katydid's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Name of the variable, such as `KATYDID_SERVER`.
    pub name: &'static str,
    /// Which processes read it.
    pub reader: SettingReader,
    /// Values that the variable may have.
    pub value: SettingValue,
    /// Meaning of the variable, for the reference page.
    pub meaning: &'static str,
}

const fn setting(name: &'static str, reader: SettingReader, value: SettingValue, meaning: &'static str) -> Setting {
    Setting { name, reader, value, meaning }
}

const ANY_NUMBER: SettingValue = SettingValue::Number(0, u64::MAX);
const VALUE_ONE: SettingValue = SettingValue::Words(&["1"]);

/// The variables of Katydid, in the order of the reference page.
pub const KNOWN_SETTINGS: &[Setting] = &[
    setting("KATYDID_SERVER", SettingReader::Program, SettingValue::Address, "the server, unless `--server` names one"),
    setting(
        "KATYDID_CERTS",
        SettingReader::Program,
        SettingValue::Folder,
        "the folder of certificates for `tls://`, unless `--certs` names one",
    ),
    setting("KATYDID_NAME", SettingReader::Program, SettingValue::Name, "the session's name, as `--name`"),
    setting(
        "KATYDID_MEMORY",
        SettingReader::Program,
        SettingValue::DeviceMemory,
        "most device memory of the program, as `--memory`",
    ),
    setting(
        "KATYDID_LINK",
        SettingReader::Program,
        SettingValue::Words(&["shm", "stream"]),
        "how calls travel, as `--link`",
    ),
    setting(
        "KATYDID_LINK_TIMEOUT",
        SettingReader::Program,
        SettingValue::Silence,
        "how long a link may be silent, as `--link-timeout`",
    ),
    setting(
        "KATYDID_CONNECT_TIMEOUT",
        SettingReader::Program,
        SettingValue::Silence,
        "how long a server may take to give a session; 0s stands for the longest time ([Limits](limits.md#times))",
    ),
    setting(
        "KATYDID_LANES",
        SettingReader::Program,
        SettingValue::Number(0, 16),
        "bulk connections, which carry large copies over sockets, as `--lanes`; 0 for none; unless set half the \
         processors, 4 at least and 8 at most \
         ([Transport](../explanation/transport.md#bulk-on-sockets))",
    ),
    setting(
        "KATYDID_PACKING",
        SettingReader::Program,
        SettingValue::Words(&["off", "auto", "always"]),
        "whether large copies are packed, as `--packing`",
    ),
    setting(
        "KATYDID_REQUIRE_GPU",
        SettingReader::Program,
        SettingValue::Words(&["0", "1"]),
        "softcuda will not do, as `--require-gpu`",
    ),
    setting(
        "KATYDID_CACHE",
        SettingReader::Program,
        SettingValue::AbsoluteFolder,
        "the folder of what is kept for later programs; `$XDG_CACHE_HOME/katydid` or `~/.cache/katydid` unless set",
    ),
    setting(
        "KATYDID_LOG",
        SettingReader::Program,
        SettingValue::Text,
        "any text: the CUDA and NVML libraries report private tables and slots that they lack, and softcuda faults, on standard error; servers and workers have no log level",
    ),
    setting(
        "KATYDID_LIB",
        SettingReader::Command,
        SettingValue::Folder,
        "the folder that holds `shim/` and `soft/`, in place of `../lib/katydid`",
    ),
    setting(
        "KATYDID_CRIU",
        SettingReader::Command,
        SettingValue::FileOrFolder,
        "another CRIU: a program, or a folder such as `lib/katydid/criu`",
    ),
    setting(
        "KATYDID_OPENCL_DRIVERS",
        SettingReader::Server,
        SettingValue::Libraries,
        "libraries of OpenCL drivers, and no others; the loader looks for a name without a folder",
    ),
    setting(
        "KATYDID_OPENCL_UNSHARE",
        SettingReader::Server,
        SettingValue::Words(&["off"]),
        "`off`: do not unshare zero-copy buffers before a dump; only for measurements ([OpenCL](../explanation/opencl.md))",
    ),
    setting(
        "KATYDID_OPENCL_COPIES",
        SettingReader::Server,
        SettingValue::Words(&["process", "device", "host"]),
        "the one way by which a checkpoint copies contents, to compare ([OpenCL](../explanation/opencl.md))",
    ),
    setting(
        "KATYDID_OPENCL_MAPS",
        SettingReader::Server,
        SettingValue::Words(&["driver", "copy"]),
        "the one way by which buffers are mapped, to compare ([OpenCL](../explanation/opencl.md))",
    ),
    setting(
        "KATYDID_OPENCL_ZERO_COPY",
        SettingReader::Server,
        SettingValue::Words(&["off"]),
        "buffers lie in the driver's own memory, to compare ([OpenCL](../explanation/opencl.md))",
    ),
    setting(
        "KATYDID_OPENCL_STAGING",
        SettingReader::Server,
        SettingValue::Words(&["plain", "pinned"]),
        "whether drivers know the staging area, to compare ([OpenCL](../explanation/opencl.md))",
    ),
    setting(
        "KATYDID_SNAPSHOT_HASH",
        SettingReader::Server,
        SettingValue::Words(&["kernel"]),
        "kernels hash the memory of software devices too",
    ),
    setting(
        "KATYDID_SOFT_DEVICES",
        SettingReader::Soft,
        SettingValue::Number(1, 16),
        "number of devices; 1 unless set",
    ),
    setting(
        "KATYDID_SOFT_MEMORY",
        SettingReader::Soft,
        SettingValue::Size,
        "bytes of each device, cut to 2 MiB at least and 256 GiB at most; half of the machine's memory unless set",
    ),
    setting(
        "KATYDID_SOFT_SHARED",
        SettingReader::Soft,
        SettingValue::NewFolder,
        "the folder of processes that share the memory of the devices; each has its own unless set",
    ),
    setting(
        "KATYDID_SOFT_RACES",
        SettingReader::Soft,
        ANY_NUMBER,
        "reports races of kernels, unless 0; the number decides the order of warps ([softcuda](../explanation/softcuda.md))",
    ),
    setting(
        "KATYDID_SOFT_DISPLACE",
        SettingReader::Soft,
        SettingValue::File,
        "a file that says how far variables of modules are displaced, for tests",
    ),
    setting("KATYDID_JOB", SettingReader::Own, SettingValue::Path, "the socket of the program's job"),
    setting(
        "KATYDID_TRACE",
        SettingReader::Own,
        SettingValue::Path,
        "where the program records its calls, for `katydid trace`",
    ),
    setting(
        "KATYDID_TRACE_GPU",
        SettingReader::Own,
        SettingValue::Words(&["0", "1"]),
        "whether a trace has times of the GPU, as `trace --no-gpu`",
    ),
    setting("KATYDID_WORKER", SettingReader::Own, SettingValue::Text, "this process is a worker"),
    setting(
        "KATYDID_WORKER_NOTE",
        SettingReader::Own,
        SettingValue::Text,
        "hand-over note that a worker passes to itself when it re-executes",
    ),
    setting(
        RESERVATION_VARIABLE,
        SettingReader::Own,
        SettingValue::Text,
        "the key of the reservation at the server for the program's first session",
    ),
    setting(
        REPORTED_VARIABLE,
        SettingReader::Own,
        SettingValue::Text,
        "unknown variables that the command has named already",
    ),
    setting(
        "KATYDID_CHECKPOINT_AT",
        SettingReader::Tests,
        SettingValue::Text,
        "messages before which a program holds itself ([Contributing](../../CONTRIBUTING.md))",
    ),
    setting(
        "KATYDID_FAULT",
        SettingReader::Tests,
        SettingValue::Text,
        "the stage at which a checkpoint fails ([Contributing](../../CONTRIBUTING.md))",
    ),
    setting(
        "KATYDID_BLESS",
        SettingReader::Tests,
        SettingValue::Text,
        "golden files are written anew; `cargo xtask bless` sets it",
    ),
    setting("KATYDID_CHAOS_ROUNDS", SettingReader::Tests, ANY_NUMBER, "rounds of kills"),
    setting("KATYDID_CHAOS_SEED", SettingReader::Tests, ANY_NUMBER, "the seed of their moments"),
    setting(
        "KATYDID_CHECKPOINTS_WANTED",
        SettingReader::Tests,
        SettingValue::Words(&["0", "1"]),
        "whether a machine without checkpoints fails",
    ),
    setting("KATYDID_CHECKPOINT_COUNT", SettingReader::Tests, ANY_NUMBER, "checkpoints of a program"),
    setting("KATYDID_CHECKPOINT_SEED", SettingReader::Tests, ANY_NUMBER, "the seed of their calls"),
    setting("KATYDID_CHECKPOINT_SWEEP", SettingReader::Tests, VALUE_ONE, "checkpoints of every program"),
    setting(
        "KATYDID_CHECKPOINT_WAYS",
        SettingReader::Tests,
        SettingValue::Words(&["all"]),
        "every program on every way",
    ),
    setting("KATYDID_CUDART_ALL", SettingReader::Tests, SettingValue::Text, "all versions of the CUDA runtime"),
    setting("KATYDID_ENDURANCE_CHECKPOINTS", SettingReader::Tests, ANY_NUMBER, "checkpoints of one job"),
    setting("KATYDID_ENDURANCE_GOOD", SettingReader::Tests, ANY_NUMBER, "good sessions beside hostile clients"),
    setting("KATYDID_ENDURANCE_MINUTES", SettingReader::Tests, ANY_NUMBER, "minutes of hostile clients"),
    setting("KATYDID_ENDURANCE_SESSIONS", SettingReader::Tests, ANY_NUMBER, "sessions of one server"),
    setting("KATYDID_FAKE", SettingReader::Tests, SettingValue::Text, "what a worker without a GPU does"),
    setting("KATYDID_IMAGE", SettingReader::Tests, SettingValue::Path, "the image of a test with a limit"),
    setting("KATYDID_MUTATIONS", SettingReader::Tests, ANY_NUMBER, "mutations of each input"),
    setting(
        "KATYDID_OPENCL_SEEDS",
        SettingReader::Tests,
        SettingValue::Text,
        "seeds of random calls of OpenCL, such as 100-199",
    ),
    setting("KATYDID_TEST_ALL", SettingReader::Tests, VALUE_ONE, "every slice of long matrices"),
    setting("KATYDID_TEST_ALONE", SettingReader::Tests, SettingValue::Text, "this process runs one test"),
    setting("KATYDID_TEST_DEVICES", SettingReader::Tests, SettingValue::Text, "devices of OpenCL"),
    setting("KATYDID_TEST_DRIVER", SettingReader::Tests, SettingValue::Text, "the driver under test"),
    setting("KATYDID_TEST_FOLDER", SettingReader::Tests, SettingValue::Path, "the folder of a test of two processes"),
    setting("KATYDID_TEST_HALF", SettingReader::Tests, SettingValue::Text, "which of its two processes this is"),
    setting("KATYDID_TEST_MARK", SettingReader::Tests, SettingValue::Text, "by which a test knows its processes"),
    setting("KATYDID_TEST_OPENCL", SettingReader::Tests, SettingValue::Text, "the OpenCL driver under test"),
    setting("KATYDID_TEST_PACK", SettingReader::Tests, SettingValue::Path, "the folder of a pack"),
    setting("KATYDID_TEST_WORKER", SettingReader::Tests, SettingValue::Path, "the worker under test"),
];

/// Returns the variable of that name.
pub fn find(name: &str) -> Option<&'static Setting> {
    KNOWN_SETTINGS.iter().find(|setting| setting.name == name)
}

/// Returns what is wrong with a variable that is set to `value`, in one line; none for a valid value. Empty counts as unset.
pub fn problem(name: &str, value: &str) -> Option<String> {
    let setting = find(name)?;
    let is_wrong = !value.is_empty() && !setting.value.takes(value);
    is_wrong.then(|| format!("{name}={} is not {}", quote(value), setting.value.expected()))
}

/// Returns what is wrong with a value in the environment: only paths may be other than UTF-8.
pub fn problem_of(name: &str, value: &OsStr) -> Option<String> {
    let setting = find(name)?;
    match value.to_str() {
        Some(text) => problem(name, text),
        None if setting.value.is_path() => None,
        None => {
            let shown = quote(&value.to_string_lossy());
            Some(format!("{name}={shown} is not {}: it is not UTF-8", setting.value.expected()))
        }
    }
}

/// Returns a value for a message, quoted and shortened to fit a line.
pub fn quote(value: &str) -> String {
    match value.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{:?}…", &value[..end]),
        None => format!("{value:?}"),
    }
}

/// Parses the silence limit of a link: 0 means no limit. A number without a unit is invalid.
pub fn silence(text: &str) -> Option<Duration> {
    let limits = MIN_SILENCE_LIMIT..=MAX_SILENCE_LIMIT;
    units::duration(text).ok().filter(|time| time.is_zero() || limits.contains(time))
}

/// Returns how long a server may take to answer a hello, by the value of `KATYDID_CONNECT_TIMEOUT`: [`MAX_SILENCE_LIMIT`]
/// for 0, and the default for a value that is not a time.
pub fn connect_timeout(text: Option<&str>) -> Duration {
    let text = text.and_then(silence);
    text.map_or(CONNECT_TIMEOUT, |limit| if limit.is_zero() { MAX_SILENCE_LIMIT } else { limit })
}

/// A name with Katydid's prefix that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// Name of the variable in the environment.
    pub name: String,
    /// The nearest name, if one is near.
    pub nearest: Option<&'static str>,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The name comes from outside, and goes to a terminal.
        let name = self.name.escape_debug();
        match self.nearest {
            Some(nearest) => write!(out, "{name} is not a variable of Katydid and is ignored: is {nearest} meant?"),
            None => write!(
                out,
                "{name} is not a variable of Katydid and is ignored (docs/reference/environment.md has all)"
            ),
        }
    }
}

/// Returns those of `names` that begin with Katydid's prefix and do not exist, sorted.
pub fn unknown(names: impl IntoIterator<Item = String>) -> Vec<Unknown> {
    let unknown = names.into_iter().filter(|name| name.starts_with(VARIABLE_PREFIX) && find(name).is_none());
    let mut unknown_names: Vec<Unknown> = unknown.map(|name| Unknown { nearest: nearest(&name), name }).collect();
    unknown_names.sort_by(|one, other| one.name.cmp(&other.name));
    unknown_names
}

/// Returns names of variables as text: bytes that are not UTF-8 are replaced.
pub fn readable(names: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = String> {
    names.into_iter().map(|name| name.to_string_lossy().into_owned())
}

/// The unknown variables of this process's environment that no process has reported yet.
pub fn unknown_here() -> Vec<Unknown> {
    let reported = std::env::var_os(REPORTED_VARIABLE).unwrap_or_default();
    let reported = reported.to_string_lossy();
    let names = readable(std::env::vars_os().map(|(name, _)| name));
    unknown(names.filter(|name| !reported.split(',').any(|reported| reported == name)))
}

/// Returns the name of a user variable that needs the fewest changes.
fn nearest(name: &str) -> Option<&'static str> {
    let meant =
        KNOWN_SETTINGS.iter().filter(|setting| !matches!(setting.reader, SettingReader::Own | SettingReader::Tests));
    let distances = meant
        .map(|setting| (changes(&name[VARIABLE_PREFIX.len()..], &setting.name[VARIABLE_PREFIX.len()..]), setting.name));
    let (distance, nearest) = distances.min()?;
    (distance <= MAX_EDIT_DISTANCE.min((nearest.len() - VARIABLE_PREFIX.len()) / 2)).then_some(nearest)
}

/// Returns how many letters have to be inserted, removed, replaced or swapped with the next to make one name of the other.
fn changes(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().take(64).collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for at in 0..=from.len() {
        for other in 0..=to.len() {
            rows[at][other] = match (at, other) {
                (0, rest) | (rest, 0) => rest,
                _ => {
                    let replaced = rows[at - 1][other - 1] + usize::from(from[at - 1] != to[other - 1]);
                    let least = replaced.min(rows[at - 1][other] + 1).min(rows[at][other - 1] + 1);
                    let is_swap = at > 1 && other > 1 && from[at - 1] == to[other - 2] && from[at - 2] == to[other - 1];
                    if is_swap { least.min(rows[at - 2][other - 2] + 1) } else { least }
                }
            };
        }
    }
    rows[from.len()][to.len()]
}

/// The text between the two tables of `docs/reference/environment.md`.
const INTERNAL_HEADING: &str =
    "\nUsers need none of these: Katydid sets them for its own processes, or tests read them.\n\n";

/// Returns the tables of `docs/reference/environment.md`: variables for users, then the others.
pub fn tables() -> String {
    let is_internal = |setting: &&Setting| matches!(setting.reader, SettingReader::Own | SettingReader::Tests);
    let (internal, for_users): (Vec<&Setting>, Vec<&Setting>) = KNOWN_SETTINGS.iter().partition(is_internal);
    table(&for_users) + INTERNAL_HEADING + &table(&internal)
}

fn table(settings: &[&Setting]) -> String {
    let mut text = String::from("| variable | read by | takes | says |\n|---|---|---|---|\n");
    for Setting { name, reader, value, meaning } in settings {
        let _ = writeln!(text, "| `{name}` | {} | {} | {meaning} |", reader.title(), value.expected());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    /// The marks around the table.
    const BEGIN: &str = "<!-- made from crates/driver-rules/src/state/settings.rs -->\n\n";
    const END: &str = "\n<!-- end -->";

    fn named(name: &str) -> Vec<Unknown> {
        unknown([VARIABLE_PREFIX.to_owned() + name, "HOME".to_owned(), "KATYDID_LANES".to_owned()])
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        for (wrong, right) in [
            ("SEVRER", "KATYDID_SERVER"),
            ("LANE", "KATYDID_LANES"),
            ("TIMEOUT_LINK", "none"),
            ("LINKTIMEOUT", "KATYDID_LINK_TIMEOUT"),
            ("SOFT_MEM", "KATYDID_SOFT_MEMORY"),
            ("FOO", "none"),
            ("UNHEARD_OF_THING", "none"),
        ] {
            let nearest_name = named(wrong);
            assert_eq!(nearest_name.len(), 1, "{wrong}");
            let expected = Some(right).filter(|right| *right != "none");
            assert_eq!(nearest_name[0].nearest, expected, "{wrong}");
            assert!(nearest_name[0].to_string().contains(&(VARIABLE_PREFIX.to_owned() + wrong)));
        }
    }

    #[test]
    fn control_characters_of_a_name_are_not_written() {
        assert!(!named("A\x1b[2J")[0].to_string().contains('\x1b'));
    }

    #[test]
    fn a_name_that_is_no_text_is_named_as_far_as_it_is_one() {
        let name = OsString::from_vec([VARIABLE_PREFIX.as_bytes(), b"LAN\xff"].concat());
        let unknown_names = unknown(readable([name]));
        assert_eq!(unknown_names.len(), 1);
        assert_eq!(
            (unknown_names[0].name.as_str(), unknown_names[0].nearest),
            (format!("{VARIABLE_PREFIX}LAN\u{fffd}").as_str(), Some("KATYDID_LANES"))
        );
    }

    #[test]
    fn names_are_given_once_and_every_value_says_what_it_takes() {
        for (at, setting) in KNOWN_SETTINGS.iter().enumerate() {
            assert!(setting.name.starts_with(VARIABLE_PREFIX));
            assert!(KNOWN_SETTINGS[at + 1..].iter().all(|other| other.name != setting.name), "{}", setting.name);
            assert!(!setting.value.expected().is_empty());
        }
    }

    #[test]
    fn the_page_has_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/environment.md");
        let text = std::fs::read_to_string(page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (table, after) = rest.split_once(END).unwrap();
        if std::env::var_os("KATYDID_BLESS").is_some() {
            std::fs::write(page, format!("{before}{BEGIN}{}{END}{after}", tables())).unwrap();
        } else {
            assert_eq!(table, tables(), "`cargo xtask bless` writes it anew");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_no_time() {
        assert_eq!(problem("KATYDID_LINK_TIMEOUT", "60s"), None);
        assert_eq!(problem("KATYDID_LINK_TIMEOUT", "0s"), None);
        assert_eq!(problem("KATYDID_CONNECT_TIMEOUT", "5m"), None);
        assert!(problem("KATYDID_CONNECT_TIMEOUT", "20").is_some());
        assert_eq!(problem("KATYDID_LINK_TIMEOUT", "277h"), None);
        for wrong in ["60", "2s", "1d", "s", "-3s", "278h"] {
            let message = problem("KATYDID_LINK_TIMEOUT", wrong).unwrap();
            assert!(message.contains("60s") && message.contains("277h"), "{wrong}");
        }
    }

    #[test]
    fn other_values_are_checked_by_their_kind() {
        assert_eq!(problem("KATYDID_LANES", ""), None);
        assert_eq!(problem("KATYDID_LANES", "16"), None);
        assert_eq!(problem("KATYDID_LANES", "17").unwrap(), "KATYDID_LANES=\"17\" is not a number from 0 to 16");
        assert_eq!([problem("KATYDID_MEMORY", "1.5GiB"), problem("KATYDID_MEMORY", "2M")], [None, None]);
        assert!(problem("KATYDID_MEMORY", "2047K").is_some_and(|told| told.contains("2M or more")));
        assert!(problem("KATYDID_MEMORY", "much").is_some() && problem("KATYDID_LINK", "smoke").is_some());
        assert_eq!(problem("KATYDID_CACHE", "relative").map(|told| told.contains("whole path")), Some(true));
        for number in ["0", "none", "17"] {
            assert!(problem("KATYDID_SOFT_DEVICES", number).is_some(), "{number}");
        }
    }

    #[test]
    fn only_paths_may_be_no_utf_8() {
        let value = OsString::from_vec(b"a\xffb".to_vec());
        for setting in KNOWN_SETTINGS {
            let message = problem_of(setting.name, &value);
            assert_eq!(message.is_none(), setting.value.is_path(), "{}", setting.name);
            assert!(message.is_none_or(|message| message.starts_with(setting.name) && message.contains("UTF-8")));
        }
        assert_eq!(problem_of("KATYDID_NAME", OsStr::new("ab")), None);
    }

    #[test]
    fn a_long_value_is_cut_in_its_message() {
        let long = "x".repeat(MAX_SESSION_NAME_BYTES + 1);
        assert_eq!(problem("KATYDID_NAME", &long[1..]), None);
        let message = problem("KATYDID_NAME", &long).unwrap();
        assert!(message.contains("4096 bytes") && message.len() < 200, "{message}");
    }
}
