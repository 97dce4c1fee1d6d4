//! Finds the API server and the credentials: an explicit kubeconfig, the pod's service account, or kubectl's places.

use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig is missing, malformed or incomplete.
    #[error("cannot use kubeconfig {}: {why}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The client library's reason.
        why: String,
    },
    /// `$KUBECONFIG` is set, but a file that it names is missing, malformed or incomplete.
    #[error("cannot use $KUBECONFIG: {0}")]
    Environment(String),
    /// The process runs in a pod without a usable service account.
    #[error(
        "cannot use the pod's service account ($KUBERNETES_SERVICE_HOST is set) in \
         /var/run/secrets/kubernetes.io/serviceaccount: {0}"
    )]
    InCluster(String),
    /// No place holds a configuration.
    #[error(
        "no Kubernetes API server is configured; tried, in this order: --kubeconfig (not given), the pod's service \
         account ($KUBERNETES_SERVICE_HOST is not set), $KUBECONFIG (not set), {tried}"
    )]
    Nowhere {
        /// The last place, with the reason why it was not used.
        tried: String,
    },
    /// The client library rejects the configuration.
    #[error("cannot create a client for API server {server}: {why}")]
    Client {
        /// URL of the server.
        server: String,
        /// The client library's reason.
        why: String,
    },
}

/// Finds the configuration. Reads files but opens no connection, so a server that is down is no error here.
pub(super) async fn find(kubeconfig: Option<&Path>) -> Result<kube::Config, ConnectError> {
    if let Some(path) = kubeconfig {
        return from_file(path).await;
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return kube::Config::incluster_env().map_err(|error| ConnectError::InCluster(error.to_string()));
    }
    let environment = |error: kube::config::KubeconfigError| ConnectError::Environment(error.to_string());
    if let Some(merged) = Kubeconfig::from_env().map_err(environment)? {
        return kube::Config::from_custom_kubeconfig(merged, &KubeConfigOptions::default())
            .await
            .map_err(environment);
    }
    let Some(home) = std::env::home_dir() else {
        return Err(ConnectError::Nowhere {
            tried: "~/.kube/config (there is no home directory)".to_owned(),
        });
    };
    let path = home.join(".kube/config");
    if !path.exists() {
        return Err(ConnectError::Nowhere {
            tried: format!("{} (does not exist)", path.display()),
        });
    }
    from_file(&path).await
}

async fn from_file(path: &Path) -> Result<kube::Config, ConnectError> {
    let unusable = |error: kube::config::KubeconfigError| ConnectError::Kubeconfig {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let read = Kubeconfig::read_from(path).map_err(unusable)?;
    kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn error_for(content: Option<&str>) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let error = find(Some(&path)).await.unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        error
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_named_with_the_reason() {
        let missing = error_for(None).await;
        assert!(missing.contains("No such file"), "{missing}");
        let garbage = error_for(Some("][")).await;
        assert!(garbage.contains("parse kubeconfig"), "{garbage}");
        let empty = error_for(Some("apiVersion: v1\nkind: Config\n")).await;
        assert!(empty.contains("current context"), "{empty}");
    }
}
