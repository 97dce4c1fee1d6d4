//! A certificate authority for servers on this machine.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, SanType,
};

use super::Error;

/// The PEM files of a certificate.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate.
    pub cert: PathBuf,
    /// The key (PKCS #8).
    pub key: PathBuf,
}

/// An authority whose server certificates are valid for 127.0.0.1 and localhost.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    /// Creates an authority and writes its certificate to `ca.crt` in the directory. Its key stays in memory.
    pub fn create(directory: &Path, name: &str) -> Result<Self, Error> {
        let failed = |source| Error::Certificate {
            subject: name.to_owned(),
            source,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(failed)?;
        let authority = Self {
            issuer,
            directory: directory.to_owned(),
        };
        let file = authority.certificate_file();
        fs::write(&file, authority.issuer.pem()).map_err(Error::write(&file))?;
        Ok(authority)
    }

    /// The file of its own certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// Issues a certificate for a server on this machine, as `<name>.crt` and `<name>.key`. It is valid for clients, too:
    /// etcd demands that of its peers.
    pub fn server(&self, name: &str) -> Result<CertificateFiles, Error> {
        let mut params = CertificateParams::new(["localhost".to_owned()])
            .map_err(|source| certificate_error(name, source))?;
        params
            .subject_alt_names
            .push(SanType::IpAddress(IpAddr::from(Ipv4Addr::LOCALHOST)));
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.issue(params, name)
    }

    /// Issues a client's certificate with this common name, as `<name>.crt` and `<name>.key`.
    pub fn client(&self, name: &str) -> Result<CertificateFiles, Error> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, name)
    }

    fn issue(&self, mut params: CertificateParams, name: &str) -> Result<CertificateFiles, Error> {
        params.distinguished_name = common_name(name);
        let key = KeyPair::generate().map_err(|source| certificate_error(name, source))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|source| certificate_error(name, source))?;
        let files = CertificateFiles {
            cert: self.directory.join(format!("{name}.crt")),
            key: self.directory.join(format!("{name}.key")),
        };
        fs::write(&files.cert, certificate.pem()).map_err(Error::write(&files.cert))?;
        write_private(&files.key, &key.serialize_pem())?;
        Ok(files)
    }
}

/// Generates a key (ECDSA P-256) that signs tokens, as `<name>.key` (PKCS #8) and `<name>.pub`.
pub fn write_signing_key(directory: &Path, name: &str) -> Result<(), Error> {
    let key = KeyPair::generate().map_err(|source| certificate_error(name, source))?;
    let public = directory.join(format!("{name}.pub"));
    fs::write(&public, key.public_key_pem()).map_err(Error::write(&public))?;
    write_private(&directory.join(format!("{name}.key")), &key.serialize_pem())
}

/// Writes a file that only its owner may read.
pub fn write_private(file: &Path, content: &str) -> Result<(), Error> {
    let write = || {
        use std::io::Write as _;
        fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(file)?
            .write_all(content.as_bytes())
    };
    write().map_err(Error::write(file))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn certificate_error(subject: &str, source: rcgen::Error) -> Error {
    Error::Certificate {
        subject: subject.to_owned(),
        source,
    }
}
