//! Which certificates of etcd are revoked. Pure.
//!
//! Those of a uid that is removed, or observed as a worker, until their ends: etcd takes any certificate of its authority, whatever the
//! role of the node by then (INV-13). What was revoked stays so, also if the node is promoted again: it gets other certificates then.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use jiff::{SignedDuration, Timestamp};
use prost::Message;

use super::authority::AuthorityDigest;
use super::validity::BACKDATED;
use crate::etcd::{KeyValue, Revision};
use crate::proto::{IssuedCertificate, RevocationList, RevokedCertificate};
use crate::store::object::{message, time};
use crate::wire;

/// How long a list says it is valid. Etcd does not look at that, and others refuse certificates without a valid list.
pub const LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The fields of a list.
const FIELDS: RangeInclusive<u64> = 1..=6;

/// The list on record.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum List {
    /// There is none.
    #[default]
    Absent,
    /// It cannot be read. It is left as it is: what it revokes of nodes that are managers again stands nowhere else.
    Unreadable,
    /// As it was last written.
    Recorded(Recorded),
}

/// A list on record.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// What it says, without the signed list.
    pub value: RevocationList,
    /// The stored bytes of what only a later release knows.
    unknown: Vec<u8>,
    /// When it was last written.
    pub revision: Revision,
}

impl List {
    /// Reads a stored list.
    pub fn read(kv: &KeyValue) -> Self {
        let Ok(mut value) = message::<RevocationList>("RevocationList", &kv.value) else {
            return Self::Unreadable;
        };
        value.crl.clear();
        Self::Recorded(Recorded {
            value,
            unknown: wire::fields(&kv.value, |number| !FIELDS.contains(&number)),
            revision: kv.mod_revision,
        })
    }

    /// When it was last written.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Absent | Self::Unreadable => Revision::ABSENT,
            Self::Recorded(recorded) => recorded.revision,
        }
    }

    /// What it revokes.
    pub fn revoked(&self) -> &[RevokedCertificate] {
        match self {
            Self::Absent | Self::Unreadable => &[],
            Self::Recorded(recorded) => &recorded.value.revoked,
        }
    }

    /// The number of the next list. It is later than any before, also where a former list was lost: who holds one goes by the number.
    pub fn next_number(&self, now: Timestamp) -> u64 {
        let after = match self {
            Self::Absent | Self::Unreadable => 0,
            Self::Recorded(recorded) => recorded.value.number.saturating_add(1),
        };
        after.max(u64::try_from(now.as_second()).unwrap_or(0))
    }

    /// The bytes of a list that takes the place of this one.
    pub fn replaced_by(&self, next: &RevocationList) -> Vec<u8> {
        let mut value = match self {
            Self::Absent | Self::Unreadable => Vec::new(),
            Self::Recorded(recorded) => recorded.unknown.clone(),
        };
        value.extend(next.encode_to_vec());
        value
    }
}

/// The certificates of a node that is no manager.
#[derive(Clone, Copy, Debug)]
pub struct Owed<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Every certificate of its etcd that may not have ended.
    pub issued: &'a [IssuedCertificate],
}

/// What the next list revokes: what the present one does, and these; `None` if none is due. A list is due once a certificate has to be
/// revoked, at half of its life, and under another authority.
pub fn plan(
    list: &List,
    mut unlisted: Vec<RevokedCertificate>,
    authority: AuthorityDigest,
    now: Timestamp,
) -> Option<Vec<RevokedCertificate>> {
    let is_due = match list {
        List::Unreadable => return None,
        List::Absent => true,
        List::Recorded(Recorded { value, .. }) => {
            let since = time::from_proto(value.this_update.as_ref());
            let is_young = since.is_some_and(|since| now.duration_since(since) < LIFE / 2);
            !is_young || value.authority_sha256 != authority.0
        }
    };
    if !is_due && unlisted.is_empty() {
        return None;
    }
    let before = list.revoked().iter();
    let before = before.filter(|revoked| !has_ended(revoked.not_after.as_ref(), now));
    let mut revoked: Vec<RevokedCertificate> = before.cloned().collect();
    revoked.append(&mut unlisted);
    Some(revoked)
}

/// What the list has yet to revoke, in the order of the uids. Of a list that cannot be read, everything.
pub fn unlisted<'a>(
    list: &List,
    owed: impl Iterator<Item = Owed<'a>>,
    now: Timestamp,
) -> Vec<RevokedCertificate> {
    let is_listed = |serial: &[u8]| list.revoked().iter().any(|listed| listed.serial == serial);
    let mut unlisted = BTreeMap::new();
    for Owed { node, uid, issued } in owed {
        for IssuedCertificate { serial, not_after } in issued {
            if has_ended(not_after.as_ref(), now) || is_listed(serial) {
                continue;
            }
            let revoked = RevokedCertificate {
                serial: serial.clone(),
                not_after: *not_after,
                revoked_at: Some(time::to_proto(now)),
                node: node.to_owned(),
                node_uid: uid.to_owned(),
            };
            unlisted.insert((uid.to_owned(), serial.clone()), revoked);
        }
    }
    unlisted.into_values().collect()
}

/// Whether a certificate with this end is refused by every clock: it ended longer ago than certificates begin before their issue,
/// which is how far a clock may be behind. One without an end never has.
pub fn has_ended(not_after: Option<&prost_types::Timestamp>, now: Timestamp) -> bool {
    not_after.is_some_and(|end| now.as_second().saturating_sub(end.seconds) > BACKDATED.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: AuthorityDigest = AuthorityDigest([7; 32]);

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn in_hours(hours: i64) -> Timestamp {
        now() + SignedDuration::from_hours(hours)
    }

    fn issued(serial: u8, hours: i64) -> IssuedCertificate {
        IssuedCertificate {
            serial: vec![serial],
            not_after: Some(time::to_proto(in_hours(hours))),
        }
    }

    /// What the next list revokes, where a node owes these.
    fn next(
        list: &List,
        issued: &[IssuedCertificate],
        authority: AuthorityDigest,
        at: Timestamp,
    ) -> Option<Vec<RevokedCertificate>> {
        let node = Owed {
            node: "n1",
            uid: "u1",
            issued,
        };
        plan(list, unlisted(list, std::iter::once(node), at), authority, at)
    }

    fn serials(revoked: &[RevokedCertificate]) -> Vec<u8> {
        revoked.iter().map(|revoked| revoked.serial[0]).collect()
    }

    /// The list after this was written.
    fn written(list: &List, revoked: Vec<RevokedCertificate>, at: Timestamp) -> List {
        let next = RevocationList {
            crl: b"signed".to_vec(),
            number: list.next_number(at),
            revoked,
            this_update: Some(time::to_proto(at)),
            authority_sha256: AUTHORITY.0.to_vec(),
            ..RevocationList::default()
        };
        List::read(&kv(list.replaced_by(&next)))
    }

    fn kv(value: Vec<u8>) -> KeyValue {
        KeyValue {
            key: Vec::new(),
            value,
            create_revision: Revision(1),
            mod_revision: Revision(4),
            lease: None,
        }
    }

    #[test]
    fn the_first_list_is_written_even_if_nothing_is_revoked_since_etcd_reads_one_at_every_handshake() {
        assert_eq!(next(&List::Absent, &[], AUTHORITY, now()), Some(Vec::new()));
        let list = written(&List::Absent, Vec::new(), now());
        assert_eq!(next(&list, &[], AUTHORITY, in_hours(24)), None);
    }

    /// INV-13.
    #[test]
    fn every_certificate_that_has_not_ended_is_revoked_and_stays_so_until_its_end() {
        let all = [issued(1, 100), issued(2, 200), issued(3, -3), issued(4, -1)];
        let list = written(&List::Absent, Vec::new(), now());
        let revoked = next(&list, &all, AUTHORITY, now()).unwrap();
        assert_eq!(
            serials(&revoked),
            [1, 2, 4],
            "by a clock that is behind, 4 has not ended"
        );
        assert_eq!((&*revoked[0].node, &*revoked[0].node_uid), ("n1", "u1"));
        let list = written(&list, revoked, now());
        assert_eq!(next(&list, &all, AUTHORITY, now()), None);
        // The node is a manager again, or its record is gone.
        let other = [issued(5, 100)];
        let revoked = next(&list, &other, AUTHORITY, in_hours(1)).unwrap();
        assert_eq!(serials(&revoked), [1, 2, 4, 5]);
        let list = written(&list, revoked, in_hours(1));
        let last = [issued(6, 300)];
        let revoked = next(&list, &last, AUTHORITY, in_hours(150)).unwrap();
        assert_eq!(serials(&revoked), [2, 6]);
        assert_eq!(revoked[0].revoked_at, Some(time::to_proto(now())));
    }

    #[test]
    fn a_list_is_renewed_at_half_of_its_life_and_under_another_authority() {
        let list = written(&List::Absent, Vec::new(), now());
        let half = now() + LIFE / 2;
        let second = SignedDuration::from_secs(1);
        assert_eq!(next(&list, &[], AUTHORITY, half - second), None);
        assert_eq!(next(&list, &[], AUTHORITY, half), Some(Vec::new()));
        let other = AuthorityDigest([8; 32]);
        assert_eq!(next(&list, &[], other, now()), Some(Vec::new()));
    }

    #[test]
    fn a_list_that_cannot_be_read_is_left_alone() {
        let list = List::read(&kv(vec![0xff]));
        assert_eq!(list, List::Unreadable);
        assert_eq!(next(&list, &[issued(1, 100)], AUTHORITY, now()), None);
    }

    #[test]
    fn the_number_grows_also_where_a_list_was_lost_and_what_only_a_later_release_knows_stays() {
        let second = u64::try_from(now().as_second()).unwrap();
        assert_eq!(List::Absent.next_number(now()), second);
        let mut list = written(&List::Absent, Vec::new(), now());
        assert_eq!(list.next_number(now()), second + 1);
        assert_eq!(list.next_number(in_hours(1)), second + 3600);
        assert_eq!(list.revision(), Revision(4));
        let List::Recorded(recorded) = &mut list else {
            panic!("{list:?}");
        };
        assert_eq!(recorded.value.crl, b"", "not held");
        // Field 15, a varint.
        recorded.unknown = vec![0x78, 9];
        let bytes = list.replaced_by(&RevocationList::default());
        assert_eq!(bytes, [0x78, 9]);
    }
}
