//! Reads, and the types for keys, revisions, leases and members.

use std::fmt;

use etcd_client::GetOptions;

use super::connect::{Etcd, LARGEST_MESSAGE};
use super::error::{Class, Error};

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

impl Etcd {
    /// Reads one key linearizably; with the revision of the store at that moment.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub async fn get(&self, key: &[u8]) -> Result<(Option<KeyValue>, Revision), Error> {
        let response = self
            .call("range", |connection| {
                let key = key.to_vec();
                async move { connection.client.kv_client().get(key, None).await }
            })
            .await?;
        let revision = revision_of(response.header());
        Ok((response.kvs().first().cloned().map(KeyValue::take), revision))
    }

    /// Reads a whole range at one revision, in key order. Large ranges are for [`Etcd::pages`].
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub async fn list(&self, range: &KeyRange) -> Result<(Vec<KeyValue>, Revision), Error> {
        let mut pages = self.pages(range.clone());
        let mut all = Vec::new();
        while let Some(mut page) = pages.next().await? {
            all.append(&mut page);
        }
        Ok((all, pages.revision()))
    }

    /// Counts the keys of a range; with the revision of the store at that moment.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub async fn count(&self, range: &KeyRange) -> Result<(u64, Revision), Error> {
        let response = self
            .call("range", |connection| {
                let KeyRange { start, end } = range.clone();
                let options = GetOptions::new().with_range(end).with_count_only();
                async move { connection.client.kv_client().get(start, Some(options)).await }
            })
            .await?;
        Ok((
            u64::try_from(response.count()).unwrap_or(0),
            revision_of(response.header()),
        ))
    }

    /// Reads a range in pages, all at the revision of the first page, which is read linearizably.
    pub fn pages(&self, range: KeyRange) -> Pages {
        Pages {
            etcd: self.clone(),
            next: Some(range.start),
            end: range.end,
            revision: Revision::ABSENT,
            limit: PAGE,
        }
    }
}

/// Keys per page: about 2 MB of node records, well below what fits into one message.
const PAGE: i64 = 10_000;

/// A read of a range, page by page. See [`Etcd::pages`].
pub struct Pages {
    etcd: Etcd,
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    revision: Revision,
    limit: i64,
}

impl Pages {
    /// Reads the next page; `None` after the last. After an error the call reads the same page again.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer; of class [`Class::Compacted`] if the revision of the pages is compacted.
    pub async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, Error> {
        loop {
            let Some(start) = self.next.clone() else {
                return Ok(None);
            };
            match self.read(start).await {
                // The values are larger than expected: smaller pages, down to single keys.
                Err(error) if error.class == Class::TooLarge && self.limit > 1 => self.limit /= 8,
                result => return result.map(Some),
            }
            self.limit = self.limit.max(1);
        }
    }

    /// The revision of every page; [`Revision::ABSENT`] before the first.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    async fn read(&mut self, start: Vec<u8>) -> Result<Vec<KeyValue>, Error> {
        let mut options = GetOptions::new()
            .with_range(self.end.clone())
            .with_limit(self.limit);
        if self.revision > Revision::ABSENT {
            options = options.with_revision(self.revision.0);
        }
        let mut response = self
            .etcd
            .call("range", |connection| {
                let (start, options) = (start.clone(), options.clone());
                async move {
                    let mut kv = connection
                        .client
                        .kv_client()
                        .max_decoding_message_size(LARGEST_MESSAGE);
                    kv.get(start, Some(options)).await
                }
            })
            .await?;
        if self.revision == Revision::ABSENT {
            self.revision = revision_of(response.header());
        }
        let more = response.more();
        let page: Vec<KeyValue> = response.take_kvs().into_iter().map(KeyValue::take).collect();
        self.next = match page.last() {
            Some(last) if more => {
                let mut next = last.key.clone();
                next.push(0);
                Some(next)
            }
            _ => None,
        };
        Ok(page)
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
}
