//! Which API server, and as whom: an explicit kubeconfig, the pod's own service account, or the usual places.

use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};

/// No usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig {} cannot be used: {why}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// `$KUBECONFIG` is set, but cannot be used.
    #[error("$KUBECONFIG cannot be used: {0}")]
    Environment(String),
    /// In a pod, but its service account cannot be used.
    #[error(
        "in a pod ($KUBERNETES_SERVICE_HOST is set), but its service account in \
         /var/run/secrets/kubernetes.io/serviceaccount cannot be used: {0}"
    )]
    InCluster(String),
    /// There is nothing anywhere.
    #[error(
        "no Kubernetes API server is configured; tried, in this order: --kubeconfig (not given), the pod's service \
         account ($KUBERNETES_SERVICE_HOST is not set), $KUBECONFIG (not set), {tried}"
    )]
    Nowhere {
        /// What became of the last place.
        tried: String,
    },
    /// The configuration is there, but no client can be made of it.
    #[error("no client can be made for the API server {server}: {why}")]
    Client {
        /// Its URL.
        server: String,
        /// Why.
        why: String,
    },
}

/// Finds the configuration. Reads files, but connects to nothing: a server that is down is no error here.
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
    async fn a_kubeconfig_that_cannot_be_used_is_named_with_the_reason() {
        let missing = error_for(None).await;
        assert!(missing.contains("No such file"), "{missing}");
        let garbage = error_for(Some("][")).await;
        assert!(garbage.contains("parse kubeconfig"), "{garbage}");
        let empty = error_for(Some("apiVersion: v1\nkind: Config\n")).await;
        assert!(empty.contains("current context"), "{empty}");
    }
}
