//! Asks the API server for its version and, for each permission that the bundle needs, whether this client has it.

use std::time::{Duration, Instant};

use futures::StreamExt;

use super::{CONNECT_LIMIT, LIMIT};
use crate::cli::doctor::DoctorArgs;
use crate::cli::doctor::seen::KubernetesSeen;
use crate::cli::kubernetes::{Unconnected, connect};
use crate::kube::{ConnectError, KubeClient, Limits, Permission};
use crate::resources::Bundle;
use crate::resources::permissions::Permissions;

/// Limits of each request. One that failed is not repeated for long.
const LIMITS: Limits = Limits {
    connect: CONNECT_LIMIT,
    request: LIMIT,
    wait: Duration::from_millis(500),
};

/// How long the plugin for credentials of a kubeconfig may take, and then the server with all reviews.
const WHOLE_LIMIT: Duration = Duration::from_secs(5);

/// How many permissions are reviewed at a time. An API server takes 200 requests that write at a time, from all its clients.
const AT_ONCE: usize = 16;

/// Asks the API server that the flags lead to.
pub async fn observe(args: &DoctorArgs, bundle: &Bundle) -> KubernetesSeen {
    if args.no_kubernetes {
        return KubernetesSeen::Skipped("--no-kubernetes".to_owned());
    }
    let connected = tokio::time::timeout(WHOLE_LIMIT, connect(args.kubeconfig.clone(), LIMITS)).await;
    let kube = match connected {
        Ok(Ok(kube)) => kube,
        Ok(Err(Unconnected::Configuration(nowhere @ ConnectError::Nowhere { .. }))) => {
            return KubernetesSeen::Skipped(nowhere.to_string());
        }
        Ok(Err(unusable)) => return KubernetesSeen::Unusable(unusable.to_string()),
        Err(_) => {
            let why = format!("the credentials were not there within {WHOLE_LIMIT:?}");
            return KubernetesSeen::Unusable(why);
        }
    };
    let version = kube.server_version().await.map_err(|error| error.to_string());
    let reviews = match &version {
        Ok(_) => review(&kube, Permissions::of(bundle, None).each()).await,
        Err(_) => Vec::new(),
    };
    KubernetesSeen::Asked {
        server: kube.server().to_owned(),
        version,
        reviews,
    }
}

async fn review(kube: &KubeClient, permissions: Vec<Permission>) -> Vec<(Permission, Result<bool, String>)> {
    let until = Instant::now() + WHOLE_LIMIT;
    let asked = futures::stream::iter(permissions).map(async |permission| {
        let allowed = match tokio::time::timeout_at(until.into(), kube.may(&permission)).await {
            Ok(allowed) => allowed.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {WHOLE_LIMIT:?}")),
        };
        (permission, allowed)
    });
    asked.buffered(AT_ONCE).collect().await
}
