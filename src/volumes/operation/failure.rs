//! Why an operation failed, and when its target may be tried again.

use std::time::Duration;

use crate::csi::{CallError, Class, Code, Empty, Endpoint, Method};
use crate::etcd::{self, KeyValue, Revision};
use crate::retry::Policy;
use crate::secrets::Unavailable;
use crate::store::Keys;
use crate::store::object::volume::format_bytes;
use crate::volumes::index::Awaited;
use crate::volumes::record::Blocked;

/// No rest is longer.
const MOST: Duration = Duration::from_secs(600);

/// For calls that may succeed in a moment: 100 ms · 2ⁿ after the n-th failure in a row, and up to a quarter more.
pub const QUICK: Policy = Policy::never_shorter(Duration::from_millis(200), MOST);

/// For calls that hardly succeed in a moment: the first rest is the eighth of the quick ones, 100 ms · 2⁸.
pub const SLOW: Policy = Policy::never_shorter(Duration::from_millis(25_600), MOST);

/// For what no watch of ours reports, and a person mends, such as a Secret of Kubernetes that is missing: soon, and then every
/// minute.
pub const ELSEWHERE: Policy = Policy::never_shorter(Duration::from_secs(1), Duration::from_secs(60));

/// Why an operation failed, and when its target may be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Reason and message of the condition.
    pub why: Blocked,
    /// How long it rests before it is tried again; `None`: until something changes.
    pub retry: Option<Policy>,
    /// Without a condition: it could not be written to etcd either.
    pub is_quiet: bool,
    /// The gRPC code of the call that failed, if one did.
    pub code: Option<Code>,
    /// What ends it, beside what changes in the records.
    pub waits_for: Option<WaitsFor>,
}

/// What ends a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Another volume leaves the node, or another publication of the volume ends.
    Other,
    /// Another volume of the plugin is deleted.
    Capacity,
    /// A record that is none of the volume's own changes, or goes.
    Record(Box<ReadRecord>),
}

/// A record that an operation has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    /// The record, by its name.
    pub record: Awaited,
    /// Its mod revision then.
    pub revision: Revision,
}

/// What is wrong with a secret of a call. No part of its values is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFault {
    reason: &'static str,
    message: String,
    /// Whether it may pass without a change in etcd.
    may_pass: bool,
}

impl SecretFault {
    const MISSING: &'static str = "SecretMissing";

    /// A value is not in the secret, or is none that plugins take.
    pub fn lacking(message: String) -> Self {
        Self {
            reason: Self::MISSING,
            message,
            may_pass: false,
        }
    }

    /// The secret of this name has no values now.
    pub fn unavailable(name: &str, why: &Unavailable) -> Self {
        Self {
            reason: why.reason(),
            message: why.about(name),
            may_pass: why.may_pass(),
        }
    }
}

impl Failure {
    fn new(reason: &str, message: String, retry: Option<Policy>) -> Self {
        Self {
            why: Blocked {
                reason: reason.to_owned(),
                message,
            },
            retry,
            is_quiet: false,
            code: None,
            waits_for: None,
        }
    }

    fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// Ends when the record changes that was read, or goes.
    #[must_use]
    pub fn until_changed(mut self, keys: &Keys, read: &KeyValue) -> Self {
        let revision = read.mod_revision;
        let record = Awaited::of_key(keys, &read.key);
        self.waits_for = record.map(|record| WaitsFor::Record(Box::new(ReadRecord { record, revision })));
        self
    }

    /// A read or a write of etcd failed.
    pub fn etcd(error: &etcd::Error) -> Self {
        match error.class {
            // What a plugin answered does not fit into a record: without the answer, the record does.
            etcd::Class::TooLarge => Self::new("RecordTooLarge", error.to_string(), Some(SLOW)),
            _ => Self::new("EtcdFailed", error.to_string(), Some(QUICK)).quiet(),
        }
    }

    /// The volume's records change faster than operations can be decided from them.
    pub fn restless() -> Self {
        let message = "its records change faster than they can be acted on".to_owned();
        Self::new("Restless", message, Some(QUICK)).quiet()
    }

    /// A record lacks an id that a call needs. A change of the record ends the wait.
    pub fn incomplete_record(empty: &Empty) -> Self {
        Self::new("RecordIncomplete", empty.to_string(), None)
    }

    /// The record of a result can no longer be read. A change of the record ends the wait.
    pub fn unreadable_record() -> Self {
        let message = "its record can no longer be read, so that the result of a call is not in it; nothing is undone at \
                       the backend";
        Self::new("RecordMalformed", message.to_owned(), None)
    }

    /// A record cannot be read that may have what would be undone.
    pub fn unreadable_elsewhere(key: &[u8]) -> Self {
        let message = format!(
            "{} cannot be read, and may have what would be undone; nothing is undone at the backend",
            key.escape_ascii()
        );
        Self::new("RecordMalformed", message, Some(SLOW))
    }

    /// A tombstone, or something in it, cannot be read, and may be of the volume.
    pub fn unreadable_tombstone(tombstone: &str) -> Self {
        let message = format!(
            "tombstone {tombstone}, or a value in it, cannot be read, and may be of the volume; quorate delete tombstone \
             {tombstone} forgets it"
        );
        Self::new("RecordMalformed", message, Some(SLOW))
    }

    /// A record of the volume was forgotten by force after its deletion had begun.
    pub fn deletion_begun(volume: &str, tombstone: &str) -> Self {
        let message = format!(
            "the deletion of the volume at the backend may have begun; quorate delete volume {volume} gives this one up, and then \
             quorate tombstone clean {tombstone} completes the deletion"
        );
        Self::new("DeletionBegun", message, Some(SLOW))
    }

    /// Values of secrets are missing. A change of a secret in etcd ends the wait.
    pub fn of_secrets(faults: &[SecretFault]) -> Self {
        // What cannot be read says more than what is missing beside it.
        let says_more = |fault: &&SecretFault| fault.reason != SecretFault::MISSING;
        let reason = faults
            .iter()
            .find(says_more)
            .map_or(SecretFault::MISSING, |fault| fault.reason);
        let sentences: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
        let may_pass = faults.iter().any(|fault| fault.may_pass);
        Self::new(reason, sentences.join("; "), may_pass.then_some(ELSEWHERE))
    }

    /// The volume has secrets, and its plugin would get them in clear text. A change of the plugin ends the wait.
    pub fn plaintext_secrets(endpoint: &Endpoint) -> Self {
        let message = format!(
            "the volume has secrets, which could be read on the way to {endpoint}: use https or a unix socket, or set \
             allowPlaintextSecrets: true in the plugin"
        );
        Self::new("PlaintextSecrets", message, None)
    }

    /// The backend has too little capacity for the volume, by the plugin's own word. How much it has is not said: that changes with
    /// every other volume, and each change would be written.
    pub fn no_capacity(required: i64) -> Self {
        let message = format!("the plugin has no capacity of {}", format_bytes(required));
        Self {
            waits_for: Some(WaitsFor::Capacity),
            ..Self::new("InsufficientCapacity", message, Some(SLOW))
        }
    }

    /// A call failed: the table of gRPC codes ([`crate::csi::class`]) says what follows.
    pub fn of_call(error: &CallError) -> Self {
        let retry = match error.class() {
            // Done is an error only where the call was not taken for a success.
            Class::Done | Class::Retry | Class::InProgress => Some(QUICK),
            Class::RetrySlowly | Class::WaitForOther => Some(SLOW),
            Class::Final => None,
        };
        Self {
            code: Some(error.code),
            waits_for: waits_for(error),
            ..Self::new(error.code_name(), error.to_string(), retry)
        }
    }
}

/// What ends the failure of a call, beside a retry.
fn waits_for(error: &CallError) -> Option<WaitsFor> {
    match (error.class(), error.method, error.code) {
        (Class::WaitForOther, ..) => Some(WaitsFor::Other),
        // The backend is full.
        (_, Method::CreateVolume | Method::ControllerExpandVolume, Code::ResourceExhausted) => {
            Some(WaitsFor::Capacity)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::class::{Effect, classify, effect};

    #[test]
    fn a_lost_key_is_the_reason_beside_what_is_missing_and_kubernetes_is_asked_again() {
        use crate::secrets::Closed;

        let lost = Unavailable::Closed(Closed::UnknownKey("0011223344556677".to_owned()));
        let mut faults = vec![
            SecretFault::lacking("secret a has no token".to_owned()),
            SecretFault::unavailable("b", &lost),
        ];
        let failure = Failure::of_secrets(&faults);
        assert_eq!(
            (failure.why.reason.as_str(), failure.retry),
            ("SecretKeyLost", None)
        );
        assert_eq!(
            failure.why.message,
            "secret a has no token; secret b: its values are encrypted with key 0011223344556677, which no key file here holds"
        );
        let absent = Unavailable::KubernetesMissing("x/y".to_owned());
        faults.push(SecretFault::unavailable("c", &absent));
        assert_eq!(Failure::of_secrets(&faults).retry, Some(ELSEWHERE));
        assert_eq!(Failure::of_secrets(&faults[..1]).why.reason, "SecretMissing");
    }

    /// INV-6, INV-9: each code of each call has its policy, and a refusal to create proves what the table says.
    #[test]
    fn what_follows_from_every_code_of_every_call_is_what_the_table_says() {
        for method in Method::ALL {
            for code in (1..=16).map(Code::from_i32) {
                let error = CallError {
                    method,
                    code,
                    message: "no".to_owned(),
                };
                let failure = Failure::of_call(&error);
                let expected = match classify(method, code) {
                    Class::Final => None,
                    Class::RetrySlowly | Class::WaitForOther => Some(SLOW),
                    Class::Done | Class::Retry | Class::InProgress => Some(QUICK),
                };
                assert_eq!(failure.retry, expected, "{method} {code:?}");
                let waits_for = match (method, code) {
                    _ if classify(method, code) == Class::WaitForOther => Some(WaitsFor::Other),
                    (Method::CreateVolume | Method::ControllerExpandVolume, Code::ResourceExhausted) => {
                        Some(WaitsFor::Capacity)
                    }
                    _ => None,
                };
                assert_eq!(failure.waits_for, waits_for, "{method} {code:?}");
                assert!(failure.why.message.contains("no") && !failure.is_quiet);
                assert_eq!(failure.why.reason, error.code_name());
            }
        }
        // A volume that may exist is never taken for refused.
        assert_eq!(effect(Method::CreateVolume, Code::AlreadyExists), Effect::Unknown);
        assert_eq!(
            effect(Method::CreateVolume, Code::DeadlineExceeded),
            Effect::Unknown
        );
        assert_eq!(effect(Method::CreateVolume, Code::OutOfRange), Effect::None);
    }
}
