//! Records as they are stored, for unit tests.

use super::seen::{RangeSeen, StoreSeen};
use crate::etcd::KeyValue;
use crate::store::Keys;

/// The keys below `/q`.
pub fn keys() -> Keys {
    Keys::new("/q".parse().unwrap())
}

/// A key without a lease.
pub fn kv(key: Vec<u8>, value: impl Into<Vec<u8>>) -> KeyValue {
    KeyValue::written_at(key, value, 1)
}

/// A store that holds these keys.
pub fn store(keys: Vec<KeyValue>) -> StoreSeen {
    StoreSeen {
        without_quorum: false,
        membership: Err(String::new()),
        members: Vec::new(),
        ranges: vec![RangeSeen {
            prefix: "/q/kubernetes/reconciler/".to_owned(),
            read: Ok(keys),
            write: None,
        }],
        leader_ttl: None,
        plugins: Vec::new(),
    }
}
