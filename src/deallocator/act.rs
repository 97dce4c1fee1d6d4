//! From a step to a transaction, and what became of it.

use futures::future::try_join_all;
use prost::Message;

use super::index::TaskId;
use super::plan::{Batch, Step};
use crate::etcd::{Error, Fence, FencedError, Txn};
use crate::failpoint;
use crate::proto::task_status::State;
use crate::proto::{Task, TaskStatus};
use crate::store::object::{decode, task};
use crate::store::{Keys, Name, Store};

/// What became of a step.
#[derive(Debug)]
pub enum Outcome {
    /// Done; the watch will bring it.
    Done {
        /// Services that were deleted.
        services: usize,
        /// Networks that were deleted.
        networks: usize,
        /// Tasks that were orphaned.
        orphaned: usize,
    },
    /// Something changed since it was decided; nothing was written.
    Refused,
    /// etcd did not do it, or did not say: to be decided anew, later.
    Failed(Error),
    /// The term is over.
    LostLeadership,
}

/// Takes a step.
pub async fn act(store: &Store, fence: &Fence, step: &Step) -> Outcome {
    match step {
        Step::Delete(batch) => {
            failpoint::abort_at("deallocator.deleting");
            let outcome = delete(store, fence, batch).await;
            failpoint::abort_at("deallocator.deleted");
            outcome
        }
        Step::Orphan(tasks) => {
            failpoint::abort_at("deallocator.orphaning");
            let outcome = orphan(store, fence, tasks).await;
            failpoint::abort_at("deallocator.orphaned");
            outcome
        }
    }
}

/// The deletion of a batch: proves that each service is what it was decided on and has no task, and that each network is
/// what it was decided on. That nothing uses the networks needs no further proof: they were marked, so nothing can have
/// begun to use them since, and the services that did go with them (INV-7).
pub fn deletion(keys: &Keys, batch: &Batch) -> Txn {
    let mut txn = Txn::new();
    for (name, mod_revision) in &batch.services {
        let key = keys.service(name);
        txn = txn
            .when_unchanged(&key, *mod_revision)
            .when_range_empty(&keys.tasks_of(name))
            .delete(&key);
    }
    for (name, mod_revision) in &batch.networks {
        let key = keys.network(name);
        txn = txn.when_unchanged(&key, *mod_revision).delete(&key);
    }
    txn
}

async fn delete(store: &Store, fence: &Fence, batch: &Batch) -> Outcome {
    let done = Outcome::Done {
        services: batch.services.len(),
        networks: batch.networks.len(),
        orphaned: 0,
    };
    match store.etcd.fenced(fence, deletion(&store.keys, batch)).await {
        Ok(_) => done,
        Err(FencedError::Conflict) => Outcome::Refused,
        Err(FencedError::LostLeadership(_)) => Outcome::LostLeadership,
        Err(FencedError::Failed(error)) => Outcome::Failed(error),
        // Read again. Should it happen after that read, then a repetition is refused: the objects are no longer what it
        // compares.
        Err(FencedError::Unknown(error)) => match is_any_left(store, batch).await {
            Ok(false) => done,
            Ok(true) => Outcome::Failed(error),
            Err(unread) => Outcome::Failed(unread),
        },
    }
}

/// Whether any object of a batch is what it was decided on. One alone does not tell what became of the others: it may
/// have been written by somebody else meanwhile.
async fn is_any_left(store: &Store, batch: &Batch) -> Result<bool, Error> {
    let services = batch
        .services
        .iter()
        .map(|(name, revision)| (store.keys.service(name), revision));
    let networks = batch
        .networks
        .iter()
        .map(|(name, revision)| (store.keys.network(name), revision));
    let read = services.chain(networks).map(|(key, revision)| async move {
        let (stored, _) = store.etcd.get(&key).await?;
        Ok::<_, Error>(stored.is_some_and(|kv| kv.mod_revision == *revision))
    });
    Ok(try_join_all(read).await?.contains(&true))
}

/// Reads the tasks anew and turns those that still are what was decided on into orphans, in a transaction that compares
/// each of them and proves that its node does not exist.
async fn orphan(store: &Store, fence: &Fence, tasks: &[TaskId]) -> Outcome {
    let read = tasks.iter().map(|id| async move {
        let key = store.keys.task(&id.service, &id.name);
        let (stored, _) = store.etcd.get(&key).await?;
        Ok::<_, Error>(stored.map(|kv| (id, kv)))
    });
    let stored = match try_join_all(read).await {
        Ok(stored) => stored,
        Err(error) => return Outcome::Failed(error),
    };
    let mut txn = Txn::new();
    let mut nodes: Vec<Name> = Vec::new();
    for (id, kv) in stored.into_iter().flatten() {
        let Ok(read) = decode::<Task>(&format!("{}/{}", id.service, id.name), &kv.value) else {
            continue;
        };
        let node = read.spec.as_ref().and_then(|spec| spec.node.parse::<Name>().ok());
        let Some(node) = node.filter(|_| !task::is_finished(&read)) else {
            continue;
        };
        txn = txn
            .when_unchanged(&kv.key, kv.mod_revision)
            .put_keeping_lease(&kv.key, orphaned(kv.value));
        if !nodes.contains(&node) {
            txn = txn.when_absent(&store.keys.node(&node));
            nodes.push(node);
        }
    }
    let orphaned = txn.len();
    if orphaned == 0 {
        return Outcome::Refused;
    }
    match store.etcd.fenced(fence, txn).await {
        Ok(_) => Outcome::Done {
            services: 0,
            networks: 0,
            orphaned,
        },
        Err(FencedError::Conflict) => Outcome::Refused,
        Err(FencedError::LostLeadership(_)) => Outcome::LostLeadership,
        // Read again before it is decided again, in any case.
        Err(FencedError::Failed(error) | FencedError::Unknown(error)) => Outcome::Failed(error),
    }
}

/// The stored task with another state. Protobuf merges a message that follows another, so that fields which only a newer
/// release knows stay as they are.
fn orphaned(mut value: Vec<u8>) -> Vec<u8> {
    let change = Task {
        status: Some(TaskStatus {
            state: State::Orphaned.into(),
        }),
        ..Task::default()
    };
    value.extend(change.encode_to_vec());
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Metadata, TaskSpec};

    #[test]
    fn an_orphaned_task_keeps_everything_but_its_state_also_what_this_release_does_not_know() {
        let task = Task {
            metadata: Some(Metadata {
                name: "1".to_owned(),
                uid: "u".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(TaskSpec {
                service: "web".to_owned(),
                node: "n1".to_owned(),
            }),
            status: Some(TaskStatus {
                state: State::Running.into(),
            }),
        };
        let mut value = task.encode_to_vec();
        // Field 15, a text: of a later release.
        let unknown = [0x7a, 1, b'x'];
        value.extend(unknown);
        let after = orphaned(value);
        assert!(after.windows(3).any(|window| window == unknown));
        let mut expected = task;
        expected.status.get_or_insert_default().set_state(State::Orphaned);
        assert_eq!(decode::<Task>("web/1", &after), Ok(expected));
    }

    #[test]
    fn a_batch_is_compared_and_deleted_object_by_object() {
        let keys = Keys::new("/q".parse().unwrap());
        let batch = Batch {
            services: [("web".parse().unwrap(), crate::etcd::Revision(3))].into(),
            networks: [("front".parse().unwrap(), crate::etcd::Revision(4))].into(),
        };
        assert_eq!(deletion(&keys, &batch).len(), 2);
    }
}
