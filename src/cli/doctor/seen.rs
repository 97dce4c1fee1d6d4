//! What doctor has seen, before it judges. Pure.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::etcd::checkup::EndpointSeen;
use crate::etcd::{Error, KeyValue};
use crate::identity::ends::CertificateEnd;
use crate::kube::Permission;
use crate::roles::membership::Membership;
use crate::secrets::Keyring;
use crate::store::Keys;

/// Everything that was seen. It has no debug form, since the values of Secrets are among it.
pub struct Seen {
    /// When it was seen, by the clock of this machine.
    pub now: Timestamp,
    /// The keys below the prefix.
    pub keys: Keys,
    /// Whether the connection to etcd logs in with a password, which takes a quorum.
    pub logs_in: bool,
    /// Each configured endpoint; else what is wrong with the settings.
    pub endpoints: Result<Vec<EndpointSeen>, String>,
    /// The certificates of the connection to etcd.
    pub files: Vec<FileSeen>,
    /// What etcd holds; else why that is not known.
    pub store: Result<StoreSeen, String>,
    /// The API server.
    pub kubernetes: KubernetesSeen,
    /// The authorities of `--ca-dir`.
    pub authorities: Vec<AuthoritySeen>,
    /// The keys of `--encryption-key-file`.
    pub keyring: Keyring,
}

/// A file of certificates.
#[derive(Clone, Debug)]
pub struct FileSeen {
    /// The flag that names it.
    pub flag: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Its certificates.
    pub certificates: Vec<CertificateEnd>,
}

/// What etcd holds.
pub struct StoreSeen {
    /// Whether no linearizable read was answered, so that this is what single members hold.
    pub without_quorum: bool,
    /// The members; else why they are not known.
    pub membership: Result<Membership, String>,
    /// The members' own client URLs, those that are no configured endpoints.
    pub members: Vec<EndpointSeen>,
    /// Every range of keys.
    pub ranges: Vec<RangeSeen>,
    /// The TTL of the leader's lease, as etcd granted it.
    pub leader_ttl: Option<Duration>,
    /// Each recorded plugin that can be read.
    pub plugins: Vec<PluginSeen>,
}

/// A range of keys below the prefix.
pub struct RangeSeen {
    /// What all its keys begin with.
    pub prefix: String,
    /// Its keys.
    pub read: Result<Vec<KeyValue>, Error>,
    /// Whether it may be written; `None` where that was not asked, since there is no quorum.
    pub write: Option<Result<(), Error>>,
}

/// A plugin by its record.
#[derive(Clone, Debug)]
pub struct PluginSeen {
    /// Its name.
    pub name: String,
    /// Its endpoint.
    pub endpoint: String,
    /// Its handshake; else why it cannot be called, after a word for that.
    pub handshake: Result<(), (&'static str, String)>,
}

/// An authority of `--ca-dir`.
#[derive(Clone, Debug)]
pub struct AuthoritySeen {
    /// The file of its certificate.
    pub path: PathBuf,
    /// Until when it is valid; else why it cannot sign.
    pub outcome: Result<Timestamp, String>,
}

/// The API server.
#[derive(Clone, Debug)]
pub enum KubernetesSeen {
    /// It was not asked, for this reason.
    Skipped(String),
    /// The settings for it are unusable.
    Unusable(String),
    /// It was asked.
    Asked {
        /// Its URL.
        server: String,
        /// Its version.
        version: Result<String, String>,
        /// Each permission that the bundle needs, and whether this client has it.
        reviews: Vec<(Permission, Result<bool, String>)>,
    },
}

impl StoreSeen {
    /// Every key that could be read.
    pub fn keys(&self) -> impl Iterator<Item = &KeyValue> {
        let read = self.ranges.iter().filter_map(|range| range.read.as_ref().ok());
        read.flatten()
    }
}
