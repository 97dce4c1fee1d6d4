//! What the plan of a rotation is made from, put together from what is on record and what was looked at. Pure.

use std::collections::{HashMap, HashSet};

use prost::Message as _;

use super::facts::{Looked, Member, Report, Session};
use super::record::{Phase, Roots, Rotation, digest};
use crate::etcd::members::ListedMember;
use crate::etcd::{KeyValue, MemberId, Revision};
use crate::identity::authority::AuthorityDigest;
use crate::proto::{NodeSession, ReplicaTrust};

/// What is decided of a member, as its record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intents {
    /// Its removal, or other peer URLs for it.
    pub leaves_or_moves: bool,
    /// Its promotion to a voter. The record says so for good.
    pub is_promoted: bool,
}

/// What was looked at beside what is on record.
pub struct Looks {
    /// The revision of what was on record when the look began.
    pub since: Revision,
    /// The phase that members were looked at for, and the new authority of etcd: a look that began before another phase says nothing of
    /// that. `None` where none was looked at.
    pub of: Option<(Phase, AuthorityDigest)>,
    /// The sessions of nodes.
    pub sessions: Vec<Session>,
    /// Members and what they show; `None` if etcd's list could not be read.
    pub members: Option<Vec<(ListedMember, Looked)>>,
}

/// Name and uid of the node of each member that has a record.
pub type NodesOfMembers = HashMap<MemberId, (Box<str>, Box<str>)>;

impl Looks {
    /// The members, with their nodes and whether an agent keeps them: the etcd of these uids has a certificate on record. `None` if they
    /// were looked at for another phase, or not at all.
    pub fn members(
        &self,
        rotation: &Rotation,
        nodes: &NodesOfMembers,
        intents: &HashMap<MemberId, Intents>,
        kept: &HashSet<Box<str>>,
    ) -> Option<Vec<Member>> {
        let wanted = (rotation.phase, rotation.after.etcd);
        let members = self.members.as_ref().filter(|_| self.of == Some(wanted))?.iter();
        let member = |(listed, seen): &(ListedMember, Looked)| {
            let node = nodes.get(&listed.id).cloned();
            let decided = intents.get(&listed.id).copied().unwrap_or_default();
            Member {
                id: listed.id,
                name: listed.name.as_str().into(),
                has_agent: node.as_ref().is_some_and(|(_, uid)| kept.contains(uid)),
                node,
                votes: !listed.learner,
                changes: decided.leaves_or_moves || (decided.is_promoted && listed.learner),
                seen: seen.clone(),
            }
        };
        Some(members.map(member).collect())
    }
}

/// Reads a stored report; `None` if it cannot be read.
pub fn report(stored: &[u8]) -> Option<Report> {
    let stored = ReplicaTrust::decode(stored).ok()?;
    Some(Report {
        after: Roots::from_proto(stored.after.as_ref())?,
        phase: Phase::from_proto(stored.phase()),
        hindrance: stored.hindrance,
    })
}

/// The session that a key holds; `None` if it cannot be read.
pub fn session(kv: &KeyValue) -> Option<Session> {
    let stored = NodeSession::decode(&*kv.value).ok()?;
    Some(Session {
        uid: stored.node_uid.into(),
        authority: digest(&stored.authority_sha256),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// INV-12.
    #[test]
    fn a_look_for_another_phase_or_another_rotation_and_one_that_was_not_made_say_nothing_of_members() {
        let roots = |byte| Roots {
            node: AuthorityDigest([byte; 32]),
            etcd: AuthorityDigest([byte; 32]),
        };
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let rotation = Rotation::begun(roots(1), roots(2), 0, now).moved_to(Phase::Drop, now);
        let known = |of| {
            let looks = Looks {
                since: Revision(1),
                of,
                sessions: Vec::new(),
                members: Some(Vec::new()),
            };
            let members = looks.members(&rotation, &HashMap::new(), &HashMap::new(), &HashSet::new());
            members.is_some()
        };
        assert!(known(Some((Phase::Drop, roots(2).etcd))));
        assert!(!known(Some((Phase::Reissue, roots(2).etcd))));
        assert!(!known(Some((Phase::Drop, roots(1).etcd))));
        assert!(!known(None));
    }
    /// INV-5: a promotion stays on record after it was carried out.
    #[test]
    fn a_member_changes_while_its_removal_or_move_is_decided_and_a_learner_while_its_promotion_is() {
        let roots = |byte| Roots {
            node: AuthorityDigest([byte; 32]),
            etcd: AuthorityDigest([byte; 32]),
        };
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let rotation = Rotation::begun(roots(1), roots(2), 0, now).moved_to(Phase::Drop, now);
        let changes = |learner, decided: Option<Intents>| {
            let listed = ListedMember {
                id: MemberId(7),
                name: "n1".to_owned(),
                peer_urls: Vec::new(),
                client_urls: Vec::new(),
                learner,
            };
            let looks = Looks {
                since: Revision(1),
                of: Some((Phase::Drop, roots(2).etcd)),
                sessions: Vec::new(),
                members: Some(vec![(listed, Looked::InClearText { serves: true })]),
            };
            let intents = HashMap::from_iter(decided.map(|decided| (MemberId(7), decided)));
            let members = looks.members(&rotation, &HashMap::new(), &intents, &HashSet::new());
            members.unwrap()[0].changes
        };
        let goes = Intents {
            leaves_or_moves: true,
            is_promoted: false,
        };
        let is_promoted = Intents {
            is_promoted: true,
            ..Intents::default()
        };
        assert!(!changes(true, None) && !changes(false, None));
        assert!(changes(true, Some(goes)) && changes(false, Some(goes)));
        assert!(changes(true, Some(is_promoted)) && !changes(false, Some(is_promoted)));
    }
}
