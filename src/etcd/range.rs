//! Linearizable reads: of one key, of a range, and of a large range in pages.

use etcd_client::{GetOptions, SortOrder, SortTarget, TxnOp, TxnOpResponse};

use super::connect::{Etcd, LARGEST_MESSAGE};
use super::error::{Class, Error};
use super::kv::{KeyRange, KeyValue, Revision, revision_of};
use super::store_identity::Epoch;

impl Etcd {
    /// Options of a read as the configuration has it.
    fn read_options(&self) -> GetOptions {
        match self.config().serializable {
            true => GetOptions::new().with_serializable(),
            false => GetOptions::new(),
        }
    }

    /// Reads one key linearizably; with the revision of the store at that moment.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub async fn get(&self, key: &[u8]) -> Result<(Option<KeyValue>, Revision), Error> {
        let response = self
            .call("range", |connection| {
                let (key, options) = (key.to_vec(), self.read_options());
                async move { connection.client.kv_client().get(key, Some(options)).await }
            })
            .await?;
        let revision = revision_of(response.header());
        Ok((response.kvs().first().cloned().map(KeyValue::take), revision))
    }

    /// Reads several keys linearizably, all at one revision; with that revision.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub async fn get_each<const N: usize>(
        &self,
        keys: [&[u8]; N],
    ) -> Result<([Option<KeyValue>; N], Revision), Error> {
        let reads = keys.map(|key| TxnOp::get(key, None));
        self.read_together(reads).await
    }

    /// Makes these reads linearizably, all at one revision: the first key that each finds, and that revision.
    async fn read_together<const N: usize>(
        &self,
        reads: [TxnOp; N],
    ) -> Result<([Option<KeyValue>; N], Revision), Error> {
        // Without compares and writes a transaction is a linearizable read.
        let reads = etcd_client::Txn::new().and_then(reads);
        let response = self
            .call("range", |connection| {
                let reads = reads.clone();
                async move { connection.client.kv_client().txn(reads).await }
            })
            .await?;
        let mut found = response.op_responses().into_iter().map(|read| match read {
            TxnOpResponse::Get(mut read) => read.take_kvs().into_iter().next().map(KeyValue::take),
            _ => None,
        });
        let each = std::array::from_fn(|_| found.next().flatten());
        Ok((each, revision_of(response.header())))
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
                let options = self.read_options().with_range(end).with_count_only();
                async move { connection.client.kv_client().get(start, Some(options)).await }
            })
            .await?;
        Ok((
            u64::try_from(response.count()).unwrap_or(0),
            revision_of(response.header()),
        ))
    }

    /// Reads the key of a range that was created first; with the revision of the store at that moment.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub(super) async fn first_created(
        &self,
        range: &KeyRange,
    ) -> Result<(Option<KeyValue>, Revision), Error> {
        let response = self
            .call("range", |connection| {
                let (start, options) = (range.start.clone(), one_by_creation(range, SortOrder::Ascend));
                async move { connection.client.kv_client().get(start, Some(options)).await }
            })
            .await?;
        let revision = revision_of(response.header());
        Ok((response.kvs().first().cloned().map(KeyValue::take), revision))
    }

    /// Reads a key, and the key of a range that was created last before `entered`, both at one revision.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer with a result.
    pub(super) async fn place(
        &self,
        key: &[u8],
        range: &KeyRange,
        entered: Revision,
    ) -> Result<Place, Error> {
        let before = one_by_creation(range, SortOrder::Descend).with_max_create_revision(entered.0 - 1);
        let reads = [
            TxnOp::get(key, None),
            TxnOp::get(range.start.clone(), Some(before)),
        ];
        let ([own, ahead], revision) = self.read_together(reads).await?;
        Ok(Place { own, ahead, revision })
    }

    /// Reads a range in pages, all at the revision of the first page, which is read linearizably.
    pub fn pages(&self, range: KeyRange) -> Pages {
        Pages {
            etcd: self.clone(),
            next: Some(range.start.clone()),
            range,
            revision: Revision::ABSENT,
            epoch: None,
            pages_read: 0,
            limit: PAGE,
        }
    }
}

/// A key among those of a range in the order of their creation. See [`Etcd::place`].
pub(super) struct Place {
    /// The key itself.
    pub own: Option<KeyValue>,
    /// The key that was created last before it.
    pub ahead: Option<KeyValue>,
    /// The revision of both.
    pub revision: Revision,
}

/// The first key of a range in the order of creation. etcd sorts before it applies the limit.
fn one_by_creation(range: &KeyRange, order: SortOrder) -> GetOptions {
    GetOptions::new()
        .with_range(range.end.clone())
        .with_sort(SortTarget::Create, order)
        .with_limit(1)
}

/// Keys per page: about 2 MB of node records, well below what fits into one message.
const PAGE: i64 = 10_000;

/// A read of a range, page by page. See [`Etcd::pages`].
pub struct Pages {
    pub(super) etcd: Etcd,
    pub(super) range: KeyRange,
    next: Option<Vec<u8>>,
    revision: Revision,
    /// The signs of the store at the first page.
    pub(super) epoch: Option<Epoch>,
    pub(super) pages_read: usize,
    limit: i64,
}

impl Pages {
    /// Reads the next page; `None` after the last. After an error begin another list: etcd may have been restored meanwhile,
    /// and then the same page at the same revision is one of another history (INV-11).
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
        let options = self.etcd.read_options();
        let mut options = options.with_range(self.range.end.clone()).with_limit(self.limit);
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
            self.epoch = response.header().map(|header| Epoch {
                raft_term: header.raft_term(),
                witness: self.etcd.0.store.witness().clone(),
            });
        }
        self.pages_read += 1;
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
