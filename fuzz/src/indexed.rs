//! Values of etcd as the indexes of the controllers take them in: listed, then changed, then deleted.

use std::collections::BTreeSet;

use quorate::control::session_index as sessions;
use quorate::deallocator;
use quorate::etcd::{Event, KeyValue, Revision};
use quorate::identity;
use quorate::roles;
use quorate::store::Update;
use quorate::volumes::index as volumes;

use crate::given::{KEYS, UID};

/// Feeds the value to every index whose range has the key.
pub fn indexed(kv: &KeyValue) {
    let key = &kv.key;
    for part in volumes::Part::ALL {
        if part.range(&KEYS).contains(key) {
            of_volumes(part, kv);
        }
    }
    for part in sessions::Part::ALL {
        if part.range(&KEYS).contains(key) {
            of_sessions(part, kv);
        }
    }
    if KEYS.roles().contains(key) {
        of_roles(kv);
    }
    if KEYS.deallocator_range().contains(key) {
        of_deallocator(kv);
    }
    if KEYS.certification().contains(key) {
        of_identity(kv);
    }
}

/// A list of this key alone, a change to the same value, and its deletion.
fn life(kv: &KeyValue) -> [Update; 4] {
    let changed = KeyValue {
        mod_revision: Revision(3),
        ..kv.clone()
    };
    let deleted = Event::Delete {
        key: kv.key.clone(),
        revision: Revision(4),
    };
    [
        Update::Page {
            first: true,
            keys: vec![kv.clone()],
        },
        Update::Listed(Revision(2)),
        Update::Events(vec![Event::Put(changed)]),
        Update::Events(vec![deleted]),
    ]
}

fn of_volumes(part: volumes::Part, kv: &KeyValue) {
    let mut index = volumes::Index::new(KEYS.clone());
    for update in life(kv) {
        index.take_in(part, update);
        for name in index.names() {
            index.observe(&name);
            index.seems_settled(&name);
            index.node_ids(&name);
            if let Some(Ok(volume)) = index.volume(&name) {
                index.leading_to(&volume);
                index.claiming(&volume);
            }
        }
        let troubled = index.troubled().count();
        assert!(troubled <= index.names().len(), "{troubled}");
    }
    assert!(index.names().is_empty(), "{:?}", index.names());
    assert_eq!(index.drivers().count() + index.plugins().count(), 0);
    assert_eq!(index.troubles().counts().count(), 0, "{:?}", index.troubles());
}

fn of_sessions(part: sessions::Part, kv: &KeyValue) {
    let mut index = sessions::Index::new(KEYS.clone());
    for update in life(kv) {
        index.take_in(part, update);
        let names: BTreeSet<_> = index.names().cloned().collect();
        for name in &names {
            index.is_ready(name);
            index.session_id(name);
            let uid = index.node(name).flatten().map(|node| node.uid.clone());
            index.view(name, uid.as_deref().unwrap_or(UID));
        }
    }
    assert_eq!(index.names().count(), 0);
}

fn of_roles(kv: &KeyValue) {
    let mut index = roles::index::Index::new(KEYS.clone());
    for update in life(kv) {
        index.take_in(update);
        for (id, member, _) in index.records() {
            index.owner(member);
            assert_eq!(index.record(id).map(|(record, _)| record), Some(member));
        }
        for (name, facts) in index.nodes() {
            let uid = facts.map_or("", |facts| facts.uid.as_str());
            index.roles_of(name, uid);
            index.may_be_member(name);
        }
        assert!(index.expiring().count() <= index.removed_len());
    }
    assert_eq!(
        index.nodes().count() + index.records().count() + index.joins().count(),
        0
    );
    assert_eq!(index.role_mismatches().count() + index.blocked().count(), 0);
    assert_eq!(index.unreadable_records().count() + index.removed_len(), 0);
}

fn of_deallocator(kv: &KeyValue) {
    let mut index = deallocator::index::Index::new(KEYS.clone());
    for update in life(kv) {
        index.take_in(update);
        deallocator::plan::plan(&index, |_| false, usize::MAX);
        index.oldest_mark();
    }
    assert_eq!(index.pending(), (0, 0));
    assert_eq!((index.due().count(), index.unreadable_services()), (0, 0));
}

fn of_identity(kv: &KeyValue) {
    let mut index = identity::index::Index::new(KEYS.clone());
    for update in life(kv) {
        index.take_in(update);
        for kind in identity::AuthorityKind::ALL {
            index.pending(kind).count();
        }
        index.certified().count();
        index.replicas().count();
        index.owed().count();
        index.unknown().count();
        index.left_behind().count();
        _ = index.joined("n1", UID);
        index.rotation();
    }
    assert_eq!(index.certified().count() + index.nodes_of_members().count(), 0);
    assert_eq!(index.uncertain().count() + index.duplicates().count(), 0);
}
