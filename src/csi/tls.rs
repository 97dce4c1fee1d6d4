//! TLS with a plugin: whom to trust, and what to show.

use std::path::{Path, PathBuf};

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// How a plugin at an `https://` endpoint is connected to. The files are read for each connection, so that a renewed
/// certificate counts from the next one on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities of the plugin's certificate (PEM); `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate and its key (PEM), if it shows one.
    pub certificate_files: Option<(PathBuf, PathBuf)>,
    /// The name in the plugin's certificate; `None` for the host of the endpoint.
    pub server_name: Option<String>,
}

impl Tls {
    /// Reads the files. The error is a sentence for people.
    pub(super) fn config(&self) -> Result<ClientTlsConfig, String> {
        let mut config = match &self.ca_file {
            Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(file)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.certificate_files {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        Ok(config)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let read = std::fs::read(file);
    read.map_err(|error| format!("cannot read {}: {error}", file.display()))
}
