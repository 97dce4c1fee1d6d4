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
