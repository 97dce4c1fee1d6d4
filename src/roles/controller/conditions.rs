//! The stored conditions that say what is blocked: `RoleChangeBlocked` of nodes, and `EvictionBlocked` of the records of
//! members whose node is gone. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use prost::Message;

use crate::etcd::MemberId;
use crate::proto::Condition;
use crate::roles::index::Index;
use crate::roles::membership::{Membership, Owner};
use crate::roles::node_update;
use crate::roles::plan::{Blocked, Subject};
use crate::roles::reason::{EVICTION_BLOCKED, ROLE_CHANGE_BLOCKED};
use crate::store::writer::Unit;
use crate::store::{Keys, Name};

/// The writes that make the stored conditions say what is blocked now; none where they already do.
pub fn conditions(
    index: &Index,
    keys: &Keys,
    membership: &Membership,
    blocked: &[Blocked],
    now: Timestamp,
) -> Vec<Unit> {
    let (mut nodes, mut evictions) = (BTreeMap::new(), BTreeMap::new());
    for one in blocked {
        let Subject::Member(id) = one.subject else {
            continue;
        };
        let record = membership.member(id).and_then(|member| member.record.as_ref());
        match record.map(|record| record.owner) {
            Some(Owner::Node(_)) => _ = nodes.insert(one.node.as_str(), one),
            Some(Owner::Gone) => _ = evictions.insert(id, one),
            Some(Owner::Unknown) | None => {}
        }
    }
    let mut units = of_nodes(index, keys, &nodes, now);
    units.extend(of_records(index, keys, &evictions, now));
    units
}

fn of_nodes(index: &Index, keys: &Keys, blocked: &BTreeMap<&str, &Blocked>, now: Timestamp) -> Vec<Unit> {
    let no_longer = index.blocked().filter(|(name, _)| !blocked.contains_key(name));
    let still = blocked
        .keys()
        .filter_map(|name| Some((*name, index.node(name)?.value.as_ref()?)));
    let changed = no_longer.chain(still).filter_map(|(name, facts)| {
        let node: Name = name.parse().ok()?;
        let condition = blocked.get(name).map(|one| {
            let before = facts.blocked.as_ref();
            condition(ROLE_CHANGE_BLOCKED, before, one, facts.generation, now)
        });
        if condition == facts.blocked {
            return None;
        }
        let value = node_update::with_blocked(&facts.value, condition)?;
        Some(Unit::new().put(keys.node(&node), facts.roles.revision, value))
    });
    changed.collect()
}

fn of_records(
    index: &Index,
    keys: &Keys,
    blocked: &BTreeMap<MemberId, &Blocked>,
    now: Timestamp,
) -> Vec<Unit> {
    let changed = index.records().filter_map(|(id, record, revision)| {
        let condition = blocked
            .get(&id)
            .map(|one| condition(EVICTION_BLOCKED, record.blocked.as_ref(), one, 0, now));
        if condition == record.blocked {
            return None;
        }
        let mut member = record.member.clone();
        node_update::set_condition(&mut member.conditions, EVICTION_BLOCKED, condition);
        Some(Unit::new().put(keys.member(id), revision, member.encode_to_vec()))
    });
    changed.collect()
}

fn condition(
    kind: &str,
    before: Option<&Condition>,
    blocked: &Blocked,
    generation: i64,
    now: Timestamp,
) -> Condition {
    let why = (blocked.reason, blocked.message.as_str());
    node_update::blocked(kind, before, why, generation, now)
}
