//! Authorities and certificates, valid and invalid ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use katydid_transport::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

/// An authority, and the folders of its certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    folder: TempDir,
}

/// Validity of a certificate, from and to, in hours from now.
pub(crate) const VALID: (i64, i64) = (-1, 1);
pub(crate) const EXPIRED: (i64, i64) = (-50, -49);
pub(crate) const NOT_YET: (i64, i64) = (48, 50);

pub(crate) const SERVER: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;
pub(crate) const CLIENT: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ClientAuth;

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate, folder: tempfile::tempdir().unwrap() }
    }

    /// Creates a folder of certificates with one that this authority issued.
    pub(crate) fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose, valid: (i64, i64)) -> PathBuf {
        let now = OffsetDateTime::now_utc();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        (params.not_before, params.not_after) = (now + Duration::hours(valid.0), now + Duration::hours(valid.1));
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let number = fs::read_dir(self.folder.path()).unwrap().count();
        let folder = self.folder.path().join(number.to_string());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(KEY_FILE), key.serialize_pem()).unwrap();
        fs::set_permissions(folder.join(KEY_FILE), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(folder.join(CERTIFICATE_FILE), certificate).unwrap();
        self.give_to(&folder);
        folder
    }

    /// Makes users of the folder trust this authority.
    pub(crate) fn give_to(&self, folder: &Path) {
        fs::write(folder.join(AUTHORITY_FILE), &self.certificate).unwrap();
    }
}
