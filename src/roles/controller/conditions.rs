//! The stored conditions that say what is blocked: `RoleChangeBlocked` of nodes, and `EvictionBlocked` of the records of
//! members whose node does not exist; and `QuorumLost` of all records, after an outage. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use prost::Message;

use super::outage;
use crate::etcd::{MemberId, Outage};
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::index::Index;
use crate::roles::membership::{Member, Membership};
use crate::roles::node_update;
use crate::roles::owner::Owner;
use crate::roles::reason::EVICTION_BLOCKED;
use crate::store::object::condition;
use crate::store::writer::Unit;
use crate::store::{Keys, Name};

/// The writes that make the stored conditions say what is blocked now; none where they already do.
pub fn conditions(
    index: &Index,
    keys: &Keys,
    membership: &Membership,
    blocked: &[Blocked],
    outage: Option<&Outage>,
    now: Timestamp,
) -> Vec<Unit> {
    let (mut nodes, mut evictions) = (BTreeMap::new(), BTreeMap::new());
    for one in blocked {
        let Subject::Member(id) = one.subject else {
            continue;
        };
        match membership.member(id).and_then(Member::owner) {
            Some(Owner::Node(_)) => _ = nodes.insert(one.node.as_str(), one),
            Some(Owner::Removed | Owner::Missing) => _ = evictions.insert(id, one),
            Some(Owner::Unknown) | None => {}
        }
    }
    let mut units = of_nodes(index, keys, &nodes, now);
    units.extend(of_records(index, keys, &evictions, outage, now));
    units
}

fn of_nodes(index: &Index, keys: &Keys, blocked: &BTreeMap<&str, &Blocked>, now: Timestamp) -> Vec<Unit> {
    let no_longer = index.blocked().filter(|(name, _)| !blocked.contains_key(name));
    let still = blocked
        .keys()
        .filter_map(|name| Some((*name, index.node(name)?.value.as_ref()?)));
    let changed = no_longer.chain(still).filter_map(|(name, facts)| {
        let node: Name = name.parse().ok()?;
        let why = blocked.get(name).map(|one| why(one));
        // `None` too where the index has no bytes of the node.
        let value = node_update::with_blocked(&facts.value, why, now)?;
        Some(Unit::new().put(keys.node(&node), facts.roles.revision, value))
    });
    changed.collect()
}

fn of_records(
    index: &Index,
    keys: &Keys,
    blocked: &BTreeMap<MemberId, &Blocked>,
    outage: Option<&Outage>,
    now: Timestamp,
) -> Vec<Unit> {
    let changed = index.records().filter_map(|(id, record, revision)| {
        let mut member = record.clone();
        let returned = outage.is_some_and(|outage| outage::store(&mut member, outage));
        let conditions = &mut member.conditions;
        let changed = match blocked.get(&id) {
            Some(one) => condition::set(conditions, EVICTION_BLOCKED, why(one), 0, now),
            None => condition::clear(conditions, EVICTION_BLOCKED),
        };
        (changed || returned).then(|| Unit::new().put(keys.member(id), revision, member.encode_to_vec()))
    });
    changed.collect()
}

fn why(blocked: &Blocked) -> (&'static str, &str) {
    (blocked.reason.as_str(), blocked.message.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::members::ListedMember;
    use crate::etcd::{Event, KeyValue, Revision};
    use crate::proto::{self, Metadata, Node, NodeSpec, NodeStatus, Role};
    use crate::roles::membership::membership;
    use crate::roles::reason::Reason;
    use crate::store::Update;

    const M7: MemberId = MemberId(7);

    fn keys() -> Keys {
        Keys::new("/q".parse().unwrap())
    }

    /// A worker that stays one.
    fn worker() -> KeyValue {
        let node = Node {
            metadata: Some(Metadata {
                name: "n7".to_owned(),
                uid: "u7".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(NodeSpec {
                desired_role: Role::Worker.into(),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                role: Role::Worker.into(),
                ..NodeStatus::default()
            }),
        };
        KeyValue::written_at(keys().node(&"n7".parse().unwrap()), node.encode_to_vec(), 1)
    }

    /// The record of its member, as an operator adopts one.
    fn record() -> KeyValue {
        let record = proto::Member {
            node: "n7".to_owned(),
            node_uid: "u7".to_owned(),
            ..proto::Member::default()
        };
        KeyValue::written_at(keys().member(M7), record.encode_to_vec(), 2)
    }

    /// The nodes that are written where the removal of the member is blocked, with the keys of the store in this order.
    fn written(stored: Vec<KeyValue>) -> Vec<Node> {
        let mut index = Index::new(keys());
        index.take_in(Update::Page {
            first: true,
            keys: Vec::new(),
        });
        index.take_in(Update::Listed(Revision(0)));
        index.take_in(Update::Events(stored.into_iter().map(Event::Put).collect()));
        let listed = ListedMember {
            id: M7,
            name: "n7".to_owned(),
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
            learner: false,
        };
        let membership = membership(&index, &[listed], Vec::new(), true);
        let blocked = Blocked::new(Subject::Member(M7), "n7", Reason::QuorumRisk, "m");
        let units = conditions(
            &index,
            &keys(),
            &membership,
            &[blocked],
            None,
            Timestamp::UNIX_EPOCH,
        );
        let values = units.iter().flat_map(Unit::writes);
        values
            .map(|write| Node::decode(&**write.value.as_ref().unwrap()).unwrap())
            .collect()
    }

    #[test]
    fn a_worker_that_has_a_member_stays_what_it_is_beside_its_condition() {
        let nodes = written(vec![record(), worker()]);
        let [node] = &nodes[..] else { panic!("{nodes:?}") };
        assert_eq!(node.metadata.as_ref().unwrap().uid, "u7");
        let status = node.status.as_ref().unwrap();
        assert_eq!((status.role(), status.conditions.len()), (Role::Worker, 1));
        // Of a record that comes later, the node is not at hand.
        assert_eq!(written(vec![worker(), record()]), []);
    }
}
