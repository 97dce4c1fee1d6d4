//! What the plan of a rotation is made from, put together from what is on record and what was looked at. Pure.

use std::collections::{HashMap, HashSet};

use prost::Message as _;

use super::facts::{Looked, Member, Report, Session};
use super::record::{Phase, Roots, Rotation, digest};
use crate::etcd::members::ListedMember;
use crate::etcd::{KeyValue, MemberId};
use crate::identity::authority::AuthorityDigest;
use crate::proto::{NodeSession, ReplicaTrust};

/// What was looked at beside what is on record.
pub struct Looks {
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
        leaving: &HashSet<MemberId>,
        kept: &HashSet<Box<str>>,
    ) -> Option<Vec<Member>> {
        let wanted = (rotation.phase, rotation.after.etcd);
        let members = self.members.as_ref().filter(|_| self.of == Some(wanted))?.iter();
        let member = |(listed, seen): &(ListedMember, Looked)| {
            let node = nodes.get(&listed.id).cloned();
            Member {
                id: listed.id,
                name: listed.name.as_str().into(),
                has_agent: node.as_ref().is_some_and(|(_, uid)| kept.contains(uid)),
                node,
                votes: !listed.learner,
                leaves: leaving.contains(&listed.id),
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
                of,
                sessions: Vec::new(),
                members: Some(Vec::new()),
            };
            let members = looks.members(&rotation, &HashMap::new(), &HashSet::new(), &HashSet::new());
            members.is_some()
        };
        assert!(known(Some((Phase::Drop, roots(2).etcd))));
        assert!(!known(Some((Phase::Reissue, roots(2).etcd))));
        assert!(!known(Some((Phase::Drop, roots(1).etcd))));
        assert!(!known(None));
    }
}
