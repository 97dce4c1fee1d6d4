//! Fenced writes, many to a transaction.
//!
//! A [`Unit`] is what stands or falls together: a few writes, each by compare-and-swap, and proofs. No unit depends on
//! another, so units that arrive while a transaction is under way share the next one. A transaction that is refused is
//! taken apart and its units go alone, so that none delays another (INV-8).
//!
//! etcd's limits stand here and nowhere else: 128 compares and 128 operations a transaction (`--max-txn-ops`), 1.5 MiB a
//! request (`--max-request-bytes`).

use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::etcd::{Etcd, Fence, FencedError, KeyRange, Revision, Txn};
use crate::retry::sleep_until;

/// Compares of all units in a transaction: etcd takes 128, one of which is the fence. Every write is compared, so there
/// are never more operations than compares.
pub const COMPARES: usize = 127;

/// Bytes of all units in a transaction: a third of what etcd takes, for values differ and a batch gains little by more.
const BYTES: usize = 512 * 1024;

/// Transactions under way at once, where each is full, or etcd is slow.
const IN_FLIGHT: usize = 4;

/// How long a batch with room for more waits for the transactions under way: a few commits on a fast disk. Each transaction costs etcd
/// an entry of its log, a write of its disk and an answer, so that what comes meanwhile goes together. A commit that is slow, or
/// hangs with its endpoint, holds up no other for longer than this.
const GATHERING: Duration = Duration::from_millis(5);

/// Writes and proofs that are committed in one revision, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    writes: Vec<Write>,
    proofs: Vec<Proof>,
}

/// One key, written by compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The whole key.
    pub key: Vec<u8>,
    /// The mod revision that the key must have; [`Revision::ABSENT`] if it must not exist.
    pub expected: Revision,
    /// The new value; `None` deletes the key.
    pub value: Option<Vec<u8>>,
}

/// A condition on keys that a unit does not write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The key has this mod revision; with [`Revision::ABSENT`], it does not exist.
    Unchanged(Vec<u8>, Revision),
    /// The range holds no key. etcd reads the whole range for it, so it must be a small one.
    Empty(KeyRange),
    /// No key of the range was written after this revision. A delete is not seen. The range must be a small one, as above.
    Unwritten(KeyRange, Revision),
}

impl Unit {
    /// Without writes and proofs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes `value` if the key has the mod revision `expected`. An existing key keeps its lease.
    #[must_use]
    pub fn put(mut self, key: Vec<u8>, expected: Revision, value: Vec<u8>) -> Self {
        self.writes.push(Write {
            key,
            expected,
            value: Some(value),
        });
        self
    }

    /// Deletes the key if it has the mod revision `expected`.
    #[must_use]
    pub fn delete(mut self, key: Vec<u8>, expected: Revision) -> Self {
        self.writes.push(Write {
            key,
            expected,
            value: None,
        });
        self
    }

    /// Writes only if `proof` holds.
    #[must_use]
    pub fn proving(mut self, proof: Proof) -> Self {
        self.proofs.push(proof);
        self
    }

    /// What is written.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// How many compares it needs. A unit of more than [`COMPARES`] is sent alone, and etcd refuses it.
    pub fn compares(&self) -> usize {
        self.writes.len() + self.proofs.len()
    }

    fn bytes(&self) -> usize {
        let value = |write: &Write| write.value.as_ref().map_or(0, Vec::len);
        self.writes
            .iter()
            .map(|write| write.key.len() + value(write))
            .sum()
    }

    fn add_to(&self, txn: Txn) -> Txn {
        let txn = self.proofs.iter().fold(txn, |txn, proof| match proof {
            Proof::Unchanged(key, revision) => txn.when_unchanged(key, *revision),
            Proof::Empty(range) => txn.when_range_empty(range),
            Proof::Unwritten(range, since) => txn.when_range_unwritten_since(range, *since),
        });
        self.writes.iter().fold(txn, |txn, write| {
            let txn = txn.when_unchanged(&write.key, write.expected);
            match &write.value {
                None => txn.delete(&write.key),
                Some(value) if write.expected == Revision::ABSENT => txn.put(&write.key, value.clone()),
                Some(value) => txn.put_keeping_lease(&write.key, value.clone()),
            }
        })
    }
}

/// Accepts units. Clones share the transactions.
#[derive(Clone, Debug)]
pub struct Writer {
    requests: mpsc::UnboundedSender<Request>,
    term: Revision,
}

/// A writer, and the future that makes its transactions for as long as it is polled.
pub fn writer(etcd: &Etcd, fence: &Fence) -> (Writer, BoxFuture<'static, ()>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let writer = Writer {
        requests: sender,
        term: fence.term(),
    };
    (writer, serve(etcd.clone(), fence.clone(), receiver).boxed())
}

impl Writer {
    /// Commits a unit and returns the revision of its writes.
    ///
    /// # Errors
    /// [`FencedError`], which says whether anything may have been written. The outcome of every unit is unknown that
    /// shared a transaction without an answer; the caller reads again before it decides, as the writer repeats nothing.
    pub async fn write(&self, unit: Unit) -> Result<Revision, FencedError> {
        let (reply, answer) = oneshot::channel();
        // Sending and waiting fail only once nothing makes the transactions any more: the term is over.
        let over = || FencedError::LostLeadership(self.term);
        self.requests.send(Request { unit, reply }).map_err(|_| over())?;
        answer.await.unwrap_or_else(|_| Err(over()))
    }
}

#[derive(Debug)]
struct Request {
    unit: Unit,
    reply: oneshot::Sender<Result<Revision, FencedError>>,
}

/// The keys that the units of a transaction are about, so that a further unit is checked without looking at each of them.
#[derive(Debug, Default)]
struct Touched {
    written: BTreeSet<Vec<u8>>,
    proved: HashSet<Vec<u8>>,
    /// Few, for each is a read of etcd.
    proved_ranges: Vec<KeyRange>,
}

impl Touched {
    /// Whether the unit writes a key that is written or proved something about, or proves something about a key that is written.
    /// etcd refuses to write a key twice in a transaction. And it evaluates every compare before any write, so in one transaction
    /// a proof would not see the other unit's write.
    fn meets(&self, unit: &Unit) -> bool {
        let is_touched = |write: &Write| {
            let mut ranges = self.proved_ranges.iter();
            self.written.contains(&write.key)
                || self.proved.contains(&write.key)
                || ranges.any(|range| range.contains(&write.key))
        };
        let is_written = |proof: &Proof| match proof {
            Proof::Unchanged(key, _) => self.written.contains(key),
            Proof::Empty(range) | Proof::Unwritten(range, _) => {
                let mut from = self
                    .written
                    .range::<[u8], _>((Bound::Included(range.start()), Bound::Unbounded));
                from.next().is_some_and(|key| range.contains(key))
            }
        };
        unit.writes.iter().any(is_touched) || unit.proofs.iter().any(is_written)
    }

    fn add(&mut self, unit: &Unit) {
        self.written
            .extend(unit.writes.iter().map(|write| write.key.clone()));
        for proof in &unit.proofs {
            match proof {
                Proof::Unchanged(key, _) => _ = self.proved.insert(key.clone()),
                Proof::Empty(range) | Proof::Unwritten(range, _) => self.proved_ranges.push(range.clone()),
            }
        }
    }
}

/// Units that share a transaction.
#[derive(Debug, Default)]
struct Batch {
    requests: Vec<Request>,
    touched: Touched,
    compares: usize,
    bytes: usize,
}

impl Batch {
    /// Adds a unit, or returns it where it must wait for another transaction. An empty batch takes any unit.
    fn add(&mut self, request: Request) -> Option<Request> {
        let unit = &request.unit;
        let compares = self.compares + unit.compares();
        let bytes = self.bytes + unit.bytes();
        let full = compares > COMPARES || bytes > BYTES;
        if !self.requests.is_empty() && (full || self.touched.meets(unit)) {
            return Some(request);
        }
        (self.compares, self.bytes) = (compares, bytes);
        self.touched.add(unit);
        self.requests.push(request);
        None
    }

    fn is_full(&self) -> bool {
        self.compares >= COMPARES || self.bytes >= BYTES
    }
}

async fn serve(etcd: Etcd, fence: Fence, mut requests: mpsc::UnboundedReceiver<Request>) {
    let mut under_way = FuturesUnordered::new();
    let mut batch = Batch::default();
    // The first one of the next batch, where it has no place in this one.
    let mut left_over: Option<Request> = None;
    let mut gathering_since: Option<Instant> = None;
    loop {
        if batch.requests.is_empty() {
            left_over = left_over.take().and_then(|request| batch.add(request));
        }
        while left_over.is_none()
            && let Ok(request) = requests.try_recv()
        {
            left_over = batch.add(request);
        }
        let is_full = left_over.is_some() || batch.is_full();
        let since = (!batch.requests.is_empty()).then(|| *gathering_since.get_or_insert_with(Instant::now));
        let has_gathered = since.is_some_and(|since| since.elapsed() >= GATHERING);
        let has_room = under_way.len() < IN_FLIGHT;
        if since.is_some() && (under_way.is_empty() || has_room && (is_full || has_gathered)) {
            under_way.push(commit(&etcd, &fence, std::mem::take(&mut batch).requests));
            gathering_since = None;
            continue;
        }
        let until = since.filter(|_| has_room).map(|since| since + GATHERING);
        tokio::select! {
            Some(()) = under_way.next() => {}
            request = requests.recv(), if !is_full => match request {
                Some(request) => left_over = batch.add(request),
                // Every writer is gone. What is under way is still answered.
                None => break,
            },
            () = sleep_until(until) => {}
        }
    }
    while under_way.next().await.is_some() {}
}

async fn commit(etcd: &Etcd, fence: &Fence, batch: Vec<Request>) {
    let txn = batch
        .iter()
        .fold(Txn::new(), |txn, request| request.unit.add_to(txn));
    let outcome = commit_once(etcd, fence, txn).await;
    let apart = match &outcome {
        Ok(_) | Err(FencedError::LostLeadership(_) | FencedError::Unknown(_)) => false,
        Err(FencedError::Conflict) => batch.len() > 1,
        // An etcd that takes fewer operations a transaction takes the units one by one.
        Err(FencedError::Failed(error)) => batch.len() > 1 && !error.is_retryable(),
    };
    if apart {
        let singles = batch.into_iter().map(|Request { unit, reply }| async move {
            let outcome = commit_once(etcd, fence, unit.add_to(Txn::new())).await;
            let _ = reply.send(outcome);
        });
        join_all(singles).await;
        return;
    }
    for request in batch {
        // The receiver is gone where its caller was cancelled.
        let _ = request.reply.send(outcome.clone());
    }
}

async fn commit_once(etcd: &Etcd, fence: &Fence, txn: Txn) -> Result<Revision, FencedError> {
    etcd.fenced(fence, txn).await.map(|committed| committed.revision)
}

#[cfg(test)]
impl Writer {
    /// A writer of a term that is over.
    pub fn ended() -> Self {
        Self {
            requests: mpsc::unbounded_channel().0,
            term: Revision::ABSENT,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: usize) -> Vec<u8> {
        format!("/k/{number:03}").into_bytes()
    }

    fn put(number: usize) -> Unit {
        Unit::new().put(key(number), Revision(1), Vec::new())
    }

    /// Adds units until one does not fit, and returns how many did.
    fn fill(units: impl IntoIterator<Item = Unit>) -> usize {
        let mut batch = Batch::default();
        let fits = |unit| {
            let (reply, _) = oneshot::channel();
            batch.add(Request { unit, reply }).is_none()
        };
        units.into_iter().map(fits).take_while(|fits| *fits).count()
    }

    fn share(one: Unit, other: Unit) -> bool {
        let shared = fill([one.clone(), other.clone()]) == 2;
        assert_eq!(fill([other, one]) == 2, shared, "whichever comes first");
        shared
    }

    #[test]
    fn a_transaction_has_room_for_127_compares_beside_the_fence() {
        assert_eq!(fill((0..200).map(put)), 127);
        let proving = |number| put(number).proving(Proof::Empty(KeyRange::prefix(format!("/p/{number}/"))));
        assert_eq!(fill((0..200).map(proving)), 63);
        let pair = |number| put(number).delete(key(number + 500), Revision(1));
        assert_eq!(fill((0..200).map(pair)), 63);
    }

    #[test]
    fn a_unit_too_large_for_any_transaction_goes_alone() {
        let large = || (0..200).fold(Unit::new(), |unit, number| unit.delete(key(number), Revision(1)));
        assert_eq!(fill([large(), put(300)]), 1);
        assert_eq!(fill([put(300), large()]), 1);
        let value = vec![0; BYTES];
        let long = Unit::new().put(key(0), Revision(1), value);
        assert_eq!(fill([long.clone(), put(1)]), 1);
        assert_eq!(fill([put(1), long]), 1);
    }

    #[test]
    fn units_share_a_transaction_unless_one_writes_what_the_other_writes_or_proves() {
        let (a, b) = (|| put(1), || put(2));
        assert!(share(a(), b()));
        assert!(!share(a(), a()), "etcd writes a key once a transaction");
        assert!(!share(a(), b().proving(Proof::Unchanged(key(1), Revision(1)))));
        assert!(!share(a(), b().proving(Proof::Empty(KeyRange::prefix("/k/")))));
        let unwritten = Proof::Unwritten(KeyRange::prefix("/k/"), Revision(1));
        assert!(!share(a(), b().proving(unwritten)));
        let same = || Proof::Unchanged(key(3), Revision(1));
        assert!(
            share(a().proving(same()), b().proving(same())),
            "nothing is written there"
        );
        let elsewhere = Proof::Empty(KeyRange::prefix("/k/0010/"));
        assert!(share(a(), b().proving(elsewhere)));
    }

    /// What the sets of [`Touched`] answer, unit by unit.
    fn meet(one: &Unit, other: &Unit) -> bool {
        let is_about = |proof: &Proof, key: &[u8]| match proof {
            Proof::Unchanged(proved, _) => proved == key,
            Proof::Empty(range) | Proof::Unwritten(range, _) => range.contains(key),
        };
        let touches = |unit: &Unit, write: &Write| {
            let is_written = unit.writes.iter().any(|own| own.key == write.key);
            is_written || unit.proofs.iter().any(|proof| is_about(proof, &write.key))
        };
        let mut theirs = other.writes.iter();
        theirs.any(|write| touches(one, write)) || one.writes.iter().any(|write| touches(other, write))
    }

    fn any_unit() -> impl Strategy<Value = Unit> {
        let keys = || proptest::collection::vec(0_usize..8, 0..3);
        let ranges = proptest::sample::select(vec!["/k/", "/k/00", "/k/003", "/k/9"]);
        let ranges = proptest::collection::vec(ranges, 0..2);
        (keys(), keys(), ranges).prop_map(|(written, proved, empty)| {
            let unit = written.into_iter().fold(Unit::new(), |unit, number| {
                unit.put(key(number), Revision(1), Vec::new())
            });
            let unit = proved.into_iter().fold(unit, |unit, number| {
                unit.proving(Proof::Unchanged(key(number), Revision(1)))
            });
            empty.into_iter().fold(unit, |unit, prefix| {
                unit.proving(Proof::Empty(KeyRange::prefix(prefix)))
            })
        })
    }

    proptest! {
        #[test]
        fn a_unit_shares_a_transaction_exactly_where_it_meets_none_of_the_units_in_it(
            units in proptest::collection::vec(any_unit(), 1..12),
        ) {
            let (mut batch, mut shared) = (Batch::default(), Vec::<Unit>::new());
            for unit in units {
                let is_free = !shared.iter().any(|other| meet(other, &unit));
                let (reply, _) = oneshot::channel();
                let is_added = batch.add(Request { unit: unit.clone(), reply }).is_none();
                prop_assert_eq!(is_added, is_free, "{:?} beside {:?}", unit, shared);
                if is_added {
                    shared.push(unit);
                }
            }
        }
    }
}
