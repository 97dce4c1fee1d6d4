//! Reads, in the vocabulary of this crate.

use std::fmt;

use etcd_client::GetOptions;

use super::connect::{Etcd, LARGEST_MESSAGE};
use super::error::{Class, Error};

/// A revision of the etcd store; absent keys compare as revision 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub i64);

impl Revision {
    /// What an absent key compares as.
    pub const ABSENT: Self = Self(0);

    /// The one after.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An etcd lease. Prints as etcdctl prints it: hexadecimal, lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A member of the etcd cluster. Prints as 16 hexadecimal digits, lower case; etcdctl leaves leading zeros out.
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
    /// Its value.
    pub value: Vec<u8>,
    /// When the key came to be.
    pub create_revision: Revision,
    /// When it was last written.
    pub mod_revision: Revision,
    /// The lease that it ends with.
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

/// Keys from `start` (in it) to `end` (not in it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with `prefix`, which is not empty.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        // The least key after all of them: the last byte that can grow grows, the rest goes.
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return Self { start, end };
            }
        }
        // Nothing can grow: to the end of the key space, which etcd writes as one zero byte.
        Self { start, end: vec![0] }
    }

    /// From the first key of this range to the last of `last`, with whatever lies between them.
    #[must_use]
    pub fn through(self, last: Self) -> Self {
        Self {
            start: self.start,
            end: last.end,
        }
    }

    /// The first key that it can hold: for a prefix, the prefix.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Whether the range covers this key.
    pub fn contains(&self, key: &[u8]) -> bool {
        // One zero byte as the end is the end of the key space.
        *self.start <= *key && (self.end == [0] || *key < *self.end)
    }

    /// This one key.
    pub fn key(key: impl Into<Vec<u8>>) -> Self {
        let start = key.into();
        let mut end = start.clone();
        end.push(0);
        Self { start, end }
    }
}

impl Etcd {
    /// One key, read linearizably, and the revision of the store at that moment.
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

    /// A whole range, in key order, at one revision. For ranges that may be large use [`Etcd::pages`].
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

    /// How many keys a range holds.
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

    /// A range in pages, all at the revision of the first, which is read linearizably.
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

/// Keys a page: about 2 MB of node records, well below what etcd sends in one message.
const PAGE: i64 = 10_000;

/// A large range, page by page. See [`Etcd::pages`].
pub struct Pages {
    etcd: Etcd,
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    revision: Revision,
    limit: i64,
}

impl Pages {
    /// The next page; `None` after the last. A page may be asked for again after an error.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer; of class [`Class::Compacted`] if the revision is gone meanwhile.
    pub async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, Error> {
        loop {
            let Some(start) = self.next.clone() else {
                return Ok(None);
            };
            match self.read(start).await {
                // Values far larger than expected: smaller pages, down to single keys.
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
    // etcd sends a header with every response; one without dates nothing, and revision 0 admits nothing.
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
