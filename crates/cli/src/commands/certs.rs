//! `katydid certs`: an authority, and the certificates that it issues to servers and programs.
//!
//! | folder         | file              | what                                                               |
//! |----------------|-------------------|--------------------------------------------------------------------|
//! | the authority  | `authority.pem`   | its certificate                                                    |
//! |                | `authority.key`   | its key, which decides on access; no server or program needs it    |
//! | issued folders | `authority.pem`   | the same as above                                                  |
//! |                | `certificate.pem` | a certificate, with its names, for servers or for programs         |
//! |                | `key.pem`         | its key                                                            |
//!
//! Only their owner can read keys (0600) and folders (0700). No existing file is overwritten, except a certificate that is
//! renewed, atomically, for the existing key.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use katydid_bench::Loopback;
use katydid_scratch::Scratch;
use katydid_transport::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SerialNumber,
};
use rustix::rand::{GetRandomFlags, getrandom};
use time::{Duration, OffsetDateTime};

use crate::args::flags::{AuthorityFlags, CertsCommand, IssueFlags};
use katydid_cli_core::args::file;
use katydid_cli_core::output::date::date;
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};

/// File name of the authority's key.
const AUTHORITY_KEY: &str = "authority.key";
/// Certificates are valid from this long ago, since clocks differ.
const CLOCK_SKEW: Duration = Duration::minutes(10);
/// Most bytes of a DNS name, and of a part of it between dots.
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// Why there is no certificate. Existing files are unchanged.
#[derive(Debug, thiserror::Error)]
enum CertsError {
    #[error("{}: cannot be read: {source}; {remedy}", path.display())]
    Read { path: PathBuf, source: io::Error, remedy: &'static str },
    #[error("{}: cannot be written: {source}; name a folder that you can write to, with free space", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: it is not a private key: {source}; {remedy}", path.display())]
    Key { path: PathBuf, source: rcgen::Error, remedy: &'static str },
    #[error("{}: exists already; {remedy}", path.display())]
    Exists { path: PathBuf, remedy: &'static str },
    #[error("a certificate cannot be made: {0}; --name takes names and numbers of machines, or of users")]
    Made(#[from] rcgen::Error),
    #[error("cannot get random numbers: {0}; try again")]
    Random(io::Error),
    #[error("a certificate for a server needs the names or numbers that programs connect to: --name gpu-host")]
    NoName,
    #[error(
        "--name: {0:?} is neither a host name nor an IP address, such as gpu-host or 10.0.0.7; give one such as gpu-host"
    )]
    NoMachine(String),
    #[error(
        "{}: it is the folder of an authority, and its certificates need their own; choose another folder with -o",
        .0.display()
    )]
    OfAuthority(PathBuf),
    #[error("--name: it is empty: leave it out, or give one such as alice")]
    NoUser,
    #[error("no certificate can be valid for {0} days from now: give --days a smaller number")]
    Days(u32),
}

/// Remedies for a missing authority, and for a missing certificate to renew.
const NO_AUTHORITY: &str = "name the folder of an authority, or make one with `katydid certs init DIR`";
const NO_KEY: &str = "leave out --renew for a first certificate, or name the folder that has one with -o";

impl CertsError {
    /// Maps errors: files and names are the caller's, and so are mistakes in them. A system that is out of a resource is no
    /// mistake of the caller.
    fn failure(self) -> Failure {
        match &self {
            Self::Write { source, .. }
                if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EIO)) =>
            {
                Failure::work(self)
            }
            Self::Random(_) => Failure::work(self),
            _ => Failure::usage(self),
        }
    }
}

/// Modes of files for their owner alone, and for all users.
const PRIVATE_MODE: u32 = 0o600;
const PUBLIC_MODE: u32 = 0o644;

/// Runs `katydid certs`.
pub(crate) fn main(command: &CertsCommand) -> Outcome {
    let folder = match command {
        CertsCommand::Init(flags) => init(flags),
        CertsCommand::Server(flags) if flags.name.is_empty() => Err(CertsError::NoName),
        CertsCommand::Server(flags) => match flags.name.iter().find(|name| !is_machine(name)) {
            Some(name) => Err(CertsError::NoMachine(name.clone())),
            None => issue(flags, ExtendedKeyUsagePurpose::ServerAuth),
        },
        CertsCommand::Client(flags) if flags.name.iter().any(String::is_empty) => Err(CertsError::NoUser),
        CertsCommand::Client(flags) => issue(flags, ExtendedKeyUsagePurpose::ClientAuth),
    }
    .map_err(CertsError::failure)?;
    print_message(folder);
    Ok(ExitCode::SUCCESS)
}

/// Whether programs can look for this name in a server's certificate: an IP address, or a DNS name, which may begin with `*.`.
fn is_machine(name: &str) -> bool {
    let is_name = |name: &str| name.len() <= MAX_NAME_BYTES && name.split('.').all(is_label);
    name.parse::<IpAddr>().is_ok() || is_name(name.strip_prefix("*.").unwrap_or(name))
}

/// Whether a DNS name may have this part between its dots.
fn is_label(label: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(is_allowed)
}

/// Creates an authority; returns what exists now.
fn init(flags: &AuthorityFlags) -> Result<String, CertsError> {
    let key = KeyPair::generate()?;
    let mut params = authority(&key);
    let until = valid(&mut params, flags.days)?;
    let certificate = params.self_signed(&key)?;
    let remedy = "an authority that is replaced takes all its certificates with it: remove the folder if that is meant";
    let files = [(AUTHORITY_KEY, key.serialize_pem(), PRIVATE_MODE), (AUTHORITY_FILE, certificate.pem(), PUBLIC_MODE)];
    write_all_new(&flags.authority, &files, remedy)?;
    Ok(format!("{}: an authority, valid until {until}", flags.authority.display()))
}

/// The authority's certificate. All of it follows from the key, so that the key alone can issue.
fn authority(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    // The first byte is the same for all keys.
    let number: String = key.public_key_raw().iter().skip(1).take(8).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("Katydid authority {number}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Issues a certificate into a folder of its own; returns what exists now.
fn issue(flags: &IssueFlags, purpose: ExtendedKeyUsagePurpose) -> Result<String, CertsError> {
    let authority_key = read_key(&flags.authority.join(AUTHORITY_KEY), NO_AUTHORITY)?;
    let authority_certificate = read(&flags.authority.join(AUTHORITY_FILE), NO_AUTHORITY)?;
    let issuer = Issuer::new(authority(&authority_key), authority_key);
    let (key_path, path) = (flags.output.join(KEY_FILE), flags.output.join(CERTIFICATE_FILE));
    let key = if flags.renew { read_key(&key_path, NO_KEY)? } else { KeyPair::generate()? };
    let mut params = CertificateParams::new(flags.name.clone())?;
    let common = flags.name.first().map_or("Katydid program", String::as_str);
    params.distinguished_name.push(DnType::CommonName, common);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(serial()?);
    let until = valid(&mut params, flags.days)?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    if flags.renew {
        replace(&path, &certificate)?;
    } else {
        if flags.output.join(AUTHORITY_KEY).exists() {
            return Err(CertsError::OfAuthority(flags.output.clone()));
        }
        let remedy = "say --renew for another certificate of the same key, or choose another folder";
        let files = [
            (KEY_FILE, key.serialize_pem(), PRIVATE_MODE),
            (CERTIFICATE_FILE, certificate, PUBLIC_MODE),
            (AUTHORITY_FILE, authority_certificate, PUBLIC_MODE),
        ];
        write_all_new(&flags.output, &files, remedy)?;
    }
    let names = if flags.name.is_empty() { "a program".to_owned() } else { flags.name.join(", ") };
    Ok(format!("{}: a certificate for {names}, valid until {until}", flags.output.display()))
}

/// Makes an authority, a certificate for 127.0.0.1 and one for a program, valid for a day.
pub(crate) fn for_loopback() -> Result<Loopback, Failure> {
    let folder = Scratch::new("certs").map_err(Failure::work)?;
    let (server, client) = (folder.path().join("server"), folder.path().join("client"));
    let authority = AuthorityFlags { authority: folder.path().join("authority"), days: 1 };
    let flags = |output, name: &str| IssueFlags {
        authority: authority.authority.clone(),
        output,
        name: vec![name.to_owned()],
        days: 1,
        renew: false,
    };
    let all = init(&authority)
        .and_then(|_| issue(&flags(server.clone(), "127.0.0.1"), ExtendedKeyUsagePurpose::ServerAuth))
        .and_then(|_| issue(&flags(client.clone(), "program"), ExtendedKeyUsagePurpose::ClientAuth));
    all.map(|_| Loopback { server, client, folder }).map_err(Failure::work)
}

/// A unique serial number.
fn serial() -> Result<SerialNumber, CertsError> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| CertsError::Random(error.into()))?;
    // Positive, and always of the same length.
    bytes[0] = bytes[0] & 0x3f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// Sets the validity of a certificate, and returns its end as text.
fn valid(params: &mut CertificateParams, days: u32) -> Result<String, CertsError> {
    let now = OffsetDateTime::now_utc();
    let until = now.checked_add(Duration::days(days.into())).filter(|until| until.year() < 9999);
    let until = until.ok_or(CertsError::Days(days))?;
    (params.not_before, params.not_after) = (now - CLOCK_SKEW, until);
    Ok(date(u64::try_from(until.unix_timestamp()).unwrap_or(0)))
}

fn unwritten(path: &Path, source: io::Error) -> CertsError {
    CertsError::Write { path: path.to_owned(), source }
}

fn read(path: &Path, remedy: &'static str) -> Result<String, CertsError> {
    file::read_to_string(path).map_err(|source| CertsError::Read { path: path.to_owned(), source, remedy })
}

fn read_key(path: &Path, remedy: &'static str) -> Result<KeyPair, CertsError> {
    let text = read(path, remedy)?;
    KeyPair::from_pem(&text).map_err(|source| CertsError::Key { path: path.to_owned(), source, remedy })
}

fn make_folder(path: &Path) -> Result<(), CertsError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| unwritten(path, error))
}

/// Writes files that are new into a folder, which need not exist: all of them, or none.
fn write_all_new(folder: &Path, files: &[(&str, String, u32)], remedy: &'static str) -> Result<(), CertsError> {
    let is_new = !folder.exists();
    make_folder(folder)?;
    let mut written = Vec::new();
    for (name, text, mode) in files {
        let path = folder.join(name);
        if let Err(error) = write_new(&path, text, *mode, remedy) {
            written.iter().for_each(|path| drop(fs::remove_file(path)));
            if is_new {
                let _ = fs::remove_dir(folder);
            }
            return Err(error);
        }
        written.push(path);
    }
    Ok(())
}

fn write_new(path: &Path, text: &str, mode: u32, remedy: &'static str) -> Result<(), CertsError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = opened.and_then(|mut file| {
        // A part of a key is of no use, and would be in the way.
        file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CertsError::Exists { path: path.to_owned(), remedy },
        _ => unwritten(path, error),
    })
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> Result<(), CertsError> {
    let failed = |error: io::Error| unwritten(path, error);
    let mut new = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(path)).map_err(failed)?;
    new.write_all(text.as_bytes()).map_err(failed)?;
    fs::set_permissions(new.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).map_err(failed)?;
    new.persist(path).map(drop).map_err(|error| failed(error.error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use katydid_transport::Identity;

    use super::*;

    fn flags(authority: &Path, output: &Path, name: &[&str]) -> IssueFlags {
        IssueFlags {
            authority: authority.into(),
            output: output.into(),
            name: name.iter().map(|&name| name.to_owned()).collect(),
            days: 7,
            renew: false,
        }
    }

    #[test]
    fn certificates_of_an_authority_verify_and_keys_are_private() {
        let root = tempfile::tempdir().unwrap();
        let (authority, server, client) = (root.path().join("ca"), root.path().join("s"), root.path().join("c"));
        init(&AuthorityFlags { authority: authority.clone(), days: 30 }).unwrap();
        main(&CertsCommand::Server(flags(&authority, &server, &["gpu7", "10.0.0.7"]))).unwrap();
        main(&CertsCommand::Client(flags(&authority, &client, &[]))).unwrap();
        for folder in [&server, &client] {
            Identity::read(folder).and_then(|identity| identity.check()).unwrap();
            assert_eq!(fs::metadata(folder.join(KEY_FILE)).unwrap().mode() & 0o777, 0o600);
            assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
        }
        assert_eq!(fs::metadata(authority.join(AUTHORITY_KEY)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn nothing_is_written_over_and_a_renewal_keeps_the_key() {
        let root = tempfile::tempdir().unwrap();
        let (authority, server) = (root.path().join("ca"), root.path().join("s"));
        let init_flags = AuthorityFlags { authority: authority.clone(), days: 30 };
        init(&init_flags).unwrap();
        assert!(matches!(init(&init_flags), Err(CertsError::Exists { .. })));
        let mut issued = flags(&authority, &server, &["gpu7"]);
        issue(&issued, ExtendedKeyUsagePurpose::ServerAuth).unwrap();
        let read_both = || (fs::read(server.join(KEY_FILE)).unwrap(), fs::read(server.join(CERTIFICATE_FILE)).unwrap());
        let before = read_both();
        let again = issue(&issued, ExtendedKeyUsagePurpose::ServerAuth);
        assert!(matches!(again, Err(CertsError::Exists { .. })) && read_both() == before);
        issued.renew = true;
        issue(&issued, ExtendedKeyUsagePurpose::ServerAuth).unwrap();
        let after = read_both();
        assert!(after.0 == before.0 && after.1 != before.1);
        Identity::read(&server).and_then(|identity| identity.check()).unwrap();
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let (authority, fresh, full) = (root.path().join("ca"), root.path().join("fresh"), root.path().join("full"));
        init(&AuthorityFlags { authority: fresh.clone(), days: u32::MAX }).unwrap_err();
        assert!(!fresh.exists());
        init(&AuthorityFlags { authority: authority.clone(), days: 30 }).unwrap();
        fs::create_dir(&full).unwrap();
        fs::write(full.join(AUTHORITY_FILE), "").unwrap();
        for (folder, files) in [(&authority, 2), (&full, 1)] {
            main(&CertsCommand::Client(flags(&authority, folder, &[]))).unwrap_err();
            assert_eq!(fs::read_dir(folder).unwrap().count(), files, "{}", folder.display());
        }
    }

    #[test]
    fn mistakes_are_named() {
        let root = tempfile::tempdir().unwrap();
        let (authority, file) = (root.path().join("ca"), root.path().join("file"));
        main(&CertsCommand::Init(AuthorityFlags { authority: authority.clone(), days: 30 })).unwrap();
        fs::write(&file, "").unwrap();
        fs::create_dir(root.path().join("broken")).unwrap();
        fs::write(root.path().join("broken").join(AUTHORITY_KEY), "no key").unwrap();
        let with = |authority: &Path, output: &str, name: &[&str], renew| {
            CertsCommand::Server(IssueFlags { renew, ..flags(authority, &root.path().join(output), name) })
        };
        main(&with(&authority, "there", &["x"], false)).unwrap();
        let again = CertsCommand::Init(AuthorityFlags { authority: authority.clone(), days: 30 });
        for (command, words) in [
            (again, ["authority.key", "remove the folder"]),
            (with(&authority, "s", &[], false), ["--name", "gpu-host"]),
            (with(&authority, "s", &["gpu", ""], false), ["--name", "gpu-host"]),
            (with(&authority, "s", &["bad name"], false), ["\"bad name\"", "gpu-host"]),
            (with(&authority, "s", &["-"], false), ["\"-\"", "gpu-host"]),
            (with(&authority, "s", &["gpu", "gpu-.example"], false), ["\"gpu-.example\"", "gpu-host"]),
            (with(&authority, "s", &[&"x".repeat(64)], false), ["xxxx", "gpu-host"]),
            (with(&authority, "s", &[&"x.".repeat(127)], false), ["x.x.", "gpu-host"]),
            (with(&authority, "s", &["tls://gpu:9923"], false), ["\"tls://gpu:9923\"", "gpu-host"]),
            (
                with(&authority, "s", &["::1", "10.0.0.7", "*.gpu_1.example.org", "gpu..7"], false),
                ["\"gpu..7\"", "gpu-host"],
            ),
            (CertsCommand::Client(flags(&authority, &root.path().join("c"), &[""])), ["--name", "alice"]),
            (with(&root.path().join("none"), "s", &["x"], false), ["authority.key", "certs init"]),
            (with(&root.path().join("broken"), "s", &["x"], false), ["is not a private key", "certs init"]),
            (with(&authority, "there", &["x"], false), ["key.pem", "--renew"]),
            (with(&authority, "none", &["x"], true), ["key.pem", "leave out --renew"]),
            (with(&authority, "file", &["x"], false), ["cannot be written", "name a folder"]),
        ] {
            let failure = main(&command).unwrap_err();
            let text = failure.to_string();
            assert!(failure.status() == 2 && words.iter().all(|word| text.contains(word)), "{failure:?}");
        }
        let mut params = CertificateParams::default();
        assert!(matches!(valid(&mut params, u32::MAX), Err(CertsError::Days(_))));
    }
}
