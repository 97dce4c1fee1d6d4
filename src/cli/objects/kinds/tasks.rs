//! The Task kind for commands.

use super::{Kind, Shown, Words};
use crate::cli::objects::delete::tasks;
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, or_none};
use crate::proto::Task;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::{Malformed, Object, task};

/// The kind.
pub static TASKS: Kind = Kind {
    applied: Some(Of::<Task>::CODEC),
    owned: Some("SERVICE/NAME"),
    ..Kind::new(
        Words::new(Task::KIND, "task", "tasks", &[]),
        KeySpace::TASKS,
        &["NAME", "NODE", "STATE", "AGE"],
        &["UID", "LABELS"],
        show,
        describe,
        Ok(&tasks::TASK),
    )
};

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let task: Task = item.object()?;
    let node = task.spec.clone().unwrap_or_default().node;
    let document = task::to_document(&task, item.revision());
    Ok(Shown::object(
        &task,
        item.now,
        vec![node, task::state_word(&task)],
        document,
    ))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(task) = description.object::<Task>(item) else {
        return;
    };
    let state = match (task::is_finished(&task), task::state_word(&task)) {
        (true, state) => format!("{state} (finished; its service stays until it is deleted)"),
        (false, state) => or_none(&state).to_owned(),
    };
    let spec = task.spec.unwrap_or_default();
    description
        .field("Service", spec.service)
        .field("Node", or_none(&spec.node))
        .field("State", state);
}
