//! What sessions are shown of etcd: the members of nodes, their joins and certificates, and the list of revoked ones. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message as _;

use crate::etcd::MemberId;
use crate::proto::join::Progress;
use crate::proto::node_certificate::State;
use crate::proto::{
    EtcdRestart, EtcdRestartView, Join, Member, MemberView, NodeCertificate, RevocationList, RevocationView,
    Rotation,
};
use crate::store::Name;
use crate::store::object::member::is_answered;

/// The part of the copy that is about etcd. What cannot be read counts as absent: it is shown, and no session is judged by it.
#[derive(Debug, Default)]
pub struct Members {
    /// By the name of the node.
    joins: HashMap<Name, Join>,
    recorded: BTreeMap<MemberId, Recorded>,
    /// By the uid of the node.
    certificates: HashMap<Box<str>, Certificate>,
    revocation: Option<RevocationView>,
    /// A rotation of the authorities is on record that can be read.
    has_rotation: bool,
    /// The etcd that may be started again.
    restart: Option<EtcdRestart>,
}

/// The record of a member.
#[derive(Debug)]
struct Recorded {
    node: Option<Name>,
    uid: String,
    leaves: bool,
}

/// The record of the certificate of a member.
#[derive(Debug)]
struct Certificate {
    node: Option<Name>,
    state: State,
    not_after: Option<prost_types::Timestamp>,
}

/// Each of the following takes in a value as it is now, `None` if the key is gone, and returns the nodes that it concerns.
impl Members {
    /// The join of a node.
    pub fn put_join(&mut self, node: Name, value: Option<&[u8]>) -> Option<Name> {
        match value.and_then(|value| Join::decode(value).ok()) {
            Some(join) => _ = self.joins.insert(node.clone(), join),
            None => _ = self.joins.remove(&node),
        }
        Some(node)
    }

    /// The record of a member. The node that had it until now is concerned as well: it has the member no more.
    pub fn put_member(&mut self, id: MemberId, value: Option<&[u8]>) -> BTreeSet<Name> {
        let before = self.recorded.remove(&id).and_then(|recorded| recorded.node);
        let mut concerned = BTreeSet::from_iter(before);
        if let Some(member) = value.and_then(|value| Member::decode(value).ok()) {
            let node: Option<Name> = member.node.parse().ok();
            concerned.extend(node.clone());
            let recorded = Recorded {
                node,
                uid: member.node_uid,
                leaves: member.removal.is_some(),
            };
            self.recorded.insert(id, recorded);
        }
        concerned
    }

    /// The certificate of the member of the node of this uid.
    pub fn put_certificate(&mut self, uid: Box<str>, value: Option<&[u8]>) -> Option<Name> {
        let Some(record) = value.and_then(|value| NodeCertificate::decode(value).ok()) else {
            return self.certificates.remove(&uid)?.node;
        };
        let node: Option<Name> = record.node.parse().ok();
        let certificate = Certificate {
            node: node.clone(),
            state: record.state(),
            not_after: record.not_after,
        };
        self.certificates.insert(uid, certificate);
        node
    }
}

impl Members {
    /// The list of revoked certificates, as it is now. It concerns every manager.
    pub fn put_revocation(&mut self, value: Option<&[u8]>) {
        let list = value.and_then(|value| RevocationList::decode(value).ok());
        self.revocation = list.map(|list| RevocationView {
            number: list.number,
            crl: list.crl,
        });
    }

    /// What is on record of a rotation, as it is now. Returns the nodes whose etcd may be started again, or no longer may.
    pub fn put_rotation(&mut self, value: Option<&[u8]>) -> Vec<Name> {
        let rotation = value.and_then(|value| Rotation::decode(value).ok());
        self.has_rotation = rotation.is_some();
        let now = rotation.and_then(|rotation| rotation.restart);
        if now == self.restart {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.restart, now);
        let concerned = [before.as_ref(), self.restart.as_ref()].into_iter().flatten();
        concerned
            .filter_map(|restart| restart.node.parse().ok())
            .collect()
    }

    /// Whether a rotation is on record that can be read.
    pub fn has_rotation(&self) -> bool {
        self.has_rotation
    }

    /// The list of revoked certificates; an empty one if there is none.
    pub fn revocation(&self) -> RevocationView {
        self.revocation.clone().unwrap_or_default()
    }

    /// Whether a list is on record that can be read.
    pub fn has_revocation(&self) -> bool {
        self.revocation.is_some()
    }

    /// What the node of this name and uid is shown; `None` if nothing is on record.
    pub fn view(&self, name: &Name, uid: &str) -> Option<MemberView> {
        let own = self.recorded.iter().filter(|(_, member)| member.uid == uid);
        // Of two, the one that stays.
        let own = own.min_by_key(|(_, member)| member.leaves);
        let join = self.joins.get(name);
        let certificate = self.certificates.get(uid);
        if own.is_none() && join.is_none() && certificate.is_none() {
            return None;
        }
        let mut shown = MemberView {
            member_id: own.map_or(0, |(id, _)| id.0),
            leaving: own.is_some_and(|(_, member)| member.leaves),
            certificate: certificate.map_or(State::Unspecified, |of| of.state).into(),
            certificate_not_after: certificate.and_then(|of| of.not_after),
            restart: self.restart_of(uid, own.map(|(id, _)| *id)),
            ..MemberView::default()
        };
        if let Some(join) = join {
            show_join(&mut shown, join, uid);
        }
        // By a restore, a member may have the id of before again: one on record is in the cluster.
        let is_recorded = |id: &u64| self.recorded.contains_key(&MemberId(*id));
        shown.removed.retain(|id| !is_recorded(id));
        Some(shown)
    }

    /// The permission of the node of this uid to start the etcd of this member again.
    fn restart_of(&self, uid: &str, own: Option<MemberId>) -> Option<EtcdRestartView> {
        let restart = self.restart.as_ref()?;
        let is_own = restart.node_uid == uid && own == Some(MemberId(restart.member_id));
        is_own.then(|| EtcdRestartView {
            number: restart.number,
            authorities: restart.authorities.clone(),
        })
    }

    /// The names of the nodes that have a join.
    pub fn joins(&self) -> impl Iterator<Item = &Name> {
        self.joins.keys()
    }

    /// The members that have a record.
    pub fn ids(&self) -> impl Iterator<Item = MemberId> {
        self.recorded.keys().copied()
    }

    /// The uids of the nodes whose members have a certificate, or have requested one.
    pub fn certificates(&self) -> impl Iterator<Item = &str> {
        self.certificates.keys().map(|uid| &**uid)
    }
}

fn show_join(shown: &mut MemberView, join: &Join, uid: &str) {
    // No two members have one id, so those of an earlier node of this name are none of this one's.
    shown.removed.clone_from(&join.removed_members);
    // The rest is the business of the node that asks.
    let Some(request) = join.request.as_ref().filter(|request| request.node_uid == uid) else {
        return;
    };
    shown.peer_urls.clone_from(&request.peer_urls);
    shown.client_urls.clone_from(&request.client_urls);
    shown.replaces = request.replaces;
    if is_answered(join) {
        shown.set_progress(Progress::try_from(join.progress).unwrap_or_default());
        shown.reason.clone_from(&join.reason);
        shown.message.clone_from(&join.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{JoinRequest, Removal};

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn member(uid: &str, leaves: bool) -> Vec<u8> {
        let member = Member {
            node: "n1".to_owned(),
            node_uid: uid.to_owned(),
            removal: leaves.then(Removal::default),
            ..Member::default()
        };
        member.encode_to_vec()
    }

    fn join(uid: &str, answers: &str) -> Vec<u8> {
        let join = Join {
            request: Some(JoinRequest {
                id: "1".to_owned(),
                node_uid: uid.to_owned(),
                peer_urls: vec!["peer".to_owned()],
                replaces: 5,
                ..JoinRequest::default()
            }),
            answers: answers.to_owned(),
            progress: Progress::Learner.into(),
            removed_members: vec![3, 5],
            ..Join::default()
        };
        join.encode_to_vec()
    }

    #[test]
    fn a_node_is_shown_its_member_and_nothing_where_nothing_is_on_record() {
        let mut members = Members::default();
        let (n1, shows) = (name("n1"), |members: &Members, uid| {
            members.view(&name("n1"), uid)
        });
        assert_eq!(shows(&members, "u1"), None);
        assert_eq!(
            members.put_member(MemberId(7), Some(&member("u1", true))),
            BTreeSet::from([n1.clone()])
        );
        let shown = shows(&members, "u1").unwrap();
        assert_eq!((shown.member_id, shown.leaving), (7, true));
        assert_eq!(shows(&members, "u2"), None, "it is the member of another node");
        // A replacement has two for a moment.
        members.put_member(MemberId(9), Some(&member("u1", false)));
        let shown = shows(&members, "u1").unwrap();
        assert_eq!((shown.member_id, shown.leaving), (9, false));
        for id in [MemberId(7), MemberId(9)] {
            assert_eq!(
                members.put_member(id, None),
                BTreeSet::from([n1.clone()]),
                "the event names no node"
            );
        }
        assert_eq!(shows(&members, "u1"), None);
        members.put_member(MemberId(7), Some(&[0xff]));
        assert_eq!(members.ids().count(), 0);
    }

    #[test]
    fn a_member_that_moves_to_another_node_concerns_the_node_that_had_it_as_well() {
        let mut members = Members::default();
        let of = |node: &str, uid: &str| {
            let member = Member {
                node: node.to_owned(),
                node_uid: uid.to_owned(),
                ..Member::default()
            };
            member.encode_to_vec()
        };
        let mut put = |value: &[u8]| members.put_member(MemberId(7), Some(value));
        assert_eq!(put(&of("n1", "u1")), BTreeSet::from([name("n1")]));
        let both = BTreeSet::from([name("n1"), name("n2")]);
        assert_eq!(put(&of("n2", "u2")), both);
        // What names no node that can be any leaves none with the member, either.
        assert_eq!(put(&of("", "")), BTreeSet::from([name("n2")]));
    }

    #[test]
    fn a_node_is_shown_which_members_are_gone_and_of_its_own_join_what_was_answered() {
        let mut members = Members::default();
        let n1 = name("n1");
        assert_eq!(
            members.put_join(n1.clone(), Some(&join("u1", "1"))),
            Some(n1.clone())
        );
        let shown = members.view(&n1, "u1").unwrap();
        assert_eq!(shown.progress(), Progress::Learner);
        assert_eq!((shown.removed, shown.replaces), (vec![3, 5], 5));
        assert_eq!(shown.peer_urls, ["peer"]);
        // By a restore it has the id of before again.
        members.put_member(MemberId(5), Some(&member("u1", false)));
        assert_eq!(members.view(&n1, "u1").unwrap().removed, [3]);
        members.put_member(MemberId(5), None);
        members.put_join(n1.clone(), Some(&join("u1", "0")));
        let shown = members.view(&n1, "u1").unwrap();
        assert_eq!(shown.progress(), Progress::Unspecified);
        // That of an earlier node of this name.
        let shown = members.view(&n1, "u2").unwrap();
        assert_eq!((shown.removed, shown.replaces), (vec![3, 5], 0));
        members.put_join(n1.clone(), None);
        assert_eq!(members.view(&n1, "u1"), None);
    }

    #[test]
    fn the_certificate_and_the_list_of_revoked_ones_come_with_what_dates_them() {
        let mut members = Members::default();
        let end = prost_types::Timestamp {
            seconds: 77,
            nanos: 0,
        };
        let record = NodeCertificate {
            node: "n1".to_owned(),
            state: State::Rotate.into(),
            not_after: Some(end),
            ..NodeCertificate::default()
        };
        let concerned = members.put_certificate("u1".into(), Some(&record.encode_to_vec()));
        assert_eq!(concerned, Some(name("n1")));
        let shown = members.view(&name("n1"), "u1").unwrap();
        assert_eq!(
            (shown.certificate(), shown.certificate_not_after),
            (State::Rotate, Some(end))
        );
        assert_eq!(members.put_certificate("u1".into(), None), Some(name("n1")));
        assert_eq!(members.revocation(), RevocationView::default());
        let list = RevocationList {
            number: 4,
            crl: b"list".to_vec(),
            ..RevocationList::default()
        };
        members.put_revocation(Some(&list.encode_to_vec()));
        let shown = members.revocation();
        assert_eq!((shown.number, &*shown.crl), (4, &b"list"[..]));
        members.put_revocation(None);
        assert!(!members.has_revocation());
    }
    #[test]
    fn the_permission_to_start_etcd_again_is_shown_to_the_node_of_this_very_member_alone() {
        let mut members = Members::default();
        members.put_member(MemberId(7), Some(&member("u1", false)));
        let rotation = |member_id, node: &str| {
            let restart = EtcdRestart {
                number: 5,
                member_id,
                node: node.to_owned(),
                node_uid: "u1".to_owned(),
                authorities: "new".to_owned(),
                ..EtcdRestart::default()
            };
            Rotation {
                restart: Some(restart),
                ..Rotation::default()
            }
            .encode_to_vec()
        };
        let shown = |members: &Members| members.view(&name("n1"), "u1").unwrap().restart;
        assert_eq!(shown(&members), None);
        assert_eq!(members.put_rotation(Some(&rotation(7, "n1"))), [name("n1")]);
        let restart = shown(&members).unwrap();
        assert_eq!((restart.number, restart.authorities.as_str()), (5, "new"));
        assert!(
            members.put_rotation(Some(&rotation(7, "n1"))).is_empty(),
            "it is the same"
        );
        // Of a member that the node has no more.
        assert_eq!(
            members.put_rotation(Some(&rotation(8, "n2"))),
            [name("n1"), name("n2")]
        );
        assert_eq!(shown(&members), None);
        assert!(members.has_rotation());
        members.put_rotation(None);
        assert!(!members.has_rotation());
    }
}
