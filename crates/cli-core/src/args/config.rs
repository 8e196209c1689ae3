//! The config file, `~/.config/katydid/config.toml` (`$XDG_CONFIG_HOME/katydid/config.toml` if that is set).
//!
//! ```toml
//! server = "tcp://gpu-host:9923"   # where programs run, unless --server or KATYDID_SERVER says otherwise
//! certs = "/home/me/certs"          # the folder of certificates for tls://, unless --certs or KATYDID_CERTS says otherwise
//! module_cache = "/srv/katydid"     # where a server keeps code that programs sent, unless --module-cache says otherwise
//! module_cache_size = "4G"          # size limit of that folder, unless --module-cache-size says otherwise
//! ```
//!
//! An unknown key is an error that names it: a misspelt setting must not be ignored silently.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;

use crate::args::file;

/// Settings of the config file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of the server.
    pub server: Option<String>,
    /// The folder of certificates.
    pub certs: Option<PathBuf>,
    /// Folder of a server's module cache.
    pub module_cache: Option<PathBuf>,
    /// Size limit of the module cache, with a suffix.
    pub module_cache_size: Option<String>,
}

/// A config file that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigFile {
    /// Path of the file, whether it exists or not.
    pub path: PathBuf,
    /// Settings in the file; all unset if there is no file.
    pub config: Config,
}

/// Why the file was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file exists and cannot be read.
    #[error("cannot read the config file: {path}: {source}; correct its permissions, or remove it")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The file is not TOML, or has an unknown key or value.
    #[error("{path}:{line}: {message}; correct the line, or remove the file")]
    Malformed {
        /// The file or folder.
        path: PathBuf,
        /// Line number in the file, from 1.
        line: usize,
        /// What is wrong in that line.
        message: String,
    },
}

/// Returns this process's config file. It is read only once, so that a file that changes meanwhile is not half followed. `None`
/// without a home.
///
/// # Errors
///
/// See [`ConfigError`].
pub fn own() -> Result<Option<ConfigFile>, ConfigError> {
    static CONFIG_FILE: OnceLock<Option<ConfigFile>> = OnceLock::new();
    if let Some(file) = CONFIG_FILE.get() {
        return Ok(file.clone());
    }
    let file = of(|name| env::var_os(name))?;
    Ok(CONFIG_FILE.get_or_init(|| file).clone())
}

/// Reads the config file for an environment; `None` without a home.
pub(crate) fn of(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<ConfigFile>, ConfigError> {
    let read = |path: PathBuf| Ok(ConfigFile { config: read(&path)?, path });
    path(variable).map(read).transpose()
}

/// Path of the file in an environment; `None` without a home.
fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("katydid/config.toml"))
}

/// Reads the file. A missing file has no settings, nor does one in a folder that is closed to this user: `su` and `sudo -u` keep
/// another user's `HOME`.
fn read(path: &Path) -> Result<Config, ConfigError> {
    match file::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Config::default())
        }
        Err(_) if is_out_of_reach(path) => Ok(Config::default()),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Whether a folder above does not even let this user see whether the file is there.
fn is_out_of_reach(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Parses the file. Finds the line itself, since the parser's message spans several lines and draws arrows.
fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text.get(..start).unwrap_or_default().matches('\n').count() + 1;
        ConfigError::Malformed { path: path.to_owned(), line, message: error.message().replace('\n', " ") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Config, String> {
        parse(Path::new("config.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_server_is_read() {
        assert_eq!(parsed("server = \"unix:/a\"").unwrap().server.as_deref(), Some("unix:/a"));
        assert_eq!(parsed("# nothing\n"), Ok(Config::default()));
    }

    #[test]
    fn the_certificates_are_read() {
        assert_eq!(parsed("certs = \"/c\"").unwrap().certs.as_deref(), Some(Path::new("/c")));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = parsed("\nsever = \"unix:/a\"").unwrap_err();
        assert!(error.starts_with("config.toml:2: unknown field `sever`"), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused() {
        assert!(parsed("server = 9923").unwrap_err().contains("expected a string"));
    }

    #[test]
    fn a_missing_file_says_nothing() {
        assert_eq!(read(Path::new("/no/such/config.toml")).unwrap(), Config::default());
    }

    #[test]
    fn config_path_of_a_fifo_or_device_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let text = read(&path).unwrap_err().to_string();
        assert!(text.contains("config.toml: it is not a file"), "{text}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("it is not a file"));
    }

    #[test]
    fn the_folder_of_the_desktop_standard_comes_before_home() {
        let with = |names: &'static [&str]| move |name: &str| names.contains(&name).then(|| format!("/{name}").into());
        assert_eq!(path(with(&["XDG_CONFIG_HOME", "HOME"])), Some("/XDG_CONFIG_HOME/katydid/config.toml".into()));
        assert_eq!(path(with(&["HOME"])), Some("/HOME/.config/katydid/config.toml".into()));
        assert_eq!(path(with(&[])), None);
    }
}
