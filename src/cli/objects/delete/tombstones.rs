//! Deleting tombstones: at once, and with them the last record of what forced deletions left behind.

use futures::FutureExt;

use super::{Deletable, Deletion, Request};
use crate::proto::Tombstone;
use crate::store::object::tombstone;

/// Deletes a tombstone, also one that cannot be read.
pub static TOMBSTONE: Deletable = Deletable {
    plan: |request| std::future::ready(Ok(plan(&request))).boxed(),
    plan_absent: None,
    ending: None,
};

fn plan(request: &Request<'_>) -> Deletion {
    let left = request
        .object::<Tombstone>()
        .map_or_else(|_| "unknown".to_owned(), |stored| tombstone::left_behind(&stored));
    request.delete(format!(
        "tombstone/{} is deleted: what is left at the backend stays there, without a record ({left})",
        request.id
    ))
}
