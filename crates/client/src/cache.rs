//! The user's cache folder, which programs and servers share.

use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the folder that Katydid's own variable or the desktop standard names, given the environment. None without a home. The
/// folder need not exist.
pub fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let standard = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    set("KATYDID_CACHE").or_else(|| Some(standard()?.join("katydid")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_variable_comes_before_the_desktop_standard_and_that_before_home() {
        let folder_of = |names: &[&str]| folder(|name| names.contains(&name).then(|| format!("/{name}").into()));
        assert_eq!(folder_of(&["KATYDID_CACHE", "XDG_CACHE_HOME", "HOME"]), Some("/KATYDID_CACHE".into()));
        assert_eq!(folder_of(&["XDG_CACHE_HOME", "HOME"]), Some("/XDG_CACHE_HOME/katydid".into()));
        assert_eq!((folder_of(&["HOME"]), folder_of(&[])), (Some("/HOME/.cache/katydid".into()), None));
        assert_eq!(folder(|_| Some("relative".into())), None);
    }
}
