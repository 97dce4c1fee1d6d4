//! The status key: decoding that trusts no byte, encoding that keeps the fields of newer releases, and `status.json`.

use std::fmt;

use prost::Message as _;
use serde::Serialize;

use crate::etcd::Revision;
use crate::proto::{KubernetesReconcilerStatus, kubernetes_reconciler_status};
use crate::release::{Malformed, Release, Version};
use crate::wire;

/// The progress of the reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The last reconciliation is complete.
    Done,
    /// A reconciliation is under way.
    Working,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "DONE",
            Self::Working => "WORKING",
        })
    }
}

/// A well-formed status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The progress of the reconciliation.
    pub state: State,
    /// The version that reconciled; while working, the lesser of the old and the new one.
    pub version: Version,
    /// Releases below this one must not serve; while working, the greater of the old and the new minimum.
    pub minimum_compatible: Release,
    /// Fields of a newer release, as they were read. They are written back, so that an older release that rewrites the
    /// status loses nothing.
    unknown: Vec<u8>,
}

/// Why a value is no status. WaitReady waits on; the leader acts as if there were no status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The bytes are not this protobuf message.
    #[error("the status cannot be decoded: {0}")]
    Decode(String),
    /// The state is neither DONE nor WORKING.
    #[error("the status has the unknown state {0}")]
    State(i32),
    /// The version is missing or out of range.
    #[error("the version in the status is malformed: {0}")]
    Version(Malformed),
    /// The minimum compatible release is missing or out of range.
    #[error("the minimum compatible release in the status is {0}")]
    Minimum(String),
}

impl Status {
    /// A status without fields of newer releases.
    pub fn new(state: State, version: Version, minimum_compatible: Release) -> Self {
        Self {
            state,
            version,
            minimum_compatible,
            unknown: Vec::new(),
        }
    }

    /// Decodes a stored value. A known field that is missing or out of range is an error; an unknown field is not.
    ///
    /// # Errors
    /// [`StatusError`]; no bytes make this panic.
    pub fn decode(value: &[u8]) -> Result<Self, StatusError> {
        let message = KubernetesReconcilerStatus::decode(value)
            .map_err(|error| StatusError::Decode(error.to_string()))?;
        let state = match message.state() {
            kubernetes_reconciler_status::State::Done => State::Done,
            kubernetes_reconciler_status::State::Working => State::Working,
            kubernetes_reconciler_status::State::Unknown => return Err(StatusError::State(message.state)),
        };
        let version = Version::from_proto(message.version.as_ref()).map_err(StatusError::Version)?;
        let minimum = message
            .minimum_compatible_release
            .as_ref()
            .ok_or(StatusError::Minimum("missing".to_owned()))?;
        let minimum_compatible = Release::from_proto(Some(minimum))
            .map_err(|error| StatusError::Minimum(format!("malformed: {error}")))?;
        Ok(Self {
            state,
            version,
            minimum_compatible,
            unknown: wire::fields(value, |number| number > LAST_KNOWN_FIELD),
        })
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let message = KubernetesReconcilerStatus {
            state: match self.state {
                State::Done => kubernetes_reconciler_status::State::Done,
                State::Working => kubernetes_reconciler_status::State::Working,
            } as i32,
            version: Some(self.version.to_proto()),
            minimum_compatible_release: Some(self.minimum_compatible.to_proto()),
        };
        let mut value = message.encode_to_vec();
        value.extend_from_slice(&self.unknown);
        value
    }

    /// This status in another state, with its unknown fields.
    #[must_use]
    pub fn in_state(&self, state: State) -> Self {
        Self {
            state,
            ..self.clone()
        }
    }

    /// The status during a reconciliation by `version` with `minimum`: it admits what both this status and the new state
    /// admit.
    #[must_use]
    pub fn intersection(&self, version: &Version, minimum: Release) -> Self {
        Self {
            state: State::Working,
            version: if self.version.release < version.release {
                &self.version
            } else {
                version
            }
            .clone(),
            minimum_compatible: self.minimum_compatible.max(minimum),
            unknown: self.unknown.clone(),
        }
    }

    /// This status with the unknown fields of the status that it replaces.
    #[must_use]
    pub fn replacing(self, before: Option<&Self>) -> Self {
        Self {
            unknown: before.map_or_else(Vec::new, |before| before.unknown.clone()),
            ..self
        }
    }

    /// Whether the known fields are equal.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        self.state == other.state
            && self.version == other.version
            && self.minimum_compatible == other.minimum_compatible
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} by {}, minimum compatible release {}",
            self.state, self.version, self.minimum_compatible
        )
    }
}

/// The last field number that this release writes or knows.
const LAST_KNOWN_FIELD: u64 = 3;

/// `status.json`: the status for people, with the leader and what is wrong. No decision reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusJson {
    /// `DONE` or `WORKING`; null while there is no status.
    pub state: Option<String>,
    /// The version in semver form; null while there is no status.
    pub version: Option<String>,
    /// `MAJOR.MINOR.PATCH`; null while there is no status.
    pub minimum_compatible_release: Option<String>,
    /// Node id of the leader.
    pub leader: String,
    /// The leader's term.
    pub term: i64,
    /// What is wrong; null if nothing is.
    pub degraded: Option<Degraded>,
}

/// What is wrong with the reconciled state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Degraded {
    /// One CamelCase word.
    pub reason: String,
    /// What failed or is waited for, in words.
    pub message: String,
    /// Since when, RFC 3339 in UTC; a change of the message keeps it.
    pub since: String,
}

impl StatusJson {
    /// Describes this status.
    pub fn new(status: Option<&Status>, leader: &str, term: Revision, degraded: Option<Degraded>) -> Self {
        Self {
            state: status.map(|status| status.state.to_string()),
            version: status.map(|status| status.version.to_string()),
            minimum_compatible_release: status.map(|status| status.minimum_compatible.to_string()),
            leader: leader.to_owned(),
            term: term.0,
            degraded,
        }
    }

    /// Indented JSON with a final line break, which `etcdctl get --print-value-only` prints as it is.
    pub fn to_json(&self) -> String {
        // A struct of strings and numbers always serializes; an empty object would still be valid JSON.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_else(|_| "{}".to_owned());
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status() -> Status {
        Status::new(
            State::Done,
            Version::from(Release::new(1, 2, 3)),
            Release::new(0, 9, 0),
        )
    }

    #[test]
    fn the_bytes_are_those_that_other_implementations_read() {
        // state = 1; version { release { 1, 2, 3 } }; minimum { 0, 9, 0 }: written out by hand.
        let expected: &[u8] = &[
            0x08, 1, 0x12, 8, 0x0a, 6, 0x08, 1, 0x10, 2, 0x18, 3, 0x1a, 2, 0x10, 9,
        ];
        assert_eq!(status().encode(), expected);
        assert_eq!(Status::decode(expected), Ok(status()));
    }

    #[test]
    fn fields_of_a_newer_release_are_read_over_and_written_back() {
        let mut value = status().encode();
        let newer = [0x82, 0x01, 3, b'n', b'e', b'w', 0xa0, 0x01, 7];
        value.extend_from_slice(&newer);
        let read = Status::decode(&value).unwrap();
        assert!(read.says_the_same_as(&status()));
        assert!(read.in_state(State::Working).encode().ends_with(&newer));
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |change: fn(&mut KubernetesReconcilerStatus)| {
            let mut message = KubernetesReconcilerStatus::decode(&*status().encode()).unwrap();
            change(&mut message);
            Status::decode(&message.encode_to_vec()).unwrap_err().to_string()
        };
        assert!(missing(|m| m.state = 0).contains("state 0"));
        assert!(missing(|m| m.state = 77).contains("state 77"));
        assert!(missing(|m| m.version = None).contains("version"));
        assert!(missing(|m| m.minimum_compatible_release = None).contains("missing"));
        assert!(Status::decode(b"").is_err(), "emptied");
        let negative = |m: &mut KubernetesReconcilerStatus| {
            m.minimum_compatible_release = Some(crate::proto::version::Release {
                major: -1,
                minor: 0,
                patch: 0,
            });
        };
        assert!(missing(negative).contains("negative"));
    }

    #[test]
    fn the_intersection_admits_no_more_than_either_side() {
        let (old, new) = (Release::new(1, 0, 0), Release::new(2, 0, 0));
        let stored = Status::new(State::Done, old.into(), Release::new(0, 5, 0));
        let upgrade = stored.intersection(&new.into(), Release::new(1, 0, 0));
        assert_eq!(
            (upgrade.version.release, upgrade.minimum_compatible),
            (old, Release::new(1, 0, 0))
        );
        let stored = Status::new(State::Done, new.into(), Release::new(1, 0, 0));
        let rollback = stored.intersection(&old.into(), Release::new(0, 5, 0));
        assert_eq!(
            (rollback.version.release, rollback.minimum_compatible),
            (old, Release::new(1, 0, 0))
        );
    }

    #[test]
    fn status_json_has_the_published_fields() {
        let text = StatusJson::new(Some(&status()), "n1", Revision(42), None).to_json();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "state": "DONE", "version": "1.2.3", "minimumCompatibleRelease": "0.9.0",
                "leader": "n1", "term": 42, "degraded": null,
            })
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(status) = Status::decode(&value) {
                prop_assert_eq!(Status::decode(&status.encode()), Ok(status));
            }
        }
    }
}
