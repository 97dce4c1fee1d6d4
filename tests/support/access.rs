//! How clients prove to a test's etcd who they are.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use quorate::etcd::{Config, TlsFiles};
use quorate_dev::pki::{Authority, CertificateFiles};

/// A user of a cluster with passwords.
pub const USER: &str = "quorate";
/// The user's password.
pub const PASSWORD: &str = "correct horse";

/// What an etcd demands of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Plain,
    /// A user's password.
    Password,
    /// A certificate, over TLS.
    Tls,
}

impl Access {
    /// What an etcd demands of which a test does not say it: `QUORATE_TEST_ETCD_ACCESS`, or nothing. `make matrix` sets it. Panics
    /// where it is no word of these.
    pub fn of_this_run() -> Self {
        static CHOSEN: LazyLock<Access> = LazyLock::new(|| {
            let word = env::var("QUORATE_TEST_ETCD_ACCESS").unwrap_or_default();
            match word.as_str() {
                "" | "plain" => Access::Plain,
                "password" => Access::Password,
                "tls" => Access::Tls,
                other => panic!("QUORATE_TEST_ETCD_ACCESS={other}: expected plain, password or tls"),
            }
        });
        *CHOSEN
    }
}

/// What a client of a TLS cluster needs.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// `--etcd-cacert`
    pub ca: PathBuf,
    /// `--etcd-cert` and `--etcd-key`
    pub client: CertificateFiles,
    /// Another certificate of the same authority, to replace `client`.
    pub renewed: CertificateFiles,
}

impl ClientTls {
    /// The same for the library.
    pub fn files(&self) -> TlsFiles {
        TlsFiles {
            ca: Some(self.ca.clone()),
            identity: Some((self.client.cert.clone(), self.client.key.clone())),
        }
    }
}

/// What a client shows to an etcd.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub tls: Option<ClientTls>,
    /// The file of the password of [`USER`].
    pub password: Option<PathBuf>,
}

impl Credentials {
    /// What suffices for every etcd that demands this, apart from those with an authority or a password of their own.
    pub fn of(access: Access) -> Self {
        match access {
            Access::Plain => Self::default(),
            Access::Password => Self {
                password: Some(shared().join("password")),
                ..Self::default()
            },
            Access::Tls => Self {
                tls: Some(client_in(shared())),
                ..Self::default()
            },
        }
    }

    /// Adds them to the settings of a client.
    pub fn admit(&self, config: &mut Config) {
        if let Some(tls) = &self.tls {
            config.tls = tls.files();
        }
        if let Some(file) = &self.password {
            config.user = Some((USER.to_owned(), file.clone()));
        }
    }

    /// The flags of commands and replicas.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if let Some(ClientTls { ca, client, .. }) = &self.tls {
            flags.push(format!("--etcd-cacert={}", ca.display()));
            flags.push(format!("--etcd-cert={}", client.cert.display()));
            flags.push(format!("--etcd-key={}", client.key.display()));
        }
        if let Some(file) = &self.password {
            flags.push(format!("--etcd-user={USER}"));
            flags.push(format!("--etcd-password-file={}", file.display()));
        }
        flags
    }
}

/// The certificate of each member whose authority is the shared one.
pub fn shared_server() -> CertificateFiles {
    files_in(shared(), "etcd")
}

/// Makes an authority in this directory, with the certificates of servers and of clients.
pub fn write_certificates(directory: &Path) -> ClientTls {
    let authority = Authority::create(directory, "etcd test").unwrap();
    for name in ["quorate", "renewed"] {
        authority.client(name).unwrap();
    }
    authority.server("etcd").unwrap();
    client_in(directory)
}

fn client_in(directory: &Path) -> ClientTls {
    ClientTls {
        ca: directory.join("ca.crt"),
        client: files_in(directory, "quorate"),
        renewed: files_in(directory, "renewed"),
    }
}

/// The files of a certificate that [`write_certificates`] has made.
pub fn files_in(directory: &Path, name: &str) -> CertificateFiles {
    CertificateFiles {
        cert: directory.join(format!("{name}.crt")),
        key: directory.join(format!("{name}.key")),
    }
}

/// A folder with an authority and a password that all etcds of a run may share: a test then needs no etcd to know what a client shows
/// to one. Later runs find it below the target directory.
fn shared() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = parent.join("etcd-access");
        if !folder.exists() {
            fs::create_dir_all(parent).unwrap();
            let fresh = tempfile::tempdir_in(parent).unwrap().keep();
            write_certificates(&fresh);
            fs::write(fresh.join("password"), format!("{PASSWORD}\n")).unwrap();
            // Another process may have been faster: then its folder serves.
            if fs::rename(&fresh, &folder).is_err() {
                fs::remove_dir_all(&fresh).unwrap();
            }
        }
        folder
    });
    &FOLDER
}
