//! Linearizable reads: of one key, of a range, and of a large range in pages.

use etcd_client::GetOptions;

use super::connect::{Etcd, LARGEST_MESSAGE};
use super::error::{Class, Error};
use super::kv::{KeyRange, KeyValue, Revision, revision_of};

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
