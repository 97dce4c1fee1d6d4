//! Typed keys. Whatever a key parses as, building it gives the same bytes.

use quorate::store::Id;
use quorate::store::keys::{CertificationKey, DeallocatorKey, KeySpace, NodeKey, RoleKey, parse_object};

use crate::given::KEYS;

/// The spaces whose keys name objects.
const SPACES: [KeySpace; 13] = [
    KeySpace::NODES,
    KeySpace::REGISTRATIONS,
    KeySpace::SESSIONS,
    KeySpace::MEMBERS,
    KeySpace::SERVICES,
    KeySpace::NETWORKS,
    KeySpace::TASKS,
    KeySpace::VOLUMES,
    KeySpace::PUBLICATIONS,
    KeySpace::TOMBSTONES,
    KeySpace::SECRETS,
    KeySpace::CERTIFICATES,
    KeySpace::ETCD_CERTIFICATES,
];

/// A key as it stands in etcd, and the same bytes below the prefix: a fuzzer need not find the prefix first.
pub fn keys(data: &[u8]) {
    key(data);
    key(&[KEYS.prefix().as_str().as_bytes(), data].concat());
    if let Some((group, kind, namespace, name)) = parse_object(crate::text(data)) {
        let parts = [group, kind, name];
        assert!(
            parts.iter().all(|part| !part.contains('/')),
            "{parts:?} {namespace:?}"
        );
    }
}

fn key(key: &[u8]) {
    let keys = &*KEYS;
    for space in SPACES {
        let Some(name) = space.name(keys, key) else {
            continue;
        };
        assert!(space.all(keys).contains(key), "{name}");
        if let Some(id) = id(name) {
            assert_eq!(space.key(keys, &id), key, "{name}");
        }
    }
    let role = keys.parse_role(key);
    assert!(
        role == RoleKey::Other || keys.role(role).as_deref() == Some(key),
        "{role:?}"
    );
    let certification = keys.parse_certification(key);
    let built = keys.certification_key(certification);
    assert!(
        certification == CertificationKey::Other || built.as_deref() == Some(key),
        "{certification:?}"
    );
    let deallocator = keys.parse_deallocator(key);
    let built = keys.deallocator(deallocator);
    assert!(
        deallocator == DeallocatorKey::Other || built.as_deref() == Some(key),
        "{deallocator:?}"
    );
    if let Some(member) = keys.parse_member(key) {
        assert_eq!(keys.member(member), key, "{member}");
    }
    if let Some(joiner) = keys.parse_join_token(key) {
        assert_eq!(keys.join_token(&joiner), key, "{joiner}");
    }
    if let Some(module) = keys.parse_log_level(key) {
        assert_eq!(keys.log_level(module), key);
    }
    if let Some((group, kind, namespace, name)) = keys.parse_inventory(key) {
        assert_eq!(keys.inventory(group, kind, namespace, name), key);
    }
    if let NodeKey::Node(name) | NodeKey::Registration(name) = keys.parse_node(key) {
        assert!(keys.nodes().contains(key), "{name}");
    }
    if let (Some(plugin), Some(of_status)) = (keys.parse_plugin(key), keys.parse_plugin_status(key)) {
        assert_ne!(plugin, of_status, "a status is no plugin of the same name");
    }
}

fn id(name: &str) -> Option<Id> {
    Some(match name.split_once('/') {
        None => Id::from(name.parse::<quorate::store::Name>().ok()?),
        Some((owner, name)) => Id {
            owner: Some(owner.parse().ok()?),
            name: name.parse().ok()?,
        },
    })
}
