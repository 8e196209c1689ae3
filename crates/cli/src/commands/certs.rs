//! `katydid certs`: an authority, and the certificates that it issues to servers and programs.
//!
//! | folder         | file              | what                                                               |
//! |----------------|-------------------|--------------------------------------------------------------------|
//! | the authority  | `authority.pem`   | its certificate                                                    |
//! |                | `authority.key`   | its key, which decides who is let in; no server or program needs it |
//! | issued folders | `authority.pem`   | the same as above                                                  |
//! |                | `certificate.pem` | a certificate, with its names, for servers or for programs         |
//! |                | `key.pem`         | its key                                                            |
//!
//! Keys are for their owner alone (0600), and so are the folders (0700). Nothing that exists is written over, but for a
//! certificate that is renewed, in one step, for the key that is there.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use katydid_bench::Loopback;
use katydid_scratch::Scratch;
use katydid_transport::{AUTHORITY, CERTIFICATE, KEY};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SerialNumber,
};
use rustix::rand::{GetRandomFlags, getrandom};
use time::{Duration, OffsetDateTime};

use crate::args::flags::{AuthorityFlags, CertsCommand, IssueFlags};
use katydid_cli_core::output::date::date;
use katydid_cli_core::output::failure::{Failure, Outcome, say};

/// The authority's key in its folder.
const AUTHORITY_KEY: &str = "authority.key";
/// Certificates are valid from this long ago, since clocks differ.
const EARLIER: Duration = Duration::minutes(10);

/// Why there is no certificate. What existed is as it was.
#[derive(Debug, thiserror::Error)]
enum CertsError {
    #[error("{path}: {problem}")]
    File { path: PathBuf, problem: String },
    #[error("{path}: exists already; {remedy}")]
    Exists { path: PathBuf, remedy: &'static str },
    #[error("a certificate cannot be made: {0}")]
    Made(#[from] rcgen::Error),
    #[error("a certificate for a server needs the names or numbers that programs connect to: --name gpu-host")]
    NoName,
    #[error("no certificate can be valid for {0} days from now")]
    Days(u32),
}

/// Runs the command.
pub(crate) fn main(command: &CertsCommand) -> Outcome {
    let made = match command {
        CertsCommand::Init(flags) => init(flags),
        CertsCommand::Server(flags) if flags.name.is_empty() => Err(CertsError::NoName),
        CertsCommand::Server(flags) => issue(flags, ExtendedKeyUsagePurpose::ServerAuth),
        CertsCommand::Client(flags) => issue(flags, ExtendedKeyUsagePurpose::ClientAuth),
    }
    .map_err(Failure::work)?;
    say(made);
    Ok(ExitCode::SUCCESS)
}

/// Makes an authority; what is there now.
fn init(flags: &AuthorityFlags) -> Result<String, CertsError> {
    make_folder(&flags.authority)?;
    let key = KeyPair::generate()?;
    let mut params = authority(&key);
    let until = valid(&mut params, flags.days)?;
    let certificate = params.self_signed(&key)?;
    let remedy = "an authority that is replaced takes all its certificates with it: remove the folder if that is meant";
    write_new(&flags.authority.join(AUTHORITY_KEY), &key.serialize_pem(), 0o600, remedy)?;
    write_new(&flags.authority.join(AUTHORITY), &certificate.pem(), 0o644, remedy)?;
    Ok(format!("{}: an authority, valid until {until}", flags.authority.display()))
}

/// What an authority says of itself. All of it follows from its key, so that the key alone can issue.
fn authority(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    // Without the first byte, which is the same for all keys.
    let number: String = key.public_key_raw().iter().skip(1).take(8).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("Katydid authority {number}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Issues a certificate into a folder of its own; what is there now.
fn issue(flags: &IssueFlags, purpose: ExtendedKeyUsagePurpose) -> Result<String, CertsError> {
    let authority_key = KeyPair::from_pem(&read(&flags.authority.join(AUTHORITY_KEY))?)?;
    let authority_certificate = read(&flags.authority.join(AUTHORITY))?;
    let issuer = Issuer::new(authority(&authority_key), authority_key);
    let (key_path, path) = (flags.output.join(KEY), flags.output.join(CERTIFICATE));
    let key = if flags.renew { KeyPair::from_pem(&read(&key_path)?)? } else { KeyPair::generate()? };
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
        make_folder(&flags.output)?;
        let remedy = "say --renew for another certificate of the same key, or choose another folder";
        write_new(&key_path, &key.serialize_pem(), 0o600, remedy)?;
        write_new(&path, &certificate, 0o644, remedy)?;
        write_new(&flags.output.join(AUTHORITY), &authority_certificate, 0o644, remedy)?;
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

/// A number that no other certificate has.
fn serial() -> Result<SerialNumber, CertsError> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).map_err(io::Error::from);
    filled.map_err(|error| file(Path::new("random numbers"), error))?;
    // Positive, and of the same length always.
    bytes[0] = bytes[0] & 0x3f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// Sets how long a certificate is valid, and says until when.
fn valid(params: &mut CertificateParams, days: u32) -> Result<String, CertsError> {
    let now = OffsetDateTime::now_utc();
    let until = now.checked_add(Duration::days(days.into())).filter(|until| until.year() < 9999);
    let until = until.ok_or(CertsError::Days(days))?;
    (params.not_before, params.not_after) = (now - EARLIER, until);
    Ok(date(u64::try_from(until.unix_timestamp()).unwrap_or(0)))
}

fn file(path: &Path, problem: impl ToString) -> CertsError {
    CertsError::File { path: path.to_owned(), problem: problem.to_string() }
}

fn read(path: &Path) -> Result<String, CertsError> {
    fs::read_to_string(path).map_err(|error| file(path, error))
}

fn make_folder(path: &Path) -> Result<(), CertsError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| file(path, error))
}

fn write_new(path: &Path, text: &str, mode: u32, remedy: &'static str) -> Result<(), CertsError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CertsError::Exists { path: path.to_owned(), remedy },
        _ => file(path, error),
    })
}

/// Puts a file in the place of another one in one step.
fn replace(path: &Path, text: &str) -> Result<(), CertsError> {
    let failed = |error: io::Error| file(path, error);
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
    fn what_an_authority_issues_is_believed_and_private() {
        let root = tempfile::tempdir().unwrap();
        let (authority, server, client) = (root.path().join("ca"), root.path().join("s"), root.path().join("c"));
        init(&AuthorityFlags { authority: authority.clone(), days: 30 }).unwrap();
        main(&CertsCommand::Server(flags(&authority, &server, &["gpu7", "10.0.0.7"]))).unwrap();
        main(&CertsCommand::Client(flags(&authority, &client, &[]))).unwrap();
        for folder in [&server, &client] {
            Identity::read(folder).and_then(|identity| identity.check()).unwrap();
            assert_eq!(fs::metadata(folder.join(KEY)).unwrap().mode() & 0o777, 0o600);
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
        let read_both = || (fs::read(server.join(KEY)).unwrap(), fs::read(server.join(CERTIFICATE)).unwrap());
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
    fn mistakes_are_named() {
        let root = tempfile::tempdir().unwrap();
        let unnamed = flags(root.path(), &root.path().join("s"), &[]);
        assert!(main(&CertsCommand::Server(unnamed)).unwrap_err().to_string().contains("--name"));
        let missing = flags(&root.path().join("none"), &root.path().join("s"), &["x"]);
        assert!(main(&CertsCommand::Client(missing)).unwrap_err().to_string().contains("authority.key"));
        let mut params = CertificateParams::default();
        assert!(matches!(valid(&mut params, u32::MAX), Err(CertsError::Days(_))));
    }
}
