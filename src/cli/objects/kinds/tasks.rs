//! Tasks, as the commands show them.

use jiff::Timestamp;

use super::{Kind, Shown, Words};
use crate::cli::objects::delete::{Deletable, tasks::DeleteTask};
use crate::cli::objects::description;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, or_none};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Task;
use crate::store::object::change::{Codec, Of};
use crate::store::object::{Object, task};
use crate::store::{Id, Keys};

/// The kind.
pub struct Tasks;

static WORDS: Words = Words {
    kind: Task::KIND,
    singular: "task",
    plural: "tasks",
    short: &[],
};

static CODEC: Of<Task> = Of::new();

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("NODE"),
    Column::new("STATE"),
    Column::new("AGE"),
    Column::wide("UID"),
    Column::wide("LABELS"),
];

impl Kind for Tasks {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn is_owned(&self) -> bool {
        true
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        match id {
            None => vec![keys.tasks()],
            Some(id) => vec![KeyRange::key(self.key(keys, id))],
        }
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        // Every id of this kind was parsed with an owner; a task without one would be its own service's.
        keys.task(id.owner.as_ref().unwrap_or(&id.name), &id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_task(key)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, _view: &View, id: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::object(COLUMNS, id, kv, now, |task: &Task| {
            let node = task.spec.as_ref().map_or("", |spec| spec.node.as_str());
            let cells = vec![
                or_none(node).to_owned(),
                or_none(&task::state_word(task)).to_owned(),
            ];
            (cells, task::to_document(task, kv.mod_revision))
        })
    }

    fn describe(&self, _view: &View, id: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(id, kv, now, |description, task: Option<&Task>| {
            let Some(task) = task else { return };
            let spec = task.spec.clone().unwrap_or_default();
            let state = match (task::is_finished(task), task::state_word(task)) {
                (true, state) => format!("{state} (finished; its service stays until it is deleted)"),
                (false, state) => or_none(&state).to_owned(),
            };
            description
                .field(0, "Service", spec.service)
                .field(0, "Node", or_none(&spec.node))
                .field(0, "State", state);
        })
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DeleteTask)
    }
}
