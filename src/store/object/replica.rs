//! The Replica kind: a running controller, read from its registration. It has no stored object of its own.

use serde_json::{Value, json};

use super::document::{given, present, with_header};
use super::fields::Fault;
use super::{Malformed, message, time};
use crate::etcd::Revision;
use crate::proto::Registration;
use crate::release::Version;

/// `Replica`, as in a document's `kind`.
pub const KIND: &str = "Replica";

/// A registration that can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// The replica's node id, from the key.
    pub name: String,
    /// The version that it runs.
    pub version: Version,
    /// The id of the process: another one after each start.
    pub process: String,
    /// When it registered.
    pub registered_at: Option<jiff::Timestamp>,
    /// The address of its status page; empty without one.
    pub page: String,
}

/// Reads the registration of the replica `name`.
///
/// # Errors
/// [`Malformed`] if it is no registration or its version is out of range.
pub fn decode(name: &str, value: &[u8]) -> Result<Replica, Malformed> {
    let stored: Registration = message("Registration", value)?;
    let version = Version::from_proto(stored.version.as_ref())
        .map_err(|malformed| Malformed::Field(Fault::new("version", malformed.to_string())))?;
    Ok(Replica {
        name: name.to_owned(),
        version,
        process: stored.process,
        registered_at: time::from_proto(stored.registered_at.as_ref()),
        page: stored.page,
    })
}

/// The document of a replica; `leader` comes from the election keys.
pub fn to_document(replica: &Replica, mod_revision: Revision, leader: bool) -> Value {
    let status = json!({
        "release": replica.version.release.to_string(),
        "version": replica.version.to_string(),
        "process": replica.process,
        "leader": leader,
        "registeredAt": replica.registered_at.map(time::rfc3339),
        "page": given(&replica.page),
    });
    let metadata = json!({"name": replica.name, "resourceVersion": mod_revision.to_string()});
    with_header(KIND, metadata, json!({"status": present(status)}))
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::release::Release;

    #[test]
    fn a_registration_without_a_version_is_malformed() {
        let stored = Registration::default().encode_to_vec();
        assert_eq!(
            decode("r1", &stored).unwrap_err().to_string(),
            "version: the version is missing"
        );
    }

    #[test]
    fn a_replica_shows_what_it_registered() {
        let stored = Registration {
            version: Some(Version::from(Release::new(1, 2, 3)).to_proto()),
            process: "abc".to_owned(),
            registered_at: Some(prost_types::Timestamp {
                seconds: 1_772_366_400,
                nanos: 0,
            }),
            page: "http://10.0.0.4:8080/".to_owned(),
        };
        let replica = decode("r1", &stored.encode_to_vec()).unwrap();
        assert_eq!(
            to_document(&replica, Revision(9), true),
            json!({
                "apiVersion": "quorate.dev/v1", "kind": "Replica",
                "metadata": {"name": "r1", "resourceVersion": "9"},
                "status": {
                    "leader": true, "page": "http://10.0.0.4:8080/", "process": "abc",
                    "registeredAt": "2026-03-01T12:00:00Z",
                    "release": "1.2.3", "version": "1.2.3",
                },
            })
        );
    }
}
