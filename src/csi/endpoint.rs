//! The address that a plugin listens on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::Uri;

/// `unix:///…`, `http://host:port` or `https://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket on this machine, by its absolute path.
    Unix(PathBuf),
    /// A host and a port, in clear text or with TLS by the URI's scheme.
    Tcp(Uri),
}

/// Why a text is not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The scheme is missing or unknown.
    #[error("expected unix:///path/to/plugin.sock, http://host:port or https://host:port")]
    Scheme,
    /// `unix://` without an absolute path.
    #[error("expected an absolute path after unix://, as in unix:///run/csi/plugin.sock")]
    NotAbsolute,
    /// The path is longer than the address of a unix socket may be.
    #[error("the path of a unix socket has at most {} bytes", LONGEST_PATH)]
    PathTooLong,
    /// The URI has no host.
    #[error("expected a host after the scheme, as in http://plugin.storage:9000")]
    NoHost,
    /// The URI has no port; CSI has no default one.
    #[error("expected a port after the host, as in http://plugin.storage:9000")]
    NoPort,
    /// The URI has a path, a query or a user, which gRPC does not use.
    #[error("expected nothing but scheme, host and port")]
    TooMuch,
}

impl Endpoint {
    /// Whether what is sent there can be read on its way.
    pub fn is_plaintext(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tcp(uri) => uri.scheme_str() != Some("https"),
        }
    }
}

/// `sun_path` has 108 bytes on Linux, the last of which ends it.
const LONGEST_PATH: usize = 107;

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("unix://") {
            let path = Path::new(path);
            if !path.is_absolute() {
                return Err(EndpointError::NotAbsolute);
            }
            if path.as_os_str().len() > LONGEST_PATH {
                return Err(EndpointError::PathTooLong);
            }
            return Ok(Self::Unix(path.to_owned()));
        }
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Err(EndpointError::Scheme);
        }
        let uri = Uri::from_str(text).map_err(|_| EndpointError::NoHost)?;
        let authority = uri.authority().ok_or(EndpointError::NoHost)?;
        if authority.host().is_empty() {
            return Err(EndpointError::NoHost);
        }
        if authority.port_u16().is_none() {
            return Err(EndpointError::NoPort);
        }
        let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !bare || authority.as_str().contains('@') {
            return Err(EndpointError::TooMuch);
        }
        Ok(Self::Tcp(uri))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            // A URI prints a "/" at its end.
            Self::Tcp(uri) => write!(f, "{}", uri.to_string().trim_end_matches('/')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_prints_as_it_was_written() {
        for text in [
            "unix:///run/csi/plugin.sock",
            "http://127.0.0.1:9000",
            "https://plugin.storage.svc:9000",
            "http://[::1]:9000",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let slash: Endpoint = "http://h:1/".parse().unwrap();
        assert_eq!(slash.to_string(), "http://h:1");
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_what_was_expected() {
        use EndpointError as E;
        let long = format!("unix:///{}", "x".repeat(107));
        for (text, expected) in [
            ("", E::Scheme),
            ("/run/csi/plugin.sock", E::Scheme),
            ("tcp://127.0.0.1:9000", E::Scheme),
            ("unix://run/csi.sock", E::NotAbsolute),
            ("unix://", E::NotAbsolute),
            (&long, E::PathTooLong),
            ("http://", E::NoHost),
            ("http://:9000", E::NoHost),
            ("http://plugin", E::NoPort),
            ("http://plugin:99999", E::NoPort),
            ("http://plugin:9000/csi", E::TooMuch),
            ("http://plugin:9000/?a=b", E::TooMuch),
            ("http://user:word@plugin:9000", E::TooMuch),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(expected), "{text:?}");
        }
    }
}
