//! From an action to a unit of writes, and what became of it.

use prost::Message;

use super::index::TaskId;
use super::plan::Action;
use crate::etcd::{FencedError, Revision, Stop};
use crate::failpoint;
use crate::mutation::{self, Guard};
use crate::proto::task_status::State;
use crate::proto::{Task, TaskStatus};
use crate::store::object::{decode, task};
use crate::store::writer::{Proof, Unit, Writer};
use crate::store::{Keys, Name, Store};

/// What became of an action: an end, or none as far as is known. What etcd holds by then decides what follows.
pub type Outcome = Result<End, Stop>;

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was done, at this revision or before it.
    Done(Revision),
    /// Nothing was left to do, by what etcd held at this revision. Nothing was sent.
    Unneeded(Revision),
    /// An earlier attempt whose outcome was unknown has not done it, by what etcd held at this revision. Nothing was sent.
    Undone(Revision),
}

impl End {
    /// The revision that a copy of the store has to show before the next decision about the object.
    pub fn revision(self) -> Revision {
        match self {
            Self::Done(revision) | Self::Unneeded(revision) | Self::Undone(revision) => revision,
        }
    }
}

/// Carries out an action.
pub async fn act(store: &Store, writer: &Writer, action: &Action) -> Outcome {
    let keys = &store.keys;
    match action {
        Action::DeleteService {
            name,
            mod_revision,
            networks,
        } => {
            let unit = service_deletion(keys, name, *mod_revision, networks);
            delete(store, writer, &keys.service(name), unit).await
        }
        Action::DeleteNetwork { name, mod_revision } => {
            let key = keys.network(name);
            let unit = Unit::new().delete(key.clone(), *mod_revision);
            delete(store, writer, &key, unit).await
        }
        Action::Orphan(task) => orphan(store, writer, task).await,
    }
}

/// Finds out whether an action was done that had no answer and is no longer due: a read directly after it may have failed too, or
/// come before a transaction that was delayed.
pub async fn find_out(store: &Store, action: &Action) -> Outcome {
    let keys = &store.keys;
    let key = match action {
        Action::DeleteService { name, .. } => keys.service(name),
        Action::DeleteNetwork { name, .. } => keys.network(name),
        Action::Orphan(id) => keys.task(&id.service, &id.name),
    };
    let (stored, now) = store.etcd.get(&key).await?;
    match is_done(action, stored.as_ref().map(|kv| &*kv.value)) {
        true => Ok(End::Done(now)),
        false => Ok(End::Undone(now)),
    }
}

/// Whether the stored value shows that the action was done. Only a leader deletes such an object or makes an orphan.
fn is_done(action: &Action, stored: Option<&[u8]>) -> bool {
    match action {
        Action::DeleteService { .. } | Action::DeleteNetwork { .. } => stored.is_none(),
        Action::Orphan(id) => stored
            .and_then(|value| read_task(id, value))
            .is_some_and(|task| task.status.unwrap_or_default().state() == State::Orphaned),
    }
}

fn read_task(id: &TaskId, value: &[u8]) -> Option<Task> {
    decode::<Task>(&format!("{}/{}", id.service, id.name), value).ok()
}

/// Proves that each object is as it was when the deletion was decided, and that the service has no task. That no other
/// service uses the networks needs no further proof: they were marked, so none can have begun to since (INV-7).
fn service_deletion(keys: &Keys, name: &Name, mod_revision: Revision, networks: &[(Name, Revision)]) -> Unit {
    let service = Unit::new().delete(keys.service(name), mod_revision);
    let service = match mutation::without(Guard::Tasks) {
        true => service,
        false => service.proving(Proof::Empty(keys.tasks_of(name))),
    };
    let networks = networks.iter();
    networks.fold(service, |unit, (name, mod_revision)| {
        unit.delete(keys.network(name), *mod_revision)
    })
}

/// Commits a unit that deletes `key`, among others.
async fn delete(store: &Store, writer: &Writer, key: &[u8], unit: Unit) -> Outcome {
    failpoint::abort_at("deallocator.deleting");
    let outcome = match writer.write(unit).await {
        Ok(revision) => Ok(End::Done(revision)),
        // Read again. A deletion that still happens after that read is harmless: its repetition is refused, as the
        // objects no longer are what it compares.
        Err(FencedError::Unknown(error)) => match store.etcd.get(key).await {
            Ok((None, revision)) => Ok(End::Done(revision)),
            Ok((Some(_), _)) => Err(error.into()),
            Err(unread) => Err(unread.into()),
        },
        Err(error) => Err(error.into()),
    };
    failpoint::abort_at("deallocator.deleted");
    outcome
}

/// Reads a task again and orphans it if it still is unfinished, in a unit that proves that its node does not exist.
async fn orphan(store: &Store, writer: &Writer, id: &TaskId) -> Outcome {
    failpoint::abort_at("deallocator.orphaning");
    let key = store.keys.task(&id.service, &id.name);
    let (stored, now) = store.etcd.get(&key).await?;
    let as_of = stored.as_ref().map_or(now, |kv| kv.mod_revision);
    let unfinished = stored.and_then(|kv| {
        let task = read_task(id, &kv.value).filter(|task| !task::is_finished(task))?;
        Some((task.spec?.node.parse::<Name>().ok()?, kv))
    });
    let Some((node, kv)) = unfinished else {
        return Ok(End::Unneeded(as_of));
    };
    let unit = Unit::new()
        .put(key.clone(), kv.mod_revision, orphaned(kv.value))
        .proving(Proof::Unchanged(store.keys.node(&node), Revision::ABSENT));
    let is_orphan = |task: &Task| {
        let state = task.status.unwrap_or_default().state();
        state == State::Orphaned && task.spec.as_ref().is_some_and(|spec| spec.node == node.as_str())
    };
    let outcome = match writer.write(unit).await {
        Ok(revision) => Ok(End::Done(revision)),
        // Read again, as after a deletion: only a leader makes an orphan.
        Err(FencedError::Unknown(error)) => match store.etcd.get(&key).await? {
            (Some(kv), _) if read_task(id, &kv.value).is_some_and(|task| is_orphan(&task)) => {
                Ok(End::Done(kv.mod_revision))
            }
            _ => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    };
    failpoint::abort_at("deallocator.orphaned");
    outcome
}

/// The stored task with another state. Protobuf merges a message that follows another, so fields that only a newer
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

    fn task(state: State) -> Task {
        Task {
            metadata: Some(Metadata {
                name: "1".to_owned(),
                uid: "u".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(TaskSpec {
                service: "web".to_owned(),
                node: "n1".to_owned(),
            }),
            status: Some(TaskStatus { state: state.into() }),
        }
    }

    #[test]
    fn an_orphaned_task_keeps_everything_but_its_state_also_what_this_release_does_not_know() {
        let task = task(State::Running);
        let mut value = task.encode_to_vec();
        // Field 15, a text, as a later release may have.
        let unknown = [0x7a, 1, b'x'];
        value.extend(unknown);
        let after = orphaned(value);
        assert!(after.windows(3).any(|window| window == unknown));
        let mut expected = task;
        expected.status.get_or_insert_default().set_state(State::Orphaned);
        assert_eq!(decode::<Task>("web/1", &after), Ok(expected));
    }

    #[test]
    fn what_etcd_holds_shows_whether_an_action_without_an_answer_was_done() {
        let (web, one): (Name, Name) = ("web".parse().unwrap(), "1".parse().unwrap());
        let orphan = Action::Orphan(TaskId {
            service: web.clone(),
            name: one,
        });
        let shows = |state: Option<State>, action: &Action| {
            let stored = state.map(|state| task(state).encode_to_vec());
            is_done(action, stored.as_deref())
        };
        assert!(shows(Some(State::Orphaned), &orphan));
        assert!(!shows(Some(State::Running), &orphan));
        assert!(!shows(Some(State::Complete), &orphan), "it ended by itself");
        assert!(!shows(None, &orphan), "its program removed it");
        let deletion = Action::DeleteNetwork {
            name: web,
            mod_revision: Revision(3),
        };
        assert!(shows(None, &deletion));
        assert!(!shows(Some(State::Running), &deletion), "something is there");
    }

    #[test]
    fn the_deletion_of_a_service_compares_it_its_tasks_and_each_network() {
        let keys = Keys::new("/q".parse().unwrap());
        let (web, front): (Name, Name) = ("web".parse().unwrap(), "front".parse().unwrap());
        let unit = service_deletion(&keys, &web, Revision(3), &[(front, Revision(4))]);
        assert_eq!((unit.writes().len(), unit.compares()), (2, 3));
    }
}
