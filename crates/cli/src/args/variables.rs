//! Katydid's own variables of the environment: those that do not exist are named, and those that hold what they cannot are
//! refused before anything is started. The list is `katydid_driver_rules::state::settings`.

use std::env;
use std::ffi::OsString;

use katydid_driver_rules::state::settings;

use katydid_cli_core::output::failure::{Failure, say};

/// Names those that do not exist, once: programs and their libraries are told that it is done.
pub(crate) fn tell_unknown() {
    settings::unknown_here().iter().for_each(say);
}

/// What programs that we start are told of the names that [`tell_unknown`] has named; none where there is nothing to tell.
pub(crate) fn told() -> Option<(&'static str, String)> {
    let names: Vec<String> = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    let unknown: Vec<String> = settings::unknown(names).into_iter().map(|unknown| unknown.name).collect();
    (!unknown.is_empty()).then(|| (settings::TOLD, unknown.join(",")))
}

/// Refuses a variable that holds what it cannot, the process that would read it later.
pub(crate) fn check() -> Result<(), Failure> {
    match problems(|name| env::var_os(name)).next() {
        Some(problem) => Err(Failure::usage(format!("{problem}: {REMEDY}"))),
        None => Ok(()),
    }
}

/// What to do about a variable that holds what it cannot.
pub(crate) const REMEDY: &str = "correct it, or unset it";

/// What is wrong with each variable that holds what it cannot.
pub(crate) fn problems(variable: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = String> {
    settings::ALL.iter().filter_map(move |setting| {
        let value = variable(setting.name).unwrap_or_default();
        settings::problem(setting.name, &value.to_string_lossy())
    })
}
