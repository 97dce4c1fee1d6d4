//! Deleting tasks: at once. Who deletes a task says that it no longer runs.

use futures::FutureExt;

use super::{Deletable, Deletion, Request};
use crate::cli::exit::Failure;
use crate::cli::objects::pending;
use crate::proto::Task;

/// Deletes a task whatever its state.
pub static TASK: Deletable = Deletable {
    plan: |request| std::future::ready(plan(&request)).boxed(),
    plan_absent: None,
    ending: None,
};

fn plan(request: &Request<'_>) -> Result<Deletion, Failure> {
    let state = match request.object::<Task>() {
        Ok(task) => pending::task_state(&task),
        Err(_) if request.force => "malformed".to_owned(),
        Err(malformed) => return Err(super::malformed(&malformed)),
    };
    Ok(request.delete(format!("task/{} ({state}) is deleted", request.id)))
}
