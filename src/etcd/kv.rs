//! The types for keys, revisions, leases and members.

use std::fmt;

/// A revision of the etcd store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub i64);

impl Revision {
    /// The revision that an absent key has in compares: 0.
    pub const ABSENT: Self = Self(0);

    /// The revision after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of an etcd lease. Prints like in etcdctl: hexadecimal, lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The id of a member of the etcd cluster. Prints as 16 hexadecimal digits, lower case; etcdctl omits leading zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key with its value and the revisions that date it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The whole key, prefix included.
    pub key: Vec<u8>,
    /// The value as stored.
    pub value: Vec<u8>,
    /// The revision at which the key was created. A key that is deleted and written again gets a new one.
    pub create_revision: Revision,
    /// The revision of the last write.
    pub mod_revision: Revision,
    /// The lease whose end deletes the key.
    pub lease: Option<LeaseId>,
}

impl KeyValue {
    pub(super) fn take(kv: etcd_client::KeyValue) -> Self {
        let (create, modified, lease) = (kv.create_revision(), kv.mod_revision(), kv.lease());
        let (key, value) = kv.into_key_value();
        Self {
            key,
            value,
            create_revision: Revision(create),
            mod_revision: Revision(modified),
            lease: (lease != 0).then_some(LeaseId(lease)),
        }
    }
}

#[cfg(test)]
impl KeyValue {
    /// For tests: a key that was created at revision 1, as it was written at this revision.
    pub(crate) fn written_at(key: Vec<u8>, value: impl Into<Vec<u8>>, revision: i64) -> Self {
        Self {
            key,
            value: value.into(),
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            lease: None,
        }
    }
}

/// The keys from `start`, included, to `end`, excluded.
///
/// ```
/// use quorate::prelude::KeyRange;
///
/// let nodes = KeyRange::prefix("/nodes/");
/// assert!(nodes.contains(b"/nodes/n1"));
/// assert!(!nodes.contains(b"/nodes0"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with `prefix`, which must not be empty.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        // The end is the least key after them: the last byte below 0xff plus one, without what follows it.
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return Self { start, end };
            }
        }
        // Every byte is 0xff: the range reaches the end of the key space, for which etcd takes one zero byte.
        Self { start, end: vec![0] }
    }

    /// From the first key of this range to the last of `last`, with every key between the two.
    #[must_use]
    pub fn through(self, last: Self) -> Self {
        Self {
            start: self.start,
            end: last.end,
        }
    }

    /// Both ranges as one, with every key between the two.
    #[must_use]
    pub fn spanning(self, other: Self) -> Self {
        let start = self.start.min(other.start);
        // One zero byte as the end is the end of the key space.
        let is_last = self.end == [0] || (other.end != [0] && self.end > other.end);
        let end = if is_last { self.end } else { other.end };
        Self { start, end }
    }

    /// The first key of the range; of a prefix's range, the prefix itself.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Whether the range covers this key.
    pub fn contains(&self, key: &[u8]) -> bool {
        // One zero byte as the end is the end of the key space.
        *self.start <= *key && (self.end == [0] || *key < *self.end)
    }

    /// Only this key.
    pub fn key(key: impl Into<Vec<u8>>) -> Self {
        let start = key.into();
        let mut end = start.clone();
        end.push(0);
        Self { start, end }
    }
}

pub(super) fn revision_of(header: Option<&etcd_client::ResponseHeader>) -> Revision {
    // etcd sends a header with every response. Without one the revision is unknown, and with 0 no compare holds for a
    // key that exists.
    Revision(header.map_or(0, etcd_client::ResponseHeader::revision))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_name() {
        assert_eq!(KeyRange::prefix("/q/nodes/").end, b"/q/nodes0");
        assert_eq!(KeyRange::prefix(vec![1, 0xff]).end, vec![2]);
        assert_eq!(KeyRange::prefix(vec![0xff, 0xff]).end, vec![0]);
    }

    #[test]
    fn a_range_that_spans_two_has_the_keys_of_both_in_any_order_and_what_lies_between() {
        let (inner, outer) = (KeyRange::key("/b"), KeyRange::prefix("/"));
        let (first, open) = (KeyRange::key("/a"), KeyRange::prefix(vec![0xff]));
        for (one, other, start, end) in [
            (&first, &inner, &b"/a"[..], &b"/b\0"[..]),
            (&inner, &outer, &b"/"[..], &b"0"[..]),
            (&first, &open, &b"/a"[..], &b"\0"[..]),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let span = one.clone().spanning(other.clone());
                assert_eq!((span.start(), &span.end[..]), (start, end));
            }
        }
    }
}
