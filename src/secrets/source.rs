//! Where the values of a Secret come from: etcd, or Kubernetes. They are read for one use, and kept nowhere.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::key::Keyring;
use super::seal::{Closed, open};
use crate::etcd;
use crate::kube::{Cause, KubeClient};
use crate::proto::{KubernetesSecret, Secret, SecretData};
use crate::store::object::decode;
use crate::store::object::secret::{Form, form};
use crate::store::{Name, Store};
use crate::wipe::wipe;

/// How long Kubernetes may take, with all attempts: the operation that waits is one of few that its plugin has at a time, and other
/// volumes need no Kubernetes.
const LIMIT: Duration = Duration::from_secs(5);

/// Reads the values of Secrets.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// The keys of this replica.
    pub keyring: Arc<Keyring>,
    /// `None` without Kubernetes.
    pub kube: Option<KubeClient>,
}

/// Why there are no values. No message has one in it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unavailable {
    /// etcd did not answer.
    #[error(transparent)]
    Etcd(#[from] etcd::Error),
    /// There is no such Secret, or none that can be read.
    #[error("does not exist or cannot be read")]
    Missing,
    /// They cannot be decrypted.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// Kubernetes has no such Secret.
    #[error("its Secret {0} of Kubernetes does not exist")]
    KubernetesMissing(String),
    /// This replica may not read it.
    #[error("its Secret {secret} of Kubernetes may not be read: {why}")]
    KubernetesForbidden {
        /// Its namespace and name.
        secret: String,
        /// The permission that is missing.
        why: String,
    },
    /// The API server did not answer, or there is none.
    #[error("its Secret {secret} of Kubernetes cannot be read: {why}")]
    KubernetesUnavailable {
        /// Its namespace and name.
        secret: String,
        /// The error of the request.
        why: String,
    },
}

impl Unavailable {
    /// The word for conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "EtcdFailed",
            Self::Missing => "SecretMissing",
            Self::Closed(Closed::UnknownKey(_)) => "SecretKeyLost",
            Self::Closed(Closed::UnknownVersion(_)) => "SecretFormatUnknown",
            Self::Closed(Closed::NotAuthentic) => "SecretNotAuthentic",
            Self::KubernetesMissing(_) => "KubernetesSecretMissing",
            Self::KubernetesForbidden { .. } => "KubernetesSecretForbidden",
            Self::KubernetesUnavailable { .. } => "KubernetesSecretUnavailable",
        }
    }

    /// Whether it may pass without a change of the Secret in etcd.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Etcd(_) => true,
            Self::Missing | Self::Closed(_) => false,
            Self::KubernetesMissing(_)
            | Self::KubernetesForbidden { .. }
            | Self::KubernetesUnavailable { .. } => true,
        }
    }

    /// Whether this replica, or what it asks, is at fault, and not the Secret: elsewhere it may be read.
    pub fn is_of_the_reader(&self) -> bool {
        match self {
            Self::Etcd(_) | Self::Missing => false,
            Self::Closed(_)
            | Self::KubernetesMissing(_)
            | Self::KubernetesForbidden { .. }
            | Self::KubernetesUnavailable { .. } => true,
        }
    }

    /// The sentence about the Secret of this name.
    pub fn about(&self, name: &str) -> String {
        match self {
            Self::Missing => format!("secret {name} {self}"),
            _ => format!("secret {name}: {self}"),
        }
    }
}

impl Reader {
    /// Reads with these keys, and as this user of Kubernetes.
    pub fn new(keyring: Arc<Keyring>, kube: Option<KubeClient>) -> Self {
        Self { keyring, kube }
    }

    /// The current values of a Secret.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn read(&self, store: &Store, name: &str) -> Result<SecretData, Unavailable> {
        let parsed: Name = name.parse().map_err(|_| Unavailable::Missing)?;
        let key = store.keys.secret(&parsed);
        let (stored, _) = store.etcd.get(&key).await?;
        let mut stored = stored.ok_or(Unavailable::Missing)?;
        let secret = decode::<Secret>(name, &stored.value);
        wipe(&mut stored.value);
        let mut secret = secret.map_err(|_| Unavailable::Missing)?;
        match form(&secret) {
            Form::Sealed(sealed) => Ok(open(&self.keyring, &key, sealed)?),
            Form::Kubernetes(named) => self.of_kubernetes(named).await,
            Form::Plain => Ok(SecretData {
                data: std::mem::take(&mut secret.data),
            }),
        }
    }

    async fn of_kubernetes(&self, named: &KubernetesSecret) -> Result<SecretData, Unavailable> {
        let KubernetesSecret { namespace, name } = named;
        // A record that another client wrote could name a list, or another path.
        if [namespace, name]
            .into_iter()
            .any(|part| Name::check(part).is_err())
        {
            return Err(Unavailable::Missing);
        }
        let secret = format!("{namespace}/{name}");
        let Some(kube) = &self.kube else {
            let why = "this replica runs without Kubernetes".to_owned();
            return Err(Unavailable::KubernetesUnavailable { secret, why });
        };
        let reading = timeout(LIMIT, kube.secret(namespace, name));
        let Ok(read) = reading.await else {
            let why = format!("the API server did not answer within {LIMIT:?}");
            return Err(Unavailable::KubernetesUnavailable { secret, why });
        };
        match read {
            Ok(Some(data)) => Ok(SecretData { data }),
            Ok(None) => Err(Unavailable::KubernetesMissing(secret)),
            Err(error) => {
                let why = error.to_string();
                Err(match error.cause {
                    Cause::Forbidden { .. } => Unavailable::KubernetesForbidden { secret, why },
                    _ => Unavailable::KubernetesUnavailable { secret, why },
                })
            }
        }
    }
}
