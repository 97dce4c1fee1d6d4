//! The stored record of a certificate after an answer, and after an operator's request. Fields that only a later release knows stay,
//! those of the request included: a newer replica may have written it. Pure.

use std::ops::RangeInclusive;

use prost::Message;

use jiff::Timestamp;

use super::issue::Signed;
use super::node::NodeRole;
use super::plan::Refusal;
use super::records::Record;
use super::revocation::has_ended;
use crate::proto::node_certificate::State;
use crate::proto::{CertificateRequest, IssuedCertificate, NodeCertificate};
use crate::store::object::time;
use crate::wire;

/// Numbers of fields.
type Fields = &'static [RangeInclusive<u64>];

/// The fields of the node, the request, the state and the reason for it.
const REQUEST: Fields = &[1..=5];

/// The fields of the state and of the reason for it.
const STATE: Fields = &[3..=5];

/// These, and the fields of the certificate.
const ANSWER: Fields = &[3..=9, 12..=12];

/// These, and the fields that only the record of etcd's certificates has.
const ETCD_ANSWER: Fields = &[3..=12];

/// The record after this node, by its name, has requested a certificate. It keeps the last one. `before` is empty if there was no
/// record.
pub fn requested(before: &[u8], node: &str, request: CertificateRequest) -> Vec<u8> {
    let asked = NodeCertificate {
        node: node.to_owned(),
        request: Some(request),
        state: State::Pending.into(),
        ..NodeCertificate::default()
    };
    with(before, REQUEST, &asked)
}

/// The record after its request was signed.
pub fn issued(before: &Record, role: NodeRole, signed: &Signed) -> Vec<u8> {
    let answer = NodeCertificate {
        role: role.to_proto().into(),
        ..answered(before, signed)
    };
    with(&before.stored, ANSWER, &answer)
}

/// The record of etcd's certificates after its request was signed by an authority whose certificates, and those above it, are these
/// (PEM). It lists every certificate that has not ended.
pub fn issued_to_etcd(before: &Record, authorities: &str, signed: &Signed, now: Timestamp) -> Vec<u8> {
    let mut issued = before.value.issued.clone();
    issued.retain(|issued| !has_ended(issued.not_after.as_ref(), now));
    issued.push(IssuedCertificate {
        serial: signed.serial.clone(),
        not_after: Some(time::to_proto(signed.not_after)),
    });
    let answer = NodeCertificate {
        issued,
        authorities: authorities.to_owned(),
        ..answered(before, signed)
    };
    with(&before.stored, ETCD_ANSWER, &answer)
}

/// What every answer with a certificate says.
fn answered(before: &Record, signed: &Signed) -> NodeCertificate {
    let end = time::to_proto(signed.not_after);
    let latest = before
        .value
        .latest_not_after
        .filter(|latest| latest.seconds > end.seconds);
    NodeCertificate {
        state: State::Issued.into(),
        chain: signed.chain_pem.clone(),
        not_after: Some(end),
        latest_not_after: latest.or(Some(end)),
        authority_sha256: signed.authority.0.to_vec(),
        ..NodeCertificate::default()
    }
}

/// The record after its request was refused. It keeps the last certificate.
pub fn refused(before: &Record, refusal: &Refusal) -> Vec<u8> {
    let answer = NodeCertificate {
        state: State::Failed.into(),
        reason: refusal.word().to_owned(),
        message: refusal.to_string(),
        ..NodeCertificate::default()
    };
    with(&before.stored, STATE, &answer)
}

/// The record after an operator asked for another certificate.
pub fn rotating(before: &[u8]) -> Vec<u8> {
    let asked = NodeCertificate {
        state: State::Rotate.into(),
        ..NodeCertificate::default()
    };
    with(before, STATE, &asked)
}

/// The record with other values of these fields; `change` has no others. If the change were merely appended, it could not empty a
/// text, and each former chain would stay.
fn with(before: &[u8], written: Fields, change: &NodeCertificate) -> Vec<u8> {
    let is_written = |number: u64| written.iter().any(|fields| fields.contains(&number));
    let mut value = wire::fields(before, |number| !is_written(number));
    value.extend(change.encode_to_vec());
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::Revision;
    use crate::identity::AuthorityDigest;
    use crate::proto::Role;

    fn read(stored: &[u8]) -> NodeCertificate {
        NodeCertificate::decode(stored).unwrap()
    }

    fn record(stored: Vec<u8>) -> Record {
        Record {
            value: read(&stored),
            stored: stored.into(),
            revision: Revision(3),
        }
    }

    fn pending() -> Record {
        let of = NodeCertificate {
            node: "n1".to_owned(),
            request: Some(CertificateRequest {
                csr: b"csr".to_vec(),
                ..CertificateRequest::default()
            }),
            state: State::Pending.into(),
            ..NodeCertificate::default()
        };
        record(of.encode_to_vec())
    }

    fn signed(chain: &str, end: &str) -> Signed {
        Signed {
            chain_pem: chain.to_owned(),
            not_after: end.parse().unwrap(),
            serial: chain.as_bytes().to_vec(),
            authority: AuthorityDigest([9; 32]),
        }
    }

    fn end(end: &str) -> Option<prost_types::Timestamp> {
        Some(time::to_proto(end.parse::<Timestamp>().unwrap()))
    }

    #[test]
    fn the_latest_end_never_falls_and_a_refusal_keeps_the_last_certificate() {
        // With nanoseconds, which a whole second has to replace.
        let (late, early) = ("2026-03-03T12:00:00.5Z", "2026-03-02T12:00:00Z");
        let first = issued(&pending(), NodeRole::Manager, &signed("long", late));
        let second = record(issued(&record(first), NodeRole::Worker, &signed("short", early)));
        assert_eq!(second.value.not_after, end(early));
        assert_eq!(second.value.authority_sha256, [9; 32]);
        assert_eq!(second.value.latest_not_after, end(late));
        assert_eq!(
            (second.value.state(), second.value.role()),
            (State::Issued, Role::Worker)
        );
        let third = record(refused(&second, &Refusal::NodeRemoved));
        assert_eq!(
            (third.value.state(), third.value.reason.as_str()),
            (State::Failed, "NodeRemoved")
        );
        assert_eq!(third.value.chain, "short");
        assert_eq!(third.value.latest_not_after, end(late));
        let fourth = read(&issued(&third, NodeRole::Worker, &signed("long", late)));
        assert_eq!((fourth.reason.as_str(), fourth.message.as_str()), ("", ""));
        let asked = read(&rotating(&third.stored));
        assert_eq!(
            (asked.state(), asked.reason.as_str(), asked.chain.as_str()),
            (State::Rotate, "", "short")
        );
        assert_eq!(
            (&asked.node, &asked.request),
            (&third.value.node, &third.value.request)
        );
        let other = CertificateRequest {
            csr: b"other".to_vec(),
            ..CertificateRequest::default()
        };
        let again = read(&requested(&third.stored, "n1", other.clone()));
        assert_eq!((again.state(), again.reason.as_str()), (State::Pending, ""));
        assert_eq!((again.chain.as_str(), again.request), ("short", Some(other)));
        assert_eq!(again.latest_not_after, end(late));
    }

    #[test]
    fn the_record_of_etcd_lists_each_certificate_until_it_has_ended() {
        let (first, second) = ("2026-03-02T12:00:00Z", "2026-04-02T12:00:00Z");
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let serials = |record: &Record| -> Vec<Vec<u8>> {
            let issued = record.value.issued.iter();
            issued.map(|issued| issued.serial.clone()).collect()
        };
        let one = record(issued_to_etcd(&pending(), "above", &signed("a", first), now));
        assert_eq!(
            (one.value.state(), one.value.authorities.as_str(), one.value.role),
            (State::Issued, "above", 0)
        );
        let asked = record(requested(&one.stored, "n1", CertificateRequest::default()));
        assert_eq!(serials(&asked), [b"a"], "a request loses none");
        let refused = record(refused(&asked, &Refusal::NotJoined));
        assert_eq!(serials(&refused), [b"a"]);
        let two = record(issued_to_etcd(&refused, "other", &signed("b", second), now));
        assert_eq!(serials(&two), [b"a", b"b"]);
        assert_eq!(two.value.authorities, "other");
        let later = "2026-03-10T12:00:00Z".parse().unwrap();
        let three = record(issued_to_etcd(&two, "other", &signed("c", second), later));
        assert_eq!(serials(&three), [b"b", b"c"]);
        assert_eq!(three.value.latest_not_after, end(second));
    }

    #[test]
    fn what_only_a_later_release_knows_stays_and_a_request_does_not_grow() {
        // Field 2 is the request; in it field 15, a varint. Then field 15 of the record.
        let newer: [&[u8]; 2] = [&[0x12, 2, 0x78, 7], &[0x78, 9]];
        let mut stored = pending().stored.into_vec();
        stored.extend(newer.concat());
        let chain = signed("chain", "2026-03-02T12:00:00Z");
        let first = issued(&record(stored), NodeRole::Worker, &chain);
        for after in [
            issued(&record(first.clone()), NodeRole::Worker, &chain),
            refused(&record(first.clone()), &Refusal::NodeRemoved),
            rotating(&first),
        ] {
            for field in newer {
                assert!(
                    after.windows(field.len()).any(|bytes| bytes == field),
                    "{after:?}"
                );
            }
            let request = read(&after).request.unwrap();
            assert_eq!(request.csr, b"csr");
        }
        let request = requested(&first, "n1", CertificateRequest::default());
        assert!(request.ends_with(newer[1]) || request.windows(2).any(|bytes| bytes == newer[1]));
        let again = issued(&record(first.clone()), NodeRole::Worker, &chain);
        assert_eq!(again.len(), first.len());
    }
}
