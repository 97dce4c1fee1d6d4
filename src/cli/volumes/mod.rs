//! What is asked of volumes: `publish`, `unpublish`, `retry`, and of a node that is gone: `drain --out-of-service`.

use std::time::Duration;

use super::confirm::{self, ATTEMPTS};
use super::exit::Failure;
use super::wait::{Look, until};
use crate::etcd::{KeyRange, KeyValue, Txn};
use crate::retry::Delays;
use crate::store::{Name, Store};

pub mod drain;
pub mod publish;
pub mod retry;
pub mod unpublish;

/// What is to be written, and what it means.
enum Request {
    /// Nothing to do.
    Nothing(String),
    /// This transaction, and what to say then.
    Write(Txn, String),
}

/// Decides and writes, and decides anew where somebody else was faster.
async fn carry_out<D>(store: &Store, decide: impl Fn() -> D) -> Result<String, Failure>
where
    D: Future<Output = Result<Request, Failure>>,
{
    let mut delays = Delays::etcd();
    for _ in 0..ATTEMPTS {
        let (txn, said) = match decide().await? {
            Request::Nothing(said) => return Ok(said),
            Request::Write(txn, said) => (txn, said),
        };
        if confirm::commit(&store.etcd, txn, "asked for").await? {
            return Ok(said);
        }
        delays.wait().await;
    }
    Err(confirm::overtaken())
}

/// Looks at one publication of a volume whenever it changes, until it is done.
async fn wait_for(
    store: &Store,
    volume: &Name,
    key: Vec<u8>,
    limit: Option<Duration>,
    mut look: impl FnMut(Option<&KeyValue>) -> Result<Look<()>, Failure>,
) -> Result<(), Failure> {
    let hint = format!("it stays asked for; quorate describe volume {volume} says what it waits for");
    let range = KeyRange::key(key.clone());
    until(store, vec![range], limit, &hint, |view| look(view.get(&key))).await
}
