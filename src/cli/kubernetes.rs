//! Connecting a command to the API server.

use std::path::PathBuf;

use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};

use crate::kube::{ConnectError, KubeClient, Limits};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Unconnected {
    /// The configuration is missing or unusable.
    #[error(transparent)]
    Configuration(#[from] ConnectError),
    /// The plugin for credentials that the kubeconfig names has panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
    /// The runtime is ending.
    #[error("no connection was tried")]
    NotTried,
}

/// A client for this kubeconfig, or for the usual places. A plugin for credentials, which the kubeconfig may name, blocks its thread
/// for as long as it runs: this one only waits for it.
///
/// # Errors
/// [`Unconnected`]; a server that is down is none.
pub async fn connect(kubeconfig: Option<PathBuf>, limits: Limits) -> Result<KubeClient, Unconnected> {
    let runtime = Handle::current();
    let mut connecting = JoinSet::new();
    connecting
        .spawn_blocking(move || runtime.block_on(KubeClient::connect_with(kubeconfig.as_deref(), limits)));
    match connecting.join_next().await {
        Some(connected) => Ok(connected??),
        None => Err(Unconnected::NotTried),
    }
}
