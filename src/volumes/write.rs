//! Fenced writes of single records, many to a transaction.
//!
//! Each record is written by compare-and-swap, and none depends on another, so that those which come while transactions
//! are under way travel together in the next one. One that is refused is taken apart: a record delays no other (INV-8).

use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, oneshot};

use crate::etcd::{Error, Etcd, Fence, FencedError, KeyRange, Revision, Txn};

/// etcd takes 128 compares a transaction (`--max-txn-ops`), one of which is the fence.
const COMPARES: usize = 127;

/// Of the 1.5 MiB that etcd takes a request.
const BYTES: usize = 512 * 1024;

/// Transactions under way: with more, each would carry less.
const IN_FLIGHT: usize = 4;

/// A record as it is to be, if it is as it was.
#[derive(Clone, Debug)]
pub struct Write {
    /// Its key.
    pub key: Vec<u8>,
    /// When it was last written; [`Revision::ABSENT`] if it must not be there.
    pub expected: Revision,
    /// What it is to be; `None` if it is to go.
    pub value: Option<Vec<u8>>,
    /// What else must hold.
    pub proof: Option<Proof>,
}

/// What must hold in the transaction of a write.
#[derive(Clone, Debug)]
pub enum Proof {
    /// No such key.
    Absent(Vec<u8>),
    /// The key as it was last written then.
    Unchanged(Vec<u8>, Revision),
    /// No key in the range. A small one.
    Empty(KeyRange),
}

impl Write {
    /// A record that was at this revision, with this value.
    pub fn put(key: Vec<u8>, expected: Revision, value: Vec<u8>) -> Self {
        Self {
            key,
            expected,
            value: Some(value),
            proof: None,
        }
    }

    /// The end of a record that was at this revision.
    pub fn delete(key: Vec<u8>, expected: Revision) -> Self {
        Self {
            key,
            expected,
            value: None,
            proof: None,
        }
    }

    /// Only if this holds, too.
    #[must_use]
    pub fn proving(mut self, proof: Proof) -> Self {
        self.proof = Some(proof);
        self
    }

    fn compares(&self) -> usize {
        1 + usize::from(self.proof.is_some())
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }

    fn add_to(&self, txn: Txn) -> Txn {
        let txn = txn.when_unchanged(&self.key, self.expected);
        let txn = match &self.proof {
            None => txn,
            Some(Proof::Absent(key)) => txn.when_absent(key),
            Some(Proof::Unchanged(key, revision)) => txn.when_unchanged(key, *revision),
            Some(Proof::Empty(range)) => txn.when_range_empty(range),
        };
        match &self.value {
            Some(value) => txn.put(&self.key, value.clone()),
            None => txn.delete(&self.key),
        }
    }
}

/// Why something was not written, or may not have been.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// Something is not as it was. Read again, then decide.
    #[error("something that was read has changed meanwhile")]
    Conflict,
    /// The term is over.
    #[error("leadership is lost")]
    Lost,
    /// etcd did not do it, or did not say. Read again, then decide.
    #[error(transparent)]
    Failed(Error),
}

struct Request {
    write: Write,
    reply: oneshot::Sender<Result<Revision, WriteError>>,
}

/// Takes writes. All clones share the transactions.
#[derive(Clone, Debug)]
pub struct Writer(mpsc::UnboundedSender<Request>);

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

impl Writer {
    /// Writes a record, and says at which revision.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn write(&self, write: Write) -> Result<Revision, WriteError> {
        let (reply, answer) = oneshot::channel();
        // Both fail only once the transactions are no longer made: the term is over.
        self.0
            .send(Request { write, reply })
            .map_err(|_| WriteError::Lost)?;
        answer.await.unwrap_or(Err(WriteError::Lost))
    }
}

/// A writer, and what makes its transactions for as long as it is polled.
pub fn writer(etcd: &Etcd, fence: &Fence) -> (Writer, BoxFuture<'static, ()>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let serving = serve(etcd.clone(), fence.clone(), receiver).boxed();
    (Writer(sender), serving)
}

async fn serve(etcd: Etcd, fence: Fence, mut requests: mpsc::UnboundedReceiver<Request>) {
    let mut under_way = FuturesUnordered::new();
    let mut left_over: Option<Request> = None;
    loop {
        if under_way.len() >= IN_FLIGHT {
            under_way.next().await;
            continue;
        }
        let first = match left_over.take() {
            Some(request) => request,
            None => tokio::select! {
                Some(()) = under_way.next() => continue,
                request = requests.recv() => match request {
                    Some(request) => request,
                    // Nobody writes any more; what is under way is answered.
                    None => break,
                },
            },
        };
        let (mut compares, mut bytes) = (first.write.compares(), first.write.bytes());
        let mut batch = vec![first];
        while let Ok(request) = requests.try_recv() {
            compares += request.write.compares();
            bytes += request.write.bytes();
            // etcd refuses to write one key twice.
            let twice = batch.iter().any(|other| other.write.key == request.write.key);
            if compares > COMPARES || bytes > BYTES || twice {
                left_over = Some(request);
                break;
            }
            batch.push(request);
        }
        under_way.push(commit(&etcd, &fence, batch));
    }
    while under_way.next().await.is_some() {}
}

async fn commit(etcd: &Etcd, fence: &Fence, batch: Vec<Request>) {
    let txn = batch
        .iter()
        .fold(Txn::new(), |txn, request| request.write.add_to(txn));
    let outcome = once(etcd, fence, txn).await;
    let apart = match &outcome {
        Ok(_) | Err(WriteError::Lost) => false,
        Err(WriteError::Conflict) => batch.len() > 1,
        // An etcd that takes fewer operations a transaction takes them one by one.
        Err(WriteError::Failed(error)) => batch.len() > 1 && !error.is_retryable(),
    };
    if apart {
        let singles = batch.into_iter().map(|request| async move {
            let outcome = once(etcd, fence, request.write.add_to(Txn::new())).await;
            let _ = request.reply.send(outcome);
        });
        join_all(singles).await;
        return;
    }
    for request in batch {
        // Whoever asked may have been cancelled.
        let _ = request.reply.send(outcome.clone());
    }
}

async fn once(etcd: &Etcd, fence: &Fence, txn: Txn) -> Result<Revision, WriteError> {
    match etcd.fenced(fence, txn).await {
        Ok(committed) => Ok(committed.revision),
        Err(FencedError::Conflict) => Err(WriteError::Conflict),
        Err(FencedError::LostLeadership(_)) => Err(WriteError::Lost),
        Err(FencedError::Failed(error) | FencedError::Unknown(error)) => Err(WriteError::Failed(error)),
    }
}
