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
    /// How often the endpoints are compared with the member list; a failed request has them compared at once.
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
        let pem = |path: &PathBuf| {
            let text = read(path)?;
            if !text.windows(11).any(|window| window == b"-----BEGIN ") {
                return Err(ConfigError::NotPem(path.clone()));
            }
            Ok(text)
        };
        Ok(Credentials {
            tls: self.uses_tls(),
            ca: self.tls.ca.as_ref().map(pem).transpose()?,
            identity: match &self.tls.identity {
                Some((cert, key)) => Some((pem(cert)?, pem(key)?)),
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

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
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
    fn a_password_never_prints() {
        assert_eq!(format!("{:?}", Password("s3cret".to_owned())), "Password(…)");
    }
}
