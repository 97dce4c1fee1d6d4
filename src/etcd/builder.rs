//! Connecting a program that embeds this library.

use std::path::PathBuf;

use super::config::{Config, TlsFiles};
use super::connect::{ConnectError, Etcd};
use crate::metrics::Metrics;

/// The settings of a connection that keeps itself current. See [`Etcd::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    config: Config,
    metrics: Option<Metrics>,
}

impl Etcd {
    /// Prepares a connection to these client URLs; [`Builder::connect`] makes it. A URL without a scheme gets `https` if
    /// there are TLS files, else `http`.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Builder {
        Builder {
            config: Config::new(endpoints.into_iter().map(Into::into).collect()),
            metrics: None,
        }
    }
}

impl Builder {
    /// Uses TLS with these PEM files. They are read again when they change.
    #[must_use]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.config.tls = files;
        self
    }

    /// Authenticates as this user. The file holds the password, and is read again when it changes.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password_file: impl Into<PathBuf>) -> Self {
        self.config.user = Some((name.into(), password_file.into()));
        self
    }

    /// Keeps to the given URLs, whatever the member list says. For proxies and port forwards.
    #[must_use]
    pub fn pinned(mut self) -> Self {
        self.config.sync_endpoints = false;
        self
    }

    /// Counts into these metrics. Without them the connection counts into a set of its own, which is shown nowhere.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Connects to the URLs that answer; at least one must. A task on this runtime keeps endpoints, certificates and
    /// password current until the last clone of the connection is dropped.
    ///
    /// # Errors
    /// [`ConnectError`], with the error of each endpoint where none answers.
    pub async fn connect(self) -> Result<Etcd, ConnectError> {
        let metrics = self
            .metrics
            .unwrap_or_else(|| Metrics::new(env!("CARGO_PKG_VERSION")));
        let etcd = Etcd::connect(self.config, metrics).await?;
        etcd.follow_in_background();
        Ok(etcd)
    }
}
