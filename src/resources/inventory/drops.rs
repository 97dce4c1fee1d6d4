//! How many objects the bundle held when it dropped one: what the deletions are measured against.

use super::{Entry, Inventory};
use crate::etcd::{Fence, FencedError};
use crate::kube::ObjectRef;

impl Inventory {
    /// Notes of each object that the bundle has just dropped how many objects it held until then. To be called before the first
    /// object of the bundle is recorded: what the bundle adds must not allow it to prune more, under no leader (INV-12). What
    /// was dropped before counts no longer.
    ///
    /// # Errors
    /// [`FencedError`]; the inventory is then unloaded, because some entries may have been written.
    pub(in crate::resources) async fn note_drops(
        &mut self,
        fence: &Fence,
        is_wanted: impl Fn(&ObjectRef) -> bool,
    ) -> Result<(), FencedError> {
        let held: Vec<(&ObjectRef, &Entry)> = self
            .entries
            .iter()
            .flatten()
            .map(|(object, recorded)| (object, &recorded.entry))
            .filter(|(_, entry)| !entry.unwritten && entry.dropped_of == 0)
            .collect();
        let dropped_of = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let dropped = held.into_iter().filter(|(object, _)| !is_wanted(object));
        let noted = dropped.map(|(object, entry)| {
            let entry = Entry {
                dropped_of,
                ..entry.clone()
            };
            (object.clone(), entry)
        });
        let noted = noted.collect();
        self.record(fence, noted).await
    }
}
