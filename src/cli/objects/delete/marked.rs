//! Deleting services and networks: the command marks them. Only the leader deletes them, once nothing uses them (INV-7).

use jiff::Timestamp;

use super::{Deletion, Request};
use crate::cli::exit::Failure;
use crate::proto::Metadata;
use crate::store::object::mark::Marked;

/// Marks an object; `condition` says when the leader deletes it.
///
/// # Errors
/// 4 for an object that cannot be read, unless forced.
pub async fn plan<O: Marked>(request: Request<'_>, condition: &str) -> Result<Deletion, Failure> {
    let kind = O::KIND.to_lowercase();
    let id = request.id;
    match request.object::<O>() {
        Ok(object) if object.is_marked() => Ok(request.marked_already(&kind, &format!("; {condition}"))),
        Ok(object) => Ok(request.mark(
            object,
            format!("{kind}/{id} is marked for deletion, which cannot be taken back; {condition}"),
        )),
        // What it used is unknown, so it holds every marked network; the empty one releases them all.
        Err(_) if request.force => {
            let mut empty = O::default();
            *empty.metadata_mut() = Metadata::new(&id.name, uuid::Uuid::new_v4(), Timestamp::now());
            Ok(request.mark(
                empty,
                format!(
                    "{kind}/{id} cannot be read: it is replaced by an empty one, which uses nothing and is marked for \
                     deletion; {condition}"
                ),
            ))
        }
        Err(malformed) => Err(super::malformed(&malformed)),
    }
}
