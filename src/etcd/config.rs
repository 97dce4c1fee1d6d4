//! The settings of a connection: endpoints, certificates, user, limits. Their files are read again when they change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

/// Paths of the PEM files for TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The certificate authority of the members; the system's own if none is given.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A password. Its `Debug` form hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// The settings of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Client URLs. One without a scheme gets `https` if there are TLS files, else `http`.
    pub endpoints: Vec<String>,
    /// Certificates of both sides.
    pub tls: TlsFiles,
    /// The user's name, and the file that holds the password.
    pub user: Option<(String, PathBuf)>,
    /// Limit on every request. etcd itself gives up a proposal after 5 s + 2 election timeouts.
    pub request_timeout: Duration,
    /// Limit on opening a connection.
    pub connect_timeout: Duration,
    /// How often the endpoints are compared with the member list; a failed request or a silent endpoint has them compared at once.
    pub endpoint_interval: Duration,
    /// Whether the endpoints follow the member list. Proxies and port forwards need it off.
    pub sync_endpoints: bool,
    /// How long requests are repeated while the members elect their raft leader or one of them ends.
    pub election_patience: Duration,
    /// Reads what whichever member holds, old as it may be, also without a quorum: for display alone.
    pub serializable: bool,
    /// After this long without a message a watch asks etcd for one, and after as long again it is reopened.
    pub watch_silence: Duration,
}

impl Config {
    /// Settings for these endpoints with the default limits, without TLS and user.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            tls: TlsFiles::default(),
            user: None,
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            endpoint_interval: Duration::from_secs(10),
            sync_endpoints: true,
            election_patience: Duration::ZERO,
            serializable: false,
            watch_silence: Duration::from_secs(10),
        }
    }

    fn uses_tls(&self) -> bool {
        self.tls.ca.is_some()
            || self.tls.identity.is_some()
            || self
                .endpoints
                .iter()
                .any(|endpoint| endpoint.starts_with("https://"))
    }

    /// The endpoint as a URL with a scheme and without a trailing slash; `None` if its scheme contradicts the TLS
    /// settings, so that a member that advertises plain HTTP gets no request meant for TLS.
    pub(super) fn normalize(&self, endpoint: &str) -> Option<String> {
        let scheme = if self.uses_tls() { "https" } else { "http" };
        let (given, address) = endpoint.split_once("://").unwrap_or((scheme, endpoint));
        (given == scheme && !address.is_empty())
            .then(|| format!("{scheme}://{}", address.trim_end_matches('/')))
    }

    /// Checks the settings without a connection and reads the files.
    pub(super) fn load(&self) -> Result<Credentials, ConfigError> {
        if self.endpoints.is_empty() {
            return Err(ConfigError::NoEndpoints);
        }
        for endpoint in &self.endpoints {
            let (scheme, address) = endpoint.split_once("://").unwrap_or(("http", endpoint));
            if let Some((_, host)) = address.rsplit_once('@') {
                return Err(ConfigError::UserInEndpoint(host.to_owned()));
            }
            if !matches!(scheme, "http" | "https") || address.is_empty() {
                return Err(ConfigError::Endpoint(endpoint.clone()));
            }
            let normalized = self
                .normalize(endpoint)
                .ok_or_else(|| ConfigError::Scheme(endpoint.clone()))?;
            let uri: http::Uri = normalized
                .parse()
                .map_err(|_| ConfigError::Endpoint(endpoint.clone()))?;
            // The parser accepts a port out of range as a part of the authority.
            let after_host = uri
                .authority()
                .and_then(|authority| authority.as_str().rsplit(']').next());
            let bad_port = uri.port().is_none() && after_host.is_some_and(|rest| rest.contains(':'));
            if uri.host().is_none_or(str::is_empty) || bad_port || !matches!(uri.path(), "" | "/") {
                return Err(ConfigError::Endpoint(endpoint.clone()));
            }
        }
        Ok(Credentials {
            tls: self.uses_tls(),
            ca: self.tls.ca.as_deref().map(certificates).transpose()?,
            identity: match &self.tls.identity {
                Some((cert, key)) => Some((certificates(cert)?, private_key(key)?)),
                None => None,
            },
            user: match &self.user {
                Some((name, file)) => {
                    let password = String::from_utf8(read(file)?)
                        .map_err(|_| ConfigError::PasswordNotText(file.clone()))?;
                    let password = password.trim_end_matches(['\r', '\n']).to_owned();
                    if password.is_empty() {
                        return Err(ConfigError::PasswordEmpty(file.clone()));
                    }
                    Some((name.clone(), Password(password)))
                }
                None => None,
            },
        })
    }

    pub(super) fn connect_options(&self, credentials: &Credentials) -> ConnectOptions {
        // No `with_timeout`: it would end watches and keep-alives as well. Each unary call has its own limit.
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            // etcd closes a connection that pings more often than every 5 s (--grpc-keepalive-min-time) or
            // without an open stream.
            .with_keep_alive(Duration::from_secs(6), Duration::from_secs(3))
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(Duration::from_secs(30))
            // A member that is cut off from its cluster ends its streams instead of falling silent.
            .with_require_leader(!self.serializable)
            .with_auto_token_refresh(true);
        if credentials.tls {
            let mut tls = TlsOptions::new();
            if let Some(ca) = &credentials.ca {
                tls = tls.ca_certificate(Certificate::from_pem(ca));
            } else {
                tls = tls.with_native_roots();
            }
            if let Some((cert, key)) = &credentials.identity {
                tls = tls.identity(Identity::from_pem(cert, key));
            }
            options = options.with_tls(tls);
        }
        if let Some((name, Password(password))) = &credentials.user {
            options = options.with_user(name, password);
        }
        options
    }
}

/// What the settings and their files held when they were last read.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    tls: bool,
    /// PEM.
    pub ca: Option<Vec<u8>>,
    /// The client's certificates and its key, both PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    user: Option<(String, Password)>,
}

impl Credentials {
    /// Whether they have a user, whom etcd authenticates by a password.
    pub fn have_user(&self) -> bool {
        self.user.is_some()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The labels of the PEM blocks in a text: `CERTIFICATE`, `EC PRIVATE KEY`.
fn pem_labels(pem: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(pem);
    let begin = |line: &str| {
        line.trim()
            .strip_prefix("-----BEGIN ")?
            .strip_suffix("-----")
            .map(str::to_owned)
    };
    text.lines().filter_map(begin).collect()
}

fn certificates(path: &Path) -> Result<Vec<u8>, ConfigError> {
    pem(path, "certificate", |label| label.ends_with("CERTIFICATE"))
}

fn private_key(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let text = pem(path, "private key", |label| label.ends_with("PRIVATE KEY"))?;
    // The first form is that of PKCS #8, the second that of OpenSSL before it (RFC 1421).
    let encrypted = |line: &[u8]| {
        line.starts_with(b"-----BEGIN ENCRYPTED ") || line.starts_with(b"Proc-Type: 4,ENCRYPTED")
    };
    match text.split(|byte| *byte == b'\n').any(encrypted) {
        true => Err(ConfigError::KeyEncrypted(path.to_owned())),
        false => Ok(text),
    }
}

/// Reads a PEM file that must hold at least one block whose label `fits`.
fn pem(path: &Path, expected: &'static str, fits: impl Fn(&str) -> bool) -> Result<Vec<u8>, ConfigError> {
    let text = read(path)?;
    let labels = pem_labels(&text);
    if labels.is_empty() {
        return Err(ConfigError::NotPem(path.to_owned()));
    }
    match labels.iter().any(|label| fits(label)) {
        true => Ok(text),
        false => Err(ConfigError::OtherPem {
            path: path.to_owned(),
            expected,
            found: labels.join(", "),
        }),
    }
}

/// What is wrong with the settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The list of endpoints is empty.
    #[error("no etcd endpoint is given (--etcd-endpoints)")]
    NoEndpoints,
    /// Not `[http[s]://]host[:port]`.
    #[error("\"{0}\" is not an etcd endpoint: expected a URL like http://10.0.0.1:2379")]
    Endpoint(String),
    /// An endpoint with a user, and perhaps a password: only the host is kept, so that no message shows a password.
    #[error("the etcd endpoint at {0} names a user: give --etcd-user and --etcd-password-file instead")]
    UserInEndpoint(String),
    /// The scheme contradicts the TLS settings.
    #[error(
        "etcd endpoint \"{0}\": with certificates, or another endpoint on https, every endpoint must be https://…"
    )]
    Scheme(String),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file holds neither a certificate nor a key.
    #[error("{} holds no PEM block (-----BEGIN …)", .0.display())]
    NotPem(PathBuf),
    /// The file holds PEM blocks, but not the one that is needed: certificate and key are mistaken for each other, for
    /// example.
    #[error("{} holds no {expected} (it holds: {found})", path.display())]
    OtherPem {
        /// The file.
        path: PathBuf,
        /// What is needed.
        expected: &'static str,
        /// The labels of its blocks.
        found: String,
    },
    /// The private key is encrypted.
    #[error("the private key in {} is encrypted: give a key without a passphrase", .0.display())]
    KeyEncrypted(PathBuf),
    /// The password file is not UTF-8.
    #[error("{} is not text, but should hold the etcd user's password", .0.display())]
    PasswordNotText(PathBuf),
    /// The password file is empty.
    #[error("{} is empty, but should hold the etcd user's password", .0.display())]
    PasswordEmpty(PathBuf),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_gets_the_scheme_of_the_tls_settings() {
        let mut config = Config::new(vec!["127.0.0.1:2379".to_owned()]);
        assert_eq!(
            config.normalize("127.0.0.1:2379").as_deref(),
            Some("http://127.0.0.1:2379")
        );
        assert_eq!(
            config.normalize("http://n1:2379/").as_deref(),
            Some("http://n1:2379")
        );
        config.tls.ca = Some("ca.pem".into());
        assert_eq!(config.normalize("n1:2379").as_deref(), Some("https://n1:2379"));
        assert_eq!(
            config.normalize("http://n1:2379"),
            None,
            "certificates are never sent in the clear"
        );
    }

    #[test]
    fn an_invalid_endpoint_is_refused_by_name() {
        for bad in [
            "",
            "http://",
            "http://a b:1",
            "http://h:1/path",
            "http://h:99999",
            "ftp://h:1",
        ] {
            let error = Config::new(vec![bad.to_owned()])
                .load()
                .err()
                .map(|error| error.to_string());
            let expected = format!("\"{bad}\" is not an etcd endpoint");
            assert!(
                error.as_ref().is_some_and(|text| text.contains(&expected)),
                "{bad:?}: {error:?}"
            );
        }
        assert!(matches!(
            Config::new(Vec::new()).load(),
            Err(ConfigError::NoEndpoints)
        ));
    }

    #[test]
    fn an_endpoint_with_a_user_is_refused_without_its_password() {
        let error = Config::new(vec!["http://root:s3cret@h:1".to_owned()]).load();
        let text = error.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("at h:1 names a user"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn certificates_and_keys_that_are_mistaken_for_each_other_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let block = |label: &str| format!("-----BEGIN {label}-----\nAA==\n-----END {label}-----\n");
        let cert = file("cert.pem", &block("CERTIFICATE"));
        let key = file("key.pem", &block("EC PRIVATE KEY"));
        let pkcs8 = file("pkcs8.pem", &block("ENCRYPTED PRIVATE KEY"));
        let openssl =
            "-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: AES-128-CBC,00\r\n";
        let openssl = file("openssl.pem", openssl);
        let load = |ca: &PathBuf, cert: &PathBuf, key: &PathBuf| {
            let mut config = Config::new(vec!["https://h:1".to_owned()]);
            config.tls.ca = Some(ca.clone());
            config.tls.identity = Some((cert.clone(), key.clone()));
            config.load().err().map(|error| error.to_string())
        };
        assert_eq!(load(&cert, &cert, &key), None);
        for (failed, expected) in [
            (
                load(&key, &cert, &key),
                "key.pem holds no certificate (it holds: EC PRIVATE KEY)",
            ),
            (
                load(&cert, &key, &cert),
                "key.pem holds no certificate (it holds: EC PRIVATE KEY)",
            ),
            (
                load(&cert, &cert, &cert),
                "cert.pem holds no private key (it holds: CERTIFICATE)",
            ),
            (
                load(&cert, &cert, &pkcs8),
                "pkcs8.pem is encrypted: give a key without a passphrase",
            ),
            (
                load(&cert, &cert, &openssl),
                "openssl.pem is encrypted: give a key without a passphrase",
            ),
        ] {
            assert!(
                failed.as_ref().is_some_and(|text| text.ends_with(expected)),
                "{failed:?}"
            );
        }
    }

    #[test]
    fn a_password_never_prints() {
        assert_eq!(format!("{:?}", Password("s3cret".to_owned())), "Password(…)");
    }
}
