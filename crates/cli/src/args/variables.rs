//! Katydid's own environment variables and its config file: before anything starts, unknown names are reported, and unusable
//! values are refused. The list is `katydid_driver_rules::state::settings`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use katydid_driver_rules::state::settings::{self, Setting, SettingValue};
use katydid_transport::Address;

use katydid_cli_core::args::config;
use katydid_cli_core::output::failure::{Failure, print_message};
use katydid_cli_core::server::{address, module_cache};

/// Reports unknown names once, and marks the environment so that programs and their libraries do not repeat it.
pub(crate) fn tell_unknown() {
    settings::unknown_here().iter().for_each(print_message);
}

/// The marker for programs that this process starts: [`tell_unknown`] has reported these names. `None`: there was nothing to
/// report.
pub(crate) fn unknown_names() -> Option<(&'static str, String)> {
    let names = settings::readable(env::vars_os().map(|(name, _)| name));
    let unknown: Vec<String> = settings::unknown(names).into_iter().map(|unknown| unknown.name).collect();
    (!unknown.is_empty()).then(|| (settings::REPORTED_VARIABLE, unknown.join(",")))
}

/// Refuses a variable or a config file with an invalid value, even if a flag overrides it: another process would read it later.
pub(crate) fn check() -> Result<(), Failure> {
    if let Some(problem) = problems(|name| env::var_os(name)).next() {
        return Err(Failure::usage(format!("{problem}: {VARIABLE_REMEDY}")));
    }
    let Some(file) = config::own().map_err(Failure::usage)? else { return Ok(()) };
    address::check_config(&file).map_err(Failure::usage)?;
    module_cache::check_config(&file)
}

/// Remedy for a variable with an invalid value.
pub(crate) const VARIABLE_REMEDY: &str = "correct it, or unset it";

/// Problems of each variable that has an invalid value, or names something unusable.
pub(crate) fn problems(variable: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = String> {
    settings::KNOWN_SETTINGS.iter().filter_map(move |setting| {
        let value = variable(setting.name).filter(|value| !value.is_empty())?;
        settings::problem_of(setting.name, &value).or_else(|| location_problem(setting, &value))
    })
}

/// The problem with a server, file or folder that a variable names, if any.
fn location_problem(setting: &Setting, value: &OsStr) -> Option<String> {
    let (path, text) = (Path::new(value), value.to_string_lossy());
    let unfit = |is_fit: bool| {
        let (name, shown) = (setting.name, settings::quote(&text));
        let why = if path.exists() { "it is of another kind" } else { "it does not exist" };
        (!is_fit).then(|| format!("{name}={shown} is not {}: {why}", setting.value.expected()))
    };
    match setting.value {
        SettingValue::Address => text.parse::<Address>().err().map(|error| format!("{}: {error}", setting.name)),
        SettingValue::Folder => unfit(path.is_dir()),
        // A value that is not UTF-8 was not checked before.
        SettingValue::AbsoluteFolder if !path.is_absolute() => unfit(false),
        SettingValue::NewFolder | SettingValue::AbsoluteFolder => unfit(may_be_folder(path)).or_else(|| {
            let error = name_error(path).or_else(|| module_cache::check_writable(path).err())?;
            Some(format!("{}={}: no files can be made there: {error}", setting.name, settings::quote(&text)))
        }),
        SettingValue::File => unfit(path.is_file()),
        SettingValue::FileOrFolder => unfit(path.exists()),
        SettingValue::Libraries => {
            let lost = env::split_paths(value).find(|one| one.components().count() > 1 && !one.is_file())?;
            Some(format!("{}: {}: this library does not exist", setting.name, lost.display()))
        }
        _ => None,
    }
}

/// The system's error for a path that it cannot look up, such as one that is too long.
fn name_error(path: &Path) -> Option<io::Error> {
    path.metadata().err().filter(|error| error.kind() != io::ErrorKind::NotFound)
}

/// Whether a path is a folder, or one can be made there, since no file is in the way.
fn may_be_folder(path: &Path) -> bool {
    let there = path.ancestors().find(|above| above.as_os_str().is_empty() || above.exists());
    there.is_none_or(|there| there.as_os_str().is_empty() || there.is_dir())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use katydid_driver_rules::state::settings::SettingReader;
    use katydid_wire::handshake::MAX_HELLO_TEXT_BYTES;

    use super::*;

    #[test]
    fn the_longest_name_is_that_of_the_first_message_to_a_server() {
        assert_eq!(settings::MAX_SESSION_NAME_BYTES, MAX_HELLO_TEXT_BYTES);
    }

    /// No value of another kind is accepted silently; docs/reference/environment.md has the further values of each kind.
    #[test]
    fn each_variable_for_users_refuses_what_it_cannot_hold() {
        let of_users = |reader| !matches!(reader, SettingReader::Own | SettingReader::Tests);
        let long = "x".repeat(5000);
        let values: [&[u8]; 5] = [b"a\xff", b"-1", b"99999999999999999999999", b"5parsecs", long.as_bytes()];
        for setting in settings::KNOWN_SETTINGS.iter().filter(|setting| of_users(setting.reader)) {
            for value in values.map(OsStr::from_bytes) {
                let found = problems(|variable| (variable == setting.name).then(|| value.to_owned())).next();
                let is_long = value.len() > 4096;
                let is_taken = match setting.value {
                    SettingValue::Text => value.to_str().is_some(),
                    SettingValue::Name => value.to_str().is_some() && !is_long,
                    SettingValue::NewFolder => !is_long,
                    // The loader searches for a name without a folder.
                    SettingValue::Libraries => true,
                    _ => false,
                };
                assert_eq!(found.is_none(), is_taken, "{} {value:?}: {found:?}", setting.name);
                assert!(found.is_none_or(|found| found.starts_with(setting.name) && found.lines().count() == 1));
            }
            assert_eq!(
                problems(|variable| (variable == setting.name).then(OsString::new)).next(),
                None,
                "{}",
                setting.name
            );
        }
    }

    #[test]
    fn variables_must_name_existing_files() {
        let folder = tempfile::tempdir().unwrap();
        let (there, file) = (folder.path().to_owned(), folder.path().join("file"));
        std::fs::write(&file, "").unwrap();
        let (lost, below) = (there.join("lost"), file.join("below"));
        let is_refused = |name: &str, value: &Path| {
            let found: Vec<String> = problems(|variable| (variable == name).then(|| value.into())).collect();
            assert!(found.iter().all(|problem| problem.starts_with(name) && problem.len() < 400), "{found:?}");
            !found.is_empty()
        };
        for name in ["KATYDID_CERTS", "KATYDID_LIB"] {
            assert!(!is_refused(name, &there) && is_refused(name, &file) && is_refused(name, &lost), "{name}");
        }
        for name in ["KATYDID_CACHE", "KATYDID_SOFT_SHARED"] {
            assert!(!is_refused(name, &there) && is_refused(name, &file) && !is_refused(name, &lost), "{name}");
            assert!(is_refused(name, &below), "{name}");
        }
        assert!(!is_refused("KATYDID_SOFT_SHARED", Path::new("new")) && is_refused("KATYDID_CACHE", Path::new("new")));
        assert!(is_refused("KATYDID_SOFT_SHARED", &there.join("x".repeat(300))));
        assert!(!is_refused("KATYDID_SOFT_DISPLACE", &file) && is_refused("KATYDID_SOFT_DISPLACE", &there));
        assert!(!is_refused("KATYDID_CRIU", &file) && !is_refused("KATYDID_CRIU", &there));
        assert!(is_refused("KATYDID_CRIU", &lost));
        let both = |one: &Path| std::env::join_paths([Path::new("libpocl.so.2"), one]).unwrap();
        assert!(!is_refused("KATYDID_OPENCL_DRIVERS", Path::new(&both(&file))));
        assert!(is_refused("KATYDID_OPENCL_DRIVERS", Path::new(&both(&lost))));
        assert!(is_refused("KATYDID_SERVER", Path::new("carrier-pigeon:coop")));
    }
}
